/* SPDX-License-Identifier: Apache-2.0 */
/* The lease as a value: what may be written down, and that it reads back the same. */
#include "unit.h"

#include "base/cleanup.h"
#include "base/hash.h"
#include "base/json.h"
#include "base/text.h"
#include "lease/lease.h"

/* An active pause with everything in it. */
static void fill(struct lease *l)
{
	assert_int_equal(lease_init(l), 0);
	strcpy(l->key, "l-00000041");
	strcpy(l->id, "l-00000041");
	strcpy(l->run_id, "r-1");
	strcpy(l->fault_id, "proc.pause");
	strcpy(l->owner, "uid:0");
	strcpy(l->owner_agent, "ctl");
	strcpy(l->boot_id, "6f6b0000-0000-4000-8000-000000000000");
	strcpy(l->hostname, "h1");
	l->undo_kind = UNDO_RECORDED;
	l->state = LEASE_ACTIVE;
	l->duration_ms = 10000;
	l->ttl_ms = 120500;
	l->deadline_boottime_ms = 123456789;
	l->created_ms = 1767225600123;
	l->pidns = 4026531836;
	assert_int_equal(lease_add_undo(l, "signal.cont", json_pack("{s:s}", "pid", "4711"), true),
		0);
	json_array_append_new(l->verify_probes, json_pack("{s:s}", "probe", "process.stopped"));
	json_array_append_new(l->resources, json_string("proc:1234567:stop"));
}

static void round_trip(void **state)
{
	_lease_ struct lease l, back = {0};
	_json_ json_t *j = NULL, *again = NULL;
	struct err err = {0};

	(void)state;
	fill(&l);
	assert_int_equal(text_random_hex(l.holder.nonce, 16), 0);
	assert_int_equal(ident_read(getpid(), &l.holder.id, NULL, &err), 0);
	l.injected_ms = l.created_ms + 5;
	j = lease_to_json(&l);
	assert_non_null(j);
	if (lease_from_json("l-00000041", j, &back, &err) < 0)
		fail_msg("%s", err.text);
	again = lease_to_json(&back);
	assert_true(json_equal(j, again));
	assert_int_equal(back.ttl_ms, 120500);
	assert_int_equal(back.created_ms, l.created_ms);
	assert_int_equal(back.injected_ms, l.injected_ms);
	assert_int_equal(back.holder.id.start_ticks, l.holder.id.start_ticks);
	assert_string_equal(back.key, "l-00000041");
}

static void every_key_is_needed_or_harmless(void **state)
{
	_lease_ struct lease l;
	_json_ json_t *good = NULL;
	const char *key;
	json_t *v;

	(void)state;
	fill(&l);
	good = lease_to_json(&l);
	json_object_foreach(good, key, v) {
		static json_t *(*const others[])(
			void) = {json_true, json_null, json_array, json_object};
		_json_ json_t *bad = json_deep_copy(good);

		json_object_del(bad, key);
		for (size_t i = 0; i < sizeof(others) / sizeof(*others); i++) {
			_lease_ struct lease back = {0};
			struct err err = {0};

			/* Read or refused by name; the sanitizer and the ownership tell the rest. */
			if (lease_from_json("l-00000041", bad, &back, &err) < 0)
				assert_string_equal(err.code, "lease.shape");
			else
				assert_int_equal(lease_check(&back, &err), 0);
			json_object_set_new(bad, key, others[i]());
		}
	}
}

static void refused(const char *key, json_t *value)
{
	_lease_ struct lease l, back = {0};
	_json_ json_t *j = NULL;
	struct err err = {0};

	fill(&l);
	j = lease_to_json(&l);
	json_object_set_new(j, key, value);
	if (lease_from_json("l-00000041", j, &back, &err) == 0)
		fail_msg("took a wrong `%s`", key);
	assert_string_equal(err.code, "lease.shape");
	assert_null(back.undo_ops); /* untouched */
}

static void wrong_values(void **state)
{
	char text[300];

	(void)state;
	memset(text, 'x', sizeof(text) - 1);
	text[sizeof(text) - 1] = '\0';
	refused("run_id", json_string(text));
	refused("state", json_string("Active"));
	refused("state", json_string(""));
	refused("undo_kind", json_string("magic"));
	refused("release_mechanism", json_string("luck"));
	refused("ttl_seconds", json_integer(-1));
	refused("ttl_seconds", json_real(1e300));
	refused("ttl_seconds", json_string("120"));
	refused("duration_ms", json_real(1.5));
	refused("deadline_boottime_ms", json_integer(-1));
	refused("created_at", json_string("yesterday"));
	refused("created_at", json_string("2026-01-02T03:04:05"));
	refused("undo_ops", json_object());
	refused("target", json_array());
	refused("holder", json_pack("{s:s}", "nonce", "x"));
	refused("id", json_string("l-1"));
}

static const char *broken_rule(const struct lease *l)
{
	static struct err err;

	memset(&err, 0, sizeof(err));
	if (lease_check(l, &err) == 0)
		return "";
	assert_string_equal(err.code, "lease.shape");
	return err.stage;
}

static void rules(void **state)
{
	_lease_ struct lease l;

	(void)state;
	fill(&l);
	assert_string_equal(broken_rule(&l), "");
	strcpy(l.id, "x-00000041");
	assert_string_equal(broken_rule(&l), "lease_id_prefix");
	strcpy(l.id, "l-mine");
	assert_string_equal(broken_rule(&l), "lease_id_prefix");
	l.declared = true; /* a controller's own id */
	assert_string_equal(broken_rule(&l), "");
	strcpy(l.id, "l-00000041");
	l.declared = false;

	json_array_clear(l.undo_ops);
	for (int s = 0; s < LEASE_STATE_MAX; s++) {
		bool changed = s == LEASE_ACTIVE || s == LEASE_RELEASING || s == LEASE_RELEASED ||
			s == LEASE_ORPHANED || s == LEASE_DIRTY;

		l.state = (enum lease_state)s;
		assert_true(text_has_prefix(broken_rule(&l), changed ? "undo_required" : ""));
		assert_int_equal(broken_rule(&l)[0] != 0, changed);
		if (changed)
			break;
	}
}

static void rules_of_the_end(void **state)
{
	_lease_ struct lease l;

	(void)state;
	fill(&l);
	l.state = LEASE_RELEASED;
	assert_string_equal(broken_rule(&l), "");
	json_array_clear(l.verify_probes);
	assert_true(text_has_prefix(broken_rule(&l), "verify_required"));
	strcpy(l.verified_by, "undo.exit_status");
	assert_string_equal(broken_rule(&l), "");

	l.state = LEASE_DIRTY;
	assert_true(text_has_prefix(broken_rule(&l), "dirty_requires"));
	strcpy(l.notes, "it stands still");
	assert_true(text_has_prefix(broken_rule(&l), "dirty_requires"));
	lease_add_remedy(&l, (const char *const[]){"kill", "-CONT", "4711", NULL});
	assert_string_equal(broken_rule(&l), "");

	l.released_ms = l.created_ms + 5;
	assert_true(text_has_prefix(broken_rule(&l), "lease_time"));
	l.state = LEASE_RELEASED;
	assert_string_equal(broken_rule(&l), "");
	/* Nothing is injected before it exists. */
	l.injected_ms = l.created_ms - 1;
	assert_true(text_has_prefix(broken_rule(&l), "lease_time"));
	l.injected_ms = l.created_ms;
	assert_string_equal(broken_rule(&l), "");
}

static void irreversible_needs_no_undo(void **state)
{
	_lease_ struct lease l;

	(void)state;
	fill(&l);
	json_array_clear(l.undo_ops);
	l.undo_kind = UNDO_IRREVERSIBLE;
	assert_string_equal(broken_rule(&l), "");
	l.undo_kind = UNDO_KERNEL_OWNED;
	assert_string_equal(broken_rule(&l), "");
}

static void native_ids(void **state)
{
	(void)state;
	assert_true(lease_id_is_native("l-00000001"));
	assert_false(lease_id_is_native("l-0000001"));
	assert_false(lease_id_is_native("l-000000001"));
	assert_false(lease_id_is_native("l-0000000x"));
	assert_false(lease_id_is_native("L-00000001"));
	assert_false(lease_id_is_native("d-00000001"));
	assert_false(lease_id_is_native(""));
}

static void declared_keys(void **state)
{
	char a[LEASE_KEY_SIZE], b[LEASE_KEY_SIZE], expected[LEASE_KEY_SIZE], hex[HASH_HEX_SIZE];
	char run[LEASE_TEXT_SIZE], id[LEASE_ID_SIZE];

	(void)state;
	lease_declared_key("r-1", "l-00000042", a);
	hash_hex("r-1\0l-00000042", 14, hex);
	snprintf(expected, sizeof(expected), "d-%.32s", hex);
	assert_string_equal(a, expected);
	/* The NUL between them: no two pairs run together. */
	lease_declared_key("r-1l", "-00000042", b);
	assert_string_not_equal(a, b);
	lease_declared_key("r-2", "l-00000042", b);
	assert_string_not_equal(a, b);
	memset(run, 'r', sizeof(run) - 1);
	run[sizeof(run) - 1] = '\0';
	memset(id, 'i', sizeof(id) - 1);
	id[sizeof(id) - 1] = '\0';
	lease_declared_key(run, id, b);
	assert_int_equal(strlen(b), 34);
}

static void observations_are_bounded(void **state)
{
	_lease_ struct lease l;

	(void)state;
	fill(&l);
	for (int i = 0; i < 100; i++)
		assert_int_equal(lease_add_observation(&l, json_integer(i)), 0);
	assert_int_equal(json_array_size(l.observations), LEASE_OBSERVATIONS_MAX);
	assert_int_equal(l.dropped, 100 - LEASE_OBSERVATIONS_MAX);
	/* How it was before stays, and so does the newest. */
	assert_int_equal(json_integer_value(json_array_get(l.observations, 0)), 0);
	assert_int_equal(json_integer_value(
				 json_array_get(l.observations, LEASE_OBSERVATIONS_MAX - 1)),
		99);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(round_trip),
		cmocka_unit_test(every_key_is_needed_or_harmless),
		cmocka_unit_test(wrong_values),
		cmocka_unit_test(rules),
		cmocka_unit_test(rules_of_the_end),
		cmocka_unit_test(irreversible_needs_no_undo),
		cmocka_unit_test(native_ids),
		cmocka_unit_test(declared_keys),
		cmocka_unit_test(observations_are_bounded),
	};

	return cmocka_run_group_tests_name("lease", tests, NULL, NULL);
}
