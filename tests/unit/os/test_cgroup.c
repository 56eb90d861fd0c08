/* SPDX-License-Identifier: Apache-2.0 */
#include "unit.h"

#include <signal.h>
#include <sys/wait.h>

#include "base/cleanup.h"
#include "base/text.h"
#include "os/cgroup.h"
#include "os/mounts.h"
#include "os/procfs.h"

static char store[33];

static void set_domain(struct cgroup_domain *d)
{
	struct err err = {0};

	assert_int_equal(text_random_hex(store, 16), 0);
	assert_int_equal(cgroup_domain_probe(store, d, &err), 0);
}

static void probing_changes_nothing(void **state)
{
	struct cgroup_domain d;
	struct mounts_cgroup m;
	char path[2 * CGROUP_PATH_SIZE];

	(void)state;
	set_domain(&d);
	assert_int_equal(mounts_find_cgroup(&m), 0);
	if (m.v2[0])
		assert_int_equal(d.mode, m.v1_controllers ? CGROUP_MODE_HYBRID : CGROUP_MODE_V2);
	else
		assert_int_equal(d.mode, m.v1_controllers ? CGROUP_MODE_V1 : CGROUP_MODE_NONE);
	assert_int_equal(d.basefd, -1);
	if (d.kill != CGROUP_KILL_NONE) {
		assert_non_null(strstr(d.base, store));
		snprintf(path, sizeof(path), "%s%s", d.mount, d.base);
		assert_int_equal(access(path, F_OK), -1);
	}
	cgroup_domain_close(&d);
}

static int count(pid_t pid, void *arg)
{
	(void)pid;
	++*(int *)arg;
	return 0;
}

static int count_leaf(const char *nonce, void *arg)
{
	(void)nonce;
	++*(int *)arg;
	return 0;
}

/* Two that ignore SIGTERM, in a leaf, ended as a whole. */
static void a_leaf_dies_as_a_whole(void **state)
{
	struct cgroup_domain d;
	char nonce[33], path[512], second[512];
	struct err err = {0};
	int fd = -1, ready[2], n = 0;
	bool inside = false;
	pid_t pid;

	(void)state;
	set_domain(&d);
	if (d.kill == CGROUP_KILL_NONE)
		unit_skip("no cgroup that we may write");
	assert_int_equal(text_random_hex(nonce, 16), 0);
	assert_int_equal(cgroup_leaf_make(&d, nonce, path, sizeof(path), &fd, &err), 0);
	assert_non_null(strstr(path, nonce));
	assert_int_equal(cgroup_leaf_make(&d, nonce, second, sizeof(second), &ready[0], &err),
		-EEXIST);
	assert_int_equal(cgroup_leaf_populated(&d, fd), 0);
	assert_int_equal(pipe(ready), 0);
	pid = fork();
	if (pid == 0) {
		char pair = 'r';

		signal(SIGTERM, SIG_IGN);
		if (cgroup_leaf_join_self(fd) < 0 || fork() < 0 || write(ready[1], &pair, 1) != 1)
			_exit(1);
		for (;;)
			pause();
	}
	for (int i = 0; i < 2; i++) {
		char byte;

		assert_int_equal(read(ready[0], &byte, 1), 1);
	}
	assert_int_equal(cgroup_each_process(fd, count, &n), 0);
	assert_int_equal(n, 2);
	assert_int_equal(procfs_cgroup_ends_in(pid, nonce, &inside), 0);
	assert_true(inside);
	assert_int_equal(cgroup_leaf_populated(&d, fd), 1);
	assert_int_equal(cgroup_leaf_remove(&d, nonce), -EBUSY);
	n = 0;
	assert_int_equal(cgroup_each_leaf(&d, count_leaf, &n), 0);
	assert_int_equal(n, 1);
	assert_int_equal(cgroup_leaf_kill(&d, fd), 0);
	assert_int_equal(cgroup_leaf_wait_empty(&d, fd, 5000), 0);
	assert_int_equal(waitpid(pid, NULL, 0), pid);
	assert_int_equal(cgroup_leaf_remove(&d, nonce), 0);
	assert_int_equal(cgroup_leaf_remove(&d, nonce), 0); /* absent is fine */
	close(fd);
	close(ready[0]);
	close(ready[1]);
	cgroup_domain_close(&d);
	cgroup_domain_prune(&d);
	snprintf(path, sizeof(path), "%s%s", d.mount, d.base);
	assert_int_equal(access(path, F_OK), -1);
}

/* Another agent of the store may have pruned the base under our feet. */
static void a_pruned_base_is_made_anew(void **state)
{
	struct cgroup_domain d;
	char nonce[33], path[512];
	struct err err = {0};
	int fd = -1;

	(void)state;
	set_domain(&d);
	if (d.kill == CGROUP_KILL_NONE)
		unit_skip("no cgroup that we may write");
	for (int i = 0; i < 2; i++) {
		assert_int_equal(text_random_hex(nonce, 16), 0);
		assert_int_equal(cgroup_leaf_make(&d, nonce, path, sizeof(path), &fd, &err), 0);
		close_now(&fd);
		assert_int_equal(cgroup_leaf_remove(&d, nonce), 0);
		cgroup_domain_prune(&d);
	}
	cgroup_domain_close(&d);
}

static void without_a_domain(void **state)
{
	struct cgroup_domain d = CGROUP_DOMAIN_INIT;
	int fd = -1, n = 0;

	(void)state;
	assert_int_equal(cgroup_leaf_open(&d, "x", &fd), -ENOENT);
	assert_int_equal(cgroup_leaf_kill(&d, -1), -EOPNOTSUPP);
	assert_int_equal(cgroup_leaf_remove(&d, "x"), 0);
	assert_int_equal(cgroup_each_leaf(&d, count_leaf, &n), 0);
	assert_int_equal(cgroup_leave_self(&d), 0);
	cgroup_domain_prune(&d);
	cgroup_domain_close(&d);
}

static void own_paths(void **state)
{
	char path[PROC_CGROUP_SIZE], small[1];
	bool in = true;

	(void)state;
	if (procfs_cgroup(0, "", path, sizeof(path)) == 0) {
		assert_int_equal(path[0], '/');
		assert_int_equal(procfs_cgroup(0, "", small, sizeof(small)), -ENAMETOOLONG);
	}
	assert_int_equal(procfs_cgroup(0, "no_such_controller", path, sizeof(path)), -ENOENT);
	assert_int_equal(procfs_cgroup_ends_in(getpid(), "no-such-leaf", &in), 0);
	assert_false(in);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(probing_changes_nothing),
		cmocka_unit_test(a_leaf_dies_as_a_whole),
		cmocka_unit_test(a_pruned_base_is_made_anew),
		cmocka_unit_test(without_a_domain),
		cmocka_unit_test(own_paths),
	};

	return cmocka_run_group_tests_name("cgroup", tests, NULL, NULL);
}
