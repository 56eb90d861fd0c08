/* SPDX-License-Identifier: Apache-2.0 */
/*
 * target.h: the process that the scenario pauses.
 *
 * It answers each byte it is sent, so that "it runs again" is an event to poll for and a proof: the
 * answer to a question asked now is given by code that ran after it, whatever stop signal was on
 * its way. It is a child of our parent (CLONE_PARENT), so that the children of a worker are the
 * scenario's processes and nothing else: no child left means nobody left.
 */
#pragma once

#include <stdbool.h>
#include <stdint.h>
#include <sys/types.h>

struct target {
	pid_t pid;
	int pidfd, askfd, answerfd, statfd;
	uint8_t asked, answered;
};

#define TARGET_NONE                                                                                \
	((struct target){.pid = 0, .pidfd = -1, .askfd = -1, .answerfd = -1, .statfd = -1})

/* 0 or -errno. */
int target_start(struct target *ret);

/* A new question; the answer to it is awaited by target_runs(). */
void target_ask(struct target *target);

/* Takes what was answered; true once the latest question was. Never waits. */
bool target_runs(struct target *target);

/* What /proc says: stopped by a signal. */
bool target_is_stopped(const struct target *target);

void target_continue(struct target *target);
void target_end(struct target *target);
