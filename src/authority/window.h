/* SPDX-License-Identifier: Apache-2.0 */
/* The times at which a policy allows faults: days, from, to, and the zone they are meant in. */
#pragma once

#include <jansson.h>
#include <stdbool.h>
#include <stdint.h>

#include "base/err.h"

/* [{"days":"mon-fri","from":"09:00","to":"16:00","tz":"Europe/Berlin"}]; NULL is fine. */
int window_check_list(const json_t *list, const char *name, struct err *err);

/* No list or an empty one is always open. */
bool window_list_open(const json_t *list, uint64_t utc_ms);
