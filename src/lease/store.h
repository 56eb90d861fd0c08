/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Where leases lie: leases/<key>.log, and ended/<key>.log once they are at a
 * safe end. One writer per record: whoever holds the flock of its file, from
 * before the record has a name until its safe end. The lock decides who is at
 * work, not the pid: to be had means nobody is.
 */
#pragma once

#include <jansson.h>
#include <stdbool.h>

#include "base/err.h"
#include "lease/lease.h"
#include "os/cgroup.h"
#include "state/dir.h"
#include "state/record.h"

#define LEASE_SPARE_SIZE 32
#define LEASE_MEMBERS_MAX 40 /* top-level members of a lease */

struct lease_store {
	struct state_dir dir;
	int hostclaimsfd;   /* the host's one place for claims, -1: ours alone (said by doctor) */
	unsigned next_hint; /* where to begin looking for a free number */
	char boot_id[PROC_BOOT_ID_SIZE];
	uint64_t pidns, timens;
	char machine_id[33], hostname[65];
	struct cgroup_domain domain;
};

int lease_store_open(const char *path, bool make, struct lease_store *ret, struct err *err);
void lease_store_close(struct lease_store *s);

/* A record that we have locked. */
struct lease_file {
	int fd; /* flocked */
	struct record rec;
	struct lease_written {
		char name[24];
		char digest[33];
	} written[LEASE_MEMBERS_MAX]; /* what the record says, by digests: it is compared only */
	size_t n_written;
	char key[LEASE_KEY_SIZE];
	char spare[LEASE_SPARE_SIZE]; /* the name under which its blocks were made durable */
};

#define LEASE_FILE_INIT                                                                            \
	{                                                                                          \
		.fd = -1                                                                           \
	}

void lease_file_close(struct lease_file *f);

static inline void cleanup_lease_file(struct lease_file *f)
{
	lease_file_close(f);
}

#define _lease_file_ __attribute__((cleanup(cleanup_lease_file)))

/*
 * Makes a spare: allocated, written, synced, and its name durable. What a
 * record then needs is one durable line and no directory.
 */
int lease_spare_make(struct lease_store *s, char ret_name[static LEASE_SPARE_SIZE],
	struct err *err);

/*
 * The claim: locks a spare (named, or "" to make one), gives it the next free
 * id (native, the lease's key and id are filled in) or the lease's own key
 * (declared; -EEXIST when there is one, lease.in_use), and writes `pending`,
 * durable on return.
 */
int lease_file_create(struct lease_store *s, const char *spare, struct lease *l,
	struct lease_file *ret, struct err *err);

/*
 * Locks and reads a live record. -EBUSY: somebody alive is at work. -ENOENT:
 * none of that key. -ENODATA: claimed, and nothing was ever written. -EBADMSG:
 * damaged. -EPROTONOSUPPORT: newer than we are. ret_file is set as well when
 * the lock was had but the record did not read.
 */
int lease_file_open(struct lease_store *s, const char *key, struct lease_file *ret_file,
	struct lease *ret_lease, struct err *err);

/* Reads without the lock, from leases/ or else ended/. */
int lease_peek(const struct lease_store *s, const char *key, struct lease *ret, struct err *err);

/* 1 when somebody holds the record's lock, 0 when nobody does, -ENOENT. */
int lease_is_locked(const struct lease_store *s, const char *key);

/*
 * Appends what changed since the last write; durable on return. Checks the
 * rules of a lease first. At the end of a record observations are dropped
 * rather than the line refused.
 */
int lease_file_write(struct lease_store *s, struct lease_file *f, struct lease *l, struct err *err);

/* Moves a record at its safe end to ended/ and gives the spare name back. Needs no sync: recovery does it again. */
int lease_file_retire(struct lease_store *s, struct lease_file *f, struct err *err);

/* Keeps a record that does not read: leases/<name> becomes aside/<name>.<n>. */
int lease_set_aside(struct lease_store *s, const char *name, char *ret_kept, size_t size,
	struct err *err);

/* Calls fn with each key in leases/ (or ended/); a non-zero answer ends it. */
int lease_each(const struct lease_store *s, bool ended, int (*fn)(const char *key, void *arg),
	void *arg);

/* Keys, listed before they are worked on: a folder that changes under its reader may show a name twice. */
struct lease_keys {
	char (*list)[LEASE_KEY_SIZE];
	size_t n, capacity;
};

/* Adds those of leases/ or ended/. The caller frees keys->list, also after an error. */
int lease_keys_add(const struct lease_store *s, bool ended, struct lease_keys *keys);

/* Takes the name from a record in which nothing was ever written: its spare is one again. */
void lease_file_discard(struct lease_store *s, struct lease_file *f);

/* Gives records that lost their name in a crash their name again, and removes nothing. */
int lease_readopt_spares(struct lease_store *s);

/* Takes the spare names from records that have another and that nobody is at work on. */
void lease_drop_spare_names(struct lease_store *s);

/* Keeps the newest 10,000 of ended/ and nothing older than 30 days. Returns the highest number seen. */
unsigned lease_prune_ended(struct lease_store *s);

/* Collects up to n names of unused spares. Returns how many. */
size_t lease_find_spares(const struct lease_store *s, char (*ret)[LEASE_SPARE_SIZE], size_t n);
