/* SPDX-License-Identifier: Apache-2.0 */
/* What the running kernel can do, found by asking it once. `mayhem doctor` prints this. */
#pragma once

#include <jansson.h>
#include <stdbool.h>

struct kernel {
	char release[65];
	char arch[65];
	char hostname[65];
	bool pidfs;	    /* pidfds have inodes of their own */
	bool clone3_cgroup; /* CLONE_INTO_CGROUP; filled in by launch, which alone clones */
	bool userns;	    /* user namespaces are there */
	int landlock;	    /* ABI, 0: none */
	bool sys_resource;  /* CAP_SYS_RESOURCE in our effective set */
};

void kernel_probe(struct kernel *ret);
json_t *kernel_to_json(const struct kernel *k);
