/* SPDX-License-Identifier: Apache-2.0 */
/*
 * record.h: what the store says of its leases, read from the files alone.
 *
 * A strict reading of its own, not the agent's: the sweep must not believe a record because the
 * code under test does. Hashes are left to the agent's tests.
 */
#pragma once

#include <stdbool.h>
#include <stddef.h>

enum { RECORD_KEY_MAX = 64, RECORD_WHY_MAX = 256 };

struct record {
	char key[RECORD_KEY_MAX];
	char state[16];
	bool safe; /* released or expired */
	bool dirty;
	bool was_active; /* some line said so */
	bool has_remedy; /* dirty: notes and at least one argv */
};

struct store_view {
	unsigned n_open;	 /* records in leases/ */
	unsigned n_open_settled; /* of these: at a safe end, but not moved yet, or dirty */
	unsigned n_open_dirty;	 /* of these */
	unsigned n_aside;	 /* files that recovery could not read */
	bool has_newest;
	struct record newest; /* of all in leases/ and ended/ whose key is above `above` */
};

/*
 * Reads leases/ whole, and of ended/ what has a key above `above` (as strcmp orders them).
 * 0; -EINVAL with the reason in `ret_why` where a record breaks a rule; another -errno.
 */
int store_look(const char *dir, const char *above, struct store_view *ret,
	char ret_why[RECORD_WHY_MAX]);

/* The highest key of all, "" where there is none: to be `above` for what comes next. */
void store_highest(const char *dir, char ret[RECORD_KEY_MAX]);
