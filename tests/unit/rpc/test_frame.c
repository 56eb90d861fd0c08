/* SPDX-License-Identifier: Apache-2.0 */
#include "unit.h"

#include "base/cleanup.h"
#include "base/json.h"
#include "rpc/frame.h"

/* What a reader says of bytes that arrive in pieces: "L<line>" for a line, "!" for one too long. */
struct told {
	char text[4096];
	struct frame_reader r;
};

static void take(struct told *t)
{
	const char *line;
	size_t len;

	for (;;) {
		enum frame_next n = frame_reader_next(&t->r, &line, &len);
		size_t used = strlen(t->text);

		if (n == FRAME_NEED_MORE)
			return;
		if (n == FRAME_TOO_LONG)
			snprintf(t->text + used, sizeof(t->text) - used, "!");
		else
			snprintf(t->text + used, sizeof(t->text) - used, "L%.*s",
				(int)(len < 40 ? len : 40), line);
	}
}

static void feed(struct told *t, const char *data, size_t len)
{
	while (len) {
		size_t n = len < 65536 ? len : 65536;
		char *at = buf_reserve(&t->r.in, n);

		assert_non_null(at);
		memcpy(at, data, n);
		buf_commit(&t->r.in, n);
		take(t);
		data += n;
		len -= n;
	}
}

static void split_at_every_byte(void **state)
{
	static const char text[] = "{\"id\":1}\n\n \t\r\n{\"id\":2}\r\n\n{\"id\":3}\nhalf";

	(void)state;
	for (size_t at = 0; at < sizeof(text); at++) {
		struct told t = {0};

		frame_reader_init(&t.r);
		feed(&t, text, at);
		feed(&t, text + at,
			sizeof(text) - 1 - at > sizeof(text) ? 0 : sizeof(text) - 1 - at);
		assert_string_equal(t.text, "L{\"id\":1}L{\"id\":2}\rL{\"id\":3}");
		frame_reader_free(&t.r);
	}
}

static char *line_of(size_t len)
{
	char *line = malloc(len + 1);

	assert_non_null(line);
	memset(line, 'x', len);
	line[len] = '\n';
	return line;
}

static void the_limit(void **state)
{
	_free_ char *fits = line_of(FRAME_MAX), *one_more = line_of(FRAME_MAX + 1);
	struct told t = {0};

	(void)state;
	frame_reader_init(&t.r);
	feed(&t, fits, FRAME_MAX + 1);
	assert_string_equal(t.text, "Lxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxx");
	t.text[0] = '\0';
	feed(&t, one_more, FRAME_MAX + 2);
	assert_string_equal(t.text, "!");
	feed(&t, "{}\n", 3);
	assert_string_equal(t.text, "!L{}");
	frame_reader_free(&t.r);
}

/* Said once, as soon as it is known, and skipped to its LF however long it is; memory stays bounded. */
static void too_long_is_skipped(void **state)
{
	_free_ char *block = line_of(65536);
	struct told t = {0};

	(void)state;
	frame_reader_init(&t.r);
	for (int i = 0; i < 100; i++)
		feed(&t, block, 65536);
	assert_string_equal(t.text, "!");
	assert_true(t.r.in.capacity <= 4u << 20);
	feed(&t, "rest\n{}\n", 8);
	assert_string_equal(t.text, "!L{}");
	/* Two of them, one after the other, are two. */
	for (int n = 0; n < 2; n++) {
		for (int i = 0; i < 20; i++)
			feed(&t, block, 65536);
		feed(&t, "\n", 1);
	}
	assert_string_equal(t.text, "!L{}!!");
	frame_reader_free(&t.r);
}

static void refused(const char *line, int code, const char *reason, const char *id)
{
	struct frame f = {0};
	struct err err = {0};
	json_t *got = NULL;
	_free_ char *text = NULL;
	int seen = 0;

	if (frame_parse(line, strlen(line), &f, &got, &seen, &err) == 0)
		fail_msg("took %s", line);
	if (seen != code)
		fail_msg("%s: %d, not %d", line, seen, code);
	assert_string_equal(err.code, reason);
	text = json_canonical(got, NULL);
	assert_string_equal(text, id);
	json_decref(got);
}

static void shapes(void **state)
{
	static const char *const not_json[] = {"x", "{", "{\"id\":1}}", "{\"id\":1,\"id\":1}",
		"{\"id\":1,\"method\":\"\xff\"}", "{\"id\":NaN}", "{\"id\":1e999}",
		"{\"id\":99999999999999999999}"};

	(void)state;
	for (size_t i = 0; i < sizeof(not_json) / sizeof(*not_json); i++)
		refused(not_json[i], RPC_PARSE_ERROR, "frame.json", "null");
	refused("[]", RPC_INVALID_REQUEST, "frame.shape", "null");
	refused("[{\"id\":1,\"method\":\"x\"}]", RPC_INVALID_REQUEST, "frame.shape", "null");
	refused("1", RPC_INVALID_REQUEST, "frame.shape", "null");
	refused("null", RPC_INVALID_REQUEST, "frame.shape", "null");
	refused("\"x\"", RPC_INVALID_REQUEST, "frame.shape", "null");
	refused("{\"id\":null,\"method\":\"x\"}", RPC_INVALID_REQUEST, "frame.shape", "null");
	refused("{\"id\":1.5,\"method\":\"x\"}", RPC_INVALID_REQUEST, "frame.shape", "null");
	refused("{\"id\":1.0,\"method\":\"x\"}", RPC_INVALID_REQUEST, "frame.shape", "null");
	refused("{\"id\":true,\"method\":\"x\"}", RPC_INVALID_REQUEST, "frame.shape", "null");
	refused("{\"id\":[],\"method\":\"x\"}", RPC_INVALID_REQUEST, "frame.shape", "null");
	/* Where an id could be read it is repeated. */
	refused("{\"id\":7,\"method\":1}", RPC_INVALID_REQUEST, "frame.shape", "7");
	refused("{\"id\":\"a\",\"method\":\"x\",\"params\":[]}", RPC_INVALID_REQUEST, "frame.shape",
		"\"a\"");
	refused("{\"id\":7,\"method\":\"x\",\"params\":null}", RPC_INVALID_REQUEST, "frame.shape",
		"7");
	refused("{\"id\":7,\"method\":\"x\",\"more\":1}", RPC_INVALID_REQUEST, "frame.shape", "7");
	refused("{\"jsonrpc\":\"1.0\",\"id\":7,\"method\":\"x\"}", RPC_INVALID_REQUEST,
		"frame.shape", "7");
	refused("{\"jsonrpc\":2.0,\"id\":7,\"method\":\"x\"}", RPC_INVALID_REQUEST, "frame.shape",
		"7");
}

static void kinds(void **state)
{
	static const struct {
		const char *line;
		enum frame_kind kind;
	} all[] = {
		{"{\"id\":1,\"method\":\"x\"}", FRAME_REQUEST},
		{"{\"jsonrpc\":\"2.0\",\"id\":\"\",\"method\":\"x\",\"params\":{\"a\":1}}",
			FRAME_REQUEST},
		{"{\"method\":\"x\"}", FRAME_NOTIFICATION},
		{"{\"id\":1,\"result\":{}}", FRAME_RESPONSE},
		{"{\"error\":{}}", FRAME_RESPONSE},
		{"{}", FRAME_RESPONSE},
	};

	(void)state;
	for (size_t i = 0; i < sizeof(all) / sizeof(*all); i++) {
		struct frame f = {0};
		struct err err = {0};
		json_t *id = NULL;
		int code = 0;

		assert_int_equal(frame_parse(all[i].line, strlen(all[i].line), &f, &id, &code,
					 &err),
			0);
		assert_int_equal(f.kind, all[i].kind);
		assert_true(json_is_object(f.params));
		assert_null(id);
		frame_free(&f);
	}
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(split_at_every_byte),
		cmocka_unit_test(the_limit),
		cmocka_unit_test(too_long_is_skipped),
		cmocka_unit_test(shapes),
		cmocka_unit_test(kinds),
	};

	return cmocka_run_group_tests_name("frame", tests, NULL, NULL);
}
