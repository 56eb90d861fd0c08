/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Where JSON lives in an agent and in its children. An agent clones a holder
 * for every fault and goes on working: each page of its heap that it then
 * changes would stay behind in every holder as a private copy. What it
 * remembers therefore lies in mappings that a child does not inherit.
 *
 * A child begins with an empty arena of its own: nothing that the agent made
 * in its arena may be touched there, freed included. A child may also throw
 * its whole arena away, which leaves no holes.
 *
 * A text that jansson makes by json_dumps() would lie in the arena: use
 * json_text() or json_canonical(), whose texts are the C library's to free.
 */
#pragma once

#include <stddef.h>

/* From here on jansson allocates in the arena. Once, before the first JSON value. */
void arena_use(void);

/* In a child, first of all: a new arena, its own. Without arena_use() before it does nothing. */
void arena_begin_child(void);

/* In a child: all that was made in its arena is gone, and the memory with it. */
void arena_discard(void);

/* Zeroed; NULL without memory. */
void *arena_calloc(size_t size);
void arena_free(void *p);
