/* SPDX-License-Identifier: Apache-2.0 */
#include "unit.h"

#include <signal.h>
#include <sys/prctl.h>
#include <sys/wait.h>

#include "os/procfs.h"

#define TAIL                                                                                       \
	"S 1 17 18 0 -1 4194304 1 2 3 4 5 6 7 8 20 0 3 0 998877 1000 2 18446744073709551615 1 2"

static int parse(const char *text, struct proc_stat *ret)
{
	return procfs_parse_stat(text, strlen(text), ret);
}

static void stat_fields(void **state)
{
	struct proc_stat st;

	(void)state;
	assert_int_equal(parse("4711 (redis-server) " TAIL "\n", &st), 0);
	assert_int_equal(st.pid, 4711);
	assert_string_equal(st.comm, "redis-server");
	assert_int_equal(st.state, 'S');
	assert_int_equal(st.ppid, 1);
	assert_int_equal(st.pgrp, 17);
	assert_int_equal(st.session, 18);
	assert_int_equal(st.tpgid, -1);
	assert_int_equal(st.flags, 4194304);
	assert_int_equal(st.num_threads, 3);
	assert_int_equal(st.start_ticks, 998877);
}

static void stat_names(void **state)
{
	static const char *const names[] = {"a b", "(a)", ")", "a) S 1", ") R 9 (", "", "\n",
		"a\nb", "x) T 1 1 1 1 1 1 1 1 1 1 1 1 1 1 1 1 1 1 5 (y"};
	char text[512];

	(void)state;
	for (size_t i = 0; i < sizeof(names) / sizeof(*names); i++) {
		struct proc_stat st = {0};

		snprintf(text, sizeof(text), "17 (%s) " TAIL "\n", names[i]);
		assert_int_equal(parse(text, &st), 0);
		assert_string_equal(st.comm, names[i]);
		assert_int_equal(st.state, 'S');
		assert_int_equal(st.start_ticks, 998877);
	}
}

static void stat_refused(void **state)
{
	static const char *const bad[] = {
		"",
		"17",
		"17 (x)",
		"17 (x) ",
		"17 (x) S",
		"17 (x) S\n",
		"17 x " TAIL,
		"17 )x( " TAIL,
		"(x) " TAIL,
		"17(x) " TAIL,
		"-17 (x) " TAIL,
		"x7 (x) " TAIL,
		"99999999999 (x) " TAIL,
		"17 (x)" TAIL,
		"17 (x)  " TAIL,
		"17 (x) SS 1 17 18 0 -1 4194304 1 2 3 4 5 6 7 8 20 0 3 0 998877",
		"17 (x) 5 1 17 18 0 -1 4194304 1 2 3 4 5 6 7 8 20 0 3 0 998877",
		"17 (x) S 2147483648 17 18 0 -1 4194304 1 2 3 4 5 6 7 8 20 0 3 0 998877",
		"17 (x) S 1 17 18 0 -1 4294967296 1 2 3 4 5 6 7 8 20 0 3 0 998877",
		"17 (x) S 1 17 18 0 -1 -1 1 2 3 4 5 6 7 8 20 0 3 0 998877",
		"17 (x) S 1 17 18 0 -1 4194304 1 2 3 4 5 6 7 8 20 0 3 0 18446744073709551616",
		"17 (x) S 1 17 18 0 -1 4194304 1 2 3 4 5 6 7 8 20 0 3 0 -5",
		"17 (x) S 1 17 18 0 -1 4194304 1 2 3 4 5 6 7 8 20 0 3 0 99x",
		"17 (x) S 1 17 18 0 -1 4194304 1 2 3 4 5 6 7 8 20 0 3 0",
		"17 (x) S 1 17 18 0 -1 4194304 1 2 3 4 5 6 7 8 20 0 3 0 ",
		"17 (x) S 1 17  18 0 -1 4194304 1 2 3 4 5 6 7 8 20 0 3 0 998877",
		"17 (aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa) " TAIL,
	};
	struct proc_stat st = {.pid = -5};

	(void)state;
	for (size_t i = 0; i < sizeof(bad) / sizeof(*bad); i++) {
		if (parse(bad[i], &st) != -EBADMSG)
			fail_msg("took `%s`", bad[i]);
		assert_int_equal(st.pid, -5); /* untouched */
	}
	assert_int_equal(procfs_parse_stat("17 (a\0b) " TAIL, sizeof("17 (a\0b) " TAIL) - 1, &st),
		-EBADMSG);
}

/* Every prefix of a good line but those that only lack fields after the 22nd. */
static void stat_cut(void **state)
{
	static const char text[] = "17 (x) " TAIL;
	size_t enough = (size_t)(strstr(text, "998877") - text) + 1;

	(void)state;
	for (size_t len = 0; len < sizeof(text) - 1; len++) {
		char *cut = malloc(len + 1); /* exact, for the sanitizer */
		struct proc_stat st;

		memcpy(cut, text, len);
		cut = realloc(cut, len ? len : 1);
		assert_int_equal(procfs_parse_stat(cut, len, &st), len < enough ? -EBADMSG : 0);
		free(cut);
	}
}

#define STATUS                                                                                     \
	"Name:\tx\nTracerPid:\t42\nUid:\t1\t1000\t2\t3\nNSpid:\t4711\t12\t1\n"                     \
	"SigBlk:\t0000000000000001\nSigIgn:\t0000000000004000\nSigCgt:\tffffffffffffffff\n"

static void status_fields(void **state)
{
	struct proc_status st;

	(void)state;
	assert_int_equal(procfs_parse_status(STATUS, &st), 0);
	assert_int_equal(st.tracer_pid, 42);
	assert_int_equal(st.uid, 1000);
	assert_int_equal(st.ns_levels, 3);
	assert_int_equal(st.ns_pid, 1);
	assert_int_equal(st.sig_blocked, 1);
	assert_int_equal(st.sig_ignored, 0x4000);
	assert_true(st.sig_caught == UINT64_MAX);
}

/* A name may contain a line break only as `\n`, but may look like a key all the same. */
static void status_looks_at_line_starts(void **state)
{
	struct proc_status st;

	(void)state;
	assert_int_equal(procfs_parse_status("Name:\tUid:\t0\t0\t0\t0\n" STATUS, &st), 0);
	assert_int_equal(st.uid, 1000);
	assert_int_equal(procfs_parse_status("UidX:\t0\t0\nXUid:\t0\t0\n" STATUS, &st), 0);
	assert_int_equal(st.uid, 1000);
}

static void status_refused(void **state)
{
	static const char *const keys[] = {"TracerPid", "Uid", "NSpid", "SigBlk", "SigIgn",
		"SigCgt"};
	static const char *const bad[] = {
		"TracerPid:\t-1\nUid:\t1\t2\nNSpid:\t1\nSigBlk:\t0\nSigIgn:\t0\nSigCgt:\t0\n",
		"TracerPid:\t0\nUid:\t1\nNSpid:\t1\nSigBlk:\t0\nSigIgn:\t0\nSigCgt:\t0\n",
		"TracerPid:\t0\nUid:\t1\t18446744073709551616\nNSpid:\t1\nSigBlk:\t0\nSigIgn:\t0\nSigCgt:\t0\n",
		"TracerPid:\t0\nUid:\t1\t2\nNSpid:\t\nSigBlk:\t0\nSigIgn:\t0\nSigCgt:\t0\n",
		"TracerPid:\t0\nUid:\t1\t2\nNSpid:\t1\nSigBlk:\tzz\nSigIgn:\t0\nSigCgt:\t0\n",
		"TracerPid:\t0\nUid:\t1\t2\nNSpid:\t1\nSigBlk:\t00000000000000000\nSigIgn:\t0\nSigCgt:\t0\n",
	};
	struct proc_status st = {.uid = 77};

	(void)state;
	for (size_t i = 0; i < sizeof(keys) / sizeof(*keys); i++) {
		char text[sizeof(STATUS)];

		/* Without that line, the others as they are. */
		memcpy(text, STATUS, sizeof(STATUS));
		strstr(text, keys[i])[0] = '?';
		assert_int_equal(procfs_parse_status(text, &st), -EBADMSG);
	}
	for (size_t i = 0; i < sizeof(bad) / sizeof(*bad); i++)
		if (procfs_parse_status(bad[i], &st) != -EBADMSG)
			fail_msg("took `%s`", bad[i]);
	assert_int_equal(st.uid, 77);
}

static void real_processes(void **state)
{
	struct proc_stat st;
	struct proc_status status;
	int ready[2], code;
	char byte;
	pid_t pid;

	(void)state;
	assert_int_equal(pipe(ready), 0);
	pid = fork();
	if (pid == 0) {
		prctl(PR_SET_NAME, "a) S 1 (b");
		signal(SIGTERM, SIG_IGN);
		if (write(ready[1], "r", 1) < 0)
			_exit(1);
		for (;;)
			pause();
	}
	assert_int_equal(read(ready[0], &byte, 1), 1);
	assert_int_equal(procfs_read_stat(pid, &st), 0);
	assert_int_equal(st.pid, pid);
	assert_string_equal(st.comm, "a) S 1 (b");
	assert_int_equal(st.ppid, getpid());
	assert_true(st.start_ticks > 0);
	assert_int_equal(procfs_read_thread_stat(pid, pid, &st), 0);
	assert_int_equal(procfs_read_status(pid, &status), 0);
	assert_int_equal(status.uid, geteuid());
	assert_true(status.sig_ignored & 1u << (SIGTERM - 1));
	kill(pid, SIGKILL);
	assert_int_equal(waitpid(pid, &code, 0), pid);
	assert_int_equal(procfs_read_stat(pid, &st), -ESRCH);
	assert_int_equal(procfs_read_status(pid, &status), -ESRCH);
	assert_int_equal(procfs_read_stat(0, &st), -EINVAL);
	assert_int_equal(procfs_read_stat(-1, &st), -EINVAL);
	close(ready[0]);
	close(ready[1]);
}

static int find_self(pid_t pid, void *arg)
{
	int *seen = arg;

	*seen += pid == getpid();
	return 0;
}

static int stop_at_once(pid_t pid, void *arg)
{
	(void)pid;
	++*(int *)arg;
	return 5;
}

static void each_process(void **state)
{
	int seen = 0;

	(void)state;
	assert_int_equal(procfs_each_process(find_self, &seen), 0);
	assert_int_equal(seen, 1);
	seen = 0;
	assert_int_equal(procfs_each_thread(getpid(), find_self, &seen), 0);
	assert_int_equal(seen, 1);
	seen = 0;
	assert_int_equal(procfs_each_process(stop_at_once, &seen), 5);
	assert_int_equal(seen, 1);
}

static void boot_id(void **state)
{
	char a[PROC_BOOT_ID_SIZE], b[PROC_BOOT_ID_SIZE];

	(void)state;
	assert_int_equal(procfs_boot_id(a), 0);
	assert_int_equal(procfs_boot_id(b), 0);
	assert_int_equal(strlen(a), 36);
	assert_string_equal(a, b);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(stat_fields),
		cmocka_unit_test(stat_names),
		cmocka_unit_test(stat_refused),
		cmocka_unit_test(stat_cut),
		cmocka_unit_test(status_fields),
		cmocka_unit_test(status_looks_at_line_starts),
		cmocka_unit_test(status_refused),
		cmocka_unit_test(real_processes),
		cmocka_unit_test(each_process),
		cmocka_unit_test(boot_id),
	};

	return cmocka_run_group_tests_name("procfs", tests, NULL, NULL);
}
