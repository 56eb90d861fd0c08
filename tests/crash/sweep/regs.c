/* SPDX-License-Identifier: Apache-2.0 */
#include "regs.h"

#include <elf.h>
#include <errno.h>
#include <sys/ptrace.h>
#include <sys/uio.h>
#include <sys/user.h>

int regs_read_call(pid_t pid, struct call_stop *ret)
{
	struct __ptrace_syscall_info info;

	if (ptrace(PTRACE_GET_SYSCALL_INFO, pid, sizeof(info), &info) < 0)
		return -errno;

	*ret = (struct call_stop){.side = SIDE_NEITHER};
	if (info.op == PTRACE_SYSCALL_INFO_ENTRY) {
		ret->side = SIDE_ENTRY;
		ret->nr = (long)info.entry.nr;
		for (unsigned i = 0; i < 6; i++)
			ret->args[i] = info.entry.args[i];
	} else if (info.op == PTRACE_SYSCALL_INFO_EXIT) {
		ret->side = SIDE_EXIT;
	}
	return 0;
}

static int regset_move(enum __ptrace_request request, pid_t pid, long set, void *data, size_t size)
{
	struct iovec iov = {.iov_base = data, .iov_len = size};

	return ptrace(request, pid, set, &iov) < 0 ? -errno : 0;
}

#if defined(__x86_64__)

/* The number lives in orig_rax; -1 is no system call, and the kernel leaves rax to us. */
int regs_skip_call(pid_t pid)
{
	struct user_regs_struct regs;
	int r = regset_move(PTRACE_GETREGSET, pid, NT_PRSTATUS, &regs, sizeof(regs));

	if (r < 0)
		return r;
	regs.orig_rax = (unsigned long long)-1;
	return regset_move(PTRACE_SETREGSET, pid, NT_PRSTATUS, &regs, sizeof(regs));
}

int regs_set_result(pid_t pid, long result)
{
	struct user_regs_struct regs;
	int r = regset_move(PTRACE_GETREGSET, pid, NT_PRSTATUS, &regs, sizeof(regs));

	if (r < 0)
		return r;
	regs.rax = (unsigned long long)result;
	return regset_move(PTRACE_SETREGSET, pid, NT_PRSTATUS, &regs, sizeof(regs));
}

#elif defined(__aarch64__)

/* x8 is copied before the stop, so writing it there changes nothing: the number has its own set. */
int regs_skip_call(pid_t pid)
{
	int none = -1;

	return regset_move(PTRACE_SETREGSET, pid, NT_ARM_SYSTEM_CALL, &none, sizeof(none));
}

int regs_set_result(pid_t pid, long result)
{
	struct user_regs_struct regs;
	int r = regset_move(PTRACE_GETREGSET, pid, NT_PRSTATUS, &regs, sizeof(regs));

	if (r < 0)
		return r;
	regs.regs[0] = (unsigned long long)result;
	return regset_move(PTRACE_SETREGSET, pid, NT_PRSTATUS, &regs, sizeof(regs));
}

#else
#error "regs.c: say here how this architecture numbers and answers a system call"
#endif
