/* SPDX-License-Identifier: Apache-2.0 */
/*
 * pidreuse: forces the reuse of a pid, with equal start ticks where time allows.
 *
 * Reads commands, one a line, and answers each with "ok …" or "error TEXT":
 *
 *   spawn                            a target, born just after a clock tick began: "ok PID TICKS"
 *   replace PID UID EXE CGROUP       kills and reaps our child PID, then has a stranger born with the same
 *                                    pid: "ok PID TICKS". UID, EXE (a copy of this program) and CGROUP (a
 *                                    directory) make it differ; "-" leaves them equal
 *   adopt PID                        waits for a pid of somebody else's process to become free (10 s at
 *                                    most), then has a stranger born with it: "ok PID TICKS"
 *   signals PID                      what happened to our child since its birth: "ok" and numbers of the
 *                                    signals it received, "stopped", "continued", "exited:N", "killed:N"
 *   kill PID                         ends a child: "ok"
 *
 * pidreuse --stranger FD: the stranger after an exec, writing signals to FD.
 *
 * Every child is born with all signals blocked and takes them by sigwaitinfo, so that not one is lost.
 * A stop cannot be taken; waitid() tells us of it. At EOF all children are killed. Needs CAP_SYS_ADMIN or
 * CAP_CHECKPOINT_RESTORE for a chosen pid.
 */
#ifndef _GNU_SOURCE
#define _GNU_SOURCE
#endif
#include <errno.h>
#include <fcntl.h>
#include <sched.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

/* Debian 12's headers have clone_args, older ones do not: the first version that knows set_tid. */
struct birth {
	uint64_t flags, pidfd, child_tid, parent_tid, exit_signal, stack, stack_size, tls, set_tid,
		set_tid_size;
};

struct child {
	pid_t pid;
	int fd;		/* signals received, a byte each */
	char seen[512]; /* what is known of it, words with a blank before each */
};

static struct child children[64];

static struct child *find(pid_t pid)
{
	for (size_t i = 0; i < sizeof children / sizeof *children; i++)
		if (children[i].pid == pid)
			return &children[i];
	return NULL;
}

static void note(struct child *c, const char *what, int n)
{
	size_t len = strlen(c->seen);

	if (n < 0)
		snprintf(c->seen + len, sizeof c->seen - len, " %s", what);
	else
		snprintf(c->seen + len, sizeof c->seen - len, " %s%d", what, n);
}

static _Noreturn void take_signals(int fd)
{
	sigset_t all;

	sigfillset(&all);
	for (;;) {
		siginfo_t info;
		unsigned char byte;

		if (sigwaitinfo(&all, &info) < 0)
			continue;
		byte = (unsigned char)info.si_signo;
		if (write(fd, &byte, 1) != 1)
			_exit(1);
	}
}

static int join_cgroup(const char *folder)
{
	char path[4096];
	int fd, r;

	snprintf(path, sizeof path, "%s/cgroup.procs", folder);
	fd = open(path, O_WRONLY | O_CLOEXEC);
	if (fd < 0)
		return -1;
	r = write(fd, "0", 1) == 1 ? 0 : -1;
	close(fd);
	return r;
}

/* In the child. Never returns. */
static _Noreturn void live(int fd, const char *uid, const char *exe, const char *cgroup)
{
	prctl(PR_SET_PDEATHSIG, SIGKILL);
	if (cgroup && join_cgroup(cgroup) < 0)
		_exit(71);
	if (uid) {
		uid_t id = (uid_t)strtoul(uid, NULL, 10);

		if (setgid(id) < 0 || setuid(id) < 0)
			_exit(72);
		prctl(PR_SET_PDEATHSIG, SIGKILL); /* cleared by setuid */
	}
	if (exe) {
		char number[16];

		snprintf(number, sizeof number, "%d", fd);
		execl(exe, exe, "--stranger", number, (char *)NULL);
		_exit(73);
	}
	/* Ready: one byte 0, as after an exec. */
	if (write(fd, "", 1) != 1)
		_exit(74);
	take_signals(fd);
}

static long long ticks_of(pid_t pid)
{
	char path[64], text[4096], *p;
	ssize_t n;
	int fd;

	snprintf(path, sizeof path, "/proc/%d/stat", pid);
	fd = open(path, O_RDONLY | O_CLOEXEC);
	if (fd < 0)
		return -1;
	n = read(fd, text, sizeof text - 1);
	close(fd);
	if (n <= 0)
		return -1;
	text[n] = 0;
	p = strrchr(text, ')');
	for (int field = 2; p && field < 22; field++)
		p = strchr(p + 1, ' ');
	return p ? strtoll(p + 1, NULL, 10) : -1;
}

/* A child with a chosen pid (0: any). Returns it, or NULL with errno. */
static struct child *bear(pid_t wanted, const char *uid, const char *exe, const char *cgroup)
{
	struct child *c = find(0);
	pid_t set[1] = {wanted}, pid;
	struct birth birth = {.exit_signal = SIGCHLD};
	unsigned char ready;
	int fds[2];

	if (!c) {
		errno = EAGAIN;
		return NULL;
	}
	if (pipe(fds) < 0)
		return NULL;
	fcntl(fds[0], F_SETFD, FD_CLOEXEC);
	if (wanted) {
		birth.set_tid = (uint64_t)(uintptr_t)set;
		birth.set_tid_size = 1;
	}
	pid = (pid_t)syscall(SYS_clone3, &birth, sizeof birth);
	if (pid == 0) {
		close(0);
		live(fds[1], uid, exe, cgroup);
	}
	close(fds[1]);
	if (pid < 0) {
		int e = errno;

		close(fds[0]);
		errno = e;
		return NULL;
	}
	*c = (struct child){.pid = pid, .fd = fds[0]};
	if (read(c->fd, &ready, 1) != 1) {
		int status = 0;

		waitpid(pid, &status, 0);
		fprintf(stderr, "pidreuse: child ended before it was ready, status %#x\n",
			(unsigned)status);
		close(c->fd);
		*c = (struct child){0};
		errno = ECHILD;
		return NULL;
	}
	fcntl(c->fd, F_SETFL, O_NONBLOCK);
	return c;
}

static void end(struct child *c)
{
	kill(c->pid, SIGKILL);
	waitpid(c->pid, NULL, 0);
	close(c->fd);
	*c = (struct child){0};
}

static void answer_birth(struct child *c)
{
	if (c)
		printf("ok %d %lld\n", c->pid, ticks_of(c->pid));
	else
		printf("error no birth: %s\n", strerror(errno));
}

/* Waits for the first moment of a tick of the clock that start times are counted in. */
static void await_tick(void)
{
	long hz = sysconf(_SC_CLK_TCK);
	int64_t tick_ns = 1000000000 / hz, first = -1;

	for (;;) {
		struct timespec t;
		int64_t now;

		clock_gettime(CLOCK_BOOTTIME, &t);
		now = ((int64_t)t.tv_sec * 1000000000 + t.tv_nsec) / tick_ns;
		if (first < 0)
			first = now;
		else if (now != first)
			return;
	}
}

static void adopt(pid_t pid)
{
	struct timespec from, now;
	struct child *c;

	clock_gettime(CLOCK_MONOTONIC, &from);
	do {
		c = bear(pid, NULL, NULL, NULL);
		clock_gettime(CLOCK_MONOTONIC, &now);
	} while (!c && errno == EEXIST && now.tv_sec - from.tv_sec < 10);
	answer_birth(c);
}

static void signals(struct child *c)
{
	unsigned char byte;
	siginfo_t info;

	while (read(c->fd, &byte, 1) == 1)
		note(c, "", byte);
	for (;;) {
		info = (siginfo_t){0};
		if (waitid(P_PID, (id_t)c->pid, &info,
			    WEXITED | WSTOPPED | WCONTINUED | WNOHANG | WNOWAIT) < 0 ||
			info.si_pid == 0)
			break;
		if (info.si_code == CLD_EXITED || info.si_code == CLD_KILLED ||
			info.si_code == CLD_DUMPED) {
			note(c, info.si_code == CLD_EXITED ? "exited:" : "killed:", info.si_status);
			break;
		}
		note(c, info.si_code == CLD_CONTINUED ? "continued" : "stopped", -1);
		waitid(P_PID, (id_t)c->pid, &info, WSTOPPED | WCONTINUED | WNOHANG);
	}
	printf("ok%s\n", c->seen);
}

static const char *word(char **save)
{
	const char *w = strtok_r(NULL, " \n", save);

	return w && strcmp(w, "-") != 0 ? w : NULL;
}

static void serve(char *line)
{
	char *save = NULL;
	const char *verb = strtok_r(line, " \n", &save), *arg;
	struct child *c;
	pid_t pid;

	if (!verb) {
		printf("error empty\n");
		return;
	}
	if (strcmp(verb, "spawn") == 0) {
		await_tick();
		answer_birth(bear(0, NULL, NULL, NULL));
		return;
	}
	arg = word(&save);
	pid = arg ? (pid_t)strtol(arg, NULL, 10) : 0;
	if (pid <= 0) {
		printf("error a pid is missing\n");
		return;
	}
	if (strcmp(verb, "adopt") == 0) {
		adopt(pid);
		return;
	}
	c = find(pid);
	if (!c) {
		printf("error %d is no child of mine\n", pid);
	} else if (strcmp(verb, "replace") == 0) {
		const char *uid = word(&save), *exe = word(&save), *cgroup = word(&save);

		end(c);
		answer_birth(bear(pid, uid, exe, cgroup));
	} else if (strcmp(verb, "signals") == 0) {
		signals(c);
	} else if (strcmp(verb, "kill") == 0) {
		end(c);
		printf("ok\n");
	} else {
		printf("error unknown verb\n");
	}
}

int main(int argc, char **argv)
{
	char line[8192];
	sigset_t all;

	sigfillset(&all);
	sigprocmask(SIG_SETMASK, &all, NULL);
	if (argc == 3 && strcmp(argv[1], "--stranger") == 0) {
		int fd = (int)strtol(argv[2], NULL, 10);

		prctl(PR_SET_PDEATHSIG, SIGKILL);
		if (write(fd, "", 1) != 1)
			return 1;
		take_signals(fd);
	}
	setvbuf(stdout, NULL, _IOLBF, 0);
	while (fgets(line, sizeof line, stdin))
		serve(line);
	for (size_t i = 0; i < sizeof children / sizeof *children; i++)
		if (children[i].pid)
			end(&children[i]);
	return 0;
}
