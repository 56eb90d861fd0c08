/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The six steps of a fault: the interface that src/fault implements. A step
 * waits only in run_wait(), so that a holder notices its link, its agent, its
 * deadline and its signals whatever the fault is doing. Undo and verify work
 * from the record alone: any later process can run them.
 */
#pragma once

#include "lease/lease.h"
#include "lease/store.h"

enum effect { EFFECT_UNKNOWN, EFFECT_ABSENT, EFFECT_PARTIAL, EFFECT_PRESENT, EFFECT_MAX };

/* What was measured; numbers, not "done". */
struct observation {
	const char *metric; /* static: "process.stopped" */
	const char *unit;
	double value, asked, reached;
	enum effect effect;
	char detail[160];
};

struct fault_run {
	struct lease *lease;
	struct lease_store *store;
	struct lease_file *file; /* NULL when nothing may be written (check alone) */
	const struct fault_steps *steps;
	struct cgroup_domain *tools; /* where commands are launched: beneath their holder */
	bool live;		     /* by its holder; false: from the record, by recovery */
	bool rebooted;		     /* the record is of another boot: its volatile ops are void */
	int target_pidfd;	     /* of a live process target, else -1 */
	void *state;		     /* the steps' own; freed by steps->done */
	/* Waits. 0 when the time is over, -EINTR when the run is to end (never while undoing). */
	int (*wait)(struct fault_run *, uint64_t us);
	void *holder; /* whoever implements wait */
};

struct fault_steps {
	const char *id; /* fault id, or the executor's name for declared leases */
	/*
	 * Would it have an effect here? Changes nothing. Codes no_effect,
	 * resource_conflict, failed_to_apply, target_gone, target.*.
	 */
	int (*check)(struct fault_run *, struct err *);
	/* Prior state into the lease's undo ops, resources and verify probes; changes nothing. */
	int (*record)(struct fault_run *, struct err *);
	int (*inject)(struct fault_run *, struct err *);
	int (*observe)(struct fault_run *, struct observation *, struct err *);
	/* Idempotent; from the record alone. */
	int (*undo)(struct fault_run *, struct err *);
	int (*verify)(struct fault_run *, struct observation *, struct err *);
	/* Commands that mend it by hand, into lease->remedy, when it is dirty. */
	void (*remedy)(struct fault_run *);
	void (*done)(struct fault_run *);
};

/* Which steps undo this lease; NULL when this version has none. Given by whoever links src/fault. */
typedef const struct fault_steps *(*steps_finder)(const struct lease *);

static inline int run_wait(struct fault_run *run, uint64_t us)
{
	return run->wait(run, us);
}

/* Makes the lease durable as it stands: for faults that find their targets as they go. */
int run_save(struct fault_run *run, struct err *err);

const char *effect_name(enum effect e);

/* The shape `observation`; phase is before, during or after. */
json_t *observation_to_json(const struct observation *o, const char *phase);
