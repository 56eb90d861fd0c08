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

static bool is_execute(const char *method)
{
	return text_equal(method, "task.execute");
}

/* What a request waits behind: a lease's key, or one of the two words above; "" when behind nothing. */
static void key_of(const char *method, const json_t *params, char ret[static LEASE_KEY_SIZE])
{
	const json_t *lease = json_object_get(params, "lease");

	ret[0] = '\0';
	if (text_equal(method, "lease.list"))
		text_copy(ret, LEASE_KEY_SIZE, LIST_KEY);
	else if (is_execute(method) && agent_lease_key(lease, params, ret, NULL) < 0)
		text_copy(ret, LEASE_KEY_SIZE, TASK_KEY);
	else if (text_equal(method, "lease.release") || text_equal(method, "lease.extend"))
		text_copy(ret, LEASE_KEY_SIZE, json_text_or(params, "lease_id", ""));
}

static bool is_blocked(struct agent *a, const char *method, const char *key)
{
	const struct entry *e;
	unsigned lists = 0;

	if (text_equal(key, LIST_KEY)) {
		for (const struct clerk *c = a->clerks; c; c = c->next)
			lists += c->is_list;
		return lists >= LISTS_MAX || a->out.len >= AGENT_OUT_PAUSE;
	}
	if (is_execute(method) && a->tasks_running >= TASKS_MAX)
		return true;
	e = agent_entry_find(a, key);
	return e && agent_entry_is_busy(e);
}

static bool is_behind(const struct agent *a, const char *key, size_t end)
{
	for (size_t i = 0; i < end; i++)
		if (text_equal(json_text_or(json_array_get(a->deferred, i), "key", ""), key))
			return true;
	return false;
}

bool agent_defer(struct agent *a, const json_t *id, const char *method, const json_t *params)
{
	char key[LEASE_KEY_SIZE];

	key_of(method, params, key);
	if (!key[0] ||
		(!is_behind(a, key, json_array_size(a->deferred)) && !is_blocked(a, method, key)))
		return false;
	return json_array_append_new(a->deferred,
		       json_pack("{s:s, s:O, s:s, s:O}", "key", key, "id", id, "method", method,
			       "params", params)) == 0;
}

void agent_dispatch_deferred(struct agent *a)
{
	for (size_t i = 0; i < json_array_size(a->deferred);) {
		_json_ json_t *d = json_incref(json_array_get(a->deferred, i));
		const char *key = json_text_or(d, "key", ""),
			   *method = json_text_or(d, "method", "");

		/* At an end by signal they are refused like what comes then. */
		if (!a->interrupted && (is_behind(a, key, i) || is_blocked(a, method, key))) {
			i++;
			continue;
		}
		json_array_remove(a->deferred, i);
		agent_serve_method(a, json_object_get(d, "id"), method,
			json_object_get(d, "params"));
	}
}
