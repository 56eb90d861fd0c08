/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What a command line names as a target, resolved as exactly as this side
 * can: a process of this host becomes an identity here and now, and the agent
 * is held to it. Whatever cannot be resolved here the agent resolves.
 */
#pragma once

#include <jansson.h>
#include <stdbool.h>

#include "base/err.h"

/* At most one is set; none and `host` set means the host itself. */
struct target_words {
	const char *pid, *process, *service, *container, *unit;
	const char *engine; /* for a container, NULL: docker */
	const char *host;   /* of the global options */
	bool local;	    /* the agent is on this host */
};

/*
 * The target as the protocol wants it; the caller owns *ret. Codes: usage,
 * target.gone, target.ambiguous.
 */
int target_resolve(const struct target_words *w, json_t **ret, struct err *err);

/* "process 4711 (redis-server)", of what the protocol says. */
const char *target_text(const json_t *target, char *buf, size_t size);

/* Local time when that process of this boot was started, "-" when that is not known here. */
const char *target_since(const json_t *target, char *buf);
