/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Exclusion per resource and per host: a claim is one complete file, linked to
 * its name under the flock of `.lock`. No claim outlives a boot, so none is
 * synced. Whoever comes second changes nothing and is told who holds it.
 */
#pragma once

#include "lease/lease.h"

struct lease_store;

struct lease_conflict {
	char resource[LEASE_TEXT_SIZE];
	char key[LEASE_KEY_SIZE]; /* the lease that holds it */
	char state_dir[LEASE_TEXT_SIZE];
	bool ours;	/* in our own store */
	bool abandoned; /* nobody is at work on that lease: recovery may free it */
};

/* /run/mayhem/claims, or the user's runtime directory's; -1 when neither can be had. */
int claim_open_host_dir(void);

/*
 * Claims every key of l->resources, or none. -EBUSY with *ret filled:
 * resource_conflict.
 */
int lease_claim(struct lease_store *s, const struct lease *l, struct lease_conflict *ret,
	struct err *err);

/* Gives back what this lease holds, and only that. */
void lease_unclaim(struct lease_store *s, const struct lease *l);
