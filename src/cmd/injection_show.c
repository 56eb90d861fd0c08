/* SPDX-License-Identifier: Apache-2.0 */
/* The plan of an injection, what is seen of it while it lasts, and how it ended. */
#include <stdio.h>
#include <string.h>

#include "base/cleanup.h"
#include "base/clock.h"
#include "base/hash.h"
#include "base/json.h"
#include "base/text.h"
#include "cmd/injection.h"
#include "cmd/lease_view.h"
#include "cmd/output.h"
#include "cmd/target.h"

/* What the agent would write into the lease, where check says it; else an empty list. */
static json_t *checked_list(const struct injection *i, const char *key)
{
	json_t *list = json_object_get(json_object_get(i->checked, "lease"), key);

	return json_is_array(list) ? json_incref(list) : json_array();
}

static json_t *plan_step(const struct injection *i)
{
	return json_pack("{s:s, s:i, s:s, s:s, s:s, s:s, s:O, s:O, s:I, s:o, s:s, s:o, s:o, s:[s]}",
		"step_id", "inject-0000", "seq", 0, "group", "g0", "mode", "sequential", "kind",
		"fault", "fault_id", i->entry->id, "target", i->target, "params", i->params,
		"duration_ms", (json_int_t)i->duration_ms, "ttl_seconds",
		i->ttl_ms % 1000 ? json_real((double)i->ttl_ms / 1000)
				 : json_integer((json_int_t)(i->ttl_ms / 1000)),
		"undo_kind", undo_kind_name(i->entry->undo_kind), "undo_ops",
		checked_list(i, "undo_ops"), "verify_probes", checked_list(i, "verify_probes"),
		"why", "named on the command line");
}

static json_t *plan_gates(const struct injection *i)
{
	const char *ceiling = i->v->g.allow_critical ? "critical" : "high";

	return json_pack(
		"[{s:s, s:s, s:s, s:s, s:s, s:b}, {s:s, s:s, s:s, s:b}, {s:s, s:s, s:s, s:b}, "
		"{s:s, s:s, s:s, s:b}]",
		"gate", "policy", "rule", "risk_ceiling", "value", risk_name(i->entry->risk),
		"limit", ceiling, "key", "--allow-critical", "ok", 1, "gate", "policy", "rule",
		"agent", "value", "the agent would let it through", "ok", 1, "gate", "impact",
		"rule", "check", "value", json_text_or(i->checked, "detail", ""), "ok", 1, "gate",
		"drift", "rule", "identity", "value", "looked at again before the change", "ok", 1);
}

static void hash_plan(const json_t *step, char ret_hex[static HASH_HEX_SIZE])
{
	size_t len = 0;
	_free_ char *text = json_canonical(step, &len);

	hash_hex(text ? text : "", text ? len : 0, ret_hex);
}

static void print_undo(const json_t *op)
{
	const char *key;
	json_t *value;

	fputs(json_text_or(op, "op", "?"), stdout);
	json_object_foreach(json_object_get(op, "args"), key, value)
		printf(" %s=%s", key, json_string_value(value) ? json_string_value(value) : "?");
}

static void print_reverse(const struct injection *i)
{
	const json_t *ops = json_object_get(json_object_get(i->checked, "lease"), "undo_ops");
	size_t n;
	json_t *op;

	printf("    reverse ");
	if (i->entry->undo_kind == UNDO_IRREVERSIBLE) {
		printf("none: what is supposed to start it again has to\n");
		return;
	}
	json_array_foreach((json_t *)ops, n, op) {
		if (n)
			printf("; ");
		print_undo(op);
	}
	printf("%srecorded before the change, then read back and compared\n",
		json_array_size(ops) ? "; " : "");
}

static void print_plan(const struct injection *i, const char *sha)
{
	char what[160], since[OUTPUT_TIME_SIZE], seen[128], length[32], limit[32];
	const char *boot = json_text_or(i->target, "boot_id", "");
	const char *before =
		lease_view_measured(json_object_get(i->checked, "observation"), seen, sizeof(seen));

	target_text(i->target, what, sizeof(what));
	text_format_duration(i->duration_ms, length, sizeof(length));
	text_format_duration(i->ttl_ms, limit, sizeof(limit));
	printf("plan %.8s of %s · nothing has been changed\n", sha, i->entry->id);
	printf("  %s%s%s on %s, %s  %s\n", output_paint(stdout, PAINT_BOLD), i->entry->id,
		output_plain(stdout), what, length, risk_name(i->entry->risk));
	printf("    target  %s", what);
	if (boot[0])
		printf(" since %s, ticks %lld, boot %.8s", target_since(i->target, since),
			(long long)json_int_or(i->target, "start_ticks", 0), boot);
	printf("\n    before  %s\n", before[0] ? before : json_text_or(i->checked, "detail", "-"));
	printf("    forward %s\n", i->entry->help);
	print_reverse(i);
	printf("    ends    after %s by its holder, at the latest after %s\n", length, limit);
	printf("gates     policy ok · risk %s, ceiling %s · effect: it acts here · "
	       "identity: looked at again before\n",
		risk_name(i->entry->risk), i->v->g.allow_critical ? "critical" : "high");
}

void injection_show_plan(const struct injection *i)
{
	json_t *step = plan_step(i);
	char sha[HASH_HEX_SIZE];

	hash_plan(step, sha);
	if (!i->v->g.json) {
		print_plan(i, sha);
		json_decref(step);
		return;
	}
	output_json(json_pack("{s:s, s:s, s:[o], s:o}", "plan_sha256", sha, "name", i->entry->id,
		"steps", step, "gates", plan_gates(i)));
}

static json_t *words_of(char *text)
{
	json_t *argv = json_array();

	while (*text) {
		size_t len = strcspn(text, " ");

		json_array_append_new(argv, json_stringn(text, len));
		text += len + strspn(text + len, " ");
	}
	return argv;
}

void injection_show_detached(const struct injection *i, int code)
{
	const char *id = json_text_or(i->lease, "id", "?");
	char again[512], command[600], utc[CLOCK_UTC_SIZE], until[OUTPUT_TIME_SIZE], what[160];

	snprintf(command, sizeof(command), "%s release %s",
		session_again(i->v, again, sizeof(again)), id);
	if (i->v->g.json) {
		output_json(json_pack("{s:s, s:s, s:n, s:s, s:O, s:s, s:o, s:i}", "run_id",
			i->session.run_id, "status", "running", "reason", "detail", i->detail,
			"lease", i->lease, "ends_at", lease_view_end(i->lease, utc), "release",
			words_of(command), "exit", code));
		return;
	}
	printf("%s is on %s: lease %s, until %s\n", i->entry->id,
		target_text(json_object_get(i->lease, "target"), what, sizeof(what)), id,
		output_local_time(lease_view_end(i->lease, utc), 0, until));
	printf("sooner: %s\n", command);
}

void injection_show_live(const struct injection *i)
{
	char what[160], seen[128], utc[CLOCK_UTC_SIZE], until[OUTPUT_TIME_SIZE];

	output_live("%s on %s  %s  until %s  %s   Ctrl-C undoes it", i->entry->id,
		target_text(json_object_get(i->lease, "target"), what, sizeof(what)),
		json_text_or(i->lease, "state", "?"),
		output_local_time(lease_view_end(i->lease, utc), 0, until),
		lease_view_measured(lease_view_last_observation(i->lease), seen, sizeof(seen)));
}

void injection_show_end(const struct injection *i, const char *status, const struct err *err,
	int code)
{
	const char *id = json_text_or(i->lease, "id", NULL);
	bool bad = err->code[0] != '\0';
	char what[160], seen[128];
	json_t *dirty;

	if (i->v->g.json) {
		dirty = injection_dirty(i) ? json_pack("[s]", id) : json_array();
		output_json(json_pack("{s:s, s:s, s:s?, s:s, s:O?, s:o, s:i}", "run_id",
			i->session.run_id, "status", status, "reason", bad ? err->code : NULL,
			"detail", bad ? err->text : i->detail, "lease", i->lease, "dirty", dirty,
			"exit", code));
		return;
	}
	if (bad) {
		output_error(i->v, err, 0);
		if (injection_dirty(i))
			lease_view_remedy(i->lease);
		return;
	}
	lease_view_story(i->lease, seen, sizeof(seen));
	printf("%s on %s: %s%s%s\n", i->entry->id,
		target_text(json_object_get(i->lease, "target"), what, sizeof(what)),
		i->entry->undo_kind == UNDO_IRREVERSIBLE ? "done, and there is nothing to undo"
							 : "undone, and seen to be",
		seen[0] ? ": " : "", seen);
	printf("lease %s %s (%s)\n", id ? id : "?", json_text_or(i->lease, "state", "?"),
		json_text_or(i->lease, "release_mechanism", "-"));
}
