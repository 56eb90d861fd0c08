/* SPDX-License-Identifier: Apache-2.0 */
#include "unit.h"

#include <sys/socket.h>

#include "base/cleanup.h"
#include "base/clock.h"
#include "launch/link.h"

static int ends[2];

static int set_up(void **state)
{
	(void)state;
	return socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, ends);
}

static int tear_down(void **state)
{
	(void)state;
	close_now(&ends[0]);
	close_now(&ends[1]);
	return 0;
}

static int receive(uint8_t *type, char **data, size_t *len)
{
	*data = NULL;
	return link_receive(ends[1], type, data, len);
}

static unsigned open_files(void)
{
	DIR *d = opendir("/proc/self/fd");
	unsigned n = 0;

	while (readdir(d))
		n++;
	closedir(d);
	return n;
}

static void sizes(void **state)
{
	static const size_t all[] = {0, 1, 7, 8, 9, 4096, LINK_INLINE_MAX - 1, LINK_INLINE_MAX,
		LINK_INLINE_MAX + 1, 1 << 20, LINK_PAYLOAD_MAX};
	char *block = malloc(LINK_PAYLOAD_MAX + 1);
	unsigned files;

	(void)state;
	assert_non_null(block);
	for (size_t i = 0; i <= LINK_PAYLOAD_MAX; i++)
		block[i] = (char)(i * 31 >> 3);
	files = open_files();
	for (size_t i = 0; i < sizeof(all) / sizeof(*all); i++) {
		_free_ char *data = NULL;
		uint8_t type = 0;
		size_t len = 0;

		assert_int_equal(link_send(ends[0], (uint8_t)i, block, all[i]), 0);
		assert_int_equal(receive(&type, &data, &len), 1);
		assert_int_equal(type, i);
		assert_int_equal(len, all[i]);
		assert_memory_equal(data, block, len);
		assert_int_equal(data[len], '\0');
	}
	assert_int_equal(link_send(ends[0], 1, block, LINK_PAYLOAD_MAX + 1), -EMSGSIZE);
	assert_int_equal(open_files(), files);
	free(block);
}

static void order_and_end(void **state)
{
	(void)state;
	for (uint8_t i = 1; i <= 5; i++)
		assert_int_equal(link_send(ends[0], i, &i, 1), 0);
	close_now(&ends[0]);
	for (uint8_t i = 1; i <= 6; i++) {
		_free_ char *data = NULL;
		uint8_t type = 0;
		size_t len = 0;
		int r = receive(&type, &data, &len);

		assert_int_equal(r, i < 6); /* then the end of file */
		if (r == 1)
			assert_int_equal(type, i);
	}
}

static void nothing_yet(void **state)
{
	_free_ char *data = NULL;
	uint8_t type;
	size_t len;

	(void)state;
	assert_int_equal(receive(&type, &data, &len), -EAGAIN);
}

/* A reader that is stopped keeps nobody: what does not fit is refused at once. */
static void a_stopped_reader(void **state)
{
	static char block[LINK_INLINE_MAX];
	uint64_t start = clock_boottime_ms();
	unsigned sent = 0, got = 0;
	int r;

	(void)state;
	while ((r = link_send(ends[0], 1, block, sizeof(block))) == 0 && sent < 10000)
		sent++;
	assert_int_equal(r, -EAGAIN);
	assert_true(sent > 0);
	assert_true(clock_boottime_ms() - start < 5000);
	for (;;) {
		_free_ char *data = NULL;
		uint8_t type;
		size_t len;

		if (receive(&type, &data, &len) != 1)
			break;
		got++;
	}
	assert_int_equal(got, sent);
	assert_int_equal(link_send(ends[0], 1, block, sizeof(block)), 0);
}

static void a_reader_that_is_gone(void **state)
{
	(void)state;
	close_now(&ends[1]);
	assert_int_equal(link_send(ends[0], 1, "x", 1), -EPIPE); /* and no SIGPIPE */
}

/* What is no packet of ours is refused, and no descriptor that came with it stays. */
static void nonsense(void **state)
{
	static const uint8_t big[8] = {1, 0, 0, 0, 0xff, 0xff, 0xff, 0x7f};
	static const uint8_t longer[8] = {1, 0, 0, 0, 9, 0, 0, 0};
	static const uint8_t no_file[8] = {1, 1, 0, 0, 9, 0, 0, 0};
	const struct {
		const void *data;
		size_t len;
	} all[] = {{"x", 1}, {big, 8}, {longer, 8}, {no_file, 8}};
	unsigned files = open_files();

	(void)state;
	for (size_t i = 0; i < sizeof(all) / sizeof(*all); i++) {
		_free_ char *data = NULL;
		uint8_t type = 77;
		size_t len;

		assert_int_equal(send(ends[0], all[i].data, all[i].len, 0), all[i].len);
		assert_int_equal(receive(&type, &data, &len), -EBADMSG);
		assert_null(data);
		tear_down(NULL); /* whoever sees one gives the link up */
		assert_int_equal(set_up(NULL), 0);
	}
	assert_int_equal(open_files(), files);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test_setup_teardown(sizes, set_up, tear_down),
		cmocka_unit_test_setup_teardown(order_and_end, set_up, tear_down),
		cmocka_unit_test_setup_teardown(nothing_yet, set_up, tear_down),
		cmocka_unit_test_setup_teardown(a_stopped_reader, set_up, tear_down),
		cmocka_unit_test_setup_teardown(a_reader_that_is_gone, set_up, tear_down),
		cmocka_unit_test_setup_teardown(nonsense, set_up, tear_down),
	};

	return cmocka_run_group_tests_name("link", tests, NULL, NULL);
}
