/* SPDX-License-Identifier: Apache-2.0 */
/* mayhem recover, and janitor, its old name: mends what a crash left behind. */
#include <stdio.h>

#include "base/json.h"
#include "base/text.h"
#include "cmd/output.h"
#include "cmd/session.h"

enum { PLAN, SWEEP };

static const struct option_entry options[] = {
	[PLAN] = {.name = "plan", .help = "say what would be done, and do nothing"},
	[SWEEP] = {.name = "sweep", .help = "also remove marks that belong to no lease"},
	{0},
};

static void show_remedy(const json_t *remedy)
{
	json_t *argv;
	size_t n;

	json_array_foreach((json_t *)remedy, n, argv) {
		fputs("    ", stdout);
		output_argv(stdout, argv);
		putchar('\n');
	}
}

static void show_leases(const json_t *list)
{
	json_t *lease;
	size_t n;

	json_array_foreach((json_t *)list, n, lease) {
		const char *mechanism = json_text_or(lease, "release_mechanism", "");
		const char *notes = json_text_or(lease, "escalation_notes", NULL);

		printf("%s  %s: %s, %s", json_text_or(lease, "id", "?"),
			json_text_or(lease, "found", "?"), json_text_or(lease, "did", "?"),
			json_text_or(lease, "state", "?"));
		if (mechanism[0])
			printf(" (%s)", mechanism);
		printf("%s%s\n", notes ? ": " : "", notes ? notes : "");
		show_remedy(json_object_get(lease, "remedy"));
	}
}

static void show_rest(const json_t *report)
{
	json_t *one;
	size_t n;

	json_array_foreach(json_object_get(report, "unreadable"), n, one)
		printf("%s  unreadable (%s), kept as %s\n", json_text_or(one, "path", "?"),
			json_text_or(one, "why", "?"), json_text_or(one, "kept_as", "-"));
	json_array_foreach(json_object_get(report, "orphans"), n, one)
		printf("%s %s  belongs to no lease: %s\n", json_text_or(one, "kind", "?"),
			json_text_or(one, "name", "?"),
			json_bool_or(one, "removed", false) ? "removed"
							    : "left, `recover --sweep` removes it");
}

static void show(const json_t *report)
{
	const json_t *counts = json_object_get(report, "counts");

	show_leases(json_object_get(report, "leases"));
	show_rest(report);
	printf("%s%lld seen, %lld undone, %lld left alone, %lld dirty, %lld unreadable\n",
		json_bool_or(report, "plan", false) ? "plan, nothing was changed: " : "",
		(long long)json_int_or(counts, "seen", 0),
		(long long)json_int_or(counts, "undone", 0),
		(long long)json_int_or(counts, "left", 0),
		(long long)json_int_or(counts, "dirty", 0),
		(long long)json_int_or(counts, "unreadable", 0));
}

static int run(struct invocation *v)
{
	const char *words[3] = {"recover"};
	_json_ json_t *report = NULL;
	struct err err = {0};
	size_t n = 1;
	int code = 0;

	if (v->opt[PLAN])
		words[n++] = "--plan";
	if (v->opt[SWEEP])
		words[n++] = "--sweep";
	if (session_oneshot(v, words, n, &report, &code, &err) < 0)
		return output_error(v, &err, 0);
	if (v->g.json)
		output_json(json_incref(report));
	else
		show(report);
	return code;
}

#define TEXT                                                                                         \
	"Looks at every lease that has no end. Where its holder is gone, the fault is undone from\n" \
	"the record, and the target is looked at; what is held by a living process is left\n"        \
	"alone. Exit code 0, or 7 when something is not mended or could not be told: then the\n"     \
	"commands that mend it are printed. Any session and the timer do the same."

const struct command command_recover = {
	.name = "recover",
	.words = "",
	.summary = "mends what a crash left behind",
	.text = TEXT,
	.examples = {"mayhem recover --plan", "mayhem recover --sweep"},
	.options = options,
	.run = run,
};

const struct command command_janitor = {
	.name = "janitor",
	.words = "",
	.summary = "the old name of recover",
	.text = TEXT,
	.examples = {"mayhem janitor --plan"},
	.options = options,
	.run = run,
};
