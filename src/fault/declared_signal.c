/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The signal executor of declared leases: a process of the host by pid (and
 * boot_time, the start ticks that guard against reuse), or a container's
 * through its engine. What it records beside the controller's own ops is what
 * a native lease records, so one undo serves both. A container's init that is a
 * process of this host is held as well: its end is seen at once, and looking at
 * it takes no command of the engine.
 */
#include <limits.h>
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
#include "os/procfs.h"

#define GONE_LIMIT_MS 2000
#define CONT_LIMIT_MS 200
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

/*
 * An engine beyond another pid namespace tells a number that means somebody
 * else here, or nobody. Every engine names a container's cgroup by its id.
 */
static bool is_in_container(pid_t pid, const struct container *c)
{
	static const char *const controllers[] = {"", "name=systemd", "freezer", "memory", "cpu",
		"pids"};
	char path[PATH_MAX];

	for (size_t i = 0; i < ARRAY_SIZE(controllers); i++)
		if (procfs_cgroup(pid, controllers[i], path, sizeof(path)) == 0 &&
			strstr(path, c->id))
			return true;
	return false;
}

/* Takes hold of init where it is a process that we can see; else the engine is asked as before. */
static int hold_init(struct fault_run *run, const struct container *c, pid_t pid,
	struct proc_identity *ret, struct err *err)
{
	struct container again;
	_close_ int fd = -1;
	pid_t now;
	int r;

	if (pid == 0 || ident_read(pid, ret, &fd, NULL) < 0 || !is_in_container(pid, c))
		return 0;
	/* The number came from the engine's memory: it is held for good if it is still init's. */
	r = container_resolve(run, c->engine, c->id, &again, &now, err);
	if (r < 0)
		return r;
	if (!text_equal(again.id, c->id) || now != pid || pidfd_has_exited(fd))
		return err_set(err, "target_gone", 0, "identity",
			"the container was started anew while it was looked at");
	run->target_pidfd = take_fd(&fd);
	return 0;
}

static json_t *container_args(const struct fault_run *run, const struct container *c,
	const struct proc_identity *init)
{
	json_t *args =
		json_pack("{s:s, s:s, s:s}", "engine", c->engine, "id", c->id, "signal", "SIGCONT");
	char pid[16], ticks[24];

	if (args && run->target_pidfd >= 0) {
		snprintf(pid, sizeof(pid), "%d", init->pid);
		snprintf(ticks, sizeof(ticks), "%llu", (unsigned long long)init->start_ticks);
		json_object_set_new(args, "init", json_string(pid));
		json_object_set_new(args, "start_ticks", json_string(ticks));
	}
	return args;
}

static int record_container(struct fault_run *run, const struct address *a, struct err *err)
{
	struct proc_identity init = {0};
	struct container c;
	char key[LEASE_TEXT_SIZE];
	json_t *args;
	pid_t pid;
	int r = container_of(run, a, &c, &pid, err);

	if (r == 0)
		r = hold_init(run, &c, pid, &init, err);
	if (r < 0)
		return r;
	args = container_args(run, &c, &init);
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

/* The op that record_container() left, with the full id; init is 0 where it is not held. */
static bool recorded_container(const struct fault_run *run, struct container *ret, pid_t *ret_init)
{
	size_t i;
	json_t *op;

	json_array_foreach(run->lease->undo_ops, i, op) {
		const json_t *args = json_object_get(op, "args");

		if (!text_equal(json_text_or(op, "op", ""), CONTAINER_OP))
			continue;
		text_copy(ret->engine, sizeof(ret->engine), json_text_or(args, "engine", ""));
		text_copy(ret->id, sizeof(ret->id), json_text_or(args, "id", ""));
		*ret_init = 0;
		if (run->target_pidfd >= 0)
			text_parse_pid(json_text_or(args, "init", ""), ret_init);
		return true;
	}
	return false;
}

static int inject_container(struct fault_run *run, const struct container *c, pid_t init,
	const char *name, struct err *err)
{
	int r;

	if (init && pidfd_has_exited(run->target_pidfd))
		return err_set(err, "target_gone", 0, "inject", "the container's init has ended");
	r = container_signal(run, c, name, err);
	if (!init || !is_pause(run))
		return r;
	if (pidfd_has_exited(run->target_pidfd)) {
		/* Who got it, this init or a next one, only the engine can tell: undo goes by it. */
		close_now(&run->target_pidfd);
		return r < 0 ? r
			     : err_set(err, "target_gone", 0, "inject",
				       "the container's init has ended");
	}
	return r < 0 ? r : stopping_await(run, init, run->target_pidfd, err);
}

static int signal_inject(struct fault_run *run, struct err *err)
{
	struct container c = {0};
	struct address a;
	const char *name = "";
	pid_t init;
	int signo = signal_of(run->lease->fault_id, &name), r;

	if (recorded_container(run, &c, &init))
		return inject_container(run, &c, init, name, err);
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

/* The init that is held: by /proc, without the engine. */
static int observe_init(struct fault_run *run, pid_t init, struct observation *ret)
{
	bool stopped = false;
	int r = stopping_is_stopped(init, &stopped);

	ret->metric = "process.stopped";
	ret->unit = "count";
	ret->asked = 1;
	if (pidfd_has_exited(run->target_pidfd)) {
		ret->effect = EFFECT_ABSENT;
		snprintf(ret->detail, sizeof(ret->detail), "the container's init has ended");
		return 0;
	}
	if (r < 0) {
		ret->effect = EFFECT_UNKNOWN;
		return 0;
	}
	ret->value = ret->reached = stopped;
	ret->effect = stopped ? EFFECT_PRESENT : EFFECT_ABSENT;
	snprintf(ret->detail, sizeof(ret->detail), "the container's init (pid %d) %s", init,
		stopped ? "is stopped" : "runs");
	return 0;
}

static int signal_observe(struct fault_run *run, struct observation *ret, struct err *err)
{
	struct container c = {0};
	uint64_t limit = clock_boottime_ms() + GONE_LIMIT_MS;
	pid_t init = 0;

	if (recorded_container(run, &c, &init) && !init)
		return observe_container(run, &c, ret, err);
	if (is_pause(run))
		return init ? observe_init(run, init, ret) : stopping_observe(run, ret, err);
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
	pid_t pid, init;
	int r;

	if (!is_pause(run))
		return 0; /* nothing to resume */
	if (!recorded_container(run, &c, &init))
		return stopping_undo(run, err);
	/* It was alive after the signal, so it had it: a next init under the same id is not stopped by us. */
	if (init && pidfd_has_exited(run->target_pidfd))
		return 0;
	r = container_resolve(run, c.engine, c.id, &now, &pid, err);
	if (r == -ENOENT || (r == 0 && pid == 0))
		return 0;
	return r < 0 ? r : container_signal(run, &c, "SIGCONT", err);
}

static int signal_verify(struct fault_run *run, struct observation *ret, struct err *err)
{
	struct container c = {0};
	uint64_t limit = clock_boottime_ms() + CONT_LIMIT_MS;
	pid_t init;

	if (!is_pause(run)) {
		ret->metric = "process.gone";
		ret->effect = EFFECT_ABSENT;
		return 0;
	}
	if (!recorded_container(run, &c, &init))
		return stopping_verify(run, ret, err);
	if (!init)
		return observe_container(run, &c, ret, err);
	do
		observe_init(run, init, ret);
	while (ret->effect == EFFECT_PRESENT && clock_until_ms(limit) && run_wait(run, 1000) == 0);
	return 0;
}

static void signal_remedy(struct fault_run *run)
{
	struct container c = {0};
	const char *argv[10];
	pid_t init;
	size_t n;

	if (!recorded_container(run, &c, &init))
		return stopping_remedy(run);
	n = container_prefix(c.engine, argv);
	argv[n++] = "kill";
	argv[n++] = "--signal";
	argv[n++] = "SIGCONT";
	argv[n++] = c.id;
	argv[n] = NULL;
	lease_add_remedy(run->lease, argv);
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
