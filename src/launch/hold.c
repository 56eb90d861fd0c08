/* SPDX-License-Identifier: Apache-2.0 */
#include <fcntl.h>
#include <sched.h>
#include <signal.h>
#include <string.h>
#include <sys/file.h>
#include <sys/socket.h>

#include "base/cleanup.h"
#include "base/file.h"
#include "base/text.h"
#include "launch/child.h"
#include "launch/launch.h"
#include "os/kernel_abi.h"
#include "os/pidfd.h"

#define MAX_PATHS 32
#define LEAF_TRIES 64

struct exec_paths {
	const char *list[MAX_PATHS + 1];
	char text[MAX_PATHS][PATH_MAX / 8];
};

/* Every place that envp's PATH names for a bare command, built before the clone. */
static void find_paths(const struct launch_spec *spec, struct exec_paths *ret)
{
	const char *path = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin";
	size_t n = 0;

	if (strchr(spec->argv[0], '/')) {
		ret->list[0] = spec->argv[0];
		ret->list[1] = NULL;
		return;
	}
	for (char *const *e = spec->envp; e && *e; e++)
		if (text_has_prefix(*e, "PATH="))
			path = *e + 5;
	while (*path && n < MAX_PATHS) {
		size_t len = strcspn(path, ":");
		int w = snprintf(ret->text[n], sizeof(ret->text[n]), "%.*s/%s", (int)len, path,
			spec->argv[0]);

		/* An empty or relative entry would mean the current directory: never ours to run from. */
		if (path[0] == '/' && w < (int)sizeof(ret->text[n])) {
			ret->list[n] = ret->text[n];
			n++;
		}
		path += len + (path[len] == ':');
	}
	ret->list[n] = NULL;
}

static int make_leaf(const struct launch_spec *spec, struct launched *l, struct err *err)
{
	struct launch_record *rec = &l->rec;

	rec->required = spec->required;
	if (!spec->domain || spec->domain->kill == CGROUP_KILL_NONE) {
		rec->mechanism = LAUNCH_MECH_PROCESS_GROUP;
		rec->enforced = spec->required & LAUNCH_DIM_WALL_CLOCK;
		rec->degraded = spec->required & ~rec->enforced;
		return 0;
	}
	for (int attempt = 0; attempt < LEAF_TRIES; attempt++) {
		int r = text_random_hex(rec->nonce,
			16); /* fresh each time: never a leaf of before */

		if (r == 0)
			r = cgroup_leaf_make(spec->domain, rec->nonce, rec->cgroup,
				sizeof(rec->cgroup), &l->leaffd, err);
		if (r < 0)
			return r;
		/*
		 * Held by launcher and child alike, for as long as one of them lives:
		 * not an orphan. A sweep may have been here first: then it is gone.
		 */
		if (flock(l->leaffd, LOCK_SH | LOCK_NB) == 0 &&
			cgroup_leaf_exists(spec->domain, rec->nonce)) {
			rec->mechanism = LAUNCH_MECH_CGROUP;
			rec->enforced = spec->required;
			return 0;
		}
		close_now(&l->leaffd);
		sched_yield();
	}
	return err_set(err, "launch.failed", EBUSY, "cgroup", "a sweep keeps removing %s",
		rec->cgroup);
}

/* clone3 without the C library: it returns twice, like fork. */
static pid_t clone_child(const struct cgroup_domain *domain, int leaffd, int *ret_pidfd)
{
	struct clone_args args = {
		.flags = CLONE_PIDFD,
		.pidfd = (__u64)(uintptr_t)ret_pidfd,
		.exit_signal = SIGCHLD,
	};

	if (leaffd >= 0 && domain->kill != CGROUP_KILL_V1_FREEZER) {
		args.flags |= CLONE_INTO_CGROUP;
		args.cgroup = (__u64)leaffd;
	}
	return (pid_t)syscall(SYS_clone3, &args, sizeof(args));
}

struct pipes {
	int gate[2], status[2], link[2];
};

#define PIPES_INIT                                                                                 \
	{                                                                                          \
		{-1, -1}, {-1, -1},                                                                \
		{                                                                                  \
			-1, -1                                                                     \
		}                                                                                  \
	}

static void pipes_close(struct pipes *p)
{
	for (int i = 0; i < 2; i++) {
		close_now(&p->gate[i]);
		close_now(&p->status[i]);
		close_now(&p->link[i]);
	}
}

static int pipes_open(const struct launch_spec *spec, struct pipes *p)
{
	if (pipe2(p->gate, O_CLOEXEC) < 0)
		return -errno;
	if (spec->body && socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, p->link) < 0)
		return -errno;
	if (spec->argv && pipe2(p->status, O_CLOEXEC) < 0)
		return -errno;
	return 0;
}

static int by_number(const void *a, const void *b)
{
	return *(const int *)a - *(const int *)b;
}

/* The descriptors that the child keeps, sorted, for it to close all between. Caller frees. */
static int *keep_list(const struct launch_spec *spec, const int *own, size_t n_own, size_t *ret_n)
{
	int *list = calloc(spec->n_keepfds + n_own + 4, sizeof(*list));
	size_t n = 0;

	if (!list)
		return NULL;
	for (size_t i = 0; i < n_own; i++)
		if (own[i] >= 0)
			list[n++] = own[i];
	for (size_t i = 0; i < 3; i++)
		if (spec->stdfd[i] >= 0)
			list[n++] = spec->stdfd[i];
	for (size_t i = 0; i < spec->n_keepfds; i++)
		list[n++] = spec->keepfds[i];
	qsort(list, n, sizeof(*list), by_number);
	*ret_n = n;
	return list;
}

static int clone_held(const struct launch_spec *spec, const struct launch_journal *journal,
	struct launched *l, struct pipes *p, struct err *err)
{
	_free_ struct exec_paths *paths = NULL;
	_close_ int self = -1;
	_free_ int *keep = NULL;
	pid_t pid, launcher = getpid();
	size_t n_keep;

	if (spec->argv) {
		paths = calloc(1, sizeof(*paths));
		if (!paths)
			return err_set(err, "launch.failed", ENOMEM, "clone", "no memory");
		find_paths(spec, paths);
		if (pidfd_open_pid(getpid(), &self) < 0)
			return err_set(err, "launch.failed", errno, "pidfd",
				"cannot open our own pidfd");
	}
	keep = keep_list(spec,
		(const int[]){p->gate[0], p->status[1], p->link[1], l->leaffd, self, spec->cwdfd},
		6, &n_keep);
	if (!keep)
		return err_set(err, "launch.failed", ENOMEM, "clone", "no memory");
	pid = clone_child(spec->domain, l->leaffd, &l->pidfd);
	if (pid < 0)
		return err_set(err, "launch.failed", errno, "clone", "cannot start a process");
	if (pid == 0) {
		struct child_plan plan = {
			.spec = spec,
			.journal = journal,
			.rec = &l->rec,
			.gatefd = p->gate[0],
			.statusfd = p->status[1],
			.linkfd = p->link[1],
			.leaffd = l->leaffd,
			.keep = keep,
			.n_keep = n_keep,
			.launcher = launcher,
			.parent_pidfd = self,
			.join_leaf = l->leaffd >= 0 && spec->domain->kill == CGROUP_KILL_V1_FREEZER,
			.paths = paths ? paths->list : NULL,
		};

		child_run(&plan);
	}
	l->rec.id.pid = pid;
	return 0;
}

int launch_hold(const struct launch_spec *spec, const struct launch_journal *journal,
	struct launched *ret, struct err *err)
{
	struct launched l = LAUNCHED_INIT;
	struct pipes p = PIPES_INIT;
	int r = text_random_hex(l.rec.nonce, 16);

	if (r < 0)
		return err_set(err, "launch.failed", -r, "nonce", "no random bits");
	l.rec.deadline_boottime_ms = spec->deadline_boottime_ms;
	r = pipes_open(spec, &p);
	if (r < 0)
		err_set(err, "launch.failed", -r, "pipes", "cannot make the pipes of a child");
	if (r == 0)
		r = make_leaf(spec, &l, err);
	if (r == 0)
		r = clone_held(spec, journal, &l, &p, err);
	if (r < 0) {
		pipes_close(&p);
		if (l.leaffd >= 0)
			cgroup_leaf_remove(spec->domain, l.rec.nonce);
		launched_close(&l);
		return r;
	}
	l.gatefd = take_fd(&p.gate[1]);
	l.statusfd = take_fd(&p.status[0]);
	l.linkfd = take_fd(&p.link[0]);
	pipes_close(&p);
	if (journal && journal->identity) {
		r = ident_read(l.rec.id.pid, &l.rec.id, NULL, err);
		if (r == 0)
			r = journal->identity(journal->self, &l.rec, err);
		if (r < 0) {
			struct launch_end end;

			close_now(&l.gatefd); /* it ends by itself, unlaunched */
			launch_stop(&l, spec->domain, 1000, &end, NULL);
			launched_close(&l);
			return r;
		}
	}
	*ret = l;
	return 0;
}

int launch_go(struct launched *l, struct err *err)
{
	struct err theirs;
	ssize_t n;

	if (write(l->gatefd, "g", 1) != 1) {
		int e = errno;

		close_now(&l->gatefd);
		return err_set(err, "launch.failed", e, "gate", "the held process is gone");
	}
	close_now(&l->gatefd);
	if (l->statusfd < 0)
		return 0;
	do
		n = read(l->statusfd, &theirs, sizeof(theirs));
	while (n < 0 && errno == EINTR);
	close_now(&l->statusfd);
	if (n == 0)
		return 0;
	if (n != sizeof(theirs))
		return err_set(err, "launch.failed", EIO, "status", "no word from the child");
	if (err)
		*err = theirs;
	return theirs.errnum ? -theirs.errnum : -EINVAL;
}

int launch_move_self(struct cgroup_domain *domain, char ret_nonce[static LAUNCH_NONCE_SIZE],
	struct err *err)
{
	char path[LAUNCH_CGROUP_SIZE];
	_close_ int leaffd = -1;
	int r = text_random_hex(ret_nonce, 16);

	if (r == 0 && domain->kill == CGROUP_KILL_NONE)
		r = -EOPNOTSUPP;
	if (r == 0)
		r = cgroup_leaf_make(domain, ret_nonce, path, sizeof(path), &leaffd, err);
	if (r == 0)
		r = cgroup_leaf_join_self(leaffd);
	return r < 0 ? err_set(err, "launch.failed", -r, "cgroup", "cannot move to a fresh cgroup")
		     : 0;
}

void launch_move_back(const struct cgroup_domain *domain, const char *nonce)
{
	if (cgroup_leave_self(domain) == 0)
		cgroup_leaf_remove(domain, nonce);
}

/* With a descriptor that cannot be: a kernel that knows the flag says EBADF, another EINVAL or ENOSYS. */
bool launch_can_enter_cgroup(void)
{
	struct clone_args args = {.flags = CLONE_INTO_CGROUP, .cgroup = INT32_MAX};

	return syscall(SYS_clone3, &args, sizeof(args)) < 0 && errno == EBADF;
}

void launched_close(struct launched *l)
{
	close_now(&l->pidfd);
	close_now(&l->linkfd);
	close_now(&l->gatefd);
	close_now(&l->statusfd);
	close_now(&l->leaffd);
}
