/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Every reason code there is, from either program: what it means, what to do,
 * and the exit code that belongs to it. `mayhem explain` prints it; a test
 * holds it against the sources and the protocol's document.
 */
#pragma once

#include <stdint.h>

struct reason {
	const char *code;
	int exit;
	const char *meaning; /* two or three plain sentences */
	const char *remedy;
};

/* Sorted by code, ended by an entry without one. */
extern const struct reason reasons[];

const struct reason *reason_find(const char *code);

/* The exit code of a reason; an unknown one goes by the number of its JSON-RPC error. */
int reason_exit(const char *code, int64_t rpc_code);
