/* SPDX-License-Identifier: Apache-2.0 */
/*
 * bench.h: what one worker has and uses again from point to point: a state directory, a target, and
 * the right to be told of the end of whoever the scenario leaves behind.
 *
 *     ROOT/wN/state      of the agent; kept between points as long as it is clean
 *     ROOT/wN/agent.err  what the agent and its children said on stderr at the last point
 *     ROOT/failed-…      both of them, of a point that failed
 */
#pragma once

#include "litter.h"
#include "target.h"

#include <stdbool.h>
#include <stdint.h>

enum { BENCH_PATH_MAX = 512 };

struct bench {
	const char *agent; /* borrowed */
	const char *root;  /* borrowed; absolute, without links */
	char dir[BENCH_PATH_MAX], state[BENCH_PATH_MAX], errors[BENCH_PATH_MAX];
	const char *store_dirs[3]; /* the state directory and the host's claims */
	int childfd;		   /* signalfd of SIGCHLD */
	int errorfd, nullfd;
	unsigned deadline_ms;
	bool fresh;	 /* a new state directory for every point */
	unsigned n_used; /* points since the state directory was new */
	unsigned n_kept;
	struct litter *litter; /* borrowed; NULL: not counted */
	struct target target;
};

/* Makes the caller a subreaper. 0 or -errno. */
int bench_open(struct bench *ret, const char *agent, const char *root, unsigned number,
	unsigned deadline_ms, bool fresh);
void bench_close(struct bench *bench);

/* Before a point: a target that runs, a state directory that is not worn out. 0 or -errno. */
int bench_prepare(struct bench *bench);

/*
 * After a point whose state must not touch the next one: lets recovery sweep, counts what stays all
 * the same, and removes the directory.
 */
void bench_reset(struct bench *bench);

/* Keeps the state directory of a failed point under ROOT/failed-NAME: of the first few. */
void bench_keep(struct bench *bench, const char *name);

/*
 * Runs the agent with `verb` (and `flag`, if any) on the state directory, untraced, until it and all
 * it started are gone. 0 with the wait status; -ETIME past the deadline (then all are killed); another -errno.
 */
int bench_command(struct bench *bench, const char *verb, const char *flag, int *ret_status);

/* Waits for a child to change, at most until the deadline. */
void bench_wait(struct bench *bench, uint64_t deadline_us);

/* SIGKILL to every process that is ours by now, until nobody is left. */
void bench_kill_leftovers(void);

/* Asks the target, waits for the answer at most `ms`. */
bool bench_target_answers(struct bench *bench, unsigned ms);
