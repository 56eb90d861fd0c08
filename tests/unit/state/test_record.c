/* SPDX-License-Identifier: Apache-2.0 */
#include "unit.h"

#include "base/cleanup.h"
#include "base/json.h"
#include "state/record.h"

#define FORMAT "mayhem.test/1"
#define CAPACITY 4096u

struct fixture {
	char *path;
	int dirfd, fd;
	struct record rec;
};

static int set_up(void **state)
{
	static struct fixture f;

	f.path = unit_temp_make();
	f.dirfd = open(f.path, O_RDONLY | O_DIRECTORY);
	f.fd = -1;
	if (record_create(f.dirfd, "r.log", CAPACITY, &f.fd) < 0)
		return -1;
	f.rec = (struct record){.fd = f.fd, .capacity = CAPACITY};
	*state = &f;
	return 0;
}

static int tear_down(void **state)
{
	struct fixture *f = *state;

	close(f->fd);
	close(f->dirfd);
	unit_temp_remove(f->path);
	free(f->path);
	return 0;
}

static int append(struct fixture *f, const char *text, size_t reserve)
{
	_json_ json_t *body = json_loads(text, 0, NULL);
	struct err err = {0};
	int r;

	assert_non_null(body);
	r = record_append(&f->rec, FORMAT, body, reserve, &err);
	assert_int_equal(r < 0, err.code[0] != '\0');
	return r;
}

static int read_back(struct fixture *f, struct record *rec, char **ret_body)
{
	_json_ json_t *body = NULL;
	struct err err = {0};
	int r = record_read(f->fd, FORMAT, rec, &body, &err);

	if (ret_body)
		*ret_body = r == 0 ? json_canonical(body, NULL) : NULL;
	return r;
}

static void append_and_read(void **state)
{
	struct fixture *f = *state;
	_free_ char *body = NULL;
	struct record rec;
	struct stat st;

	assert_int_equal(read_back(f, &rec, NULL), -ENODATA);
	assert_int_equal(rec.end, 0);
	assert_int_equal(append(f, "{\"a\":1,\"b\":{\"x\":1}}", 0), 0);
	assert_int_equal(append(f, "{\"b\":{\"y\":2},\"c\":null}", 0), 0);
	assert_int_equal(read_back(f, &rec, &body), 0);
	/* Top-level keys of later lines replace, nothing below is merged. */
	assert_string_equal(body, "{\"a\":1,\"b\":{\"y\":2},\"c\":null}");
	assert_int_equal(rec.seq, 2);
	assert_int_equal(rec.end, f->rec.end);
	assert_int_equal(rec.capacity, CAPACITY);
	assert_false(rec.tail_dirty);
	/* A line changes no metadata: the file is as long as it was made. */
	assert_int_equal(fstat(f->fd, &st), 0);
	assert_int_equal(st.st_size, CAPACITY);
	assert_int_equal(st.st_mode & 0777, 0600);
}

static void names_are_claimed_once(void **state)
{
	struct fixture *f = *state;
	int fd = -1;

	assert_int_equal(record_create(f->dirfd, "r.log", CAPACITY, &fd), -EEXIST);
	assert_int_equal(fd, -1);
	assert_int_equal(symlinkat("elsewhere", f->dirfd, "link.log"), 0);
	assert_int_equal(record_create(f->dirfd, "link.log", CAPACITY, &fd), -EEXIST);
}

/* The last line written up to any byte, the rest zero or the crash's garbage: the line before counts. */
static void torn_at_every_byte(void **state)
{
	struct fixture *f = *state;
	char data[CAPACITY];
	size_t first, second;
	_free_ char *before = NULL;

	assert_int_equal(append(f, "{\"state\":\"active\"}", 0), 0);
	first = f->rec.end;
	assert_int_equal(append(f, "{\"state\":\"releasing\",\"n\":[1,2,3]}", 0), 0);
	second = f->rec.end;
	assert_int_equal(pread(f->fd, data, CAPACITY, 0), CAPACITY);
	for (size_t cut = first; cut < second; cut++) {
		char torn[CAPACITY];
		_json_ json_t *body = NULL;
		struct record rec;
		struct err err = {0};

		memcpy(torn, data, CAPACITY);
		memset(torn + cut, 0, CAPACITY - cut);
		assert_int_equal(record_parse(torn, CAPACITY, FORMAT, &rec, &body, &err), 0);
		assert_int_equal(rec.seq, 1);
		assert_int_equal(rec.end, first);
		assert_int_equal(rec.tail_dirty, cut > first);
		assert_string_equal(json_text_or(body, "state", ""), "active");
	}
	/* A hole in the middle: a page that never reached the disk, with the LF there. */
	for (size_t at = first; at + 8 < second; at++) {
		char torn[CAPACITY];
		_json_ json_t *body = NULL;
		struct record rec;

		memcpy(torn, data, CAPACITY);
		memset(torn + at, 0, 8);
		if (record_parse(torn, CAPACITY, FORMAT, &rec, &body, NULL) == 0)
			assert_string_equal(json_text_or(body, "state", ""), "active");
	}
}

/* Any single byte of any line changed: refused, or as before the last line; never a third thing. */
static void damaged_at_every_byte(void **state)
{
	struct fixture *f = *state;
	char data[CAPACITY];
	size_t first;

	assert_int_equal(append(f, "{\"state\":\"active\"}", 0), 0);
	first = f->rec.end;
	assert_int_equal(append(f, "{\"state\":\"releasing\"}", 0), 0);
	assert_int_equal(pread(f->fd, data, CAPACITY, 0), CAPACITY);
	for (size_t at = 0; at < f->rec.end; at++) {
		_json_ json_t *body = NULL;
		struct record rec;
		char was = data[at];
		int r;

		data[at] = (char)(was ^ 1);
		r = record_parse(data, CAPACITY, FORMAT, &rec, &body, NULL);
		/* Only the last LF, lost, looks like a torn write. */
		if (r == 0) {
			assert_int_equal(at, f->rec.end - 1);
			assert_int_equal(rec.end, first);
		} else {
			assert_true(r == -EBADMSG || r == -EPROTONOSUPPORT);
			assert_null(body);
		}
		data[at] = was;
	}
}

static void sequence_and_format(void **state)
{
	struct fixture *f = *state;
	char data[CAPACITY];
	size_t first;
	char *slash;

	assert_int_equal(append(f, "{\"a\":1}", 0), 0);
	first = f->rec.end;
	assert_int_equal(append(f, "{\"a\":2}", 0), 0);
	assert_int_equal(pread(f->fd, data, CAPACITY, 0), CAPACITY);
	/* The second line alone: its sequence number says that one is missing. */
	assert_int_equal(record_parse(data + first, CAPACITY - first, FORMAT, NULL, NULL, NULL),
		-EBADMSG);
	assert_int_equal(record_parse(data, CAPACITY, "mayhem.other/1", NULL, NULL, NULL),
		-EBADMSG);
	slash = strchr(data, '/');
	slash[1] = '2';
	assert_int_equal(record_parse(data, CAPACITY, FORMAT, NULL, NULL, NULL), -EPROTONOSUPPORT);
	/* Ours is /3 then, and this one is older and not known: damaged, not newer. */
	assert_int_equal(record_parse(data, CAPACITY, "mayhem.test/3", NULL, NULL, NULL), -EBADMSG);
}

/* A torn tail is cleared before the next line, so that nothing of it is ever read. */
static void a_dirty_tail_is_overwritten(void **state)
{
	struct fixture *f = *state;
	_free_ char *body = NULL;
	struct record rec;
	char rest[CAPACITY];

	assert_int_equal(append(f, "{\"a\":1}", 0), 0);
	memset(rest, 'x', sizeof(rest));
	assert_int_equal(pwrite(f->fd, rest, 1000, (off_t)f->rec.end + 300), 1000);
	assert_int_equal(read_back(f, &rec, NULL), 0);
	assert_true(rec.tail_dirty);
	f->rec = rec;
	assert_int_equal(append(f, "{\"a\":2}", 0), 0);
	assert_int_equal(read_back(f, &rec, &body), 0);
	assert_string_equal(body, "{\"a\":2}");
	assert_false(rec.tail_dirty);
}

static void full(void **state)
{
	struct fixture *f = *state;
	_json_ json_t *body = json_loads("{\"state\":\"active\"}", 0, NULL);
	struct record rec;
	unsigned lines = 0;
	int r;

	while ((r = append(f, "{\"state\":\"active\"}", 1000)) == 0)
		lines++;
	assert_int_equal(r, -EFBIG);
	assert_true(lines > 5);
	assert_true(f->rec.end + 1000 <= CAPACITY);
	/* The reserve is for the end. */
	assert_true(f->rec.end + record_line_size(FORMAT, body) + 1000 > CAPACITY);
	assert_int_equal(append(f, "{\"state\":\"released\"}", 0), 0);
	while (append(f, "{\"state\":\"active\"}", 0) == 0)
		lines++;
	assert_int_equal(read_back(f, &rec, NULL), 0);
	assert_int_equal(rec.seq, lines + 1);
	assert_true(rec.end <= CAPACITY);
}

static void a_failed_write_is_not_a_line(void **state)
{
	struct fixture *f = *state;
	struct record rec;
	_free_ char *body = NULL;
	int good = f->rec.fd, ro = openat(f->dirfd, "r.log", O_RDONLY);

	assert_int_equal(append(f, "{\"a\":1}", 0), 0);
	f->rec.fd = ro;
	assert_int_equal(append(f, "{\"a\":2}", 0), -EBADF);
	assert_true(f->rec.tail_dirty);
	assert_int_equal(f->rec.seq, 1);
	f->rec.fd = good;
	assert_int_equal(append(f, "{\"a\":3}", 0), 0);
	assert_int_equal(read_back(f, &rec, &body), 0);
	assert_string_equal(body, "{\"a\":3}");
	assert_int_equal(rec.seq, 2);
	close(ro);
}

static void not_a_record(void **state)
{
	struct fixture *f = *state;
	struct err err = {0};
	int null = open("/dev/null", O_RDWR);

	assert_int_equal(record_read(null, FORMAT, NULL, NULL, &err), -EBADMSG);
	close(null);
	assert_int_equal(ftruncate(f->fd, RECORD_CAPACITY_MAX + 1), 0);
	assert_int_equal(record_read(f->fd, FORMAT, NULL, NULL, &err), -EBADMSG);
	assert_int_equal(ftruncate(f->fd, 0), 0);
	assert_int_equal(record_read(f->fd, FORMAT, NULL, NULL, &err), -ENODATA);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test_setup_teardown(append_and_read, set_up, tear_down),
		cmocka_unit_test_setup_teardown(names_are_claimed_once, set_up, tear_down),
		cmocka_unit_test_setup_teardown(torn_at_every_byte, set_up, tear_down),
		cmocka_unit_test_setup_teardown(damaged_at_every_byte, set_up, tear_down),
		cmocka_unit_test_setup_teardown(sequence_and_format, set_up, tear_down),
		cmocka_unit_test_setup_teardown(a_dirty_tail_is_overwritten, set_up, tear_down),
		cmocka_unit_test_setup_teardown(full, set_up, tear_down),
		cmocka_unit_test_setup_teardown(a_failed_write_is_not_a_line, set_up, tear_down),
		cmocka_unit_test_setup_teardown(not_a_record, set_up, tear_down),
	};

	return cmocka_run_group_tests_name("record", tests, NULL, NULL);
}
