/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The error object: one fixed-size value that says what failed, why, and how
 * to mend it. It owns nothing and allocates nothing, so a child may fill it
 * and send it through a pipe. Every fallible function above the system-call
 * wrappers takes one last, returns 0 or a negative errno, and leaves its
 * ret_* arguments untouched on failure.
 */
#pragma once

#include <stdbool.h>

#include "base/cleanup.h"

struct err {
	char code[32];	  /* stable reason code, "area.thing"; "" means no error */
	char stage[24];	  /* where: "open", "claim", "inject" … */
	char text[384];	  /* names the thing and the reason, for people */
	char remedy[256]; /* what to do about it, "" if there is nothing to say */
	int errnum;	  /* positive errno, 0 when no system call was involved */
};

/*
 * Fills *err (which may be NULL) and returns -errnum, or -EINVAL when errnum
 * is 0, so that `return err_set(…)` fails. The text of errnum is appended to
 * the message when it is not 0.
 */
int err_set(struct err *err, const char *code, int errnum, const char *stage, const char *fmt, ...)
	_printf_(5, 6);

/* Adds or replaces the remedy. */
void err_remedy(struct err *err, const char *fmt, ...) _printf_(2, 3);

/* True when *err carries this code. */
bool err_is(const struct err *err, const char *code);
