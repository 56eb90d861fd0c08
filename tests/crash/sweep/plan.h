/* SPDX-License-Identifier: Apache-2.0 */
/*
 * plan.h: the points of a sweep: which process, which of its calls, which side of it, what happens.
 *
 * As text a point is ROLE:ORDINAL:CALL:entry|exit:ACTION, where ACTION is kill, both, or the name
 * of an error, with a + for "this call and every later one on the store": what is printed for a
 * failing point is what --point takes.
 */
#pragma once

#include "regs.h"
#include "roles.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum action {
	ACTION_NONE,	/* to count the calls of one process only */
	ACTION_KILL,	/* the process alone */
	ACTION_BOTH,	/* it and every other process of the scenario */
	ACTION_FAIL,	/* the call, once */
	ACTION_FAIL_ON, /* the call and all later ones on the store: a disk stays full */
};

struct point {
	unsigned scenario; /* an index into the table of session.h */
	enum role role;
	unsigned ordinal;
	unsigned call; /* from 1, counted from the birth of the process */
	enum call_side side;
	enum action action;
	int error;
};

enum { POINT_TEXT_MAX = 64 };

void point_print(const struct point *point, char ret[POINT_TEXT_MAX]);
bool point_parse(const char *text, struct point *ret);

struct plan {
	struct point *points; /* owned */
	size_t n, room;
};

/* What to choose from a census. */
struct plan_wish {
	unsigned roles; /* a mask of 1 << enum role */
	bool kill, both;
	const int *errors;
	size_t n_errors;
	bool once, on;	   /* fail one call, fail it and all later ones */
	bool every_call;   /* errors: not only at calls on the store */
	unsigned from, to; /* calls, both ends included */
};

/* Both return 0 or -ENOMEM and add to what is there. */
int plan_add_all(struct plan *plan, const struct census *census, unsigned scenario,
	const struct plan_wish *wish);
int plan_add_one(struct plan *plan, const struct point *point);

/* Keeps `n` of the points, drawn with replacement: the same ones for the same seed. */
int plan_draw(struct plan *plan, size_t n, uint64_t seed);

void plan_free(struct plan *plan);
