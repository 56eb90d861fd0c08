/* SPDX-License-Identifier: Apache-2.0 */
/*
 * tracer.h: follows a command and everything it starts, counts their system calls, and interferes
 * at one of them.
 *
 * Whoever is neither the victim nor still nameless runs without stops at its calls. Once the point
 * was acted on, all survivors are let go and run at full speed, untraced; only an error that goes
 * on (ACTION_FAIL_ON) keeps the victim traced. Nothing is killed when the tracer ends.
 *
 * Letting go interrupts what a survivor waits in, as SIGSTOP and SIGCONT would: calls that
 * signal(7) says are never restarted, epoll_wait among them, return EINTR once.
 */
#pragma once

#include "plan.h"
#include "roles.h"

#include <stdbool.h>
#include <sys/types.h>

enum { TRACEES_MAX = 48 };

struct tracee {
	pid_t pid;   /* 0: ended */
	bool traced; /* false once let go */
	unsigned birth;
	enum role role;
	unsigned ordinal;
	bool counting; /* the agent's own calls begin at its exec */
	unsigned calls;
	long nr;	   /* of the latest */
	bool names_itself; /* in prctl(PR_SET_NAME) */
	bool failing;	   /* in a call that we answer */
	bool condemned;	   /* we sent SIGKILL */
};

struct tracer {
	const struct point *point;     /* borrowed; NULL: nobody is the victim */
	const char *const *store_dirs; /* borrowed, NULL at the end */
	struct census *
		census; /* borrowed; where to record, or NULL: the victim, or all where there is none */
	int victim_birth; /* who is the victim before it has a name; -1: nobody */
	struct tracee tracees[TRACEES_MAX];
	unsigned n_tracees, n_traced, n_by_role[ROLE_MAX];
	bool letting_go, acted;
	long acted_on;	  /* number of the call, once acted */
	int fault_signal; /* a process of the scenario died of this, not by us; 0: none */
	enum role fault_role;
};

void tracer_begin(struct tracer *ret, const struct point *point, const struct census *expected,
	const char *const *store_dirs, struct census *record);

/* Starts `argv` with these streams, traced from its first call. 0 or -errno. */
int tracer_spawn(struct tracer *tracer, char *const argv[], const int stdfd[3], pid_t *ret_pid);

/* One status from waitpid(-1, …, __WALL). */
void tracer_take(struct tracer *tracer, pid_t pid, int status);

/* SIGKILL to all that are traced and to all that they were just giving birth to; waits for them. */
void tracer_kill_all(struct tracer *tracer);

/* Detaches from all, with nothing left stopped that was not stopped by others. */
void tracer_let_go(struct tracer *tracer);
