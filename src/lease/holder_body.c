/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The life of a fault: pending, check, record, claim, active, inject, observe,
 * wait, undo, verify, end. Two durable writes lie before the effect, both made
 * here and never in the agent.
 */
#include "lease/holder_body.h"

#include <malloc.h>
#include <signal.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/signalfd.h>
#include <sys/timerfd.h>

#include "base/arena.h"
#include "base/cleanup.h"
#include "base/clock.h"
#include "base/json.h"
#include "base/log.h"
#include "base/text.h"
#include "lease/claim.h"
#include "lease/halt.h"
#include "lease/recover.h"
#include "lease/undo.h"
#include "os/pidfd.h"

#define POLL_FIRST_US 1000
#define POLL_LAST_US 1000000
#define EXIT_DIRTY 7
#define STACK_TRIM (64u << 10)

size_t holder_keepfds(const struct holder_setup *s, int *ret)
{
	const struct state_dir *d = &s->store->dir;
	const int all[] = {d->fd, d->leasesfd, d->endedfd, d->claimsfd, d->asidefd,
		s->store->hostclaimsfd, s->agent_pidfd, s->target_pidfd, s->sharedfd};
	size_t n = 0;

	for (size_t i = 0; i < ARRAY_SIZE(all); i++)
		if (all[i] >= 0)
			ret[n++] = all[i];
	return n;
}

static int run_wait_watched(struct fault_run *run, uint64_t us)
{
	return holder_watch(run->holder, us);
}

static int prepare(struct holder_work *w, const struct launch_record *rec, struct err *err)
{
	sigset_t mask;

	int r = lease_from_text(w->setup->key, w->setup->lease_text, &w->lease, err);

	if (r < 0)
		return r;
	w->file = (struct lease_file)LEASE_FILE_INIT;
	w->run = (struct fault_run){
		.lease = &w->lease,
		.store = w->setup->store,
		.steps = w->setup->steps,
		.live = true,
		.target_pidfd = w->setup->target_pidfd,
		.wait = run_wait_watched,
		.holder = w,
	};
	sigemptyset(&mask);
	sigaddset(&mask, SIGTERM);
	sigaddset(&mask, SIGINT);
	sigaddset(&mask, SIGHUP);
	sigprocmask(SIG_BLOCK, &mask, NULL);
	w->sigfd = signalfd(-1, &mask, SFD_CLOEXEC | SFD_NONBLOCK);
	w->timerfd = timerfd_create(CLOCK_BOOTTIME, TFD_CLOEXEC | TFD_NONBLOCK);
	if (w->sigfd < 0 || w->timerfd < 0)
		return err_set(err, "launch.failed", errno, "holder",
			"cannot make a holder's timers");
	holder_watch_halt(w);
	w->setup->store->domain.basefd = -1; /* was the agent's, closed here */
	w->tools = w->setup->store->domain;
	if (rec->cgroup[0])
		text_copy(w->tools.base, sizeof(w->tools.base), rec->cgroup);
	w->run.tools = &w->tools;
	return 0;
}

/* A process target is completed here: looking at an executable may wait for a file system. */
static int complete_target(struct holder_work *w, struct err *err)
{
	struct proc_identity id;
	json_t *j;
	int r;

	if (!text_equal(json_text_or(w->lease.target, "kind", ""), "process"))
		return 0;
	r = ident_from_json(w->lease.target, &id, err);
	if (r == 0)
		r = ident_complete(&id, w->run.target_pidfd, err);
	if (r < 0)
		return r;
	j = ident_to_json(&id);
	if (!j)
		return err_set(err, "launch.failed", ENOMEM, "holder", "no memory");
	json_decref(w->lease.target);
	w->lease.target = j;
	return 0;
}

int holder_claim(void *self, const struct launch_record *rec, struct err *err)
{
	struct holder_work *w = self;
	struct err ignored;
	int r = prepare(w, rec, err);

	if (r < 0)
		return r;
	/* Gone already is for the record to say, not for the claim. */
	complete_target(w, &ignored);
	w->lease.holder = *rec;
	w->lease.created_ms = clock_utc_ms();
	w->lease.deadline_boottime_ms = clock_boottime_ms() + w->lease.ttl_ms;
	r = ident_read(getpid(), &w->lease.holder.id, NULL, err);
	if (r == 0)
		r = lease_file_create(w->setup->store, w->setup->spare, &w->lease, &w->file, err);
	if (r == 0)
		w->run.file = &w->file;
	return r;
}

static enum lease_end end_of_reason(const struct err *err)
{
	if (err_is(err, "resource_conflict"))
		return LEASE_END_RESOURCE_CONFLICT;
	if (err_is(err, "no_effect"))
		return LEASE_END_NO_EFFECT;
	if (err_is(err, "target_gone") || err_is(err, "target.gone"))
		return LEASE_END_TARGET_GONE;
	return LEASE_END_FAILED_TO_APPLY;
}

/* Reasons that a result carries; everything else is "failed to apply", with its detail. */
static const char *result_reason(const struct err *err)
{
	static const char *const plain[] = {"resource_conflict", "no_effect", "target_gone",
		"target_drift", "cancelled", "undo_failed", "verify_failed", "failed_to_apply",
		"store.failed", "host.halted"};

	for (size_t i = 0; i < ARRAY_SIZE(plain); i++)
		if (err_is(err, plain[i]))
			return plain[i];
	return err_is(err, "target.gone") ? "target_gone" : "failed_to_apply";
}

static const char *reason_of_stop(enum lease_end stop)
{
	if (stop == LEASE_END_HALTED)
		return "host.halted";
	return stop == LEASE_END_TARGET_GONE ? "target_gone" : "cancelled";
}

/* Nothing was changed: the lease expires. */
static int give_up(struct holder_work *w, enum lease_end end, const char *reason,
	const char *detail)
{
	struct err err = {0};

	if (lease_expire(&w->run, end, &err) < 0)
		log_error("holder", "%s: %s", w->lease.key, err.text);
	holder_say(w, "ended", false, reason, detail, NULL);
	return 0;
}

/* A lease whose holder died may stand in the way: it is mended first, if it is ours. */
static int claim(struct holder_work *w, struct err *err)
{
	for (int attempt = 0;; attempt++) {
		struct lease_conflict c = {0};
		int r = lease_claim(w->setup->store, &w->lease, &c, err);

		if (r != -EBUSY || !c.ours || !c.abandoned || attempt == 3)
			return r;
		lease_recover_one(w->setup->store, c.key, w->setup->find_steps, NULL);
	}
}

/* What check found in the way may be another lease's doing: then that lease is named. */
static void name_conflict(struct holder_work *w, struct err *err)
{
	struct err other = {0};

	if (w->run.steps->record(&w->run, &other) == 0 && claim(w, &other) < 0 &&
		err_is(&other, "resource_conflict"))
		*err = other;
}

static int before_change(struct holder_work *w, struct err *err)
{
	const struct fault_steps *steps = w->run.steps;
	struct observation before = {0};
	int r = steps->check(&w->run, err);

	if (r < 0 && err_is(err, "resource_conflict"))
		name_conflict(w, err);
	if (r == 0)
		r = steps->record(&w->run, err);
	if (r == 0)
		r = claim(w, err);
	if (r < 0)
		return r;
	if (steps->observe(&w->run, &before, err) == 0)
		lease_add_observation(&w->lease, observation_to_json(&before, "before"));
	if (halt_is_on(w->setup->store, w->lease.run_id))
		return err_set(err, "host.halted", 0, "gate", "this host is halted");
	holder_watch(w, 0);
	if (w->stop != LEASE_END_NONE)
		return err_set(err, reason_of_stop(w->stop), 0, "gate", "ended before it began");
	r = lease_move(&w->lease, LEASE_ACTIVE, err);
	if (r == 0) {
		r = run_save(&w->run, err);
		if (r < 0)
			w->lease.state = LEASE_PENDING; /* not written: not so */
	}
	return r;
}

/* The effect must be seen before it is called injected. */
static int apply(struct holder_work *w, json_t **ret_observation, struct err *err)
{
	struct observation during = {0};
	int r = w->run.steps->inject(&w->run, err);

	if (r == 0 && w->lease.duration_ms >= 0 && w->lease.undo_kind != UNDO_IRREVERSIBLE) {
		w->end_boottime_us = clock_boottime_us() + (uint64_t)w->lease.duration_ms * 1000;
		holder_arm_timer(w);
	}
	if (r == 0)
		r = w->run.steps->observe(&w->run, &during, err);
	if (r < 0)
		return r;
	/* The wall clock may have been set back meanwhile, and an injection is never before its lease. */
	w->lease.injected_ms = clock_utc_ms();
	if (w->lease.injected_ms < w->lease.created_ms)
		w->lease.injected_ms = w->lease.created_ms;
	w->effect = during.effect;
	*ret_observation = observation_to_json(&during, "during");
	lease_add_observation(&w->lease, json_incref(*ret_observation));
	/* What a declared lease's executor cannot look at is said to be unknown, as its controller expects. */
	if (during.effect == EFFECT_PRESENT ||
		(during.effect == EFFECT_UNKNOWN && w->lease.declared))
		return 0;
	return err_set(err, during.effect == EFFECT_PARTIAL ? "failed_to_apply" : "no_effect", 0,
		"observe", "the effect is %s: %s", effect_name(during.effect), during.detail);
}

/* Looks at the effect now and then; a change is recorded and told. */
static void look(struct holder_work *w)
{
	struct observation o = {0};

	if (w->run.steps->observe(&w->run, &o, NULL) < 0 || o.effect == w->effect)
		return;
	w->effect = o.effect;
	lease_add_observation(&w->lease, observation_to_json(&o, "during"));
	run_save(&w->run, NULL);
	holder_say(w, "moved", true, "", o.detail, observation_to_json(&o, "during"));
}

/*
 * A thousand holders wait at once, so each gives back what only the way here
 * needed: the lease is made anew in an empty arena, and free heap and the stack
 * below where we stand return to the kernel.
 */
static void give_back_memory(struct holder_work *w)
{
	uintptr_t page = 4096, here = (uintptr_t)__builtin_frame_address(0);
	uintptr_t top = (here & ~(page - 1)) - page;
	json_t *j = lease_to_json(&w->lease);
	_free_ char *text = j ? json_text(j) : NULL;
	char key[LEASE_KEY_SIZE];

	if (text) {
		text_copy(key, sizeof(key), w->lease.key);
		arena_discard();
		if (lease_from_text(key, text, &w->lease, NULL) < 0)
			_exit(EXIT_DIRTY); /* no memory for what we just had: recovery has the record */
	}
	free(take_ptr(text));
	malloc_trim(0);
	madvise((void *)(top - STACK_TRIM), STACK_TRIM, MADV_DONTNEED);
}

static void hold(struct holder_work *w)
{
	uint64_t interval = POLL_FIRST_US, next = clock_boottime_us() + interval;

	w->held = true;
	give_back_memory(w);
	while (w->stop == LEASE_END_NONE) {
		uint64_t now = clock_boottime_us();

		if (now >= next) {
			look(w);
			interval = interval * 2 > POLL_LAST_US ? POLL_LAST_US : interval * 2;
			next = clock_boottime_us() + interval;
			continue;
		}
		holder_watch(w, next - now);
	}
}

static int release(struct holder_work *w, enum lease_end end, bool ok, const char *reason,
	const char *detail)
{
	struct err err = {0};
	int r;

	w->undoing = true;
	r = lease_undo(&w->run, end, &err);
	if (r == -EUCLEAN)
		holder_say(w, "ended", false,
			err_is(&err, "verify_failed") ? "verify_failed" : "undo_failed", err.text,
			NULL);
	else
		holder_say(w, "ended", ok, reason, detail, NULL);
	return r == -EUCLEAN ? EXIT_DIRTY : 0;
}

static int hold_fault(struct holder_work *w)
{
	json_t *seen = NULL;
	struct err err = {0};
	char detail[200];
	int r = before_change(w, &err);

	if (r < 0 && w->stop != LEASE_END_NONE)
		return give_up(w, w->stop, reason_of_stop(w->stop), err.text);
	if (r < 0)
		return give_up(w,
			err_is(&err, "host.halted") ? LEASE_END_HALTED : end_of_reason(&err),
			result_reason(&err), err.text);
	r = apply(w, &seen, &err);
	if (r < 0) {
		bool asked = w->stop != LEASE_END_NONE;

		json_decref(seen);
		return release(w, asked ? w->stop : end_of_reason(&err), false,
			asked ? reason_of_stop(w->stop) : result_reason(&err), err.text);
	}
	if (w->lease.undo_kind == UNDO_IRREVERSIBLE) {
		snprintf(detail, sizeof(detail), "%s", json_text_or(seen, "detail", ""));
		json_decref(seen);
		return release(w, LEASE_END_NORMAL, true, "", detail);
	}
	/* The effect is there and undo is on disk: a time of injection that cannot be written ends it. */
	if (run_save(&w->run, &err) < 0) {
		json_decref(seen);
		return release(w, LEASE_END_FAILED_TO_APPLY, false, err.code, err.text);
	}
	snprintf(detail, sizeof(detail), "%s", json_text_or(seen, "detail", ""));
	holder_say(w, "injected", true, "", detail, seen);
	lease_announce(&w->lease);
	hold(w);
	return release(w, w->stop, true, "", "");
}

/* What would be recorded, and how things are: found out, told, and thrown away. */
static int check_only(struct holder_work *w, const struct launch_record *rec)
{
	struct observation before = {0};
	struct err err = {0};
	int r = prepare(w, rec, &err);

	if (r == 0)
		r = complete_target(w, &err);
	if (r == 0)
		r = w->run.steps->check(&w->run, &err);
	if (r == 0)
		r = w->run.steps->record(&w->run, &err);
	if (r == 0)
		r = w->run.steps->observe(&w->run, &before, &err);
	if (r < 0)
		holder_say(w, "ended", false, result_reason(&err), err.text, NULL);
	else
		holder_say(w, "ended", true, "", "it would have an effect",
			observation_to_json(&before, "before"));
	return 0;
}

int holder_body(void *arg, int linkfd, const struct launch_record *rec)
{
	struct holder_work *w = arg;
	int code;

	w->linkfd = linkfd;
	if (w->setup->check_only) {
		code = check_only(w, rec); /* no record, so no claim, which else prepares */
	} else {
		holder_arm_timer(w);
		holder_say(w, "moved", true, "", "", NULL);
		code = hold_fault(w);
	}
	if (w->run.steps && w->run.steps->done)
		w->run.steps->done(&w->run);
	return code;
}
