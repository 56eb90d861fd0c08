/* SPDX-License-Identifier: Apache-2.0 */
/* What this host can do, and what is missing. Changes nothing that stays. */
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/vfs.h>
#include <linux/magic.h>

#include "base/cleanup.h"
#include "base/clock.h"
#include "base/json.h"
#include "base/text.h"
#include "catalogue/catalogue.h"
#include "cmd/agent/agent_cmd.h"
#include "fault/fault.h"
#include "launch/launch.h"
#include "lease/store.h"
#include "os/kernel.h"
#include "os/mounts.h"

static void check(json_t *checks, const char *id, bool ok, const char *need, const char *reason,
	const char *remedy)
{
	json_array_append_new(checks,
		json_pack("{s:s, s:b, s:s, s:s, s:s}", "id", id, "ok", ok, "need", need, "reason",
			reason, "remedy", remedy));
}

/* How long one durable line takes here: a record like a lease's, written and taken away again. */
static double durable_write_ms(int dirfd)
{
	static const char line[1024] = "{}";
	struct record rec = {.capacity = RECORD_CAPACITY};
	_json_ json_t *body = json_pack("{s:s}", "probe", line);
	uint64_t from;
	int fd;

	if (record_create(dirfd, ".doctor", RECORD_CAPACITY, &fd) < 0)
		return -1;
	rec.fd = fd;
	from = clock_boottime_us();
	for (int i = 0; i < 5; i++)
		record_append(&rec, LEASE_FORMAT, body, 0, NULL);
	from = clock_boottime_us() - from;
	close(fd);
	unlinkat(dirfd, ".doctor", 0);
	return (double)from / 5 / 1000;
}

/* The nearest parent that exists must let us make a folder. */
static bool can_be_made(const char *path)
{
	char buf[PATH_MAX], *slash;

	text_copy(buf, sizeof(buf), path);
	while ((slash = strrchr(buf, '/')) && slash != buf) {
		struct statfs fs;

		*slash = '\0';
		if (access(buf, F_OK) == 0)
			return access(buf, W_OK) == 0 && statfs(buf, &fs) == 0 &&
				fs.f_type != PROC_SUPER_MAGIC;
	}
	return access("/", W_OK) == 0;
}

static json_t *look_at_state(const struct agent_args *args, json_t *checks, bool *ret_ok)
{
	struct lease_store s;
	struct err err = {0};
	struct stat st;
	double ms;
	bool volatile_store;

	if (lstat(args->state_dir, &st) < 0 && !can_be_made(args->state_dir)) {
		*ret_ok = false;
		return json_pack("{s:s, s:b, s:s}", "path", args->state_dir, "writable", false,
			"reason", "it does not exist and cannot be made there");
	}
	if (lstat(args->state_dir, &st) < 0) {
		*ret_ok = true;
		return json_pack("{s:s, s:b, s:s}", "path", args->state_dir, "writable", true,
			"reason", "made when it is first needed");
	}
	if (lease_store_open(args->state_dir, false, &s, &err) < 0) {
		*ret_ok = err.errnum == ENOENT; /* a folder that holds no store yet */
		return json_pack("{s:s, s:b, s:s}", "path", args->state_dir, "writable", *ret_ok,
			"reason", err.text);
	}
	ms = durable_write_ms(s.dir.leasesfd);
	volatile_store = s.dir.is_volatile;
	check(checks, "claims", s.hostclaimsfd >= 0, "one winner per resource on this host",
		s.hostclaimsfd >= 0 ? "in the host's runtime directory"
				    : "no runtime directory: only this state directory is minded",
		s.hostclaimsfd >= 0 ? "" : "set XDG_RUNTIME_DIR");
	if (volatile_store)
		check(checks, "durable", false, "faults whose undo outlives a boot",
			"the state directory is in memory", "name one on a disk with --state");
	lease_store_close(&s);
	*ret_ok = ms >= 0;
	return json_pack("{s:s, s:b, s:f}", "path", args->state_dir, "writable", ms >= 0,
		"fsync_ms", ms);
}

static json_t *look_at_cgroups(json_t *checks)
{
	struct cgroup_domain d = CGROUP_DOMAIN_INIT;
	struct mounts_cgroup m = {0};
	struct err err = {0};
	json_t *controllers = json_object();
	char list[256], *p = list, *name, kill[CGROUP_PATH_SIZE + 16];

	cgroup_domain_probe("doctor", &d, &err);
	if (mounts_find_cgroup(&m) == 0) {
		text_copy(list, sizeof(list), m.v1_list);
		while ((name = strsep(&p, ",")))
			if (*name)
				json_object_set_new(controllers, name, json_string("v1"));
	}
	snprintf(kill, sizeof(kill), "%s%s%s", cgroup_kill_name(d.kill), d.mount[0] ? ":" : "",
		d.mount);
	check(checks, "kill", d.kill != CGROUP_KILL_NONE, "ending a whole process tree with proof",
		d.kill != CGROUP_KILL_NONE ? kill
					   : "no cgroup is ours: what a tool starts may outlive it",
		d.kill != CGROUP_KILL_NONE ? ""
					   : "systemd-run --user --scope -p Delegate=yes, or root");
	return json_pack("{s:s, s:s, s:o}", "mode", cgroup_mode_name(d.mode), "kill", kill,
		"controllers", controllers);
}

static bool on_path(const char *name)
{
	const char *path = getenv("PATH");

	for (path = path ? path : "/usr/bin:/bin"; *path;) {
		size_t len = strcspn(path, ":");
		char full[PATH_MAX];

		snprintf(full, sizeof(full), "%.*s/%s", (int)len, path, name);
		if (access(full, X_OK) == 0)
			return true;
		path += len + (path[len] == ':');
	}
	return false;
}

static json_t *look_at_engines(void)
{
	static const struct {
		const char *name, *socket;
	} known[] = {{"docker", "/run/docker.sock"}, {"podman", "/run/podman/podman.sock"}};
	json_t *list = json_array();

	for (size_t i = 0; i < ARRAY_SIZE(known); i++) {
		bool command = on_path(known[i].name),
		     socket = access(known[i].socket, R_OK | W_OK) == 0;
		char endpoint[64];

		if (!command && !socket)
			continue;
		snprintf(endpoint, sizeof(endpoint), "unix://%s", known[i].socket);
		json_array_append_new(list,
			json_pack("{s:s, s:s, s:s, s:b}", "name", known[i].name, "endpoint",
				socket ? endpoint : "no socket", "version",
				command ? "command found" : "no command", "ok", command));
	}
	return list;
}

static void look_at_recovery(json_t *checks)
{
	bool timer =
		access("/etc/systemd/system/timers.target.wants/mayhem-recover.timer", F_OK) == 0;

	check(checks, "recovery", timer, "undoing after a reboot or the death of everything",
		timer ? "mayhem-recover.timer is enabled" : "nobody recovers here by itself",
		timer ? "" : "sudo systemctl enable --now mayhem-recover.timer");
}

static json_t *count_faults(void)
{
	size_t n, runnable = 0;
	const struct fault_entry *e = catalogue_entries(&n);

	for (size_t i = 0; i < n; i++)
		runnable += fault_find_native(e[i].id) != NULL;
	return json_pack("{s:i, s:i}", "executable", (int)runnable, "total", (int)n);
}

static void print_plainly(const json_t *report)
{
	size_t i;
	json_t *c;

	printf("host      %s, Linux %s, %s; you are uid %u\n", json_text_or(report, "host", "?"),
		json_text_or(json_object_get(report, "kernel"), "release", "?"),
		json_text_or(json_object_get(report, "kernel"), "arch", "?"), geteuid());
	printf("%-9s state      %s\n",
		json_bool_or(json_object_get(report, "state_dir"), "writable", false) ? "ok"
										      : "missing",
		json_text_or(json_object_get(report, "state_dir"), "path", "?"));
	json_array_foreach(json_object_get(report, "checks"), i, c)
		printf("%-9s %-10s %s%s%s\n", json_bool_or(c, "ok", false) ? "ok" : "missing",
			json_text_or(c, "id", "?"), json_text_or(c, "reason", ""),
			json_text_or(c, "remedy", "")[0] ? ": " : "",
			json_text_or(c, "remedy", ""));
}

static int run(const struct agent_args *args)
{
	json_t *checks = json_array(), *missing = json_array(), *state, *cgroup, *report;
	struct kernel k;
	bool ok;

	kernel_probe(&k);
	k.clone3_cgroup = launch_can_enter_cgroup();
	if (!k.sys_resource)
		json_array_append_new(missing, json_string("sys_resource"));
	state = look_at_state(args, checks, &ok);
	cgroup = look_at_cgroups(checks);
	check(checks, "pidfs", k.pidfs, "telling reused pids apart by the kernel's own word",
		k.pidfs ? "pidfds have inodes of their own"
			: "before Linux 6.9: start time, executable, user and cgroup serve",
		"");
	look_at_recovery(checks);
	report = json_pack("{s:i, s:b, s:s, s:o, s:o, s:{s:i, s:o}, s:o, s:o, s:o, s:o}", "v", 1,
		"ok", ok, "host", k.hostname, "kernel", kernel_to_json(&k), "cgroup", cgroup,
		"privileges", "uid", (int)geteuid(), "missing_caps", missing, "state_dir", state,
		"engines", look_at_engines(), "checks", checks, "faults", count_faults());
	if (args->json)
		agent_print_json(report);
	else
		print_plainly(report);
	if (!args->json)
		json_decref(report);
	return ok ? 0 : 9;
}

const struct agent_command agent_command_doctor = {
	.name = "doctor",
	.usage = "[--json] [--state DIR]",
	.help = "say what this host can do, and what is missing",
	.options = "state json",
	.run = run,
};
