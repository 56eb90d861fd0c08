/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A process held by descriptor. Once open, a pidfd never means another
 * process, whatever happens to the number. All return 0 or -errno.
 */
#pragma once

#include <stdbool.h>
#include <stdint.h>
#include <sys/types.h>

/* -ESRCH: nobody. -EINVAL: pid ≤ 0, which is never asked of the kernel, or a thread. */
int pidfd_open_pid(pid_t pid, int *ret_fd);

/* -ESRCH when it has been reaped. */
int pidfd_signal(int pidfd, int signo);

/*
 * Exited is a readable pidfd, nothing else: a zombie leader with living
 * threads is not readable and is alive.
 */
bool pidfd_has_exited(int pidfd);

/* Waits until it has exited. 0, or -ETIMEDOUT. */
int pidfd_wait_exit(int pidfd, uint64_t timeout_ms);

/* The inode that only this process ever has, or 0 where the kernel has no pidfs. */
uint64_t pidfd_inode(int pidfd);

/* Reaps our own child: 0 with its exit code or signal, -ECHILD, -EAGAIN when it still runs. */
int pidfd_reap(int pidfd, int *ret_code, int *ret_signo);
