/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A list of free blocks for each size: steps of 16 bytes for the small ones of
 * which JSON is made, powers of two above. All are cut from large mappings.
 */
#include "base/arena.h"

#include <jansson.h>
#include <stdbool.h>
#include <stdint.h>
#include <string.h>
#include <sys/mman.h>

#define HEADER 8 /* the class; jansson needs alignment for pointers and doubles only */
#define STEP 16
#define SMALL_MAX 1024
#define N_SMALL (SMALL_MAX / STEP)
#define LARGE_MAX (32u << 10)
#define N_CLASSES (N_SMALL + 6) /* 16 … 1024 by steps; 2, 4, 8, 16, 32 KiB; own mapping */
#define CLASS_MAPPED (N_CLASSES - 1)
#define CHUNK (64u << 10)

struct block {
	uint64_t class;
	struct block *next; /* while it is free */
};

/* In front of each mapping. */
struct mapping {
	struct mapping *next, *previous;
	size_t size;
	uint64_t unused; /* what is behind stays aligned */
};

static struct arena {
	struct block *free_blocks[N_CLASSES];
	struct mapping *mappings;
	char *at;
	size_t left;
	bool used, inherited; /* inherited: a child's own children may have it */
} arena;

static void *map(size_t size)
{
	struct mapping *m = mmap(NULL, size + sizeof(*m), PROT_READ | PROT_WRITE,
		MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);

	if (m == MAP_FAILED)
		return NULL;
	if (!arena.inherited)
		madvise(m, size + sizeof(*m), MADV_DONTFORK);
	*m = (struct mapping){.next = arena.mappings, .size = size + sizeof(*m)};
	if (arena.mappings)
		arena.mappings->previous = m;
	arena.mappings = m;
	return m + 1;
}

static void unmap(void *p)
{
	struct mapping *m = (struct mapping *)p - 1;

	if (m->previous)
		m->previous->next = m->next;
	else
		arena.mappings = m->next;
	if (m->next)
		m->next->previous = m->previous;
	munmap(m, m->size);
}

static unsigned class_of(size_t need)
{
	unsigned c = N_SMALL;

	if (need <= SMALL_MAX)
		return (unsigned)((need + STEP - 1) / STEP) - 1;
	for (size_t size = 2 * SMALL_MAX; size < need; size *= 2)
		c++;
	return c;
}

static size_t class_size(unsigned class)
{
	return class < N_SMALL ? (size_t)(class + 1) * STEP
			       : (size_t)(2 * SMALL_MAX) << (class - N_SMALL);
}

static struct block *cut(unsigned class)
{
	size_t size = class_size(class);
	struct block *b;

	if (arena.left < size) {
		/* What is left of the old chunk is lost: less than one block of this class. */
		char *fresh = map(CHUNK - sizeof(struct mapping));

		if (!fresh)
			return NULL;
		arena.at = fresh;
		arena.left = CHUNK - sizeof(struct mapping);
	}
	b = (struct block *)(void *)arena.at;
	arena.at += size;
	arena.left -= size;
	return b;
}

static void *arena_alloc(size_t size)
{
	unsigned class = CLASS_MAPPED;
	struct block *b;

	if (size > SIZE_MAX / 2)
		return NULL;
	if (size + HEADER > LARGE_MAX) {
		b = map(size + HEADER);
	} else {
		class = class_of(size + HEADER);
		b = arena.free_blocks[class];
		if (b)
			arena.free_blocks[class] = b->next;
		else
			b = cut(class);
	}
	if (!b)
		return NULL;
	b->class = class;
	return (char *)b + HEADER;
}

void *arena_calloc(size_t size)
{
	void *p = arena_alloc(size);

	if (p)
		memset(p, 0, size);
	return p;
}

void arena_free(void *p)
{
	struct block *b;

	if (!p)
		return;
	b = (struct block *)(void *)((char *)p - HEADER);
	if (b->class == CLASS_MAPPED) {
		unmap(b);
		return;
	}
	b->next = arena.free_blocks[b->class];
	arena.free_blocks[b->class] = b;
}

void arena_use(void)
{
	arena.used = true;
	json_set_alloc_funcs(arena_alloc, arena_free);
}

void arena_begin_child(void)
{
	/* The parent's mappings are not here: only what we know of them is forgotten. */
	if (arena.used)
		arena = (struct arena){.used = true, .inherited = true};
}

void arena_discard(void)
{
	if (!arena.inherited)
		return;
	for (struct mapping *m = arena.mappings, *next; m; m = next) {
		next = m->next;
		munmap(m, m->size);
	}
	arena = (struct arena){.used = true, .inherited = true};
}
