/* SPDX-License-Identifier: Apache-2.0 */
/* Where the cgroup hierarchies are mounted, from /proc/self/mountinfo. */
#pragma once

#include <stdbool.h>

#define MOUNTS_PATH_SIZE 256

struct mounts_cgroup {
	char v2[MOUNTS_PATH_SIZE];	/* "" when there is none */
	char freezer[MOUNTS_PATH_SIZE]; /* v1 freezer, "" when there is none */
	bool v1_controllers;		/* some v1 controller is mounted */
	char v1_list[256];		/* their names, "cpu,memory,…" */
};

/* Mount points with blanks or other escapes are passed over: cgroups are never mounted there. */
int mounts_find_cgroup(struct mounts_cgroup *ret);
