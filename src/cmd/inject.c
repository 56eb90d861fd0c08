/* SPDX-License-Identifier: Apache-2.0 */
/* mayhem inject: one fault on one target, undone at its end or on Ctrl-C. */
#include <string.h>

#include "base/cleanup.h"
#include "base/json.h"
#include "base/text.h"
#include "cmd/injection.h"
#include "cmd/lease_view.h"
#include "cmd/output.h"
#include "cmd/reason.h"
#include "cmd/target.h"

#define DEFAULT_FOR "10s"
#define TTL_SLACK_MS 60000
#define TTL_LEAST_MS 120000

enum {
	PID,
	PROCESS,
	SERVICE,
	CONTAINER,
	UNIT,
	FOR,
	DRY_RUN,
	DETACH,
	YES,
};

static const struct option_entry options[] = {
	[PID] = {.name = "pid", .arg = "N", .help = "a process"},
	[PROCESS] = {.name = "process",
		.arg = "NAME",
		.help = "the only process of that name here"},
	[SERVICE] = {.name = "service", .arg = "NAME", .help = "a service that the agent started"},
	[CONTAINER] = {.name = "container", .arg = "NAME", .help = "a container of --engine"},
	[UNIT] = {.name = "unit", .arg = "NAME", .help = "a unit of systemd"},
	[FOR] = {.name = "for", .arg = "DURATION", .help = "how long, 10s by default"},
	[DRY_RUN] = {.name = "dry-run", .help = "print the plan and change nothing"},
	[DETACH] = {.name = "detach", .help = "return once it is on; it ends by itself"},
	[YES] = {.name = "yes", .help = "for scripts: answers a question, where there is one"},
	{0},
};

static int find_fault(struct injection *i, const char *id, struct err *err)
{
	const char *near;

	i->entry = catalogue_find(id);
	if (i->entry)
		return 0;
	near = catalogue_nearest(id);
	err_set(err, "fault.unknown", 0, "plan", "there is no fault `%.64s`", id);
	if (near)
		err_remedy(err, "did you mean `%s`? `mayhem faults` lists all", near);
	else
		err_remedy(err, "`mayhem faults` lists them");
	return -EINVAL;
}

static int read_params(struct injection *i, struct err *err)
{
	i->given = json_object();
	for (int n = 1; n < i->v->n_words; n++) {
		const char *word = i->v->words[n], *eq = strchr(word, '=');
		const struct param *p;
		char name[64];

		if (!eq || eq == word || (size_t)(eq - word) >= sizeof(name)) {
			err_set(err, "usage", 0, "words", "`%.64s` is no key=value", word);
			err_remedy(err, "`mayhem faults %s` lists its parameters", i->entry->id);
			return -EINVAL;
		}
		memcpy(name, word, (size_t)(eq - word));
		name[eq - word] = '\0';
		p = catalogue_param(i->entry, name);
		if (json_object_set_new(i->given, name,
			    p ? catalogue_param_from_text(p, eq + 1) : json_string(eq + 1)) < 0)
			return err_set(err, "params.type", 0, "words", "`%.64s` is no text", word);
	}
	return catalogue_check_params(i->entry, i->given, &i->params, err);
}

static int read_duration(struct injection *i, struct err *err)
{
	const char *text = i->v->opt[FOR] ? i->v->opt[FOR] : DEFAULT_FOR;
	uint64_t max_ms = (uint64_t)i->entry->max_duration_s * 1000;

	if (text_parse_duration_ms(text, &i->duration_ms) < 0) {
		err_set(err, "usage", 0, "options", "`%.32s` is no duration", text);
		err_remedy(err, "write 500ms, 10s, 1.5s, 5m or 1h");
		return -EINVAL;
	}
	if (i->duration_ms == 0 || i->duration_ms > max_ms)
		return err_set(err, "params.range", 0, "options",
			"%s for %.32s: it may last from 1 ms to %u s", i->entry->id, text,
			i->entry->max_duration_s);
	i->ttl_ms = i->duration_ms + TTL_SLACK_MS;
	if (i->ttl_ms < TTL_LEAST_MS)
		i->ttl_ms = TTL_LEAST_MS;
	return 0;
}

/* What no agent could do is refused before one is started. */
static int check_kind(const struct injection *i, struct err *err)
{
	const char *kind = json_text_or(i->target, "kind", "");
	enum target_kind known;

	if (target_kind_from_name(kind, &known) == 0 && i->entry->targets & known)
		return 0;
	err_set(err, "target.kind", 0, "plan", "%s does not take a %s", i->entry->id, kind);
	err_remedy(err, "`mayhem faults %s` lists what it takes", i->entry->id);
	return -EINVAL;
}

static int check_risk(const struct injection *i, struct err *err)
{
	if (i->entry->risk != RISK_CRITICAL || i->v->g.allow_critical)
		return 0;
	err_set(err, "risk.ceiling", 0, "policy", "%s has risk critical, and the limit is high",
		i->entry->id);
	err_remedy(err, "the key is --allow-critical");
	return -EPERM;
}

/* Whatever can be known without an agent. */
static int plan(struct injection *i, struct err *err)
{
	const struct invocation *v = i->v;
	struct transport t;
	struct target_words w = {
		.pid = v->opt[PID],
		.process = v->opt[PROCESS],
		.service = v->opt[SERVICE],
		.container = v->opt[CONTAINER],
		.unit = v->opt[UNIT],
		.engine = v->g.engine,
		.host = v->g.host,
	};
	int r;

	session_transport(v, &t);
	w.local = transport_is_local(&t);
	r = find_fault(i, v->words[0], err);
	if (r == 0)
		r = read_params(i, err);
	if (r == 0)
		r = read_duration(i, err);
	if (r == 0)
		r = check_risk(i, err);
	if (r == 0)
		r = target_resolve(&w, &i->target, err);
	return r < 0 ? r : check_kind(i, err);
}

static void notice(void *arg, const char *method, const json_t *params)
{
	struct injection *i = arg;
	const char *id = json_text_or(params, "lease_id", ""), *to = json_text_or(params, "to", "");

	if (!text_equal(method, "event.emit"))
		return;
	i->moved = true;
	if (id[0] && to[0] && !text_equal(to, "pending"))
		output_progress("%s %s", id, to);
}

static const char *status_of(int code, bool interrupted)
{
	if (code == EXIT_OK)
		return "completed";
	return interrupted ? "aborted" : "failed";
}

/*
 * The session's end undoes what is left, so its outcome belongs to the
 * verdict: dirty is worse than whatever ended it.
 */
static int finish(struct injection *i, int failed, struct err *err)
{
	int64_t rpc_code = client_error_code(i->session.client);
	bool refused = failed < 0 && failed != -EINTR && !i->lease;
	struct err verdict = {0}, end = {0};
	char utc[CLOCK_UTC_SIZE];
	int code, end_code;

	code = injection_verdict(i, &verdict);
	end_code = session_end(&i->session, &end);
	if (failed < 0 && failed != -EINTR && !injection_dirty(i)) {
		verdict = *err;
		if (i->lease && !injection_ended(i))
			err_remedy(&verdict, "%s is undone by its holder, at the latest at %s",
				json_text_or(i->lease, "id", "the lease"),
				lease_view_end(i->lease, utc));
	}
	if (refused)
		return exit_worse(output_error(i->v, &verdict, rpc_code), end_code);
	if (failed < 0 && failed != -EINTR)
		code = exit_worse(code, reason_exit(verdict.code, rpc_code));
	if (end_code == EXIT_DIRTY && code != EXIT_DIRTY) {
		err_set(&verdict, "undo_failed", 0, "end",
			"the agent ended with something that is not undone");
		err_remedy(&verdict, "`mayhem leases` says what, and how to mend it");
	}
	code = exit_worse(code, end_code);
	injection_show_end(i, status_of(code, i->interrupted), &verdict, code);
	return code;
}

static int run_injection(struct injection *i, struct err *err)
{
	int r = injection_check(i, err);

	if (r < 0 || i->v->opt[DRY_RUN])
		return r;
	r = injection_start(i, err);
	if (r < 0 || i->detach)
		return r;
	output_progress("%s: %s%s", json_text_or(i->lease, "id", "lease"), i->detail,
		injection_ended(i) ? "" : "; Ctrl-C undoes it");
	return injection_watch(i, err);
}

static int run(struct invocation *v)
{
	__attribute__((cleanup(cleanup_injection))) struct injection i = {
		.v = v,
		.detach = v->opt[DETACH] != NULL,
		.session = SESSION_INIT,
	};
	struct err err = {0};
	int r = plan(&i, &err);

	if (r == 0)
		r = session_open(v, "inject", notice, &i, &i.session, &err);
	if (r < 0 && r != -EINTR)
		return output_error(v, &err,
			i.session.client ? client_error_code(i.session.client) : 0);
	if (r == 0)
		r = run_injection(&i, &err);
	if (r == -EINTR)
		i.interrupted = true;
	if (r == 0 && v->opt[DRY_RUN]) {
		injection_show_plan(&i);
		return session_end(&i.session, &err);
	}
	if (r == 0 && i.detach && !injection_ended(&i)) {
		int code = session_end(&i.session, &err);

		injection_show_detached(&i, code);
		return code;
	}
	return finish(&i, r, &err);
}

const struct command command_inject = {
	.name = "inject",
	.words = "FAULT (--pid N | --process NAME | ...) [key=value...]",
	.summary = "breaks one thing, for a while",
	.text = "Puts one fault on one target, waits, and undoes it: after --for, on Ctrl-C, when\n"
		"this program or the agent dies, whatever comes first. The target is identified\n"
		"exactly, the fault's effect is measured, and so is its undo. With --detach it\n"
		"returns at once, and the fault ends by itself.\n"
		"\n"
		"Parameters are key=value; `mayhem faults FAULT` lists them. Exit codes: 0 it was on\n"
		"and was undone, 4 or 5 refused, 6 it had no effect or was stopped, 7 not undone.",
	.examples = {"mayhem inject proc.pause --pid 4711 --for 2s",
		"mayhem inject proc.pause --pid 4711 --for 30s scope=tree --dry-run",
		"mayhem inject proc.pause --pid 4711 --for 5m --detach"},
	.options = options,
	.min_words = 1,
	.max_words = -1,
	.first = true,
	.run = run,
};
