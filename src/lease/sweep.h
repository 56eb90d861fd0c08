/* SPDX-License-Identifier: Apache-2.0 */
/* Marks of our store that belong to nobody alive: reported, and removed when asked. */
#pragma once

#include "lease/store.h"

/*
 * Appends {kind, name, removed} for each orphan to list. Empty leaves without
 * an owner are always removed and not reported: they hold nothing.
 */
int lease_sweep(struct lease_store *s, bool remove, json_t *list);
