/* SPDX-License-Identifier: Apache-2.0 */
/*
 * session.h: the controller's half of a scenario: what it says to the agent, and when.
 *
 * One request at a time, the next one after the answer, so that two runs ask the same of the agent
 * at the same point of its life. Nothing here waits; the caller polls.
 */
#pragma once

#include "target.h"

#include <stdbool.h>
#include <stddef.h>

enum step {
	STEP_END, /* of the table; the session then closes the agent's stdin */
	STEP_HANDSHAKE,
	STEP_INJECT,	   /* a native proc.pause on the target */
	STEP_RELEASE,	   /* lease.release */
	STEP_UNDO,	   /* task.execute, phase undo */
	STEP_AWAIT_TARGET, /* nothing is asked: the target has to run by itself */
};

enum { SCENARIO_STEPS_MAX = 6 };

struct scenario {
	const char *name, *about;
	bool orphan;	      /* the store first gets a lease whose agent and holder were killed */
	bool recover;	      /* the command is `recover`, not `serve`: there is no session */
	unsigned duration_ms; /* 0: left to the catalogue */
	enum step steps[SCENARIO_STEPS_MAX];
};

extern const struct scenario scenarios[];
extern const unsigned n_scenarios;

/* The index, or -1. */
int scenario_find(const char *name);

enum { SESSION_LINE_MAX = 256 * 1024, LEASE_ID_MAX = 64, SESSION_REFUSAL_MAX = 160 };

struct session {
	const struct scenario *scenario;
	struct target *target; /* borrowed */
	int infd, outfd;       /* owned: the agent's stdin and stdout; -1 when closed */
	unsigned step;
	unsigned asked; /* id of the request whose answer is awaited, 0: none */
	bool impatient; /* set by the caller: the target may not run before recover */
	bool held;	/* set by the caller: say nothing more for now */
	bool ended;	/* stdin was closed, or the agent's stdout was */
	bool injected;	/* the answer to the injection said ok */
	bool stopped;	/* and the target was stopped when it came */
	char refusal[SESSION_REFUSAL_MAX]; /* why the injection was not ok, "" else */
	char lease_id[LEASE_ID_MAX];	   /* "" until an answer named it */
	char *line;			   /* owned: what came of an answer so far */
	size_t n_line;
};

/* Takes over both descriptors. 0 or -ENOMEM (then they are closed). */
int session_begin(struct session *ret, const struct scenario *scenario, struct target *target,
	int infd, int outfd);

/* Says what can be said now. */
void session_advance(struct session *session);

/* Reads what came. */
void session_hear(struct session *session);

/* No more to say: closes the agent's stdin, goes on reading. */
void session_hang_up(struct session *session);

/* What is being waited for, for a message; NULL: nothing. */
const char *session_awaits(const struct session *session);

void session_free(struct session *session);
