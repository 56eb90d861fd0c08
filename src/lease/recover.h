/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Recovery: for each lease not at a safe end whose lock is free, the real
 * undo and the real verification, from the record. Two at once do the work
 * once: the lock decides. It never only edits states.
 */
#pragma once

#include "lease/steps.h"

enum recover_found {
	RECOVER_HOLDER_GONE,  /* the lock was free */
	RECOVER_OTHER_BOOT,   /* of this machine */
	RECOVER_ALIVE,	      /* locked, before its deadline */
	RECOVER_OVERDUE,      /* locked, past it */
	RECOVER_UNVERIFIABLE, /* its target cannot be told */
	RECOVER_BUSY,	      /* somebody else is recovering it */
	RECOVER_ELSEWHERE,    /* of another machine or namespace: to be recovered there */
	RECOVER_FOUND_MAX
};

enum recover_did {
	RECOVER_UNDONE,
	RECOVER_LEFT,
	RECOVER_WOULD_UNDO,
	RECOVER_MARKED_DIRTY,
	RECOVER_DID_MAX
};

struct recover_opts {
	bool plan;	   /* look only */
	bool sweep;	   /* remove marks of our store that belong to nothing */
	bool skip_overdue; /* do not wait for holders past their deadline */
	steps_finder find_steps;
	/* Called once all records have been read; may be NULL. */
	void (*read_all)(void *arg);
	void *arg;
};

struct recover_report {
	json_t *doc; /* the shape of `recover --json`; the caller frees it */
	unsigned seen, undone, left, dirty, unreadable;
	int exit_code; /* 0, or 7 */
};

int lease_recover(struct lease_store *s, const struct recover_opts *opts,
	struct recover_report *ret, struct err *err);

/* One lease by its key. 0 at a safe end now, -EBUSY somebody alive is at work, -EUCLEAN dirty. */
int lease_recover_one(struct lease_store *s, const char *key, steps_finder find_steps,
	struct lease *ret_lease);

const char *recover_found_name(enum recover_found f);
const char *recover_did_name(enum recover_did d);
