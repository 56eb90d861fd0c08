/* SPDX-License-Identifier: Apache-2.0 */
/* The methods by name, and those that are answered at once. */
#include <string.h>

#include "base/cleanup.h"
#include "base/clock.h"
#include "base/json.h"
#include "base/text.h"
#include "fault/fault.h"
#include "rpc/agent_state.h"

#define HEARTBEAT_MAX_S 3600
#define CATALOG_LIMIT 200
#define CATALOG_LIMIT_MAX 500

static const char *const all_roles[] = {"proc", "fs", "res", "net", "engine", "host", "job"};

static json_t *roles_to_json(unsigned mask)
{
	json_t *list = json_array();

	for (size_t i = 0; i < ARRAY_SIZE(all_roles); i++)
		if (mask & 1u << i)
			json_array_append_new(list, json_string(all_roles[i]));
	return list;
}

static int take_text(const json_t *params, const char *key, char *dst, size_t size, struct err *err)
{
	int r = json_get_text(params, key, dst, size, "params.type", err);

	if (r == 0 && !dst[0])
		return err_set(err, "params.range", 0, "handshake", "`%s` must not be empty", key);
	return r == -ENOENT ? 0 : r;
}

/* All of a handshake counts, or nothing. */
struct wishes {
	char owner[LEASE_TEXT_SIZE], session[LEASE_TEXT_SIZE];
	bool events, survive;
	int64_t heartbeat_s;
};

static int read_wishes(const json_t *params, struct wishes *w, struct err *err)
{
	int r = json_get_int(params, "heartbeat_s", 0, HEARTBEAT_MAX_S, &w->heartbeat_s,
		"params.range", err);

	if (r == 0 || r == -ENOENT)
		r = json_get_bool(params, "events", &w->events, "params.type", err);
	if (r == 0 || r == -ENOENT)
		r = json_get_bool(params, "survive", &w->survive, "params.type", err);
	if (r == 0 || r == -ENOENT)
		r = take_text(params, "owner", w->owner, sizeof(w->owner), err);
	return r < 0 ? r : take_text(params, "session", w->session, sizeof(w->session), err);
}

static int read_handshake(struct agent *a, const json_t *params, struct err *err)
{
	static const char *const keys[] = {"run_id", "agent_id", "owner", "session", "protocols",
		"survive", "heartbeat_s", "events", "capabilities", "authority"};
	const json_t *protocols = json_object_get(params, "protocols"),
		     *caps = json_object_get(params, "capabilities");
	struct wishes w = {.events = a->events, .survive = a->survive};
	bool known = !protocols;
	size_t i;
	json_t *v;
	int r = json_check_keys(params, keys, ARRAY_SIZE(keys), "handshake", "params.unknown", err);

	if (r < 0)
		return r;
	if (protocols && !json_is_array(protocols))
		return err_set(err, "params.type", 0, "handshake", "`protocols` must be a list");
	json_array_foreach((json_t *)protocols, i, v)
		known |= json_is_string(v) && text_equal(json_string_value(v), FRAME_PROTOCOL);
	if (!known)
		return err_set(err, "params.range", 0, "handshake",
			"only " FRAME_PROTOCOL " is spoken here");
	text_copy(w.owner, sizeof(w.owner), a->owner);
	text_copy(w.session, sizeof(w.session), a->session);
	r = read_wishes(params, &w, err);
	if (r == 0 && caps && !json_is_null(caps))
		r = policy_add_handshake(&a->policy, caps, err);
	if (r < 0)
		return r;
	text_copy(a->owner, sizeof(a->owner), w.owner);
	text_copy(a->session, sizeof(a->session), w.session);
	a->events = w.events;
	a->survive = w.survive;
	a->heartbeat_ms = (uint64_t)w.heartbeat_s * 1000;
	return 0;
}

static void handshake(struct agent *a, const json_t *id, const json_t *params)
{
	struct err err = {0};

	if (read_handshake(a, params, &err) < 0) {
		agent_error(a, id, RPC_INVALID_PARAMS, &err);
		return;
	}
	if (!a->session[0])
		text_copy(a->session, sizeof(a->session), json_text_or(params, "run_id", ""));
	agent_reply(a, id,
		json_pack("{s:s, s:s, s:s, s:o, s:{s:s, s:s, s:s, s:s}, s:I}", "agent_id",
			a->agent_id, "protocol", FRAME_PROTOCOL, "agent_version",
			a->options.version, "roles", roles_to_json(a->options.roles), "host",
			"hostname", a->kernel.hostname, "boot_id", a->store.boot_id, "kernel",
			a->kernel.release, "arch", a->kernel.arch, "clock_ms",
			(json_int_t)clock_utc_ms()));
}

static json_t *fault_to_json(const struct agent *a, const struct fault_entry *e)
{
	json_t *j = catalogue_entry_to_json(e);
	bool role = agent_role_allows(a, e->id), steps = fault_find_native(e->id) != NULL;

	json_object_set_new(j, "executable", json_boolean(role && steps));
	json_object_set_new(j, "backend", steps ? json_string("signal") : json_null());
	json_object_set_new(j, "reason",
		!steps		? json_string("fault.not_executable")
			: !role ? json_string("role.denied")
				: json_null());
	return j;
}

/* Sorted by id: there is no newest. */
static json_t *catalogue(const struct agent *a, int64_t limit, const char *after, json_t **ret_next)
{
	size_t n;
	const struct fault_entry *e = catalogue_entries(&n);
	json_t *list = json_array();

	*ret_next = json_null();
	for (size_t i = 0; i < n; i++) {
		if (after[0] && strcmp(e[i].id, after) <= 0)
			continue;
		if ((int64_t)json_array_size(list) == limit) {
			*ret_next = json_string(e[i - 1].id);
			break;
		}
		json_array_append_new(list, fault_to_json(a, &e[i]));
	}
	return list;
}

static void capabilities(struct agent *a, const json_t *id, const json_t *params)
{
	char after[LEASE_TEXT_SIZE] = "";
	int64_t limit = CATALOG_LIMIT;
	json_t *families, *catalog, *next;
	struct err err = {0};
	int r = json_get_int(params, "limit", 1, CATALOG_LIMIT_MAX, &limit, "params.range", &err);

	if (r == 0 || r == -ENOENT)
		r = json_get_text(params, "after", after, sizeof(after), "params.type", &err);
	if (r < 0 && r != -ENOENT)
		return agent_error(a, id, RPC_INVALID_PARAMS, &err);
	families = json_array();
	for (size_t i = 0; i < fault_families_n(); i++)
		if (agent_role_allows(a, fault_families[i]))
			json_array_append_new(families, json_string(fault_families[i]));
	catalog = catalogue(a, limit, after, &next);
	agent_reply(a, id,
		json_pack("{s:o, s:o, s:o, s:o, s:{s:s, s:s}, s:o}", "roles",
			roles_to_json(a->options.roles), "faults", families, "catalog", catalog,
			"kernel", kernel_to_json(&a->kernel), "cgroup", "mode",
			cgroup_mode_name(a->store.domain.mode), "kill",
			cgroup_kill_name(a->store.domain.kill), "next", next));
}

static void ping(struct agent *a, const json_t *id, const json_t *params _unused_)
{
	agent_reply(a, id,
		json_pack("{s:b, s:i, s:i, s:I}", "pong", true, "inflight", (int)a->tasks_running,
			"owned_leases", (int)a->live, "clock_ms", (json_int_t)clock_utc_ms()));
}

static int lease_id_of(const struct agent *a _unused_, const json_t *params,
	char ret[static LEASE_KEY_SIZE], struct err *err)
{
	char id[LEASE_ID_SIZE] = "";
	int r = json_get_text(params, "lease_id", id, sizeof(id), "params.type", err);

	if (r == -ENOENT)
		return err_set(err, "params.missing", 0, "params", "`lease_id` is missing");
	if (r < 0)
		return r;
	if (!lease_id_is_native(id) && !(text_has_prefix(id, "d-") && text_is_hex(id + 2, 32)))
		return err_set(err, "lease.unknown", 0, "params", "`%.64s` is no lease's id", id);
	text_copy(ret, LEASE_KEY_SIZE, id);
	return 0;
}

static void release(struct agent *a, const json_t *id, const json_t *params)
{
	char key[LEASE_KEY_SIZE];
	struct err err = {0};
	struct entry *e;

	if (lease_id_of(a, params, key, &err) < 0) {
		agent_error(a, id, RPC_INVALID_PARAMS, &err);
		return;
	}
	e = agent_entry_find(a, key);
	if (e && e->holder && !e->ended) {
		agent_entry_wait(e, WAIT_RELEASE, id, NULL);
		agent_entry_release(a, e, LEASE_END_NORMAL);
		return;
	}
	/* What we hold ourselves may always be undone; anybody else's needs the right to. */
	if (!e && policy_check_capability(&a->policy, CAPABILITY_FAULT_UNDO, &err) < 0)
		agent_error(a, id, RPC_SAFETY_REFUSED, &err);
	else
		agent_clerk_release(a, id, key, params, NULL);
}

static void extend(struct agent *a, const json_t *id, const json_t *params)
{
	const json_t *ttl = json_object_get(params, "ttl_seconds");
	char key[LEASE_KEY_SIZE];
	struct err err = {0};
	struct entry *e;
	double s;

	if (lease_id_of(a, params, key, &err) < 0)
		return agent_error(a, id, RPC_INVALID_PARAMS, &err);
	s = json_is_number(ttl) ? json_number_value(ttl) : -1;
	if (!json_is_number(ttl))
		err_set(&err, ttl ? "params.type" : "params.missing", 0, "params",
			"`ttl_seconds` must be a number");
	e = agent_entry_find(a, key);
	if (json_is_number(ttl) && !(s > 0 && s * 1000 <= (double)(e ? e->max_ttl_ms : 86400000)))
		err_set(&err, "params.range", 0, "params", "`ttl_seconds` is outside 0 to %llu",
			(unsigned long long)(e ? e->max_ttl_ms / 1000 : 86400));
	if (err.code[0])
		return agent_error(a, id, RPC_INVALID_PARAMS, &err);
	if (!e || !e->holder || e->ended) {
		err_set(&err, "lease.not_yours", 0, "extend",
			"%s is not a live lease of this session", key);
		return agent_error(a, id, RPC_SAFETY_REFUSED, &err);
	}
	if (holder_send(e->holder, HOLDER_EXTEND, (uint64_t)(s * 1000 + 0.5), &err) < 0)
		return agent_error(a, id, RPC_TASK_FAILED, &err);
	agent_entry_wait(e, WAIT_EXTEND, id, NULL);
}

#define METHOD_KEYS_MAX 8

static const struct method {
	const char *name;
	void (*serve)(struct agent *a, const json_t *id, const json_t *params);
	bool waits;			   /* until the start's recovery has read all records */
	const char *keys[METHOD_KEYS_MAX]; /* of params; none: the method looks by itself */
} methods[] = {
	{"handshake", handshake, false, {NULL}},
	{"capabilities.query", capabilities, false, {"run_id", "agent_id", "limit", "after"}},
	{"health.ping", ping, false, {"run_id", "agent_id"}},
	{"task.execute", agent_task_execute, true, {NULL}},
	{"task.status", agent_task_status, false, {NULL}},
	{"task.cancel", agent_task_cancel, true, {"run_id", "agent_id", "task_id"}},
	{"lease.list", agent_clerk_list, true, {NULL}},
	{"lease.extend", extend, true, {"run_id", "agent_id", "lease_id", "ttl_seconds"}},
	{"lease.release", release, true, {"run_id", "agent_id", "lease_id", "surrender", "note"}},
};

static size_t n_keys(const struct method *m)
{
	size_t n = 0;

	while (n < METHOD_KEYS_MAX && m->keys[n])
		n++;
	return n;
}

static int check_correlation(const json_t *params, struct err *err)
{
	static const char *const keys[] = {"run_id", "agent_id"};
	char missing[64] = "";

	for (size_t i = 0; i < ARRAY_SIZE(keys); i++) {
		const json_t *v = json_object_get(params, keys[i]);

		if (!v)
			snprintf(missing + strlen(missing), sizeof(missing) - strlen(missing),
				"%s`%s`", missing[0] ? " and " : "", keys[i]);
		else if (!json_is_string(v) || json_string_length(v) == 0)
			return err_set(err, "params.type", 0, "params",
				"`%s` must be a non-empty string", keys[i]);
		else if (json_string_length(v) >= LEASE_TEXT_SIZE ||
			!text_is_plain(json_string_value(v)))
			return err_set(err, "params.range", 0, "params",
				"`%s` must be at most %d plain bytes", keys[i],
				LEASE_TEXT_SIZE - 1);
	}
	if (missing[0])
		return err_set(err, "params.missing", 0, "params", "params lack %s", missing);
	return 0;
}

static const struct method *find_method(const char *name)
{
	for (size_t i = 0; i < ARRAY_SIZE(methods); i++)
		if (text_equal(methods[i].name, name))
			return &methods[i];
	return NULL;
}

void agent_serve_method(struct agent *a, const json_t *id, const char *method, const json_t *params)
{
	const struct method *m = find_method(method);
	struct err err;

	if (a->interrupted) {
		err_set(&err, "session.ending", 0, "dispatch", "this session is ending");
		agent_error(a, id, RPC_SAFETY_REFUSED, &err);
	} else if (m) {
		m->serve(a, id, params);
	}
}

static void check_and_serve(struct agent *a, const json_t *id, const struct method *m,
	const json_t *params)
{
	struct err err = {0};

	if (m->keys[0] &&
		json_check_keys(params, m->keys, n_keys(m), m->name, "params.unknown", &err) < 0)
		agent_error(a, id, RPC_INVALID_PARAMS, &err);
	else if (a->interrupted || !agent_defer(a, id, m->name, params))
		agent_serve_method(a, id, m->name, params);
}

void agent_dispatch(struct agent *a, struct frame *f)
{
	const struct method *m;
	struct err err = {0};

	if (check_correlation(f->params, &err) < 0)
		return agent_error(a, f->id, RPC_INVALID_PARAMS, &err);
	m = find_method(f->method);
	if (!m) {
		err_set(&err, "method.unknown", 0, "dispatch", "no such method: %.100s", f->method);
		return agent_error(a, f->id, RPC_METHOD_NOT_FOUND, &err);
	}
	if (m->waits && !a->ready && !a->interrupted)
		json_array_append_new(a->queued,
			json_pack("{s:O, s:s, s:O}", "id", f->id, "method", f->method, "params",
				f->params));
	else
		check_and_serve(a, f->id, m, f->params);
}

void agent_dispatch_queued(struct agent *a)
{
	_json_ json_t *queued = a->queued;
	size_t i;
	json_t *q;

	a->queued = json_array();
	json_array_foreach(queued, i, q)
		check_and_serve(a, json_object_get(q, "id"),
			find_method(json_text_or(q, "method", "")), json_object_get(q, "params"));
}
