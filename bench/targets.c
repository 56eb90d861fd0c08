/* SPDX-License-Identifier: Apache-2.0 */
#include "targets.h"

#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include "client.h"

#define LIMIT (60 * SECOND)
#define BURNERS_MAX 256

static pid_t burners[BURNERS_MAX];
static size_t n_burners;

/* A child that goes with us. */
static pid_t start_child(void (*body)(void))
{
	pid_t parent = getpid(), pid = fork();

	if (pid < 0)
		die("cannot fork");
	if (pid > 0)
		return pid;
	prctl(PR_SET_PDEATHSIG, SIGKILL);
	if (getppid() != parent)
		_exit(0);
	body();
	_exit(0);
}

static void end_child(pid_t pid)
{
	kill(pid, SIGKILL); /* ours and not reaped: the number is its own */
	waitpid(pid, NULL, 0);
}

static void sleep_on(void)
{
	for (int fd = 0; fd < 16; fd++)
		close(fd);
	for (;;)
		pause();
}

static void burn(void)
{
	for (;;)
		__asm__ volatile("");
}

void target_watch(struct target *t, pid_t pid)
{
	char path[64];

	snprintf(path, sizeof(path), "/proc/%d/stat", pid);
	t->pid = pid;
	t->own = false;
	t->statfd = open(path, O_RDONLY | O_CLOEXEC);
	if (t->statfd < 0)
		die("no process %d", pid);
}

void target_start(struct target *t)
{
	target_watch(t, start_child(sleep_on));
	t->own = true;
}

void target_end(struct target *t)
{
	close(t->statfd);
	if (t->own)
		end_child(t->pid);
}

static char state_of(const struct target *t)
{
	char buf[512], *p;
	ssize_t n = pread(t->statfd, buf, sizeof(buf) - 1, 0);

	if (n <= 0)
		die("process %d has ended", t->pid);
	buf[n] = '\0';
	p = strrchr(buf, ')');
	return p && p[1] ? p[2] : '?';
}

bool target_stopped(const struct target *t)
{
	return state_of(t) == 'T';
}

uint64_t target_await(const struct target *t, bool stopped)
{
	uint64_t limit = now_ns() + LIMIT;

	for (;;) {
		uint64_t now;

		if (target_stopped(t) == stopped)
			return now_ns();
		now = now_ns();
		if (now > limit)
			die("process %d is %s after a minute", t->pid,
				stopped ? "running" : "stopped");
	}
}

/* Nobody stops them anew, so one look at each in turn is enough. */
uint64_t targets_await_running(const struct target *t, size_t n)
{
	for (size_t i = 0; i < n; i++)
		target_await(&t[i], false);
	return now_ns();
}

void burners_start(void)
{
	long cores = sysconf(_SC_NPROCESSORS_ONLN);

	for (long i = 0; i + 1 < cores && n_burners < BURNERS_MAX; i++)
		burners[n_burners++] = start_child(burn);
}

void burners_end(void)
{
	while (n_burners)
		end_child(burners[--n_burners]);
}
