/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The plain spawn by which a controller starts an agent or a transport: its
 * own session, so that the terminal's signals reach the controller alone, and
 * pipes that are close-on-exec here. No cgroup, no record: the agent keeps
 * its own.
 */
#pragma once

#include <stdbool.h>

#include "base/err.h"

struct spawned {
	int pidfd;
	int infd, outfd; /* the child's stdin (ours to write) and stdout (ours to read) */
	int errfd;	 /* its stderr, ours to read without waiting; -1: it has our own */
};

#define SPAWNED_INIT                                                                               \
	{                                                                                          \
		.pidfd = -1, .infd = -1, .outfd = -1, .errfd = -1                                  \
	}

/*
 * stderr is inherited, or with own_stderr a pipe: what keeps that open then
 * keeps nobody waiting who reads ours. argv[0] is looked for in our PATH.
 * Returns when the exec has happened.
 */
int launch_spawn(char *const *argv, bool own_stderr, struct spawned *ret, struct err *err);
void spawned_close(struct spawned *s);
