/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Strict reading of /proc. A name may hold anything, also ") S 1": stat is
 * split at the last parenthesis. What does not parse is -EBADMSG, never a
 * guess; a process that is gone is -ESRCH.
 */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

#define PROC_COMM_SIZE 64 /* kernel threads may have long names */
#define PROC_BOOT_ID_SIZE 37
#define PROC_CGROUP_SIZE 512

struct proc_stat {
	pid_t pid;
	char comm[PROC_COMM_SIZE];
	char state; /* R S D Z T t X I … */
	pid_t ppid, pgrp, session, tpgid;
	int tty_nr;
	unsigned flags; /* PF_*, see kernel_abi.h */
	uint64_t num_threads;
	uint64_t start_ticks; /* field 22, clock ticks since boot */
};

struct proc_status {
	pid_t tracer_pid;
	uid_t uid; /* effective */
	uint64_t sig_blocked, sig_ignored, sig_caught;
	unsigned ns_levels; /* how many pid namespaces it is seen in, from NSpid */
	pid_t ns_pid;	    /* its pid in the innermost one */
};

/* The text of a stat file. Used by the fuzzer as well. */
int procfs_parse_stat(const char *text, size_t len, struct proc_stat *ret);
int procfs_parse_status(const char *text, struct proc_status *ret);

int procfs_read_stat(pid_t pid, struct proc_stat *ret);
int procfs_read_thread_stat(pid_t pid, pid_t tid, struct proc_stat *ret);
int procfs_read_status(pid_t pid, struct proc_status *ret);

/* This boot's id. */
int procfs_boot_id(char ret[static PROC_BOOT_ID_SIZE]);

/* /etc/machine-id, "" where there is none. */
void procfs_machine_id(char ret[static 33]);

/* Inode of /proc/<pid>/ns/<name>, 0 when it cannot be read. pid 0 is ourselves. */
uint64_t procfs_ns_inode(pid_t pid, const char *name);

/* Device and inode of the running executable; follows the link, so only the kernel's idea of it counts. */
int procfs_exe(pid_t pid, uint64_t *ret_dev, uint64_t *ret_ino);

/*
 * Path of the process in the hierarchy of a controller, or in the unified one
 * when controller is "". -ENOENT when it is in no such hierarchy.
 */
int procfs_cgroup(pid_t pid, const char *controller, char *ret, size_t size);

/* True when some path of the process, in any hierarchy, ends in /name. */
int procfs_cgroup_ends_in(pid_t pid, const char *name, bool *ret);

/* Calls fn for each number in /proc (processes) or /proc/<pid>/task (threads); a non-zero answer ends it. */
int procfs_each_process(int (*fn)(pid_t pid, void *arg), void *arg);
int procfs_each_thread(pid_t pid, int (*fn)(pid_t tid, void *arg), void *arg);
