/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The lease: one fault on one target, with an owner, an end, and everything
 * that undoing needs. A value; who may write it and where is lease/store.h.
 */
#pragma once

#include <jansson.h>
#include <stdbool.h>
#include <stdint.h>

#include "base/err.h"
#include "catalogue/catalogue.h"
#include "launch/launch.h"
#include "state/machine.h"

#define LEASE_FORMAT "mayhem.lease/1"
#define LEASE_KEY_SIZE 40   /* "l-00000001", or "d-" and 32 hex */
#define LEASE_ID_SIZE 80    /* a declared lease keeps its controller's id */
#define LEASE_TEXT_SIZE 256 /* run ids, owners, fault ids */
#define LEASE_OBSERVATIONS_MAX 24

enum lease_state {
	LEASE_PENDING,	 /* claimed; nothing was changed yet */
	LEASE_ACTIVE,	 /* undo is on disk; the change may have been made */
	LEASE_RELEASING, /* being undone */
	LEASE_RELEASED,	 /* undone, and looked at */
	LEASE_EXPIRED,	 /* never took effect, or was surrendered */
	LEASE_ORPHANED,	 /* its holder is gone; recovery has it */
	LEASE_DIRTY,	 /* not undone, or not proven: notes and remedy say what remains */
	LEASE_STATE_MAX
};

enum lease_end {
	LEASE_END_NONE,
	LEASE_END_NORMAL,
	LEASE_END_DEADLINE,
	LEASE_END_HALTED,
	LEASE_END_CANCELLED,
	LEASE_END_AGENT_LOST,
	LEASE_END_RECOVERY,
	LEASE_END_REBOOT,
	LEASE_END_TARGET_GONE,
	LEASE_END_KEPT_FAULTED,
	LEASE_END_FAILED_TO_APPLY,
	LEASE_END_RESOURCE_CONFLICT,
	LEASE_END_NO_EFFECT,
	LEASE_END_MANUAL,
	LEASE_END_MAX
};

struct lease {
	char key[LEASE_KEY_SIZE];
	char id[LEASE_ID_SIZE];
	char run_id[LEASE_TEXT_SIZE];
	char fault_id[LEASE_TEXT_SIZE];
	char owner[LEASE_TEXT_SIZE];	   /* who may end and extend it */
	char owner_agent[LEASE_TEXT_SIZE]; /* as the controller calls itself; never compared */
	bool declared;			   /* brought its own undo ops; executors act on them */
	enum undo_kind undo_kind;
	enum lease_state state;
	enum lease_end end;
	bool survive;	     /* outlives its session */
	int64_t duration_ms; /* -1: none, ends by its ttl */
	uint64_t ttl_ms;
	uint64_t deadline_boottime_ms;
	uint64_t created_ms, injected_ms, released_ms; /* UTC, 0: not yet */
	char boot_id[PROC_BOOT_ID_SIZE];
	uint64_t pidns, timens;
	char machine_id[33], hostname[65];
	char verified_by[64];
	char notes[512];  /* why it is dirty, what remains */
	unsigned dropped; /* observations that no longer fitted */
	struct launch_record holder;
	json_t *target;	       /* a process, container …, or null for declared leases */
	json_t *targets;       /* node ids of the controller */
	json_t *params;	       /* checked */
	json_t *undo_ops;      /* [{op, args, volatile, idempotent}] */
	json_t *verify_probes; /* [{probe, args, expect_present}] */
	json_t *resources;     /* keys of what it touches exclusively */
	json_t *observations;
	json_t *remedy; /* list of argv */
};

extern const struct state_machine lease_machine;

/* Makes all JSON members empty. A lease that was initialised must be freed. */
int lease_init(struct lease *l);
void lease_free(struct lease *l);

static inline void cleanup_lease(struct lease *l)
{
	lease_free(l);
}

#define _lease_ __attribute__((cleanup(cleanup_lease)))

static inline bool lease_is_safe(const struct lease *l)
{
	return l->state == LEASE_RELEASED || l->state == LEASE_EXPIRED;
}

/* Checked move; stamps injected_ms and released_ms where they belong. */
int lease_move(struct lease *l, enum lease_state to, struct err *err);

/* The rules of a lease, each by name: id form, undo before active, notes when dirty, order of times … */
int lease_check(const struct lease *l, struct err *err);

/* Whole, in the shape of the protocol. New reference. */
json_t *lease_to_json(const struct lease *l);

/* Strict: what a record holds. On failure *ret is untouched. */
int lease_from_json(const char *key, const json_t *j, struct lease *ret, struct err *err);

/*
 * The same of a lease that has no id yet: as an agent hands it to its holder,
 * which inherits no JSON values.
 */
int lease_from_text(const char *key, const char *text, struct lease *ret, struct err *err);

/* "l-" and eight digits. */
bool lease_id_is_native(const char *id);

/* The key of a declared lease: "d-" and 32 hex of SHA-256 over run_id, NUL, id. */
void lease_declared_key(const char *run_id, const char *id, char ret[static LEASE_KEY_SIZE]);

/* Appends an observation, dropping the oldest beyond the limit. Takes the reference. */
int lease_add_observation(struct lease *l, json_t *observation);

/* One entry of undo_ops: args is an object of texts and is taken over. */
int lease_add_undo(struct lease *l, const char *op, json_t *args, bool is_volatile);

/* Adds an argv (NULL-ended) to the remedy. */
int lease_add_remedy(struct lease *l, const char *const *argv);

const char *lease_end_name(enum lease_end e);
