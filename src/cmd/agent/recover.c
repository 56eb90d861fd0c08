/* SPDX-License-Identifier: Apache-2.0 */
#include <stdio.h>

#include "base/json.h"
#include "base/text.h"
#include "cmd/agent/agent_cmd.h"
#include "fault/fault.h"
#include "lease/recover.h"

static void print_argv(const json_t *argv)
{
	size_t i;
	json_t *v;

	printf("    ");
	json_array_foreach((json_t *)argv, i, v)
		printf("%s%s", i ? " " : "", json_string_value(v));
	printf("\n");
}

static void print_lease(const json_t *l)
{
	size_t i;
	json_t *v;

	printf("%s: %s, %s", json_text_or(l, "id", "?"), json_text_or(l, "found", "?"),
		json_text_or(l, "did", "?"));
	printf(", now %s\n", json_text_or(l, "state", "?"));
	if (!text_equal(json_text_or(l, "state", ""), "dirty"))
		return;
	printf("  %s\n  by hand:\n", json_text_or(l, "escalation_notes", ""));
	json_array_foreach(json_object_get(l, "remedy"), i, v)
		print_argv(v);
}

static void print_report(const struct recover_report *rep)
{
	size_t i;
	json_t *v;

	json_array_foreach(json_object_get(rep->doc, "leases"), i, v)
		print_lease(v);
	json_array_foreach(json_object_get(rep->doc, "unreadable"), i, v)
		printf("%s: %s; %s\n", json_text_or(v, "path", "?"), json_text_or(v, "why", "?"),
			json_text_or(v, "kept_as", "left as it is"));
	json_array_foreach(json_object_get(rep->doc, "orphans"), i, v)
		printf("%s %s belongs to nobody%s\n", json_text_or(v, "kind", "?"),
			json_text_or(v, "name", "?"),
			json_bool_or(v, "removed", false) ? ": removed" : "; --sweep removes it");
	printf("%u seen, %u undone, %u left, %u dirty, %u unreadable\n", rep->seen, rep->undone,
		rep->left, rep->dirty, rep->unreadable);
}

static int run(const struct agent_args *args)
{
	struct recover_opts opts = {.plan = args->plan,
		.sweep = args->sweep,
		.find_steps = fault_find_steps};
	struct recover_report rep = {0};
	struct lease_store store;
	struct err err = {0};
	int r = lease_store_open(args->state_dir, !args->plan, &store, &err);

	if (r < 0)
		return agent_fail(args, &err, AGENT_EXIT_CANNOT_START);
	r = lease_recover(&store, &opts, &rep, &err);
	lease_store_close(&store);
	if (r < 0)
		return agent_fail(args, &err, AGENT_EXIT_CANNOT_START);
	if (args->json)
		agent_print_json(json_incref(rep.doc));
	else
		print_report(&rep);
	json_decref(rep.doc);
	return rep.exit_code;
}

const struct agent_command agent_command_recover = {
	.name = "recover",
	.usage = "[--plan] [--sweep] [--json] [--state DIR]",
	.help = "undo what a crash left, from the records; --plan only looks, --sweep removes marks of nobody",
	.options = "state json plan sweep",
	.run = run,
};
