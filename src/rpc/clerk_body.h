/* SPDX-License-Identifier: Apache-2.0 */
/* What the agent's helpers do in their own processes. Internal to rpc. */
#pragma once

#include "lease/steps.h"
#include "rpc/frame.h"

#define CLERK_SAYS 1 /* the link's packet type: JSON text */

struct clerk_ask {
	struct lease_store *store;
	steps_finder find_steps;
	const char *params_text; /* JSON; a child inherits no JSON values */
	json_t *params;		 /* made from it in the child */
	char key[LEASE_KEY_SIZE];
	char owner[LEASE_TEXT_SIZE];
	size_t n_spares;
	const char *path; /* of the metrics file, outside the arena */
};

struct watcher_ask {
	struct lease_store *store;
	steps_finder find_steps;
	struct watched {
		char key[LEASE_KEY_SIZE];
		char nonce[LAUNCH_NONCE_SIZE];
		int pidfd;
	} * held;
	int *keep;
	size_t n;
};

/* The store's descriptors; at most 8. */
size_t clerk_keepfds(const struct lease_store *s, int *ret);

/* Each is a launch_body; arg is its ask. */
int clerk_recover(void *arg, int linkfd, const struct launch_record *rec);
int clerk_recover_one(void *arg, int linkfd, const struct launch_record *rec);
int clerk_stock(void *arg, int linkfd, const struct launch_record *rec);
int clerk_metrics(void *arg, int linkfd, const struct launch_record *rec);
int clerk_list(void *arg, int linkfd, const struct launch_record *rec);
int clerk_release(void *arg, int linkfd, const struct launch_record *rec);
int clerk_verify(void *arg, int linkfd, const struct launch_record *rec);
int watcher_body(void *arg, int linkfd, const struct launch_record *rec);
