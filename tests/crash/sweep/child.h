/* SPDX-License-Identifier: Apache-2.0 */
/*
 * child.h: becoming another program, the same way for the traced agent and for everything else.
 */
#pragma once

#include <sys/types.h>

/*
 * In a forked child: a session of its own, default signals, `stdfd` as 0, 1 and 2, nothing else
 * open, then the program. Never returns.
 */
_Noreturn void child_become(char *const argv[], const int stdfd[3]);
