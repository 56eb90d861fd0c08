/* SPDX-License-Identifier: Apache-2.0 */
/* The match ladder, on real processes: what is recorded is bent one fact at a time. */
#include "unit.h"

#include <signal.h>
#include <sys/wait.h>

#include "ident/process.h"
#include "os/pidfd.h"

struct target {
	pid_t pid;
	struct proc_identity id;
};

static int start(void **state)
{
	static struct target t;
	struct err err = {0};

	t.pid = fork();
	if (t.pid == 0)
		for (;;)
			pause();
	if (ident_read(t.pid, &t.id, NULL, &err) < 0)
		return -1;
	*state = &t;
	return 0;
}

static int stop(void **state)
{
	struct target *t = *state;

	if (t->pid > 0) {
		kill(t->pid, SIGKILL);
		waitpid(t->pid, NULL, 0);
	}
	return 0;
}

static enum ident_verdict match(const struct proc_identity *id, const char *nonce, bool *ret_weak)
{
	struct ident_match m;

	ident_match(id, nonce, &m);
	assert_non_null(m.reason);
	/* Exactly OWNED and SAME come with a pidfd: nothing else may be signalled. */
	assert_int_equal(m.pidfd >= 0, m.verdict == IDENT_SAME || m.verdict == IDENT_OWNED);
	if (m.pidfd >= 0) {
		assert_false(pidfd_has_exited(m.pidfd));
		close(m.pidfd);
	}
	if (ret_weak)
		*ret_weak = m.weak;
	return m.verdict;
}

static void facts(void **state)
{
	struct target *t = *state;
	struct proc_identity fast;
	struct err err = {0};
	int fd = -1;

	assert_int_equal(t->id.pid, t->pid);
	assert_int_equal(t->id.uid, geteuid());
	assert_true(t->id.start_ticks > 0);
	assert_true(t->id.exe_ino > 0);
	assert_int_equal(t->id.pidns_inode, ident_own_pidns());
	assert_int_equal(ident_read_fast(t->pid, &fast, &fd, &err), 0);
	assert_true(fd >= 0);
	assert_int_equal(fast.exe_ino, 0);
	assert_int_equal(ident_complete(&fast, fd, &err), 0);
	assert_int_equal(fast.exe_ino, t->id.exe_ino);
	assert_string_equal(fast.cgroup, t->id.cgroup);
	close(fd);
}

static void same(void **state)
{
	struct target *t = *state;
	bool weak = true;

	assert_int_equal(match(&t->id, NULL, &weak), IDENT_SAME);
	if (t->id.pidfs_inode)
		assert_false(weak);
}

static void gone(void **state)
{
	struct target *t = *state;
	struct proc_identity none = t->id;
	struct err err = {0};
	struct proc_identity id;

	none.pid = 0;
	assert_int_equal(match(&none, NULL, NULL), IDENT_GONE);
	none.pid = -1;
	assert_int_equal(match(&none, NULL, NULL), IDENT_GONE);
	kill(t->pid, SIGKILL);
	/* A zombie is gone already. */
	assert_int_equal(waitid(P_PID, (id_t)t->pid, &(siginfo_t){0}, WEXITED | WNOWAIT), 0);
	assert_int_equal(match(&t->id, NULL, NULL), IDENT_GONE);
	assert_int_equal(ident_read(t->pid, &id, NULL, &err), -ESRCH);
	assert_string_equal(err.code, "target.gone");
	waitpid(t->pid, NULL, 0);
	t->pid = 0;
	assert_int_equal(match(&t->id, NULL, NULL), IDENT_GONE);
}

static void another_boot(void **state)
{
	struct target *t = *state;
	struct proc_identity id = t->id;

	id.boot_id[0] = id.boot_id[0] == '0' ? '1' : '0';
	assert_int_equal(match(&id, NULL, NULL), IDENT_GONE);
	id.boot_id[0] = '\0';
	assert_int_equal(match(&id, NULL, NULL), IDENT_UNVERIFIABLE);
}

static void another_pid_namespace(void **state)
{
	struct target *t = *state;
	struct proc_identity id = t->id;

	id.pidns_inode++;
	assert_int_equal(match(&id, NULL, NULL), IDENT_UNVERIFIABLE);
	/* Even with the nonce: the number means something else here. */
	assert_int_equal(match(&id, "00000000000000000000000000000000", NULL), IDENT_UNVERIFIABLE);
}

static void foreign_by_pidfs(void **state)
{
	struct target *t = *state;
	struct proc_identity id = t->id;

	if (!id.pidfs_inode)
		unit_skip("this kernel has no pidfs");
	id.pidfs_inode++;
	assert_int_equal(match(&id, NULL, NULL), IDENT_FOREIGN);
	/* The kernel's word stands above everything else that agrees or differs. */
	id = t->id;
	id.start_ticks += 5;
	id.uid += 5;
	assert_int_equal(match(&id, NULL, NULL), IDENT_SAME);
}

static void foreign_by_start(void **state)
{
	struct target *t = *state;
	struct proc_identity id = t->id;

	id.pidfs_inode = 0;
	id.start_ticks++;
	assert_int_equal(match(&id, NULL, NULL), IDENT_FOREIGN);
}

static void weak_match(void **state)
{
	struct target *t = *state;
	struct proc_identity id = t->id;
	bool weak = false;

	id.pidfs_inode = 0;
	if (!id.cgroup[0]) {
		assert_int_equal(match(&id, NULL, NULL), IDENT_UNVERIFIABLE);
		unit_skip("no cgroup by which a process could be told without pidfs");
	}
	assert_int_equal(match(&id, NULL, &weak), IDENT_SAME);
	assert_true(weak);
	id.uid++;
	assert_int_equal(match(&id, NULL, NULL), IDENT_FOREIGN);
	id.uid--;
	id.exe_ino++;
	assert_int_equal(match(&id, NULL, NULL), IDENT_FOREIGN);
	id.exe_ino--;
	id.exe_dev++;
	assert_int_equal(match(&id, NULL, NULL), IDENT_FOREIGN);
	id.exe_dev--;
	strcat(id.cgroup, "x");
	assert_int_equal(match(&id, NULL, NULL), IDENT_FOREIGN);
	id.cgroup[0] = '\0';
	assert_int_equal(match(&id, NULL, NULL), IDENT_UNVERIFIABLE);
}

static void json_round_trip(void **state)
{
	struct target *t = *state;
	struct proc_identity back;
	struct err err = {0};
	json_t *j = ident_to_json(&t->id);

	assert_non_null(j);
	assert_int_equal(ident_from_json(j, &back, &err), 0);
	assert_int_equal(match(&back, NULL, NULL), IDENT_SAME);
	assert_int_equal(back.exe_ino, t->id.exe_ino);
	assert_string_equal(back.comm, t->id.comm);
	json_decref(j);
}

static void json_strictness(void **state)
{
	static const char *const keys[] = {"kind", "pid", "start_ticks", "boot_id", "pidns_inode",
		"pidfs_inode", "comm", "exe", "uid", "cgroup"};
	struct target *t = *state;
	struct proc_identity back = {.pid = -5};
	json_t *good = ident_to_json(&t->id);

	for (size_t i = 0; i < sizeof(keys) / sizeof(*keys); i++) {
		json_t *bad = json_deep_copy(good);
		struct err err = {0};

		json_object_del(bad, keys[i]);
		assert_int_equal(ident_from_json(bad, &back, &err), -EINVAL);
		assert_string_equal(err.code, "lease.shape");
		json_object_set_new(bad, keys[i], json_true());
		assert_int_equal(ident_from_json(bad, &back, &err), -EINVAL);
		json_decref(bad);
	}
	json_object_set_new(good, "pid", json_integer(4294967297)); /* not pid 1 */
	assert_int_equal(ident_from_json(good, &back, NULL), -EINVAL);
	json_object_set_new(good, "pid", json_integer(t->pid));
	json_object_set_new(good, "more", json_true());
	assert_int_equal(ident_from_json(good, &back, NULL), -EINVAL);
	assert_int_equal(back.pid, -5);
	json_decref(good);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test_setup_teardown(facts, start, stop),
		cmocka_unit_test_setup_teardown(same, start, stop),
		cmocka_unit_test_setup_teardown(gone, start, stop),
		cmocka_unit_test_setup_teardown(another_boot, start, stop),
		cmocka_unit_test_setup_teardown(another_pid_namespace, start, stop),
		cmocka_unit_test_setup_teardown(foreign_by_pidfs, start, stop),
		cmocka_unit_test_setup_teardown(foreign_by_start, start, stop),
		cmocka_unit_test_setup_teardown(weak_match, start, stop),
		cmocka_unit_test_setup_teardown(json_round_trip, start, stop),
		cmocka_unit_test_setup_teardown(json_strictness, start, stop),
	};

	return cmocka_run_group_tests_name("process", tests, NULL, NULL);
}
