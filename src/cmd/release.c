/* SPDX-License-Identifier: Apache-2.0 */
/* mayhem release: ends one fault now, whichever session started it. */
#include <stdio.h>

#include "base/cleanup.h"
#include "base/json.h"
#include "cmd/lease_view.h"
#include "cmd/output.h"
#include "cmd/session.h"
#include "cmd/target.h"

#define RELEASE_MS 60000

enum { SURRENDER, NOTE };

static const struct option_entry options[] = {
	[SURRENDER] = {.name = "surrender",
		.help = "give up a dirty lease: what is left was mended by hand"},
	[NOTE] = {.name = "note", .arg = "TEXT", .help = "what was done; needed to surrender"},
	{0},
};

static int check_words(const struct invocation *v, struct err *err)
{
	if (!v->opt[SURRENDER] == !v->opt[NOTE])
		return 0;
	err_set(err, "usage", 0, "options", "--surrender and --note go together");
	err_remedy(err, "mayhem release %s --surrender --note 'what was mended by hand'",
		v->words[0]);
	return -EINVAL;
}

static int show(const struct invocation *v, const json_t *result)
{
	const json_t *lease = json_object_get(result, "lease");
	bool dirty = lease_view_is_dirty(lease);
	int code = dirty ? EXIT_DIRTY : EXIT_OK;
	char what[160], seen[128];

	if (v->g.json) {
		output_json(json_pack("{s:O, s:b, s:O?, s:i}", "lease", lease, "ok",
			json_bool_or(result, "ok", !dirty), "reason",
			json_object_get(result, "reason"), "exit", code));
		return code;
	}
	lease_view_story(lease, seen, sizeof(seen));
	printf("%s %s on %s: %s (%s)%s%s\n", json_text_or(lease, "id", "?"),
		json_text_or(lease, "fault_id", "?"),
		target_text(json_object_get(lease, "target"), what, sizeof(what)),
		json_text_or(lease, "state", "?"), json_text_or(lease, "release_mechanism", "-"),
		seen[0] ? ": " : "", seen);
	fflush(stdout);
	if (dirty)
		lease_view_remedy(lease);
	return code;
}

static int run(struct invocation *v)
{
	_session_ struct session s = SESSION_INIT;
	_json_ json_t *result = NULL;
	json_t *params;
	struct err err = {0};
	int r = check_words(v, &err), code;

	if (r == 0)
		r = session_open(v, "release", NULL, NULL, &s, &err);
	if (r == 0) {
		params = json_pack("{s:s}", "lease_id", v->words[0]);
		if (v->opt[SURRENDER]) {
			json_object_set_new(params, "surrender", json_true());
			json_object_set_new(params, "note", json_string(v->opt[NOTE]));
		}
		r = client_call(s.client, "lease.release", params, RELEASE_MS, &result, &err);
	}
	if (r == -EINTR)
		err_set(&err, "cancelled", 0, "signal",
			"not waited for: the fault is being undone");
	if (r < 0)
		return output_error(v, &err, s.client ? client_error_code(s.client) : 0);
	code = show(v, result);
	return exit_worse(code, session_end(&s, &err));
}

const struct command command_release = {
	.name = "release",
	.words = "LEASE",
	.summary = "ends one fault now",
	.text = "Undoes one fault, whichever session started it, and says how that ended: exit code\n"
		"0 when it is undone and was seen to be, 7 when it is dirty.\n"
		"\n"
		"A dirty lease stays until its remedy worked and `mayhem recover` saw it. With\n"
		"--surrender and --note it is closed by your word instead.",
	.examples = {"mayhem release l-00000001"},
	.options = options,
	.min_words = 1,
	.max_words = 1,
	.run = run,
};
