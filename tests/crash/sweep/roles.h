/* SPDX-License-Identifier: Apache-2.0 */
/*
 * roles.h: who a process of the scenario is, and what a recording run saw each of them do.
 *
 * The first process is the agent. A child is a newborn until it names itself by
 * prctl(PR_SET_NAME): only that call is believed, as a child starts with its parent's name. Its
 * calls are counted from birth, so the ones before the name belong to whichever role it takes.
 */
#pragma once

#include <stdbool.h>
#include <sys/types.h>

enum role {
	ROLE_AGENT,
	ROLE_HOLDER,
	ROLE_RECOVER,
	ROLE_CLERK,
	ROLE_WATCH,
	ROLE_TOOL,
	ROLE_PROBE,
	ROLE_SERVICE,
	ROLE_NEWBORN,
	ROLE_MAX
};

const char *role_name(enum role role);
bool role_parse(const char *name, enum role *ret);

/* Reads the name of `pid`. False: it has none of ours (yet), or is gone. */
bool role_read(pid_t pid, enum role *ret);

enum { CENSUS_PROCESSES_MAX = 24, CENSUS_CALLS_MAX = 4096 };

struct census_call {
	short nr;
	bool store; /* it names a file of the store, or writes to one */
};

struct census_process {
	enum role role;
	unsigned ordinal; /* among its role, by the order of naming; a newborn's is its birth */
	unsigned n_calls;
	struct census_call calls[CENSUS_CALLS_MAX];
};

/* By birth: process[0] is the agent. Flat, so that it can lie in memory shared between processes. */
struct census {
	unsigned n_processes;
	bool overflowed;
	struct census_process process[CENSUS_PROCESSES_MAX];
};

/* The birth of the `ordinal`-th process of `role`, or -1 where the recording had none. */
int census_birth_of(const struct census *census, enum role role, unsigned ordinal);
