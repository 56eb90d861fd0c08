/* SPDX-License-Identifier: Apache-2.0 */
#include "fault/stopping.h"

#include <signal.h>
#include <string.h>

#include "base/cleanup.h"
#include "base/clock.h"
#include "base/json.h"
#include "base/text.h"
#include "os/pidfd.h"
#include "os/procfs.h"

#define STOP_LIMIT_MS 1000
#define CONT_LIMIT_MS 200
#define OP "signal.cont"

struct threads {
	pid_t pid;
	unsigned total, stopped,
		waiting; /* waiting: in D, perhaps for a vfork child that is stopped */
	char worst;
};

static int look_at_thread(pid_t tid, void *arg)
{
	struct threads *t = arg;
	struct proc_stat st;
	int r = procfs_read_thread_stat(t->pid, tid, &st);

	if (r == -ESRCH || st.state == 'X' || st.state == 'Z')
		return 0;
	if (r < 0)
		return r;
	t->total++;
	if (st.state == 'T' || st.state == 't')
		t->stopped++;
	else if (st.state == 'D')
		t->waiting++;
	return 0;
}

struct child_search {
	pid_t parent;
	bool stopped;
};

static int look_for_stopped_child(pid_t pid, void *arg)
{
	struct child_search *c = arg;
	struct proc_stat st;

	if (procfs_read_stat(pid, &st) == 0 && st.ppid == c->parent && st.state == 'T')
		c->stopped = true;
	return c->stopped;
}

/* A thread in D cannot stop; if it waits for its vfork child and that stands, it stands as well. */
static bool waits_for_stopped_child(pid_t pid)
{
	struct child_search c = {.parent = pid};

	procfs_each_process(look_for_stopped_child, &c);
	return c.stopped;
}

int stopping_is_stopped(pid_t pid, bool *ret)
{
	struct threads t = {.pid = pid};
	int r = procfs_each_thread(pid, look_at_thread, &t);

	if (r < 0)
		return r;
	if (t.total == 0)
		return -ESRCH;
	*ret = t.stopped == t.total ||
		(t.waiting && t.stopped + t.waiting == t.total && waits_for_stopped_child(pid));
	return 0;
}

static int conflict(const struct proc_identity *id, const char *what, const char *remedy,
	struct err *err)
{
	err_set(err, "resource_conflict", 0, "check", "process %d (%s) %s", id->pid, id->comm,
		what);
	err_remedy(err, "%s", remedy);
	return -EBUSY;
}

static int check_threads(const struct proc_identity *id, struct err *err)
{
	struct threads t = {.pid = id->pid};
	int r = procfs_each_thread(id->pid, look_at_thread, &t);

	if (r < 0)
		return err_set(err, r == -ESRCH ? "target_gone" : "target.unverifiable", -r,
			"check", "cannot look at the threads of process %d", id->pid);
	if (t.stopped)
		return conflict(id, "is stopped already, or being traced",
			"continue it first, or leave it as it is", err);
	return 0;
}

int stopping_may_signal(pid_t pid, int pidfd, struct err *err)
{
	int r = pidfd_signal(pidfd, 0);

	if (r == -ESRCH)
		return err_set(err, "target_gone", 0, "check", "process %d has ended", pid);
	if (r < 0) {
		err_set(err, "failed_to_apply", -r, "check", "process %d may not be signalled",
			pid);
		err_remedy(err, "it belongs to somebody else: mayhem --sudo …");
	}
	return r;
}

int stopping_check(struct fault_run *run, const struct proc_identity *id, int pidfd,
	struct err *err)
{
	struct proc_status status;
	struct proc_stat stat;
	bool frozen = false;
	int r = stopping_may_signal(id->pid, pidfd, err);

	if (r == 0)
		r = check_threads(id, err);
	if (r < 0)
		return r;
	r = procfs_read_stat(id->pid, &stat);
	if (r == 0)
		r = procfs_read_status(id->pid, &status);
	if (r == 0)
		r = cgroup_process_frozen(&run->store->domain, id->pid, &frozen);
	if (pidfd_has_exited(pidfd))
		return err_set(err, "target_gone", ESRCH, "check", "process %d has ended", id->pid);
	if (r < 0)
		return err_set(err, "failed_to_apply", -r, "check", "cannot inspect process %d",
			id->pid);
	if (status.tracer_pid)
		return conflict(id, "is being traced by a debugger", "end the debugger first", err);
	if (frozen)
		return conflict(id, "is in a frozen cgroup", "thaw it first", err);
	if (stat.tty_nr && stat.tpgid == stat.pgrp)
		return conflict(id,
			"is in the foreground of a terminal, whose shell would take it over",
			"start it in the background or in a session of its own", err);
	return 0;
}

static json_t *args_of(const struct proc_identity *id)
{
	char pid[16], ticks[24], pidns[24], pidfs[24], dev[24], ino[24], uid[16];

	snprintf(pid, sizeof(pid), "%d", id->pid);
	snprintf(ticks, sizeof(ticks), "%llu", (unsigned long long)id->start_ticks);
	snprintf(pidns, sizeof(pidns), "%llu", (unsigned long long)id->pidns_inode);
	snprintf(pidfs, sizeof(pidfs), "%llu", (unsigned long long)id->pidfs_inode);
	snprintf(dev, sizeof(dev), "%llu", (unsigned long long)id->exe_dev);
	snprintf(ino, sizeof(ino), "%llu", (unsigned long long)id->exe_ino);
	snprintf(uid, sizeof(uid), "%u", id->uid);
	return json_pack("{s:s, s:s, s:s, s:s, s:s, s:s, s:s, s:s, s:s, s:s}", "pid", pid,
		"start_ticks", ticks, "boot_id", id->boot_id, "pidns_inode", pidns, "pidfs_inode",
		pidfs, "comm", id->comm, "exe_device", dev, "exe_inode", ino, "uid", uid, "cgroup",
		id->cgroup);
}

static int arg_u64(const json_t *args, const char *key, uint64_t *ret)
{
	return text_parse_u64(json_text_or(args, key, ""), ret);
}

int stopping_op_identity(const json_t *op, struct proc_identity *ret, struct err *err)
{
	const json_t *args = json_object_get(op, "args");
	struct proc_identity id = {0};
	uint64_t uid;

	if (!text_equal(json_text_or(op, "op", ""), OP) || !json_object_get(args, "pidfs_inode"))
		return -ENOENT;
	if (text_parse_pid(json_text_or(args, "pid", ""), &id.pid) < 0 ||
		arg_u64(args, "start_ticks", &id.start_ticks) < 0 ||
		arg_u64(args, "pidns_inode", &id.pidns_inode) < 0 ||
		arg_u64(args, "pidfs_inode", &id.pidfs_inode) < 0 ||
		arg_u64(args, "exe_device", &id.exe_dev) < 0 ||
		arg_u64(args, "exe_inode", &id.exe_ino) < 0 || arg_u64(args, "uid", &uid) < 0 ||
		uid > UINT32_MAX ||
		!text_copy(id.boot_id, sizeof(id.boot_id), json_text_or(args, "boot_id", "")) ||
		!text_copy(id.comm, sizeof(id.comm), json_text_or(args, "comm", "")) ||
		!text_copy(id.cgroup, sizeof(id.cgroup), json_text_or(args, "cgroup", "")))
		return err_set(err, "lease.shape", 0, "undo", "an undo op has no proper identity");
	id.uid = (uid_t)uid;
	*ret = id;
	return 0;
}

int stopping_record(struct fault_run *run, const struct proc_identity *id, struct err *err)
{
	struct lease *l = run->lease;
	char key[LEASE_TEXT_SIZE];
	json_t *probe, *args = args_of(id);

	if (!args || lease_add_undo(l, OP, args, true) < 0)
		return err_set(err, "failed_to_apply", ENOMEM, "record", "no memory");
	if (id->pidfs_inode)
		snprintf(key, sizeof(key), "proc:%llu:stop", (unsigned long long)id->pidfs_inode);
	else
		snprintf(key, sizeof(key), "proc:%llu,%d,%llu:stop",
			(unsigned long long)id->pidns_inode, id->pid,
			(unsigned long long)id->start_ticks);
	probe = json_pack("{s:s, s:{s:O}, s:b}", "probe", "process.stopped", "args", "pid",
		json_object_get(args, "pid"), "expect_present", false);
	if (json_array_append_new(l->resources, json_string(key)) < 0 ||
		json_array_append_new(l->verify_probes, probe) < 0)
		return err_set(err, "failed_to_apply", ENOMEM, "record", "no memory");
	return 0;
}

int stopping_send(pid_t pid, int pidfd, struct err *err)
{
	int r = pidfd_signal(pidfd, SIGSTOP);

	if (r < 0)
		return err_set(err, r == -ESRCH ? "target_gone" : "failed_to_apply", -r, "inject",
			"cannot stop process %d", pid);
	return 0;
}

int stopping_await(struct fault_run *run, pid_t pid, int pidfd, struct err *err)
{
	uint64_t limit = clock_boottime_ms() + STOP_LIMIT_MS, us = 50;

	for (;;) {
		bool stopped = false;
		int r = stopping_is_stopped(pid, &stopped);
		if (pidfd_has_exited(pidfd) || r == -ESRCH)
			return err_set(err, "target_gone", ESRCH, "inject", "process %d has ended",
				pid);
		if (r == 0 && stopped)
			return 0;
		if (clock_until_ms(limit) == 0)
			return err_set(err, "failed_to_apply", ETIMEDOUT, "inject",
				"process %d does not stop", pid);
		if (run_wait(run, us) < 0)
			return err_set(err, "cancelled", 0, "inject",
				"ended while it was injected");
		us = us < 2000 ? us * 2 : us;
	}
}

int stopping_stop(struct fault_run *run, pid_t pid, int pidfd, struct err *err)
{
	int r = stopping_send(pid, pidfd, err);

	return r < 0 ? r : stopping_await(run, pid, pidfd, err);
}

static bool was_lost(const json_t *op)
{
	return json_object_get(json_object_get(op, "args"), "lost");
}

struct tally {
	unsigned asked, alive, stopped, gone, foreign, unknown, lost;
	char reason[96];
};

/*
 * Looks at each recorded process. One that runs again although nobody undid
 * it was continued by somebody else: from then on its stop is not ours.
 */
static int tally(struct fault_run *run, bool mark_lost, struct tally *ret, struct err *err)
{
	struct tally t = {0};
	size_t i;
	json_t *op;

	json_array_foreach(run->lease->undo_ops, i, op) {
		struct proc_identity id;
		struct ident_match m;
		bool stopped = false;
		int r = stopping_op_identity(op, &id, err);

		if (r == -ENOENT)
			continue;
		if (r < 0)
			return r;
		t.asked++;
		ident_match(&id, NULL, &m);
		t.gone += m.verdict == IDENT_GONE;
		t.foreign += m.verdict == IDENT_FOREIGN;
		if (m.verdict == IDENT_UNVERIFIABLE) {
			t.unknown++;
			snprintf(t.reason, sizeof(t.reason), "process %d: %s", id.pid, m.reason);
		}
		if (m.pidfd < 0)
			continue;
		r = stopping_is_stopped(id.pid, &stopped);
		if (r == 0 && !pidfd_has_exited(m.pidfd)) {
			t.alive++;
			t.stopped += stopped && !was_lost(op);
			t.lost += was_lost(op);
			if (mark_lost && !stopped)
				json_object_set_new(json_object_get(op, "args"), "lost",
					json_string("continued by others"));
		} else {
			t.gone++;
		}
		close_now(&m.pidfd);
	}
	*ret = t;
	return 0;
}

static void fill(const struct tally *t, struct observation *o)
{
	o->metric = "process.stopped";
	o->unit = "count";
	o->value = t->stopped;
	o->asked = t->asked;
	o->reached = t->stopped;
	if (t->unknown)
		o->effect = EFFECT_UNKNOWN;
	else if (t->stopped == 0)
		o->effect = EFFECT_ABSENT;
	else
		o->effect = t->stopped == t->alive ? EFFECT_PRESENT : EFFECT_PARTIAL;
	snprintf(o->detail, sizeof(o->detail), "%u of %u processes stopped%s%s", t->stopped,
		t->asked, t->reason[0] ? "; " : "", t->reason);
}

int stopping_observe(struct fault_run *run, struct observation *ret, struct err *err)
{
	struct tally t;
	/* Only what was seen standing can be lost. */
	int r = tally(run, run->live && run->lease->injected_ms != 0, &t, err);

	if (r == 0)
		fill(&t, ret);
	return r;
}

static int continue_one(const json_t *op, const struct proc_identity *id, struct err *err)
{
	struct ident_match m;
	int r = 0;

	ident_match(id, NULL, &m);
	if (m.verdict == IDENT_UNVERIFIABLE)
		return err_set(err, "target.unverifiable", 0, "undo",
			"process %d cannot be told: %s", id->pid, m.reason);
	if (m.pidfd < 0)
		return 0; /* gone, or a stranger: nothing of ours is left there */
	/*
	 * Also to one that does not stand yet: a SIGSTOP may be on its way, and
	 * only SIGCONT takes that back.
	 */
	if (!was_lost(op))
		r = pidfd_signal(m.pidfd, SIGCONT);
	close_now(&m.pidfd);
	return r < 0 && r != -ESRCH ? err_set(err, "undo_failed", -r, "undo",
					      "cannot continue process %d (%s)", id->pid, id->comm)
				    : 0;
}

int stopping_undo(struct fault_run *run, struct err *err)
{
	int first = 0;

	/* From the last to the first, and all of them whatever one of them says: children before parents. */
	for (size_t i = json_array_size(run->lease->undo_ops); i-- > 0;) {
		const json_t *op = json_array_get(run->lease->undo_ops, i);
		struct proc_identity id;
		struct err why = {0};
		int r = stopping_op_identity(op, &id, &why);

		if (r == -ENOENT)
			continue;
		if (r == 0)
			r = continue_one(op, &id, &why);
		if (r < 0 && first == 0) {
			first = r;
			*err = why;
		}
	}
	return first;
}

int stopping_verify(struct fault_run *run, struct observation *ret, struct err *err)
{
	uint64_t limit = clock_boottime_ms() + CONT_LIMIT_MS;
	struct tally t;

	for (;;) {
		int r = tally(run, false, &t, err);

		if (r < 0)
			return r;
		if (t.stopped == 0 || clock_until_ms(limit) == 0)
			break;
		run_wait(run, 1000);
	}
	fill(&t, ret);
	return 0;
}

void stopping_remedy(struct fault_run *run)
{
	size_t i;
	json_t *op;

	json_array_foreach(run->lease->undo_ops, i, op) {
		const char *pid = json_text_or(json_object_get(op, "args"), "pid", NULL);

		if (pid && json_object_get(json_object_get(op, "args"), "pidfs_inode"))
			lease_add_remedy(run->lease,
				(const char *const[]){"kill", "-CONT", pid, NULL});
	}
}
