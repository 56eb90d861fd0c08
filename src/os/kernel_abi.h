/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What the kernel offers and older headers do not name. Numbers are from the
 * kernel's own uapi headers; whether the running kernel has them is found out
 * at run time (os/kernel.h), never here. The only file with #if.
 */
#pragma once

#include <linux/sched.h> /* struct clone_args, CLONE_PIDFD, CLONE_INTO_CGROUP */
#include <linux/types.h>
#include <sys/ioctl.h>
#include <sys/syscall.h>
#include <unistd.h>

#ifndef PID_FS_MAGIC /* linux/magic.h, 6.9: fstatfs of a pidfd on pidfs */
#define PID_FS_MAGIC 0x50494446
#endif

#ifndef P_PIDFD /* linux/wait.h, 5.4 */
#define P_PIDFD 3
#endif

#ifndef SYS_landlock_create_ruleset
#define SYS_landlock_create_ruleset 444
#endif

#ifndef LANDLOCK_CREATE_RULESET_VERSION
#define LANDLOCK_CREATE_RULESET_VERSION 1U
#endif

#ifndef PF_KTHREAD /* kernel-internal, visible as field 9 of /proc/<pid>/stat */
#define PF_KTHREAD 0x00200000U
#endif

#ifndef NFS_SUPER_MAGIC
#define NFS_SUPER_MAGIC 0x6969
#endif
