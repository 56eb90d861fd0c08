/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What there is to break with: data only. The agent's checks, the gates, the
 * help texts, `mayhem faults` and capabilities.query all read this one table;
 * how a fault is done is nobody's business here.
 */
#pragma once

#include <jansson.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "authority/risk.h"
#include "base/err.h"

enum undo_kind { UNDO_KERNEL_OWNED, UNDO_RECORDED, UNDO_IRREVERSIBLE, UNDO_KIND_MAX };

enum target_kind { /* a mask */
	TARGET_PROCESS = 1 << 0,
	TARGET_SERVICE = 1 << 1,
	TARGET_CONTAINER = 1 << 2,
	TARGET_HOST = 1 << 3,
	TARGET_EXTERNAL = 1 << 4
};

enum param_type { PARAM_STRING, PARAM_INTEGER, PARAM_BOOLEAN, PARAM_DURATION, PARAM_TYPE_MAX };

#define CATALOGUE_VALUES_MAX 6

struct param {
	const char *name;
	enum param_type type;
	const char *fallback; /* as text; NULL: required */
	const char *values
		[CATALOGUE_VALUES_MAX]; /* strings: what may be said, NULL-ended; none: anything */
	long long min, max;		/* integers: the number; durations: milliseconds */
	const char *help;
};

struct fault_entry {
	const char *id; /* "proc.pause" */
	enum risk risk;
	unsigned max_duration_s;
	unsigned targets; /* mask of enum target_kind */
	enum undo_kind undo_kind;
	const struct param *params; /* ended by an entry without a name */
	const char *help;
};

/* All of them, sorted by id. */
const struct fault_entry *catalogue_entries(size_t *ret_n);

const struct fault_entry *catalogue_find(const char *id);

/* The id nearest to a mistyped one, or NULL. */
const char *catalogue_nearest(const char *id);

/*
 * Checks given parameters (a JSON object, may be NULL) against the table and
 * returns a new object with every parameter present, typed, durations as
 * text with their unit. Codes: params.unknown, params.type, params.range,
 * params.missing.
 */
int catalogue_check_params(const struct fault_entry *e, const json_t *given, json_t **ret,
	struct err *err);

/* A value from a command line ("10s", "true"), as the JSON that the check then takes. */
json_t *catalogue_param_from_text(const struct param *p, const char *text);

/* A checked duration parameter in milliseconds. */
uint64_t catalogue_duration_ms(const json_t *params, const char *name);

const struct param *catalogue_param(const struct fault_entry *e, const char *name);

const char *undo_kind_name(enum undo_kind k);
int undo_kind_from_name(const char *name, enum undo_kind *ret);
const char *param_type_name(enum param_type t);
const char *target_kind_name(enum target_kind k);
int target_kind_from_name(const char *name, enum target_kind *ret);

/* The shape of `faults --json`, without what only a host can say. */
json_t *catalogue_entry_to_json(const struct fault_entry *e);
