/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Children that do what the agent may not wait for: recovering, making spare
 * records, reading and releasing what other sessions left. Each is a body of
 * the launch layer that says what it found over its link.
 */
#include <stddef.h>
#include <string.h>

#include "base/arena.h"
#include "base/cleanup.h"
#include "base/clock.h"
#include "base/json.h"
#include "base/log.h"
#include "base/text.h"
#include "fault/fault.h"
#include "launch/link.h"
#include "lease/recover.h"
#include "os/pidfd.h"
#include "rpc/agent_state.h"
#include "rpc/clerk_body.h"

#define STOCK_LOW 4
#define END_WAIT_MS 100
#define CLERK_OF(source, member)                                                                   \
	((struct clerk *)(void *)((char *)(source)-offsetof(struct clerk, member)))

static void clerk_drop(struct agent *a, struct clerk *c)
{
	for (struct clerk **at = &a->clerks; *at; at = &(*at)->next)
		if (*at == c) {
			*at = c->next;
			break;
		}
	agent_unwatch(a, &c->link);
	agent_unwatch(a, &c->pid);
	launched_close(&c->l);
	json_decref(c->id);
	c->id = NULL;
	/* Events of this very round may still point here. */
	c->next = a->gone;
	a->gone = c;
}

void agent_forget_clerks(struct agent *a)
{
	struct clerk *next;

	for (struct clerk *c = a->gone; c; c = next) {
		next = c->next;
		arena_free(c);
	}
	a->gone = NULL;
}

static void read_link(struct agent *a, struct clerk *c)
{
	for (;;) {
		_free_ char *data = NULL;
		_json_ json_t *j = NULL;
		uint8_t type;
		size_t len;
		int r = link_receive(c->l.linkfd, &type, &data, &len);

		if (r == -EAGAIN)
			return;
		if (r <= 0)
			break;
		if (type == CLERK_SAYS && json_parse(data, len, &j, NULL) == 0)
			c->told(a, c, j);
	}
	agent_unwatch(a, &c->link);
}

static void on_link(struct agent *a, struct source *s)
{
	read_link(a, CLERK_OF(s, link));
}

static void on_ended(struct agent *a, struct source *s)
{
	struct clerk *c = CLERK_OF(s, pid);

	read_link(a, c);
	launch_finish(&c->l, &a->store.domain, NULL);
	if (c->over)
		c->over(a, c);
	clerk_drop(a, c);
}

static int clerk_start(struct agent *a, enum launch_kind kind, launch_body body,
	struct clerk_ask *ask, struct clerk **ret, struct err *err)
{
	int keep[8];
	struct launch_spec spec = {
		.kind = kind,
		.domain = &a->store.domain,
		.body = body,
		.arg = ask,
		.cwdfd = -1,
		.stdfd = {-1, -1, -1},
		.keepfds = keep,
		.n_keepfds = clerk_keepfds(&a->store, keep),
		.required = LAUNCH_DIM_ALL,
	};
	struct clerk *c = arena_calloc(sizeof(*c));
	int r;

	if (!c)
		return err_set(err, "launch.failed", ENOMEM, "clerk", "no memory");
	c->link.fd = c->pid.fd = -1;
	c->l = (struct launched)LAUNCHED_INIT;
	ask->store = &a->store;
	r = launch_hold(&spec, NULL, &c->l, err);
	if (r == 0)
		r = launch_go(&c->l, err);
	if (r < 0) {
		launched_close(&c->l);
		arena_free(c);
		return r;
	}
	close_now(&c->l.leaffd);
	c->next = a->clerks;
	a->clerks = c;
	agent_watch_child(a, &c->link, c->l.linkfd, on_link);
	agent_watch_child(a, &c->pid, c->l.pidfd, on_ended);
	*ret = c;
	return 0;
}

static void take_stock(struct agent *a, const json_t *what)
{
	const json_t *spares = json_object_get(what, "spares");
	unsigned hint = (unsigned)json_int_or(what, "next_id", 0);
	size_t i;
	json_t *v;

	if (hint > a->next_hint)
		a->next_hint = hint;
	json_array_foreach((json_t *)spares, i, v)
		if (a->n_spares < AGENT_SPARES && json_is_string(v))
			text_copy(a->spares[a->n_spares++], LEASE_SPARE_SIZE, json_string_value(v));
}

static void be_ready(struct agent *a)
{
	if (a->ready)
		return;
	a->ready = true;
	agent_dispatch_queued(a);
}

static void recover_told(struct agent *a, struct clerk *c _unused_, const json_t *what)
{
	take_stock(a, what);
	a->dirty |= json_int_or(what, "dirty", 0) > 0;
	be_ready(a);
}

static int start_recoverer(struct agent *a, struct err *err);

/*
 * The first child is the trial: one that died without a word may have been
 * killed at birth, because of where we live. Once we move, and try again.
 * Later deaths are said; going on is safe, as leases are claimed by link and lock.
 */
static bool try_elsewhere(struct agent *a)
{
	struct err err = {0};

	if (a->own_nonce[0])
		return false;
	if (launch_move_self(&a->store.domain, a->own_nonce, &err) == 0 &&
		start_recoverer(a, &err) == 0)
		return true;
	log_warn("agent", "%s", err.text);
	return false;
}

static void recover_over(struct agent *a, struct clerk *c _unused_)
{
	if (a->ready || try_elsewhere(a))
		return;
	log_error("agent", "the recovery at the start died; `mayhem-agent recover` does it again");
	be_ready(a);
}

static int start_recoverer(struct agent *a, struct err *err)
{
	struct clerk_ask ask = {.find_steps = fault_find_steps, .n_spares = AGENT_SPARES};
	struct clerk *c;
	int r = clerk_start(a, LAUNCH_RECOVERER, clerk_recover, &ask, &c, err);

	if (r < 0)
		return r;
	c->told = recover_told;
	c->over = recover_over;
	return 0;
}

int agent_recover_start(struct agent *a, struct err *err)
{
	int r = start_recoverer(a, err);

	return r == -EPIPE && try_elsewhere(a) ? 0 : r;
}

static void stock_told(struct agent *a, struct clerk *c _unused_, const json_t *what)
{
	take_stock(a, what);
}

static void stock_over(struct agent *a, struct clerk *c _unused_)
{
	a->stocking = false;
}

/* A few records are kept ready, so that no fault waits for a file to be allocated. */
void agent_stock(struct agent *a)
{
	struct clerk_ask ask = {.n_spares = AGENT_SPARES - a->n_spares};
	struct clerk *c;
	struct err err;

	if (a->stocking || a->ending || !a->ready || a->n_spares > STOCK_LOW)
		return;
	if (clerk_start(a, LAUNCH_CLERK, clerk_stock, &ask, &c, &err) < 0) {
		log_warn("agent", "%s", err.text);
		return;
	}
	a->stocking = true;
	c->told = stock_told;
	c->over = stock_over;
}

static void count_told(struct agent *a _unused_, struct clerk *c _unused_, const json_t *what)
{
	log_warn("agent", "%s", json_text_or(what, "warning", "the metrics file was not written"));
}

static void count_over(struct agent *a, struct clerk *c _unused_)
{
	a->counting = false;
	if (a->count_again)
		agent_count(a);
}

/* Something moved: the metrics file, where the policy names one, is written anew. One clerk at a time. */
void agent_count(struct agent *a)
{
	const char *path = policy_metrics_file(&a->policy);
	_free_ char *copy = path ? strdup(path) : NULL;
	struct clerk_ask ask = {.path = copy};
	struct clerk *c;
	struct err err;

	a->count_again = copy && a->counting;
	if (!copy || a->counting)
		return;
	if (clerk_start(a, LAUNCH_CLERK, clerk_metrics, &ask, &c, &err) < 0) {
		log_warn("agent", "%s", err.text);
		return;
	}
	a->counting = true;
	c->told = count_told;
	c->over = count_over;
}

/* What a clerk found of one lease is the last word on its entry. */
static void entry_told(struct agent *a, struct clerk *c, const json_t *what)
{
	struct holder_news n = {.kind = HOLDER_ENDED,
		.lease = json_incref(json_object_get(what, "lease"))};
	bool dirty = text_equal(json_text_or(n.lease, "state", ""), "dirty");

	text_copy(n.reason, sizeof(n.reason), dirty ? "undo_failed" : "failed_to_apply");
	text_copy(n.detail, sizeof(n.detail), "its holder died; recovered from the record");
	c->answered = true;
	agent_entry_ended(a, c->entry, &n);
	holder_news_free(&n);
}

static void entry_over(struct agent *a, struct clerk *c)
{
	struct holder_news n = {.kind = HOLDER_ENDED};

	c->entry->recoverer = NULL;
	if (c->answered)
		return;
	text_copy(n.reason, sizeof(n.reason), "launch.failed");
	text_copy(n.detail, sizeof(n.detail), "its holder died before it wrote anything");
	agent_entry_ended(a, c->entry, &n);
}

int agent_recover_entry(struct agent *a, struct entry *e, struct err *err)
{
	struct clerk_ask ask = {.find_steps = fault_find_steps};
	struct clerk *c;
	int r;

	text_copy(ask.key, sizeof(ask.key), e->key);
	r = clerk_start(a, LAUNCH_RECOVERER, clerk_recover_one, &ask, &c, err);
	if (r < 0)
		return r;
	c->entry = e;
	c->told = entry_told;
	c->over = entry_over;
	e->recoverer = c;
	return 0;
}

/* Passes on what a clerk answers: {"result":…} or {"error":{code, reason, text, remedy}}. */
static void answer_told(struct agent *a, struct clerk *c, const json_t *what)
{
	json_t *result = json_object_get(what, "result"), *error = json_object_get(what, "error");

	if (c->answered)
		return;
	c->answered = true;
	if (result && c->task) {
		bool ok = json_bool_or(result, "ok", true);
		const char *detail = json_text_or(result, "detail", "");

		agent_task_done(a, c->task, TASK_DONE, detail);
		agent_reply(a, c->id,
			agent_task_result(c->task, ok, json_text_or(result, "reason", ""), detail,
				json_object_get(result, "lease"),
				json_object_get(result, "observation")));
	} else if (result) {
		agent_reply(a, c->id, json_incref(result));
	} else {
		struct err err;

		err_set(&err, json_text_or(error, "reason", "launch.failed"), 0, "clerk", "%s",
			json_text_or(error, "text", ""));
		if (json_text_or(error, "remedy", "")[0])
			err_remedy(&err, "%s", json_text_or(error, "remedy", ""));
		if (c->task)
			agent_task_done(a, c->task, TASK_DONE, err.text);
		agent_error(a, c->id, (int)json_int_or(error, "code", RPC_INTERNAL_ERROR), &err);
	}
}

static void answer_over(struct agent *a, struct clerk *c)
{
	struct err err;

	if (c->answered)
		return;
	err_set(&err, "launch.failed", 0, "clerk", "the process that was to answer died");
	if (c->task)
		agent_task_done(a, c->task, TASK_DONE, err.text);
	agent_error(a, c->id, RPC_INTERNAL_ERROR, &err);
}

static struct clerk *answer_by_clerk(struct agent *a, const json_t *id, launch_body body,
	struct clerk_ask *ask, struct task *t)
{
	struct err err = {0};
	struct clerk *c;

	ask->find_steps = fault_find_steps;
	if (clerk_start(a, LAUNCH_CLERK, body, ask, &c, &err) < 0) {
		if (t)
			agent_task_done(a, t, TASK_DONE, err.text);
		agent_error(a, id, RPC_TASK_FAILED, &err);
		return NULL;
	}
	c->id = json_incref((json_t *)(uintptr_t)id);
	c->task = t;
	c->told = answer_told;
	c->over = answer_over;
	return c;
}

void agent_clerk_list(struct agent *a, const json_t *id, const json_t *params)
{
	_free_ char *text = json_text(params);
	struct clerk_ask ask = {.params_text = text};
	struct clerk *c;

	text_copy(ask.owner, sizeof(ask.owner), a->owner);
	c = answer_by_clerk(a, id, clerk_list, &ask, NULL);
	if (c)
		c->is_list = true;
}

void agent_clerk_release(struct agent *a, const json_t *id, const char *key, const json_t *params,
	struct task *t)
{
	_free_ char *text = json_text(params);
	struct clerk_ask ask = {.params_text = text};

	text_copy(ask.key, sizeof(ask.key), key);
	answer_by_clerk(a, id, clerk_release, &ask, t);
}

void agent_clerk_verify(struct agent *a, const json_t *id, const char *key, struct task *t)
{
	struct clerk_ask ask = {0};

	text_copy(ask.key, sizeof(ask.key), key);
	answer_by_clerk(a, id, clerk_verify, &ask, t);
}

/*
 * Leases that outlive their session leave a watcher behind: one process with
 * the pidfds of their holders, that recovers one that dies without a safe end,
 * minds the halt, and ends with the last.
 */
void agent_leave_watcher(struct agent *a)
{
	struct watcher_ask ask = {.store = &a->store, .find_steps = fault_find_steps};
	struct launched l = LAUNCHED_INIT;
	struct launch_spec spec = {
		.kind = LAUNCH_WATCHER,
		.domain = &a->store.domain,
		.body = watcher_body,
		.arg = &ask,
		.cwdfd = -1,
		.stdfd = {-1, -1, -1},
		.required = LAUNCH_DIM_ALL,
	};
	struct err err;
	size_t n = 0;

	for (const struct entry *e = a->entries; e; e = e->next)
		n += e->holder && e->survive && !e->ended;
	if (n == 0)
		return;
	ask.held = calloc(n, sizeof(*ask.held));
	ask.keep = calloc(n + 8, sizeof(*ask.keep));
	if (!ask.held || !ask.keep)
		return;
	for (const struct entry *e = a->entries; e; e = e->next) {
		if (!e->holder || !e->survive || e->ended)
			continue;
		text_copy(ask.held[ask.n].key, LEASE_KEY_SIZE, e->key);
		text_copy(ask.held[ask.n].nonce, LAUNCH_NONCE_SIZE,
			holder_record(e->holder)->nonce);
		ask.held[ask.n].pidfd = holder_pidfd(e->holder);
		ask.keep[ask.n] = holder_pidfd(e->holder);
		ask.n++;
	}
	spec.n_keepfds = ask.n + clerk_keepfds(&a->store, ask.keep + ask.n);
	spec.keepfds = ask.keep;
	if (launch_hold(&spec, NULL, &l, &err) < 0 || launch_go(&l, &err) < 0)
		log_error("agent", "no watcher for the leases that stay: %s", err.text);
	launched_close(&l);
	free(ask.held);
	free(ask.keep);
}

/* One that is about to end is waited for, so that its leaf goes with us; a long recovery goes on alone. */
void agent_clerks_free(struct agent *a)
{
	uint64_t limit = clock_boottime_ms() + END_WAIT_MS;

	while (a->clerks) {
		struct clerk *c = a->clerks;

		if (pidfd_wait_exit(c->l.pidfd, clock_until_ms(limit)) == 0)
			launch_finish(&c->l, &a->store.domain, NULL);
		clerk_drop(a, c);
	}
	agent_forget_clerks(a);
}
