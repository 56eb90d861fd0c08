/* SPDX-License-Identifier: Apache-2.0 */
#include "bench.h"

#include "child.h"
#include "clock.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <ftw.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/signalfd.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

/* Ended leases pile up, and make an agent's start longer than it is for anybody who looks. */
enum { STATE_POINTS_MAX = 200, KEPT_MAX = 10 };

static int childfd_open(void)
{
	sigset_t set;
	int fd;

	sigemptyset(&set);
	sigaddset(&set, SIGCHLD);
	sigprocmask(SIG_BLOCK, &set, NULL);
	fd = signalfd(-1, &set, SFD_CLOEXEC | SFD_NONBLOCK);
	return fd < 0 ? -errno : fd;
}

static int path_join(char ret[BENCH_PATH_MAX], const char *dir, const char *name)
{
	return snprintf(ret, BENCH_PATH_MAX, "%s/%s", dir, name) < BENCH_PATH_MAX ? 0
										  : -ENAMETOOLONG;
}

static int bench_open_files(struct bench *bench, unsigned number)
{
	char name[16];
	int r;

	snprintf(name, sizeof(name), "w%u", number);
	if ((r = path_join(bench->dir, bench->root, name)) < 0 ||
		(r = path_join(bench->state, bench->dir, "state")) < 0 ||
		(r = path_join(bench->errors, bench->dir, "agent.err")) < 0)
		return r;
	if (mkdir(bench->dir, 0700) < 0 && errno != EEXIST)
		return -errno;
	bench->nullfd = open("/dev/null", O_RDWR | O_CLOEXEC);
	bench->errorfd = open(bench->errors, O_RDWR | O_CREAT | O_APPEND | O_CLOEXEC, 0600);
	bench->childfd = childfd_open();
	if (bench->nullfd < 0 || bench->errorfd < 0 || bench->childfd < 0)
		return -EIO;
	return 0;
}

int bench_open(struct bench *ret, const char *agent, const char *root, unsigned number,
	unsigned deadline_ms, bool fresh)
{
	int r;

	*ret = (struct bench){
		.agent = agent,
		.root = root,
		.childfd = -1,
		.errorfd = -1,
		.nullfd = -1,
		.deadline_ms = deadline_ms,
		.fresh = fresh,
		.target = TARGET_NONE,
	};
	if (prctl(PR_SET_CHILD_SUBREAPER, 1) < 0)
		return -errno;
	signal(SIGPIPE, SIG_IGN);
	r = bench_open_files(ret, number);
	if (r < 0)
		return r;
	ret->store_dirs[0] = ret->state;
	ret->store_dirs[1] = "/run/mayhem";
	bench_reset(ret);
	return 0;
}

void bench_close(struct bench *bench)
{
	bench_reset(bench);
	target_end(&bench->target);
	close(bench->childfd);
	close(bench->errorfd);
	close(bench->nullfd);
	unlink(bench->errors);
	rmdir(bench->dir);
}

int bench_prepare(struct bench *bench)
{
	int r;

	if (bench->fresh || bench->n_used >= STATE_POINTS_MAX)
		bench_reset(bench);
	bench->n_used++;
	if (ftruncate(bench->errorfd, 0) < 0)
		return -errno;
	if (bench->target.pid > 0 && bench_target_answers(bench, 1000))
		return 0;
	target_end(&bench->target);
	r = target_start(&bench->target);
	if (r < 0)
		return r;
	return bench_target_answers(bench, 1000) ? 0 : -ETIME;
}

static int entry_remove(const char *path, const struct stat *st, int type, struct FTW *ftw)
{
	(void)st;
	(void)type;
	(void)ftw;
	return remove(path);
}

void bench_reset(struct bench *bench)
{
	int status;

	if (access(bench->state, F_OK) == 0) {
		bench_command(bench, "recover", "--sweep", &status);
		if (bench->litter)
			litter_count(bench->state, bench->litter);
	}
	nftw(bench->state, entry_remove, 16, FTW_DEPTH | FTW_PHYS | FTW_MOUNT);
	bench->n_used = 0;
}

void bench_keep(struct bench *bench, const char *name)
{
	char to[2 * BENCH_PATH_MAX], errors[3 * BENCH_PATH_MAX], chunk[4096];
	ssize_t n;
	int fd;

	if (bench->n_kept == KEPT_MAX)
		return;
	snprintf(to, sizeof(to), "%s/failed-%s", bench->root, name);
	nftw(to, entry_remove, 16, FTW_DEPTH | FTW_PHYS | FTW_MOUNT);
	if (rename(bench->state, to) < 0)
		return;
	bench->n_kept++;
	snprintf(errors, sizeof(errors), "%s/agent.err", to);
	fd = open(errors, O_WRONLY | O_CREAT | O_CLOEXEC, 0600);
	for (off_t at = 0; (n = pread(bench->errorfd, chunk, sizeof(chunk), at)) > 0; at += n) {
		if (write(fd, chunk, (size_t)n) != n)
			break;
	}
	close(fd);
}

void bench_wait(struct bench *bench, uint64_t deadline_us)
{
	struct pollfd poll_on = {.fd = bench->childfd, .events = POLLIN};
	struct signalfd_siginfo info;

	poll(&poll_on, 1, clock_left_ms(deadline_us));
	while (read(bench->childfd, &info, sizeof(info)) > 0)
		;
}

static int bench_wait_all(struct bench *bench, pid_t pid, int *ret_status)
{
	uint64_t deadline_us = clock_us() + bench->deadline_ms * 1000u;

	for (;;) {
		int status;
		pid_t ended = waitpid(-1, &status, WNOHANG);

		if (ended < 0)
			return 0;
		if (ended == pid)
			*ret_status = status;
		if (ended > 0)
			continue;
		if (clock_us() >= deadline_us)
			return -ETIME;
		bench_wait(bench, deadline_us);
	}
}

int bench_command(struct bench *bench, const char *verb, const char *flag, int *ret_status)
{
	char *argv[] = {(char *)bench->agent, (char *)verb, "--state", bench->state, (char *)flag,
		NULL};
	int stdfd[3] = {bench->nullfd, bench->errorfd, bench->errorfd};
	pid_t pid = fork();
	int r;

	if (pid < 0)
		return -errno;
	if (pid == 0)
		child_become(argv, stdfd);
	r = bench_wait_all(bench, pid, ret_status);
	if (r < 0)
		bench_kill_leftovers();
	return r;
}

/* The parent as /proc/PID/stat has it, 0 where it cannot be told. */
static pid_t parent_of(const char *pid)
{
	char path[300], text[512], *after;
	ssize_t n;
	int fd;

	snprintf(path, sizeof(path), "/proc/%s/stat", pid);
	fd = open(path, O_RDONLY | O_CLOEXEC);
	if (fd < 0)
		return 0;
	n = read(fd, text, sizeof(text) - 1);
	close(fd);
	text[n > 0 ? n : 0] = '\0';
	after = strrchr(text, ')');
	return after && strlen(after) > 4 ? (pid_t)strtol(after + 4, NULL, 10) : 0;
}

static void kill_children(void)
{
	DIR *proc = opendir("/proc");
	struct dirent *entry;

	while (proc && (entry = readdir(proc))) {
		if (entry->d_name[0] < '1' || entry->d_name[0] > '9')
			continue;
		if (parent_of(entry->d_name) == getpid())
			kill((pid_t)strtol(entry->d_name, NULL, 10), SIGKILL);
	}
	if (proc)
		closedir(proc);
}

/* Each round kills one generation; the next one then becomes ours. */
void bench_kill_leftovers(void)
{
	int status;

	for (unsigned round = 0; round < 100; round++) {
		kill_children();
		if (waitpid(-1, &status, __WALL) < 0 && errno == ECHILD)
			return;
		while (waitpid(-1, &status, WNOHANG | __WALL) > 0)
			;
	}
}

bool bench_target_answers(struct bench *bench, unsigned ms)
{
	struct pollfd poll_on = {.fd = bench->target.answerfd, .events = POLLIN};
	uint64_t deadline_us = clock_us() + ms * 1000u;

	target_ask(&bench->target);
	while (!target_runs(&bench->target)) {
		if (clock_us() >= deadline_us)
			return false;
		poll(&poll_on, 1, clock_left_ms(deadline_us));
	}
	return true;
}
