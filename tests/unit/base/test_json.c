/* SPDX-License-Identifier: Apache-2.0 */
#include "unit.h"

#include "base/json.h"

static int parse(const char *text)
{
	json_t *j = NULL;
	struct err err = {0};
	int r = json_parse(text, strlen(text), &j, &err);

	if (r < 0) {
		assert_string_equal(err.code, "frame.json");
		assert_null(j);
	}
	json_decref(j);
	return r;
}

static void strictness(void **state)
{
	static const char *const bad[] = {"", " ", "{", "{}x", "{} {}", "{\"a\":1,}", "[1,]",
		"{\"a\":1,\"a\":2}", "{\"a\":{\"b\":1,\"b\":1}}", "{'a':1}", "nul", "NaN",
		"Infinity", "-Infinity", "1e999", "01", "+1", ".5", "1.", "9223372036854775808",
		"-9223372036854775809", "\"\xff\"", "\"\xc0\xaf\"", "\"\xed\xa0\x80\"",
		"\"\\ud800\"", "\"a\nb\"", "\"\\x41\"", "// c\n1", "\xef\xbb\xbf{}"};

	(void)state;
	for (size_t i = 0; i < sizeof(bad) / sizeof(*bad); i++)
		assert_true(parse(bad[i]) < 0);
	assert_int_equal(parse("{\"a\":[1,2.5,\"\\ud83d\\ude00\",null,true]}"), 0);
	assert_int_equal(parse("9223372036854775807"), 0);
}

static void nesting_is_bounded(void **state)
{
	const size_t deep = 100000;
	char *text = malloc(deep + 1);

	(void)state;
	assert_non_null(text);
	memset(text, '[', deep);
	text[deep] = '\0';
	assert_true(parse(text) < 0);
	for (size_t i = 0; i < deep; i += 5)
		memcpy(text + i, "{\"a\":", 5);
	assert_true(parse(text) < 0);
	free(text);
}

static void integers_are_exact(void **state)
{
	_json_ json_t *j = NULL;
	_free_ char *back = NULL;
	const char *text = "{\"a\":9007199254740993,\"b\":-9223372036854775808}";

	(void)state;
	assert_int_equal(json_parse(text, strlen(text), &j, NULL), 0);
	back = json_canonical(j, NULL);
	assert_string_equal(back, text);
}

static void canonical_is_sorted(void **state)
{
	_json_ json_t *j = NULL;
	_free_ char *back = NULL;
	const char *text = " { \"b\" : 1 , \"a\" : { \"z\" : [ ] , \"c\" : null } } ";
	size_t len = 0;

	(void)state;
	assert_int_equal(json_parse(text, strlen(text), &j, NULL), 0);
	back = json_canonical(j, &len);
	assert_string_equal(back, "{\"a\":{\"c\":null,\"z\":[]},\"b\":1}");
	assert_int_equal(len, strlen(back));
}

static json_t *sample(void)
{
	return json_pack("{s:s, s:i, s:b, s:f, s:n, s:s%, s:s}", "text", "abc", "number", 41,
		"flag", 1, "real", 1.5, "none", "nul", "a\0b", (size_t)3, "lines", "a\nb");
}

static void texts(void **state)
{
	_json_ json_t *j = sample();
	char buf[4] = "old";
	struct err err = {0};

	(void)state;
	assert_int_equal(json_get_text(j, "absent", buf, sizeof(buf), "x.y", &err), -ENOENT);
	assert_string_equal(err.code, "");
	assert_int_equal(json_get_text(j, "number", buf, sizeof(buf), "x.y", &err), -EINVAL);
	assert_string_equal(err.code, "x.y");
	assert_non_null(strstr(err.text, "`number`"));
	assert_int_equal(json_get_text(j, "none", buf, sizeof(buf), "x.y", &err), -EINVAL);
	assert_int_equal(json_get_text(j, "nul", buf, sizeof(buf), "x.y", &err), -EINVAL);
	assert_int_equal(json_get_text(j, "lines", buf, sizeof(buf), "x.y", &err), -EINVAL);
	assert_int_equal(json_get_text(j, "text", buf, 3, "x.y", &err), -EINVAL);
	assert_string_equal(buf, "old");
	assert_int_equal(json_get_text(j, "text", buf, sizeof(buf), "x.y", &err), 0);
	assert_string_equal(buf, "abc");
}

static void integers(void **state)
{
	_json_ json_t *j = sample();
	struct err err = {0};
	int64_t v = 7;

	(void)state;
	assert_int_equal(json_get_int(j, "absent", 0, 9, &v, "x.y", &err), -ENOENT);
	assert_int_equal(json_get_int(j, "text", 0, 9, &v, "x.y", &err), -EINVAL);
	assert_int_equal(json_get_int(j, "real", 0, 9, &v, "x.y", &err), -EINVAL);
	assert_int_equal(json_get_int(j, "flag", 0, 9, &v, "x.y", &err), -EINVAL);
	assert_int_equal(json_get_int(j, "number", 0, 40, &v, "x.y", &err), -EINVAL);
	assert_int_equal(json_get_int(j, "number", 42, 50, &v, "x.y", &err), -EINVAL);
	assert_int_equal(v, 7);
	assert_int_equal(json_get_int(j, "number", 41, 41, &v, "x.y", &err), 0);
	assert_int_equal(v, 41);
}

static void booleans(void **state)
{
	_json_ json_t *j = sample();
	struct err err = {0};
	bool v = false;

	(void)state;
	assert_int_equal(json_get_bool(j, "absent", &v, "x.y", &err), -ENOENT);
	assert_int_equal(json_get_bool(j, "number", &v, "x.y", &err), -EINVAL);
	assert_false(v);
	assert_int_equal(json_get_bool(j, "flag", &v, "x.y", &err), 0);
	assert_true(v);
}

static void unknown_keys(void **state)
{
	static const char *const keys[] = {"duration_ms", "ttl_seconds"};
	_json_ json_t *j = json_pack("{s:i}", "duration_sm", 1),
		      *far = json_pack("{s:i}", "zzz", 1);
	struct err err = {0};

	(void)state;
	assert_int_equal(json_check_keys(j, keys, 2, "a lease", "x.y", &err), -EINVAL);
	assert_string_equal(err.code, "x.y");
	assert_non_null(strstr(err.text, "`duration_sm`"));
	assert_non_null(strstr(err.remedy, "`duration_ms`"));
	assert_int_equal(json_check_keys(far, keys, 2, "a lease", "x.y", &err), -EINVAL);
	assert_string_equal(err.remedy, "");
}

static void fallbacks(void **state)
{
	_json_ json_t *j = sample();

	(void)state;
	assert_string_equal(json_text_or(j, "text", "f"), "abc");
	assert_string_equal(json_text_or(j, "number", "f"), "f");
	assert_string_equal(json_text_or(NULL, "text", "f"), "f");
	assert_int_equal(json_int_or(j, "number", 1), 41);
	assert_int_equal(json_int_or(j, "real", 1), 1);
	assert_true(json_bool_or(j, "flag", false));
	assert_false(json_bool_or(j, "text", false));
	assert_int_equal(json_put(j, "more", NULL), -ENOMEM);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(strictness),
		cmocka_unit_test(nesting_is_bounded),
		cmocka_unit_test(integers_are_exact),
		cmocka_unit_test(canonical_is_sorted),
		cmocka_unit_test(texts),
		cmocka_unit_test(integers),
		cmocka_unit_test(booleans),
		cmocka_unit_test(unknown_keys),
		cmocka_unit_test(fallbacks),
	};

	return cmocka_run_group_tests_name("json", tests, NULL, NULL);
}
