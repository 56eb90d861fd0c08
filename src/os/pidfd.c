/* SPDX-License-Identifier: Apache-2.0 */
#include "os/pidfd.h"

#include <poll.h>
#include <signal.h>
#include <sys/stat.h>
#include <sys/vfs.h>
#include <sys/wait.h>

#include "base/cleanup.h"
#include "base/clock.h"
#include "os/kernel_abi.h"

int pidfd_open_pid(pid_t pid, int *ret_fd)
{
	long fd;

	if (pid <= 0)
		return -EINVAL;
	fd = syscall(SYS_pidfd_open, pid, 0);
	if (fd < 0)
		return -errno;
	*ret_fd = (int)fd;
	return 0;
}

int pidfd_signal(int pidfd, int signo)
{
	return syscall(SYS_pidfd_send_signal, pidfd, signo, NULL, 0) < 0 ? -errno : 0;
}

static int poll_exit(int pidfd, int timeout_ms)
{
	struct pollfd p = {.fd = pidfd, .events = POLLIN};

	return poll(&p, 1, timeout_ms) == 1 && p.revents & POLLIN;
}

bool pidfd_has_exited(int pidfd)
{
	return poll_exit(pidfd, 0);
}

int pidfd_wait_exit(int pidfd, uint64_t timeout_ms)
{
	uint64_t deadline = clock_boottime_ms() + timeout_ms;

	for (;;) {
		uint64_t left = clock_until_ms(deadline);

		if (poll_exit(pidfd, left > INT32_MAX ? INT32_MAX : (int)left))
			return 0;
		if (left == 0)
			return -ETIMEDOUT;
	}
}

uint64_t pidfd_inode(int pidfd)
{
	struct statfs fs;
	struct stat st;

	/* Before 6.9 all pidfds share one anonymous inode: no identity at all. */
	if (fstatfs(pidfd, &fs) < 0 || fs.f_type != PID_FS_MAGIC || fstat(pidfd, &st) < 0)
		return 0;
	return st.st_ino;
}

int pidfd_reap(int pidfd, int *ret_code, int *ret_signo)
{
	siginfo_t si = {0};
	int r;

	do
		r = waitid((idtype_t)P_PIDFD, (id_t)pidfd, &si, WEXITED | WNOHANG);
	while (r < 0 && errno == EINTR);
	if (r < 0)
		return -errno;
	if (si.si_pid == 0)
		return -EAGAIN;
	if (ret_code)
		*ret_code = si.si_code == CLD_EXITED ? si.si_status : -1;
	if (ret_signo)
		*ret_signo = si.si_code == CLD_EXITED ? 0 : si.si_status;
	return 0;
}
