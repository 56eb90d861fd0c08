/* SPDX-License-Identifier: Apache-2.0 */
/* Going through a store's folders: keys, spares, what has ended. */
#include <fcntl.h>
#include <string.h>
#include <sys/stat.h>

#include "base/cleanup.h"
#include "base/clock.h"
#include "base/file.h"
#include "base/json.h"
#include "base/text.h"
#include "lease/store.h"

#define ENDED_MAX 10000
#define ENDED_SECONDS (30 * 86400)

/* A descriptor of its own: a shared one would share its position too. */
static DIR *open_dir(int fd)
{
	int own = openat(fd, ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
	DIR *d = own < 0 ? NULL : fdopendir(own);

	if (!d && own >= 0)
		close(own);
	return d;
}

/* "l-00000001.log" or "d-<32 hex>.log" as its key. */
static bool key_of(const char *name, char ret[static LEASE_KEY_SIZE])
{
	size_t len = strlen(name);

	if (len < 5 || len - 4 >= LEASE_KEY_SIZE || !text_equal(name + len - 4, ".log"))
		return false;
	memcpy(ret, name, len - 4);
	ret[len - 4] = '\0';
	return lease_id_is_native(ret) || (text_has_prefix(ret, "d-") && text_is_hex(ret + 2, 32));
}

int lease_each(const struct lease_store *s, bool ended, int (*fn)(const char *key, void *arg),
	void *arg)
{
	_closedir_ DIR *d = open_dir(ended ? s->dir.endedfd : s->dir.leasesfd);
	struct dirent *e;

	if (!d)
		return -errno;
	while ((errno = 0, e = readdir(d))) {
		char key[LEASE_KEY_SIZE];
		int r;

		if (!key_of(e->d_name, key))
			continue;
		r = fn(key, arg);
		if (r)
			return r;
	}
	return -errno;
}

static int note_key(const char *key, void *arg)
{
	struct lease_keys *k = arg;

	if (k->n == k->capacity) {
		size_t capacity = k->capacity ? k->capacity * 2 : 64;
		void *p = realloc(k->list, capacity * sizeof(*k->list));

		if (!p)
			return -ENOMEM;
		k->list = p;
		k->capacity = capacity;
	}
	text_copy(k->list[k->n++], LEASE_KEY_SIZE, key);
	return 0;
}

int lease_keys_add(const struct lease_store *s, bool ended, struct lease_keys *keys)
{
	return lease_each(s, ended, note_key, keys);
}

static bool is_spare(const char *name)
{
	return text_has_prefix(name, ".spare-") && text_is_hex(name + 7, 16);
}

size_t lease_find_spares(const struct lease_store *s, char (*ret)[LEASE_SPARE_SIZE], size_t n)
{
	_closedir_ DIR *d = open_dir(s->dir.leasesfd);
	struct dirent *e;
	size_t found = 0;

	while (d && found < n && (e = readdir(d))) {
		struct stat st;

		if (!is_spare(e->d_name) ||
			fstatat(s->dir.leasesfd, e->d_name, &st, AT_SYMLINK_NOFOLLOW) < 0)
			continue;
		if (S_ISREG(st.st_mode) && st.st_nlink == 1 && st.st_size == RECORD_CAPACITY)
			text_copy(ret[found++], LEASE_SPARE_SIZE, e->d_name);
	}
	return found;
}

/*
 * A crash may keep a record's blocks and lose the name that was linked to
 * them: directories are not synced on the way to a fault. Its spare name was
 * durable before, so it is found by that, and its own is in its content.
 */
static void readopt(struct lease_store *s, const char *spare)
{
	_close_ int fd =
		openat(s->dir.leasesfd, spare, O_RDWR | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK);
	_json_ json_t *body = NULL;
	char key[LEASE_KEY_SIZE + 8];
	struct stat st;

	if (fd < 0 || file_lock_try(fd, 1) < 0 || fstat(fd, &st) < 0 || st.st_nlink != 1)
		return;
	if (record_read(fd, LEASE_FORMAT, NULL, &body, NULL) < 0)
		return;
	if (json_bool_or(body, "declared", false))
		lease_declared_key(json_text_or(body, "run_id", ""), json_text_or(body, "id", ""),
			key);
	else
		text_copy(key, LEASE_KEY_SIZE, json_text_or(body, "id", ""));
	if (key[0] != 'd' && !lease_id_is_native(key))
		return;
	strcat(key, ".log");
	/* Taken: another lease has the number meanwhile. The record's own number stays what it is. */
	if (linkat(s->dir.leasesfd, spare, s->dir.leasesfd, key, 0) < 0)
		return;
}

int lease_readopt_spares(struct lease_store *s)
{
	_closedir_ DIR *d = open_dir(s->dir.leasesfd);
	struct dirent *e;

	if (!d)
		return -errno;
	while ((e = readdir(d)))
		if (is_spare(e->d_name))
			readopt(s, e->d_name);
	return 0;
}

void lease_drop_spare_names(struct lease_store *s)
{
	_closedir_ DIR *d = open_dir(s->dir.leasesfd);
	struct dirent *e;

	while (d && (e = readdir(d))) {
		_close_ int fd = -1;
		struct stat st;

		if (!is_spare(e->d_name))
			continue;
		fd = openat(s->dir.leasesfd, e->d_name,
			O_RDWR | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK);
		if (fd >= 0 && file_lock_try(fd, 1) == 0 && fstat(fd, &st) == 0 && st.st_nlink > 1)
			unlinkat(s->dir.leasesfd, e->d_name, 0);
	}
}

struct ended_list {
	struct ended {
		unsigned long long mtime_ns;
		char name[LEASE_KEY_SIZE + 8];
	} * list;
	size_t n, capacity;
};

static int by_age(const void *a, const void *b)
{
	const struct ended *x = a, *y = b;

	return x->mtime_ns < y->mtime_ns ? 1 : x->mtime_ns > y->mtime_ns ? -1 : 0;
}

static void note_number(const char *name, unsigned *highest)
{
	uint64_t n;

	if (text_has_prefix(name, "l-") && text_parse_u64_n(name + 2, 8, &n) == 0 && n > *highest)
		*highest = (unsigned)n;
}

static bool note_ended(struct ended_list *l, const char *name)
{
	if (l->n == l->capacity) {
		size_t capacity = l->capacity ? l->capacity * 2 : 256;
		void *p = realloc(l->list, capacity * sizeof(*l->list));

		if (!p)
			return false;
		l->list = p;
		l->capacity = capacity;
	}
	text_copy(l->list[l->n].name, sizeof(l->list[l->n].name), name);
	return true;
}

unsigned lease_prune_ended(struct lease_store *s)
{
	_closedir_ DIR *ended = open_dir(s->dir.endedfd), *live = open_dir(s->dir.leasesfd);
	struct ended_list l = {0};
	unsigned highest = 0;
	struct dirent *e;

	while (live && (e = readdir(live)))
		note_number(e->d_name, &highest);
	while (ended && (e = readdir(ended))) {
		char key[LEASE_KEY_SIZE];
		struct stat st;

		note_number(e->d_name, &highest);
		if (!key_of(e->d_name, key) ||
			fstatat(s->dir.endedfd, e->d_name, &st, AT_SYMLINK_NOFOLLOW) < 0 ||
			!note_ended(&l, e->d_name))
			continue;
		l.list[l.n++].mtime_ns = (unsigned long long)st.st_mtim.tv_sec * 1000000000ull +
			(unsigned long long)st.st_mtim.tv_nsec;
	}
	if (l.n)
		qsort(l.list, l.n, sizeof(*l.list), by_age);
	for (size_t i = 0; i < l.n; i++) {
		/* Signed: a file may be newer than the second we are in. */
		long long age_s = (long long)(clock_utc_ms() / 1000) -
			(long long)(l.list[i].mtime_ns / 1000000000ull);

		if (i >= ENDED_MAX || age_s > ENDED_SECONDS)
			unlinkat(s->dir.endedfd, l.list[i].name, 0);
	}
	free(l.list);
	return highest;
}
