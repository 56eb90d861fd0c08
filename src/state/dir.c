/* SPDX-License-Identifier: Apache-2.0 */
#include "state/dir.h"

#include <fcntl.h>
#include <linux/magic.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/vfs.h>

#include "base/cleanup.h"
#include "base/file.h"
#include "base/json.h"
#include "base/text.h"
#include "os/kernel_abi.h"

#define DIR_FLAGS (O_RDONLY | O_DIRECTORY | O_CLOEXEC | O_NOFOLLOW)
#define STORE_FILE "store.json"
#define STORE_FORMAT 1

int state_dir_default(char *ret, size_t size, struct err *err)
{
	const char *named = getenv("MAYHEM_STATE_DIR"), *xdg = getenv("XDG_STATE_HOME"),
		   *home = getenv("HOME");
	int n = -1;

	if (named && named[0])
		n = snprintf(ret, size, "%s", named);
	else if (geteuid() == 0)
		n = snprintf(ret, size, "/var/lib/mayhem");
	else if (xdg && xdg[0] == '/')
		n = snprintf(ret, size, "%s/mayhem", xdg);
	else if (home && home[0] == '/')
		n = snprintf(ret, size, "%s/.local/state/mayhem", home);
	if (n < 0) {
		err_set(err, "store.failed", 0, "state", "no state directory: HOME is not set");
		err_remedy(err, "name one with --state DIR or MAYHEM_STATE_DIR");
		return -EINVAL;
	}
	return n < (int)size
		? 0
		: err_set(err, "store.failed", ENAMETOOLONG, "state", "the path is too long");
}

/* Makes every missing component of an absolute path, private from the start. */
static int make_parents(const char *path)
{
	char buf[PATH_MAX];

	if (!text_copy(buf, sizeof(buf), path))
		return -ENAMETOOLONG;
	for (char *p = buf + 1;; p++) {
		bool last = *p == '\0';

		if (*p != '/' && !last)
			continue;
		*p = '\0';
		if (mkdir(buf, 0700) < 0 && errno != EEXIST)
			return -errno;
		if (last)
			return 0;
		*p = '/';
	}
}

static int refuse(const char *path, const char *why, struct err *err)
{
	err_set(err, "store.failed", 0, "state", "state directory %s: %s", path, why);
	err_remedy(err,
		"name another one with --state DIR, or mend this one: chmod 700, chown to you");
	return -EPERM;
}

/* Nobody but root and us may rename or replace any component. */
static int check_parents(const char *path, uid_t owner, struct err *err)
{
	char buf[PATH_MAX];

	text_copy(buf, sizeof(buf), path);
	for (char *slash = strrchr(buf, '/'); slash; slash = strrchr(buf, '/')) {
		const char *dir = slash == buf ? "/" : buf;
		struct stat st;

		*slash = '\0';
		if (lstat(dir, &st) < 0)
			return err_set(err, "store.failed", errno, "state", "cannot look at %s",
				dir);
		if (st.st_uid != 0 && st.st_uid != owner)
			return refuse(path, "a parent folder belongs to somebody else", err);
		if (st.st_mode & 022 && !(st.st_mode & S_ISVTX))
			return refuse(path, "a parent folder is writable by others", err);
	}
	return 0;
}

static int check_own(int fd, const char *path, uid_t owner, bool *ret_volatile, struct err *err)
{
	struct statfs fs;
	struct stat st;

	if (fstat(fd, &st) < 0 || fstatfs(fd, &fs) < 0)
		return err_set(err, "store.failed", errno, "state", "cannot look at %s", path);
	if (st.st_uid != owner)
		return refuse(path, "it belongs to somebody else", err);
	if (st.st_mode & 077)
		return refuse(path, "others may read or write it (mode is wider than 0700)", err);
	if (fs.f_type == NFS_SUPER_MAGIC)
		return refuse(path,
			"it is on NFS, where locks and durable writes cannot be trusted", err);
	*ret_volatile = fs.f_type == TMPFS_MAGIC || fs.f_type == RAMFS_MAGIC;
	return 0;
}

static int open_sub(int fd, const char *name, bool make, int *ret)
{
	if (make && mkdirat(fd, name, 0700) < 0 && errno != EEXIST)
		return -errno;
	*ret = openat(fd, name, DIR_FLAGS);
	return *ret < 0 ? -errno : 0;
}

static int read_store(struct state_dir *d, struct err *err)
{
	_free_ char *text = NULL;
	_json_ json_t *j = NULL;
	size_t len;
	int r = file_read_at(d->fd, STORE_FILE, 4096, &text, &len);

	if (r < 0)
		return r;
	if (json_parse(text, len, &j, NULL) < 0 ||
		!text_is_hex(json_text_or(j, "store", ""), STATE_STORE_SIZE - 1))
		return refuse(d->path, "its " STORE_FILE " does not read", err);
	if (json_int_or(j, "format", 0) != STORE_FORMAT)
		return refuse(d->path, "it was made by another version of mayhem", err);
	text_copy(d->store, sizeof(d->store), json_text_or(j, "store", ""));
	return 0;
}

/*
 * Made once, by whoever is first: a complete, synced file is linked to its
 * name, so a second maker finds the first one's and no reader a half one.
 */
static int make_store(struct state_dir *d, struct err *err)
{
	char store[STATE_STORE_SIZE], temp[64], text[128];
	int r = text_random_hex(store, (STATE_STORE_SIZE - 1) / 2);

	if (r < 0)
		return err_set(err, "store.failed", -r, "state", "no random bits");
	snprintf(temp, sizeof(temp), ".store.%.16s", store);
	snprintf(text, sizeof(text), "{\"format\":%d,\"store\":\"%s\"}\n", STORE_FORMAT, store);
	r = file_write_at(d->fd, temp, text, strlen(text), 0600);
	if (r == 0 && linkat(d->fd, temp, d->fd, STORE_FILE, 0) < 0 && errno != EEXIST)
		r = -errno;
	unlinkat(d->fd, temp, 0);
	if (r == 0 && fsync(d->fd) < 0)
		r = -errno;
	return r < 0
		? err_set(err, "store.failed", -r, "state", "cannot write %s/" STORE_FILE, d->path)
		: 0;
}

static int open_all(struct state_dir *d, bool make, struct err *err)
{
	static const char *const names[] = {"leases", "ended", "claims", "aside"};
	int *const fds[] = {&d->leasesfd, &d->endedfd, &d->claimsfd, &d->asidefd};
	int r = read_store(d, err);

	if (r == -ENOENT && make) {
		r = make_store(d, err);
		if (r == 0)
			r = read_store(d, err);
	}
	if (r == -ENOENT)
		return err_set(err, "store.failed", ENOENT, "state", "%s holds no store", d->path);
	if (r < 0)
		return err && err->code[0] ? r
					   : err_set(err, "store.failed", -r, "state",
						     "cannot read %s/" STORE_FILE, d->path);
	for (size_t i = 0; i < ARRAY_SIZE(names); i++) {
		r = open_sub(d->fd, names[i], make, fds[i]);
		if (r < 0)
			return err_set(err, "store.failed", -r, "state", "cannot open %s/%s",
				d->path, names[i]);
	}
	return 0;
}

/* owner: whose it must be; (uid_t)-1: whoever's it is. */
static int open_as(const char *path, bool make, uid_t owner, struct state_dir *ret, struct err *err)
{
	struct state_dir d = STATE_DIR_INIT;
	char absolute[PATH_MAX];
	struct stat st;
	int r;

	if (path[0] == '/')
		r = text_copy(absolute, sizeof(absolute), path) ? 0 : -ENAMETOOLONG;
	else if (!getcwd(absolute, sizeof(absolute)))
		r = -errno;
	else
		r = strlen(absolute) + strlen(path) + 2 > sizeof(absolute)
			? -ENAMETOOLONG
			: (strcat(strcat(absolute, "/"), path), 0);
	if (r == 0 && make)
		r = make_parents(absolute);
	if (r < 0)
		return err_set(err, "store.failed", -r, "state", "cannot make %s", path);
	if (lstat(absolute, &st) < 0)
		return err_set(err, "store.failed", errno, "state", "no state directory %s", path);
	if (S_ISLNK(st.st_mode))
		return refuse(path, "it is a link", err);
	if (!realpath(absolute, d.path))
		return err_set(err, "store.failed", errno, "state", "cannot resolve %s", path);
	if (owner == (uid_t)-1)
		owner = st.st_uid;
	d.owner = owner;
	d.fd = open(d.path, DIR_FLAGS);
	if (d.fd < 0)
		return err_set(err, "store.failed", errno, "state", "cannot open %s", d.path);
	r = check_own(d.fd, d.path, owner, &d.is_volatile, err);
	if (r == 0)
		r = check_parents(d.path, owner, err);
	if (r == 0)
		r = open_all(&d, make, err);
	if (r < 0) {
		state_dir_close(&d);
		return r;
	}
	*ret = d;
	return 0;
}

int state_dir_open(const char *path, bool make, struct state_dir *ret, struct err *err)
{
	return open_as(path, make, geteuid(), ret, err);
}

int state_dir_open_to_read(const char *path, struct state_dir *ret, struct err *err)
{
	return open_as(path, false, geteuid() == 0 ? (uid_t)-1 : geteuid(), ret, err);
}

void state_dir_close(struct state_dir *d)
{
	int *const fds[] = {&d->fd, &d->leasesfd, &d->endedfd, &d->claimsfd, &d->asidefd};

	for (size_t i = 0; i < ARRAY_SIZE(fds); i++)
		close_now(fds[i]);
}
