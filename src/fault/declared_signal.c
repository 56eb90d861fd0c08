/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The signal executor of declared leases: a process of the host by pid (and
 * boot_time, the start ticks that guard against reuse), or a container's
 * through its engine. What it records beside the controller's own ops is what
 * a native lease records, so one undo serves both.
 */
#include <signal.h>
#include <string.h>

#include "base/cleanup.h"
#include "base/clock.h"
#include "base/json.h"
#include "base/text.h"
#include "fault/container.h"
#include "fault/steps.h"
#include "fault/stopping.h"
#include "os/pidfd.h"

#define GONE_LIMIT_MS 2000
#define CONTAINER_OP "engine.signal"

struct address {
	bool container;
	pid_t pid;
	const char *engine, *cont, *boot_time; /* of the lease's ops; boot_time may be NULL */
};

/* 0 for pause, else the signal; -1 when the fault id says nothing of the kind. */
static int signal_of(const char *fault_id, const char **ret_name)
{
	const char *verb = strrchr(fault_id, '.');
	size_t len = verb ? strlen(verb) : 0;

	if (text_equal(fault_id, "proc.pause"))
		return *ret_name = "SIGSTOP", SIGSTOP;
	if (len >= 5 && text_equal(verb + len - 4, "stop"))
		return *ret_name = "SIGTERM", SIGTERM;
	if (len >= 5 && text_equal(verb + len - 4, "kill"))
		return *ret_name = "SIGKILL", SIGKILL;
	return -1;
}

static bool is_pause(const struct fault_run *run)
{
	return text_equal(run->lease->fault_id, "proc.pause");
}

/* The first op with a pid, or with engine and container. */
static int find_address(const struct fault_run *run, struct address *ret, struct err *err)
{
	size_t i;
	json_t *op;

	json_array_foreach(run->lease->undo_ops, i, op) {
		const json_t *args = json_object_get(op, "args");
		struct address a = {
			.engine = json_text_or(args, "engine", NULL),
			.cont = json_text_or(args, "cont", NULL),
			.boot_time = json_text_or(args, "boot_time", NULL),
		};
		int64_t pid = 0;
		bool has_pid = text_parse_i64(json_text_or(args, "pid", ""), &pid) == 0;

		a.container = a.engine && a.cont;
		if (!has_pid && !a.container)
			continue;
		a.pid = pid > 0 && pid <= INT32_MAX ? (pid_t)pid : 0;
		*ret = a;
		return 0;
	}
	return err_set(err, "failed_to_apply", 0, "plan", "no undo op names a pid or a container");
}

/* The process itself, held and checked against what the controller knew of it. */
static int find_process(struct fault_run *run, const struct address *a, struct proc_identity *ret,
	struct err *err)
{
	uint64_t ticks;
	int r;

	if (a->pid <= 1)
		return err_set(err, "failed_to_apply", 0, "identity",
			"pid %d is not a process to signal", a->pid);
	if (run->target_pidfd < 0) {
		int fd;

		r = ident_read(a->pid, ret, &fd, err);
		if (r < 0)
			return err_set(err, "target_gone", 0, "identity",
				"process %d is already gone", a->pid);
		run->target_pidfd = fd;
	} else {
		r = ident_read(a->pid, ret, NULL, err);
		if (r < 0 || pidfd_has_exited(run->target_pidfd))
			return err_set(err, "target_gone", 0, "identity",
				"process %d is already gone", a->pid);
	}
	if (a->boot_time && text_parse_u64(a->boot_time, &ticks) == 0 && ticks != ret->start_ticks)
		return err_set(err, "failed_to_apply", 0, "identity",
			"pid-reuse guard: process %d started at %llu, not at %s", a->pid,
			(unsigned long long)ret->start_ticks, a->boot_time);
	return 0;
}

static int container_of(struct fault_run *run, const struct address *a, struct container *ret,
	pid_t *ret_pid, struct err *err)
{
	return container_resolve(run, a->engine, a->cont, ret, ret_pid, err);
}

static int signal_check(struct fault_run *run, struct err *err)
{
	struct proc_identity id;
	struct container c;
	struct address a;
	const char *name;
	pid_t pid;
	int r = find_address(run, &a, err);

	if (r == 0 && signal_of(run->lease->fault_id, &name) < 0)
		r = err_set(err, "failed_to_apply", 0, "plan",
			"%s is unplannable: pause, stop and kill are signals",
			run->lease->fault_id);
	if (r < 0)
		return r;
	if (a.container)
		return container_of(run, &a, &c, &pid, err);
	r = find_process(run, &a, &id, err);
	if (r == 0 && !is_pause(run))
		r = stopping_may_signal(id.pid, run->target_pidfd, err);
	if (r == 0 && is_pause(run))
		r = stopping_check(run, &id, run->target_pidfd, err);
	return r;
}

static int record_container(struct fault_run *run, const struct address *a, struct err *err)
{
	struct container c;
	char key[LEASE_TEXT_SIZE];
	json_t *args;
	pid_t pid;
	int r = container_of(run, a, &c, &pid, err);

	if (r < 0)
		return r;
	args = json_pack("{s:s, s:s, s:s}", "engine", c.engine, "id", c.id, "signal", "SIGCONT");
	snprintf(key, sizeof(key), "container:%s:stop", c.id);
	if (!args || lease_add_undo(run->lease, CONTAINER_OP, args, true) < 0 ||
		(is_pause(run) &&
			json_array_append_new(run->lease->resources, json_string(key)) < 0))
		return err_set(err, "failed_to_apply", ENOMEM, "record", "no memory");
	return 0;
}

static int signal_record(struct fault_run *run, struct err *err)
{
	struct proc_identity id;
	struct address a;
	int r = find_address(run, &a, err);

	if (r < 0)
		return r;
	text_copy(run->lease->verified_by, sizeof(run->lease->verified_by), "process.state");
	if (a.container)
		return record_container(run, &a, err);
	r = find_process(run, &a, &id, err);
	if (r == 0 && is_pause(run))
		r = stopping_record(run, &id, err);
	return r;
}

/* The op that record_container() left, with the full id. */
static bool recorded_container(const struct fault_run *run, struct container *ret)
{
	size_t i;
	json_t *op;

	json_array_foreach(run->lease->undo_ops, i, op) {
		const json_t *args = json_object_get(op, "args");

		if (!text_equal(json_text_or(op, "op", ""), CONTAINER_OP))
			continue;
		text_copy(ret->engine, sizeof(ret->engine), json_text_or(args, "engine", ""));
		text_copy(ret->id, sizeof(ret->id), json_text_or(args, "id", ""));
		return true;
	}
	return false;
}

static int signal_inject(struct fault_run *run, struct err *err)
{
	struct container c = {0};
	struct address a;
	const char *name = "";
	int signo = signal_of(run->lease->fault_id, &name), r;

	if (recorded_container(run, &c))
		return container_signal(run, &c, name, err);
	r = find_address(run, &a, err);
	if (r < 0)
		return r;
	if (signo == SIGSTOP)
		return stopping_stop(run, a.pid, run->target_pidfd, err);
	r = pidfd_signal(run->target_pidfd, signo);
	return r < 0 ? err_set(err, r == -ESRCH ? "target_gone" : "failed_to_apply", -r, "inject",
			       "cannot signal process %d", a.pid)
		     : 0;
}

/* A container's init as the engine tells it, if that is a process we can see. */
static int observe_container(struct fault_run *run, const struct container *c,
	struct observation *ret, struct err *err)
{
	struct container now;
	bool stopped = false;
	pid_t pid = 0;
	int r = container_resolve(run, c->engine, c->id, &now, &pid, err);

	ret->metric = "process.stopped";
	ret->unit = "count";
	ret->asked = 1;
	if (r == -ENOENT || (r == 0 && pid == 0)) {
		ret->effect = is_pause(run) ? EFFECT_ABSENT : EFFECT_PRESENT;
		snprintf(ret->detail, sizeof(ret->detail), "the container does not run");
		return 0;
	}
	if (r < 0)
		return r;
	if (!is_pause(run) || stopping_is_stopped(pid, &stopped) < 0) {
		ret->effect = EFFECT_UNKNOWN;
		return 0;
	}
	ret->value = ret->reached = stopped;
	ret->effect = stopped ? EFFECT_PRESENT : EFFECT_ABSENT;
	snprintf(ret->detail, sizeof(ret->detail), "the container's init (pid %d) %s", pid,
		stopped ? "is stopped" : "runs");
	return 0;
}

static int signal_observe(struct fault_run *run, struct observation *ret, struct err *err)
{
	struct container c = {0};
	uint64_t limit = clock_boottime_ms() + GONE_LIMIT_MS;

	if (recorded_container(run, &c))
		return observe_container(run, &c, ret, err);
	if (is_pause(run))
		return stopping_observe(run, ret, err);
	/* 0.5.1 calls a signal that was delivered a success: whether it is gone is said, and is no failure. */
	while (run->live && run->lease->state == LEASE_ACTIVE &&
		!pidfd_has_exited(run->target_pidfd) && clock_until_ms(limit) &&
		run_wait(run, 1000) == 0)
		;
	ret->metric = "process.gone";
	ret->unit = "count";
	ret->asked = 1;
	ret->value = ret->reached = run->target_pidfd >= 0 && pidfd_has_exited(run->target_pidfd);
	ret->effect = ret->value > 0 ? EFFECT_PRESENT : EFFECT_UNKNOWN;
	snprintf(ret->detail, sizeof(ret->detail), "signal delivered");
	return 0;
}

static int signal_undo(struct fault_run *run, struct err *err)
{
	struct container c = {0}, now;
	pid_t pid;
	int r;

	if (!is_pause(run))
		return 0; /* nothing to resume */
	if (!recorded_container(run, &c))
		return stopping_undo(run, err);
	r = container_resolve(run, c.engine, c.id, &now, &pid, err);
	if (r == -ENOENT || (r == 0 && pid == 0))
		return 0;
	return r < 0 ? r : container_signal(run, &c, "SIGCONT", err);
}

static int signal_verify(struct fault_run *run, struct observation *ret, struct err *err)
{
	struct container c = {0};

	if (!is_pause(run)) {
		ret->metric = "process.gone";
		ret->effect = EFFECT_ABSENT;
		return 0;
	}
	if (recorded_container(run, &c))
		return observe_container(run, &c, ret, err);
	return stopping_verify(run, ret, err);
}

static void signal_remedy(struct fault_run *run)
{
	struct container c = {0};

	if (recorded_container(run, &c))
		lease_add_remedy(run->lease,
			(const char *const[]){c.engine, "kill", "--signal", "SIGCONT", c.id, NULL});
	else
		stopping_remedy(run);
}

const struct fault_steps declared_signal_steps = {
	.id = "signal",
	.check = signal_check,
	.record = signal_record,
	.inject = signal_inject,
	.observe = signal_observe,
	.undo = signal_undo,
	.verify = signal_verify,
	.remedy = signal_remedy,
};
