/* SPDX-License-Identifier: Apache-2.0 */
#include "unit.h"

#include <sched.h>
#include <sys/mount.h>

#include "authority/policy.h"
#include "authority/window.h"
#include "base/cleanup.h"
#include "base/json.h"

#define MONDAY_NOON 1767614400000ull /* 2026-01-05T12:00:00Z */
#define HOURS(h) ((h)*3600000ll)

static const char *const names[] = {"redis-server", "pid:4711"};

static struct policy_ask ask_for(const char *fault_id, enum risk risk)
{
	return (struct policy_ask){
		.fault_id = fault_id,
		.risk = risk,
		.resources = names,
		.n_resources = 2,
		.duration_ms = 10000,
		.live_leases = 2,
		.now_utc_ms = MONDAY_NOON,
	};
}

/* A policy of one file with this text. */
static int load(struct policy *p, const char *text, struct err *err)
{
	char path[] = "/tmp/mayhem-unit-XXXXXX";
	int fd = mkstemp(path), r;

	assert_true(fd >= 0);
	assert_int_equal(write(fd, text, strlen(text)), strlen(text));
	close(fd);
	memset(err, 0, sizeof(*err));
	r = policy_add_file(p, path, err);
	unlink(path);
	return r;
}

static int narrow(struct policy *p, const char *text, struct err *err)
{
	_json_ json_t *j = json_loads(text, 0, NULL);

	assert_non_null(j);
	memset(err, 0, sizeof(*err));
	return policy_add_handshake(p, j, err);
}

static void check(const char *text, const struct policy_ask *ask, const char *code)
{
	struct policy p;
	struct err err;
	int r;

	policy_init(&p);
	if (load(&p, text, &err) < 0)
		fail_msg("%s: %s", text, err.text);
	memset(&err, 0, sizeof(err));
	r = policy_check_inject(&p, ask, &err);
	if (!code && r < 0)
		fail_msg("%s: refused: %s", text, err.text);
	if (code && r == 0)
		fail_msg("%s: allowed", text);
	assert_string_equal(err.code, code ? code : "");
	if (code) {
		assert_int_equal(r, -EPERM);
		assert_true(err.remedy[0]);
	}
	policy_free(&p);
}

static void without_any(void **state)
{
	struct policy p;
	struct err err = {0};
	struct policy_ask ask = ask_for("node.drain", RISK_HIGH);

	(void)state;
	policy_init(&p);
	assert_int_equal(policy_check_inject(&p, &ask, &err), 0);
	ask.risk = RISK_CRITICAL;
	assert_int_equal(policy_check_inject(&p, &ask, &err), -EINVAL);
	assert_string_equal(err.code, "risk.ceiling");
	assert_int_equal(policy_check_capability(&p, CAPABILITY_SHELL_EXEC, &err), 0);
	assert_true(policy_max_duration_ms(&p) == UINT64_MAX);
	assert_null(policy_metrics_file(&p));
	policy_free(&p);
}

static void allowed_faults(void **state)
{
	struct policy_ask ask = ask_for("net.latency", RISK_LOW);

	(void)state;
	check("{}", &ask, NULL);
	check("{\"allowed_faults\":[]}", &ask, NULL); /* an empty list allows all, here */
	check("{\"allowed_faults\":[\"net\"]}", &ask, NULL);
	check("{\"allowed_faults\":[\"net.latency\"]}", &ask, NULL);
	check("{\"allowed_faults\":[\"network\",\"net.lat\",\"ne\"]}", &ask,
		"agent.capability.denied");
	ask.fault_id = "network.x";
	check("{\"allowed_faults\":[\"net\"]}", &ask, "agent.capability.denied");
}

static void denied_faults(void **state)
{
	struct policy_ask ask = ask_for("process.kill", RISK_LOW);

	(void)state;
	check("{\"denied_faults\":[]}", &ask, NULL);
	check("{\"denied_faults\":[\"process\"]}", &ask, "policy.denied");
	check("{\"denied_faults\":[\"process.stop\"]}", &ask, NULL);
	check("{\"allowed_faults\":[\"process.kill\"],\"denied_faults\":[\"process.kill\"]}", &ask,
		"policy.denied");
	check("{\"approve\":[\"process.kill\"]}", &ask, "approval.required");
	check("{\"approve\":[\"proc\"]}", &ask, NULL);
}

static void resources(void **state)
{
	struct policy_ask ask = ask_for("proc.pause", RISK_LOW);

	(void)state;
	check("{\"allowed_resources\":[]}", &ask, NULL);
	check("{\"allowed_resources\":[\"redis-server\"]}", &ask, NULL);
	check("{\"allowed_resources\":[\"pid:4711\"]}", &ask, NULL);
	check("{\"allowed_resources\":[\"redis\"]}", &ask, "agent.capability.denied");
	check("{\"protected\":[]}", &ask, NULL);
	check("{\"protected\":[\"redis-server\"]}", &ask, "target.protected");
	check("{\"protected\":[\"redis\"]}", &ask, NULL);
	ask.n_resources = 0;
	check("{\"allowed_resources\":[\"redis-server\"]}", &ask, "agent.capability.denied");
}

static void capabilities(void **state)
{
	struct policy_ask ask = ask_for("proc.pause", RISK_LOW);
	struct policy p;
	struct err err;

	(void)state;
	check("{\"capabilities\":[\"fault_inject\"]}", &ask, NULL);
	/* Here an empty list means none, and an unknown kind grants nothing. */
	check("{\"capabilities\":[]}", &ask, "agent.capability.denied");
	check("{\"capabilities\":[\"fault_undo\",\"all\",\"FAULT_INJECT\"]}", &ask,
		"agent.capability.denied");
	policy_init(&p);
	assert_int_equal(load(&p, "{\"capabilities\":[\"fault_inject\",\"new_kind\"]}", &err), 0);
	assert_int_equal(policy_check_capability(&p, CAPABILITY_FAULT_INJECT, &err), 0);
	assert_int_equal(policy_check_capability(&p, CAPABILITY_SHELL_EXEC, &err), -EPERM);
	assert_string_equal(err.code, "agent.capability.denied");
	policy_free(&p);
}

static void limits(void **state)
{
	struct policy_ask ask = ask_for("proc.pause", RISK_HIGH);
	struct policy p;
	struct err err;

	(void)state;
	check("{\"max_leases\":3}", &ask, NULL);
	check("{\"max_leases\":2}", &ask, "policy.denied");
	check("{\"max_leases\":0}", &ask, "policy.denied");
	check("{\"max_leases\":null}", &ask, NULL);
	check("{\"max_duration_s\":10}", &ask, NULL);
	check("{\"max_duration_s\":9}", &ask, "policy.denied");
	check("{\"max_duration_s\":null}", &ask, NULL);
	check("{\"risk_ceiling\":\"high\"}", &ask, NULL);
	check("{\"risk_ceiling\":\"medium\"}", &ask, "risk.ceiling");
	ask.risk = RISK_CRITICAL;
	check("{}", &ask, "risk.ceiling"); /* a file that says nothing says high */
	check("{\"risk_ceiling\":\"critical\"}", &ask, NULL);
	policy_init(&p);
	assert_int_equal(load(&p,
				 "{\"max_duration_s\":30,\"engines\":[\"unix:///a\"],"
				 "\"metrics_file\":\"/m\"}",
				 &err),
		0);
	assert_int_equal(load(&p, "{\"max_duration_s\":20}", &err), 0);
	assert_int_equal(policy_max_duration_ms(&p), 20000);
	assert_true(policy_lists_engine(&p, "unix:///a"));
	assert_false(policy_lists_engine(&p, "unix:///b"));
	assert_string_equal(policy_metrics_file(&p), "/m");
	policy_free(&p);
}

static void later_layers_narrow(void **state)
{
	struct policy_ask ask = ask_for("proc.pause", RISK_HIGH);
	struct policy p;
	struct err err;

	(void)state;
	policy_init(&p);
	assert_int_equal(load(&p, "{\"allowed_faults\":[\"proc\"],\"risk_ceiling\":\"medium\"}",
				 &err),
		0);
	/* The handshake allows more, which counts for nothing. */
	assert_int_equal(narrow(&p, "{\"allowed_faults\":[\"proc\",\"net\"]}", &err), 0);
	assert_int_equal(policy_check_inject(&p, &ask, &err), -EPERM);
	assert_string_equal(err.code, "risk.ceiling");
	ask.risk = RISK_LOW;
	assert_int_equal(policy_check_inject(&p, &ask, &err), 0);
	ask.fault_id = "net.latency";
	assert_int_equal(policy_check_inject(&p, &ask, &err), -EPERM);
	assert_int_equal(narrow(&p, "{\"capabilities\":[\"fault_undo\"]}", &err), 0);
	ask.fault_id = "proc.pause";
	assert_int_equal(policy_check_inject(&p, &ask, &err), -EPERM);
	assert_string_equal(err.code, "agent.capability.denied");
	assert_non_null(strstr(err.text, "handshake"));
	policy_free(&p);
}

static void a_handshake_says_little(void **state)
{
	struct policy p;
	struct err err;

	(void)state;
	policy_init(&p);
	assert_true(narrow(&p, "{\"max_leases\":1}", &err) < 0);
	assert_string_equal(err.code, "params.type");
	assert_true(narrow(&p, "{\"allowed_faults\":\"proc\"}", &err) < 0);
	assert_true(narrow(&p, "{\"allowed_faults\":[1]}", &err) < 0);
	assert_true(narrow(&p, "[]", &err) < 0);
	assert_int_equal(p.n_layers, 0);
	policy_free(&p);
}

static void malformed(void **state)
{
	static const char *const bad[] = {"", "[]", "nul", "{\"a\":1}",
		"{\"max_leases\":1,\"max_leases\":2}", "{\"allowed_faults\":{}}",
		"{\"allowed_faults\":null}", "{\"allowed_faults\":[null]}",
		"{\"allowed_faults\":[\"\"]}", "{\"protected\":\"redis\"}",
		"{\"denied_faults\":[[]]}", "{\"max_leases\":-1}", "{\"max_leases\":1.5}",
		"{\"max_leases\":\"1\"}", "{\"max_duration_s\":true}",
		"{\"risk_ceiling\":\"extreme\"}", "{\"risk_ceiling\":2}", "{\"risk_ceiling\":null}",
		"{\"windows\":{}}", "{\"windows\":[\"mon\"]}",
		"{\"windows\":[{\"days\":\"monday\"}]}", "{\"windows\":[{\"days\":[\"mon\"]}]}",
		"{\"windows\":[{\"from\":\"25:00\"}]}", "{\"windows\":[{\"from\":\"9:00\"}]}",
		"{\"windows\":[{\"from\":900}]}", "{\"windows\":[{\"to\":\"24:01\"}]}",
		"{\"windows\":[{\"tz\":1}]}",
		"{\"windows\":[{\"from\":\"22:00\",\"to\":\"06:00\"}]}",
		"{\"windows\":[{\"from\":\"09:00\",\"to\":\"09:00\"}]}",
		"{\"windows\":[{\"tz\":\"Europe/Berlni\"}]}", "{\"windows\":[{\"tz\":\"\"}]}",
		"{\"windows\":[{\"tz\":\"../zoneinfo/UTC\"}]}",
		"{\"windows\":[{\"tz\":\"/etc/localtime\"}]}",
		"{\"windows\":[{\"at\":\"12:00\"}]}"};

	(void)state;
	for (size_t i = 0; i < sizeof(bad) / sizeof(*bad); i++) {
		struct policy p;
		struct err err;

		policy_init(&p);
		if (load(&p, bad[i], &err) == 0)
			fail_msg("took %s", bad[i]);
		assert_string_equal(err.code, "config.policy");
		assert_int_equal(p.n_layers, 0);
		policy_free(&p);
	}
}

static bool open_at(const char *windows, long long after_monday_noon_ms)
{
	_json_ json_t *list = json_loads(windows, 0, NULL);
	struct err err = {0};

	assert_non_null(list);
	if (window_check_list(list, "test", &err) < 0)
		fail_msg("%s: %s", windows, err.text);
	return window_list_open(list, (uint64_t)((long long)MONDAY_NOON + after_monday_noon_ms));
}

static void windows(void **state)
{
	struct policy_ask ask = ask_for("proc.pause", RISK_LOW);
	const char *work = "[{\"days\":\"mon-fri\",\"from\":\"09:00\",\"to\":\"16:00\"}]";

	(void)state;
	assert_true(window_list_open(NULL, MONDAY_NOON));
	assert_true(open_at("[]", 0));
	assert_true(open_at("[{}]", 0));
	assert_true(open_at(work, 0));
	assert_true(open_at(work, HOURS(-3)));
	assert_false(open_at(work, HOURS(-3) - 1));
	assert_true(open_at(work, HOURS(4) - 1));
	assert_false(open_at(work, HOURS(4)));
	assert_true(open_at(work, HOURS(4 * 24)));
	assert_false(open_at(work, HOURS(5 * 24)));
	assert_true(open_at("[{\"days\":\"sat-mon\"}]", HOURS(5 * 24)));
	assert_false(open_at("[{\"days\":\"sat-sun\"}]", 0));
	assert_true(open_at("[{\"days\":\"sun\"},{\"days\":\"mon\"}]", 0));
	/* 12:00Z is 13:00 in Berlin in January. */
	assert_true(open_at("[{\"from\":\"13:00\",\"to\":\"13:01\",\"tz\":\"Europe/Berlin\"}]", 0));
	check("{\"windows\":[{\"days\":\"mon\"}]}", &ask, NULL);
	check("{\"windows\":[{\"days\":\"tue\"}]}", &ask, "policy.denied");
}

static int load_host(const char *text, mode_t mode, uid_t owner, struct err *err)
{
	struct policy p;
	FILE *f = fopen(POLICY_HOST_FILE, "w");
	int r;

	assert_non_null(f);
	fputs(text, f);
	fclose(f);
	assert_int_equal(chmod(POLICY_HOST_FILE, mode), 0);
	assert_int_equal(chown(POLICY_HOST_FILE, owner, 0), 0);
	policy_init(&p);
	memset(err, 0, sizeof(*err));
	r = policy_add_host_file(&p, err);
	assert_int_equal(p.n_layers, r == 0);
	policy_free(&p);
	return r;
}

/* In a mount namespace of our own with an /etc of our own: the last test of the program. */
static void host_file(void **state)
{
	struct policy p;
	struct err err = {0};

	(void)state;
	if (geteuid() != 0 || unshare(CLONE_NEWNS) < 0)
		unit_skip("needs root and a mount namespace for an /etc of its own");
	assert_int_equal(mount(NULL, "/", NULL, MS_REC | MS_PRIVATE, NULL), 0);
	assert_int_equal(mount("none", "/etc", "tmpfs", 0, NULL), 0);
	policy_init(&p);
	assert_int_equal(policy_add_host_file(&p, &err), 0); /* none is fine */
	assert_int_equal(p.n_layers, 0);
	assert_int_equal(mkdir("/etc/mayhem", 0755), 0);
	assert_int_equal(load_host("{\"max_leases\":1}", 0644, 0, &err), 0);
	assert_int_equal(load_host("{\"max_leases\":1}", 0664, 0, &err), -EPERM);
	assert_string_equal(err.code, "config.policy");
	assert_true(err.remedy[0]);
	assert_int_equal(load_host("{\"max_leases\":1}", 0646, 0, &err), -EPERM);
	assert_int_equal(load_host("{\"max_leases\":1}", 0644, 65534, &err), -EPERM);
	assert_int_equal(load_host("{\"max_lease\":1}", 0644, 0, &err), -EINVAL);
	assert_int_equal(rename(POLICY_HOST_FILE, "/etc/mayhem/real"), 0);
	assert_int_equal(symlink("real", POLICY_HOST_FILE), 0);
	assert_int_equal(policy_add_host_file(&p, &err), -EPERM);
	assert_int_equal(unlink(POLICY_HOST_FILE), 0);
	assert_int_equal(mkdir(POLICY_HOST_FILE, 0755), 0);
	assert_int_equal(policy_add_host_file(&p, &err), -EPERM);
	policy_free(&p);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(without_any),
		cmocka_unit_test(allowed_faults),
		cmocka_unit_test(denied_faults),
		cmocka_unit_test(resources),
		cmocka_unit_test(capabilities),
		cmocka_unit_test(limits),
		cmocka_unit_test(later_layers_narrow),
		cmocka_unit_test(a_handshake_says_little),
		cmocka_unit_test(malformed),
		cmocka_unit_test(windows),
		cmocka_unit_test(host_file),
	};

	return cmocka_run_group_tests_name("policy", tests, NULL, NULL);
}
