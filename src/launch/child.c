/* SPDX-License-Identifier: Apache-2.0 */
/*
 * No allocation, no stdio, no locks on the way to an exec. A body may do as
 * it likes once it runs: the launcher had one thread.
 */
#include "launch/child.h"

#include <fcntl.h>
#include <poll.h>
#include <sched.h>
#include <signal.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/stat.h>

#include "base/arena.h"
#include "base/cleanup.h"
#include "base/text.h"
#include "launch/link.h"
#include "os/kernel_abi.h"
#include "os/pidfd.h"

#define CHILD_EXIT_REFUSED 125

static const char *const process_names[LAUNCH_KIND_MAX] = {"mh-holder", "mh-recover", "mh-watch",
	"mh-clerk", "mh-service", "mh-probe", "mh-tool"};

bool launch_is_name(const char *comm)
{
	for (size_t i = 0; i < ARRAY_SIZE(process_names); i++)
		if (text_equal(comm, process_names[i]))
			return true;
	return text_equal(comm, "mayhem-agent");
}

/* Close-on-exec does nothing for a child that does not exec: close all but the list, first of all. */
static void close_others(const struct child_plan *p)
{
	unsigned from = 0;

	for (size_t i = 0; i < p->n_keep; i++) {
		if ((unsigned)p->keep[i] > from)
			syscall(SYS_close_range, from, (unsigned)p->keep[i] - 1, 0);
		from = (unsigned)p->keep[i] + 1;
	}
	syscall(SYS_close_range, from, ~0U, 0);
}

/*
 * A body has no standard streams, but their numbers must be taken: a line of
 * the log goes to 2, whatever that is, and a record must never be.
 */
static void take_standard_numbers(void)
{
	int fd;

	do
		fd = open("/dev/null", O_RDWR | O_CLOEXEC);
	while (fd >= 0 && fd < STDERR_FILENO);
	if (fd > STDERR_FILENO)
		close(fd);
}

static _Noreturn void fail(const struct child_plan *p, const struct err *err)
{
	if (p->linkfd >= 0)
		link_send(p->linkfd, 0, err, sizeof(*err));
	if (p->statusfd >= 0 && write(p->statusfd, err, sizeof(*err)) < 0)
		_exit(CHILD_EXIT_REFUSED);
	_exit(CHILD_EXIT_REFUSED);
}

static _Noreturn void fail_errno(const struct child_plan *p, const char *stage, const char *what)
{
	struct err err;

	err_set(&err, "launch.failed", errno, stage, "%s", what);
	fail(p, &err);
}

static void default_signals(void)
{
	sigset_t none;

	for (int sig = 1; sig < 65; sig++)
		if (sig != SIGKILL && sig != SIGSTOP && sig != 32 && sig != 33)
			signal(sig, SIG_DFL);
	sigemptyset(&none);
	sigprocmask(SIG_SETMASK, &none, NULL);
}

/*
 * A short slice lets a process that wakes to undo something get a busy core
 * soon (EEVDF since 6.12; elsewhere the call fails and nothing is lost).
 */
static void short_slice(void)
{
	struct {
		uint32_t size, policy;
		uint64_t flags;
		int32_t nice;
		uint32_t priority;
		uint64_t runtime, deadline, period;
	} attr = {.size = sizeof(attr), .runtime = 100000};

	syscall(SYS_sched_setattr, 0, &attr, 0);
}

static void wait_at_gate(const struct child_plan *p)
{
	char go;
	ssize_t n;

	do
		n = read(p->gatefd, &go, 1);
	while (n < 0 && errno == EINTR);
	if (n != 1)
		_exit(CHILD_EXIT_REFUSED); /* the launcher thought better of it, or died */
	close(p->gatefd);
}

static void set_standard_streams(const struct child_plan *p)
{
	int null = open("/dev/null", O_RDWR | O_CLOEXEC), high[3];

	if (null < 0)
		fail_errno(p, "streams", "cannot open /dev/null");
	/* Sources out of the way first, so that no dup2 overwrites one still needed. */
	for (int i = 0; i < 3; i++) {
		high[i] = fcntl(p->spec->stdfd[i] >= 0 ? p->spec->stdfd[i] : null, F_DUPFD_CLOEXEC,
			16);
		if (high[i] < 0)
			fail_errno(p, "streams", "cannot duplicate a stream");
	}
	for (int i = 0; i < 3; i++)
		if (dup2(high[i], i) < 0)
			fail_errno(p, "streams", "cannot set a standard stream");
}

static _Noreturn void run_argv(const struct child_plan *p)
{
	set_standard_streams(p);
	if (p->spec->cwdfd >= 0 && fchdir(p->spec->cwdfd) < 0)
		fail_errno(p, "directory", "cannot enter the working directory");
	if (!p->spec->outlives) {
		/* Asked for first, looked at second: a launcher that died in between is seen. */
		prctl(PR_SET_PDEATHSIG, SIGKILL);
		if (pidfd_has_exited(p->parent_pidfd))
			_exit(CHILD_EXIT_REFUSED);
	}
	umask(022);
	errno = ENOENT;
	for (const char *const *path = p->paths; *path; path++) {
		execve(*path, p->spec->argv, p->spec->envp);
		if (errno != ENOENT && errno != ENOTDIR)
			break;
	}
	fail_errno(p, "exec", p->spec->argv[0]);
}

/* With its launcher gone nobody removes its leaf: it steps out of it and does so itself. */
static void leave(const struct child_plan *p)
{
	if (!p->rec->cgroup[0] || getppid() == p->launcher)
		return;
	if (cgroup_leave_self(p->spec->domain) == 0) {
		cgroup_leaf_remove(p->spec->domain, p->rec->nonce);
		cgroup_domain_prune(p->spec->domain);
	}
}

static _Noreturn void run_body(const struct child_plan *p)
{
	struct err err = {0};
	int code;

	arena_begin_child();
	if (p->journal && p->journal->claim &&
		p->journal->claim(p->journal->self, p->rec, &err) < 0)
		fail(p, &err);
	code = p->spec->body(p->spec->arg, p->linkfd, p->rec);
	leave(p);
	_exit(code);
}

_Noreturn void child_run(const struct child_plan *p)
{
	close_others(p);
	if (p->spec->body)
		take_standard_numbers();
	prctl(PR_SET_NAME, process_names[p->spec->kind]);
	setsid();
	default_signals();
	short_slice();
	if (p->join_leaf && cgroup_leaf_join_self(p->leaffd) < 0)
		fail_errno(p, "cgroup", "cannot join its cgroup");
	wait_at_gate(p);
	if (p->spec->body)
		run_body(p);
	run_argv(p);
}
