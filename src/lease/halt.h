/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The halt: a file that anybody who may write the state directory (or
 * /run/mayhem/halt, for every store of the host) can put there. Live leases
 * end, new ones are refused, until it is taken away.
 */
#pragma once

#include "lease/store.h"

#define HALT_FILE "halt"
#define HALT_HOST_DIR "/run/mayhem"

/* True when a halt counts for this run: the store's, the run's, or the host's. */
bool halt_is_on(const struct lease_store *s, const char *run_id);

/* Who, when, why; for one run alone when run_id is not NULL. Durable. */
int halt_write(struct lease_store *s, const char *run_id, const char *by, const char *reason,
	struct err *err);

/* Takes it away. -ENOENT when there was none. The host's own file is not ours to remove, and is reported. */
int halt_clear(struct lease_store *s, const char *run_id, struct err *err);

/* "halt", or "halt.<run>"; false when the run's name cannot be a file's. */
bool halt_name(const char *run_id, char *ret, size_t size);
