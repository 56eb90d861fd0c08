/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Declared state machines: the states are an enum, the allowed moves a table,
 * and one function moves. An illegal move is an error, never ignored.
 */
#pragma once

#include "base/err.h"

struct state_machine {
	const char *what;	   /* "lease", for messages */
	const char *const *names;  /* by state */
	const unsigned *next_mask; /* by state: bit n set when state n may follow */
	int n_states;
};

const char *state_name(const struct state_machine *m, int state);

/* The state of that name, or -EINVAL. */
int state_from_name(const struct state_machine *m, const char *name, int *ret);

/* 0 when `to` may follow `from`; else store.failed, naming both. */
int state_check_move(const struct state_machine *m, int from, int to, struct err *err);
