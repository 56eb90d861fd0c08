/* SPDX-License-Identifier: Apache-2.0 */
#include "unit.h"

#include <sys/wait.h>

#include "base/text.h"
#include "state/dir.h"

static int set_up(void **state)
{
	*state = unit_temp_make();
	return 0;
}

static int tear_down(void **state)
{
	unit_temp_remove(*state);
	free(*state);
	return 0;
}

static int try_open(const char *base, const char *name, bool make, struct err *err)
{
	struct state_dir d = STATE_DIR_INIT;
	char path[PATH_MAX];
	int r;

	snprintf(path, sizeof(path), "%s%s", base, name);
	memset(err, 0, sizeof(*err));
	r = state_dir_open(path, make, &d, err);
	if (r == 0) {
		assert_true(d.fd >= 0 && d.leasesfd >= 0 && d.endedfd >= 0 && d.claimsfd >= 0 &&
			d.asidefd >= 0);
		assert_true(text_is_hex(d.store, 32));
		state_dir_close(&d);
		assert_int_equal(d.fd, -1);
	} else {
		assert_string_equal(err->code, "store.failed");
		assert_int_equal(d.fd, -1);
	}
	return r;
}

static void made_once(void **state)
{
	struct state_dir a = STATE_DIR_INIT, b = STATE_DIR_INIT;
	struct err err = {0};
	struct stat st;
	char path[PATH_MAX];

	snprintf(path, sizeof(path), "%s/deep/er", (char *)*state);
	assert_int_equal(state_dir_open(path, false, &a, &err), -ENOENT);
	assert_int_equal(state_dir_open(path, true, &a, &err), 0);
	assert_int_equal(state_dir_open(path, true, &b, &err), 0);
	assert_string_equal(a.store, b.store);
	assert_int_equal(fstat(a.fd, &st), 0);
	assert_int_equal(st.st_mode & 0777, 0700);
	assert_int_equal(fcntl(a.fd, F_GETFD) & FD_CLOEXEC, FD_CLOEXEC);
	state_dir_close(&a);
	state_dir_close(&b);
	for (int i = 2; i > 0; i--) { /* unit_temp_remove() goes two levels deep */
		unit_temp_remove(path);
		*strrchr(path, '/') = '\0';
	}
}

/* Two makers at once end with one store. */
static void made_by_many(void **state)
{
	char path[PATH_MAX], store[33] = "";
	int out[2];

	snprintf(path, sizeof(path), "%s/s", (char *)*state);
	assert_int_equal(pipe(out), 0);
	for (int i = 0; i < 16; i++) {
		pid_t pid = fork();

		if (pid == 0) {
			struct state_dir d = STATE_DIR_INIT;

			if (state_dir_open(path, true, &d, NULL) < 0 ||
				write(out[1], d.store, 32) != 32)
				_exit(1);
			_exit(0);
		}
		assert_true(pid > 0);
	}
	close(out[1]);
	for (int i = 0; i < 16; i++) {
		char theirs[33] = "";
		int status;

		assert_int_equal(read(out[0], theirs, 32), 32);
		if (!store[0])
			memcpy(store, theirs, sizeof(store));
		assert_string_equal(theirs, store);
		assert_true(wait(&status) > 0);
		assert_int_equal(status, 0);
	}
	close(out[0]);
}

static void modes(void **state)
{
	struct err err;
	const char *base = *state;
	char path[PATH_MAX];

	assert_int_equal(try_open(base, "", true, &err), 0);
	assert_int_equal(chmod(base, 0750), 0);
	assert_int_equal(try_open(base, "", true, &err), -EPERM);
	assert_true(err.remedy[0]);
	assert_int_equal(chmod(base, 0701), 0);
	assert_int_equal(try_open(base, "", true, &err), -EPERM);
	/* A parent that others may write: whoever does could put another directory there. */
	assert_int_equal(chmod(base, 0700), 0);
	snprintf(path, sizeof(path), "%s/s", base);
	assert_int_equal(try_open(base, "/s", true, &err), 0);
	assert_int_equal(chmod(base, 0777), 0);
	assert_int_equal(try_open(base, "/s", true, &err), -EPERM);
	assert_non_null(strstr(err.text, "parent"));
	assert_int_equal(chmod(base, 01777), 0); /* sticky: only its owner may rename it */
	assert_int_equal(try_open(base, "/s", true, &err), 0);
	unit_temp_remove(path);
}

static void links(void **state)
{
	struct err err;
	const char *base = *state;
	char link[PATH_MAX], real[PATH_MAX];

	snprintf(real, sizeof(real), "%s/real", base);
	snprintf(link, sizeof(link), "%s/link", base);
	assert_int_equal(try_open(base, "/real", true, &err), 0);
	assert_int_equal(symlink(real, link), 0);
	assert_int_equal(try_open(base, "/link", true, &err), -EPERM);
	assert_non_null(strstr(err.text, "link"));
	unit_temp_remove(real);
}

static void other_owners(void **state)
{
	struct err err;
	const char *base = *state;

	if (geteuid() != 0)
		unit_skip("needs root to give a directory away");
	assert_int_equal(try_open(base, "", true, &err), 0);
	assert_int_equal(chown(base, 65534, 65534), 0);
	assert_int_equal(try_open(base, "", true, &err), -EPERM);
	assert_int_equal(try_open(base, "/s", true, &err), -EPERM); /* as a parent */
	assert_int_equal(chown(base, 0, 0), 0);
}

static void write_store(const char *base, const char *text)
{
	char path[PATH_MAX];
	FILE *f;

	snprintf(path, sizeof(path), "%s/store.json", base);
	f = fopen(path, "w");
	assert_non_null(f);
	fputs(text, f);
	fclose(f);
}

static void store_file(void **state)
{
	static const char *const bad[] = {"", "{}", "{\"format\":1}",
		"{\"format\":1,\"store\":\"x\"}",
		"{\"format\":1,\"store\":\"0123456789ABCDEF0123456789ABCDEF\"}",
		"{\"format\":2,\"store\":\"0123456789abcdef0123456789abcdef\"}",
		"{\"store\":\"0123456789abcdef0123456789abcdef\"}", "[]"};
	struct err err;
	const char *base = *state;

	assert_int_equal(try_open(base, "", true, &err), 0);
	for (size_t i = 0; i < sizeof(bad) / sizeof(*bad); i++) {
		write_store(base, bad[i]);
		/* Never made anew: every mark of the old one would be nobody's. */
		assert_int_equal(try_open(base, "", true, &err), -EPERM);
	}
	write_store(base, "{\"format\":1,\"store\":\"0123456789abcdef0123456789abcdef\"}");
	assert_int_equal(try_open(base, "", true, &err), 0);
}

static void not_a_directory(void **state)
{
	struct err err;

	write_store(*state, "{}");
	assert_true(try_open(*state, "/store.json", true, &err) < 0);
	assert_true(try_open(*state, "/store.json/s", true, &err) < 0);
}

static void defaults(void **state)
{
	char path[PATH_MAX];
	struct err err = {0};

	(void)state;
	setenv("MAYHEM_STATE_DIR", "/named", 1);
	assert_int_equal(state_dir_default(path, sizeof(path), &err), 0);
	assert_string_equal(path, "/named");
	unsetenv("MAYHEM_STATE_DIR");
	assert_int_equal(state_dir_default(path, sizeof(path), &err), 0);
	if (geteuid() == 0)
		assert_string_equal(path, "/var/lib/mayhem");
	setenv("MAYHEM_STATE_DIR", "/named", 1);
	assert_int_equal(state_dir_default(path, 4, &err), -ENAMETOOLONG);
	unsetenv("MAYHEM_STATE_DIR");
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test_setup_teardown(made_once, set_up, tear_down),
		cmocka_unit_test_setup_teardown(made_by_many, set_up, tear_down),
		cmocka_unit_test_setup_teardown(modes, set_up, tear_down),
		cmocka_unit_test_setup_teardown(links, set_up, tear_down),
		cmocka_unit_test_setup_teardown(other_owners, set_up, tear_down),
		cmocka_unit_test_setup_teardown(store_file, set_up, tear_down),
		cmocka_unit_test_setup_teardown(not_a_directory, set_up, tear_down),
		cmocka_unit_test(defaults),
	};

	return cmocka_run_group_tests_name("dir", tests, NULL, NULL);
}
