/* SPDX-License-Identifier: Apache-2.0 */
/* Processes to be paused, children of ours that end with us; and how they are, seen from outside in /proc. */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

struct target {
	pid_t pid;
	int statfd; /* /proc/PID/stat */
	bool own;
};

void target_start(struct target *t);
void target_watch(struct target *t, pid_t pid); /* somebody else's */
void target_end(struct target *t);
bool target_stopped(const struct target *t);
/* Spins until it is stopped (or is not any more); when that was seen. */
uint64_t target_await(const struct target *t, bool stopped);
/* Spins until all of them run; when that was seen. */
uint64_t targets_await_running(const struct target *t, size_t n);

/* As many processes that only take time as there are cores but one: we, who spin, keep that one busy. */
void burners_start(void);
void burners_end(void);
