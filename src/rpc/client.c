/* SPDX-License-Identifier: Apache-2.0 */
#include "rpc/client.h"

#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/signalfd.h>

#include "base/cleanup.h"
#include "base/clock.h"
#include "base/json.h"
#include "base/log.h"
#include "base/text.h"
#include "launch/spawn.h"
#include "os/pidfd.h"
#include "rpc/frame.h"
#include "rpc/relay.h"

#define READ_STEP (64u << 10)
#define DISMISS_MS 500
#define EXIT_WAIT_MS 2000 /* between the end of its output and its exit */

struct client {
	const struct transport *transport;
	struct client_options o;
	struct spawned child;
	struct relay relay; /* of its stderr */
	uint64_t next_id;
	json_t *replies; /* by id as text: what nobody has asked for yet */
	char *in;	 /* received and not yet a whole line */
	size_t in_len, in_cap;
	char *out; /* to be sent */
	size_t out_len, out_cap;
	uint64_t heard_at_ms, pinged_at_ms;
	int64_t error_code;
	int signo;
	int exit_code, exit_signo;
	bool eof, reaped, answered, silent;
};

static int grow(char **buf, size_t *cap, size_t need)
{
	size_t size = *cap ? *cap : READ_STEP;
	char *grown;

	if (need <= *cap)
		return 0;
	while (size < need)
		size *= 2;
	grown = realloc(*buf, size);
	if (!grown)
		return -ENOMEM;
	*buf = grown;
	*cap = size;
	return 0;
}

static int set_nonblocking(int fd)
{
	int flags = fcntl(fd, F_GETFL);

	return flags < 0 || fcntl(fd, F_SETFL, flags | O_NONBLOCK) < 0 ? -errno : 0;
}

int client_open(const struct transport *t, const char *const *words, size_t n,
	const struct client_options *o, struct client **ret, struct err *err)
{
	_free_ struct transport_words *w = calloc(1, sizeof(*w));
	_client_ struct client *c = w ? calloc(1, sizeof(*c)) : NULL;
	int r;

	if (!c)
		return err_set(err, "internal", ENOMEM, "session", "no memory");
	c->child = (struct spawned)SPAWNED_INIT;
	c->relay.fd = &c->child.errfd;
	c->transport = t;
	c->o = *o;
	c->replies = json_object();
	c->heard_at_ms = c->pinged_at_ms = clock_boottime_ms();
	r = transport_words(t, words, n, w, err);
	if (r < 0)
		return r;
	log_debug("client", "starting %s on %s", w->argv[0], transport_name(t));
	r = launch_spawn(w->argv, !transport_is_local(t), &c->child, err);
	if (r == -ENOENT || r == -EACCES) {
		err_set(err, "agent.missing", -r, "exec", "cannot run %s", w->argv[0]);
		err_remedy(err, "name the agent by --agent PATH, or install it in PATH");
	}
	if (r < 0)
		return r;
	r = set_nonblocking(c->child.infd);
	if (r == 0)
		r = set_nonblocking(c->child.outfd);
	if (r < 0)
		return err_set(err, "launch.failed", -r, "pipes",
			"cannot set up the agent's pipes");
	*ret = take_ptr(c);
	return 0;
}

/* Reaps the transport if it has exited. */
static bool reap(struct client *c)
{
	if (!c->reaped && pidfd_reap(c->child.pidfd, &c->exit_code, &c->exit_signo) == 0)
		c->reaped = true;
	return c->reaped;
}

/* The session is over before we ended it: says why. */
static int lost(struct client *c, struct err *err)
{
	const char *where = transport_name(c->transport);

	pidfd_wait_exit(c->child.pidfd, EXIT_WAIT_MS);
	relay_end(&c->relay); /* its own reason, before ours */
	if (!reap(c)) {
		err_set(err, "agent.lost", 0, "session", "the agent on %s closed its output",
			where);
	} else if (c->answered && !c->exit_signo) {
		err_set(err, "agent.lost", 0, "session",
			"the session with the agent on %s ended, status %d", where, c->exit_code);
		err_remedy(err, "what it held is undone by itself; `mayhem leases` says so");
	} else {
		transport_explain_exit(c->transport, c->exit_code, c->exit_signo, err);
	}
	return -EPIPE;
}

static int broken(struct client *c, struct err *err, const char *why)
{
	c->eof = true;
	err_set(err, "agent.protocol", 0, "frame", "the agent on %s sent %s",
		transport_name(c->transport), why);
	err_remedy(err, "both programs should be of the same version: `mayhem version`");
	return -EPROTO;
}

static int take_frame(struct client *c, json_t *frame, struct err *err)
{
	const json_t *id = json_object_get(frame, "id");
	const char *method = json_string_value(json_object_get(frame, "method"));
	char key[24];

	if (!json_is_object(frame))
		return broken(c, err, "a frame that is no object");
	if (method) {
		if (c->o.notice)
			c->o.notice(c->o.notice_arg, method, json_object_get(frame, "params"));
		return 0;
	}
	if (json_is_null(id)) {
		const json_t *error = json_object_get(frame, "error");

		log_warn("client", "the agent could not read a frame: %s",
			json_text_or(error, "message", "no message"));
		return 0;
	}
	if (!json_is_integer(id))
		return 0; /* the answer to a ping: that it came is all it says */
	snprintf(key, sizeof(key), "%lld", (long long)json_integer_value(id));
	if (json_object_set(c->replies, key, frame) < 0)
		return err_set(err, "internal", ENOMEM, "frame", "no memory");
	return 0;
}

/* Every whole line in the buffer. */
static int take_lines(struct client *c, struct err *err)
{
	size_t from = 0;
	int r = 0;

	while (r == 0) {
		char *line = c->in + from, *end;
		_json_ json_t *frame = NULL;

		end = memchr(line, '\n', c->in_len - from);
		if (!end)
			break;
		from += (size_t)(end - line) + 1;
		if (end == line)
			continue;
		c->answered = true;
		if ((size_t)(end - line) > FRAME_MAX)
			r = broken(c, err, "a frame longer than 1 MiB");
		else if (json_parse(line, (size_t)(end - line), &frame, NULL) < 0)
			r = broken(c, err, "a line that is no JSON");
		else
			r = take_frame(c, frame, err);
	}
	memmove(c->in, c->in + from, c->in_len - from);
	c->in_len -= from;
	if (r == 0 && c->in_len > FRAME_MAX)
		r = broken(c, err, "a frame longer than 1 MiB");
	return r;
}

static int receive(struct client *c, struct err *err)
{
	ssize_t n;

	if (grow(&c->in, &c->in_cap, c->in_len + READ_STEP) < 0)
		return err_set(err, "internal", ENOMEM, "receive", "no memory");
	n = read(c->child.outfd, c->in + c->in_len, READ_STEP);
	if (n < 0 && (errno == EAGAIN || errno == EINTR))
		return 0;
	if (n <= 0) {
		c->eof = true;
		return 0;
	}
	c->in_len += (size_t)n;
	c->heard_at_ms = clock_boottime_ms();
	return take_lines(c, err);
}

static void transmit(struct client *c)
{
	ssize_t n = write(c->child.infd, c->out, c->out_len);

	if (n < 0 && errno != EAGAIN && errno != EINTR) {
		/* Nobody reads any more. Its output may still hold answers: the end of that decides. */
		c->out_len = 0;
		close_now(&c->child.infd);
	}
	if (n <= 0)
		return;
	memmove(c->out, c->out + n, c->out_len - (size_t)n);
	c->out_len -= (size_t)n;
}

static int queue(struct client *c, const json_t *frame, struct err *err)
{
	_free_ char *text = json_dumps(frame, JSON_COMPACT);
	size_t len = text ? strlen(text) : 0;

	if (!text || grow(&c->out, &c->out_cap, c->out_len + len + 1) < 0)
		return err_set(err, "internal", ENOMEM, "send", "no memory");
	if (len > FRAME_MAX)
		return err_set(err, "frame.too_long", 0, "send",
			"the request has %zu bytes, more than 1 MiB", len);
	memcpy(c->out + c->out_len, text, len);
	c->out[c->out_len + len] = '\n';
	c->out_len += len + 1;
	return 0;
}

static json_t *correlated(const struct client *c, json_t *params)
{
	if (!params)
		params = json_object();
	json_object_set_new(params, "run_id", json_string(c->o.run_id));
	json_object_set_new(params, "agent_id", json_string(c->o.agent_id));
	return params;
}

/* A ping when it is time for one. False: silent for too long. */
static bool keep_alive(struct client *c, uint64_t now_ms)
{
	_json_ json_t *ping = NULL;

	if (c->o.quiet_ms && now_ms - c->heard_at_ms >= c->o.quiet_ms)
		return false;
	if (!c->o.ping_ms || now_ms - c->pinged_at_ms < c->o.ping_ms || c->child.infd < 0)
		return true;
	c->pinged_at_ms = now_ms;
	ping = json_pack("{s:s, s:s, s:s, s:o}", "jsonrpc", "2.0", "id", "ping", "method",
		"health.ping", "params", correlated(c, NULL));
	if (ping)
		queue(c, ping, NULL);
	return true;
}

static uint64_t nearest(uint64_t a, uint64_t b)
{
	return a < b ? a : b;
}

/* Milliseconds to sleep at most, so that neither ping nor silence is missed. */
static uint64_t until_duty(const struct client *c, uint64_t now_ms, uint64_t timeout_ms)
{
	if (c->o.ping_ms)
		timeout_ms = nearest(timeout_ms, c->pinged_at_ms + c->o.ping_ms - now_ms);
	if (c->o.quiet_ms)
		timeout_ms = nearest(timeout_ms, c->heard_at_ms + c->o.quiet_ms - now_ms);
	return nearest(timeout_ms, 3600000);
}

static int read_signal(struct client *c)
{
	struct signalfd_siginfo info;

	if (read(c->o.signalfd, &info, sizeof(info)) != (ssize_t)sizeof(info))
		return 0;
	c->signo = (int)info.ssi_signo;
	return -EINTR;
}

/* One wait and what came of it. 0 also when nothing did. */
static int step(struct client *c, uint64_t timeout_ms, struct err *err)
{
	uint64_t now_ms = clock_boottime_ms();
	struct pollfd p[] = {
		{.fd = c->eof ? -1 : c->child.outfd, .events = POLLIN},
		{.fd = -1, .events = POLLOUT},
		{.fd = c->o.signalfd, .events = POLLIN},
		{.fd = c->reaped ? -1 : c->child.pidfd, .events = POLLIN},
		relay_poll(&c->relay),
	};
	int r;

	if (!keep_alive(c, now_ms)) {
		c->silent = true;
		err_set(err, "agent.lost", 0, "session", "no word from the agent on %s for %llu s",
			transport_name(c->transport), (unsigned long long)c->o.quiet_ms / 1000);
		err_remedy(err,
			"what it held is undone by itself; look with `mayhem leases` later");
		return -EPIPE;
	}
	if (c->out_len && c->child.infd >= 0)
		p[1].fd = c->child.infd;
	r = poll(p, ARRAY_SIZE(p), (int)until_duty(c, now_ms, timeout_ms));
	if (r < 0)
		return errno == EINTR ? 0 : err_set(err, "internal", errno, "poll", "cannot wait");
	if (p[1].revents)
		transmit(c);
	if (p[4].revents)
		relay_pass(&c->relay);
	/* Signals before frames: a stop is not to wait behind a talkative agent. */
	if (p[2].revents && (r = read_signal(c)) < 0)
		return r;
	if (p[0].revents)
		return receive(c, err);
	/* Exited, and nothing left to read: whoever else holds the pipe has no more to say. */
	if (c->reaped || (p[3].revents && reap(c)))
		c->eof = true;
	return 0;
}

int client_pump(struct client *c, uint64_t timeout_ms, struct err *err)
{
	if (c->eof)
		return lost(c, err);
	return step(c, timeout_ms, err);
}

int client_start(struct client *c, const char *method, json_t *params, uint64_t *ret_id,
	struct err *err)
{
	uint64_t id = ++c->next_id;
	_json_ json_t *frame = json_pack("{s:s, s:I, s:s, s:o}", "jsonrpc", "2.0", "id",
		(json_int_t)id, "method", method, "params", correlated(c, params));
	int r = frame ? queue(c, frame, err)
		      : err_set(err, "internal", ENOMEM, "send", "no memory");

	if (r < 0)
		return r;
	if (c->child.infd >= 0)
		transmit(c);
	*ret_id = id;
	return 0;
}

/* An error object becomes an error. */
static int remote_error(struct client *c, const json_t *error, struct err *err)
{
	const json_t *data = json_object_get(error, "data");

	c->error_code = json_int_or(error, "code", 0);
	err_set(err, json_text_or(data, "reason", "agent.protocol"), 0,
		json_text_or(data, "stage", "agent"), "%s",
		json_text_or(error, "message", "the agent gives no reason"));
	err_remedy(err, "%s", json_text_or(data, "remedy", ""));
	return -EREMOTEIO;
}

static int take_reply(struct client *c, const char *key, json_t **ret_result, struct err *err)
{
	_json_ json_t *frame = json_incref(json_object_get(c->replies, key));
	json_t *error = json_object_get(frame, "error");
	json_t *result = json_object_get(frame, "result");

	json_object_del(c->replies, key);
	if (error)
		return remote_error(c, error, err);
	if (!json_is_object(result))
		return broken(c, err, "an answer without a result");
	*ret_result = json_incref(result);
	return 0;
}

int client_wait(struct client *c, uint64_t id, uint64_t timeout_ms, json_t **ret_result,
	struct err *err)
{
	uint64_t end_ms = clock_boottime_ms() + timeout_ms;
	char key[24];

	snprintf(key, sizeof(key), "%llu", (unsigned long long)id);
	while (!json_object_get(c->replies, key)) {
		uint64_t left_ms = timeout_ms ? clock_until_ms(end_ms) : UINT64_MAX;
		int r;

		if (left_ms == 0) {
			err_set(err, "agent.lost", 0, "session",
				"no answer from the agent on %s within %llu s",
				transport_name(c->transport),
				(unsigned long long)timeout_ms / 1000);
			return -ETIMEDOUT;
		}
		r = client_pump(c, left_ms, err);
		if (r < 0)
			return r;
	}
	return take_reply(c, key, ret_result, err);
}

int client_call(struct client *c, const char *method, json_t *params, uint64_t timeout_ms,
	json_t **ret_result, struct err *err)
{
	uint64_t id;
	int r = client_start(c, method, params, &id, err);

	return r < 0 ? r : client_wait(c, id, timeout_ms, ret_result, err);
}

/*
 * Nobody answers any more, perhaps for ever: a connection that is cut says
 * nothing. The transport is asked to go, and not waited for long; the agent
 * misses us by itself. Returns until when.
 */
static uint64_t dismiss(struct client *c)
{
	c->out_len = 0;
	if (!reap(c))
		pidfd_signal(c->child.pidfd, SIGTERM);
	return clock_boottime_ms() + DISMISS_MS;
}

int client_end(struct client *c, uint64_t timeout_ms, int *ret_code, struct err *err)
{
	uint64_t end_ms = clock_boottime_ms() + timeout_ms;

	/* What is queued goes first; a few bytes into a pipe that is read. */
	while (c->out_len && c->child.infd >= 0 && !c->eof && !c->silent &&
		clock_until_ms(end_ms)) {
		int r = step(c, clock_until_ms(end_ms), err);

		if (r < 0)
			return r;
	}
	close_now(&c->child.infd);
	c->o.ping_ms = c->o.quiet_ms = 0;
	if (c->silent)
		end_ms = dismiss(c);
	while (!reap(c)) {
		int r;

		if (!clock_until_ms(end_ms))
			return err_set(err, "agent.lost", ETIMEDOUT, "end",
				"the agent on %s has not ended", transport_name(c->transport));
		r = step(c, clock_until_ms(end_ms), err);
		if (r < 0)
			return r;
	}
	while (!c->eof) {
		int r = step(c, 0, err);

		if (r < 0)
			return r;
	}
	relay_end(&c->relay);
	*ret_code = c->exit_signo ? 128 + c->exit_signo : c->exit_code;
	return 0;
}

void client_close(struct client *c)
{
	if (!c)
		return;
	relay_end(&c->relay);
	spawned_close(&c->child);
	json_decref(c->replies);
	free(c->in);
	free(c->out);
	free(c);
}

int64_t client_error_code(const struct client *c)
{
	return c->error_code;
}

int client_signal(const struct client *c)
{
	return c->signo;
}
