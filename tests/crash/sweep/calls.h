/* SPDX-License-Identifier: Apache-2.0 */
/*
 * calls.h: the system calls a store is written with, and which failure each may be given.
 */
#pragma once

#include "regs.h"

#include <stdbool.h>

/* The call's name, or "#NR" in `buffer` where the table has none. */
const char *call_name(long nr, char buffer[16]);

/*
 * Does the call stopped at its entry reach a file at or beneath one of `dirs` (absolute paths
 * without links, NULL at the end)? Descriptors are looked up in /proc, paths are read from the
 * memory of the process.
 */
bool call_is_store(pid_t pid, const struct call_stop *stop, const char *const *dirs);

/*
 * May the call fail with `error` (positive)? A call on the store may fail with any of the five:
 * what a disk, a quota or a server of files answers is not ours to narrow down. Other calls fail
 * only as their manual page says.
 */
bool call_can_fail(long nr, int error, bool store);

/* Whether the process comes back from it at all: there is no exit of exit_group. */
bool call_returns(long nr);

const char *error_name(int error);
bool error_parse(const char *name, int *ret);
