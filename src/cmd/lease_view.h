/* SPDX-License-Identifier: Apache-2.0 */
/* What can be said about a lease as the protocol shows it. All arguments are borrowed. */
#pragma once

#include <jansson.h>
#include <stdbool.h>
#include <stddef.h>

#include "base/clock.h"

/* Released or expired: nothing of it is live. */
bool lease_view_is_over(const json_t *lease);
bool lease_view_is_dirty(const json_t *lease);

/*
 * UTC at which its effect ends: from its injection and its duration, or from
 * its making and its ttl. "" when it cannot be told. buf has CLOCK_UTC_SIZE.
 */
const char *lease_view_end(const json_t *lease, char *buf);

/* The newest observation, or NULL. */
const json_t *lease_view_last_observation(const json_t *lease);

/* The newest of a phase (before, during, after), or NULL. */
const json_t *lease_view_observation(const json_t *lease, const char *phase);

/* "process.stopped 0 before, 1 during, 0 after", as far as it was measured; "" when it was not. */
const char *lease_view_story(const json_t *lease, char *buf, size_t size);

/* "process.stopped 1 of 1", or "" */
const char *lease_view_measured(const json_t *observation, char *buf, size_t size);

/* Why it is dirty, and the commands that mend it by hand, on stderr. */
void lease_view_remedy(const json_t *lease);
