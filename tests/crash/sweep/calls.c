/* SPDX-License-Identifier: Apache-2.0 */
#include "calls.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdio.h>
#include <string.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <unistd.h>

/* How the first arguments name a file, and what the call needs of the kernel. */
enum {
	BY_FD = 1 << 0,	  /* a descriptor */
	BY_AT = 1 << 1,	  /* a directory and a path */
	BY_AT2 = 1 << 2,  /* two of those */
	BY_PATH = 1 << 3, /* a path alone */
	MAKES_FD = 1 << 4,
	TAKES_MEMORY = 1 << 5,
	WAITS = 1 << 6, /* not recvmsg: asked with MSG_DONTWAIT it does not */
	ENDS = 1 << 7,
	HARMLESS = 1 << 8, /* on the store, but cannot sensibly be refused */
};

static const struct call {
	long nr;
	const char *name;
	unsigned is;
} calls[] = {
#define CALL(name, is)                                                                             \
	{                                                                                          \
		SYS_##name, #name, is                                                              \
	}
	CALL(write, BY_FD),
	CALL(writev, BY_FD),
	CALL(pwrite64, BY_FD),
	CALL(pwritev, BY_FD),
	CALL(pwritev2, BY_FD),
	CALL(read, BY_FD | WAITS),
	CALL(pread64, BY_FD),
	CALL(preadv2, BY_FD),
	CALL(fsync, BY_FD),
	CALL(fdatasync, BY_FD),
	CALL(ftruncate, BY_FD),
	CALL(fallocate, BY_FD),
	CALL(fchmod, BY_FD),
	CALL(fchown, BY_FD),
	CALL(flock, BY_FD | WAITS),
	CALL(getdents64, BY_FD),
	CALL(inotify_add_watch, TAKES_MEMORY),
	CALL(openat, BY_AT | MAKES_FD | TAKES_MEMORY),
	CALL(openat2, BY_AT | MAKES_FD | TAKES_MEMORY),
	CALL(mkdirat, BY_AT),
	CALL(linkat, BY_AT2),
	CALL(renameat, BY_AT2),
	CALL(renameat2, BY_AT2),
	CALL(unlinkat, BY_AT),
	CALL(fchmodat, BY_AT),
	CALL(newfstatat, BY_AT),
	CALL(statx, BY_AT),
	CALL(fstatfs, BY_FD),
#ifdef SYS_open
	CALL(open, BY_PATH | MAKES_FD | TAKES_MEMORY),
	CALL(mkdir, BY_PATH),
	CALL(rename, BY_PATH),
	CALL(link, BY_PATH),
	CALL(unlink, BY_PATH),
	CALL(rmdir, BY_PATH),
	CALL(epoll_wait, WAITS),
	CALL(poll, WAITS),
	CALL(fork, TAKES_MEMORY),
	CALL(vfork, TAKES_MEMORY),
	CALL(arch_prctl, 0),
	CALL(access, 0),
	CALL(readlink, 0),
	CALL(time, 0),
#endif
	CALL(epoll_create1, MAKES_FD | TAKES_MEMORY),
	CALL(epoll_ctl, TAKES_MEMORY),
	CALL(epoll_pwait, WAITS),
	CALL(ppoll, WAITS),
	CALL(timerfd_create, MAKES_FD | TAKES_MEMORY),
	CALL(timerfd_settime, 0),
	CALL(signalfd4, MAKES_FD | TAKES_MEMORY),
	CALL(eventfd2, MAKES_FD | TAKES_MEMORY),
	CALL(inotify_init1, MAKES_FD | TAKES_MEMORY),
	CALL(pidfd_open, MAKES_FD | TAKES_MEMORY),
	CALL(pidfd_send_signal, 0),
	CALL(pipe2, MAKES_FD | TAKES_MEMORY),
	CALL(socket, MAKES_FD | TAKES_MEMORY),
	CALL(socketpair, MAKES_FD | TAKES_MEMORY),
	CALL(connect, 0),
	CALL(sendto, 0),
	CALL(sendmsg, 0),
	CALL(recvfrom, 0),
	CALL(recvmsg, 0),
	CALL(dup, MAKES_FD),
	CALL(dup3, MAKES_FD),
	CALL(fcntl, 0),
	CALL(clone, TAKES_MEMORY),
	CALL(clone3, TAKES_MEMORY),
	CALL(execve, TAKES_MEMORY),
	CALL(execveat, TAKES_MEMORY),
	CALL(mmap, TAKES_MEMORY),
	CALL(mremap, TAKES_MEMORY),
	CALL(munmap, 0),
	CALL(mprotect, 0),
	CALL(madvise, 0),
	CALL(brk, 0),
	CALL(waitid, WAITS),
	CALL(wait4, WAITS),
	CALL(futex, 0),
	CALL(close, BY_FD | HARMLESS),
	CALL(close_range, 0),
	CALL(fstat, BY_FD | HARMLESS),
	CALL(lseek, BY_FD | HARMLESS),
	CALL(prctl, 0),
	CALL(prlimit64, 0),
	CALL(setsid, 0),
	CALL(setns, 0),
	CALL(unshare, TAKES_MEMORY),
	CALL(kill, 0),
	CALL(tgkill, 0),
	CALL(getpid, 0),
	CALL(getppid, 0),
	CALL(gettid, 0),
	CALL(getuid, 0),
	CALL(geteuid, 0),
	CALL(getgid, 0),
	CALL(getegid, 0),
	CALL(uname, 0),
	CALL(getcwd, 0),
	CALL(getrandom, 0),
	CALL(faccessat, 0),
	CALL(faccessat2, 0),
	CALL(readlinkat, 0),
	CALL(ioctl, 0),
	CALL(rt_sigaction, 0),
	CALL(rt_sigprocmask, 0),
	CALL(rt_sigreturn, 0),
	CALL(sigaltstack, 0),
	CALL(sched_setattr, 0),
	CALL(sched_getaffinity, 0),
	CALL(setpriority, 0),
	CALL(capget, 0),
	CALL(statfs, 0),
	CALL(sysinfo, 0),
	CALL(clock_gettime, 0),
	CALL(clock_nanosleep, 0),
	CALL(nanosleep, 0),
	CALL(set_tid_address, 0),
	CALL(set_robust_list, 0),
	CALL(rseq, 0),
	CALL(exit, ENDS),
	CALL(exit_group, ENDS),
#undef CALL
};

static const struct {
	int error;
	const char *name;
} errors[] = {
	{ENOSPC, "ENOSPC"},
	{EIO, "EIO"},
	{EMFILE, "EMFILE"},
	{ENOMEM, "ENOMEM"},
	{EINTR, "EINTR"},
};

static const struct call *call_of(long nr)
{
	for (size_t i = 0; i < sizeof(calls) / sizeof(calls[0]); i++) {
		if (calls[i].nr == nr)
			return &calls[i];
	}
	return NULL;
}

const char *call_name(long nr, char buffer[16])
{
	const struct call *call = call_of(nr);

	if (call)
		return call->name;
	snprintf(buffer, 16, "#%ld", nr);
	return buffer;
}

static bool path_is_beneath(const char *path, const char *dir)
{
	size_t n = strlen(dir);

	return strncmp(path, dir, n) == 0 && (path[n] == '\0' || path[n] == '/');
}

static bool fd_is_beneath(pid_t pid, int fd, const char *dir)
{
	char link[64], path[PATH_MAX];
	ssize_t n;

	snprintf(link, sizeof(link), "/proc/%d/fd/%d", (int)pid, fd);
	n = readlink(link, path, sizeof(path) - 1);
	if (n < 0)
		return false;
	path[n] = '\0';
	return path_is_beneath(path, dir);
}

/* Reads as much of a path as tells whether it is beneath `dir`, never across an unmapped page. */
static bool string_is_beneath(pid_t pid, uint64_t address, const char *dir)
{
	char path[PATH_MAX];
	size_t want = strlen(dir) + 1, left = 4096 - address % 4096;
	struct iovec to = {path, want < sizeof(path) ? want : sizeof(path)};
	struct iovec from[2] = {
		{(void *)(uintptr_t)address, to.iov_len < left ? to.iov_len : left},
		{(void *)(uintptr_t)(address + left), to.iov_len < left ? 0 : to.iov_len - left},
	};
	ssize_t n = process_vm_readv(pid, &to, 1, from, 2, 0);

	if (n < (ssize_t)want)
		return false;
	return strncmp(path, dir, want - 1) == 0 &&
		(path[want - 1] == '\0' || path[want - 1] == '/');
}

static bool at_is_beneath(pid_t pid, uint64_t fd, uint64_t address, const char *dir)
{
	if ((int)fd == AT_FDCWD)
		return string_is_beneath(pid, address, dir);
	return fd_is_beneath(pid, (int)fd, dir);
}

static bool call_is_beneath(pid_t pid, const struct call *call, const uint64_t *args,
	const char *dir)
{
	if (call->is & BY_FD)
		return fd_is_beneath(pid, (int)args[0], dir);
	if (call->is & BY_PATH)
		return string_is_beneath(pid, args[0], dir);
	if (call->is & (BY_AT | BY_AT2) && at_is_beneath(pid, args[0], args[1], dir))
		return true;
	return call->is & BY_AT2 && at_is_beneath(pid, args[2], args[3], dir);
}

bool call_is_store(pid_t pid, const struct call_stop *stop, const char *const *dirs)
{
	const struct call *call = call_of(stop->nr);

	if (!call)
		return false;
	for (; *dirs; dirs++) {
		if (call_is_beneath(pid, call, stop->args, *dirs))
			return true;
	}
	return false;
}

bool call_can_fail(long nr, int error, bool store)
{
	const struct call *call = call_of(nr);

	if (!call || call->is & (HARMLESS | ENDS))
		return false;
	if (store)
		return true;
	switch (error) {
	case EMFILE:
		return call->is & MAKES_FD;
	case ENOMEM:
		return call->is & TAKES_MEMORY;
	case EINTR:
		return call->is & WAITS;
	default:
		return false;
	}
}

bool call_returns(long nr)
{
	const struct call *call = call_of(nr);

	return !call || !(call->is & ENDS);
}

const char *error_name(int error)
{
	for (size_t i = 0; i < sizeof(errors) / sizeof(errors[0]); i++) {
		if (errors[i].error == error)
			return errors[i].name;
	}
	return "?";
}

bool error_parse(const char *name, int *ret)
{
	for (size_t i = 0; i < sizeof(errors) / sizeof(errors[0]); i++) {
		if (strcmp(name, errors[i].name) == 0) {
			*ret = errors[i].error;
			return true;
		}
	}
	return false;
}
