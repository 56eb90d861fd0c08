/* SPDX-License-Identifier: Apache-2.0 */
/* Files written whole, lines of the log, and the error object: what others rely on blindly. */
#include "unit.h"

#include <poll.h>
#include <signal.h>
#include <sys/wait.h>

#include "base/cleanup.h"
#include "base/clock.h"
#include "base/file.h"
#include "base/hash.h"
#include "base/log.h"
#include "base/text.h"

struct fixture {
	char *path;
	int dirfd;
};

static int set_up(void **state)
{
	static struct fixture f;

	f.path = unit_temp_make();
	f.dirfd = open(f.path, O_RDONLY | O_DIRECTORY);
	*state = &f;
	return f.dirfd < 0;
}

static int tear_down(void **state)
{
	struct fixture *f = *state;

	close(f->dirfd);
	unit_temp_remove(f->path);
	free(f->path);
	return 0;
}

static unsigned entries(const char *path)
{
	DIR *d = opendir(path);
	unsigned n = 0;

	while (readdir(d))
		n++;
	closedir(d);
	return n - 2;
}

static void written_whole(void **state)
{
	struct fixture *f = *state;
	_free_ char *text = NULL;
	struct stat st;
	size_t len;

	assert_int_equal(file_write_at(f->dirfd, "a", "one", 3, 0600), 0);
	assert_int_equal(file_write_at(f->dirfd, "a", "another", 7, 0600), 0);
	assert_int_equal(file_read_at(f->dirfd, "a", 100, &text, &len), 0);
	assert_string_equal(text, "another");
	assert_int_equal(len, 7);
	assert_int_equal(fstatat(f->dirfd, "a", &st, 0), 0);
	assert_int_equal(st.st_mode & 0777, 0600);
	assert_int_equal(entries(f->path), 1); /* no temporary file stays */
}

static void a_write_that_fails_leaves_the_old(void **state)
{
	struct fixture *f = *state;
	_free_ char *text = NULL;
	char name[300];

	assert_int_equal(file_write_at(f->dirfd, "a", "one", 3, 0600), 0);
	assert_int_equal(mkdirat(f->dirfd, "dir", 0700), 0);
	assert_int_equal(file_write_at(f->dirfd, "dir", "x", 1, 0600), -EISDIR);
	memset(name, 'n', sizeof(name) - 1);
	name[sizeof(name) - 1] = '\0';
	assert_int_equal(file_write_at(f->dirfd, name, "x", 1, 0600), -ENAMETOOLONG);
	assert_int_equal(entries(f->path), 2);
	assert_int_equal(file_read_at(f->dirfd, "a", 100, &text, NULL), 0);
	assert_string_equal(text, "one");
}

static void reads_are_bounded(void **state)
{
	struct fixture *f = *state;
	char *text = NULL, buf[8];

	assert_int_equal(file_write_at(f->dirfd, "a", "12345678", 8, 0600), 0);
	assert_int_equal(file_read_at(f->dirfd, "a", 7, &text, NULL), -EFBIG);
	assert_null(text);
	assert_int_equal(file_read_into(f->dirfd, "a", buf, 8), -EFBIG);
	assert_int_equal(file_read_at(f->dirfd, "a", 8, &text, NULL), 0);
	assert_string_equal(text, "12345678");
	free(text);
	assert_int_equal(file_write_at(f->dirfd, "a", "1234567", 7, 0600), 0);
	assert_int_equal(file_read_into(f->dirfd, "a", buf, 8), 7);
	assert_string_equal(buf, "1234567");
	assert_int_equal(file_read_at(f->dirfd, "none", 8, &text, NULL), -ENOENT);
}

/* What is no regular file is refused, and a pipe that nobody writes holds nobody up. */
static void only_regular_files(void **state)
{
	struct fixture *f = *state;
	char *text = NULL;

	assert_int_equal(file_write_at(f->dirfd, "a", "one", 3, 0600), 0);
	assert_int_equal(symlinkat("a", f->dirfd, "link"), 0);
	assert_int_equal(file_read_at(f->dirfd, "link", 100, &text, NULL), -ELOOP);
	assert_int_equal(mkfifoat(f->dirfd, "pipe", 0600), 0);
	alarm(10);
	assert_int_equal(file_read_at(f->dirfd, "pipe", 100, &text, NULL), -EINVAL);
	alarm(0);
	assert_int_equal(file_read_at(f->dirfd, ".", 100, &text, NULL), -EINVAL);
	/* A file of /proc says that it is empty, and is not. */
	assert_int_equal(file_read_at(AT_FDCWD, "/proc/self/stat", 4096, &text, NULL), 0);
	assert_true(strlen(text) > 10);
	free(text);
}

static void locks(void **state)
{
	struct fixture *f = *state;
	_close_ int a = -1, b = -1;

	assert_int_equal(file_write_at(f->dirfd, "a", "", 0, 0600), 0);
	a = openat(f->dirfd, "a", O_RDWR);
	b = openat(f->dirfd, "a", O_RDWR);
	assert_int_equal(file_lock_try(a, 0), 0);
	assert_int_equal(file_lock_try(b, 0), 0);
	assert_int_equal(file_lock_try(b, 1), -EWOULDBLOCK);
	close_now(&a);
	assert_int_equal(file_lock_try(b, 1), 0);
}

static void digests(void **state)
{
	char hex[HASH_HEX_SIZE];

	(void)state;
	hash_hex("", 0, hex);
	assert_string_equal(hex,
		"e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855");
	hash_hex("abc", 3, hex);
	assert_string_equal(hex,
		"ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad");
}

static void times(void **state)
{
	char buf[CLOCK_UTC_SIZE];
	uint64_t now = clock_boottime_ms();

	(void)state;
	assert_string_equal(clock_format_utc(1767225600123, buf), "2026-01-01T00:00:00.123Z");
	assert_string_equal(clock_format_utc(0, buf), "1970-01-01T00:00:00.000Z");
	assert_int_equal(strlen(clock_format_utc(UINT64_MAX, buf)), 24); /* nonsense, but a text */
	assert_int_equal(clock_until_ms(0), 0);
	assert_int_equal(clock_until_ms(now), 0);
	assert_true(clock_until_ms(now + 10000) > 5000);
}

static void errors(void **state)
{
	struct err err = {0};
	char text[1000];

	(void)state;
	assert_int_equal(err_set(&err, "a.b", ENOSPC, "write", "cannot write %s", "x"), -ENOSPC);
	assert_string_equal(err.code, "a.b");
	assert_string_equal(err.stage, "write");
	assert_string_equal(err.text, "cannot write x: No space left on device");
	assert_int_equal(err.errnum, ENOSPC);
	err_remedy(&err, "free %d bytes", 7);
	assert_string_equal(err.remedy, "free 7 bytes");
	/* Without an errno it fails all the same, and the old remedy is not the new one's. */
	assert_int_equal(err_set(&err, "c.d", 0, "check", "no"), -EINVAL);
	assert_string_equal(err.text, "no");
	assert_string_equal(err.remedy, "");
	assert_true(err_is(&err, "c.d"));
	assert_false(err_is(&err, "c"));
	assert_false(err_is(NULL, "c.d"));
	assert_int_equal(err_set(NULL, "c.d", EIO, "x", "y"), -EIO);
	err_remedy(NULL, "x");
	memset(text, 'x', sizeof(text) - 1);
	text[sizeof(text) - 1] = '\0';
	err_set(&err, text, EIO, text, "%s", text);
	assert_int_equal(strlen(err.text), sizeof(err.text) - 1);
	assert_int_equal(strlen(err.code), sizeof(err.code) - 1);
}

static void with_stderr(int fd, void (*fn)(void))
{
	int was = dup(STDERR_FILENO);

	dup2(fd, STDERR_FILENO);
	fn();
	dup2(was, STDERR_FILENO);
	close(was);
}

static void say(void)
{
	log_warn("test", "one\ntwo\r%s", "three");
	log_debug("test", "not said");
}

static void log_lines(void **state)
{
	int p[2];
	char buf[256] = "";

	(void)state;
	assert_int_equal(pipe(p), 0);
	with_stderr(p[1], say);
	assert_true(read(p[0], buf, sizeof(buf) - 1) > 0);
	assert_non_null(strstr(buf, "Z warn test: one two three\n")); /* nobody forges a line */
	assert_null(strstr(buf, "not said"));
	assert_ptr_equal(strchr(buf, '\n'), buf + strlen(buf) - 1);
	close(p[0]);
	close(p[1]);
}

/* A pipe that is full and a reader that is gone cost a line, and no time. */
static void log_waits_for_nobody(void **state)
{
	static char block[4096];
	int p[2];

	(void)state;
	assert_int_equal(pipe(p), 0);
	fcntl(p[1], F_SETFL, O_NONBLOCK);
	while (write(p[1], block, sizeof(block)) > 0)
		;
	fcntl(p[1], F_SETFL, 0);
	alarm(10);
	with_stderr(p[1], say);
	alarm(0);
	close(p[0]);
	signal(SIGPIPE, SIG_IGN);
	errno = 77;
	with_stderr(p[1], say);
	close(p[1]);
}

static void log_levels(void **state)
{
	enum log_level level = LOG_LEVEL_MAX;

	(void)state;
	assert_int_equal(log_level_from_name("debug", &level), 0);
	assert_int_equal(level, LOG_LEVEL_DEBUG);
	assert_int_equal(log_level_from_name("loud", &level), -EINVAL);
	assert_int_equal(level, LOG_LEVEL_DEBUG);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test_setup_teardown(written_whole, set_up, tear_down),
		cmocka_unit_test_setup_teardown(a_write_that_fails_leaves_the_old, set_up,
			tear_down),
		cmocka_unit_test_setup_teardown(reads_are_bounded, set_up, tear_down),
		cmocka_unit_test_setup_teardown(only_regular_files, set_up, tear_down),
		cmocka_unit_test_setup_teardown(locks, set_up, tear_down),
		cmocka_unit_test(digests),
		cmocka_unit_test(times),
		cmocka_unit_test(errors),
		cmocka_unit_test(log_lines),
		cmocka_unit_test(log_waits_for_nobody),
		cmocka_unit_test(log_levels),
	};

	return cmocka_run_group_tests_name("file", tests, NULL, NULL);
}
