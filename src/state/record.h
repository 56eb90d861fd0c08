/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A record: one file, allocated and synced before it is used, to which each
 * move is appended as one line with its own checksum:
 *
 *   {"format":"mayhem.lease/1","seq":3,"sha256":"…","body":{…}}
 *
 * A line is durable when record_append() returns. The last whole line counts;
 * a torn one after it is ignored and overwritten. Anything else that does not
 * read is -EBADMSG: the caller sets the file aside, nobody drops it. Later
 * lines carry only the top-level keys that changed; reading merges them.
 * One writer per record: whoever holds the flock of its file.
 */
#pragma once

#include <jansson.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

#include "base/err.h"

#define RECORD_CAPACITY (32u << 10)
#define RECORD_CAPACITY_MAX (4u << 20)
#define RECORD_RESERVE (4u << 10) /* kept free for the lines that end a record */

struct record {
	int fd;		 /* borrowed */
	uint64_t seq;	 /* of the last whole line, 0: none */
	size_t end;	 /* where the next line goes */
	size_t capacity; /* of the file */
	bool tail_dirty; /* something torn lies behind end */
};

/* Makes a file of that capacity, all zero, synced, flock not taken. -EEXIST when the name is taken. */
int record_create(int dirfd, const char *name, size_t capacity, int *ret_fd);

/*
 * Reads all lines of fd and merges them. format is the newest we write,
 * "name/N". -ENODATA: no line yet. -EPROTONOSUPPORT: written by a newer
 * version. -EBADMSG: damaged. ret_rec and ret_body (either may be NULL) are
 * set on success; ret_rec also with -ENODATA.
 */
int record_read(int fd, const char *format, struct record *ret_rec, json_t **ret_body,
	struct err *err);

/* The same of a store that belongs to somebody else, whose its records must be. */
int record_read_of(int fd, uid_t owner, const char *format, struct record *ret_rec,
	json_t **ret_body, struct err *err);

/* The pure part of it: used by the fuzzer as well. */
int record_parse(const char *data, size_t len, const char *format, struct record *ret_rec,
	json_t **ret_body, struct err *err);

/* A line with this body takes no more bytes than that. 0 without memory. */
size_t record_line_size(const char *format, const json_t *body);

/*
 * Appends one line; durable on return. reserve bytes must stay free behind it,
 * else -EFBIG and nothing is written.
 */
int record_append(struct record *rec, const char *format, const json_t *body, size_t reserve,
	struct err *err);
