/* SPDX-License-Identifier: Apache-2.0 */
#include "base/buf.h"

#include <errno.h>
#include <string.h>
#include <sys/mman.h>

#define BUF_FIRST (64u << 10)

void buf_init(struct buf *b, size_t max)
{
	memset(b, 0, sizeof(*b));
	b->max = max;
}

void buf_free(struct buf *b)
{
	if (b->data)
		munmap(b->data, b->capacity);
	buf_init(b, b->max);
}

static int grow(struct buf *b, size_t need)
{
	size_t capacity = b->capacity ? b->capacity : BUF_FIRST;
	void *p;

	while (capacity < need)
		capacity *= 2;
	if (b->data)
		p = mremap(b->data, b->capacity, capacity, MREMAP_MAYMOVE);
	else
		p = mmap(NULL, capacity, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1,
			0);
	if (p == MAP_FAILED)
		return -ENOMEM;
	madvise(p, capacity, MADV_DONTFORK);
	b->data = p;
	b->capacity = capacity;
	return 0;
}

char *buf_reserve(struct buf *b, size_t n)
{
	if (b->len + n > b->max)
		return NULL;
	if (b->head && b->head + b->len + n > b->capacity) {
		memmove(b->data, b->data + b->head, b->len);
		b->head = 0;
	}
	if (b->len + n > b->capacity && grow(b, b->len + n) < 0)
		return NULL;
	return b->data + b->head + b->len;
}

void buf_commit(struct buf *b, size_t n)
{
	b->len += n;
}

int buf_append(struct buf *b, const void *data, size_t n)
{
	char *at;

	if (n == 0)
		return 0;
	if (b->len + n > b->max)
		return -ENOBUFS;
	at = buf_reserve(b, n);
	if (!at)
		return -ENOMEM;
	memcpy(at, data, n);
	b->len += n;
	return 0;
}

void buf_consume(struct buf *b, size_t n)
{
	b->head += n;
	b->len -= n;
	if (b->len == 0)
		b->head = 0;
}
