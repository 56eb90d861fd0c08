/* SPDX-License-Identifier: Apache-2.0 */
/* mayhem leases: what is broken now, until when, and what could not be mended. */
#include <stdio.h>

#include "base/cleanup.h"
#include "base/json.h"
#include "cmd/lease_view.h"
#include "cmd/output.h"
#include "cmd/session.h"
#include "cmd/target.h"
#include "state/dir.h"

enum { ALL, RUN };

#define PAGE 200

static const struct option_entry options[] = {
	[ALL] = {.name = "all", .help = "also those that are over"},
	[RUN] = {.name = "run", .arg = "RUN", .help = "of one run only"},
	{0},
};

/* One page; *ret_after is what to ask for next, or NULL. */
static int fetch_page(struct session *s, const struct invocation *v, const char *after,
	json_t **ret, struct err *err)
{
	json_t *params = json_pack("{s:i}", "limit", PAGE);

	if (v->opt[RUN])
		json_object_set_new(params, "run", json_string(v->opt[RUN]));
	if (after)
		json_object_set_new(params, "after", json_string(after));
	return client_call(s->client, "lease.list", params, SESSION_CALL_MS, ret, err);
}

static bool wanted(const struct invocation *v, const json_t *lease)
{
	return v->opt[ALL] || !lease_view_is_over(lease);
}

static int fetch(struct session *s, const struct invocation *v, json_t *list, json_t **ret_first,
	struct err *err)
{
	_json_ json_t *page = NULL;
	const char *after = NULL;
	json_t *lease;
	size_t n;

	do {
		json_t *next = NULL;
		int r = fetch_page(s, v, after, &next, err);

		if (r < 0)
			return r;
		json_decref(page);
		page = next;
		if (!*ret_first)
			*ret_first = json_incref(page);
		json_array_foreach(json_object_get(page, "leases"), n, lease) {
			if (wanted(v, lease))
				json_array_append(list, lease);
		}
		after = json_text_or(page, "next", NULL);
	} while (after);
	return 0;
}

static void add_row(struct table *t, const json_t *lease)
{
	char what[160], utc[CLOCK_UTC_SIZE], until[OUTPUT_TIME_SIZE], seen[128];
	const char *over = json_text_or(lease, "release_mechanism", "over");
	const char *cells[] = {json_text_or(lease, "id", "?"), json_text_or(lease, "fault_id", "?"),
		target_text(json_object_get(lease, "target"), what, sizeof(what)),
		json_text_or(lease, "state", "?"),
		lease_view_is_over(lease) ? over
					  : output_local_time(lease_view_end(lease, utc), 0, until),
		lease_view_measured(lease_view_last_observation(lease), seen, sizeof(seen)),
		json_text_or(lease, "run_id", "?")};

	table_add(t, cells);
}

static int show(const json_t *list)
{
	static const char *const head[] = {"LEASE", "FAULT", "ON", "STATE", "UNTIL", "MEASURED",
		"RUN"};
	struct table t = {.columns = ARRAY_SIZE(head)};
	int code = EXIT_OK;
	json_t *lease;
	size_t n;

	if (json_array_size(list) == 0) {
		printf("no lease\n");
		return EXIT_OK;
	}
	table_add(&t, head);
	json_array_foreach((json_t *)list, n, lease)
		add_row(&t, lease);
	table_print(&t, stdout);
	table_close(&t);
	fflush(stdout);
	json_array_foreach((json_t *)list, n, lease) {
		if (lease_view_is_dirty(lease))
			lease_view_remedy(lease);
	}
	return code;
}

/* Where they are: as the agent says, else what is the rule on this host. */
static const char *state_dir(const struct invocation *v, const struct session *s,
	const json_t *first, char *buf, size_t size)
{
	const char *said =
		json_text_or(first, "state_dir", json_text_or(s->hello, "state_dir", v->g.state));

	if (said || !transport_is_local(&s->transport) || s->transport.sudo)
		return said;
	return state_dir_default(buf, size, NULL) == 0 ? buf : NULL;
}

static int run(struct invocation *v)
{
	_session_ struct session s = SESSION_INIT;
	_json_ json_t *list = json_array(), *first = NULL;
	char path[PATH_MAX];
	struct err err = {0};
	int r = session_open(v, "leases", NULL, NULL, &s, &err);

	if (r == 0)
		r = fetch(&s, v, list, &first, &err);
	if (r == -EINTR)
		err_set(&err, "cancelled", 0, "signal", "stopped by a signal");
	if (r < 0)
		return output_error(v, &err, s.client ? client_error_code(s.client) : 0);
	r = EXIT_OK;
	if (v->g.json)
		output_json(json_pack("{s:s?, s:O, s:n}", "state_dir",
			state_dir(v, &s, first, path, sizeof(path)), "leases", list, "next"));
	else
		r = show(list);
	if (session_end(&s, &err) == EXIT_AGENT)
		return output_error(v, &err, 0);
	return r;
}

const struct command command_leases = {
	.name = "leases",
	.words = "",
	.summary = "lists the faults that are on, and what is not mended",
	.text = "Lists the leases of the agent's state directory that are live or dirty, newest\n"
		"first. For a dirty one the commands that mend it by hand are printed.",
	.examples = {"mayhem leases", "mayhem leases --all --json"},
	.options = options,
	.first = true,
	.run = run,
};
