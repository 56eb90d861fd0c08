/* SPDX-License-Identifier: Apache-2.0 */
#include "os/cgroup.h"

#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <string.h>
#include <sys/stat.h>

#include "base/cleanup.h"
#include "base/clock.h"
#include "base/file.h"
#include "base/text.h"
#include "os/mounts.h"
#include "os/pidfd.h"
#include "os/procfs.h"

#define LEAF_DIR_FLAGS (O_RDONLY | O_DIRECTORY | O_CLOEXEC | O_NOFOLLOW)
#define EMPTY_POLL_MS 2
#define MAKE_TRIES 8

static const char *const kill_names[CGROUP_KILL_MAX] = {"none", "cgroup.kill", "cgroup.freeze",
	"freezer"};
static const char *const mode_names[CGROUP_MODE_MAX] = {"none", "v1", "v2", "hybrid"};

const char *cgroup_kill_name(enum cgroup_kill kill)
{
	return kill_names[kill];
}

const char *cgroup_mode_name(enum cgroup_mode mode)
{
	return mode_names[mode];
}

/* May we make directories here? Access by the real answer of the kernel, not by mode bits. */
static bool may_write(const char *mount, const char *path)
{
	char full[CGROUP_PATH_SIZE + PROC_CGROUP_SIZE];

	snprintf(full, sizeof(full), "%s%s", mount, path);
	return faccessat(AT_FDCWD, full, W_OK, AT_EACCESS) == 0;
}

/*
 * Root uses the root of the v2 mount, because a leaf beneath its own cgroup
 * would fall under the no-internal-processes rule; anybody else only the
 * subtree that was delegated to them.
 */
static bool place_v2(struct cgroup_domain *d, const char *store, const char *mount)
{
	char own[PROC_CGROUP_SIZE];
	int n;

	if (geteuid() == 0 && may_write(mount, "/"))
		n = snprintf(d->base, sizeof(d->base), "/mayhem/%s", store);
	else if (procfs_cgroup(0, "", own, sizeof(own)) == 0 && may_write(mount, own))
		n = snprintf(d->base, sizeof(d->base), "%s/mayhem/%s", own[1] ? own : "", store);
	else
		return false;
	return n < (int)sizeof(d->base) && text_copy(d->mount, sizeof(d->mount), mount);
}

static bool place_v1(struct cgroup_domain *d, const char *store, const char *mount)
{
	char own[PROC_CGROUP_SIZE];
	int n;

	if (procfs_cgroup(0, "freezer", own, sizeof(own)) < 0 || !may_write(mount, own))
		return false;
	n = snprintf(d->base, sizeof(d->base), "%s/mayhem/%s", own[1] ? own : "", store);
	return n < (int)sizeof(d->base) && text_copy(d->mount, sizeof(d->mount), mount);
}

/* cgroup.kill and cgroup.freeze exist in every cgroup but the root: look at our own or at any child. */
static enum cgroup_kill v2_ability(const char *mount)
{
	_closedir_ DIR *dir = opendir(mount);
	struct dirent *e;

	/* A kernel with cgroup v2 and no child at all is told by trying: cgroup.kill is there since 5.14. */
	while (dir && (e = readdir(dir))) {
		char file[2 * CGROUP_PATH_SIZE + 32];

		if (e->d_type != DT_DIR || e->d_name[0] == '.')
			continue;
		snprintf(file, sizeof(file), "%s/%s/cgroup.kill", mount, e->d_name);
		if (access(file, F_OK) == 0)
			return CGROUP_KILL_V2;
		snprintf(file, sizeof(file), "%s/%s/cgroup.freeze", mount, e->d_name);
		if (access(file, F_OK) == 0)
			return CGROUP_KILL_V2_FREEZE;
	}
	return CGROUP_KILL_V2;
}

int cgroup_domain_probe(const char *store, struct cgroup_domain *ret, struct err *err)
{
	struct cgroup_domain d = CGROUP_DOMAIN_INIT;
	struct mounts_cgroup m;
	int r = mounts_find_cgroup(&m);

	if (r < 0)
		return err_set(err, "launch.failed", -r, "cgroup",
			"cannot read /proc/self/mountinfo");
	d.mounts = m;
	if (m.v2[0])
		d.mode = m.v1_controllers ? CGROUP_MODE_HYBRID : CGROUP_MODE_V2;
	else if (m.v1_controllers)
		d.mode = CGROUP_MODE_V1;
	if (m.v2[0] && place_v2(&d, store, m.v2))
		d.kill = v2_ability(m.v2);
	else if (m.freezer[0] && place_v1(&d, store, m.freezer))
		d.kill = CGROUP_KILL_V1_FREEZER;
	*ret = d;
	return 0;
}

void cgroup_domain_close(struct cgroup_domain *d)
{
	close_now(&d->basefd);
}

/* Makes and opens each component of the base; another process may be making it too. */
static int open_base(struct cgroup_domain *d, bool make, int *ret_fd)
{
	_close_ int fd = open(d->mount, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
	char path[CGROUP_PATH_SIZE], *p = path;

	if (fd < 0)
		return -errno;
	text_copy(path, sizeof(path), d->base + 1);
	for (char *name = strsep(&p, "/"); name; name = strsep(&p, "/")) {
		int next;

		if (make && mkdirat(fd, name, 0755) < 0 && errno != EEXIST)
			return -errno;
		next = openat(fd, name, LEAF_DIR_FLAGS);
		if (next < 0)
			return -errno;
		close_now(&fd);
		fd = next;
	}
	*ret_fd = take_fd(&fd);
	return 0;
}

/* -ENOENT when somebody pruned or swept what was just made: to be tried again. */
static int make_leaf_once(struct cgroup_domain *d, const char *nonce, int *ret_fd)
{
	int fd, r;

	if (d->basefd < 0) {
		r = open_base(d, true, &d->basefd);
		if (r < 0)
			return r;
	}
	if (mkdirat(d->basefd, nonce, 0755) < 0) {
		r = -errno;
		if (r == -ENOENT)
			close_now(
				&d->basefd); /* pruned by another agent of this store that ended */
		return r;
	}
	fd = openat(d->basefd, nonce, LEAF_DIR_FLAGS);
	if (fd < 0)
		return -errno;
	*ret_fd = fd;
	return 0;
}

int cgroup_leaf_make(struct cgroup_domain *d, const char *nonce, char *ret_path, size_t size,
	int *ret_fd, struct err *err)
{
	int r = -ENOENT;

	for (int attempt = 0; attempt < MAKE_TRIES && r == -ENOENT; attempt++)
		r = make_leaf_once(d, nonce, ret_fd);
	if (r < 0)
		return err_set(err, "launch.failed", -r, "cgroup", "cannot make %s%s/%s", d->mount,
			d->base, nonce);
	snprintf(ret_path, size, "%s/%s", d->base, nonce);
	return 0;
}

bool cgroup_leaf_exists(const struct cgroup_domain *d, const char *nonce)
{
	return faccessat(d->basefd, nonce, F_OK, AT_SYMLINK_NOFOLLOW) == 0;
}

int cgroup_leaf_open(const struct cgroup_domain *d, const char *nonce, int *ret_fd)
{
	char path[2 * CGROUP_PATH_SIZE + 64];
	int fd;

	if (d->kill == CGROUP_KILL_NONE)
		return -ENOENT;
	snprintf(path, sizeof(path), "%s%s/%s", d->mount, d->base, nonce);
	fd = open(path, LEAF_DIR_FLAGS);
	if (fd < 0)
		return -errno;
	*ret_fd = fd;
	return 0;
}

int cgroup_leaf_join_self(int leaffd)
{
	/* "0" is the writer itself; by `tasks` (v1) it does not wait for an RCU period. */
	int r = file_write_control(leaffd, "tasks", "0");

	return r == -ENOENT ? file_write_control(leaffd, "cgroup.procs", "0") : r;
}

/* The cgroup in which our `mayhem` lies: the root of the mount, or what was delegated. */
static int open_outside(const struct cgroup_domain *d, int *ret_fd)
{
	char path[2 * CGROUP_PATH_SIZE], *mark;
	int fd;

	snprintf(path, sizeof(path), "%s%s", d->mount, d->base);
	mark = strstr(path + strlen(d->mount), "/mayhem/");
	if (!mark)
		return -EINVAL;
	*mark = '\0';
	fd = open(path, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
	if (fd < 0)
		return -errno;
	*ret_fd = fd;
	return 0;
}

/* Calls fn with a descriptor of each leaf beneath this one: what a launched process launched itself. */
static int each_nested(int leaffd, int (*fn)(int fd, const char *name, void *arg), void *arg)
{
	int own = openat(leaffd, ".", LEAF_DIR_FLAGS), r = 0;
	_closedir_ DIR *dir = own < 0 ? NULL : fdopendir(own);
	struct dirent *e;

	if (!dir) {
		close_now(&own);
		return -errno;
	}
	while (r == 0 && (e = readdir(dir))) {
		_close_ int fd = -1;

		if (e->d_type != DT_DIR || !text_is_hex(e->d_name, 32))
			continue;
		fd = openat(leaffd, e->d_name, LEAF_DIR_FLAGS);
		if (fd >= 0)
			r = fn(fd, e->d_name, arg);
	}
	return r;
}

struct process_visit {
	int (*fn)(pid_t pid, void *arg);
	void *arg;
};

static int visit_nested(int fd, const char *name _unused_, void *arg)
{
	struct process_visit *v = arg;

	return cgroup_each_process(fd, v->fn, v->arg);
}

int cgroup_each_process(int leaffd, int (*fn)(pid_t pid, void *arg), void *arg)
{
	struct process_visit nested = {fn, arg};
	_free_ char *list = NULL;
	int r = file_read_at(leaffd, "cgroup.procs", 1 << 20, &list, NULL);

	if (r < 0)
		return r;
	for (char *p = list, *line; (line = strsep(&p, "\n"));) {
		pid_t pid;

		if (!*line)
			continue;
		if (text_parse_pid(line, &pid) < 0)
			continue; /* "0": a process of a namespace we do not see */
		r = fn(pid, arg);
		if (r)
			return r;
	}
	return each_nested(leaffd, visit_nested, &nested);
}

/* Opened while its cgroup is frozen, so the number cannot have changed hands since it was listed. */
static int kill_one(pid_t pid, void *arg _unused_)
{
	int fd;

	if (pidfd_open_pid(pid, &fd) == 0) {
		pidfd_signal(fd, SIGKILL);
		close(fd);
	}
	return 0;
}

static void freeze(const struct cgroup_domain *d, int leaffd, bool on)
{
	if (d->kill == CGROUP_KILL_V1_FREEZER)
		file_write_control(leaffd, "freezer.state", on ? "FROZEN" : "THAWED");
	else
		file_write_control(leaffd, "cgroup.freeze", on ? "1" : "0");
}

int cgroup_leaf_kill(const struct cgroup_domain *d, int leaffd)
{
	int r;

	if (d->kill == CGROUP_KILL_NONE)
		return -EOPNOTSUPP;
	if (d->kill == CGROUP_KILL_V2) {
		r = file_write_control(leaffd, "cgroup.kill", "1");
		if (r != -ENOENT)
			return r;
	}
	freeze(d, leaffd, true);
	r = cgroup_each_process(leaffd, kill_one, NULL);
	freeze(d, leaffd, false);
	return r;
}

static int move_out(pid_t pid, void *arg)
{
	char text[16];

	snprintf(text, sizeof(text), "%d", pid);
	file_write_control(*(int *)arg, "cgroup.procs", text);
	return 0;
}

/* Frozen while it is done: nobody can end, and no number change hands, between list and move. */
int cgroup_leaf_let_go(const struct cgroup_domain *d, int leaffd)
{
	_close_ int outside = -1;
	int r = open_outside(d, &outside);

	if (r < 0)
		return r;
	freeze(d, leaffd, true);
	r = cgroup_each_process(leaffd, move_out, &outside);
	freeze(d, leaffd, false);
	return r;
}

static int note_process(pid_t pid _unused_, void *arg _unused_)
{
	return 1;
}

int cgroup_leaf_populated(const struct cgroup_domain *d, int leaffd)
{
	char buf[256];
	ssize_t n;

	if (d->kill == CGROUP_KILL_V1_FREEZER)
		return cgroup_each_process(leaffd, note_process, NULL);
	n = file_read_into(leaffd, "cgroup.events", buf, sizeof(buf));
	if (n < 0)
		return (int)n;
	return strstr(buf, "populated 1") != NULL;
}

int cgroup_leaf_wait_empty(const struct cgroup_domain *d, int leaffd, uint64_t timeout_ms)
{
	uint64_t deadline = clock_boottime_ms() + timeout_ms;

	for (;;) {
		int r = cgroup_leaf_populated(d, leaffd);

		if (r <= 0)
			return r == -ENODEV || r == -ENOENT ? 0 : r; /* removed already */
		if (clock_until_ms(deadline) == 0)
			return -ETIMEDOUT;
		if (d->kill != CGROUP_KILL_V2)
			cgroup_leaf_kill(d, leaffd);
		poll(NULL, 0, EMPTY_POLL_MS);
	}
}

static int remove_nested(int fd _unused_, const char *name, void *arg)
{
	return unlinkat(*(int *)arg, name, AT_REMOVEDIR) < 0 && errno != ENOENT ? -errno : 0;
}

int cgroup_leaf_remove(const struct cgroup_domain *d, const char *nonce)
{
	char path[2 * CGROUP_PATH_SIZE + 64];
	_close_ int fd = -1;
	int r;

	if (d->kill == CGROUP_KILL_NONE)
		return 0;
	snprintf(path, sizeof(path), "%s%s/%s", d->mount, d->base, nonce);
	if (rmdir(path) == 0 || errno == ENOENT)
		return 0;
	r = -errno;
	fd = open(path, LEAF_DIR_FLAGS);
	if (fd < 0 || each_nested(fd, remove_nested, &fd) < 0)
		return r;
	return rmdir(path) < 0 && errno != ENOENT ? -errno : 0;
}

void cgroup_domain_prune(const struct cgroup_domain *d)
{
	char path[2 * CGROUP_PATH_SIZE], *slash;

	if (d->kill == CGROUP_KILL_NONE)
		return;
	snprintf(path, sizeof(path), "%s%s", d->mount, d->base);
	if (rmdir(path) < 0)
		return;
	slash = strrchr(path, '/');
	*slash = '\0';
	rmdir(path);
}

int cgroup_leave_self(const struct cgroup_domain *d)
{
	_close_ int outside = -1;
	int r;

	if (d->kill == CGROUP_KILL_NONE)
		return 0;
	r = open_outside(d, &outside);
	return r < 0 ? r : file_write_control(outside, "cgroup.procs", "0");
}

int cgroup_each_leaf(const struct cgroup_domain *d, int (*fn)(const char *nonce, void *arg),
	void *arg)
{
	char path[2 * CGROUP_PATH_SIZE];
	_closedir_ DIR *dir = NULL;
	struct dirent *e;

	if (d->kill == CGROUP_KILL_NONE)
		return 0;
	snprintf(path, sizeof(path), "%s%s", d->mount, d->base);
	dir = opendir(path);
	if (!dir)
		return errno == ENOENT ? 0 : -errno;
	while ((e = readdir(dir))) {
		int r;

		if (e->d_type != DT_DIR || !text_is_hex(e->d_name, 32))
			continue;
		r = fn(e->d_name, arg);
		if (r)
			return r;
	}
	return 0;
}

int cgroup_open_path(const struct cgroup_domain *d, const char *path, int *ret_fd)
{
	char full[CGROUP_PATH_SIZE + PROC_CGROUP_SIZE];
	int fd;

	snprintf(full, sizeof(full), "%s%s", d->mount, path);
	fd = open(full, LEAF_DIR_FLAGS);
	if (fd < 0)
		return -errno;
	*ret_fd = fd;
	return 0;
}

static int frozen_at(const char *mount, const char *path, const char *file, const char *mark,
	bool *ret)
{
	char full[CGROUP_PATH_SIZE + PROC_CGROUP_SIZE + 32], buf[256];
	ssize_t n;

	snprintf(full, sizeof(full), "%s%s/%s", mount, path, file);
	n = file_read_into(AT_FDCWD, full, buf, sizeof(buf));
	if (n == -ENOENT)
		return 0; /* the root has no such file and is never frozen */
	if (n < 0)
		return (int)n;
	*ret = *ret || strstr(buf, mark);
	return 0;
}

int cgroup_process_frozen(const struct cgroup_domain *d, pid_t pid, bool *ret)
{
	char path[PROC_CGROUP_SIZE];
	const struct mounts_cgroup *m = &d->mounts;
	bool frozen = false;
	int r;

	if (m->v2[0] && procfs_cgroup(pid, "", path, sizeof(path)) == 0) {
		r = frozen_at(m->v2, path, "cgroup.events", "frozen 1", &frozen);
		if (r < 0)
			return r;
	}
	if (m->freezer[0] && procfs_cgroup(pid, "freezer", path, sizeof(path)) == 0) {
		r = frozen_at(m->freezer, path, "freezer.state", "FR",
			&frozen); /* FROZEN, FREEZING */
		if (r < 0)
			return r;
	}
	*ret = frozen;
	return 0;
}
