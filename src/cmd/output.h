/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What people and scripts see. Results go to stdout, everything else to
 * stderr; colour only on a terminal. With --json stdout gets objects alone,
 * each on one line, `v` first.
 */
#pragma once

#include <jansson.h>
#include <stdint.h>
#include <stdio.h>

#include "cmd/command.h"

#define OUTPUT_COLUMNS_MAX 8

enum paint { PAINT_NONE, PAINT_BOLD, PAINT_GOOD, PAINT_BAD, PAINT_WARN, PAINT_MAX };

/* Once, before anything is printed. */
void output_setup(const struct globals *g);

/* `text` in colour where f is a terminal that may have it: prefix and suffix to print around it. */
const char *output_paint(FILE *f, enum paint p);
const char *output_plain(FILE *f);

/* A line of progress on stderr, unless quiet: RFC 3339 first where that is no terminal. */
void output_progress(const char *fmt, ...) _printf_(1, 2);

/* True when progress may be rewritten in place. */
bool output_is_live(void);

/* Rewrites the live line; the next progress or the end clears it. Does nothing elsewhere. */
void output_live(const char *fmt, ...) _printf_(1, 2);

/* Adds `v` and prints the object on one line. Takes it. */
void output_json(json_t *object);

/*
 * Tells an error: as text on stderr, or with --json as an object on stdout.
 * rpc_code is JSON-RPC's number, 0 where there was none. Returns the exit
 * code that belongs to the reason.
 */
int output_error(const struct invocation *v, const struct err *err, int64_t rpc_code);

/* Rows of n columns, as wide as they need to be. Cells are borrowed; NULL prints as "-". */
struct table {
	size_t columns, rows, cap;
	char **cells;
};

void table_add(struct table *t, const char *const *cells);
void table_print(const struct table *t, FILE *f);
void table_close(struct table *t);

/* "14:03:20+0100" of an RFC 3339 time plus some milliseconds; "-" when it does not read. */
#define OUTPUT_TIME_SIZE 32
const char *output_local_time(const char *utc, uint64_t plus_ms, char *buf);

/* A JSON array of words as a command to copy: quoted for a shell where it must be. */
void output_argv(FILE *f, const json_t *argv);
