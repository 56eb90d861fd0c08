/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Stopping and continuing processes, for the native pause and the declared
 * one alike. What is stopped stands in the lease's undo ops, one `signal.cont`
 * with a whole identity per process, durable before the first signal.
 */
#pragma once

#include "lease/steps.h"

/* Whether the kernel would let us: failed_to_apply or target_gone before anything is recorded. */
int stopping_may_signal(pid_t pid, int pidfd, struct err *err);

/* Codes resource_conflict, failed_to_apply and target_gone; changes nothing. */
int stopping_check(struct fault_run *run, const struct proc_identity *id, int pidfd,
	struct err *err);

/* Appends the undo op, the resource key and the verify probe of one process. */
int stopping_record(struct fault_run *run, const struct proc_identity *id, struct err *err);

/* SIGSTOP to one recorded process through its pidfd, and waits until every thread stands. */
int stopping_stop(struct fault_run *run, pid_t pid, int pidfd, struct err *err);

/* The two halves of it, for many at once. */
int stopping_send(pid_t pid, int pidfd, struct err *err);
int stopping_await(struct fault_run *run, pid_t pid, int pidfd, struct err *err);

/* How many of the recorded processes that are still there stand still. */
int stopping_observe(struct fault_run *run, struct observation *ret, struct err *err);

/* SIGCONT to each recorded process that is proven to be the one we stopped. */
int stopping_undo(struct fault_run *run, struct err *err);
int stopping_verify(struct fault_run *run, struct observation *ret, struct err *err);
void stopping_remedy(struct fault_run *run);

/* Identity from the args of an undo op (all texts). -ENOENT when it carries none. */
int stopping_op_identity(const json_t *op, struct proc_identity *ret, struct err *err);

/* True when every thread that still runs is T or t. -ESRCH gone. */
int stopping_is_stopped(pid_t pid, bool *ret);
