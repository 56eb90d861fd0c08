/* SPDX-License-Identifier: Apache-2.0 */
/* What a task.execute asks for: read strictly, checked against catalogue, policy and identity. */
#include <string.h>

#include "base/cleanup.h"
#include "base/clock.h"
#include "base/json.h"
#include "base/text.h"
#include "fault/fault.h"
#include "lease/halt.h"
#include "os/kernel_abi.h"
#include "rpc/agent_state.h"

#define TTL_SLACK_MS 60000
#define TTL_LEAST_MS 120000
#define TTL_DECLARED_MAX_MS (86400000ull * 7)
#define UNDO_OPS_MAX 256
#define TARGETS_MAX 1024

static const char *const lease_keys[] = {"id", "run_id", "fault_id", "owner_agent", "target",
	"targets", "params", "undo_ops", "duration_ms", "ttl_seconds", "survive",
	/* 0.5.1's, accepted and ignored */
	"state", "created_at", "injected_at", "released_at", "release_mechanism",
	"escalation_notes", "runtime_identity", "verify_probes"};

bool agent_role_allows(const struct agent *a, const char *fault_id)
{
	static const struct {
		const char *family;
		unsigned role;
	} table[] = {{"proc", ROLE_PROC}, {"process", ROLE_PROC}, {"fs", ROLE_FS}, {"fd", ROLE_FS},
		{"disk", ROLE_FS}, {"cpu", ROLE_RES}, {"mem", ROLE_RES}, {"net", ROLE_NET},
		{"dns", ROLE_NET}, {"tls", ROLE_NET}, {"http", ROLE_NET}, {"db", ROLE_NET},
		{"dependency", ROLE_NET}, {"load", ROLE_NET}, {"fuzz", ROLE_NET},
		{"container", ROLE_ENGINE}, {"node", ROLE_ENGINE}, {"clock", ROLE_HOST}};
	size_t len = strcspn(fault_id, ".");

	for (size_t i = 0; i < ARRAY_SIZE(table); i++)
		if (strlen(table[i].family) == len && strncmp(table[i].family, fault_id, len) == 0)
			return a->options.roles & table[i].role;
	return true; /* an unknown family is refused by name, not by role */
}

static int get(const json_t *lease, const char *key, char *dst, size_t size, const char *fallback,
	struct err *err)
{
	int r = json_get_text(lease, key, dst, size, "lease.shape", err);

	if (r == -ENOENT) {
		text_copy(dst, size, fallback);
		return 0;
	}
	if (r == 0 && !dst[0])
		return err_set(err, "lease.shape", 0, "lease", "`%s` must not be empty", key);
	return r;
}

static int read_targets(const json_t *lease, struct lease *l, struct err *err)
{
	json_t *targets = json_object_get(lease, "targets"), *v;
	size_t i;

	if (!targets)
		return 0;
	if (!json_is_array(targets) || json_array_size(targets) > TARGETS_MAX)
		return err_set(err, "lease.shape", 0, "lease",
			"`targets` must be a list of at most %d texts", TARGETS_MAX);
	json_array_foreach(targets, i, v)
		if (!json_is_string(v) || json_string_length(v) >= LEASE_TEXT_SIZE ||
			!text_is_plain(json_string_value(v)))
			return err_set(err, "lease.shape", 0, "lease",
				"`targets` must hold plain texts");
	json_decref(l->targets);
	l->targets = json_incref(targets);
	return 0;
}

/* Thousandths are kept; anything else than a positive number is refused. */
static int read_ttl(const json_t *lease, uint64_t fallback_ms, uint64_t max_ms, uint64_t *ret,
	struct err *err)
{
	const json_t *v = json_object_get(lease, "ttl_seconds");
	double s;

	*ret = fallback_ms;
	if (!v)
		return 0;
	if (!json_is_number(v))
		return err_set(err, "params.type", 0, "lease", "`ttl_seconds` must be a number");
	s = json_number_value(v);
	if (!(s > 0 && s * 1000 <= (double)max_ms))
		return err_set(err, "params.range", 0, "lease",
			"`ttl_seconds` is %g, outside 0 to %llu", s,
			(unsigned long long)max_ms / 1000);
	*ret = (uint64_t)(s * 1000 + 0.5);
	return *ret
		? 0
		: err_set(err, "params.range", 0, "lease", "`ttl_seconds` is below a millisecond");
}

static uint64_t at_least(uint64_t v, uint64_t least)
{
	return v > least ? v : least;
}

static int read_native(const json_t *lease, struct lease *l, const struct fault_steps **ret_steps,
	struct err *err)
{
	const struct fault_entry *e = catalogue_find(l->fault_id);
	json_t *target = json_object_get(lease, "target"), *params;
	enum target_kind kind;
	int64_t duration;
	int r;

	if (!e) {
		const char *near = catalogue_nearest(l->fault_id);

		err_set(err, "fault.unknown", 0, "catalogue", "no fault `%.64s`", l->fault_id);
		if (near)
			err_remedy(err, "did you mean `%s`? `mayhem faults` lists them", near);
		return -EINVAL;
	}
	if (!json_is_object(target) || !json_is_string(json_object_get(target, "kind")))
		return err_set(err, "target.kind", 0, "target",
			"`target` must be an object with a `kind`");
	if (target_kind_from_name(json_text_or(target, "kind", ""), &kind) < 0)
		return err_set(err, "target.kind", 0, "target", "no target kind `%.32s`",
			json_text_or(target, "kind", ""));
	if (!(e->targets & kind))
		return err_set(err, "target.kind", 0, "target", "%s does not take a %s", e->id,
			target_kind_name(kind));
	if (kind != TARGET_PROCESS)
		return err_set(err, "target.kind", 0, "target",
			"%s on a %s is not executable by this version", e->id,
			target_kind_name(kind));
	r = catalogue_check_params(e, json_object_get(lease, "params"), &params, err);
	if (r < 0)
		return r;
	json_decref(l->params);
	l->params = params;
	duration = (int64_t)e->max_duration_s * 1000;
	r = json_get_int(lease, "duration_ms", 1, duration, &duration, "params.range", err);
	if (r < 0 && r != -ENOENT)
		return r;
	l->duration_ms = duration;
	l->undo_kind = e->undo_kind;
	*ret_steps = fault_find_native(l->fault_id);
	if (!*ret_steps)
		return err_set(err, "fault.not_executable", 0, "catalogue",
			"%s is not executable by this version", e->id);
	json_decref(l->target);
	l->target = json_incref(target);
	return read_ttl(lease, at_least((uint64_t)duration + TTL_SLACK_MS, TTL_LEAST_MS),
		at_least((uint64_t)e->max_duration_s * 1000 + TTL_SLACK_MS, TTL_LEAST_MS),
		&l->ttl_ms, err);
}

static int check_engine(const struct agent *a, const char *engine, struct err *err)
{
	if (text_equal(engine, "docker") || text_equal(engine, "podman"))
		return 0;
	if (text_has_prefix(engine, "unix:///") && policy_lists_engine(&a->policy, engine))
		return 0;
	return err_set(err, "lease.shape", 0, "lease",
		"`engine` must be docker, podman, or a unix socket that the policy lists, not `%.64s`",
		engine);
}

static int check_undo_op(const struct agent *a, const json_t *op, struct err *err)
{
	static const char *const keys[] = {"op", "args", "idempotent", "volatile"};
	const json_t *args = json_object_get(op, "args");
	const char *key;
	json_t *v;

	if (!json_is_object(op) || !json_is_string(json_object_get(op, "op")) ||
		(args && !json_is_object(args)))
		return err_set(err, "lease.shape", 0, "lease", "an undo op is {op, args}");
	if (json_check_keys(op, keys, ARRAY_SIZE(keys), "an undo op", "lease.shape", err) < 0)
		return -EINVAL;
	json_object_foreach((json_t *)args, key, v)
		if (!json_is_string(v) || json_string_length(v) != strlen(json_string_value(v)))
			return err_set(err, "lease.shape", 0, "lease",
				"args of an undo op are texts; `%.64s` is not", key);
	if (json_object_get(args, "full_id") || json_object_get(args, "pidfs_inode"))
		return err_set(err, "lease.shape", 0, "lease",
			"an undo op carries what only the agent records");
	if (json_object_get(args, "engine"))
		return check_engine(a, json_text_or(args, "engine", ""), err);
	return 0;
}

/* Stop and kill have nothing to resume; everything else is undone by its ops. */
static enum undo_kind declared_undo_kind(const struct lease *l, const struct fault_steps *steps)
{
	bool pause = text_equal(l->fault_id, "proc.pause");

	return text_equal(steps->id, "signal") && !pause ? UNDO_IRREVERSIBLE : UNDO_RECORDED;
}

static int read_declared(struct agent *a, const json_t *lease, struct lease *l,
	const struct fault_steps **ret_steps, struct err *err)
{
	json_t *ops = json_object_get(lease, "undo_ops"), *op;
	size_t i;

	if (!json_is_array(ops) || json_array_size(ops) > UNDO_OPS_MAX)
		return err_set(err, "lease.shape", 0, "lease",
			"`undo_ops` must be a list of at most %d", UNDO_OPS_MAX);
	json_array_foreach(ops, i, op)
		if (check_undo_op(a, op, err) < 0)
			return -EINVAL;
	*ret_steps = fault_find_declared(l->fault_id, ops);
	if (!*ret_steps)
		return err_set(err, "fault.unknown", 0, "executor", "no executor for `%.64s`",
			l->fault_id);
	l->declared = true;
	l->undo_kind = declared_undo_kind(l, *ret_steps);
	json_decref(l->undo_ops);
	l->undo_ops = json_deep_copy(ops);
	lease_declared_key(l->run_id, l->id, l->key);
	return read_ttl(lease, TTL_LEAST_MS, TTL_DECLARED_MAX_MS, &l->ttl_ms, err);
}

static int read_names(const struct agent *a, const json_t *params, const json_t *lease,
	const char *fault_id, struct lease *l, struct err *err)
{
	if (json_check_keys(lease, lease_keys, ARRAY_SIZE(lease_keys), "a lease", "lease.shape",
		    err) < 0 ||
		get(lease, "run_id", l->run_id, sizeof(l->run_id),
			json_text_or(params, "run_id", ""), err) < 0 ||
		get(lease, "fault_id", l->fault_id, sizeof(l->fault_id), fault_id, err) < 0 ||
		get(lease, "owner_agent", l->owner_agent, sizeof(l->owner_agent),
			json_text_or(params, "agent_id", ""), err) < 0 ||
		get(lease, "id", l->id, sizeof(l->id), "", err) < 0 ||
		read_targets(lease, l, err) < 0)
		return -EINVAL;
	if (!text_equal(l->fault_id, fault_id))
		return err_set(err, "lease.shape", 0, "lease",
			"the lease is for %.64s, the task for %.64s", l->fault_id, fault_id);
	if (l->id[0] && (!text_has_prefix(l->id, "l-") || !l->id[2]))
		return err_set(err, "lease.shape", 0, "lease", "a lease's id starts with `l-`");
	l->survive = a->survive;
	if (json_get_bool(lease, "survive", &l->survive, "lease.shape", err) == -EINVAL)
		return -EINVAL;
	text_copy(l->owner, sizeof(l->owner), a->owner);
	return 0;
}

static void add_host(const struct agent *a, struct lease *l)
{
	text_copy(l->boot_id, sizeof(l->boot_id), a->store.boot_id);
	text_copy(l->machine_id, sizeof(l->machine_id), a->store.machine_id);
	text_copy(l->hostname, sizeof(l->hostname), a->store.hostname);
	l->pidns = a->store.pidns;
	l->timens = a->store.timens;
}

int agent_read_lease(struct agent *a, const json_t *params, struct lease *ret,
	const struct fault_steps **ret_steps, int *ret_code, struct err *err)
{
	const json_t *lease = json_object_get(params, "lease");
	const char *fault_id = json_text_or(params, "fault_id", "");
	_lease_ struct lease l = {0};
	bool native, declared;
	int r;

	*ret_code = RPC_INVALID_PARAMS;
	if (!fault_id[0] || strlen(fault_id) >= LEASE_TEXT_SIZE || !text_is_plain(fault_id))
		return err_set(err,
			json_object_get(params, "fault_id") ? "params.type" : "params.missing", 0,
			"params", "`fault_id` must be a non-empty string");
	if (!json_is_object(lease))
		return err_set(err, lease ? "lease.shape" : "params.missing", 0, "params",
			"`lease` must be an object");
	if (lease_init(&l) < 0)
		return err_set(err, "launch.failed", ENOMEM, "lease", "no memory");
	native = json_object_get(lease, "target");
	declared = json_object_get(lease, "undo_ops");
	if (native == declared)
		return err_set(err, "lease.shape", 0, "lease",
			"a lease has either `target` (native) or `undo_ops` (declared)");
	r = read_names(a, params, lease, fault_id, &l, err);
	if (r == 0 && declared && !l.id[0])
		r = err_set(err, "lease.shape", 0, "lease", "a declared lease brings its `id`");
	if (r == 0 && native && l.id[0] && !lease_id_is_native(l.id))
		r = err_set(err, "lease.shape", 0, "lease",
			"a lease's id is `l-` and eight digits");
	if (r == 0)
		r = native ? read_native(lease, &l, ret_steps, err)
			   : read_declared(a, lease, &l, ret_steps, err);
	if (r < 0)
		return r;
	add_host(a, &l);
	*ret = l;
	memset(&l, 0, sizeof(l));
	return 0;
}

int agent_lease_key(const json_t *lease, const json_t *params, char ret[static LEASE_KEY_SIZE],
	struct err *err)
{
	const char *id = json_text_or(lease, "id", ""),
		   *run = json_text_or(lease, "run_id", json_text_or(params, "run_id", ""));

	if (!json_is_object(lease) || strlen(id) < 3 || strlen(id) >= LEASE_ID_SIZE ||
		strlen(run) >= LEASE_TEXT_SIZE || !text_has_prefix(id, "l-"))
		return err_set(err, "lease.shape", 0, "lease",
			"`lease` must be an object with the `id` of a lease");
	/* A lease as we answered it has both; `declared` then says what it is. */
	if (json_bool_or(lease, "declared",
		    json_object_get(lease, "undo_ops") && !json_object_get(lease, "target")))
		lease_declared_key(run, id, ret);
	else if (lease_id_is_native(id))
		text_copy(ret, LEASE_KEY_SIZE, id);
	else
		return err_set(err, "lease.unknown", 0, "lease", "no lease `%.64s`", id);
	return 0;
}

/* Names that policies know a process by. */
struct names {
	char text[3][LEASE_TEXT_SIZE];
	const char *list[3];
	size_t n;
};

static void name_process(const struct proc_identity *id, struct names *ret)
{
	snprintf(ret->text[0], sizeof(ret->text[0]), "process:%s", id->comm);
	snprintf(ret->text[1], sizeof(ret->text[1]), "pid:%d", id->pid);
	snprintf(ret->text[2], sizeof(ret->text[2]), "uid:%u", id->uid);
	for (ret->n = 0; ret->n < 3; ret->n++)
		ret->list[ret->n] = ret->text[ret->n];
}

static int protected(const char *what, struct err *err)
{
	err_set(err, "target.protected", 0, "identity", "%s is protected", what);
	err_remedy(err, "name a process of your system");
	return -EPERM;
}

/* What no fault may touch: the system's roots, the way we came in, the engines, and ourselves. */
static int check_protected(const struct agent *a, const struct proc_identity *id, struct err *err)
{
	static const char *const names[] = {"systemd", "init", "sshd", "dbus-daemon", "dbus-broker",
		"dockerd", "containerd", "containerd-shim", "conmon", "podman", "crio"};
	struct proc_stat st;
	char what[96];

	snprintf(what, sizeof(what), "process %d (%s)", id->pid, id->comm);
	if (procfs_read_stat(id->pid, &st) < 0)
		return err_set(err, "target.gone", ESRCH, "identity", "process %d has ended",
			id->pid);
	if (st.flags & PF_KTHREAD)
		return protected("a kernel thread", err);
	for (size_t i = 0; i < a->n_ancestors; i++)
		if (a->ancestors[i] == id->pid)
			return protected(i ? "an ancestor of the agent" : "the agent itself", err);
	if (agent_is_holder(a, id->pid) || launch_is_mayhems(id->pid, id->comm))
		return protected("a process of Mayhem's own", err);
	for (size_t i = 0; i < ARRAY_SIZE(names); i++)
		if (text_has_prefix(id->comm, names[i]) &&
			(id->comm[strlen(names[i])] == '\0' || i == 7))
			return protected(what, err);
	return 0;
}

/* The process that a native target names, held, and as it was when the controller looked. */
static int hold_process(struct agent *a, struct lease *l, struct proc_identity *ret, int *ret_pidfd,
	int *ret_code, struct err *err)
{
	static const char *const keys[] = {"kind", "pid", "start_ticks", "boot_id", "pidns_inode",
		"pidfs_inode", "comm", "exe", "uid", "cgroup"};
	const json_t *ticks = json_object_get(l->target, "start_ticks"),
		     *boot = json_object_get(l->target, "boot_id");
	const json_t *inode = json_object_get(l->target, "pidfs_inode");
	_close_ int fd = -1;
	json_t *target;
	int64_t pid;
	int r;

	*ret_code = RPC_INVALID_PARAMS;
	if (json_check_keys(l->target, keys, ARRAY_SIZE(keys), "a process target", "params.unknown",
		    err) < 0)
		return -EINVAL;
	r = json_get_int(l->target, "pid", INT64_MIN, INT64_MAX, &pid, "params.type", err);
	if (r == -ENOENT)
		return err_set(err, "params.missing", 0, "target", "a process target has a `pid`");
	if (r < 0)
		return r;
	if ((ticks && !json_is_integer(ticks)) || (boot && !json_is_string(boot)))
		return err_set(err, "params.type", 0, "target",
			"`start_ticks` is an integer, `boot_id` a string");
	*ret_code = RPC_SAFETY_REFUSED;
	if (pid <= 1 || pid > INT32_MAX)
		return protected(pid == 1 ? "pid 1" : "a pid that names no process", err);
	r = ident_read_fast((pid_t)pid, ret, &fd, err);
	if (r < 0)
		return r;
	if ((ticks && (uint64_t)json_integer_value(ticks) != ret->start_ticks) ||
		(json_is_integer(inode) && json_integer_value(inode) && ret->pidfs_inode &&
			(uint64_t)json_integer_value(inode) != ret->pidfs_inode) ||
		(boot && !text_equal(json_string_value(boot), ret->boot_id))) {
		err_set(err, "target_drift", 0, "identity",
			"process %lld is not the one that was planned", (long long)pid);
		err_remedy(err, "plan again");
		return -ESTALE;
	}
	r = check_protected(a, ret, err);
	if (r < 0)
		return r;
	target = ident_to_json(ret);
	if (!target)
		return err_set(err, "launch.failed", ENOMEM, "target", "no memory");
	json_decref(l->target);
	l->target = target;
	*ret_pidfd = take_fd(&fd);
	return 0;
}

/*
 * A declared lease names its process in its ops: what is protected is so for
 * it as well. A pid that names nobody, or pid 1, is for its executor to
 * answer, as its controller expects.
 */
static int look_at_declared(const struct agent *a, const struct lease *l, struct names *names,
	struct err *err)
{
	struct proc_identity id;
	size_t i;
	json_t *op;

	json_array_foreach(l->undo_ops, i, op) {
		const json_t *args = json_object_get(op, "args");
		pid_t pid;
		int r;

		if (json_object_get(args, "engine") ||
			text_parse_pid(json_text_or(args, "pid", ""), &pid) < 0 || pid == 1 ||
			ident_read_fast(pid, &id, NULL, NULL) < 0)
			continue;
		r = check_protected(a, &id, err);
		if (r < 0)
			return r;
		if (names->n == 0)
			name_process(&id, names);
	}
	return 0;
}

int agent_permit(struct agent *a, struct lease *l, const struct fault_steps *steps, struct entry *e,
	int *ret_pidfd, int *ret_code, struct err *err)
{
	const struct fault_entry *entry = catalogue_find(l->fault_id);
	struct names names = {.n = 0};
	struct policy_ask ask = {
		.fault_id = l->fault_id,
		.risk = entry ? entry->risk : RISK_MEDIUM,
		.duration_ms = l->duration_ms >= 0 ? (uint64_t)l->duration_ms : l->ttl_ms,
		.live_leases = a->live,
		.now_utc_ms = clock_utc_ms(),
	};
	_close_ int fd = -1;
	int r;

	*ret_code = RPC_SAFETY_REFUSED;
	if (!agent_role_allows(a, l->fault_id)) {
		err_set(err, "role.denied", 0, "role", "this session's roles do not include %s",
			l->fault_id);
		err_remedy(err, "start the agent with --roles that include it");
		return -EPERM;
	}
	/* Only what inotify may not have told yet; a run's own halt is looked at by its holder, before the change. */
	if (a->inotify.fd < 0 || halt_is_on(&a->store, NULL) != a->halted)
		agent_check_halt(a);
	if (a->halted) {
		err_set(err, "host.halted", 0, "halt", "this host is halted");
		err_remedy(err, "mayhem-agent resume");
		return -EPERM;
	}
	if (!l->declared) {
		r = hold_process(a, l, &e->target, &fd, ret_code, err);
		if (r < 0)
			return r;
		name_process(&e->target, &names);
	} else {
		r = look_at_declared(a, l, &names, err);
		if (r < 0)
			return r;
	}
	*ret_code = RPC_SAFETY_REFUSED;
	ask.resources = names.list;
	ask.n_resources = names.n;
	r = policy_check_inject(&a->policy, &ask, err);
	if (r == 0 && fault_needs_shell_exec(steps))
		r = policy_check_capability(&a->policy, CAPABILITY_SHELL_EXEC, err);
	if (r == 0)
		*ret_pidfd = take_fd(&fd);
	return r;
}
