/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A byte queue in a mapping of its own: bounded, grown by doubling, and not
 * copied into children (MADV_DONTFORK), so that neither the size nor the
 * content of what a peer sent reaches a holder.
 */
#pragma once

#include <stddef.h>

struct buf {
	char *data; /* the first unread byte is data[head] */
	size_t head, len, capacity, max;
};

/* Nothing is mapped before the first byte. */
void buf_init(struct buf *b, size_t max);
void buf_free(struct buf *b);

/* Room for n more bytes at the end: where to write them, or NULL when max or memory forbid. */
char *buf_reserve(struct buf *b, size_t n);
void buf_commit(struct buf *b, size_t n);

/* All of it or nothing: -ENOBUFS, -ENOMEM. */
int buf_append(struct buf *b, const void *data, size_t n);

static inline const char *buf_peek(const struct buf *b)
{
	return b->data + b->head;
}

/* Takes n bytes from the front. */
void buf_consume(struct buf *b, size_t n);
