/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The state directory: opened once, by descriptor, after it was checked that
 * nobody else can write there. Holds the store's own random name, which every
 * mark that Mayhem leaves on a host carries.
 */
#pragma once

#include <limits.h>
#include <stdbool.h>
#include <sys/types.h>

#include "base/err.h"

#define STATE_STORE_SIZE 33

struct state_dir {
	char path[PATH_MAX];	      /* as resolved, for messages and claims */
	char store[STATE_STORE_SIZE]; /* 128 random bits, made once */
	uid_t owner;		      /* whose it is: ours, or anybody's when root only looks */
	int fd;
	int leasesfd, endedfd, claimsfd, asidefd;
	bool is_volatile; /* on tmpfs or ramfs: gone with the boot */
};

#define STATE_DIR_INIT                                                                             \
	{                                                                                          \
		.fd = -1, .leasesfd = -1, .endedfd = -1, .claimsfd = -1, .asidefd = -1             \
	}

/* The default place: MAYHEM_STATE_DIR, /var/lib/mayhem for root, else the user's own. */
int state_dir_default(char *ret, size_t size, struct err *err);

/*
 * Opens it, making what is missing when `make` is set (else -ENOENT). Refused:
 * another owner, a mode wider than 0700, a link, a parent that others may
 * write (sticky excepted), NFS, a store.json that does not read.
 */
int state_dir_open(const char *path, bool make, struct state_dir *ret, struct err *err);

/* The same to look only, never made: root may look at what belongs to others. */
int state_dir_open_to_read(const char *path, struct state_dir *ret, struct err *err);
void state_dir_close(struct state_dir *d);
