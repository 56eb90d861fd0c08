/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A process known before it runs and ended with proof. Every process that
 * Mayhem starts goes through here: it is named by a random nonce, put into a
 * cgroup leaf of that name where the host has one, held at a gate until its
 * launcher has written down what must be durable, known by its exact
 * identity, and stopped with proof of death. Knows no faults, leases, drills.
 */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <jansson.h>

#include "base/err.h"
#include "ident/process.h"
#include "os/cgroup.h"

struct pass;	 /* a claimed right to one launch; NULL until there is an admission layer */
struct boundary; /* a flat plan of what the child may see; NULL: the host's view */

enum launch_kind {
	LAUNCH_HOLDER,
	LAUNCH_RECOVERER,
	LAUNCH_WATCHER,
	LAUNCH_CLERK, /* reads or prepares the store for an agent that must not wait for a disk */
	LAUNCH_SERVICE,
	LAUNCH_PROBE,
	LAUNCH_TOOL,
	LAUNCH_KIND_MAX
};

enum launch_mechanism {
	LAUNCH_MECH_NONE,
	LAUNCH_MECH_CGROUP,
	LAUNCH_MECH_PROCESS_GROUP,
	LAUNCH_MECH_MAX
};

enum launch_dim { /* a mask */
	LAUNCH_DIM_PROCESS_TREE = 1 << 0,
	LAUNCH_DIM_WALL_CLOCK = 1 << 1,
	LAUNCH_DIM_ALL = LAUNCH_DIM_PROCESS_TREE | LAUNCH_DIM_WALL_CLOCK
};

#define LAUNCH_NONCE_SIZE 33
#define LAUNCH_CGROUP_SIZE 256

/* Flat; embedded by whoever started it in its own record. */
struct launch_record {
	char nonce[LAUNCH_NONCE_SIZE];
	char cgroup
		[LAUNCH_CGROUP_SIZE]; /* relative to the mount; "" where there is no kill domain */
	struct proc_identity id;      /* pid 0 until known */
	enum launch_mechanism mechanism;
	unsigned required, enforced, degraded; /* masks of enum launch_dim */
	uint64_t deadline_boottime_ms;	       /* 0: none */
};

/* Each call returns when the fact is durable. Launch never opens these files itself. */
struct launch_journal {
	void *self;
	/*
	 * In the held child, once the gate is open: the exclusive claim that
	 * makes this launch the only one of its reservation. NULL: a tool or
	 * probe, under a holder or a session and ended with it.
	 */
	int (*claim)(void *self, const struct launch_record *, struct err *);
	/* In the parent while the child is held. NULL: the body writes it before its first effect. */
	int (*identity)(void *self, const struct launch_record *, struct err *);
};

/* In the child, no exec. What it returns is the exit code. */
typedef int (*launch_body)(void *arg, int linkfd, const struct launch_record *rec);

struct launch_spec {
	enum launch_kind kind;
	struct cgroup_domain *domain; /* borrowed */
	launch_body body;	      /* either this */
	void *arg;
	char *const *argv, *const *envp; /* or these; argv[0] is looked for in envp's PATH */
	int cwdfd;			 /* -1: as the launcher's */
	int stdfd[3];			 /* -1: /dev/null (argv) or closed (body) */
	const int *keepfds;		 /* everything else is closed in the child, first of all */
	size_t n_keepfds;
	bool outlives; /* argv: not killed by the death of its launcher */
	unsigned required;
	uint64_t deadline_boottime_ms;
	const struct pass *pass;
	const struct boundary *plan;
};

/* The caller owns it; launched_close() gives up the descriptors and leaves the process alone. */
struct launched {
	struct launch_record rec;
	int pidfd;
	int linkfd;   /* a body's: packets of launch/link.h; -1 for argv */
	int gatefd;   /* -1 once opened */
	int statusfd; /* argv only: closed by a successful exec */
	int leaffd;   /* flocked as long as the launch may live: what the sweep looks at */
};

#define LAUNCHED_INIT                                                                              \
	{                                                                                          \
		.pidfd = -1, .linkfd = -1, .gatefd = -1, .statusfd = -1, .leaffd = -1              \
	}

struct launch_end {
	bool dead;	/* proven: exited, and its cgroup empty and removed where it has one */
	bool escalated; /* it did not go by itself */
	bool reaped;	/* it was our child */
	int code, signo;
	unsigned n_survivors;
	struct proc_identity survivors[8];
};

/* Clones the child, held at its gate. The caller must have one thread. */
int launch_hold(const struct launch_spec *spec, const struct launch_journal *journal,
	struct launched *ret, struct err *err);

/*
 * Opens the gate. For argv it returns when the exec has happened, else with
 * stage and errno of what failed. For a body it does not wait.
 */
int launch_go(struct launched *l, struct err *err);

/* Finds a process that another launcher started. pidfd is set when OWNED or SAME. */
int launch_adopt(const struct launch_record *rec, struct launched *ret,
	enum ident_verdict *ret_verdict, struct err *err);

/*
 * TERM and CONT, up to grace_ms for it to go, then the whole cgroup is
 * killed; waits until it is empty, reaps, removes the leaf. Not proven dead:
 * -ETIMEDOUT with the survivors named.
 */
int launch_stop(struct launched *l, struct cgroup_domain *domain, uint64_t grace_ms,
	struct launch_end *ret, struct err *err);

/* For a process seen to have exited: reaps it and removes its leaf. Never waits. */
void launch_finish(struct launched *l, const struct cgroup_domain *domain, struct launch_end *ret);

void launched_close(struct launched *l);

/* In a leaf of some store of Mayhem's, whoever started it; where there are no leaves, by its name. */
bool launch_is_mayhems(pid_t pid, const char *comm);

/* An agent's name, or one that a child of the launch layer gives itself. */
bool launch_is_name(const char *comm);

/*
 * Moves the caller into a fresh leaf of its own. For a launcher whose children
 * die at birth: the kernel kills a newborn when its launcher's cgroup and the
 * one it is cloned into differ in how often they were killed.
 */
int launch_move_self(struct cgroup_domain *domain, char ret_nonce[static LAUNCH_NONCE_SIZE],
	struct err *err);

/* Out of it again, and it is removed: for the end of such a launcher. */
void launch_move_back(const struct cgroup_domain *domain, const char *nonce);

/* Whether the kernel can clone into a cgroup. Asks without starting anything. */
bool launch_can_enter_cgroup(void);

const char *launch_mechanism_name(enum launch_mechanism m);

/* The shape `holder` of the lease: identity and what is enforced. */
json_t *launch_record_to_json(const struct launch_record *rec);
int launch_record_from_json(const json_t *j, struct launch_record *ret, struct err *err);
