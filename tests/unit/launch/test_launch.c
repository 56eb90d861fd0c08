/* SPDX-License-Identifier: Apache-2.0 */
/* Processes known before they run and ended with proof: real ones, with and without a cgroup. */
#include "unit.h"

#include <poll.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/wait.h>

#include "base/cleanup.h"
#include "base/clock.h"
#include "base/text.h"
#include "launch/launch.h"
#include "launch/link.h"
#include "os/pidfd.h"

struct place {
	struct cgroup_domain domain;
	char *dir;
};

static struct place place;
static char *const environment[] = {"PATH=/usr/bin:/bin", NULL};

static int set_up(void **state)
{
	char store[33];

	(void)state;
	place.dir = unit_temp_make();
	if (text_random_hex(store, 16) < 0 || cgroup_domain_probe(store, &place.domain, NULL) < 0)
		return -1;
	return 0;
}

static int set_up_bare(void **state)
{
	(void)state;
	place.dir = unit_temp_make();
	place.domain = (struct cgroup_domain)CGROUP_DOMAIN_INIT;
	return 0;
}

static int note_leaf(const char *nonce, void *arg)
{
	(void)nonce;
	++*(int *)arg;
	return 0;
}

static int leaves(void)
{
	int n = 0;

	cgroup_each_leaf(&place.domain, note_leaf, &n);
	return n;
}

/* No test leaves a cgroup or a child. */
static int tear_down(void **state)
{
	int left = leaves(), child = waitpid(-1, NULL, WNOHANG);

	(void)state;
	cgroup_domain_close(&place.domain);
	cgroup_domain_prune(&place.domain);
	unit_temp_remove(place.dir);
	free(place.dir);
	return left || child != -1 ? -1 : 0;
}

static struct launch_spec spec_of(char *const *argv)
{
	return (struct launch_spec){
		.kind = LAUNCH_TOOL,
		.domain = &place.domain,
		.argv = argv,
		.envp = environment,
		.cwdfd = -1,
		.stdfd = {-1, -1, -1},
		.required = LAUNCH_DIM_ALL,
	};
}

static void in_dir(char *path, size_t size, const char *name)
{
	snprintf(path, size, "%s/%s", place.dir, name);
}

static bool exists(const char *name)
{
	char path[PATH_MAX];

	in_dir(path, sizeof(path), name);
	return access(path, F_OK) == 0;
}

static void wait_for(const char *name)
{
	uint64_t limit = clock_boottime_ms() + 10000;

	while (!exists(name)) {
		assert_true(clock_until_ms(limit) > 0);
		poll(NULL, 0, 1);
	}
}

static void end(struct launched *l)
{
	struct launch_end e;
	struct err err = {0};

	assert_int_equal(launch_stop(l, &place.domain, 0, &e, &err), 0);
	assert_true(e.dead && e.reaped);
	assert_int_equal(e.n_survivors, 0);
	launched_close(l);
}

static void runs_and_ends(void **state)
{
	char path[PATH_MAX];
	char *const argv[] = {"touch", path, NULL};
	struct launch_spec spec = spec_of(argv);
	struct launched l = LAUNCHED_INIT;
	struct launch_end e = {0};
	struct err err = {0};

	(void)state;
	in_dir(path, sizeof(path), "ran");
	assert_int_equal(launch_hold(&spec, NULL, &l, &err), 0);
	assert_true(text_is_hex(l.rec.nonce, 32));
	assert_int_equal(l.rec.mechanism,
		place.domain.kill == CGROUP_KILL_NONE ? LAUNCH_MECH_PROCESS_GROUP
						      : LAUNCH_MECH_CGROUP);
	/* What is not enforced is said. */
	assert_int_equal(l.rec.enforced | l.rec.degraded, LAUNCH_DIM_ALL);
	assert_int_equal(l.rec.enforced & l.rec.degraded, 0);
	assert_false(exists("ran"));
	assert_int_equal(launch_go(&l, &err), 0);
	assert_int_equal(pidfd_wait_exit(l.pidfd, 10000), 0);
	launch_finish(&l, &place.domain, &e);
	assert_true(e.dead && e.reaped && !e.escalated);
	assert_int_equal(e.code, 0);
	assert_true(exists("ran"));
	launched_close(&l);
}

static void a_gate_never_opened(void **state)
{
	char path[PATH_MAX];
	char *const argv[] = {"touch", path, NULL};
	struct launch_spec spec = spec_of(argv);
	struct launched l = LAUNCHED_INIT;
	struct launch_end e = {0};
	struct err err = {0};

	(void)state;
	in_dir(path, sizeof(path), "ran");
	assert_int_equal(launch_hold(&spec, NULL, &l, &err), 0);
	close_now(&l.gatefd); /* as when the launcher dies */
	assert_int_equal(pidfd_wait_exit(l.pidfd, 10000), 0);
	launch_finish(&l, &place.domain, &e);
	assert_true(e.dead);
	assert_int_not_equal(e.code, 0);
	assert_false(exists("ran"));
	launched_close(&l);
	/* Stopped at its gate it has not run either. */
	assert_int_equal(launch_hold(&spec, NULL, &l, &err), 0);
	end(&l);
	assert_false(exists("ran"));
}

static void exec_fails(void **state)
{
	static const struct {
		const char *program;
		int errnum;
	} all[] = {{"/nonexistent/program", ENOENT}, {"no-such-program-anywhere", ENOENT},
		{"/etc/passwd", EACCES}, {"/proc", EACCES}};

	(void)state;
	for (size_t i = 0; i < sizeof(all) / sizeof(*all); i++) {
		char *const argv[] = {(char *)(uintptr_t)all[i].program, NULL};
		struct launch_spec spec = spec_of(argv);
		struct launched l = LAUNCHED_INIT;
		struct err err = {0};

		assert_int_equal(launch_hold(&spec, NULL, &l, &err), 0);
		assert_int_equal(launch_go(&l, &err), -all[i].errnum);
		assert_string_equal(err.stage, "exec");
		assert_string_equal(err.code, "launch.failed");
		assert_non_null(strstr(err.text, all[i].program));
		end(&l);
	}
}

static void a_relative_path_entry_is_not_searched(void **state)
{
	char *const argv[] = {"trap", NULL}, *const envp[] = {"PATH=:.:x", NULL};
	struct launch_spec spec = spec_of(argv);
	struct launched l = LAUNCHED_INIT;
	struct err err = {0};
	int was = open(".", O_RDONLY | O_DIRECTORY), fd;
	char path[PATH_MAX];

	(void)state;
	in_dir(path, sizeof(path), "trap");
	fd = open(path, O_WRONLY | O_CREAT, 0755);
	assert_true(write(fd, "#!/bin/sh\n", 10) == 10);
	close(fd);
	assert_int_equal(chdir(place.dir), 0);
	spec.envp = envp;
	assert_int_equal(launch_hold(&spec, NULL, &l, &err), 0);
	assert_int_equal(launch_go(&l, &err), -ENOENT);
	assert_int_equal(fchdir(was), 0);
	close(was);
	end(&l);
}

/* It ignores SIGTERM, and so does its child, which left for another session. */
static void stubborn_families_die(void **state)
{
	char *const argv[] = {"sh", "-c",
		"trap '' TERM; setsid sh -c \"trap '' TERM; touch $DIR/child; while :; do sleep 1; done\" & "
		"touch $DIR/parent; while :; do sleep 1; done",
		NULL};
	char dir[PATH_MAX];
	char *const envp[] = {"PATH=/usr/bin:/bin", dir, NULL};
	struct launch_spec spec = spec_of(argv);
	struct launched l = LAUNCHED_INIT;
	struct launch_end e = {0};
	struct err err = {0};

	(void)state;
	if (place.domain.kill == CGROUP_KILL_NONE)
		unit_skip("no cgroup that we may write");
	snprintf(dir, sizeof(dir), "DIR=%s", place.dir);
	spec.envp = envp;
	assert_int_equal(launch_hold(&spec, NULL, &l, &err), 0);
	assert_int_equal(launch_go(&l, &err), 0);
	wait_for("parent");
	wait_for("child");
	assert_int_equal(launch_stop(&l, &place.domain, 100, &e, &err), 0);
	assert_true(e.dead && e.escalated && e.reaped);
	assert_int_equal(e.signo, SIGKILL);
	assert_int_equal(leaves(), 0);
	launched_close(&l);
}

static void polite_ones_are_not_killed(void **state)
{
	char *const argv[] = {"sh", "-c",
		"trap 'exit 7' TERM; touch $DIR/ready; while :; do sleep 0.01; done", NULL};
	char dir[PATH_MAX];
	char *const envp[] = {"PATH=/usr/bin:/bin", dir, NULL};
	struct launch_spec spec = spec_of(argv);
	struct launched l = LAUNCHED_INIT;
	struct launch_end e = {0};
	struct err err = {0};

	(void)state;
	snprintf(dir, sizeof(dir), "DIR=%s", place.dir);
	spec.envp = envp;
	assert_int_equal(launch_hold(&spec, NULL, &l, &err), 0);
	assert_int_equal(launch_go(&l, &err), 0);
	wait_for("ready");
	pidfd_signal(l.pidfd, SIGSTOP); /* a stopped one is continued, else it would never see it */
	assert_int_equal(launch_stop(&l, &place.domain, 10000, &e, &err), 0);
	assert_true(e.dead && !e.escalated);
	assert_int_equal(e.code, 7);
	launched_close(&l);
}

/* A body lists its descriptors: empty streams, the link, the leaf, what it may keep. */
static int list_descriptors(void *arg, int linkfd, const struct launch_record *rec)
{
	char list[1024] = "";
	DIR *d = opendir("/proc/self/fd");
	struct dirent *e;

	(void)arg;
	(void)rec;
	while ((e = readdir(d))) {
		char to[64] = "";

		if (e->d_name[0] == '.' || atoi(e->d_name) == dirfd(d) || atoi(e->d_name) == linkfd)
			continue;
		if (readlinkat(dirfd(d), e->d_name, to, sizeof(to) - 1) > 0 && atoi(e->d_name) < 3)
			snprintf(list + strlen(list), sizeof(list) - strlen(list), "%s=%s,",
				e->d_name, to);
		else
			snprintf(list + strlen(list), sizeof(list) - strlen(list), "%s,",
				e->d_name);
	}
	return link_send(linkfd, 9, list, strlen(list)) < 0;
}

static void only_what_is_kept(void **state)
{
	struct launch_spec spec = spec_of(NULL);
	struct launched l = LAUNCHED_INIT;
	struct err err = {0};
	_close_ int kept = open("/dev/null", O_RDONLY), other = open("/dev/null", O_RDONLY);
	int high = fcntl(other, F_DUPFD, 200); /* not close-on-exec, and no exec would come */
	_free_ char *data = NULL;
	char expected[128] = "0=/dev/null,1=/dev/null,2=/dev/null,";
	size_t used = strlen(expected);
	uint8_t type;
	size_t len;
	int leaf;

	(void)state;
	spec.body = list_descriptors;
	spec.keepfds = &kept;
	spec.n_keepfds = 1;
	assert_int_equal(launch_hold(&spec, NULL, &l, &err), 0);
	leaf = l.leaffd;
	assert_int_equal(launch_go(&l, &err), 0);
	assert_int_equal(pidfd_wait_exit(l.pidfd, 10000), 0);
	assert_int_equal(link_receive(l.linkfd, &type, &data, &len), 1);
	assert_int_equal(type, 9);
	if (leaf < 0)
		snprintf(expected + used, sizeof(expected) - used, "%d,", kept);
	else
		snprintf(expected + used, sizeof(expected) - used, "%d,%d,",
			kept < leaf ? kept : leaf, kept < leaf ? leaf : kept);
	assert_string_equal(data, expected);
	end(&l);
	close(high);
}

/* The same for an argv: nothing but its three streams. */
static void only_streams_for_a_tool(void **state)
{
	char *const argv[] = {"sh", "-c", "ls /proc/self/fd", NULL};
	struct launch_spec spec = spec_of(argv);
	struct launched l = LAUNCHED_INIT;
	struct err err = {0};
	char out[256] = "";
	int pipes[2], high;

	(void)state;
	assert_int_equal(pipe2(pipes, O_CLOEXEC), 0);
	high = fcntl(pipes[0], F_DUPFD, 200);
	spec.stdfd[1] = pipes[1];
	assert_int_equal(launch_hold(&spec, NULL, &l, &err), 0);
	assert_int_equal(launch_go(&l, &err), 0);
	assert_int_equal(pidfd_wait_exit(l.pidfd, 10000), 0);
	assert_true(read(pipes[0], out, sizeof(out) - 1) > 0);
	assert_string_equal(out, "0\n1\n2\n3\n"); /* 3: the directory that ls reads */
	end(&l);
	close(high);
	close(pipes[0]);
	close(pipes[1]);
}

struct claims {
	int calls, fail;
	struct launch_record seen;
};

/* Runs in the held child: what it changes here is the child's. */
static int claim(void *self, const struct launch_record *rec, struct err *err)
{
	struct claims *c = self;

	(void)rec;
	return c->fail ? err_set(err, "lease.in_use", EEXIST, "claim", "taken") : 0;
}

static int identity(void *self, const struct launch_record *rec, struct err *err)
{
	struct claims *c = self;

	c->calls++;
	c->seen = *rec;
	return c->fail ? err_set(err, "store.failed", ENOSPC, "identity", "full") : 0;
}

static int body_runs(void *arg, int linkfd, const struct launch_record *rec)
{
	(void)arg;
	(void)rec;
	link_send(linkfd, 9, "ran", 3);
	return 5;
}

static void a_claim_that_fails(void **state)
{
	struct claims c = {.fail = 1};
	const struct launch_journal journal = {.self = &c, .claim = claim};
	struct launch_spec spec = spec_of(NULL);
	struct launched l = LAUNCHED_INIT;
	struct err err = {0}, theirs;
	_free_ char *data = NULL;
	uint8_t type;
	size_t len;

	(void)state;
	spec.body = body_runs;
	assert_int_equal(launch_hold(&spec, &journal, &l, &err), 0);
	assert_int_equal(launch_go(&l, &err), 0);
	assert_int_equal(pidfd_wait_exit(l.pidfd, 10000), 0);
	/* The error came over the link, and nothing else. */
	assert_int_equal(link_receive(l.linkfd, &type, &data, &len), 1);
	assert_int_equal(type, 0);
	assert_int_equal(len, sizeof(theirs));
	memcpy(&theirs, data, sizeof(theirs));
	assert_string_equal(theirs.code, "lease.in_use");
	assert_int_equal(theirs.errnum, EEXIST);
	free(take_ptr(data));
	assert_int_equal(link_receive(l.linkfd, &type, &data, &len), 0);
	end(&l);
}

static void identity_is_durable_before_the_gate(void **state)
{
	struct claims c = {0};
	const struct launch_journal journal = {.self = &c, .claim = claim, .identity = identity};
	struct launch_spec spec = spec_of(NULL);
	struct launched l = LAUNCHED_INIT;
	struct ident_match m;
	struct err err = {0};

	(void)state;
	spec.body = body_runs;
	assert_int_equal(launch_hold(&spec, &journal, &l, &err), 0);
	assert_int_equal(c.calls, 1);
	assert_int_equal(c.seen.id.pid, l.rec.id.pid);
	ident_match(&c.seen.id, c.seen.nonce, &m);
	assert_int_equal(m.verdict, IDENT_OWNED);
	close(m.pidfd);
	assert_int_equal(launch_go(&l, &err), 0);
	end(&l);
	c.fail = 1;
	assert_int_equal(launch_hold(&spec, &journal, &l, &err), -ENOSPC);
	assert_string_equal(err.code, "store.failed");
}

static void adopted(void **state)
{
	char *const argv[] = {"sleep", "1000", NULL};
	struct launch_spec spec = spec_of(argv);
	struct launched l = LAUNCHED_INIT, found = LAUNCHED_INIT;
	struct launch_record rec;
	enum ident_verdict verdict;
	struct launch_end e;
	struct err err = {0};

	(void)state;
	assert_int_equal(launch_hold(&spec, NULL, &l, &err), 0);
	assert_int_equal(launch_go(&l, &err), 0);
	assert_int_equal(ident_read(l.rec.id.pid, &l.rec.id, NULL, &err), 0);
	rec = l.rec;
	assert_int_equal(launch_adopt(&rec, &found, &verdict, &err), 0);
	assert_int_equal(verdict, IDENT_OWNED);
	close_now(&l.leaffd);
	assert_int_equal(launch_stop(&found, &place.domain, 0, &e, &err), 0);
	assert_true(e.dead);
	launched_close(&found);
	launched_close(&l);
	assert_true(launch_adopt(&rec, &found, &verdict, &err) < 0);
	assert_int_equal(verdict, IDENT_GONE);
	assert_int_equal(found.pidfd, -1);
}

static void record_round_trip(void **state)
{
	struct launch_record rec = {.mechanism = LAUNCH_MECH_CGROUP,
				     .required = LAUNCH_DIM_ALL,
				     .enforced = LAUNCH_DIM_WALL_CLOCK,
				     .degraded = LAUNCH_DIM_PROCESS_TREE},
			     back = {0};
	struct err err = {0};
	json_t *j;

	(void)state;
	assert_int_equal(text_random_hex(rec.nonce, 16), 0);
	strcpy(rec.cgroup, "/mayhem/x/y");
	assert_int_equal(ident_read(getpid(), &rec.id, NULL, &err), 0);
	j = launch_record_to_json(&rec);
	assert_int_equal(launch_record_from_json(j, &back, &err), 0);
	assert_string_equal(back.nonce, rec.nonce);
	assert_string_equal(back.cgroup, rec.cgroup);
	assert_int_equal(back.mechanism, rec.mechanism);
	assert_int_equal(back.required, rec.required);
	assert_int_equal(back.enforced, rec.enforced);
	assert_int_equal(back.degraded, rec.degraded);
	assert_int_equal(back.id.start_ticks, rec.id.start_ticks);
	json_object_set_new(j, "nonce", json_string("../../etc"));
	assert_true(launch_record_from_json(j, &back, &err) < 0);
	json_decref(j);
	assert_true(launch_record_from_json(NULL, &back, &err) < 0);
}

/* A tool dies with whoever launched it. */
static void tools_do_not_outlive_their_launcher(void **state)
{
	char *const argv[] = {"sleep", "1000", NULL};
	int said[2];
	pid_t tool = 0, pid;
	uint64_t limit = clock_boottime_ms() + 10000;

	(void)state;
	assert_int_equal(pipe(said), 0);
	prctl(PR_SET_CHILD_SUBREAPER, 1);
	pid = fork();
	if (pid == 0) {
		struct launch_spec spec = spec_of(argv);
		struct launched l = LAUNCHED_INIT;

		spec.domain = NULL;
		if (launch_hold(&spec, NULL, &l, NULL) == 0 && launch_go(&l, NULL) == 0 &&
			write(said[1], &l.rec.id.pid, sizeof(pid_t)) == sizeof(pid_t))
			kill(getpid(), SIGKILL);
		_exit(1);
	}
	assert_int_equal(read(said[0], &tool, sizeof(tool)), sizeof(tool));
	assert_int_equal(waitpid(pid, NULL, 0), pid);
	while (waitpid(tool, NULL, WNOHANG) == 0) {
		assert_true(clock_until_ms(limit) > 0);
		poll(NULL, 0, 1);
	}
	prctl(PR_SET_CHILD_SUBREAPER, 0);
	close(said[0]);
	close(said[1]);
}

#define IN_CGROUP(f) cmocka_unit_test_setup_teardown(f, set_up, tear_down)
#define WITHOUT(f)                                                                                 \
	{                                                                                          \
#f "_without_cgroup", f, set_up_bare, tear_down, NULL                              \
	}

int main(void)
{
	const struct CMUnitTest tests[] = {
		IN_CGROUP(runs_and_ends),
		WITHOUT(runs_and_ends),
		IN_CGROUP(a_gate_never_opened),
		WITHOUT(a_gate_never_opened),
		IN_CGROUP(exec_fails),
		IN_CGROUP(a_relative_path_entry_is_not_searched),
		IN_CGROUP(stubborn_families_die),
		IN_CGROUP(polite_ones_are_not_killed),
		WITHOUT(polite_ones_are_not_killed),
		IN_CGROUP(only_what_is_kept),
		WITHOUT(only_what_is_kept),
		IN_CGROUP(only_streams_for_a_tool),
		IN_CGROUP(a_claim_that_fails),
		IN_CGROUP(identity_is_durable_before_the_gate),
		IN_CGROUP(adopted),
		IN_CGROUP(record_round_trip),
		IN_CGROUP(tools_do_not_outlive_their_launcher),
	};

	return cmocka_run_group_tests_name("launch", tests, NULL, NULL);
}
