/* SPDX-License-Identifier: Apache-2.0 */
#include "session.h"

#include <errno.h>
#include <fcntl.h>
#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

const struct scenario scenarios[] = {
	{
		.name = "pause-release",
		.about = "paused, then released by lease.release",
		.steps = {STEP_HANDSHAKE, STEP_INJECT, STEP_RELEASE},
	},
	{
		.name = "pause-undo",
		.about = "paused, then undone by task.execute",
		.steps = {STEP_HANDSHAKE, STEP_INJECT, STEP_UNDO},
	},
	{
		.name = "pause-duration",
		.about = "paused for 50 ms, ended by the holder itself",
		.duration_ms = 50,
		.steps = {STEP_HANDSHAKE, STEP_INJECT, STEP_AWAIT_TARGET},
	},
	{
		.name = "pause-eof",
		.about = "paused, then the controller hangs up",
		.steps = {STEP_HANDSHAKE, STEP_INJECT},
	},
	{
		.name = "orphan-serve",
		.about = "a lease without agent and holder, found by the next session",
		.orphan = true,
		.steps = {STEP_HANDSHAKE, STEP_AWAIT_TARGET},
	},
	{
		.name = "orphan-recover",
		.about = "a lease without agent and holder, found by recover",
		.orphan = true,
		.recover = true,
	},
};

const unsigned n_scenarios = sizeof(scenarios) / sizeof(scenarios[0]);

int scenario_find(const char *name)
{
	for (unsigned i = 0; i < n_scenarios; i++) {
		if (strcmp(scenarios[i].name, name) == 0)
			return (int)i;
	}
	return -1;
}

int session_begin(struct session *ret, const struct scenario *scenario, struct target *target,
	int infd, int outfd)
{
	*ret = (struct session){
		.scenario = scenario,
		.target = target,
		.infd = infd,
		.outfd = outfd,
	};
	fcntl(outfd, F_SETFL, O_NONBLOCK);
	ret->line = malloc(SESSION_LINE_MAX);
	if (!ret->line) {
		session_free(ret);
		return -ENOMEM;
	}
	return 0;
}

static json_t *lease_wanted(const struct session *session)
{
	json_t *lease = json_pack("{s:s, s:s, s:s, s:{s:s, s:i}, s:{}, s:i}", "run_id", "r-sweep",
		"fault_id", "proc.pause", "owner_agent", "sweep", "target", "kind", "process",
		"pid", (int)session->target->pid, "params", "ttl_seconds", 120);

	if (lease && session->scenario->duration_ms)
		json_object_set_new(lease, "duration_ms",
			json_integer(session->scenario->duration_ms));
	return lease;
}

/* What the step adds to the correlation keys. */
static json_t *params_of(const struct session *session, enum step step, const char **ret_method)
{
	switch (step) {
	case STEP_HANDSHAKE:
		*ret_method = "handshake";
		return json_object();
	case STEP_INJECT:
		*ret_method = "task.execute";
		return json_pack("{s:s, s:s, s:o}", "fault_id", "proc.pause", "phase", "inject",
			"lease", lease_wanted(session));
	case STEP_RELEASE:
		*ret_method = "lease.release";
		return json_pack("{s:s}", "lease_id", session->lease_id);
	case STEP_UNDO:
		*ret_method = "task.execute";
		return json_pack("{s:s, s:s, s:{s:s}}", "fault_id", "proc.pause", "phase", "undo",
			"lease", "id", session->lease_id);
	default:
		return NULL;
	}
}

/* A pipe that nobody reads is the end of the session, as it would be for a controller. */
static void session_say(struct session *session, enum step step)
{
	const char *method = NULL;
	json_t *params = params_of(session, step, &method), *frame;
	char *text;
	size_t n;

	if (params) {
		json_object_set_new(params, "run_id", json_string("r-sweep"));
		json_object_set_new(params, "agent_id", json_string("sweep"));
	}
	frame = json_pack("{s:s, s:i, s:s, s:o}", "jsonrpc", "2.0", "id", (int)session->step + 1,
		"method", method, "params", params);
	text = json_dumps(frame, JSON_COMPACT);
	json_decref(frame);
	if (!text) {
		session_hang_up(session);
		return;
	}
	n = strlen(text);
	text[n++] = '\n';
	if (write(session->infd, text, n) == (ssize_t)n)
		session->asked = session->step + 1;
	else
		session_hang_up(session);
	free(text);
}

/* A refused injection leaves nothing to release. */
static bool step_is_void(const struct session *session, enum step step)
{
	return (step == STEP_RELEASE || step == STEP_UNDO) && session->lease_id[0] == '\0';
}

void session_advance(struct session *session)
{
	while (!session->ended && !session->held && session->asked == 0) {
		enum step step = session->scenario->steps[session->step];

		if (step == STEP_END) {
			session_hang_up(session);
		} else if (step == STEP_AWAIT_TARGET) {
			if (!target_runs(session->target) && !session->impatient)
				return;
			session->step++;
		} else if (step_is_void(session, step)) {
			session->step++;
		} else {
			session_say(session, step);
		}
	}
}

static void session_take_injection(struct session *session, const json_t *frame)
{
	const json_t *result = json_object_get(frame, "result");
	const char *why = json_string_value(result
			? json_object_get(result, "detail")
			: json_object_get(json_object_get(frame, "error"), "message"));

	session->injected = json_is_true(json_object_get(result, "ok"));
	session->stopped = target_is_stopped(session->target);
	if (session->injected)
		target_ask(session->target);
	else
		snprintf(session->refusal, sizeof(session->refusal), "%s", why ? why : "");
}

static void session_take(struct session *session, const char *line, size_t n)
{
	json_t *frame = json_loadb(line, n, 0, NULL);
	json_t *result = json_object_get(frame, "result");
	const char *id = json_string_value(json_object_get(json_object_get(result, "lease"), "id"));

	if (json_integer_value(json_object_get(frame, "id")) != (json_int_t)session->asked ||
		session->asked == 0) {
		json_decref(frame);
		return;
	}
	if (session->scenario->steps[session->step] == STEP_INJECT)
		session_take_injection(session, frame);
	if (id && strlen(id) < LEASE_ID_MAX)
		strcpy(session->lease_id, id);
	session->asked = 0;
	session->step++;
	json_decref(frame);
}

static void session_split(struct session *session)
{
	char *lf;

	while ((lf = memchr(session->line, '\n', session->n_line))) {
		size_t n = (size_t)(lf - session->line);

		session_take(session, session->line, n);
		session->n_line -= n + 1;
		memmove(session->line, lf + 1, session->n_line);
	}
}

void session_hear(struct session *session)
{
	while (session->outfd >= 0) {
		size_t room = SESSION_LINE_MAX - session->n_line;
		ssize_t n = room ? read(session->outfd, session->line + session->n_line, room) : 0;

		if (n < 0 && (errno == EAGAIN || errno == EINTR))
			return;
		if (n <= 0) {
			session_hang_up(session);
			close(session->outfd);
			session->outfd = -1;
			return;
		}
		session->n_line += (size_t)n;
		session_split(session);
	}
}

void session_hang_up(struct session *session)
{
	session->ended = true;
	session->asked = 0;
	if (session->infd >= 0)
		close(session->infd);
	session->infd = -1;
}

const char *session_awaits(const struct session *session)
{
	if (session->ended)
		return NULL;
	switch (session->scenario->steps[session->step]) {
	case STEP_HANDSHAKE:
		return "the answer to handshake";
	case STEP_INJECT:
		return "the answer to the injection";
	case STEP_RELEASE:
		return "the answer to lease.release";
	case STEP_UNDO:
		return "the answer to the undo";
	case STEP_AWAIT_TARGET:
		return "the target to run";
	default:
		return NULL;
	}
}

void session_free(struct session *session)
{
	if (session->infd >= 0)
		close(session->infd);
	if (session->outfd >= 0)
		close(session->outfd);
	free(session->line);
	*session = (struct session){.infd = -1, .outfd = -1, .ended = true};
}
