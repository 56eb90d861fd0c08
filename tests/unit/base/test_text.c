/* SPDX-License-Identifier: Apache-2.0 */
#include "unit.h"

#include "base/text.h"

static void numbers(void **state)
{
	static const char *const refused[] = {"", " 1", "1 ", "+1", "-1", "0x1", "1e3", "1.0", "١"};
	uint64_t v = 7;

	(void)state;
	assert_int_equal(text_parse_u64("0", &v), 0);
	assert_int_equal(v, 0);
	assert_int_equal(text_parse_u64("18446744073709551615", &v), 0);
	assert_true(v == UINT64_MAX);
	v = 7;
	assert_int_equal(text_parse_u64("18446744073709551616", &v), -ERANGE);
	assert_int_equal(text_parse_u64("99999999999999999999999", &v), -ERANGE);
	for (size_t i = 0; i < sizeof(refused) / sizeof(*refused); i++)
		assert_int_equal(text_parse_u64(refused[i], &v), -EINVAL);
	assert_int_equal(v, 7);
	assert_int_equal(text_parse_u64_n("123x", 3, &v), 0);
	assert_int_equal(v, 123);
}

static void signed_numbers(void **state)
{
	int64_t v = 7;

	(void)state;
	assert_int_equal(text_parse_i64("-9223372036854775808", &v), 0);
	assert_true(v == INT64_MIN);
	assert_int_equal(text_parse_i64("9223372036854775807", &v), 0);
	assert_true(v == INT64_MAX);
	assert_int_equal(text_parse_i64("-9223372036854775809", &v), -ERANGE);
	assert_int_equal(text_parse_i64("9223372036854775808", &v), -ERANGE);
	assert_int_equal(text_parse_i64("--1", &v), -EINVAL);
	assert_int_equal(text_parse_i64("-", &v), -EINVAL);
	assert_int_equal(text_parse_i64("-0", &v), 0);
	assert_int_equal(v, 0);
}

static void pids(void **state)
{
	pid_t pid = -3;

	(void)state;
	assert_int_equal(text_parse_pid("0", &pid), -ERANGE);
	assert_int_equal(text_parse_pid("-1", &pid), -EINVAL);
	assert_int_equal(text_parse_pid("2147483648", &pid), -ERANGE);
	/* 2^32 + 1 must not become 1. */
	assert_int_equal(text_parse_pid("4294967297", &pid), -ERANGE);
	assert_int_equal(pid, -3);
	assert_int_equal(text_parse_pid("2147483647", &pid), 0);
	assert_int_equal(pid, INT32_MAX);
}

static void hexadecimal(void **state)
{
	uint64_t v = 7;

	(void)state;
	assert_int_equal(text_parse_hex_n("ffffffffffffffff", 16, &v), 0);
	assert_true(v == UINT64_MAX);
	assert_int_equal(text_parse_hex_n("10000000000000000", 17, &v), -EINVAL);
	assert_int_equal(text_parse_hex_n("0x10", 4, &v), -EINVAL);
	assert_int_equal(text_parse_hex_n("", 0, &v), -EINVAL);
	assert_true(text_is_hex("0123456789abcdef", 16));
	assert_false(text_is_hex("0123456789ABCDEF", 16));
	assert_false(text_is_hex("0123", 5));
}

static void durations(void **state)
{
	static const struct {
		const char *text;
		uint64_t ms;
	} good[] = {{"0", 0}, {"2", 2000}, {"0.25", 250}, {"250ms", 250}, {"1.5s", 1500},
		{"5m", 300000}, {"1.5m", 90000}, {"2h", 7200000}, {"0.001", 1}, {"0.5h", 1800000}};
	static const char *const bad[] = {"", "s", ".5s", "1.", "1.5.5s", "-1s", "+1s", " 1s",
		"1s ", "1 s", "1d", "1S", "1e3", "0.0001", "0.5ms", "1.2345s", "inf", "nan",
		"0x10s"};
	uint64_t ms;

	(void)state;
	for (size_t i = 0; i < sizeof(good) / sizeof(*good); i++) {
		assert_int_equal(text_parse_duration_ms(good[i].text, &ms), 0);
		assert_int_equal(ms, good[i].ms);
	}
	ms = 7;
	for (size_t i = 0; i < sizeof(bad) / sizeof(*bad); i++)
		assert_int_equal(text_parse_duration_ms(bad[i], &ms), -EINVAL);
	assert_int_equal(text_parse_duration_ms("18446744073709551615h", &ms), -ERANGE);
	assert_int_equal(text_parse_duration_ms("99999999999999999999s", &ms), -ERANGE);
	assert_int_equal(text_parse_duration_ms("5124095576030431h", &ms), -ERANGE);
	assert_int_equal(ms, 7);
}

static void durations_round_trip(void **state)
{
	static const uint64_t all[] = {0, 1, 250, 999, 1000, 1001, 1500, 1550, 60000, 61000, 90000,
		3600000, 7200000, 7261001};
	char buf[32];

	(void)state;
	for (size_t i = 0; i < sizeof(all) / sizeof(*all); i++) {
		uint64_t ms = 7;

		assert_int_equal(text_parse_duration_ms(text_format_duration(all[i], buf,
								sizeof(buf)),
					 &ms),
			0);
		assert_int_equal(ms, all[i]);
	}
	assert_string_equal(text_format_duration(500, buf, sizeof(buf)), "500ms");
	assert_string_equal(text_format_duration(1500, buf, sizeof(buf)), "1.5s");
	assert_string_equal(text_format_duration(120000, buf, sizeof(buf)), "2m");
}

static void copies(void **state)
{
	char buf[4] = "xxx";

	(void)state;
	assert_true(text_copy(buf, sizeof(buf), "abc"));
	assert_string_equal(buf, "abc");
	assert_false(text_copy(buf, sizeof(buf), "abcd"));
	assert_string_equal(buf, "abc");
	assert_true(text_copy(buf, 1, ""));
	assert_string_equal(buf, "");
}

static void dotted_prefixes(void **state)
{
	(void)state;
	assert_true(text_has_dotted_prefix("net.latency", "net"));
	assert_true(text_has_dotted_prefix("net.latency", "net.latency"));
	assert_false(text_has_dotted_prefix("network.x", "net"));
	assert_false(text_has_dotted_prefix("net.latency", "net.lat"));
	assert_false(text_has_dotted_prefix("net", "net.latency"));
	assert_false(text_has_dotted_prefix("net", ""));
}

static void plain_text(void **state)
{
	(void)state;
	assert_true(text_is_plain("a b"));
	assert_false(text_is_plain(""));
	assert_false(text_is_plain("a\nb"));
	assert_false(text_is_plain("a\rb"));
}

static void printable_text(void **state)
{
	static const char *const cases[][2] = {
		{"", ""},
		{"plain", "plain"},
		{") S 1 (", ") S 1 ("},
		{"a\nb\rc\td\x01\x7f", "a?b?c?d??"},
		{"\xc3\xbcml\xe2\x82\xac\xf0\x9f\x98\x80",
			"\xc3\xbcml\xe2\x82\xac\xf0\x9f\x98\x80"},
		{"half \xc3", "half ?"},
		{"half \xf0\x9f\x98", "half ???"},
		{"\xc3(", "?("},
		{"\x80\xbf\xfe\xff", "????"},
		{"\xc0\x80", "??"},	      /* overlong */
		{"\xe0\x9f\xbf", "???"},      /* overlong */
		{"\xf0\x8f\xbf\xbf", "????"}, /* overlong */
		{"\xed\xa0\x80", "???"},      /* a surrogate */
		{"\xf4\x90\x80\x80", "????"}, /* beyond the last */
		{"\xf5\x80\x80\x80", "????"},
	};

	(void)state;
	for (size_t i = 0; i < ARRAY_SIZE(cases); i++) {
		char text[64];

		text_copy(text, sizeof(text), cases[i][0]);
		text_make_printable(text);
		assert_string_equal(text, cases[i][1]);
	}
}

static void nearest(void **state)
{
	static const char *const words[] = {"proc.pause", "process.kill", "process.stop"};
	char long_word[300];

	(void)state;
	assert_string_equal(text_nearest("proc.puase", words, 3), "proc.pause");
	assert_string_equal(text_nearest("process.stpo", words, 3), "process.stop");
	assert_null(text_nearest("net.latency", words, 3));
	memset(long_word, 'x', sizeof(long_word) - 1);
	long_word[sizeof(long_word) - 1] = '\0';
	assert_null(text_nearest(long_word, words, 3));
}

static void random_names(void **state)
{
	char a[33], b[33], big[80];

	(void)state;
	assert_int_equal(text_random_hex(a, 16), 0);
	assert_int_equal(text_random_hex(b, 16), 0);
	assert_true(text_is_hex(a, 32));
	assert_string_not_equal(a, b);
	assert_int_equal(text_random_hex(big, 33), -EINVAL);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(numbers),
		cmocka_unit_test(signed_numbers),
		cmocka_unit_test(pids),
		cmocka_unit_test(hexadecimal),
		cmocka_unit_test(durations),
		cmocka_unit_test(durations_round_trip),
		cmocka_unit_test(copies),
		cmocka_unit_test(dotted_prefixes),
		cmocka_unit_test(plain_text),
		cmocka_unit_test(printable_text),
		cmocka_unit_test(nearest),
		cmocka_unit_test(random_names),
	};

	return cmocka_run_group_tests_name("text", tests, NULL, NULL);
}
