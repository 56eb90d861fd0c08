/* SPDX-License-Identifier: Apache-2.0 */
/*
 * litter.h: what a store still has when everybody is gone and recovery has swept: nothing, or it
 * would pile up with every death.
 */
#pragma once

#include <stdatomic.h>

/* Counts over all stores of a sweep, in memory that the workers share. */
struct litter {
	atomic_uint names; /* records that kept the name they had before they were used */
	atomic_uint marks; /* stores whose cgroup stands */
};

/* Looks at the store in `dir`; adds to `litter`. */
void litter_count(const char *dir, struct litter *litter);
