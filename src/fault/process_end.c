/* SPDX-License-Identifier: Apache-2.0 */
/*
 * process.stop and process.kill: irreversible. The effect is that the process
 * is gone; that is observed, and there is nothing to undo.
 */
#include <signal.h>
#include <string.h>

#include "base/cleanup.h"
#include "base/clock.h"
#include "base/json.h"
#include "base/text.h"
#include "fault/steps.h"
#include "fault/stopping.h"
#include "os/pidfd.h"
#include "os/procfs.h"

#define KILL_LIMIT_MS 5000

static int identity(const struct fault_run *run, struct proc_identity *ret, struct err *err)
{
	return ident_from_json(run->lease->target, ret, err);
}

static int end_record(struct fault_run *run, struct err *err)
{
	char pid[16];
	json_t *probe;

	snprintf(pid, sizeof(pid), "%lld", (long long)json_int_or(run->lease->target, "pid", 0));
	probe = json_pack("{s:s, s:{s:s}, s:b}", "probe", "process.present", "args", "pid", pid,
		"expect_present", false);
	if (!probe || json_array_append_new(run->lease->verify_probes, probe) < 0)
		return err_set(err, "failed_to_apply", ENOMEM, "record", "no memory");
	return 0;
}

static int kill_check(struct fault_run *run, struct err *err)
{
	if (pidfd_has_exited(run->target_pidfd))
		return err_set(err, "target_gone", ESRCH, "check", "it has ended already");
	return stopping_may_signal((pid_t)json_int_or(run->lease->target, "pid", 0),
		run->target_pidfd, err);
}

static bool has_signal(uint64_t mask, int signo)
{
	return mask >> (signo - 1) & 1;
}

/* Who would not end by SIGTERM: it ignores it, or is init of a pid namespace without a handler, or stands still. */
static int stop_check(struct fault_run *run, struct err *err)
{
	struct proc_identity id;
	struct proc_status st;
	struct proc_stat stat;
	int r = kill_check(run, err);

	if (r == 0)
		r = identity(run, &id, err);
	if (r < 0)
		return r;
	r = procfs_read_status(id.pid, &st);
	if (r == 0)
		r = procfs_read_stat(id.pid, &stat);
	if (pidfd_has_exited(run->target_pidfd))
		return err_set(err, "target_gone", ESRCH, "check", "it has ended already");
	if (r < 0)
		return err_set(err, "failed_to_apply", -r, "check", "cannot inspect process %d",
			id.pid);
	if (json_bool_or(run->lease->params, "escalate", false))
		return 0;
	if (has_signal(st.sig_ignored, SIGTERM))
		err_set(err, "no_effect", 0, "check", "process %d (%s) ignores SIGTERM", id.pid,
			id.comm);
	else if (st.ns_levels > 1 && st.ns_pid == 1 && !has_signal(st.sig_caught, SIGTERM))
		err_set(err, "no_effect", 0, "check",
			"process %d (%s) is init of its pid namespace and has no handler: the kernel drops SIGTERM",
			id.pid, id.comm);
	else if (stat.state == 'T')
		err_set(err, "no_effect", 0, "check",
			"process %d (%s) is stopped and would not see SIGTERM", id.pid, id.comm);
	else
		return 0;
	err_remedy(err, "add escalate=true, or use process.kill");
	return -EINVAL;
}

/* Waits until it has exited: 0, -ETIMEDOUT, -EINTR. */
static int wait_gone(struct fault_run *run, uint64_t limit_ms)
{
	uint64_t limit = clock_boottime_ms() + limit_ms, us = 100;

	while (!pidfd_has_exited(run->target_pidfd)) {
		if (clock_until_ms(limit) == 0)
			return -ETIMEDOUT;
		if (run_wait(run, us) < 0)
			return -EINTR;
		us = us < 10000 ? us * 2 : us;
	}
	return 0;
}

static int send(struct fault_run *run, int signo, struct err *err)
{
	int r = pidfd_signal(run->target_pidfd, signo);

	if (r < 0)
		return err_set(err, r == -ESRCH ? "target_gone" : "failed_to_apply", -r, "inject",
			"cannot signal it");
	return 0;
}

static int kill_inject(struct fault_run *run, struct err *err)
{
	int r = send(run, SIGKILL, err);

	if (r == 0 && wait_gone(run, KILL_LIMIT_MS) == -EINTR)
		return err_set(err, "cancelled", 0, "inject", "ended while it was watched");
	return r;
}

static int stop_inject(struct fault_run *run, struct err *err)
{
	uint64_t grace = catalogue_duration_ms(run->lease->params, "grace");
	int r = send(run, SIGTERM, err);

	if (r < 0)
		return r;
	r = wait_gone(run, grace);
	if (r == -EINTR)
		return err_set(err, "cancelled", 0, "inject", "ended while it was watched");
	if (r == -ETIMEDOUT && json_bool_or(run->lease->params, "escalate", false))
		return kill_inject(run, err);
	return 0; /* observe says whether it went */
}

/* A live run has the pidfd; a later one looks by the recorded identity. */
static int look(struct fault_run *run, bool *ret_there, struct err *err)
{
	struct proc_identity id;
	struct ident_match m;
	int r = identity(run, &id, err);

	if (r < 0)
		return r;
	if (run->target_pidfd >= 0) {
		*ret_there = !pidfd_has_exited(run->target_pidfd);
		return 0;
	}
	ident_match(&id, NULL, &m);
	if (m.verdict == IDENT_UNVERIFIABLE)
		return err_set(err, "target.unverifiable", 0, "verify", "process %d: %s", id.pid,
			m.reason);
	*ret_there = m.pidfd >= 0;
	close_now(&m.pidfd);
	return 0;
}

static int end_observe(struct fault_run *run, struct observation *ret, struct err *err)
{
	bool there;
	int r = look(run, &there, err);

	if (r < 0)
		return r;
	ret->metric = "process.gone";
	ret->unit = "count";
	ret->asked = 1;
	ret->value = ret->reached = !there;
	ret->effect = there ? EFFECT_ABSENT : EFFECT_PRESENT;
	snprintf(ret->detail, sizeof(ret->detail),
		there ? "the process is still there" : "the process has ended");
	return 0;
}

static int end_undo(struct fault_run *run _unused_, struct err *err _unused_)
{
	return 0; /* irreversible: the record says so */
}

/* Nothing of ours is left behind, whether it went or not. */
static int end_verify(struct fault_run *run, struct observation *ret, struct err *err)
{
	int r = end_observe(run, ret, err);

	if (r < 0)
		return r;
	ret->effect = EFFECT_ABSENT;
	return 0;
}

const struct fault_steps process_kill_steps = {
	.id = "process.kill",
	.check = kill_check,
	.record = end_record,
	.inject = kill_inject,
	.observe = end_observe,
	.undo = end_undo,
	.verify = end_verify,
};

const struct fault_steps process_stop_steps = {
	.id = "process.stop",
	.check = stop_check,
	.record = end_record,
	.inject = stop_inject,
	.observe = end_observe,
	.undo = end_undo,
	.verify = end_verify,
};
