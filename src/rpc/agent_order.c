/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Requests that have to wait although the agent does not: behind another one
 * on the same lease, or until there is room for what they would start or
 * answer. They keep their order; everything else overtakes them.
 */
#include <string.h>

#include "base/cleanup.h"
#include "base/json.h"
#include "base/text.h"
#include "rpc/agent_state.h"

#define LISTS_MAX 2 /* each may answer with a whole frame */
#define TASKS_MAX 512
#define LIST_KEY "list"
#define TASK_KEY "task"

bool agent_may_take(const struct agent *a)
{
	return a->out.len < AGENT_OUT_PAUSE &&
		json_array_size(a->queued) + json_array_size(a->deferred) < AGENT_DEFERRED_MAX;
}

static bool is_injection(const char *method, const json_t *params)
{
	const char *phase = json_text_or(params, "phase", "inject");

	return text_equal(method, "task.execute") &&
		(text_equal(phase, "inject") || text_equal(phase, "check"));
}

/* What a request waits behind: a lease's key, or one of the two words above; "" when behind nothing. */
static void key_of(const char *method, const json_t *params, char ret[static LEASE_KEY_SIZE])
{
	const json_t *lease = json_object_get(params, "lease");

	ret[0] = '\0';
	if (text_equal(method, "lease.list"))
		text_copy(ret, LEASE_KEY_SIZE, LIST_KEY);
	else if (text_equal(method, "lease.release") || text_equal(method, "lease.extend"))
		text_copy(ret, LEASE_KEY_SIZE, json_text_or(params, "lease_id", ""));
	else if (text_equal(method, "task.execute") &&
		agent_lease_key(lease, params, ret, NULL) < 0 && is_injection(method, params))
		text_copy(ret, LEASE_KEY_SIZE, TASK_KEY);
}

static bool is_blocked(struct agent *a, const char *method, const json_t *params, const char *key)
{
	const struct entry *e;
	unsigned lists = 0;

	if (text_equal(key, LIST_KEY)) {
		for (const struct clerk *c = a->clerks; c; c = c->next)
			lists += c->is_list;
		return lists >= LISTS_MAX || a->out.len >= AGENT_OUT_PAUSE;
	}
	if (a->tasks_running >= TASKS_MAX && is_injection(method, params))
		return true;
	e = text_equal(key, TASK_KEY) ? NULL : agent_entry_find(a, key);
	return e && agent_entry_is_busy(e);
}

bool agent_defer(struct agent *a, const json_t *id, const char *method, const json_t *params)
{
	char key[LEASE_KEY_SIZE];
	bool behind = false;
	size_t i;
	json_t *d;

	key_of(method, params, key);
	if (!key[0])
		return false;
	json_array_foreach(a->deferred, i, d)
		behind = behind || text_equal(json_text_or(d, "key", ""), key);
	if (!behind && !is_blocked(a, method, params, key))
		return false;
	return json_array_append_new(a->deferred,
		       json_pack("{s:s, s:O, s:s, s:O}", "key", key, "id", id, "method", method,
			       "params", params)) == 0;
}

void agent_dispatch_deferred(struct agent *a)
{
	_json_ json_t *ahead = NULL; /* keys that an earlier one still waits for, as a set */

	if (json_array_size(a->deferred))
		ahead = json_object();
	for (size_t i = 0; i < json_array_size(a->deferred);) {
		_json_ json_t *d = json_incref(json_array_get(a->deferred, i));
		const char *key = json_text_or(d, "key", ""),
			   *method = json_text_or(d, "method", "");
		const json_t *params = json_object_get(d, "params");

		/* At an end by signal they are refused like what comes then. */
		if (!a->interrupted &&
			(json_object_get(ahead, key) || is_blocked(a, method, params, key))) {
			json_object_set_new(ahead, key, json_true());
			i++;
			continue;
		}
		json_array_remove(a->deferred, i);
		agent_serve_method(a, json_object_get(d, "id"), method, params);
	}
}
