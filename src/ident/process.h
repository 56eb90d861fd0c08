/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The exact identity of a process, and whether the one found now is the one
 * that was recorded. A pid alone is never an identity. "Cannot tell" is an
 * answer of its own and permits nothing: only OWNED and SAME may be
 * signalled, and only through the pidfd that ident_match() returned with the
 * verdict.
 */
#pragma once

#include <jansson.h>
#include <stdbool.h>
#include <stdint.h>
#include <sys/types.h>

#include "base/err.h"
#include "os/procfs.h"

#define IDENT_CGROUP_SIZE 256

struct proc_identity {
	pid_t pid;
	uint64_t start_ticks;
	char boot_id[PROC_BOOT_ID_SIZE];
	uint64_t
		pidns_inode; /* of whoever recorded it: the namespace in which pid means something */
	uint64_t pidfs_inode; /* 0: unknown, the kernel has no pidfs */
	char comm[PROC_COMM_SIZE];
	uint64_t exe_dev, exe_ino; /* 0, 0: unknown or none */
	uid_t uid;
	char cgroup
		[IDENT_CGROUP_SIZE]; /* in the unified hierarchy, else the freezer's; "" unknown */
};

enum ident_verdict {
	IDENT_GONE,	    /* proven: no such process any more */
	IDENT_UNVERIFIABLE, /* cannot be told; permits nothing */
	IDENT_FOREIGN,	    /* another process has the number now */
	IDENT_SAME,	    /* the target that was recorded */
	IDENT_OWNED,	    /* ours: it carries our launch nonce */
	IDENT_VERDICT_MAX
};

const char *ident_verdict_name(enum ident_verdict v);

/*
 * Reads a live process. ret_pidfd (may be NULL) then holds it. The facts are
 * those of the process behind the pidfd: they are read between opening it and
 * seeing that it has not exited. -ESRCH: nobody, or a zombie.
 * ident_read_fast() leaves out what may wait for a file system (exe).
 */
int ident_read(pid_t pid, struct proc_identity *ret, int *ret_pidfd, struct err *err);
int ident_read_fast(pid_t pid, struct proc_identity *ret, int *ret_pidfd, struct err *err);

/* Adds exe and cgroup to what ident_read_fast() found, if the process still lives. */
int ident_complete(struct proc_identity *id, int pidfd, struct err *err);

struct ident_match {
	enum ident_verdict verdict;
	bool weak;	    /* SAME without the kernel's proof: ticks, exe, uid and cgroup agree */
	int pidfd;	    /* the caller's, ≥ 0 exactly when OWNED or SAME */
	const char *reason; /* static text, why */
};

/*
 * The ladder. nonce is our launch nonce for processes that we started, NULL
 * for targets. Never fails: what cannot be inspected is UNVERIFIABLE.
 */
void ident_match(const struct proc_identity *recorded, const char *nonce, struct ident_match *ret);

/* The shape `process` of the protocol; new reference, NULL without memory. */
json_t *ident_to_json(const struct proc_identity *id);

/* Strict: exact keys and types. */
int ident_from_json(const json_t *j, struct proc_identity *ret, struct err *err);

/* This boot and our own pid namespace; read once per process that asks. */
int ident_boot_id(char ret[static PROC_BOOT_ID_SIZE]);
uint64_t ident_own_pidns(void);
