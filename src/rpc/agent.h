/* SPDX-License-Identifier: Apache-2.0 */
/*
 * One agent session: mayhem/1 over stdin and stdout, from start to end of
 * file. One thread, one epoll loop; it never waits for a disk, a child or a
 * peer. Holders write, recoverers recover, clerks read.
 */
#pragma once

#include <stdbool.h>

#include "base/err.h"

enum role { /* a mask: what a session accepts */
	ROLE_PROC = 1 << 0,
	ROLE_FS = 1 << 1,
	ROLE_RES = 1 << 2,
	ROLE_NET = 1 << 3,
	ROLE_ENGINE = 1 << 4,
	ROLE_HOST = 1 << 5,
	ROLE_JOB = 1 << 6,
	ROLE_ALL = (1 << 7) - 1
};

struct agent_options {
	const char *state_dir;
	unsigned roles;
	const char *policy_file; /* NULL: none */
	const char *version;
};

/* "proc,fs" as a mask. Unknown names are an error that lists the known ones. */
int agent_parse_roles(const char *list, unsigned *ret, struct err *err);

/*
 * Serves until the end. *ret_code: 0, or 7 when something is dirty. An error
 * means that it could not start: config.policy (exit 3), else exit 8.
 */
int agent_serve(const struct agent_options *o, int *ret_code, struct err *err);
