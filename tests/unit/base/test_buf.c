/* SPDX-License-Identifier: Apache-2.0 */
#include "unit.h"

#include <sys/wait.h>

#include "base/buf.h"

static void grows_to_its_limit(void **state)
{
	struct buf b;
	char block[1000];

	(void)state;
	buf_init(&b, 200000);
	assert_null(b.data); /* nothing is mapped before the first byte */
	memset(block, 'x', sizeof(block));
	for (int i = 0; i < 200; i++)
		assert_int_equal(buf_append(&b, block, sizeof(block)), 0);
	assert_int_equal(b.len, 200000);
	assert_int_equal(buf_append(&b, "y", 1), -ENOBUFS);
	assert_null(buf_reserve(&b, 1));
	assert_int_equal(b.len, 200000);
	buf_consume(&b, 1);
	assert_int_equal(buf_append(&b, "y", 1), 0);
	assert_int_equal(buf_peek(&b)[199999], 'y');
	buf_free(&b);
	assert_null(b.data);
	assert_int_equal(b.max, 200000);
}

static void keeps_order(void **state)
{
	struct buf b;
	unsigned in = 0, out = 0;

	(void)state;
	buf_init(&b, 70000);
	for (unsigned round = 0; round < 20000; round++) {
		unsigned n = round % 97;

		for (unsigned i = 0; i < n; i++) {
			unsigned char c = (unsigned char)(in % 251);

			if (buf_append(&b, &c, 1) == 0)
				in++;
		}
		n = (round * 7) % 95;
		for (unsigned i = 0; i < n && b.len; i++) {
			assert_int_equal((unsigned char)buf_peek(&b)[0], out % 251);
			buf_consume(&b, 1);
			out++;
		}
	}
	assert_int_equal(b.len, in - out);
	assert_true(out > 100000);
	buf_free(&b);
}

static void all_or_nothing(void **state)
{
	struct buf b;

	(void)state;
	buf_init(&b, 10);
	assert_int_equal(buf_append(&b, "12345678", 8), 0);
	assert_int_equal(buf_append(&b, "abc", 3), -ENOBUFS);
	assert_int_equal(b.len, 8);
	assert_memory_equal(buf_peek(&b), "12345678", 8);
	assert_int_equal(buf_append(&b, NULL, 0), 0);
	buf_free(&b);
}

/* What a peer sent does not reach a child: there the mapping is not. */
static void is_not_inherited(void **state)
{
	struct buf b;
	int status;
	pid_t pid;

	(void)state;
	buf_init(&b, 4096);
	assert_int_equal(buf_append(&b, "secret", 6), 0);
	pid = fork();
	if (pid == 0) {
		int fds[2];

		/* The kernel answers for the address instead of us: -EFAULT, no signal. */
		if (pipe(fds) < 0)
			_exit(2);
		_exit(write(fds[1], buf_peek(&b), 6) < 0 && errno == EFAULT ? 0 : 1);
	}
	assert_true(pid > 0);
	assert_int_equal(waitpid(pid, &status, 0), pid);
	assert_true(WIFEXITED(status));
	assert_int_equal(WEXITSTATUS(status), 0);
	buf_free(&b);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(grows_to_its_limit),
		cmocka_unit_test(keeps_order),
		cmocka_unit_test(all_or_nothing),
		cmocka_unit_test(is_not_inherited),
	};

	return cmocka_run_group_tests_name("buf", tests, NULL, NULL);
}
