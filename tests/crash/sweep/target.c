/* SPDX-License-Identifier: Apache-2.0 */
#include "target.h"

#include <errno.h>
#include <fcntl.h>
#include <linux/sched.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <unistd.h>

static void target_live(int askfd, int answerfd)
{
	sigset_t none;
	char byte;

	/* Nobody but us asks, and the end of the file is the end of the sweep. */
	prctl(PR_SET_PDEATHSIG, SIGKILL);
	prctl(PR_SET_NAME, "sweep-target");
	sigemptyset(&none);
	sigprocmask(SIG_SETMASK, &none, NULL);
	if (dup2(askfd, 3) < 0 || dup2(answerfd, 4) < 0)
		_exit(1);
	close_range(5, ~0u, 0);
	while (read(3, &byte, 1) == 1) {
		if (write(4, &byte, 1) != 1)
			break;
	}
	_exit(0);
}

static pid_t target_clone(int *ret_pidfd)
{
	struct clone_args args = {
		.flags = CLONE_PARENT | CLONE_PIDFD,
		.pidfd = (uint64_t)(uintptr_t)ret_pidfd,
	};

	return (pid_t)syscall(SYS_clone3, &args, sizeof(args));
}

int target_start(struct target *ret)
{
	struct target target = TARGET_NONE;
	int ask[2], answer[2];
	char path[32];

	if (pipe2(ask, O_CLOEXEC) < 0)
		return -errno;
	if (pipe2(answer, O_CLOEXEC) < 0) {
		int r = -errno;

		close(ask[0]);
		close(ask[1]);
		return r;
	}
	target.pid = target_clone(&target.pidfd);
	if (target.pid == 0) {
		/* Far from 3 and 4, which they are about to become. */
		int in = fcntl(ask[0], F_DUPFD, 10), out = fcntl(answer[1], F_DUPFD, 10);

		target_live(in, out);
	}
	close(ask[0]);
	close(answer[1]);
	target.askfd = ask[1];
	target.answerfd = answer[0];
	if (target.pid < 0) {
		int r = -errno;

		target_end(&target);
		return r;
	}
	fcntl(target.answerfd, F_SETFL, O_NONBLOCK);
	snprintf(path, sizeof(path), "/proc/%d/stat", (int)target.pid);
	target.statfd = open(path, O_RDONLY | O_CLOEXEC);
	*ret = target;
	return 0;
}

void target_ask(struct target *target)
{
	target->asked++;
	if (write(target->askfd, &target->asked, 1) != 1)
		target->asked--;
}

bool target_runs(struct target *target)
{
	uint8_t answers[64];
	ssize_t n;

	while ((n = read(target->answerfd, answers, sizeof(answers))) > 0)
		target->answered = answers[n - 1];
	return target->answered == target->asked;
}

bool target_is_stopped(const struct target *target)
{
	char stat[512], *state;
	ssize_t n = pread(target->statfd, stat, sizeof(stat) - 1, 0);

	if (n <= 0)
		return false;
	stat[n] = '\0';
	state = strrchr(stat, ')');
	return state && state[1] == ' ' && state[2] == 'T';
}

void target_continue(struct target *target)
{
	syscall(SYS_pidfd_send_signal, target->pidfd, SIGCONT, NULL, 0);
}

void target_end(struct target *target)
{
	if (target->pidfd >= 0)
		syscall(SYS_pidfd_send_signal, target->pidfd, SIGKILL, NULL, 0);
	for (unsigned i = 0; i < 4; i++) {
		int fd = i == 0	 ? target->pidfd
			: i == 1 ? target->askfd
			: i == 2 ? target->answerfd
				 : target->statfd;

		if (fd >= 0)
			close(fd);
	}
	*target = TARGET_NONE;
}
