/* SPDX-License-Identifier: Apache-2.0 */
/*
 * worker.h: several benches at once, each in a process of its own, that share one plan.
 */
#pragma once

#include "plan.h"
#include "trial.h"

#include <stdbool.h>
#include <stddef.h>
#include <sys/types.h>

struct crew_setup {
	const char *agent;
	char *root; /* owned by the options */
	unsigned deadline_ms;
	bool fresh;
};

/*
 * Plays `scenario` a few times in a process of its own and writes who made which calls into
 * `ret`, which lies in memory shared with it. 0, -errno, or 1 with the reason in `ret_outcome` (shared too).
 */
int crew_record(const struct crew_setup *setup, unsigned scenario, struct census *ret,
	struct outcome *ret_outcome);

struct report {
	size_t point; /* index into the plan */
	struct outcome outcome;
};

enum { CREW_MAX = 32 };

struct crew {
	struct litter *litter; /* complete once all workers have ended */
	pid_t pids[CREW_MAX];
	unsigned n;
	int reportfd; /* a struct report each time a point was swept; EOF: all are done */
};

/* `census` is indexed by scenario. 0 or -errno. */
int crew_start(const struct crew_setup *setup, const struct plan *plan, const struct census *census,
	unsigned n_workers, struct crew *ret);

/* Waits for all. 0, or 1 where one of them did not end well. */
int crew_end(struct crew *crew);

/* Memory that forked processes share, zeroed; NULL: none to be had. */
void *shared_memory(size_t size);
