/* SPDX-License-Identifier: Apache-2.0 */
/* What a session says: one bounded queue, answers before events, and stdout that may be slow or gone. */
#include <poll.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <unistd.h>

#include "base/cleanup.h"
#include "base/clock.h"
#include "base/json.h"
#include "rpc/agent_state.h"

#define WRITE_CHUNK 4096 /* what a writable pipe takes without blocking */

/* stdin is read only while there is room for what the answers may need. */
static void mind_input(struct agent *a)
{
	bool want = !a->in_closed && !a->lines_left && agent_may_take(a);
	struct epoll_event e = {.events = want ? EPOLLIN : 0, .data.ptr = &a->in};

	if (!a->in_always_ready && !a->in_closed)
		epoll_ctl(a->epollfd, EPOLL_CTL_MOD, STDIN_FILENO, &e);
}

static bool is_writable(int fd)
{
	struct pollfd p = {.fd = fd, .events = POLLOUT};

	return poll(&p, 1, 0) == 1;
}

/*
 * stdout is left blocking, because whoever started us may share it: a pipe
 * that polls writable takes PIPE_BUF bytes, a socket is asked not to wait.
 */
static ssize_t write_some(const char *data, size_t len)
{
	ssize_t n = send(STDOUT_FILENO, data, len, MSG_DONTWAIT | MSG_NOSIGNAL);

	if (n < 0 && errno == ENOTSOCK)
		n = write(STDOUT_FILENO, data, len < WRITE_CHUNK ? len : WRITE_CHUNK);
	return n < 0 ? -errno : n;
}

/* Nobody will ever read us again: the end, and nothing that still waits could be answered. */
void agent_lose_output(struct agent *a)
{
	a->out_broken = true;
	agent_unwatch(a, &a->outsrc);
	agent_begin_end(a, true);
}

static void tell_dropped(struct agent *a)
{
	json_int_t n = (json_int_t)a->events_dropped;

	a->events_dropped = 0;
	if (n)
		agent_notify(a, "event.emit",
			json_pack("{s:s, s:I}", "kind", "dropped", "count", n));
}

void agent_flush(struct agent *a)
{
	struct epoll_event e = {.data.ptr = &a->outsrc};

	while (a->out.len && !a->out_broken && is_writable(STDOUT_FILENO)) {
		ssize_t n = write_some(buf_peek(&a->out), a->out.len);

		if (n == -EINTR)
			continue;
		if (n == -EAGAIN)
			break;
		if (n < 0) {
			agent_lose_output(a);
			break;
		}
		buf_consume(&a->out, (size_t)n);
	}
	if (a->out.len == 0)
		tell_dropped(a);
	e.events = a->out.len ? EPOLLOUT : 0;
	if (!a->out_broken)
		epoll_ctl(a->epollfd, EPOLL_CTL_MOD, STDOUT_FILENO, &e);
	mind_input(a);
}

/* Takes frame. What does not fit is refused by name: an answer is never cut. */
static int queue_frame(struct agent *a, json_t *frame)
{
	_json_ json_t *owned = frame;
	size_t room = 512, len;
	char *at;

	if (!frame)
		return -ENOMEM;
	if (a->out_broken)
		return 0;
	/* Most answers are short: written where they go, at the second attempt if they are not. */
	for (;;) {
		at = buf_reserve(&a->out, room + 1);
		if (!at)
			return -ENOBUFS;
		len = json_dumpb(frame, at, room, JSON_COMPACT | JSON_TEXT_PRECISION);
		if (len == 0)
			return -ENOMEM;
		if (len > FRAME_MAX)
			return -EMSGSIZE;
		if (len <= room)
			break;
		room = len;
	}
	at[len] = '\n';
	buf_commit(&a->out, len + 1);
	return 0;
}

static int queue_result(struct agent *a, const json_t *id, json_t *result)
{
	return queue_frame(a,
		json_pack("{s:s, s:O, s:O}", "jsonrpc", "2.0", "id", id, "result", result));
}

void agent_reply(struct agent *a, const json_t *id, json_t *result)
{
	_json_ json_t *owned = result;
	json_t *lease = json_object_get(result, "lease");
	int r = queue_result(a, id, result);
	struct err err;

	/* What was done is told even where all of it cannot be. */
	if (r == -EMSGSIZE && json_is_object(lease)) {
		json_object_set_new(result, "lease", frame_shorten_lease(lease));
		r = queue_result(a, id, owned);
	}
	if (r == 0)
		return;
	err_set(&err, "frame.too_long", 0, "reply", "the answer does not fit into a frame");
	agent_error(a, id, RPC_INTERNAL_ERROR, &err);
}

void agent_error(struct agent *a, const json_t *id, int code, const struct err *err)
{
	json_t *data = json_pack("{s:s, s:s}", "reason", err->code, "stage", err->stage);

	if (err->remedy[0])
		json_object_set_new(data, "remedy", json_string(err->remedy));
	queue_frame(a,
		json_pack("{s:s, s:O, s:{s:i, s:s, s:o}}", "jsonrpc", "2.0", "id", id, "error",
			"code", code, "message", err->text, "data", data));
}

void agent_notify(struct agent *a, const char *method, json_t *params)
{
	_json_ json_t *owned = params;
	char at[CLOCK_UTC_SIZE];

	if (!a->events)
		return;
	json_object_set_new(params, "seq", json_integer((json_int_t)++a->event_seq));
	json_object_set_new(params, "at", json_string(clock_format_utc(clock_utc_ms(), at)));
	/* Events make way for answers. */
	if (a->out.len > AGENT_OUT_PAUSE ||
		queue_frame(a,
			json_pack("{s:s, s:s, s:O}", "jsonrpc", "2.0", "method", method, "params",
				params)) < 0)
		a->events_dropped++;
}
