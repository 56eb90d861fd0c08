/* SPDX-License-Identifier: Apache-2.0 */
#include "rpc/relay.h"

#include <limits.h>

#include "base/cleanup.h"

#define LAST_WORDS (1u << 20) /* as much as a pipe may hold */

/* A pipe that is writable takes PIPE_BUF bytes at once, and a terminal that is not stopped does. */
static bool stderr_takes(void)
{
	struct pollfd p = {.fd = STDERR_FILENO, .events = POLLOUT};

	return poll(&p, 1, 0) > 0;
}

struct pollfd relay_poll(const struct relay *r)
{
	if (*r->fd >= 0 && r->held)
		return (struct pollfd){.fd = STDERR_FILENO, .events = POLLOUT};
	return (struct pollfd){.fd = *r->fd, .events = POLLIN};
}

/* How many bytes went; 0: there are none, or none go now. */
static size_t pass_some(struct relay *r)
{
	char chunk[PIPE_BUF];
	ssize_t n, sent = 0;

	if (*r->fd < 0)
		return 0;
	r->held = !stderr_takes();
	if (r->held)
		return 0;
	n = read(*r->fd, chunk, sizeof(chunk));
	if (n == 0 || (n < 0 && errno != EAGAIN && errno != EINTR))
		close_now(r->fd);
	while (sent < n) {
		ssize_t w = write(STDERR_FILENO, chunk + sent, (size_t)(n - sent));

		if (w <= 0)
			break; /* nobody reads ours: the transport is not to notice */
		sent += w;
	}
	return n > 0 ? (size_t)n : 0;
}

void relay_pass(struct relay *r)
{
	pass_some(r);
}

void relay_end(struct relay *r)
{
	size_t n, all = 0;

	while ((n = pass_some(r)) > 0 && all < LAST_WORDS)
		all += n;
	close_now(r->fd);
}
