/* SPDX-License-Identifier: Apache-2.0 */
/* mayhem faults: the catalogue, and what of it this host can do. */
#include <stdio.h>
#include <string.h>

#include "base/cleanup.h"
#include "base/json.h"
#include "base/text.h"
#include "catalogue/catalogue.h"
#include "cmd/output.h"
#include "cmd/session.h"

static const json_t *find(const json_t *list, const char *id)
{
	json_t *fault;
	size_t n;

	json_array_foreach((json_t *)list, n, fault) {
		if (text_equal(json_text_or(fault, "id", ""), id))
			return fault;
	}
	return NULL;
}

static void join(const json_t *list, char *buf, size_t size)
{
	json_t *word;
	size_t n;

	buf[0] = '\0';
	json_array_foreach((json_t *)list, n, word) {
		size_t len = strlen(buf);

		snprintf(buf + len, size - len, "%s%s", n ? " " : "",
			json_string_value(word) ? json_string_value(word) : "?");
	}
}

static void show_table(const json_t *list)
{
	static const char *const head[] = {"FAULT", "RISK", "UP TO", "UNDO", "HERE", "WHAT"};
	struct table t = {.columns = ARRAY_SIZE(head)};
	json_t *fault;
	size_t n;

	table_add(&t, head);
	json_array_foreach((json_t *)list, n, fault) {
		char longest[32];
		const char *cells[] = {json_text_or(fault, "id", "?"),
			json_text_or(fault, "risk", "?"),
			text_format_duration((uint64_t)json_int_or(fault, "max_duration_s", 0) *
					1000,
				longest, sizeof(longest)),
			json_text_or(fault, "undo_kind", "?"),
			json_bool_or(fault, "executable", true) ? "yes" : "no",
			json_text_or(fault, "help", "")};

		table_add(&t, cells);
	}
	table_print(&t, stdout);
	table_close(&t);
}

/* A default as it is written on a command line. */
static const char *as_word(const json_t *param, char *buf, size_t size)
{
	const json_t *value = json_object_get(param, "default");

	if (!value)
		text_copy(buf, size, "needed");
	else if (json_is_string(value))
		text_copy(buf, size, json_string_value(value));
	else if (json_is_integer(value) && text_equal(json_text_or(param, "type", ""), "duration"))
		text_format_duration((uint64_t)json_integer_value(value), buf, size);
	else if (json_is_integer(value))
		snprintf(buf, size, "%lld", (long long)json_integer_value(value));
	else
		text_copy(buf, size, json_is_true(value) ? "true" : "false");
	return buf;
}

static void show_params(const json_t *params)
{
	static const char *const head[] = {"PARAMETER", "TYPE", "DEFAULT", "WHAT"};
	struct table t = {.columns = ARRAY_SIZE(head)};
	json_t *param;
	size_t n;

	if (json_array_size(params) == 0) {
		printf("no parameters\n");
		return;
	}
	table_add(&t, head);
	json_array_foreach((json_t *)params, n, param) {
		char fallback[64], values[128];
		const char *cells[] = {json_text_or(param, "name", "?"),
			json_text_or(param, "type", "?"),
			as_word(param, fallback, sizeof(fallback)),
			json_text_or(param, "help", "")};

		join(json_object_get(param, "values"), values, sizeof(values));
		if (values[0])
			cells[1] = values;
		table_add(&t, cells);
	}
	table_print(&t, stdout);
	table_close(&t);
}

static void show_one(const json_t *fault)
{
	char targets[128], longest[32];
	const char *reason = json_text_or(fault, "reason", NULL);

	join(json_object_get(fault, "targets"), targets, sizeof(targets));
	text_format_duration((uint64_t)json_int_or(fault, "max_duration_s", 0) * 1000, longest,
		sizeof(longest));
	printf("%s%s%s  %s\n", output_paint(stdout, PAINT_BOLD), json_text_or(fault, "id", "?"),
		output_plain(stdout), json_text_or(fault, "help", ""));
	printf("risk %s, up to %s, undo %s, on: %s\n", json_text_or(fault, "risk", "?"), longest,
		json_text_or(fault, "undo_kind", "?"), targets);
	if (!json_bool_or(fault, "executable", true))
		printf("not here: %s\n", reason ? reason : "the agent does not say why");
	printf("\n");
	show_params(json_object_get(fault, "params"));
}

static int unknown(const struct invocation *v, const char *id)
{
	const char *near = catalogue_nearest(id);
	struct err err;

	err_set(&err, "fault.unknown", 0, "faults", "there is no fault `%.64s`", id);
	if (near)
		err_remedy(&err, "did you mean `%s`? `mayhem faults` lists all", near);
	else
		err_remedy(&err, "`mayhem faults` lists them");
	return output_error(v, &err, 0);
}

static int show(struct invocation *v, const struct session *s, const json_t *result)
{
	json_t *list = json_object_get(result, "catalog");
	const char *id = v->n_words ? v->words[0] : NULL;
	const json_t *one = id ? find(list, id) : NULL;
	const json_t *host = json_object_get(s->hello, "host");

	if (id && !one)
		return unknown(v, id);
	if (v->g.json)
		output_json(json_pack("{s:s?, s:o}", "host", json_text_or(host, "hostname", NULL),
			"faults", one ? json_pack("[O]", one) : json_incref(list)));
	else if (one)
		show_one(one);
	else
		show_table(list);
	return EXIT_OK;
}

static int run(struct invocation *v)
{
	_session_ struct session s = SESSION_INIT;
	_json_ json_t *result = NULL;
	struct err err = {0};
	int r = session_open(v, "faults", NULL, NULL, &s, &err), code;

	if (r == 0)
		r = client_call(s.client, "capabilities.query", NULL, SESSION_CALL_MS, &result,
			&err);
	if (r == -EINTR)
		err_set(&err, "cancelled", 0, "signal", "stopped by a signal");
	if (r < 0)
		return output_error(v, &err, s.client ? client_error_code(s.client) : 0);
	code = show(v, &s, result);
	session_end(&s, &err);
	return code;
}

const struct command command_faults = {
	.name = "faults",
	.words = "[FAULT]",
	.summary = "lists what there is to break with, or one fault's parameters",
	.text = "Asks the agent, here or on --host, for its catalogue and for what of it can be done\n"
		"there. With the name of a fault: its limits, targets and parameters.",
	.examples = {"mayhem faults", "mayhem faults proc.pause"},
	.max_words = 1,
	.run = run,
};
