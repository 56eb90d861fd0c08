/* SPDX-License-Identifier: Apache-2.0 */
/* The leases of this session: one entry each, with the holder that lives for it. */
#include <signal.h>
#include <stddef.h>
#include <string.h>

#include "base/arena.h"
#include "base/cleanup.h"
#include "base/clock.h"
#include "base/json.h"
#include "base/log.h"
#include "base/text.h"
#include "fault/fault.h"
#include "lease/halt.h"
#include "os/pidfd.h"
#include "rpc/agent_state.h"

#define RELEASE_PATIENCE_MS 20

/* The live one of that key, else the newest that was; one that was refused its record never was. */
struct entry *agent_entry_find(struct agent *a, const char *key)
{
	struct entry *was = NULL;

	for (struct entry *e = a->entries; e; e = e->next) {
		if (!e->key[0] || e->check_only || !text_equal(e->key, key))
			continue;
		if (e->holder && !e->ended)
			return e;
		if (!was && e->lease)
			was = e;
	}
	return was;
}

bool agent_is_holder(const struct agent *a, pid_t pid)
{
	for (const struct entry *e = a->entries; e; e = e->next)
		if (e->holder && holder_record(e->holder)->id.pid == pid)
			return true;
	for (const struct clerk *c = a->clerks; c; c = c->next)
		if (c->l.rec.id.pid == pid)
			return true;
	return false;
}

struct entry *agent_entry_new(struct agent *a, const struct lease *l)
{
	struct entry *e = arena_calloc(sizeof(*e));

	if (!e)
		return NULL;
	e->link.fd = e->pid.fd = -1;
	text_copy(e->run_id, sizeof(e->run_id), l->run_id);
	text_copy(e->key, sizeof(e->key), l->declared ? l->key : l->id);
	e->survive = l->survive;
	e->next = a->entries;
	a->entries = e;
	return e;
}

void agent_entry_wait(struct entry *e, enum waiting_for what, const json_t *id, struct task *t)
{
	struct waiter *w = arena_calloc(sizeof(*w)), **end = &e->waiters;

	if (!w)
		return;
	w->what = what;
	w->id = json_incref((json_t *)(uintptr_t)id);
	w->task = t;
	while (*end)
		end = &(*end)->next;
	*end = w;
}

static void waiter_free(struct waiter *w)
{
	json_decref(w->id);
	arena_free(w);
}

/* Takes the first waiter of a kind out of the list. */
static struct waiter *take_waiter(struct entry *e, bool (*fits)(enum waiting_for))
{
	for (struct waiter **at = &e->waiters; *at; at = &(*at)->next) {
		struct waiter *w = *at;

		if (!fits(w->what))
			continue;
		*at = w->next;
		w->next = NULL;
		return w;
	}
	return NULL;
}

static bool is_task(enum waiting_for what)
{
	return what == WAIT_TASK;
}

static bool is_answer(enum waiting_for what)
{
	return what == WAIT_EXTEND || what == WAIT_OBSERVE;
}

bool agent_entry_is_busy(const struct entry *e)
{
	for (const struct waiter *w = e->waiters; w; w = w->next)
		if (w->what == WAIT_TASK || w->what == WAIT_RELEASE)
			return true;
	return false;
}

static bool is_any(enum waiting_for what _unused_)
{
	return true;
}

static json_t *lease_result(const struct entry *e, bool ok, const char *reason)
{
	return json_pack("{s:O?, s:b, s:s?}", "lease", e->lease, "ok", ok, "reason",
		reason[0] ? reason : NULL);
}

static void answer_task(struct agent *a, struct entry *e, struct waiter *w,
	const struct holder_news *n)
{
	agent_task_done(a, w->task, text_equal(n->reason, "cancelled") ? TASK_CANCELLED : TASK_DONE,
		n->detail);
	agent_reply(a, w->id,
		agent_task_result(w->task, n->ok, n->reason, n->detail, e->lease, n->observation));
}

static const char *text_member(const json_t *j, const char *key)
{
	return json_text_or(j, key, "");
}

/* A refusal before any record: an error, not a result. */
static bool was_refused(const struct entry *e, const struct holder_news *n)
{
	return !e->lease && !n->lease && !e->check_only && n->reason[0] && !n->ok;
}

static void answer_end(struct agent *a, struct entry *e, struct waiter *w,
	const struct holder_news *n)
{
	bool undone = !e->dirty;
	struct err err = {0};

	switch (w->what) {
	case WAIT_TASK:
		if (was_refused(e, n)) {
			agent_task_done(a, w->task, TASK_DONE, n->detail);
			err_set(&err, n->reason, 0, "launch", "%s", n->detail);
			agent_error(a, w->id,
				text_equal(n->reason, "lease.in_use") ? RPC_INVALID_PARAMS
								      : RPC_TASK_FAILED,
				&err);
		} else {
			answer_task(a, e, w, n);
		}
		break;
	case WAIT_RELEASE:
		if (w->task) { /* task.execute, phase undo */
			agent_task_done(a, w->task, TASK_DONE,
				undone ? "undone and verified" : n->detail);
			agent_reply(a, w->id,
				agent_task_result(w->task, undone, undone ? "" : n->reason,
					undone ? "undone and verified" : n->detail, e->lease,
					NULL));
		} else {
			agent_reply(a, w->id, lease_result(e, undone, undone ? "" : n->reason));
		}
		break;
	case WAIT_CANCEL:
		agent_task_done(a, w->task, TASK_CANCELLED, w->task->detail);
		agent_reply(a, w->id, agent_task_cancelled(w->task));
		break;
	case WAIT_EXTEND:
	case WAIT_OBSERVE:
		err_set(&err, "lease.unknown", 0, "lease", "the lease has ended meanwhile");
		if (w->task)
			agent_task_done(a, w->task, TASK_DONE, err.text);
		agent_error(a, w->id, RPC_SAFETY_REFUSED, &err);
		break;
	}
}

static void answer_ask(struct agent *a, struct entry *e, const struct holder_news *n)
{
	struct waiter *w = take_waiter(e, is_answer);

	if (!w)
		return;
	if (w->what == WAIT_EXTEND) {
		agent_reply(a, w->id, lease_result(e, n->ok, n->reason));
	} else {
		agent_task_done(a, w->task, TASK_DONE, n->detail);
		agent_reply(a, w->id,
			agent_task_result(w->task, n->ok, n->reason, n->detail, e->lease,
				n->observation));
	}
	waiter_free(w);
}

static void tell_move(struct agent *a, struct entry *e, const char *from)
{
	const char *to = text_member(e->lease, "state");

	if (text_equal(from, to))
		return;
	agent_count(a);
	agent_notify(a, "event.emit",
		json_pack("{s:s, s:s, s:s, s:s, s:s}", "kind", "lease.moved", "lease_id",
			text_member(e->lease, "id"), "from", from, "to", to, "mechanism",
			text_member(e->lease, "release_mechanism")));
}

/* Other sessions allot from this store too: the next number is sought behind the last that was free. */
static void note_number(struct agent *a, const char *id)
{
	uint64_t n;

	if (lease_id_is_native(id) && text_parse_u64_n(id + 2, 8, &n) == 0 && n >= a->next_hint)
		a->next_hint = (unsigned)n + 1;
}

static void take_lease(struct agent *a, struct entry *e, json_t *lease)
{
	char from[16];

	if (!lease || json_is_null(lease))
		return;
	text_copy(from, sizeof(from), text_member(e->lease, "state"));
	json_decref(e->lease);
	e->lease = json_incref(lease);
	if (!e->key[0]) {
		text_copy(e->key, sizeof(e->key), text_member(lease, "id"));
		note_number(a, e->key);
	}
	e->deadline_boottime_ms = (uint64_t)json_int_or(lease, "deadline_boottime_ms", 0);
	tell_move(a, e, from);
}

static void release_unqueue(struct agent *a, struct entry *e)
{
	a->releases_queued -= e->release_queued;
	e->release_queued = false;
}

static void release_now(struct agent *a, struct entry *e, enum lease_end why)
{
	struct err err;

	release_unqueue(a, e);
	/* A holder whose link is full or broken is reached by signal, through our own pidfd of it. */
	if (holder_send(e->holder, HOLDER_RELEASE, why, &err) < 0)
		pidfd_signal(holder_pidfd(e->holder), SIGTERM);
	e->releasing = true;
	e->release_round = a->release_round;
	a->releasing++;
	a->release_patience_ms = clock_boottime_ms() + RELEASE_PATIENCE_MS;
}

/*
 * Releases that are asked for are begun a few at a time: a thousand holders
 * awake at once would leave us, who are to answer meanwhile, a thousandth of
 * the machine. The end of the session, a halt and a cancel never queue.
 */
void agent_entry_release(struct agent *a, struct entry *e, enum lease_end why)
{
	if (!e->holder || e->releasing)
		return;
	if (why != LEASE_END_NORMAL || a->releasing < AGENT_RELEASES_AT_ONCE)
		return release_now(a, e, why);
	a->releases_queued += !e->release_queued;
	e->release_queued = true;
}

/* The next ones, oldest leases first. Those that are slow to end no longer hold up the others. */
void agent_release_queued(struct agent *a)
{
	if (a->releases_queued && clock_until_ms(a->release_patience_ms) == 0) {
		a->release_round++;
		a->releasing = 0;
	}
	while (a->releases_queued && a->releasing < AGENT_RELEASES_AT_ONCE) {
		struct entry *next = NULL;

		for (struct entry *e = a->entries; e; e = e->next)
			if (e->release_queued)
				next = e;
		if (!next)
			return;
		release_now(a, next, LEASE_END_NORMAL);
	}
}

static void release_ended(struct agent *a, struct entry *e)
{
	release_unqueue(a, e);
	if (e->releasing && e->release_round == a->release_round)
		a->releasing--;
	agent_release_queued(a);
}

/* Its last word, from the holder itself or from whoever recovered it. */
void agent_entry_ended(struct agent *a, struct entry *e, const struct holder_news *n)
{
	struct waiter *w;

	if (e->ended)
		return;
	take_lease(a, e, n->lease);
	e->ended = true;
	e->dirty = text_equal(text_member(e->lease, "state"), "dirty");
	a->dirty |= e->dirty;
	while ((w = take_waiter(e, is_any))) {
		answer_end(a, e, w, n);
		waiter_free(w);
	}
}

static void on_news(struct agent *a, struct entry *e, struct holder_news *n)
{
	struct waiter *w;

	switch (n->kind) {
	case HOLDER_MOVED:
		take_lease(a, e, n->lease);
		break;
	case HOLDER_INJECTED:
		take_lease(a, e, n->lease);
		e->active = true;
		w = take_waiter(e, is_task);
		if (w) {
			answer_task(a, e, w, n);
			waiter_free(w);
		}
		break;
	case HOLDER_ANSWER:
		take_lease(a, e, n->lease);
		answer_ask(a, e, n);
		break;
	case HOLDER_ENDED:
		agent_entry_ended(a, e, n);
		break;
	case HOLDER_NEWS_MAX:
		break;
	}
	if (json_is_object(n->observation) && n->kind != HOLDER_ANSWER)
		agent_notify(a, "event.emit",
			json_pack("{s:s, s:s, s:O}", "kind", "observation", "lease_id",
				text_member(e->lease, "id"), "observation", n->observation));
}

static void read_news(struct agent *a, struct entry *e)
{
	for (;;) {
		struct holder_news n = {0};
		struct err err = {0};
		int r = e->holder ? holder_next(e->holder, &n, &err) : 0;

		if (r == -EAGAIN)
			return;
		if (r <= 0)
			break;
		on_news(a, e, &n);
		holder_news_free(&n);
	}
	agent_unwatch(a, &e->link);
}

#define ENTRY_OF(source, member)                                                                   \
	((struct entry *)(void *)((char *)(source)-offsetof(struct entry, member)))

static void on_link(struct agent *a, struct source *s)
{
	read_news(a, ENTRY_OF(s, link));
}

/* No safe end was told: somebody must look, and put back what there is. */
static void holder_lost(struct agent *a, struct entry *e)
{
	struct err err = {0};

	log_warn("agent", "the holder of %s died; recovering", e->key[0] ? e->key : "a lease");
	if (e->check_only || agent_recover_entry(a, e, &err) < 0) {
		struct holder_news n = {.kind = HOLDER_ENDED};

		text_copy(n.reason, sizeof(n.reason), "launch.failed");
		snprintf(n.detail, sizeof(n.detail), "its holder died%s%s",
			err.text[0] ? ", and: " : "", err.text);
		agent_entry_ended(a, e, &n);
	}
}

static void on_ended(struct agent *a, struct source *s)
{
	struct entry *e = ENTRY_OF(s, pid);

	/* What it said last is still in the link. */
	read_news(a, e);
	agent_unwatch(a, &e->link);
	agent_unwatch(a, &e->pid);
	holder_finish(e->holder, &a->store);
	holder_free(e->holder);
	e->holder = NULL;
	release_ended(a, e);
	if (!e->check_only)
		a->live--;
	if (!e->ended)
		holder_lost(a, e);
	agent_stock(a);
}

int agent_entry_start(struct agent *a, struct entry *e, const struct holder_setup *setup,
	struct err *err)
{
	int r = holder_start(setup, &e->holder, err);

	if (r < 0)
		return r;
	if (!setup->check_only)
		a->live++;
	e->check_only = setup->check_only;
	agent_watch_child(a, &e->link, holder_linkfd(e->holder), on_link);
	agent_watch_child(a, &e->pid, holder_pidfd(e->holder), on_ended);
	return 0;
}

/* The halt may be the host's, the store's or one run's. */
void agent_check_halt(struct agent *a)
{
	bool was = a->halted;

	a->halted = halt_is_on(&a->store, NULL);
	if (a->halted != was)
		log_info("agent", a->halted ? "halted: undoing all" : "resumed");
	for (struct entry *e = a->entries; e; e = e->next)
		if (e->holder && !e->releasing && (a->halted || halt_is_on(&a->store, e->run_id)))
			agent_entry_release(a, e, LEASE_END_HALTED);
}

static void forget_in_tasks(struct agent *a, const struct entry *e)
{
	for (struct task *t = a->tasks; t; t = t->next)
		if (t->entry == e)
			t->entry = NULL;
}

/* The newest that have ended are kept for those who ask again; the record has them all. */
void agent_forget_entries(struct agent *a)
{
	unsigned kept = 0;

	for (struct entry **at = &a->entries; *at;) {
		struct entry *e = *at;

		if (e->holder || e->recoverer || !e->ended || ++kept <= AGENT_ENTRIES_KEPT) {
			at = &e->next;
			continue;
		}
		*at = e->next;
		forget_in_tasks(a, e);
		json_decref(e->lease);
		arena_free(e);
	}
}

void agent_entries_free(struct agent *a)
{
	struct entry *next;

	for (struct entry *e = a->entries; e; e = next) {
		struct waiter *w;

		next = e->next;
		while ((w = take_waiter(e, is_any)))
			waiter_free(w);
		holder_free(e->holder);
		json_decref(e->lease);
		arena_free(e);
	}
	a->entries = NULL;
}
