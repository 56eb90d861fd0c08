/* SPDX-License-Identifier: Apache-2.0 */
/* mayhem doctor: what can be broken here, what is missing, and how to get it. */
#include <stdio.h>

#include "base/json.h"
#include "base/text.h"
#include "cmd/output.h"
#include "cmd/session.h"

static void line(const char *verdict, const char *what, const char *text, const char *remedy)
{
	enum paint p = text_equal(verdict, "ok") ? PAINT_GOOD : PAINT_WARN;

	printf("%s%-9s%s %-10s %s%s%s\n", output_paint(stdout, p), verdict, output_plain(stdout),
		what, text, remedy[0] ? ": " : "", remedy);
}

static void show_host(const json_t *report)
{
	const json_t *kernel = json_object_get(report, "kernel");
	const json_t *rights = json_object_get(report, "privileges");
	const json_t *host = json_object_get(report, "host");
	int64_t uid = json_int_or(rights, "uid", -1);
	const char *name =
		json_text_or(host, "hostname", json_text_or(report, "host", "this host"));

	if (uid == 0)
		printf("host      %s, Linux %s; you are root\n", name,
			json_text_or(kernel, "release", "?"));
	else
		printf("host      %s, Linux %s; you are uid %lld, not root\n", name,
			json_text_or(kernel, "release", "?"), (long long)uid);
}

static void show_state(const json_t *report)
{
	const json_t *state = json_object_get(report, "state_dir");
	const json_t *sync_ms = json_object_get(state, "fsync_ms");
	char text[512];

	snprintf(text, sizeof(text), "%s", json_text_or(state, "path", "?"));
	if (json_is_number(sync_ms))
		snprintf(text, sizeof(text), "%s, a durable write takes %.2f ms",
			json_text_or(state, "path", "?"), json_number_value(sync_ms));
	if (json_bool_or(state, "writable", false))
		line("ok", "state", text, "");
	else
		line("missing", "state", text, json_text_or(state, "reason", "cannot be written"));
}

static void show_engines(const json_t *report)
{
	json_t *engine;
	size_t n;

	json_array_foreach(json_object_get(report, "engines"), n, engine) {
		bool ok = json_bool_or(engine, "ok", false);
		char text[256];

		snprintf(text, sizeof(text), "%s, %s",
			json_text_or(engine, "version", "no version"),
			json_text_or(engine, "endpoint", "?"));
		line(ok ? "ok" : "no", json_text_or(engine, "name", "engine"), text, "");
	}
}

static void show_checks(const json_t *report)
{
	json_t *check;
	size_t n;

	json_array_foreach(json_object_get(report, "checks"), n, check) {
		const char *id = json_text_or(check, "id", "?");
		const char *reason = json_text_or(check, "reason", NULL);
		const char *need = json_text_or(check, "need", "");

		if (json_bool_or(check, "ok", false))
			line("ok", id, reason ? reason : need, "");
		else
			line("missing", id, reason ? reason : need,
				json_text_or(check, "remedy", ""));
	}
}

static void show_faults(const json_t *report)
{
	const json_t *faults = json_object_get(report, "faults");

	if (json_is_object(faults))
		printf("%lld of %lld faults run here as you are; `mayhem faults` lists them\n",
			(long long)json_int_or(faults, "executable", 0),
			(long long)json_int_or(faults, "total", 0));
}

static int run(struct invocation *v)
{
	static const char *const words[] = {"doctor"};
	_json_ json_t *report = NULL;
	struct err err = {0};
	int code = 0;

	if (session_oneshot(v, words, 1, &report, &code, &err) < 0)
		return output_error(v, &err, 0);
	if (v->g.json) {
		output_json(json_incref(report));
	} else {
		show_host(report);
		show_state(report);
		show_engines(report);
		show_checks(report);
		show_faults(report);
	}
	return json_bool_or(report, "ok", code == 0) ? EXIT_OK : EXIT_TOOLKIT;
}

const struct command command_doctor = {
	.name = "doctor",
	.words = "",
	.summary = "says what can be broken here, and what is missing",
	.text = "Looks at the kernel, rights, state directory and engines of this host or of --host,\n"
		"and says how to get what is missing. Changes nothing. Exit code 0 if faults can be\n"
		"injected, else 9.",
	.examples = {"mayhem doctor", "mayhem doctor --json"},
	.first = true,
	.run = run,
};
