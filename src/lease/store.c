/* SPDX-License-Identifier: Apache-2.0 */
#include "lease/store.h"

#include <fcntl.h>
#include <string.h>
#include <sys/stat.h>

#include "base/cleanup.h"
#include "base/file.h"
#include "base/hash.h"
#include "base/json.h"
#include "base/text.h"
#include "lease/claim.h"

#define ID_MAX 99999999u
#define GROW_FACTOR 4

int lease_store_open(const char *path, bool make, struct lease_store *ret, struct err *err)
{
	struct lease_store s = {.dir = STATE_DIR_INIT, .hostclaimsfd = -1, .next_hint = 1};
	int r = state_dir_open(path, make, &s.dir, err);

	if (r < 0)
		return r;
	r = procfs_boot_id(s.boot_id);
	if (r < 0) {
		state_dir_close(&s.dir);
		return err_set(err, "store.failed", -r, "state", "cannot read this boot's id");
	}
	s.pidns = procfs_ns_inode(0, "pid");
	s.timens = procfs_ns_inode(0, "time");
	procfs_machine_id(s.machine_id);
	gethostname(s.hostname, sizeof(s.hostname) - 1);
	s.hostclaimsfd = claim_open_host_dir();
	r = cgroup_domain_probe(s.dir.store, &s.domain, err);
	if (r < 0) {
		lease_store_close(&s);
		return r;
	}
	*ret = s;
	return 0;
}

void lease_store_close(struct lease_store *s)
{
	cgroup_domain_close(&s->domain);
	close_now(&s->hostclaimsfd);
	state_dir_close(&s->dir);
}

void lease_file_close(struct lease_file *f)
{
	close_now(&f->fd);
}

static void log_name(const char *key, char *buf, size_t size)
{
	snprintf(buf, size, "%s.log", key);
}

int lease_spare_make(struct lease_store *s, char ret_name[static LEASE_SPARE_SIZE], struct err *err)
{
	char name[LEASE_SPARE_SIZE] = ".spare-";
	_close_ int fd = -1;
	int r = text_random_hex(name + strlen(name), 8);

	if (r == 0)
		r = record_create(s->dir.leasesfd, name, RECORD_CAPACITY, &fd);
	if (r == 0 && fsync(s->dir.leasesfd) < 0) {
		r = -errno;
		unlinkat(s->dir.leasesfd, name, 0);
	}
	if (r < 0)
		return err_set(err, "store.failed", -r, "spare", "cannot make a record in %s",
			s->dir.path);
	text_copy(ret_name, LEASE_SPARE_SIZE, name);
	return 0;
}

/* Locked, unused and still under that name: ours. */
static int take_spare(struct lease_store *s, const char *name, struct lease_file *f)
{
	_close_ int fd = openat(s->dir.leasesfd, name, O_RDWR | O_CLOEXEC | O_NOFOLLOW);
	struct stat st, now;

	if (fd < 0)
		return -errno;
	if (file_lock_try(fd, 1) < 0)
		return -EBUSY;
	if (fstat(fd, &st) < 0 || st.st_nlink != 1 || st.st_size != RECORD_CAPACITY ||
		fstatat(s->dir.leasesfd, name, &now, AT_SYMLINK_NOFOLLOW) < 0 ||
		now.st_ino != st.st_ino)
		return -EBUSY;
	f->rec = (struct record){.fd = fd, .capacity = RECORD_CAPACITY};
	f->fd = take_fd(&fd);
	text_copy(f->spare, sizeof(f->spare), name);
	return 0;
}

static int obtain_spare(struct lease_store *s, const char *spare, struct lease_file *f,
	struct err *err)
{
	char name[LEASE_SPARE_SIZE];
	int r;

	if (spare[0] && take_spare(s, spare, f) == 0)
		return 0;
	for (int attempt = 0; attempt < 3; attempt++) {
		r = lease_spare_make(s, name, err);
		if (r < 0)
			return r;
		r = take_spare(s, name, f);
		if (r == 0)
			return 0;
	}
	return err_set(err, "store.failed", -r, "spare", "somebody else takes our spare records");
}

/* link(2) is the claim: exclusive among all who work on this store. */
static int link_name(struct lease_store *s, struct lease_file *f, const char *key)
{
	char name[LEASE_KEY_SIZE + 8];

	log_name(key, name, sizeof(name));
	if (linkat(s->dir.leasesfd, f->spare, s->dir.leasesfd, name, 0) < 0)
		return -errno;
	/* Ended under that name already? It was moved after we looked, before we linked. */
	if (faccessat(s->dir.endedfd, name, F_OK, 0) == 0 && key[0] == 'l') {
		unlinkat(s->dir.leasesfd, name, 0);
		return -EEXIST;
	}
	return 0;
}

static int allot_id(struct lease_store *s, struct lease_file *f, struct lease *l, struct err *err)
{
	unsigned n = s->next_hint;

	/* Behind the highest, which a controller may have named itself: then those below it are looked at too. */
	for (unsigned i = 0; i < ID_MAX; i++, n++) {
		int r;

		if (n < 1 || n > ID_MAX)
			n = 1;
		snprintf(l->id, sizeof(l->id), "l-%08u", n);
		text_copy(l->key, sizeof(l->key), l->id);
		r = link_name(s, f, l->key);
		if (r == 0) {
			s->next_hint = n + 1;
			return 0;
		}
		if (r != -EEXIST)
			return err_set(err, "store.failed", -r, "claim", "cannot claim %s", l->id);
	}
	return err_set(err, "store.failed", 0, "claim", "no lease id is free");
}

int lease_file_create(struct lease_store *s, const char *spare, struct lease *l,
	struct lease_file *ret, struct err *err)
{
	_lease_file_ struct lease_file f = LEASE_FILE_INIT;
	int r = obtain_spare(s, spare, &f, err);

	if (r < 0)
		return r;
	if (l->declared) {
		r = link_name(s, &f, l->key);
		if (r == -EEXIST)
			return err_set(err, "lease.in_use", EEXIST, "claim",
				"lease %s of run %s is live already", l->id, l->run_id);
		if (r < 0)
			return err_set(err, "store.failed", -r, "claim", "cannot claim %s", l->id);
	} else if (l->id[0]) {
		text_copy(l->key, sizeof(l->key), l->id);
		r = link_name(s, &f, l->key);
		if (r < 0)
			return err_set(err, r == -EEXIST ? "lease.in_use" : "store.failed", -r,
				"claim", "cannot claim %s", l->id);
	} else {
		r = allot_id(s, &f, l, err);
		if (r < 0)
			return r;
	}
	text_copy(f.key, sizeof(f.key), l->key);
	r = lease_file_write(s, &f, l, err);
	if (r < 0) {
		char name[LEASE_KEY_SIZE + 8];

		log_name(f.key, name, sizeof(name));
		unlinkat(s->dir.leasesfd, name, 0);
		unlinkat(s->dir.leasesfd, f.spare, 0);
		return r;
	}
	*ret = f;
	f.fd = -1;
	return 0;
}

/* On a file system that was remounted read-only a record still says what is to be undone. */
static int open_record(const struct lease_store *s, const char *name)
{
	const int flags = O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK;
	int fd = openat(s->dir.leasesfd, name, O_RDWR | flags);

	return fd < 0 && errno == EROFS ? openat(s->dir.leasesfd, name, O_RDONLY | flags) : fd;
}

/* The lock of the file that has the name now, not of one that had it. */
static int lock_named(const struct lease_store *s, const char *name, int *ret_fd)
{
	for (int attempt = 0; attempt < 4; attempt++) {
		_close_ int fd = open_record(s, name);
		struct stat st, now;

		if (fd < 0)
			return -errno;
		if (file_lock_try(fd, 1) < 0)
			return -EBUSY;
		if (fstat(fd, &st) == 0 &&
			fstatat(s->dir.leasesfd, name, &now, AT_SYMLINK_NOFOLLOW) == 0 &&
			st.st_ino == now.st_ino) {
			*ret_fd = take_fd(&fd);
			return 0;
		}
	}
	return -EBUSY;
}

static int member_digest(const json_t *value, char ret[static 33])
{
	char hex[HASH_HEX_SIZE];
	size_t len;
	_free_ char *text = json_canonical(value, &len);

	if (!text)
		return -ENOMEM;
	hash_hex(text, len, hex);
	text_copy(ret, 33, hex);
	return 0;
}

static struct lease_written *find_written(struct lease_file *f, const char *name)
{
	for (size_t i = 0; i < f->n_written; i++)
		if (text_equal(f->written[i].name, name))
			return &f->written[i];
	return NULL;
}

/* Remembers what the record now says of these members; one that it cannot is written again next time. */
static void note_written(struct lease_file *f, json_t *members)
{
	const char *name;
	json_t *v;

	json_object_foreach(members, name, v) {
		struct lease_written *w = find_written(f, name);

		if (!w && f->n_written == LEASE_MEMBERS_MAX)
			continue;
		if (!w) {
			w = &f->written[f->n_written++];
			text_copy(w->name, sizeof(w->name), name);
		}
		if (member_digest(v, w->digest) < 0)
			w->digest[0] = '\0';
	}
}

static int read_record(const struct lease_store *s, const char *key, struct lease_file *f,
	struct lease *ret, struct err *err)
{
	_json_ json_t *body = NULL;
	struct err why = {0};
	int r = record_read_of(f->fd, s->dir.owner, LEASE_FORMAT, &f->rec, &body, err);

	if (r < 0)
		return r;
	if (lease_from_json(key, body, ret, &why) < 0) {
		if (err)
			*err = why;
		return why.errnum == ENOMEM ? -ENOMEM : -EBADMSG;
	}
	f->n_written = 0;
	note_written(f, body);
	return 0;
}

int lease_file_open(struct lease_store *s, const char *key, struct lease_file *ret_file,
	struct lease *ret_lease, struct err *err)
{
	struct lease_file f = LEASE_FILE_INIT;
	char name[LEASE_KEY_SIZE + 8];
	int r;

	log_name(key, name, sizeof(name));
	text_copy(f.key, sizeof(f.key), key);
	r = lock_named(s, name, &f.fd);
	if (r == -EBUSY)
		return err_set(err, "lease.in_use", EBUSY, "lock", "somebody is at work on %s",
			key);
	if (r < 0)
		return err_set(err, "lease.unknown", -r, "lock", "no live lease %s", key);
	r = read_record(s, key, &f, ret_lease, err);
	*ret_file = f;
	return r;
}

int lease_peek(const struct lease_store *s, const char *key, struct lease *ret, struct err *err)
{
	const int dirs[] = {s->dir.leasesfd, s->dir.endedfd, s->dir.leasesfd};
	char name[LEASE_KEY_SIZE + 8];

	log_name(key, name, sizeof(name));
	/* Looked for a second time: it may have moved between the first two looks. */
	for (size_t i = 0; i < ARRAY_SIZE(dirs); i++) {
		_lease_file_ struct lease_file f = LEASE_FILE_INIT;

		f.fd = openat(dirs[i], name, O_RDONLY | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK);
		if (f.fd >= 0)
			return read_record(s, key, &f, ret, err);
		/* No descriptor, or an error of the disk, does not mean that there is none. */
		if (errno != ENOENT)
			return err_set(err, "store.failed", errno, "read", "cannot open %s", name);
	}
	return err_set(err, "lease.unknown", ENOENT, "read", "no lease %s", key);
}

int lease_is_locked(const struct lease_store *s, const char *key)
{
	char name[LEASE_KEY_SIZE + 8];
	_close_ int fd = -1;

	log_name(key, name, sizeof(name));
	fd = openat(s->dir.leasesfd, name, O_RDONLY | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK);
	if (fd < 0)
		return -errno;
	return file_lock_try(fd, 0) < 0;
}

/* The members of now that differ from what the record says. */
static json_t *changes(struct lease_file *f, json_t *now)
{
	json_t *diff = json_object(), *v;
	const char *name;

	json_object_foreach(now, name, v) {
		const struct lease_written *w = find_written(f, name);
		char digest[33];

		if (member_digest(v, digest) < 0 || !w || !text_equal(w->digest, digest))
			json_object_set(diff, name, v);
	}
	return diff;
}

/* A line of this length leaves no room for as many again, or has none itself: a tree written in rounds. */
static bool is_too_small(const struct lease_file *f, size_t line)
{
	return f->rec.capacity < RECORD_CAPACITY_MAX &&
		(line * GROW_FACTOR > f->rec.capacity ||
			f->rec.end + line + RECORD_RESERVE > f->rec.capacity);
}

/*
 * A lease whose lines are long gets a larger file before it is used: made,
 * synced and locked, then renamed over the old one. It begins with all that is
 * known, in one line.
 */
static int grow(struct lease_store *s, struct lease_file *f, json_t *now, size_t line,
	struct err *err)
{
	char spare[LEASE_SPARE_SIZE] = ".spare-", name[LEASE_KEY_SIZE + 8];
	size_t capacity = line * GROW_FACTOR;
	struct lease_file big = LEASE_FILE_INIT;
	int r;

	if (capacity < f->rec.capacity)
		capacity = f->rec.capacity;
	if (capacity > RECORD_CAPACITY_MAX)
		capacity = RECORD_CAPACITY_MAX;
	if (line + RECORD_RESERVE > capacity)
		return err_set(err, "store.failed", EFBIG, "write",
			"the lease does not fit into a record of 4 MiB");
	r = text_random_hex(spare + strlen(spare), 8);
	if (r == 0)
		r = record_create(s->dir.leasesfd, spare, capacity, &big.fd);
	if (r < 0)
		return err_set(err, "store.failed", -r, "write", "cannot make a larger record");
	big.rec = (struct record){.fd = big.fd, .capacity = capacity};
	log_name(f->key, name, sizeof(name));
	r = file_lock_try(big.fd, 1);
	if (r == 0)
		r = record_append(&big.rec, LEASE_FORMAT, now, RECORD_RESERVE, err);
	if (r == 0 && renameat(s->dir.leasesfd, spare, s->dir.leasesfd, name) < 0)
		r = -errno;
	if (r < 0) {
		unlinkat(s->dir.leasesfd, spare, 0);
		close_now(&big.fd);
		return r;
	}
	/* The old name's blocks go with it: the new ones must be found after a crash. */
	r = fsync(s->dir.leasesfd) < 0 ? -errno : 0;
	unlinkat(s->dir.leasesfd, f->spare, 0);
	f->spare[0] = '\0';
	close_now(&f->fd);
	f->fd = big.fd;
	f->rec = big.rec;
	return 0;
}

static int append(struct lease_store *s, struct lease_file *f, struct lease *l, json_t *now,
	struct err *err)
{
	_json_ json_t *diff = changes(f, now);
	bool ending = l->state != LEASE_PENDING && l->state != LEASE_ACTIVE;
	size_t line = ending ? 0 : record_line_size(LEASE_FORMAT, diff);
	int r;

	if (!line && !ending)
		return err_set(err, "store.failed", ENOMEM, "write",
			"no memory for a line of the record");
	if (!ending && is_too_small(f, line))
		r = grow(s, f, now, record_line_size(LEASE_FORMAT, now), err);
	else
		r = record_append(&f->rec, LEASE_FORMAT, diff, ending ? 0 : RECORD_RESERVE, err);
	if (r == -EFBIG && ending) {
		/* The end of a lease matters more than what was seen on the way. */
		json_object_del(diff, "observations");
		r = record_append(&f->rec, LEASE_FORMAT, diff, 0, err);
	}
	if (r == 0)
		note_written(f, diff);
	return r;
}

int lease_file_write(struct lease_store *s, struct lease_file *f, struct lease *l, struct err *err)
{
	_json_ json_t *now = NULL;
	int r = lease_check(l, err);

	if (r < 0)
		return r;
	now = lease_to_json(l);
	if (!now)
		return err_set(err, "store.failed", ENOMEM, "write", "no memory");
	return append(s, f, l, now, err);
}

int lease_file_retire(struct lease_store *s, struct lease_file *f, struct err *err)
{
	char name[LEASE_KEY_SIZE + 8];

	log_name(f->key, name, sizeof(name));
	if (renameat(s->dir.leasesfd, name, s->dir.endedfd, name) < 0)
		return err_set(err, "store.failed", errno, "retire", "cannot move %s to ended/",
			f->key);
	if (f->spare[0])
		unlinkat(s->dir.leasesfd, f->spare, 0);
	if (ftruncate(f->fd, (off_t)f->rec.end) < 0)
		return 0; /* it only takes more room */
	return 0;
}

void lease_file_discard(struct lease_store *s, struct lease_file *f)
{
	char name[LEASE_KEY_SIZE + 8];

	log_name(f->key, name, sizeof(name));
	unlinkat(s->dir.leasesfd, name, 0);
}

int lease_set_aside(struct lease_store *s, const char *name, char *ret_kept, size_t size,
	struct err *err)
{
	for (unsigned n = 0; n < 1000; n++) {
		char kept[96];

		snprintf(kept, sizeof(kept), "%s.%u", name, n);
		if (renameat2(s->dir.leasesfd, name, s->dir.asidefd, kept, RENAME_NOREPLACE) == 0) {
			snprintf(ret_kept, size, "aside/%s", kept);
			return 0;
		}
		if (errno != EEXIST)
			break;
	}
	return err_set(err, "store.failed", errno, "aside", "cannot set %s aside", name);
}
