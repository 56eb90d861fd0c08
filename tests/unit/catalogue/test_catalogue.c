/* SPDX-License-Identifier: Apache-2.0 */
#include "unit.h"

#include "base/cleanup.h"
#include "base/json.h"
#include "base/text.h"
#include "catalogue/catalogue.h"

static void table(void **state)
{
	size_t n;
	const struct fault_entry *e = catalogue_entries(&n);

	(void)state;
	assert_true(n > 0);
	for (size_t i = 0; i < n; i++) {
		_json_ json_t *j = catalogue_entry_to_json(&e[i]), *params = NULL;
		struct err err = {0};
		bool required = false;

		assert_non_null(j);
		assert_ptr_equal(catalogue_find(e[i].id), &e[i]);
		assert_non_null(strchr(e[i].id, '.'));
		assert_true(e[i].max_duration_s > 0 && e[i].targets && e[i].help[0]);
		assert_true(i == 0 || strcmp(e[i - 1].id, e[i].id) < 0); /* sorted, no two alike */
		for (const struct param *p = e[i].params; p->name; p++) {
			assert_true(p->help[0]);
			required = required || !p->fallback;
		}
		/* The table's own fallbacks pass its own check. */
		if (!required)
			assert_int_equal(catalogue_check_params(&e[i], NULL, &params, &err), 0);
	}
	assert_null(catalogue_find("proc"));
	assert_null(catalogue_find(""));
	assert_string_equal(catalogue_nearest("proc.puase"), "proc.pause");
}

static const struct param params[] = {
	{.name = "mode", .type = PARAM_STRING, .fallback = "a", .values = {"a", "b"}, .help = "h"},
	{.name = "count", .type = PARAM_INTEGER, .min = 1, .max = 10, .help = "h"},
	{.name = "flag", .type = PARAM_BOOLEAN, .fallback = "false", .help = "h"},
	{.name = "wait",
		.type = PARAM_DURATION,
		.fallback = "1s",
		.min = 100,
		.max = 60000,
		.help = "h"},
	{0},
};
static const struct fault_entry entry = {"x.y", RISK_LOW, 10, TARGET_PROCESS, UNDO_RECORDED, params,
	"h"};

static void good_params(void **state)
{
	static const struct {
		const char *given, *checked;
	} all[] = {
		{"{\"count\":1}", "{\"count\":1,\"flag\":false,\"mode\":\"a\",\"wait\":\"1s\"}"},
		{"{\"count\":10,\"mode\":\"b\",\"flag\":true,\"wait\":\"1.5s\"}",
			"{\"count\":10,\"flag\":true,\"mode\":\"b\",\"wait\":\"1.5s\"}"},
		{"{\"count\":2,\"wait\":2}",
			"{\"count\":2,\"flag\":false,\"mode\":\"a\",\"wait\":\"2s\"}"},
		{"{\"count\":2,\"wait\":0.25}",
			"{\"count\":2,\"flag\":false,\"mode\":\"a\",\"wait\":\"250ms\"}"},
	};

	(void)state;
	for (size_t i = 0; i < sizeof(all) / sizeof(*all); i++) {
		_json_ json_t *given = json_loads(all[i].given, 0, NULL), *checked = NULL;
		_free_ char *text = NULL;
		struct err err = {0};

		if (catalogue_check_params(&entry, given, &checked, &err) < 0)
			fail_msg("%s: %s", all[i].given, err.text);
		text = json_canonical(checked, NULL);
		assert_string_equal(text, all[i].checked);
	}
}

static void bad_params(void **state)
{
	static const struct {
		const char *given, *code;
	} all[] = {
		{"{}", "params.missing"},
		{"[]", "params.type"},
		{"{\"count\":1,\"cuont\":2}", "params.unknown"},
		{"{\"count\":0}", "params.range"},
		{"{\"count\":11}", "params.range"},
		{"{\"count\":-1}", "params.range"},
		{"{\"count\":9223372036854775807}", "params.range"},
		{"{\"count\":1.0}", "params.type"},
		{"{\"count\":\"1\"}", "params.type"},
		{"{\"count\":null}", "params.type"},
		{"{\"count\":true}", "params.type"},
		{"{\"count\":1,\"mode\":\"c\"}", "params.range"},
		{"{\"count\":1,\"mode\":\"\"}", "params.range"},
		{"{\"count\":1,\"mode\":1}", "params.type"},
		{"{\"count\":1,\"flag\":\"true\"}", "params.type"},
		{"{\"count\":1,\"flag\":0}", "params.type"},
		{"{\"count\":1,\"wait\":\"x\"}", "params.type"},
		{"{\"count\":1,\"wait\":\"-1s\"}", "params.type"},
		{"{\"count\":1,\"wait\":-1}", "params.range"},
		{"{\"count\":1,\"wait\":0}", "params.range"},
		{"{\"count\":1,\"wait\":61}", "params.range"},
		{"{\"count\":1,\"wait\":1e300}", "params.range"},
		{"{\"count\":1,\"wait\":-1e300}", "params.range"},
		{"{\"count\":1,\"wait\":\"5124095576030430h\"}", "params.range"},
		{"{\"count\":1,\"wait\":[]}", "params.type"},
	};

	(void)state;
	for (size_t i = 0; i < sizeof(all) / sizeof(*all); i++) {
		_json_ json_t *given = json_loads(all[i].given, 0, NULL);
		json_t *checked = NULL;
		struct err err = {0};

		assert_non_null(given);
		if (catalogue_check_params(&entry, given, &checked, &err) == 0)
			fail_msg("took %s", all[i].given);
		if (!text_equal(err.code, all[i].code))
			fail_msg("%s: %s, not %s", all[i].given, err.code, all[i].code);
		assert_null(checked);
	}
}

static void from_text(void **state)
{
	_json_ json_t *n = catalogue_param_from_text(&params[1], "7"),
		      *x = catalogue_param_from_text(&params[1], "7x"),
		      *yes = catalogue_param_from_text(&params[2], "yes"),
		      *d = catalogue_param_from_text(&params[3], "2m");

	(void)state;
	assert_int_equal(json_integer_value(n), 7);
	assert_string_equal(json_string_value(x), "7x"); /* the check then refuses it, by name */
	assert_true(json_is_true(yes));
	assert_string_equal(json_string_value(d), "2m");
}

static void names(void **state)
{
	enum target_kind kind;
	enum undo_kind undo;

	(void)state;
	assert_int_equal(target_kind_from_name("container", &kind), 0);
	assert_int_equal(kind, TARGET_CONTAINER);
	assert_string_equal(target_kind_name(kind), "container");
	assert_int_equal(target_kind_from_name("pod", &kind), -EINVAL);
	for (int i = 0; i < UNDO_KIND_MAX; i++) {
		assert_int_equal(undo_kind_from_name(undo_kind_name((enum undo_kind)i), &undo), 0);
		assert_int_equal(undo, i);
	}
	assert_int_equal(undo_kind_from_name("", &undo), -EINVAL);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(table),
		cmocka_unit_test(good_params),
		cmocka_unit_test(bad_params),
		cmocka_unit_test(from_text),
		cmocka_unit_test(names),
	};

	return cmocka_run_group_tests_name("catalogue", tests, NULL, NULL);
}
