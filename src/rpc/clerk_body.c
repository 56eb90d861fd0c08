/* SPDX-License-Identifier: Apache-2.0 */
#include "rpc/clerk_body.h"

#include <poll.h>
#include <string.h>

#include "base/cleanup.h"
#include "base/clock.h"
#include "base/json.h"
#include "base/text.h"
#include "launch/link.h"
#include "lease/holder.h"
#include "lease/metrics.h"
#include "lease/recover.h"

#define RELEASE_WAIT_MS 30000
#define LIST_LIMIT 200
#define LIST_LIMIT_MAX 500
#define LIST_BYTES_MAX (FRAME_MAX - 65536)

size_t clerk_keepfds(const struct lease_store *s, int *ret)
{
	const struct state_dir *d = &s->dir;
	const int all[] = {d->fd, d->leasesfd, d->endedfd, d->claimsfd, d->asidefd,
		s->hostclaimsfd};
	size_t n = 0;

	for (size_t i = 0; i < ARRAY_SIZE(all); i++)
		if (all[i] >= 0)
			ret[n++] = all[i];
	return n;
}

static void say(int linkfd, json_t *what)
{
	_json_ json_t *owned = what;
	_free_ char *text = what ? json_text(what) : NULL;

	if (text)
		link_send(linkfd, CLERK_SAYS, text, strlen(text));
}

static void say_error(int linkfd, int code, const struct err *err)
{
	say(linkfd,
		json_pack("{s:{s:i, s:s, s:s, s:s}}", "error", "code", code, "reason", err->code,
			"text", err->text, "remedy", err->remedy));
}

static json_t *make_spares(struct lease_store *s, size_t n)
{
	json_t *list = json_array();

	for (size_t i = 0; i < n; i++) {
		char name[LEASE_SPARE_SIZE];

		if (lease_spare_make(s, name, NULL) < 0)
			break;
		json_array_append_new(list, json_string(name));
	}
	return list;
}

/* Those that an agent before us left unused serve first. */
static json_t *find_or_make_spares(struct lease_store *s, size_t n)
{
	char found[32][LEASE_SPARE_SIZE];
	size_t have = lease_find_spares(s, found, n < 32 ? n : 32);
	json_t *list = make_spares(s, n > have ? n - have : 0);

	for (size_t i = 0; i < have; i++)
		json_array_append_new(list, json_string(found[i]));
	return list;
}

int clerk_recover(void *arg, int linkfd, const struct launch_record *rec _unused_)
{
	struct clerk_ask *ask = arg;
	struct recover_opts opts = {.skip_overdue = true, .find_steps = ask->find_steps};
	struct recover_report rep = {0};
	struct err err = {0};
	unsigned highest;

	ask->store->domain.basefd = -1;
	highest = lease_prune_ended(ask->store);
	if (lease_recover(ask->store, &opts, &rep, &err) < 0)
		return 1;
	json_decref(rep.doc);
	say(linkfd,
		json_pack("{s:I, s:i, s:o}", "next_id", (json_int_t)highest + 1, "dirty",
			(int)rep.dirty, "spares", find_or_make_spares(ask->store, ask->n_spares)));
	/* Those past their deadline take seconds to end: nobody waits for that. */
	if (rep.left) {
		opts.skip_overdue = false;
		if (lease_recover(ask->store, &opts, &rep, &err) == 0)
			json_decref(rep.doc);
	}
	return 0;
}

int clerk_recover_one(void *arg, int linkfd, const struct launch_record *rec _unused_)
{
	struct clerk_ask *ask = arg;
	_lease_ struct lease l = {0};

	ask->store->domain.basefd = -1;
	if (!ask->key[0]) {
		/* It died between its claim and its first word: whatever it left is found by looking at all. */
		struct recover_opts opts = {.skip_overdue = true, .find_steps = ask->find_steps};
		struct recover_report rep = {0};

		if (lease_recover(ask->store, &opts, &rep, NULL) == 0)
			json_decref(rep.doc);
		return 0;
	}
	lease_recover_one(ask->store, ask->key, ask->find_steps, &l);
	if (!l.target && lease_peek(ask->store, ask->key, &l, NULL) < 0)
		return 1;
	say(linkfd, json_pack("{s:o}", "lease", lease_to_json(&l)));
	return 0;
}

int clerk_stock(void *arg, int linkfd, const struct launch_record *rec _unused_)
{
	struct clerk_ask *ask = arg;

	say(linkfd, json_pack("{s:o}", "spares", make_spares(ask->store, ask->n_spares)));
	return 0;
}

int clerk_metrics(void *arg, int linkfd, const struct launch_record *rec _unused_)
{
	struct clerk_ask *ask = arg;
	struct err err = {0};

	if (lease_metrics_write(ask->store, ask->path, &err) < 0)
		say(linkfd, json_pack("{s:s}", "warning", err.text));
	return 0;
}

struct list_query {
	char state[16], run_id[LEASE_TEXT_SIZE], after[LEASE_KEY_SIZE];
	bool mine;
	int64_t limit;
};

static int read_query(const json_t *params, struct list_query *q, struct err *err)
{
	static const char *const keys[] = {"run_id", "agent_id", "state", "run", "mine", "after",
		"limit"};
	int state,
		r = json_check_keys(params, keys, ARRAY_SIZE(keys), "lease.list", "params.unknown",
			err);

	q->limit = LIST_LIMIT;
	if (r == 0)
		r = json_get_int(params, "limit", 1, LIST_LIMIT_MAX, &q->limit, "params.range",
			err);
	if (r == 0 || r == -ENOENT)
		r = json_get_text(params, "state", q->state, sizeof(q->state), "params.type", err);
	/* `run_id` says who asks; `run` says whose leases. */
	if (r == 0 || r == -ENOENT)
		r = json_get_text(params, "run", q->run_id, sizeof(q->run_id), "params.type", err);
	if (r == 0 || r == -ENOENT)
		r = json_get_text(params, "after", q->after, sizeof(q->after), "params.type", err);
	if (r == 0 || r == -ENOENT)
		r = json_get_bool(params, "mine", &q->mine, "params.type", err);
	if (r < 0 && r != -ENOENT)
		return r;
	if (q->state[0] && state_from_name(&lease_machine, q->state, &state) < 0)
		return err_set(err, "params.range", 0, "params", "no state `%s`", q->state);
	return 0;
}

/* Newest first: numbers fall, and the digests of declared leases have no order but their own. */
static int newest_first(const void *a, const void *b)
{
	return strcmp(b, a);
}

static bool matches(const struct list_query *q, const struct clerk_ask *ask, const struct lease *l)
{
	return (!q->state[0] || text_equal(q->state, lease_machine.names[l->state])) &&
		(!q->run_id[0] || text_equal(q->run_id, l->run_id)) &&
		(!q->mine || text_equal(l->owner, ask->owner));
}

static json_t *list_page(const struct clerk_ask *ask, const struct list_query *q,
	const struct lease_keys *keys)
{
	json_t *list = json_array(), *next = json_null();
	const char *last = NULL, *previous = NULL;
	size_t bytes = 0;

	for (size_t i = 0; i < keys->n; i++) {
		_lease_ struct lease l = {0};
		_free_ char *text = NULL;
		json_t *j;

		/* Live and ended at once while it was being moved: the same lease. */
		if ((previous && text_equal(previous, keys->list[i])) ||
			(q->after[0] && strcmp(keys->list[i], q->after) >= 0))
			continue;
		previous = keys->list[i];
		if (lease_peek(ask->store, keys->list[i], &l, NULL) < 0 || !matches(q, ask, &l))
			continue;
		j = lease_to_json(&l);
		text = j ? json_text(j) : NULL;
		if (text && strlen(text) > LIST_BYTES_MAX) {
			json_t *whole = j;

			j = frame_shorten_lease(whole);
			json_decref(whole);
			free(take_ptr(text));
			text = json_text(j);
		}
		bytes += text ? strlen(text) + 1 : 0;
		if ((int64_t)json_array_size(list) == q->limit || bytes > LIST_BYTES_MAX) {
			json_decref(j);
			next = json_string(last ? last : q->after);
			break;
		}
		json_array_append_new(list, j);
		last = keys->list[i];
	}
	return json_pack("{s:o, s:o}", "leases", list, "next", next);
}

static struct clerk_ask *read_ask(struct clerk_ask *ask)
{
	if (ask->params_text)
		json_parse(ask->params_text, strlen(ask->params_text), &ask->params, NULL);
	return ask;
}

int clerk_list(void *arg, int linkfd, const struct launch_record *rec _unused_)
{
	struct clerk_ask *ask = read_ask(arg);
	struct list_query q = {0};
	struct lease_keys keys = {0};
	struct err err = {0};

	if (read_query(ask->params, &q, &err) < 0) {
		say_error(linkfd, RPC_INVALID_PARAMS, &err);
		return 0;
	}
	lease_keys_add(ask->store, false, &keys);
	lease_keys_add(ask->store, true, &keys);
	if (keys.n)
		qsort(keys.list, keys.n, sizeof(*keys.list), newest_first);
	say(linkfd, json_pack("{s:o}", "result", list_page(ask, &q, &keys)));
	free(keys.list);
	return 0;
}

/* A dirty lease that its owner declares mended by hand: expired, with their word for it. */
static int surrender(struct lease_store *s, const char *key, const char *note, struct lease *l,
	struct err *err)
{
	_lease_file_ struct lease_file f = LEASE_FILE_INIT;
	int r = lease_file_open(s, key, &f, l, err);

	if (r < 0)
		return r;
	if (l->state != LEASE_DIRTY)
		return err_set(err, "lease.in_use", 0, "surrender",
			"%s is %s, and only a dirty lease is surrendered", key,
			lease_machine.names[l->state]);
	r = lease_move(l, LEASE_EXPIRED, err);
	if (r < 0)
		return r;
	l->end = LEASE_END_MANUAL;
	snprintf(l->notes, sizeof(l->notes), "surrendered: %.400s", note);
	r = lease_file_write(s, &f, l, err);
	return r < 0 ? r : lease_file_retire(s, &f, err);
}

/* Somebody else's holder is at work: asked by signal, and the record is watched until it says the end. */
static int release_foreign(struct lease_store *s, const char *key, steps_finder find_steps,
	struct lease *l, struct err *err)
{
	uint64_t limit = clock_boottime_ms() + RELEASE_WAIT_MS;
	bool asked = false;

	for (;;) {
		int r;

		lease_free(l);
		r = lease_peek(s, key, l, err);
		if (r < 0 || lease_is_safe(l))
			return r;
		if (lease_is_locked(s, key) != 1)
			return lease_recover_one(s, key, find_steps, l) == 0 ||
					l->state == LEASE_DIRTY
				? 0
				: -EAGAIN;
		if (!asked) {
			r = holder_terminate(l, err);
			if (r < 0 && r != -ESRCH)
				return r;
			asked = true;
		}
		if (clock_until_ms(limit) == 0)
			return err_set(err, "undo_failed", ETIMEDOUT, "release",
				"the holder of %s does not end", key);
		poll(NULL, 0, 2);
	}
}

int clerk_release(void *arg, int linkfd, const struct launch_record *rec _unused_)
{
	struct clerk_ask *ask = read_ask(arg);
	const char *note = json_text_or(ask->params, "note", "");
	_lease_ struct lease l = {0};
	struct err err = {0};
	bool ok;
	int r;

	ask->store->domain.basefd = -1;
	if (json_bool_or(ask->params, "surrender", false) && !note[0])
		r = err_set(&err, "params.missing", 0, "surrender",
			"a surrender needs a `note`: how it was mended");
	else if (json_bool_or(ask->params, "surrender", false))
		r = surrender(ask->store, ask->key, note, &l, &err);
	else
		r = release_foreign(ask->store, ask->key, ask->find_steps, &l, &err);
	if (r == -EAGAIN)
		r = lease_peek(ask->store, ask->key, &l, &err);
	if (r < 0) {
		say_error(linkfd,
			err_is(&err, "lease.unknown") || err_is(&err, "params.missing")
				? RPC_INVALID_PARAMS
				: RPC_SAFETY_REFUSED,
			&err);
		return 0;
	}
	ok = lease_is_safe(&l);
	say(linkfd,
		json_pack("{s:{s:o, s:b, s:s?, s:s}}", "result", "lease", lease_to_json(&l), "ok",
			ok, "reason", ok ? NULL : "undo_failed", "detail",
			ok ? "undone and verified" : l.notes));
	return 0;
}

static int wait_plainly(struct fault_run *run _unused_, uint64_t us)
{
	struct timespec ts = {.tv_sec = (time_t)(us / 1000000),
		.tv_nsec = (long)(us % 1000000) * 1000};

	ppoll(NULL, 0, &ts, NULL);
	return 0;
}

/* Looks, from the record, whether the prior state is back. Changes nothing. */
int clerk_verify(void *arg, int linkfd, const struct launch_record *rec _unused_)
{
	struct clerk_ask *ask = arg;
	_lease_ struct lease l = {0};
	struct observation o = {0};
	struct err err = {0};
	struct fault_run run = {.lease = &l,
		.store = ask->store,
		.tools = &ask->store->domain,
		.target_pidfd = -1,
		.wait = wait_plainly};
	bool ok;

	ask->store->domain.basefd = -1;
	if (lease_peek(ask->store, ask->key, &l, &err) < 0) {
		say_error(linkfd, RPC_INVALID_PARAMS, &err);
		return 0;
	}
	run.steps = ask->find_steps(&l);
	run.rebooted = !text_equal(l.boot_id, ask->store->boot_id);
	if (!run.steps)
		err_set(&err, "fault.not_executable", 0, "verify", "this version cannot look at %s",
			l.fault_id);
	if (!run.steps || run.steps->verify(&run, &o, &err) < 0) {
		say_error(linkfd, RPC_TASK_FAILED, &err);
		return 0;
	}
	ok = o.effect == EFFECT_ABSENT;
	say(linkfd,
		json_pack("{s:{s:o, s:b, s:s?, s:s, s:o}}", "result", "lease", lease_to_json(&l),
			"ok", ok, "reason", ok ? NULL : "verify_failed", "detail", o.detail,
			"observation", observation_to_json(&o, "after")));
	return 0;
}
