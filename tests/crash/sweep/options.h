/* SPDX-License-Identifier: Apache-2.0 */
/*
 * options.h: the command line, read and checked.
 */
#pragma once

#include "plan.h"
#include "worker.h"

enum { ERRORS_MAX = 5 };

struct options {
	struct crew_setup setup;
	unsigned scenarios; /* a mask of 1 << index */
	struct plan_wish wish;
	int errors[ERRORS_MAX];
	bool one; /* only this point */
	struct point point;
	size_t random; /* 0: all points */
	uint64_t seed;
	unsigned workers;
	bool json;
	unsigned count; /* 1: only count; 2: list the calls too */
};

void options_free(struct options *options);

/* 0; 1: help was asked for and printed; -EINVAL: it does not read, said on stderr. */
int options_read(int argc, char **argv, struct options *ret);
