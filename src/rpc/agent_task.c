/* SPDX-License-Identifier: Apache-2.0 */
/* task.execute, task.status, task.cancel. */
#include <string.h>

#include "base/arena.h"
#include "base/cleanup.h"
#include "base/clock.h"
#include "base/json.h"
#include "base/text.h"
#include "fault/fault.h"
#include "rpc/agent_state.h"

#define STATUS_LIMIT 200
#define STATUS_LIMIT_MAX 500

enum phase { PHASE_CHECK, PHASE_INJECT, PHASE_OBSERVE, PHASE_UNDO, PHASE_VERIFY, PHASE_MAX };

static const char *const phase_names[PHASE_MAX] = {"check", "inject", "observe", "undo", "verify"};
static const char *const state_names[] = {"queued", "running", "done", "cancelled"};

static const char *task_name(const struct task *t, char buf[static 16])
{
	snprintf(buf, 16, "t-%06u", t->number % 1000000);
	return buf;
}

struct task *agent_task_new(struct agent *a, struct entry *e)
{
	struct task *t = arena_calloc(sizeof(*t));

	if (!t)
		return NULL;
	t->number = ++a->next_task;
	t->state = TASK_RUNNING;
	t->entry = e;
	t->next = a->tasks;
	a->tasks = t;
	a->tasks_running++;
	if (e && !e->task_number)
		e->task_number = t->number;
	return t;
}

/* The oldest that are over are forgotten; a session's memory has an end. */
static void forget_old_tasks(struct agent *a)
{
	unsigned kept = 0;

	for (struct task **at = &a->tasks; *at;) {
		struct task *t = *at;

		if (++kept <= AGENT_TASKS_KEPT || t->state == TASK_RUNNING ||
			(t->entry && t->entry->holder)) {
			at = &t->next;
			continue;
		}
		*at = t->next;
		arena_free(t);
	}
}

void agent_task_done(struct agent *a, struct task *t, enum task_state state, const char *detail)
{
	if (t->state == TASK_RUNNING)
		a->tasks_running--;
	t->state = state;
	text_copy(t->detail, sizeof(t->detail), detail);
}

void agent_tasks_free(struct agent *a)
{
	struct task *next;

	for (struct task *t = a->tasks; t; t = next) {
		next = t->next;
		arena_free(t);
	}
	a->tasks = NULL;
}

json_t *agent_task_result(const struct task *t, bool ok, const char *reason, const char *detail,
	json_t *lease, json_t *observation)
{
	char name[16];

	return json_pack("{s:s, s:s, s:b, s:s?, s:s, s:O?, s:O?}", "task_id", task_name(t, name),
		"state", t->state == TASK_CANCELLED ? "cancelled" : "done", "ok", ok, "reason",
		reason[0] ? reason : NULL, "detail", detail, "lease", lease, "observation",
		observation);
}

json_t *agent_task_cancelled(const struct task *t)
{
	char name[16];

	return json_pack("{s:s, s:s}", "task_id", task_name(t, name), "state", "cancelled");
}

static int read_phase(const json_t *params, enum phase *ret, struct err *err)
{
	static const char *const keys[] = {"run_id", "agent_id", "fault_id", "lease", "phase"};
	const json_t *v = json_object_get(params, "phase");
	int r = json_check_keys(params, keys, ARRAY_SIZE(keys), "task.execute", "params.unknown",
		err);

	if (r < 0)
		return r;
	*ret = PHASE_INJECT;
	if (!v)
		return 0;
	for (int i = 0; json_is_string(v) && i < PHASE_MAX; i++)
		if (text_equal(json_string_value(v), phase_names[i])) {
			*ret = (enum phase)i;
			return 0;
		}
	return err_set(err, json_is_string(v) ? "params.range" : "params.type", 0, "params",
		"`phase` must be check, inject, observe, undo or verify");
}

/* The same declared lease again, live: answered as it stands, and nothing is injected. */
static bool answer_as_stored(struct agent *a, const json_t *id, struct entry *e)
{
	struct task *t;

	if (!e || !e->holder || e->ended || !e->lease)
		return false;
	t = agent_task_new(a, e);
	agent_task_done(a, t, TASK_DONE, "already live");
	agent_reply(a, id, agent_task_result(t, true, "", "already live", e->lease, NULL));
	return true;
}

static const char *take_spare(struct agent *a)
{
	return a->n_spares ? a->spares[--a->n_spares] : "";
}

static void entry_drop(struct agent *a, struct entry *e)
{
	for (struct entry **at = &a->entries; e && *at; at = &(*at)->next)
		if (*at == e) {
			*at = e->next;
			json_decref(e->lease);
			arena_free(e);
			return;
		}
}

static char *lease_text(const struct lease *l)
{
	_json_ json_t *j = lease_to_json(l);

	return j ? json_text(j) : NULL;
}

static uint64_t longest_ttl(const struct lease *l)
{
	const struct fault_entry *f = l->declared ? NULL : catalogue_find(l->fault_id);
	uint64_t max = f ? (uint64_t)f->max_duration_s * 1000 + 60000 : 7 * 86400000ull;

	return max > 120000 ? max : 120000;
}

/*
 * Reads what is asked for and decides whether it may be: an entry to start a
 * holder for, with the setup filled in; else NULL, and the request is answered.
 */
static struct entry *admit(struct agent *a, const json_t *id, const json_t *params,
	struct holder_setup *setup, char **ret_text)
{
	_lease_ struct lease l = {0};
	struct err err = {0};
	struct entry *e = NULL;
	int code = RPC_INTERNAL_ERROR;

	if (agent_read_lease(a, params, &l, &setup->steps, &code, &err) < 0)
		goto refused;
	if (l.declared && !setup->check_only && answer_as_stored(a, id, agent_entry_find(a, l.key)))
		return NULL;
	e = agent_entry_new(a, &l);
	if (!e || agent_permit(a, &l, setup->steps, e, &setup->target_pidfd, &code, &err) < 0)
		goto refused;
	e->max_ttl_ms = longest_ttl(&l);
	*ret_text = lease_text(&l);
	if (!*ret_text) {
		code = RPC_INTERNAL_ERROR;
		err_set(&err, "launch.failed", ENOMEM, "lease", "no memory");
		goto refused;
	}
	setup->lease_text = *ret_text;
	text_copy(setup->key, sizeof(setup->key), e->key);
	a->store.next_hint = a->next_hint;
	if (!setup->check_only && !l.declared && !l.id[0])
		a->next_hint++;
	return e;
refused:
	close_now(&setup->target_pidfd);
	entry_drop(a, e);
	agent_error(a, id, code, &err);
	return NULL;
}

/* Shallow: each holder inherits the stack on which it was cloned. */
static void execute_new(struct agent *a, const json_t *id, const json_t *params, bool check_only)
{
	struct holder_setup setup = {
		.store = &a->store,
		.find_steps = fault_find_steps,
		.agent_pidfd = a->self_pidfd,
		.sharedfd = a->inotify.fd,
		.target_pidfd = -1,
		.check_only = check_only,
	};
	_free_ char *text = NULL;
	struct err err;
	struct entry *e = admit(a, id, params, &setup, &text);

	if (!e)
		return;
	setup.spare = check_only ? "" : take_spare(a);
	if (agent_entry_start(a, e, &setup, &err) < 0) {
		entry_drop(a, e);
		agent_error(a, id, RPC_TASK_FAILED, &err);
	} else {
		agent_entry_wait(e, WAIT_TASK, id, agent_task_new(a, e));
	}
	close_now(&setup.target_pidfd);
	agent_stock(a);
	forget_old_tasks(a);
}

static void execute_undo(struct agent *a, const json_t *id, const json_t *params, const char *key)
{
	struct entry *e = agent_entry_find(a, key);
	struct err err = {0};
	struct task *t;

	if (!e && policy_check_capability(&a->policy, CAPABILITY_FAULT_UNDO, &err) < 0)
		return agent_error(a, id, RPC_SAFETY_REFUSED, &err);
	t = agent_task_new(a, e);
	if (e && e->holder && !e->ended) {
		agent_entry_wait(e, WAIT_RELEASE, id, t);
		agent_entry_release(a, e, LEASE_END_NORMAL);
	} else if (e && e->ended && e->lease && !e->dirty) {
		agent_task_done(a, t, TASK_DONE, "undone already");
		agent_reply(a, id,
			agent_task_result(t, true, "", "undone already", e->lease, NULL));
	} else {
		agent_clerk_release(a, id, key, params, t);
	}
}

static void execute_observe(struct agent *a, const json_t *id, const char *key)
{
	struct entry *e = agent_entry_find(a, key);
	struct err err = {0};

	if (!e || !e->holder || e->ended) {
		err_set(&err, "lease.not_yours", 0, "observe",
			"%s is not a live lease of this session", key);
		return agent_error(a, id, RPC_SAFETY_REFUSED, &err);
	}
	if (holder_send(e->holder, HOLDER_OBSERVE, 0, &err) < 0)
		return agent_error(a, id, RPC_TASK_FAILED, &err);
	agent_entry_wait(e, WAIT_OBSERVE, id, agent_task_new(a, e));
}

void agent_task_execute(struct agent *a, const json_t *id, const json_t *params)
{
	char key[LEASE_KEY_SIZE];
	struct err err = {0};
	enum phase phase;

	if (read_phase(params, &phase, &err) < 0)
		return agent_error(a, id, RPC_INVALID_PARAMS, &err);
	if (phase == PHASE_INJECT || phase == PHASE_CHECK)
		return execute_new(a, id, params, phase == PHASE_CHECK);
	if (!json_object_get(params, "lease"))
		err_set(&err, "params.missing", 0, "params", "`lease` is missing");
	if (err.code[0] || agent_lease_key(json_object_get(params, "lease"), params, key, &err) < 0)
		return agent_error(a, id, RPC_INVALID_PARAMS, &err);
	if (phase == PHASE_UNDO)
		execute_undo(a, id, params, key);
	else if (phase == PHASE_OBSERVE)
		execute_observe(a, id, key);
	else
		agent_clerk_verify(a, id, key, agent_task_new(a, agent_entry_find(a, key)));
}

static struct task *find_task(struct agent *a, const char *name)
{
	for (struct task *t = a->tasks; t; t = t->next) {
		char buf[16];

		if (text_equal(task_name(t, buf), name))
			return t;
	}
	return NULL;
}

static json_t *task_to_json(const struct task *t)
{
	char name[16];

	return json_pack("{s:s, s:s, s:s}", "task_id", task_name(t, name), "state",
		state_names[t->state], "detail", t->detail);
}

struct page {
	int64_t limit;
	char task_id[32], after[32];
};

static int read_page(const json_t *params, struct page *ret, struct err *err)
{
	static const char *const keys[] = {"run_id", "agent_id", "task_id", "limit", "after"};
	int r = json_check_keys(params, keys, ARRAY_SIZE(keys), "task.status", "params.unknown",
		err);

	ret->limit = STATUS_LIMIT;
	if (r == 0)
		r = json_get_int(params, "limit", 1, STATUS_LIMIT_MAX, &ret->limit, "params.range",
			err);
	if (r == 0 || r == -ENOENT)
		r = json_get_text(params, "task_id", ret->task_id, sizeof(ret->task_id),
			"params.type", err);
	if (r == 0 || r == -ENOENT)
		r = json_get_text(params, "after", ret->after, sizeof(ret->after), "params.type",
			err);
	return r == -ENOENT ? 0 : r;
}

static void add_tasks(struct agent *a, const struct page *p, json_t *list, json_t **ret_next)
{
	bool begun = !p->after[0];
	const struct task *last = NULL;
	char name[16];

	*ret_next = json_null();
	for (struct task *t = a->tasks; t; t = t->next) {
		if (!begun) {
			begun = text_equal(task_name(t, name), p->after);
			continue;
		}
		if (p->task_id[0] && !text_equal(task_name(t, name), p->task_id))
			continue;
		if ((int64_t)json_array_size(list) == p->limit) {
			*ret_next = json_string(task_name(last, name));
			return;
		}
		json_array_append_new(list, task_to_json(t));
		last = t;
	}
}

void agent_task_status(struct agent *a, const json_t *id, const json_t *params)
{
	json_t *tasks, *watchdog, *compensated, *next;
	struct page p = {0};
	struct err err = {0};

	if (read_page(params, &p, &err) < 0)
		return agent_error(a, id, RPC_INVALID_PARAMS, &err);
	tasks = json_array();
	watchdog = json_array();
	compensated = json_array();
	add_tasks(a, &p, tasks, &next);
	for (const struct entry *e = a->entries; e; e = e->next) {
		const char *lease_id = json_text_or(e->lease, "id", ""),
			   *state = json_text_or(e->lease, "state", "");
		char name[16];
		struct task t = {.number = e->task_number};

		if (!e->lease)
			continue;
		if (e->holder && !e->ended && json_array_size(watchdog) < STATUS_LIMIT_MAX)
			json_array_append_new(watchdog,
				json_pack("{s:s, s:s, s:f, s:s}", "lease_id", lease_id, "state",
					state, "expires_in_s",
					(double)clock_until_ms(e->deadline_boottime_ms) / 1000,
					"task_id", task_name(&t, name)));
		else if (e->ended && json_array_size(compensated) < STATUS_LIMIT_MAX)
			json_array_append_new(compensated,
				json_pack("{s:s, s:s}", "lease_id", lease_id, "state",
					e->dirty ? "dirty" : "expired"));
	}
	agent_reply(a, id,
		json_pack("{s:o, s:o, s:o, s:o}", "tasks", tasks, "watchdog", watchdog,
			"compensated", compensated, "next", next));
}

void agent_task_cancel(struct agent *a, const json_t *id, const json_t *params)
{
	char name[32] = "", buf[16];
	struct err err = {0};
	struct task *t;
	int r = json_get_text(params, "task_id", name, sizeof(name), "params.type", &err);

	if (r == -ENOENT)
		err_set(&err, "params.missing", 0, "params", "`task_id` is missing");
	if (r < 0)
		return agent_error(a, id, RPC_INVALID_PARAMS, &err);
	t = find_task(a, name);
	if (t && t->entry && t->entry->holder && !t->entry->ended) {
		agent_entry_wait(t->entry, WAIT_CANCEL, id, t);
		agent_entry_release(a, t->entry, LEASE_END_CANCELLED);
		return;
	}
	if (t && t->state != TASK_RUNNING)
		t->state = TASK_CANCELLED;
	agent_reply(a, id,
		json_pack("{s:s, s:s}", "task_id", t ? task_name(t, buf) : name, "state",
			t ? "cancelled" : "unknown"));
}
