/* SPDX-License-Identifier: Apache-2.0 */
/*
 * regs.h: what a traced process asks of the kernel, and how to answer in the kernel's place.
 *
 * The only file that knows an architecture. Reading goes through PTRACE_GET_SYSCALL_INFO, which is
 * the same everywhere; only the two ways of interfering are not.
 */
#pragma once

#include <stdint.h>
#include <sys/types.h>

enum call_side { SIDE_ENTRY, SIDE_EXIT, SIDE_NEITHER };

struct call_stop {
	enum call_side side;
	long nr;	  /* at entry only */
	uint64_t args[6]; /* at entry only */
};

/* All return 0 or -errno; -ESRCH means that somebody killed the process while it was stopped. */
int regs_read_call(pid_t pid, struct call_stop *ret);

/* At entry: the kernel will do nothing. The result is set at the exit that follows. */
int regs_skip_call(pid_t pid);
int regs_set_result(pid_t pid, long result);
