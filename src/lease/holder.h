/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The agent's end of a live lease. The fault itself lives in a process of its
 * own, the holder, which records, injects, observes, waits, undoes, verifies
 * and writes the result; nothing here ever waits for it.
 */
#pragma once

#include "lease/steps.h"

struct holder;

enum holder_ask { HOLDER_RELEASE, HOLDER_EXTEND, HOLDER_OBSERVE, HOLDER_ASK_MAX };

enum holder_news_kind {
	HOLDER_MOVED,	 /* the lease as it is now written */
	HOLDER_INJECTED, /* the effect was observed, or was not: ok says which */
	HOLDER_ANSWER,	 /* to the oldest extend or observe not yet answered */
	HOLDER_ENDED,	 /* a safe end, or dirty: the last word */
	HOLDER_NEWS_MAX
};

struct holder_news {
	enum holder_news_kind kind;
	bool ok;
	char reason[32]; /* reason code when not ok */
	char detail[448];
	json_t *lease; /* new references, may be NULL */
	json_t *observation;
};

void holder_news_free(struct holder_news *n);

struct holder_setup {
	struct lease_store *store;
	/* As checked, as JSON text: the child inherits no JSON values. It fills in id, times, holder. */
	const char *lease_text;
	char key[LEASE_KEY_SIZE]; /* of a declared lease, else "" */
	const struct fault_steps *steps;
	steps_finder find_steps; /* to recover an abandoned lease that is in the way */
	const struct pass *pass;
	/*
	 * The agent's inotify, -1: none. Its last close waits for the kernel's
	 * readers (10 to 25 ms, seen), and a dying process is not seen dead before
	 * all its descriptors are closed: so the last to close it is never the agent.
	 * It also tells the holder of a halt while its agent stands still.
	 */
	int sharedfd;
	int agent_pidfd;   /* opened before any clone: EOF of the link alone proves nothing */
	int target_pidfd;  /* the identity that was checked, -1 for declared leases; borrowed */
	const char *spare; /* a record made ready, or "" */
	bool check_only;   /* runs check and says what it found; no record, no change */
};

int holder_start(const struct holder_setup *setup, struct holder **ret, struct err *err);

/* Waits (bounded) for nothing: both become readable. */
int holder_linkfd(const struct holder *h);
int holder_pidfd(const struct holder *h);
const struct launch_record *holder_record(const struct holder *h);

/* arg: an enum lease_end for RELEASE, milliseconds for EXTEND. */
int holder_send(struct holder *h, enum holder_ask ask, uint64_t arg, struct err *err);

/* 1 with news, 0 when the link has ended, -EAGAIN when there is none yet. */
int holder_next(struct holder *h, struct holder_news *ret, struct err *err);

/* Its process has exited: reaps it and removes its cgroup. */
void holder_finish(struct holder *h, struct lease_store *store);
void holder_free(struct holder *h);

/* For other sessions, and for halt: SIGTERM through a pidfd checked against the record. 0, or -ESRCH, -EPERM … */
int holder_terminate(const struct lease *l, struct err *err);
