/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The framing of mayhem/1: JSON-RPC 2.0, one object a line. Splitting and
 * parsing alone; nothing here knows a method.
 */
#pragma once

#include <jansson.h>
#include <stdbool.h>
#include <stddef.h>

#include "base/buf.h"
#include "base/err.h"

#define FRAME_MAX (1u << 20) /* bytes of a line without its LF, both directions */
#define FRAME_PROTOCOL "mayhem/1"

#define RPC_PARSE_ERROR (-32700)
#define RPC_INVALID_REQUEST (-32600)
#define RPC_METHOD_NOT_FOUND (-32601)
#define RPC_INVALID_PARAMS (-32602)
#define RPC_INTERNAL_ERROR (-32603)
#define RPC_TASK_FAILED (-32000)
#define RPC_SAFETY_REFUSED (-32001)

enum frame_kind { FRAME_REQUEST, FRAME_NOTIFICATION, FRAME_RESPONSE };

struct frame {
	enum frame_kind kind;
	json_t *id;	    /* owned; NULL for a notification */
	const char *method; /* in doc */
	json_t *params;	    /* owned; an object */
	json_t *doc;	    /* owned */
};

void frame_free(struct frame *f);

/*
 * One line without its LF. On failure *ret_id is the id to answer to (owned,
 * null when none could be read) and *ret_code the error's number.
 */
int frame_parse(const char *line, size_t len, struct frame *ret, json_t **ret_id, int *ret_code,
	struct err *err);

/*
 * A lease that is too long for a frame, as it is sent then: without its
 * lists, and `shortened` says so. The record has them all. New reference.
 */
json_t *frame_shorten_lease(json_t *lease);

enum frame_next { FRAME_LINE, FRAME_NEED_MORE, FRAME_TOO_LONG };

struct frame_reader {
	struct buf in;
	size_t scanned; /* of in, without an LF */
	bool skipping;	/* in a line that was too long, up to its LF */
};

void frame_reader_init(struct frame_reader *r);
void frame_reader_free(struct frame_reader *r);

/*
 * The next line, borrowed until the next call. Blank lines are passed over.
 * FRAME_TOO_LONG is said once for each line that is.
 */
enum frame_next frame_reader_next(struct frame_reader *r, const char **ret_line, size_t *ret_len);
