/* SPDX-License-Identifier: Apache-2.0 */
/* mayhem status: what a host says of all its state directories, without a session. */
#include <stdio.h>

#include "base/cleanup.h"
#include "base/json.h"
#include "base/text.h"
#include "cmd/lease_view.h"
#include "cmd/output.h"
#include "cmd/session.h"
#include "cmd/target.h"

static void add_leases(struct table *t, const json_t *list)
{
	json_t *lease;
	size_t n;

	json_array_foreach((json_t *)list, n, lease) {
		char what[160], utc[CLOCK_UTC_SIZE], until[OUTPUT_TIME_SIZE];
		const char *over = json_text_or(lease, "release_mechanism", "-");
		const char *cells[] = {json_text_or(lease, "id", "?"),
			json_text_or(lease, "fault_id", "?"),
			target_text(json_object_get(lease, "target"), what, sizeof(what)),
			json_text_or(lease, "state", "?"),
			lease_view_is_over(lease)
				? over
				: output_local_time(lease_view_end(lease, utc), 0, until),
			json_text_or(lease, "owner", "?")};

		table_add(t, cells);
	}
}

static void show_store(const json_t *store)
{
	static const char *const head[] = {"LEASE", "FAULT", "ON", "STATE", "UNTIL", "OWNER"};
	const json_t *leases = json_object_get(store, "leases");
	struct table t = {.columns = ARRAY_SIZE(head)};
	const char *path = json_text_or(store, "state_dir", json_text_or(store, "path", "?"));

	if (!json_bool_or(store, "readable", true)) {
		printf("%s: %s\n", path, json_text_or(store, "reason", "may not be read"));
		return;
	}
	printf("%s%s: %zu leases\n", path,
		json_bool_or(store, "halted", json_is_object(json_object_get(store, "halted")))
			? " (halted)"
			: "",
		json_array_size(leases));
	if (json_array_size(leases) == 0)
		return;
	table_add(&t, head);
	add_leases(&t, leases);
	table_print(&t, stdout);
	table_close(&t);
}

static int run(struct invocation *v)
{
	static const char *const words[] = {"status"};
	_json_ json_t *report = NULL;
	struct err err = {0};
	json_t *store;
	int code = 0;
	size_t n;

	if (session_oneshot(v, words, 1, &report, &code, &err) < 0)
		return output_error(v, &err, 0);
	if (v->g.json) {
		output_json(json_incref(report));
		return code;
	}
	if (json_is_array(json_object_get(report, "stores"))) {
		json_array_foreach(json_object_get(report, "stores"), n, store)
			show_store(store);
	} else {
		show_store(report);
	}
	return code;
}

const struct command command_status = {
	.name = "status",
	.words = "",
	.summary = "says what a host has been through: live, dirty and recent leases",
	.text = "Lists live, dirty and recent leases of all state directories of the host that may be\n"
		"read, and says which may not. Starts no session, recovers nothing.",
	.examples = {"mayhem status", "mayhem status --json"},
	.run = run,
};
