/* SPDX-License-Identifier: Apache-2.0 */
/*
 * One command of the agent, run to its end through the same transport as a
 * session: what it printed and its exit status. Used where no session is
 * needed, and where one would be wrong: recovering, halting, looking.
 */
#pragma once

#include <jansson.h>
#include <stddef.h>
#include <stdint.h>

#include "base/err.h"
#include "rpc/transport.h"

#define ONESHOT_OUTPUT_MAX (64u << 20)

/*
 * Runs `words` and parses the one JSON object that it printed. *ret_code is
 * its exit status; a status with no object is explained in err and returns
 * negative. A signal on signalfd (-1: none is watched) is passed on as
 * SIGTERM, and the end is still waited for; then -EINTR. Without any end
 * within timeout_ms: -ETIMEDOUT. The caller owns *ret.
 */
int oneshot_run(const struct transport *t, const char *const *words, size_t n, int signalfd,
	uint64_t timeout_ms, json_t **ret, int *ret_code, struct err *err);
