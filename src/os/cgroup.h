/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Cgroups as a kill domain: a leaf per launch that can be ended as a whole.
 * Found out once: v2 with cgroup.kill, v2 by freezing, the v1 freezer, or
 * none. Every leaf is `mayhem/<store>/<nonce>`; nothing of anybody else is
 * ever made, moved or removed.
 */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

#include "base/err.h"
#include "os/mounts.h"

enum cgroup_kill {
	CGROUP_KILL_NONE,
	CGROUP_KILL_V2,
	CGROUP_KILL_V2_FREEZE,
	CGROUP_KILL_V1_FREEZER,
	CGROUP_KILL_MAX
};
enum cgroup_mode {
	CGROUP_MODE_NONE,
	CGROUP_MODE_V1,
	CGROUP_MODE_V2,
	CGROUP_MODE_HYBRID,
	CGROUP_MODE_MAX
};

#define CGROUP_PATH_SIZE 256

struct cgroup_domain {
	enum cgroup_kill kill;
	enum cgroup_mode mode;
	char mount[CGROUP_PATH_SIZE]; /* where the hierarchy is mounted */
	char base
		[CGROUP_PATH_SIZE]; /* "/mayhem/<store>" or "<own>/mayhem/<store>", beneath the mount */
	int basefd;		    /* of mount + base; -1 until the first leaf */
	struct mounts_cgroup mounts; /* as they were when it was probed */
};

#define CGROUP_DOMAIN_INIT                                                                         \
	{                                                                                          \
		.basefd = -1                                                                       \
	}

/* Looks; changes nothing. A host without any is not an error: kill is NONE. */
int cgroup_domain_probe(const char *store, struct cgroup_domain *ret, struct err *err);
void cgroup_domain_close(struct cgroup_domain *d);

/* Makes a fresh leaf; path is relative to the mount, as it goes into records. */
int cgroup_leaf_make(struct cgroup_domain *d, const char *nonce, char *ret_path, size_t size,
	int *ret_fd, struct err *err);
bool cgroup_leaf_exists(const struct cgroup_domain *d, const char *nonce);
int cgroup_leaf_open(const struct cgroup_domain *d, const char *nonce, int *ret_fd);

/* For hierarchies that CLONE_INTO_CGROUP cannot enter: the (held) process moves itself. */
int cgroup_leaf_join_self(int leaffd);

/* Every process in it gets SIGKILL; loops where the kernel has no cgroup.kill. */
int cgroup_leaf_kill(const struct cgroup_domain *d, int leaffd);

/*
 * Moves everybody out of it, to where `mayhem` itself lies: what a command left
 * running on purpose is no longer ours.
 */
int cgroup_leaf_let_go(const struct cgroup_domain *d, int leaffd);

/* 1 when some process lives in it, 0 when none, -errno. */
int cgroup_leaf_populated(const struct cgroup_domain *d, int leaffd);

/* Waits until nobody lives in it. 0, or -ETIMEDOUT. */
int cgroup_leaf_wait_empty(const struct cgroup_domain *d, int leaffd, uint64_t timeout_ms);

/* Removes an empty leaf. -EBUSY while populated; absent is 0. */
int cgroup_leaf_remove(const struct cgroup_domain *d, const char *nonce);

/*
 * Removes `mayhem/<store>` and `mayhem` themselves where they are empty. For
 * the last one out; failing is normal.
 */
void cgroup_domain_prune(const struct cgroup_domain *d);

/* Moves the caller out of its leaf into the root of the hierarchy, so that the leaf can be removed. */
int cgroup_leave_self(const struct cgroup_domain *d);

/* Calls fn with the name of each leaf of this store. */
int cgroup_each_leaf(const struct cgroup_domain *d, int (*fn)(const char *nonce, void *arg),
	void *arg);

/* Calls fn with each process in the cgroup at leaffd and beneath it. */
int cgroup_each_process(int leaffd, int (*fn)(pid_t pid, void *arg), void *arg);

/* Opens any cgroup of the unified (or, v1, freezer) hierarchy by its path, to read from it. */
int cgroup_open_path(const struct cgroup_domain *d, const char *path, int *ret_fd);

/* True when the process is frozen, by its own cgroup or one above. -errno when it cannot be told. */
int cgroup_process_frozen(const struct cgroup_domain *d, pid_t pid, bool *ret);

const char *cgroup_kill_name(enum cgroup_kill kill);
const char *cgroup_mode_name(enum cgroup_mode mode);
