/* SPDX-License-Identifier: Apache-2.0 */
/*
 * One fault on one target, from its plan to its end, as `mayhem inject` runs
 * it. The agent acts and keeps time; this side asks, watches and reports. An
 * injection that was interrupted is always brought to its end, or it is said
 * that it was not.
 */
#pragma once

#include <jansson.h>
#include <stdbool.h>
#include <stdint.h>

#include "catalogue/catalogue.h"
#include "cmd/command.h"
#include "cmd/session.h"

struct injection {
	const struct invocation *v;
	const struct fault_entry *entry;
	json_t *target; /* as resolved here, then as the agent saw it */
	json_t *given;	/* parameters as they were given: the agent reads them itself */
	json_t *params; /* the same, checked and complete */
	uint64_t duration_ms, ttl_ms;
	bool detach;
	struct session session;
	json_t *checked; /* the agent's answer to phase check */
	json_t *lease;	 /* as last known; NULL: none yet */
	char detail[256];
	bool moved;	  /* an event of it came since it was last read */
	bool interrupted; /* by a signal */
};

void injection_close(struct injection *i);

static inline void cleanup_injection(struct injection *i)
{
	injection_close(i);
}

/* The gates that only the agent can answer: policy, impact, identity. Changes nothing. */
int injection_check(struct injection *i, struct err *err);

/* Injects; 0 once the effect was observed. -EINTR: interrupted, and undone as far as is known. */
int injection_start(struct injection *i, struct err *err);

/* Waits for its end, or ends it when a signal comes. */
int injection_watch(struct injection *i, struct err *err);

/* True when nothing of it is live any more, and whether it is dirty. */
bool injection_ended(const struct injection *i);
bool injection_dirty(const struct injection *i);

/* What the end of the lease means: err and the exit code; 0 when it all went as planned. */
int injection_verdict(const struct injection *i, struct err *err);

/* What a person or a script sees. injection_show_plan() prints text or JSON. */
void injection_show_plan(const struct injection *i);
void injection_show_detached(const struct injection *i, int code);
void injection_show_end(const struct injection *i, const char *status, const struct err *err,
	int code);
void injection_show_live(const struct injection *i);
