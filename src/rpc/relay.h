/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Passes on to our stderr what a transport writes to its own. ssh leaves that
 * with a connection that is kept or cut, so it must not be ours, or whoever
 * reads ours to its end would wait for ssh. Belongs in somebody's poll loop:
 * takes a little at a time, waits for nobody, not for a reader of our stderr
 * either, and never needs the end.
 */
#pragma once

#include <poll.h>
#include <stdbool.h>

struct relay {
	int *fd;   /* its owner's, read without waiting; -1: nothing to pass on, or no more */
	bool held; /* our stderr takes nothing now, so nothing is read */
};

/* What to wait for in order to go on. */
struct pollfd relay_poll(const struct relay *r);

/* After that: passes on what fits. Without a word when nothing does. */
void relay_pass(struct relay *r);

/* At the end: passes on what is there now, and closes. */
void relay_end(struct relay *r);
