/* SPDX-License-Identifier: Apache-2.0 */
#include "cmd/injection.h"

#include <string.h>

#include "base/cleanup.h"
#include "base/clock.h"
#include "base/json.h"
#include "base/text.h"
#include "cmd/lease_view.h"
#include "cmd/output.h"

#define REFRESH_MS 1000
#define RELEASE_MS 60000
#define CANCEL_MS 30000

void injection_close(struct injection *i)
{
	json_decref(i->target);
	json_decref(i->given);
	json_decref(i->params);
	json_decref(i->checked);
	json_decref(i->lease);
	i->target = i->given = i->params = i->checked = i->lease = NULL;
	session_close(&i->session);
}

/* Of a process no more than what ties it down; the agent looks at the rest itself. */
static json_t *target_for_request(const json_t *target)
{
	static const char *const keys[] = {"kind", "pid", "start_ticks", "boot_id", "pidfs_inode"};
	json_t *slim;

	if (!text_equal(json_text_or(target, "kind", ""), "process"))
		return json_deep_copy(target);
	slim = json_object();
	for (size_t k = 0; k < ARRAY_SIZE(keys); k++) {
		json_t *value = json_object_get(target, keys[k]);

		if (value)
			json_object_set(slim, keys[k], value);
	}
	return slim;
}

static json_t *request(const struct injection *i, const char *phase)
{
	json_t *lease = json_pack("{s:s, s:s, s:s, s:o, s:O, s:I, s:o, s:b}", "run_id",
		i->session.run_id, "fault_id", i->entry->id, "owner_agent", "mayhem", "target",
		target_for_request(i->target), "params", i->given, "duration_ms",
		(json_int_t)i->duration_ms, "ttl_seconds",
		i->ttl_ms % 1000 ? json_real((double)i->ttl_ms / 1000)
				 : json_integer((json_int_t)(i->ttl_ms / 1000)),
		"survive", i->detach);

	return json_pack("{s:s, s:s, s:o}", "fault_id", i->entry->id, "phase", phase, "lease",
		lease);
}

static void keep_lease(struct injection *i, json_t *lease)
{
	if (!json_is_object(lease))
		return;
	json_decref(i->lease);
	i->lease = json_incref(lease);
}

/* ok:false becomes an error with the agent's reason. */
static int check_result(const json_t *result, struct err *err)
{
	if (json_bool_or(result, "ok", false))
		return 0;
	err_set(err, json_text_or(result, "reason", "failed_to_apply"), 0, "inject", "%s",
		json_text_or(result, "detail", "the agent gives no reason"));
	err_remedy(err, "%s", json_text_or(result, "remedy", ""));
	return -EREMOTEIO;
}

int injection_check(struct injection *i, struct err *err)
{
	json_t *seen;
	int r = client_call(i->session.client, "task.execute", request(i, "check"), 0, &i->checked,
		err);

	if (r < 0)
		return r;
	/* From here on it is the process that the agent saw, and no other with its number. */
	seen = json_object_get(json_object_get(i->checked, "lease"), "target");
	if (json_is_object(seen)) {
		json_decref(i->target);
		i->target = json_incref(seen);
	}
	return check_result(i->checked, err);
}

/* Interrupted while the agent injects: its task is cancelled, and undone by that. */
static void cancel_tasks(struct injection *i)
{
	_json_ json_t *status = NULL;
	json_t *task;
	size_t n;

	if (client_call(i->session.client, "task.status", NULL, CANCEL_MS, &status, NULL) < 0)
		return;
	json_array_foreach(json_object_get(status, "tasks"), n, task) {
		uint64_t id;

		if (text_equal(json_text_or(task, "state", ""), "running"))
			client_start(i->session.client, "task.cancel",
				json_pack("{s:s}", "task_id", json_text_or(task, "task_id", "")),
				&id, NULL);
	}
}

static int release(struct injection *i, struct err *err)
{
	_json_ json_t *result = NULL;
	int r = client_call(i->session.client, "lease.release",
		json_pack("{s:s}", "lease_id", json_text_or(i->lease, "id", "")), RELEASE_MS,
		&result, err);

	if (r == 0)
		keep_lease(i, json_object_get(result, "lease"));
	return r;
}

int injection_start(struct injection *i, struct err *err)
{
	struct client *c = i->session.client;
	_json_ json_t *result = NULL;
	uint64_t id;
	int r = client_start(c, "task.execute", request(i, "inject"), &id, err);

	if (r < 0)
		return r;
	r = client_wait(c, id, 0, &result, err);
	if (r == -EINTR) {
		i->interrupted = true;
		output_progress("stopping");
		cancel_tasks(i);
		r = client_wait(c, id, CANCEL_MS, &result, err);
	}
	if (r < 0)
		return r;
	keep_lease(i, json_object_get(result, "lease"));
	text_copy(i->detail, sizeof(i->detail), json_text_or(result, "detail", ""));
	r = check_result(result, err);
	if (r == 0 && i->interrupted && !injection_ended(i))
		r = release(i, err);
	return i->interrupted && r >= 0 ? -EINTR : r;
}

/* The lease as it is stored now, among those of this run. */
static int refresh(struct injection *i, struct err *err)
{
	const char *id = json_text_or(i->lease, "id", "");
	_json_ json_t *result = NULL;
	json_t *lease;
	size_t n;
	int r;

	i->moved = false;
	r = client_call(i->session.client, "lease.list",
		json_pack("{s:s}", "run", i->session.run_id), SESSION_CALL_MS, &result, err);
	if (r < 0)
		return r;
	json_array_foreach(json_object_get(result, "leases"), n, lease) {
		if (text_equal(json_text_or(lease, "id", ""), id)) {
			keep_lease(i, lease);
			break;
		}
	}
	return 0;
}

/* Until the next look at it: an event, or a second. */
static int idle(struct injection *i, struct err *err)
{
	uint64_t end_ms = clock_boottime_ms() + REFRESH_MS;
	int r = 0;

	while (r == 0 && !i->moved && clock_until_ms(end_ms))
		r = client_pump(i->session.client, clock_until_ms(end_ms), err);
	return r;
}

int injection_watch(struct injection *i, struct err *err)
{
	int r = 0;

	while (r == 0 && !injection_ended(i)) {
		injection_show_live(i);
		r = idle(i, err);
		if (r == 0)
			r = refresh(i, err);
	}
	if (r != -EINTR)
		return r;
	i->interrupted = true;
	output_progress("stopping: %s is undone", json_text_or(i->lease, "id", "the fault"));
	r = release(i, err);
	/* A second signal: the end of the session undoes it as well, and nobody waits for answers. */
	return r < 0 ? r : -EINTR;
}

bool injection_ended(const struct injection *i)
{
	const char *state = json_text_or(i->lease, "state", "");

	return text_equal(state, "released") || text_equal(state, "expired") ||
		text_equal(state, "dirty");
}

bool injection_dirty(const struct injection *i)
{
	return text_equal(json_text_or(i->lease, "state", ""), "dirty");
}

static int dirty(const struct injection *i, struct err *err)
{
	const char *id = json_text_or(i->lease, "id", "?");

	err_set(err, "undo_failed", 0, "undo", "lease %s is dirty: %s", id,
		json_text_or(i->lease, "escalation_notes", "not undone, or not seen to be"));
	err_remedy(err, "do what is listed, then `mayhem recover`");
	return EXIT_DIRTY;
}

/* Whether it lasted: what was measured last before its end. Nothing measured is nothing shown. */
static int check_effect(const struct injection *i, struct err *err)
{
	const json_t *seen = lease_view_observation(i->lease, "during");
	const char *effect = json_text_or(seen, "effect", "unknown");

	if (text_equal(effect, "present"))
		return EXIT_OK;
	err_set(err, "no_effect", 0, "observe", "the effect was %s before its end: %s", effect,
		json_text_or(seen, "detail", "nobody measured it"));
	err_remedy(err, "find out who took it away: a supervisor, or an operator");
	return EXIT_NOT_COMPLETED;
}

int injection_verdict(const struct injection *i, struct err *err)
{
	static const struct {
		const char *mechanism, *code, *text;
	} ends[] = {
		{"target_gone", "target_gone", "the target ended while the fault was on it"},
		{"halted", "host.halted", "the host was halted; the fault was undone"},
		{"cancelled", "cancelled", "the fault was cancelled and undone"},
		{"deadline", "cancelled", "the lease's time ran out; the fault was undone"},
		{"agent_lost", "cancelled", "its agent was lost; the fault was undone"},
		{"recovery", "cancelled", "its holder was lost; the fault was undone by recovery"},
		{"reboot", "cancelled", "the host was booted; the fault was undone"},
		{"no_effect", "no_effect", "the fault had no effect"},
		{"failed_to_apply", "failed_to_apply", "the fault did not take effect"},
		{"resource_conflict", "resource_conflict", "somebody else holds the target"},
	};
	const char *mechanism = json_text_or(i->lease, "release_mechanism", "");

	if (injection_dirty(i))
		return dirty(i, err);
	if (i->interrupted) {
		err_set(err, "cancelled", 0, "signal", "stopped by a signal; %s",
			!i->lease		     ? "nothing is left"
				: injection_ended(i) ? "the fault is undone"
						     : "the agent undoes it as it ends");
		return EXIT_NOT_COMPLETED;
	}
	for (size_t n = 0; n < ARRAY_SIZE(ends); n++) {
		if (!text_equal(ends[n].mechanism, mechanism))
			continue;
		err_set(err, ends[n].code, 0, "end", "%s", ends[n].text);
		return EXIT_NOT_COMPLETED;
	}
	return i->lease ? check_effect(i, err) : EXIT_OK;
}
