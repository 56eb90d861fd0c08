/* SPDX-License-Identifier: Apache-2.0 */
/*
 * trial.h: one point: the scenario played, the blow struck, and what must hold afterwards.
 *
 * Always: no record at a safe end while the target is stopped; after recovery the target runs, and
 * of the leases only dirty ones, with notes and a remedy, are still open.
 * Agent or holder killed, or a call failed: the target runs again without anybody calling recover,
 * and, where nothing was failed, its lease is settled too. A holder's death is mended before its
 * controller says another word.
 */
#pragma once

#include "bench.h"
#include "plan.h"
#include "roles.h"

#include <stdbool.h>

enum verdict {
	VERDICT_HELD,
	VERDICT_MISSED, /* all held, but the process made no such call */
	VERDICT_FAILED,
	VERDICT_BROKEN, /* the sweep itself could not do its work */
	VERDICT_MAX
};

enum { OUTCOME_WHY_MAX = 320 };

struct outcome {
	enum verdict verdict;
	bool dirty;	  /* a lease was left dirty, as it may be */
	unsigned back_us; /* from the blow to the target's answer; 0: not measured */
	long call;	  /* number of the system call, -1: missed */
	char why[OUTCOME_WHY_MAX];
};

/*
 * Plays the scenario with nothing done to it, and records who did what: all of them, or only the
 * process that `focus` names (action none), so that the others are as fast as they are at a point.
 * `expected` tells who that is before it has a name; here and below.
 */
void trial_record(struct bench *bench, unsigned scenario, const struct point *focus,
	const struct census *expected, struct census *ret_census, struct outcome *ret);

void trial_run(struct bench *bench, const struct point *point, const struct census *expected,
	struct outcome *ret);
