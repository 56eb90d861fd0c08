/* SPDX-License-Identifier: Apache-2.0 */
/* The lease as it is written down: one shape on the wire, on disk and in evidence. */
#include <string.h>
#include <time.h>

#include "base/cleanup.h"
#include "base/clock.h"
#include "base/json.h"
#include "base/text.h"
#include "lease/lease.h"

static json_t *utc_or_null(uint64_t utc_ms)
{
	char buf[CLOCK_UTC_SIZE];

	return utc_ms ? json_string(clock_format_utc(utc_ms, buf)) : json_null();
}

static json_t *text_or_null(const char *s)
{
	return s[0] ? json_string(s) : json_null();
}

/* Whole seconds as an integer, else thousandths. */
static json_t *seconds(uint64_t ms)
{
	return ms % 1000 ? json_real((double)ms / 1000) : json_integer((json_int_t)(ms / 1000));
}

json_t *lease_to_json(const struct lease *l)
{
	json_t *j = json_pack("{s:s, s:s, s:s, s:s, s:s, s:b, s:s, s:s, s:b}", "id", l->id,
		"run_id", l->run_id, "fault_id", l->fault_id, "owner", l->owner, "owner_agent",
		l->owner_agent, "declared", l->declared, "undo_kind", undo_kind_name(l->undo_kind),
		"state", lease_machine.names[l->state], "survive", l->survive);
	int bad = 0;

	if (!j)
		return NULL;
	bad |= json_object_set(j, "target", l->target);
	bad |= json_object_set(j, "targets", l->targets);
	bad |= json_object_set(j, "params", l->params);
	bad |= json_object_set(j, "undo_ops", l->undo_ops);
	bad |= json_object_set(j, "verify_probes", l->verify_probes);
	bad |= json_object_set(j, "resources", l->resources);
	bad |= json_object_set(j, "observations", l->observations);
	bad |= json_object_set(j, "remedy", l->remedy);
	bad |= json_put(j, "verified_by", text_or_null(l->verified_by));
	bad |= json_put(j, "duration_ms",
		l->duration_ms < 0 ? json_null() : json_integer(l->duration_ms));
	bad |= json_put(j, "ttl_seconds", seconds(l->ttl_ms));
	bad |= json_put(j, "deadline_boottime_ms",
		json_integer((json_int_t)l->deadline_boottime_ms));
	bad |= json_put(j, "created_at", utc_or_null(l->created_ms));
	bad |= json_put(j, "injected_at", utc_or_null(l->injected_ms));
	bad |= json_put(j, "released_at", utc_or_null(l->released_ms));
	bad |= json_put(j, "boot_id", json_string(l->boot_id));
	bad |= json_put(j, "pidns", json_integer((json_int_t)l->pidns));
	bad |= json_put(j, "timens", json_integer((json_int_t)l->timens));
	bad |= json_put(j, "host",
		json_pack("{s:s, s:s}", "machine_id", l->machine_id, "hostname", l->hostname));
	bad |= json_put(j, "holder",
		l->holder.nonce[0] ? launch_record_to_json(&l->holder) : json_null());
	bad |= json_put(j, "release_mechanism", text_or_null(lease_end_name(l->end)));
	bad |= json_put(j, "escalation_notes", text_or_null(l->notes));
	bad |= json_put(j, "observations_dropped", json_integer(l->dropped));
	if (bad) {
		json_decref(j);
		return NULL;
	}
	return j;
}

static int shape(const char *key, struct err *err)
{
	return err_set(err, "lease.shape", 0, "read", "a lease record has no proper `%s`", key);
}

static int get_text(const json_t *j, const char *key, char *dst, size_t size, struct err *err)
{
	const json_t *v = json_object_get(j, key);

	if (json_is_null(v))
		return 0;
	if (!json_is_string(v) || !text_copy(dst, size, json_string_value(v)))
		return shape(key, err);
	return 0;
}

static int get_u64(const json_t *j, const char *key, uint64_t *ret, struct err *err)
{
	const json_t *v = json_object_get(j, key);

	if (!json_is_integer(v) || json_integer_value(v) < 0)
		return shape(key, err);
	*ret = (uint64_t)json_integer_value(v);
	return 0;
}

static int get_array(const json_t *j, const char *key, json_t **dst, struct err *err)
{
	json_t *v = json_object_get(j, key);

	if (!json_is_array(v))
		return shape(key, err);
	json_decref(*dst);
	*dst = json_incref(v);
	return 0;
}

/* "2026-01-02T03:04:05.678Z" back to milliseconds: for people only, so a wrong one is 1, "some time". */
static int get_time(const json_t *j, const char *key, uint64_t *ret, struct err *err)
{
	const json_t *v = json_object_get(j, key);
	const char *s = json_string_value(v);
	struct tm tm = {0};
	const char *rest;
	uint64_t ms;

	if (json_is_null(v))
		return 0;
	rest = s ? strptime(s, "%Y-%m-%dT%H:%M:%S", &tm) : NULL;
	if (!rest || *rest != '.' || text_parse_u64_n(rest + 1, 3, &ms) < 0)
		return shape(key, err);
	*ret = (uint64_t)timegm(&tm) * 1000 + ms;
	return 0;
}

static int get_end(const json_t *j, struct lease *l, struct err *err)
{
	char name[32] = "";

	if (get_text(j, "release_mechanism", name, sizeof(name), err) < 0)
		return -EINVAL;
	for (int i = 0; i < LEASE_END_MAX; i++)
		if (text_equal(name, lease_end_name((enum lease_end)i))) {
			l->end = (enum lease_end)i;
			return 0;
		}
	return shape("release_mechanism", err);
}

static int get_numbers(const json_t *j, struct lease *l, struct err *err)
{
	const json_t *duration = json_object_get(j, "duration_ms"),
		     *ttl = json_object_get(j, "ttl_seconds");
	uint64_t dropped;

	if (json_is_integer(duration))
		l->duration_ms = json_integer_value(duration);
	else if (!json_is_null(duration))
		return shape("duration_ms", err);
	if (!json_is_number(ttl) || json_number_value(ttl) < 0 || json_number_value(ttl) > 1e12)
		return shape("ttl_seconds", err);
	l->ttl_ms = (uint64_t)(json_number_value(ttl) * 1000 + 0.5);
	if (get_u64(j, "deadline_boottime_ms", &l->deadline_boottime_ms, err) < 0 ||
		get_u64(j, "pidns", &l->pidns, err) < 0 ||
		get_u64(j, "timens", &l->timens, err) < 0 ||
		get_u64(j, "observations_dropped", &dropped, err) < 0)
		return -EINVAL;
	l->dropped = (unsigned)dropped;
	return 0;
}

static int get_objects(const json_t *j, struct lease *l, struct err *err)
{
	json_t *target = json_object_get(j, "target"), *params = json_object_get(j, "params");
	const json_t *holder = json_object_get(j, "holder"), *host = json_object_get(j, "host");

	if (!target || (!json_is_object(target) && !json_is_null(target)) ||
		!json_is_object(params) || !json_is_object(host))
		return shape("target, params or host", err);
	json_decref(l->target);
	l->target = json_incref(target);
	json_decref(l->params);
	l->params = json_incref(params);
	if (get_text(host, "machine_id", l->machine_id, sizeof(l->machine_id), err) < 0 ||
		get_text(host, "hostname", l->hostname, sizeof(l->hostname), err) < 0)
		return -EINVAL;
	return json_is_object(holder) ? launch_record_from_json(holder, &l->holder, err) : 0;
}

static int get_words(const json_t *j, struct lease *l, struct err *err)
{
	char state[16] = "", kind[16] = "";
	int s;

	if (get_text(j, "id", l->id, sizeof(l->id), err) < 0 ||
		get_text(j, "run_id", l->run_id, sizeof(l->run_id), err) < 0 ||
		get_text(j, "fault_id", l->fault_id, sizeof(l->fault_id), err) < 0 ||
		get_text(j, "owner", l->owner, sizeof(l->owner), err) < 0 ||
		get_text(j, "owner_agent", l->owner_agent, sizeof(l->owner_agent), err) < 0 ||
		get_text(j, "verified_by", l->verified_by, sizeof(l->verified_by), err) < 0 ||
		get_text(j, "escalation_notes", l->notes, sizeof(l->notes), err) < 0 ||
		get_text(j, "boot_id", l->boot_id, sizeof(l->boot_id), err) < 0 ||
		get_text(j, "state", state, sizeof(state), err) < 0 ||
		get_text(j, "undo_kind", kind, sizeof(kind), err) < 0)
		return -EINVAL;
	if (state_from_name(&lease_machine, state, &s) < 0)
		return shape("state", err);
	l->state = (enum lease_state)s;
	if (undo_kind_from_name(kind, &l->undo_kind) < 0)
		return shape("undo_kind", err);
	l->declared = json_bool_or(j, "declared", false);
	l->survive = json_bool_or(j, "survive", false);
	return 0;
}

static int read_all(const char *key, const json_t *j, struct lease *l, struct err *err)
{
	if (lease_init(l) < 0)
		return err_set(err, "lease.shape", ENOMEM, "read", "no memory");
	text_copy(l->key, sizeof(l->key), key);
	if (get_words(j, l, err) < 0 || get_numbers(j, l, err) < 0 || get_objects(j, l, err) < 0 ||
		get_end(j, l, err) < 0 || get_time(j, "created_at", &l->created_ms, err) < 0 ||
		get_time(j, "injected_at", &l->injected_ms, err) < 0 ||
		get_time(j, "released_at", &l->released_ms, err) < 0 ||
		get_array(j, "targets", &l->targets, err) < 0 ||
		get_array(j, "undo_ops", &l->undo_ops, err) < 0 ||
		get_array(j, "verify_probes", &l->verify_probes, err) < 0 ||
		get_array(j, "resources", &l->resources, err) < 0 ||
		get_array(j, "observations", &l->observations, err) < 0 ||
		get_array(j, "remedy", &l->remedy, err) < 0)
		return -EINVAL;
	return 0;
}

int lease_from_json(const char *key, const json_t *j, struct lease *ret, struct err *err)
{
	_lease_ struct lease l = {0};

	if (read_all(key, j, &l, err) < 0 || lease_check(&l, err) < 0)
		return -EINVAL;
	*ret = l;
	memset(&l, 0, sizeof(l));
	return 0;
}

int lease_from_text(const char *key, const char *text, struct lease *ret, struct err *err)
{
	_json_ json_t *j = NULL;
	_lease_ struct lease l = {0};

	if (json_parse(text, strlen(text), &j, err) < 0 || read_all(key, j, &l, err) < 0)
		return -EINVAL;
	*ret = l;
	memset(&l, 0, sizeof(l));
	return 0;
}
