/* SPDX-License-Identifier: Apache-2.0 */
#include "lease/recover.h"

#include <poll.h>
#include <signal.h>
#include <string.h>

#include "base/cleanup.h"
#include "base/clock.h"
#include "base/json.h"
#include "base/log.h"
#include "base/text.h"
#include "launch/link.h"
#include "lease/holder.h"
#include "lease/sweep.h"
#include "lease/undo.h"
#include "os/pidfd.h"

#define OVERDUE_GRACE_MS 5000
#define TERM_WAIT_MS 5000
#define LOCK_TRIES 20
#define LEAF_EMPTY_MS 5000
#define PARTS 4	      /* processes that share a long list */
#define PARTS_FROM 64 /* leases */
#define PART_WAIT_MS 60000
#define PART_SAYS 1

static const char *const found_names[RECOVER_FOUND_MAX] = {"holder_gone", "other_boot", "alive",
	"overdue", "unverifiable", "busy", "elsewhere"};
static const char *const did_names[RECOVER_DID_MAX] = {"undone", "left", "would_undo",
	"marked_dirty"};

const char *recover_found_name(enum recover_found f)
{
	return found_names[f];
}

const char *recover_did_name(enum recover_did d)
{
	return did_names[d];
}

/* Nothing asks a recovery to stop, so its waits only wait. */
static int wait_plainly(struct fault_run *run _unused_, uint64_t us)
{
	struct timespec ts = {.tv_sec = (time_t)(us / 1000000),
		.tv_nsec = (long)(us % 1000000) * 1000};

	ppoll(NULL, 0, &ts, NULL);
	return 0;
}

/* What the dead holder left running ends before its fault is undone, or it would go on injecting. */
static int end_leftovers(struct lease_store *s, const struct lease *l, struct err *err)
{
	_close_ int leaf = -1;
	int r;

	if (!l->holder.cgroup[0] || !text_equal(l->boot_id, s->boot_id) ||
		cgroup_leaf_open(&s->domain, l->holder.nonce, &leaf) < 0)
		return 0;
	if (cgroup_leaf_populated(&s->domain, leaf) > 0)
		cgroup_leaf_kill(&s->domain, leaf);
	r = cgroup_leaf_wait_empty(&s->domain, leaf, LEAF_EMPTY_MS);
	if (r < 0)
		return err_set(err, "undo_failed", -r, "cgroup", "processes in %s do not die",
			l->holder.cgroup);
	cgroup_leaf_remove(&s->domain, l->holder.nonce);
	return 0;
}

static bool is_elsewhere(const struct lease_store *s, const struct lease *l)
{
	if (l->machine_id[0] && s->machine_id[0] && !text_equal(l->machine_id, s->machine_id))
		return true;
	/* Of another boot the namespaces are gone too; of this one they may be alive. */
	if (!text_equal(l->boot_id, s->boot_id))
		return false;
	return (l->pidns && l->pidns != s->pidns) || (l->timens && l->timens != s->timens);
}

/* The record is locked and read. */
static int recover_locked(struct lease_store *s, struct lease_file *f, struct lease *l,
	steps_finder find_steps, struct err *err)
{
	struct fault_run run = {
		.lease = l,
		.store = s,
		.file = f,
		.steps = find_steps(l),
		.tools = &s->domain,
		.target_pidfd = -1,
		.rebooted = !text_equal(l->boot_id, s->boot_id),
		.wait = wait_plainly,
	};
	int r;

	if (lease_is_safe(l))
		return lease_file_retire(s, f, err);
	if (l->state == LEASE_PENDING) {
		end_leftovers(s, l, err);
		return lease_expire(&run, LEASE_END_FAILED_TO_APPLY, err);
	}
	if (!run.steps)
		return err_set(err, "fault.not_executable", 0, "recover",
			"this version cannot undo %s", l->fault_id);
	r = end_leftovers(s, l, err);
	if (r < 0)
		return r;
	r = lease_undo(&run, run.rebooted ? LEASE_END_REBOOT : LEASE_END_RECOVERY, err);
	if (run.steps->done)
		run.steps->done(&run);
	return r;
}

/* A claim's or a reader's look takes the lock for an instant: asked again before it counts as work. */
static int open_patiently(struct lease_store *s, const char *key, struct lease_file *f,
	struct lease *l, struct err *err)
{
	int r;

	for (int i = 0;; i++) {
		r = lease_file_open(s, key, f, l, err);
		if (r != -EBUSY || i == LOCK_TRIES)
			return r;
		poll(NULL, 0, 1);
	}
}

int lease_recover_one(struct lease_store *s, const char *key, steps_finder find_steps,
	struct lease *ret_lease)
{
	_lease_file_ struct lease_file f = LEASE_FILE_INIT;
	_lease_ struct lease l = {0};
	struct err err = {0};
	int r = open_patiently(s, key, &f, &l, &err);

	if (r == -ENOENT)
		return ret_lease ? lease_peek(s, key, ret_lease, &err) : 0;
	if (r == -ENODATA) {
		lease_file_discard(s, &f);
		return 0;
	}
	if (r == 0)
		r = recover_locked(s, &f, &l, find_steps, &err);
	if (r < 0 && r != -EBUSY)
		log_error("recover", "%s: %s", key, err.text);
	if (ret_lease && l.target) {
		*ret_lease = l;
		memset(&l, 0, sizeof(l));
	}
	return r;
}

struct recovery {
	struct lease_store *s;
	const struct recover_opts *opts;
	struct recover_report rep;
	json_t *leases, *unreadable, *orphans;
	struct lease_keys keys;
};

static void report(struct recovery *w, const char *key, const struct lease *l,
	enum recover_found found, enum recover_did did)
{
	json_array_append_new(w->leases,
		json_pack("{s:s, s:s, s:s, s:s, s:s?, s:s, s:O?, s:s?}", "id",
			l->id[0] ? l->id : key, "run_id", l->run_id, "found", found_names[found],
			"did", did_names[did], "state",
			l->target ? lease_machine.names[l->state] : NULL, "release_mechanism",
			lease_end_name(l->end), "remedy", l->remedy, "escalation_notes",
			l->notes[0] ? l->notes : NULL));
	w->rep.seen++;
	w->rep.undone += did == RECOVER_UNDONE;
	w->rep.left += did == RECOVER_LEFT || did == RECOVER_WOULD_UNDO;
	if (l->target && l->state == LEASE_DIRTY) {
		w->rep.dirty++;
		w->rep.exit_code = 7;
	}
	if (found == RECOVER_ELSEWHERE)
		w->rep.exit_code = 7;
}

/*
 * Damaged, or no record at all (a link, a folder, a socket). Everything else,
 * no descriptor or memory or an error of the disk, says nothing of the record:
 * it stays where the next recovery finds it.
 */
static bool is_damaged(int r)
{
	return r == -EBADMSG || r == -ELOOP || r == -EISDIR || r == -ENXIO;
}

static void report_unreadable(struct recovery *w, const char *key, int r, const struct err *why)
{
	char name[LEASE_KEY_SIZE + 8], kept[128] = "", path[LEASE_KEY_SIZE + 16];
	struct err err;

	snprintf(name, sizeof(name), "%s.log", key);
	snprintf(path, sizeof(path), "leases/%s", name);
	/* A newer version's record is left for that version. */
	if (is_damaged(r) && !w->opts->plan &&
		lease_set_aside(w->s, name, kept, sizeof(kept), &err) < 0)
		log_error("recover", "%s", err.text);
	json_array_append_new(w->unreadable,
		json_pack("{s:s, s:s?, s:s}", "path", path, "kept_as", kept[0] ? kept : NULL, "why",
			why->text));
	w->rep.seen++;
	w->rep.unreadable++;
	w->rep.exit_code = 7;
}

/* Locked by a live holder that is long past its end: asked, then killed. True when the lock is free now. */
static bool end_overdue(struct recovery *w, const struct lease *l)
{
	struct launched found = LAUNCHED_INIT;
	enum ident_verdict verdict;
	struct launch_end end;
	int r;

	if (launch_adopt(&l->holder, &found, &verdict, NULL) < 0)
		return verdict == IDENT_GONE;
	r = launch_stop(&found, &w->s->domain, TERM_WAIT_MS, &end, NULL);
	launched_close(&found);
	return r == 0;
}

static void recover_free(struct recovery *w, struct lease_file *f, struct lease *l)
{
	enum recover_found found =
		text_equal(l->boot_id, w->s->boot_id) ? RECOVER_HOLDER_GONE : RECOVER_OTHER_BOOT;
	struct err err = {0};
	int r;

	if (is_elsewhere(w->s, l))
		return report(w, l->key, l, RECOVER_ELSEWHERE, RECOVER_LEFT);
	/* At its safe end, and only not moved yet: there is nothing to tell. */
	if (lease_is_safe(l)) {
		if (!w->opts->plan)
			lease_file_retire(w->s, f, NULL);
		return;
	}
	if (w->opts->plan)
		return report(w, l->key, l, found, RECOVER_WOULD_UNDO);
	r = recover_locked(w->s, f, l, w->opts->find_steps, &err);
	if (r == -EUCLEAN)
		return report(w, l->key, l,
			err_is(&err, "target.unverifiable") ? RECOVER_UNVERIFIABLE : found,
			RECOVER_MARKED_DIRTY);
	if (r < 0) {
		log_error("recover", "%s: %s", l->key, err.text);
		w->rep.exit_code = 7;
		return report(w, l->key, l, found, RECOVER_LEFT);
	}
	report(w, l->key, l, found, RECOVER_UNDONE);
}

static void recover_key(struct recovery *w, const char *key)
{
	for (int attempt = 0; attempt < 2; attempt++) {
		_lease_file_ struct lease_file f = LEASE_FILE_INIT;
		_lease_ struct lease l = {0};
		struct err err = {0};
		bool overdue;
		int r = open_patiently(w->s, key, &f, &l, &err);

		if (r == -ENOENT)
			return; /* ended meanwhile */
		if (r == 0)
			return recover_free(w, &f, &l);
		if (r == -ENODATA) {
			/* Named and never written: its holder died before the claim, and nothing was changed. */
			if (!w->opts->plan)
				lease_file_discard(w->s, &f);
			return;
		}
		if (r != -EBUSY)
			return report_unreadable(w, key, r, &err);
		r = lease_peek(w->s, key, &l, &err);
		if (r == -ENOENT || r == -ENODATA)
			return; /* being ended, or being made */
		if (r < 0)
			return report_unreadable(w, key, r, &err);
		overdue = !lease_is_safe(&l) && text_equal(l.boot_id, w->s->boot_id) &&
			!is_elsewhere(w->s, &l) &&
			clock_boottime_ms() > l.deadline_boottime_ms + OVERDUE_GRACE_MS;
		if (!overdue || w->opts->skip_overdue)
			return report(w, key, &l, overdue ? RECOVER_OVERDUE : RECOVER_ALIVE,
				RECOVER_LEFT);
		if (w->opts->plan)
			return report(w, key, &l, RECOVER_OVERDUE, RECOVER_WOULD_UNDO);
		if (!end_overdue(w, &l))
			return report(w, key, &l, RECOVER_BUSY, RECOVER_LEFT);
	}
}

static void recover_every(struct recovery *w, size_t first, size_t step)
{
	for (size_t i = first; i < w->keys.n; i += step)
		recover_key(w, w->keys.list[i]);
}

struct part {
	const struct recovery *whole;
	size_t first;
	struct launched l;
};

/* In a process of its own, with nothing but the keys and what they mean. */
static int part_body(void *arg, int linkfd, const struct launch_record *rec _unused_)
{
	const struct part *p = arg;
	struct recovery w = {
		.s = p->whole->s,
		.opts = p->whole->opts,
		.leases = json_array(),
		.unreadable = json_array(),
		.keys = p->whole->keys,
	};
	_json_ json_t *said = NULL;
	_free_ char *text = NULL;

	w.s->domain.basefd = -1;
	recover_every(&w, p->first, PARTS);
	said = json_pack("{s:o, s:o, s:i, s:i, s:i, s:i, s:i, s:i}", "leases", w.leases,
		"unreadable", w.unreadable, "seen", (int)w.rep.seen, "undone", (int)w.rep.undone,
		"left", (int)w.rep.left, "dirty", (int)w.rep.dirty, "n_unreadable",
		(int)w.rep.unreadable, "exit", w.rep.exit_code);
	text = said ? json_canonical(said, NULL) : NULL;
	return !text || link_send(linkfd, PART_SAYS, text, strlen(text)) < 0;
}

static void part_start(struct recovery *w, size_t first, struct part *ret)
{
	const struct state_dir *d = &w->s->dir;
	const int all[] = {d->fd, d->leasesfd, d->endedfd, d->claimsfd, d->asidefd,
		w->s->hostclaimsfd};
	int keep[ARRAY_SIZE(all)];
	struct launch_spec spec = {
		.kind = LAUNCH_RECOVERER,
		.domain = &w->s->domain,
		.body = part_body,
		.arg = ret,
		.cwdfd = -1,
		.stdfd = {-1, -1, -1},
		.keepfds = keep,
		.required = LAUNCH_DIM_ALL,
	};
	struct err err;

	for (size_t i = 0; i < ARRAY_SIZE(all); i++)
		if (all[i] >= 0)
			keep[spec.n_keepfds++] = all[i];
	*ret = (struct part){.whole = w, .first = first, .l = LAUNCHED_INIT};
	if (launch_hold(&spec, NULL, &ret->l, &err) == 0)
		launch_go(&ret->l, &err);
}

static bool part_take(struct recovery *w, const struct part *p)
{
	_free_ char *text = NULL;
	_json_ json_t *said = NULL;
	uint8_t type;
	size_t len;

	if (p->l.linkfd < 0 || link_receive(p->l.linkfd, &type, &text, &len) <= 0 ||
		type != PART_SAYS || json_parse(text, len, &said, NULL) < 0)
		return false;
	json_array_extend(w->leases, json_object_get(said, "leases"));
	json_array_extend(w->unreadable, json_object_get(said, "unreadable"));
	w->rep.seen += (unsigned)json_int_or(said, "seen", 0);
	w->rep.undone += (unsigned)json_int_or(said, "undone", 0);
	w->rep.left += (unsigned)json_int_or(said, "left", 0);
	w->rep.dirty += (unsigned)json_int_or(said, "dirty", 0);
	w->rep.unreadable += (unsigned)json_int_or(said, "n_unreadable", 0);
	if (json_int_or(said, "exit", 0))
		w->rep.exit_code = (int)json_int_or(said, "exit", 0);
	return true;
}

/* Most of the time is spent waiting for the disk: a long list is shared out. */
static void recover_in_parts(struct recovery *w)
{
	struct part parts[PARTS];

	for (size_t i = 1; i < PARTS; i++)
		part_start(w, i, &parts[i]);
	recover_every(w, 0, PARTS);
	for (size_t i = 1; i < PARTS; i++) {
		struct part *p = &parts[i];

		while (p->l.pidfd >= 0 && pidfd_wait_exit(p->l.pidfd, PART_WAIT_MS) < 0)
			;
		if (p->l.pidfd >= 0)
			launch_finish(&p->l, &w->s->domain, NULL);
		/* Not a word: it could not start, or died. What it did is done; the rest is ours. */
		if (!part_take(w, p))
			recover_every(w, i, PARTS);
		launched_close(&p->l);
	}
}

int lease_recover(struct lease_store *s, const struct recover_opts *opts,
	struct recover_report *ret, struct err *err)
{
	struct recovery w = {
		.s = s,
		.opts = opts,
		.leases = json_array(),
		.unreadable = json_array(),
		.orphans = json_array(),
	};
	int r;

	if (!opts->plan)
		lease_readopt_spares(s);
	/* Listed first, worked on second: a folder that changes under its reader may show a name twice, or not. */
	r = lease_keys_add(s, false, &w.keys);
	if (opts->read_all)
		opts->read_all(opts->arg);
	if (w.keys.n < PARTS_FROM || opts->plan)
		recover_every(&w, 0, 1);
	else
		recover_in_parts(&w);
	free(w.keys.list);
	if (!opts->plan)
		lease_drop_spare_names(s);
	if (r == 0 && !opts->plan)
		r = lease_sweep(s, opts->sweep, w.orphans);
	w.rep.doc =
		json_pack("{s:i, s:b, s:s, s:o, s:[], s:o, s:o, s:{s:i, s:i, s:i, s:i, s:i}, s:i}",
			"v", 1, "plan", opts->plan, "boot_id", s->boot_id, "leases", w.leases,
			"jobs", "unreadable", w.unreadable, "orphans", w.orphans, "counts", "seen",
			(int)w.rep.seen, "undone", (int)w.rep.undone, "left", (int)w.rep.left,
			"dirty", (int)w.rep.dirty, "unreadable", (int)w.rep.unreadable, "exit",
			w.rep.exit_code);
	if (r < 0 || !w.rep.doc) {
		json_decref(w.rep.doc);
		return err_set(err, "store.failed", r < 0 ? -r : ENOMEM, "recover",
			"cannot go through %s", s->dir.path);
	}
	*ret = w.rep;
	return 0;
}
