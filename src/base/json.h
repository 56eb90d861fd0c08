/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Strict JSON over jansson: duplicate keys refused, 64-bit integers exact,
 * nesting bounded. The getters check type and bounds and say what was wrong;
 * each takes the reason code to use, so that a record and a frame can report
 * the same mistake in their own words.
 */
#pragma once

#include <jansson.h>
#include <stdint.h>

#include "base/err.h"

/* 0.3 is 0.3, and not 0.29999999999999999. */
#define JSON_TEXT_PRECISION JSON_REAL_PRECISION(15)

static inline void cleanup_json(json_t **j)
{
	json_decref(*j);
}

/* Also for taking over an argument: nothing but its end uses it then. */
#define _json_ __attribute__((cleanup(cleanup_json), unused))

/* Parses exactly one value. The caller owns *ret. */
int json_parse(const char *data, size_t len, json_t **ret, struct err *err);

/* Compact. Caller frees, with free() wherever jansson allocates. NULL only without memory. */
char *json_text(const json_t *j);

/* Compact with sorted keys: the form that is hashed. Caller frees. NULL only without memory. */
char *json_canonical(const json_t *j, size_t *ret_len);

/* Copies the string member `key` into dst. Absent: -ENOENT without touching *err. */
int json_get_text(const json_t *obj, const char *key, char *dst, size_t size, const char *code,
	struct err *err);

/*
 * An integer member within [min, max]. Absent: -ENOENT without touching *err.
 * Where the code is params.range, another type is params.type.
 */
int json_get_int(const json_t *obj, const char *key, int64_t min, int64_t max, int64_t *ret,
	const char *code, struct err *err);

/* A boolean member. Absent: -ENOENT without touching *err. */
int json_get_bool(const json_t *obj, const char *key, bool *ret, const char *code, struct err *err);

/* Fails, naming the first key of obj that is not in the table. */
int json_check_keys(const json_t *obj, const char *const *keys, size_t n, const char *what,
	const char *code, struct err *err);

/* json_object_set_new that treats a value that could not be made as no memory. */
int json_put(json_t *obj, const char *key, json_t *value);

/* The member's string, or fallback when absent or of another type. */
const char *json_text_or(const json_t *obj, const char *key, const char *fallback);
int64_t json_int_or(const json_t *obj, const char *key, int64_t fallback);
bool json_bool_or(const json_t *obj, const char *key, bool fallback);
