/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Command lines: `--name VALUE`, `--name=VALUE`, flags, single letters, `--`.
 * Global options may stand anywhere, a command's own anywhere behind it. An
 * option is written in full; a wrong one is answered with the nearest.
 */
#pragma once

#include "cmd/command.h"

/* The options that every command takes. */
const struct option_entry *options_global(void);

/*
 * Takes argv apart, the program's name left out. ret->words points into argv,
 * whose order it changes. When nothing but options was given ret->command is
 * NULL. ret->g is as far as it was read also on failure, so that an error can
 * be told in JSON.
 */
int options_parse(int argc, char **argv, struct invocation *ret, struct err *err);
