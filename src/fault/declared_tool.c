/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The executors that run commands for declared leases: tool (an argv each way),
 * payload (a program inside a container, found again by its marker), and the
 * one that does nothing when asked to do nothing.
 */
#include <string.h>

#include "base/cleanup.h"
#include "base/clock.h"
#include "base/json.h"
#include "base/text.h"
#include "fault/container.h"
#include "fault/steps.h"
#include "fault/tool.h"

#define MARKER_LIMIT_MS 2000

/* Reads the marker's pid, kills it, removes the marker and what lies beside it. Runs inside the container. */
static const char killer[] = "import glob,os,signal,sys\n"
			     "m=sys.argv[1]\n"
			     "try:\n"
			     " os.kill(int(open(m).read().split()[0]),signal.SIGKILL)\n"
			     "except (OSError,ValueError,IndexError):\n"
			     " pass\n"
			     "for f in [m]+glob.glob(glob.escape(m)+'.*'):\n"
			     " try:\n"
			     "  os.unlink(f)\n"
			     " except OSError:\n"
			     "  pass\n";
static const char looker[] = "import os,sys\nsys.exit(0 if os.path.exists(sys.argv[1]) else 3)\n";

static const char *op_arg(const json_t *op, const char *key)
{
	return json_text_or(json_object_get(op, "args"), key, NULL);
}

static const json_t *first_op_with(const struct fault_run *run, const char *key)
{
	size_t i;
	json_t *op;

	json_array_foreach(run->lease->undo_ops, i, op)
		if (op_arg(op, key))
			return op;
	return NULL;
}

/* The engine's full id, kept when it was resolved at injection; "" without a container. */
static const char *kept_id(const struct fault_run *run)
{
	const json_t *op = first_op_with(run, "full_id");

	return op ? op_arg(op, "full_id") : "";
}

/* Names are resolved once: another container under the same name later is target gone, not a target. */
static int keep_id(struct fault_run *run, const json_t *op, struct err *err)
{
	const char *engine = op_arg(op, "engine"), *cont = op_arg(op, "cont");
	struct container c;
	pid_t pid;
	int r;

	if (!engine || !cont)
		return 0;
	r = container_resolve(run, engine, cont, &c, &pid, err);
	if (r == 0 &&
		lease_add_undo(run->lease, "engine.container",
			json_pack("{s:s, s:s}", "engine", engine, "full_id", c.id), true) < 0)
		r = err_set(err, "failed_to_apply", ENOMEM, "record", "no memory");
	return r;
}

static int run_argv_of(struct fault_run *run, const char *key, struct err *err)
{
	const json_t *op = first_op_with(run, key);
	const char *engine = op ? op_arg(op, "engine") : NULL,
		   *cont = op ? op_arg(op, "cont") : NULL;
	char **argv;
	int r;

	if (!op)
		return err_set(err, "failed_to_apply", 0, "tool", "no undo op has `%s`", key);
	if (!engine || !cont)
		engine = cont = NULL;
	else if (kept_id(run)[0])
		cont = kept_id(run);
	r = tool_parse_argv(op_arg(op, key), engine, cont, &argv, err);
	if (r < 0)
		return r;
	r = tool_must(run, (const char *const *)argv, key, err);
	tool_free_argv(argv);
	return r;
}

static int tool_check(struct fault_run *run, struct err *err)
{
	static const char *const keys[] = {"inject_argv", "undo_argv"};

	for (size_t i = 0; i < ARRAY_SIZE(keys); i++) {
		const json_t *op = first_op_with(run, keys[i]);
		const char *engine = op ? op_arg(op, "engine") : NULL,
			   *cont = op ? op_arg(op, "cont") : NULL;
		char **argv;
		int r;

		if (!op && i > 0)
			continue; /* 0.5.1 sends leases that nothing can undo by command */
		if (!op)
			return err_set(err, "failed_to_apply", 0, "plan", "no undo op has `%s`",
				keys[i]);
		r = tool_parse_argv(op_arg(op, keys[i]), engine && cont ? engine : NULL, cont,
			&argv, err);
		if (r < 0)
			return r;
		tool_free_argv(argv);
	}
	return 0;
}

static int tool_record(struct fault_run *run, struct err *err)
{
	text_copy(run->lease->verified_by, sizeof(run->lease->verified_by), "undo.exit_status");
	return keep_id(run, first_op_with(run, "inject_argv"), err);
}

static int tool_inject(struct fault_run *run, struct err *err)
{
	return run_argv_of(run, "inject_argv", err);
}

static int tool_observe(struct fault_run *run, struct observation *ret, struct err *err _unused_)
{
	bool injected = run->lease->state == LEASE_ACTIVE;

	ret->metric = "tool.exit";
	ret->unit = "code";
	ret->effect = injected ? EFFECT_UNKNOWN : EFFECT_ABSENT;
	snprintf(ret->detail, sizeof(ret->detail),
		injected ? "the command answered 0" : "not run yet");
	return 0;
}

static int tool_undo(struct fault_run *run, struct err *err)
{
	return first_op_with(run, "undo_argv") ? run_argv_of(run, "undo_argv", err) : 0;
}

/* Its exit status is all there is to look at, and undo has failed if it was not 0. */
static int tool_verify(struct fault_run *run _unused_, struct observation *ret,
	struct err *err _unused_)
{
	ret->metric = "tool.exit";
	ret->unit = "code";
	ret->effect = EFFECT_ABSENT;
	snprintf(ret->detail, sizeof(ret->detail), "the undo command answered 0");
	return 0;
}

static void tool_remedy(struct fault_run *run)
{
	const json_t *op = first_op_with(run, "undo_argv");
	const char *engine = op ? op_arg(op, "engine") : NULL,
		   *cont = op ? op_arg(op, "cont") : NULL;
	char **argv;

	if (!op ||
		tool_parse_argv(op_arg(op, "undo_argv"), engine && cont ? engine : NULL, cont,
			&argv, NULL) < 0)
		return;
	lease_add_remedy(run->lease, (const char *const *)argv);
	tool_free_argv(argv);
}

static const json_t *payload_op(const struct fault_run *run)
{
	return first_op_with(run, "payload");
}

/* engine exec [-d] ID python -c PROGRAM [MARKER] */
static void exec_python(const struct fault_run *run, const char *id, bool detach,
	const char *program, const char *marker, const char **argv)
{
	size_t n = container_prefix(op_arg(payload_op(run), "engine"), argv);

	argv[n++] = "exec";
	if (detach)
		argv[n++] = "-d";
	argv[n++] = id;
	argv[n++] = "python";
	argv[n++] = "-c";
	argv[n++] = program;
	if (marker)
		argv[n++] = marker;
	argv[n] = NULL;
}

static int payload_check(struct fault_run *run, struct err *err)
{
	const json_t *op = payload_op(run);
	const char *argv[16];
	struct container c;
	pid_t pid;
	int r;

	if (!op || !op_arg(op, "engine") || !op_arg(op, "cont") || !op_arg(op, "marker"))
		return err_set(err, "failed_to_apply", 0, "plan",
			"no undo op has engine, cont, payload and marker");
	r = container_resolve(run, op_arg(op, "engine"), op_arg(op, "cont"), &c, &pid, err);
	if (r < 0)
		return r;
	/* Its undo needs python as well: without one this must end here, where nothing has run. */
	exec_python(run, c.id, false, "", NULL, argv);
	return tool_must(run, argv, "python", err);
}

static int payload_record(struct fault_run *run, struct err *err)
{
	text_copy(run->lease->verified_by, sizeof(run->lease->verified_by), "payload.marker");
	return keep_id(run, payload_op(run), err);
}

static int payload_inject(struct fault_run *run, struct err *err)
{
	const char *argv[16];

	exec_python(run, kept_id(run), true, op_arg(payload_op(run), "payload"), NULL, argv);
	return tool_must(run, argv, "payload", err);
}

/* 1 there, 0 not, -errno; a container that is gone has no marker. */
static int has_marker(struct fault_run *run, struct err *err)
{
	const char *argv[16];
	struct tool_result res;
	struct container c;
	pid_t pid = 0;
	int r = container_resolve(run, op_arg(payload_op(run), "engine"), kept_id(run), &c, &pid,
		err);

	if (r == -ENOENT || (r == 0 && pid == 0))
		return 0;
	if (r < 0)
		return r;
	exec_python(run, kept_id(run), false, looker, op_arg(payload_op(run), "marker"), argv);
	r = tool_run(run, argv, TOOL_LIMIT_MS, &res, err);
	if (r < 0)
		return r;
	r = res.timed_out || (res.code != 0 && res.code != 3) ? -EIO : res.code == 0;
	if (r < 0)
		err_set(err, "undo_failed", 0, "marker", "cannot look at the marker: %.200s",
			res.err ? res.err : "");
	tool_result_free(&res);
	return r;
}

static int payload_observe(struct fault_run *run, struct observation *ret, struct err *err)
{
	bool injected = run->lease->state == LEASE_ACTIVE;
	uint64_t limit = clock_boottime_ms() + MARKER_LIMIT_MS;
	int r = 0;

	ret->metric = "payload.marker";
	ret->unit = "count";
	ret->asked = 1;
	/* Each look is a command of the engine: at the start it is worth the wait, later it would be a load. */
	if (injected && run->lease->injected_ms == 0) {
		for (;;) {
			r = has_marker(run, err);
			if (r != 0 || clock_until_ms(limit) == 0 || run_wait(run, 50000) < 0)
				break;
		}
		if (r < 0)
			return r;
	}
	ret->value = ret->reached = r;
	ret->effect = r ? EFFECT_PRESENT : injected ? EFFECT_UNKNOWN : EFFECT_ABSENT;
	snprintf(ret->detail, sizeof(ret->detail),
		r		   ? "the payload runs"
			: injected ? "started"
				   : "not run yet");
	return 0;
}

static int payload_undo(struct fault_run *run, struct err *err)
{
	const char *argv[16];
	struct container c;
	pid_t pid = 0;
	int r = container_resolve(run, op_arg(payload_op(run), "engine"), kept_id(run), &c, &pid,
		err);

	if (r == -ENOENT || (r == 0 && pid == 0))
		return 0; /* gone with its container */
	if (r < 0)
		return r;
	exec_python(run, kept_id(run), false, killer, op_arg(payload_op(run), "marker"), argv);
	return tool_must(run, argv, "payload", err);
}

static int payload_verify(struct fault_run *run, struct observation *ret, struct err *err)
{
	int r = has_marker(run, err);

	if (r < 0)
		return r;
	ret->metric = "payload.marker";
	ret->unit = "count";
	ret->value = ret->reached = r;
	ret->effect = r ? EFFECT_PRESENT : EFFECT_ABSENT;
	snprintf(ret->detail, sizeof(ret->detail),
		r ? "the marker is still there" : "the marker is gone");
	return 0;
}

static void payload_remedy(struct fault_run *run)
{
	const char *argv[16];

	if (!kept_id(run)[0])
		return;
	exec_python(run, kept_id(run), false, killer, op_arg(payload_op(run), "marker"), argv);
	lease_add_remedy(run->lease, argv);
}

static int noop(struct fault_run *run _unused_, struct err *err _unused_)
{
	return 0;
}

static int noop_record(struct fault_run *run, struct err *err _unused_)
{
	text_copy(run->lease->verified_by, sizeof(run->lease->verified_by), "nothing");
	return 0;
}

static int noop_observe(struct fault_run *run _unused_, struct observation *ret,
	struct err *err _unused_)
{
	ret->metric = "nothing";
	ret->effect = EFFECT_UNKNOWN;
	return 0;
}

static int noop_verify(struct fault_run *run _unused_, struct observation *ret,
	struct err *err _unused_)
{
	ret->metric = "nothing";
	ret->effect = EFFECT_ABSENT;
	return 0;
}

const struct fault_steps declared_tool_steps = {
	.id = "tool",
	.check = tool_check,
	.record = tool_record,
	.inject = tool_inject,
	.observe = tool_observe,
	.undo = tool_undo,
	.verify = tool_verify,
	.remedy = tool_remedy,
};

const struct fault_steps declared_payload_steps = {
	.id = "payload",
	.check = payload_check,
	.record = payload_record,
	.inject = payload_inject,
	.observe = payload_observe,
	.undo = payload_undo,
	.verify = payload_verify,
	.remedy = payload_remedy,
};

const struct fault_steps declared_noop_steps = {
	.id = "noop",
	.check = noop,
	.record = noop_record,
	.inject = noop,
	.observe = noop_observe,
	.undo = noop,
	.verify = noop_verify,
};
