/* SPDX-License-Identifier: Apache-2.0 */
/* Which steps do which fault. One table; a fault is an entry in src/catalogue and a file here. */
#pragma once

#include "lease/steps.h"

/* The steps of a native fault, or NULL: in the catalogue, but not executable by this version. */
const struct fault_steps *fault_find_native(const char *fault_id);

/*
 * The executor of a declared lease: by exact id first, then by family. NULL
 * when no executor knows the family.
 */
const struct fault_steps *fault_find_declared(const char *fault_id, const json_t *undo_ops);

/* Either, for a lease as recorded: what recovery asks. */
const struct fault_steps *fault_find_steps(const struct lease *l);

/* True when the executor runs commands of its controller's choice: needs capability shell_exec. */
bool fault_needs_shell_exec(const struct fault_steps *s);

/* True for ids that an executor or the catalogue knows by family ("proc", "mem" …). */
extern const char *const fault_families[];
size_t fault_families_n(void);
