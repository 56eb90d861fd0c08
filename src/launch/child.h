/* SPDX-License-Identifier: Apache-2.0 */
/* What the child does between its clone and its body or exec. Internal to launch. */
#pragma once

#include "launch/launch.h"

struct child_plan {
	const struct launch_spec *spec;
	const struct launch_journal *journal;
	const struct launch_record *rec;
	int gatefd, statusfd, linkfd, leaffd;
	const int *keep; /* sorted: what is not closed */
	size_t n_keep;
	pid_t launcher;
	int parent_pidfd; /* argv only: dies with its launcher */
	bool join_leaf;
	const char *const *paths; /* argv: candidates for the executable, NULL-ended */
};

_Noreturn void child_run(const struct child_plan *plan);
