/* SPDX-License-Identifier: Apache-2.0 */
#include "state/record.h"

#include <fcntl.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/uio.h>

#include "base/cleanup.h"
#include "base/hash.h"
#include "base/json.h"
#include "base/text.h"

#define HEAD_MAX 192 /* everything before the body */

static int write_zeros(int fd, size_t from, size_t to)
{
	static const char zeros[4096];

	while (from < to) {
		size_t chunk = to - from < sizeof(zeros) ? to - from : sizeof(zeros);
		ssize_t n = pwrite(fd, zeros, chunk, (off_t)from);

		if (n < 0 && errno == EINTR)
			continue;
		if (n <= 0)
			return n < 0 ? -errno : -EIO;
		from += (size_t)n;
	}
	return 0;
}

int record_create(int dirfd, const char *name, size_t capacity, int *ret_fd)
{
	_close_ int fd =
		openat(dirfd, name, O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC | O_NOFOLLOW, 0600);
	int r;

	if (fd < 0)
		return -errno;
	/* Written, not only allocated: a later line then changes no metadata at all. */
	r = write_zeros(fd, 0, capacity);
	if (r == 0 && fsync(fd) < 0)
		r = -errno;
	if (r < 0) {
		unlinkat(dirfd, name, 0);
		return r;
	}
	*ret_fd = take_fd(&fd);
	return 0;
}

/* "mayhem.lease/2" read by a program that writes "/1". */
static bool is_newer(const char *line, size_t len, const char *format)
{
	static const char open[] = "{\"format\":\"";
	size_t name_len = (size_t)(strrchr(format, '/') - format) + 1;
	const char *p = line + sizeof(open) - 1;
	uint64_t ours, theirs;
	size_t digits;

	if (len < sizeof(open) - 1 + name_len || memcmp(line, open, sizeof(open) - 1) != 0)
		return false;
	if (memcmp(p, format, name_len) != 0 || text_parse_u64(format + name_len, &ours) < 0)
		return false;
	p += name_len;
	/* Not strspn: the line is part of a file, and nothing ends it. */
	for (digits = 0; p + digits < line + len && p[digits] >= '0' && p[digits] <= '9';)
		digits++;
	return text_parse_u64_n(p, digits, &theirs) == 0 && theirs > ours;
}

/* Checks head, sequence and checksum of one line (without its LF) and parses its body. */
static int parse_line(const char *line, size_t len, const char *format, uint64_t seq, json_t **ret)
{
	char head[HEAD_MAX], digest[HASH_HEX_SIZE];
	_json_ json_t *parsed = NULL;
	struct err why = {0};
	int n = snprintf(head, sizeof(head), "{\"format\":\"%s\",\"seq\":%llu,\"sha256\":\"",
		format, (unsigned long long)seq);
	static const char middle[] = "\",\"body\":";
	const char *body;
	size_t head_len = (size_t)n, body_len;

	if (len < head_len + 64 + sizeof(middle) - 1 + 3 || memcmp(line, head, head_len) != 0 ||
		memcmp(line + head_len + 64, middle, sizeof(middle) - 1) != 0 ||
		line[len - 1] != '}')
		return -EBADMSG;
	body = line + head_len + 64 + sizeof(middle) - 1;
	body_len = len - 1 - (size_t)(body - line);
	hash_hex(body, body_len, digest);
	if (memcmp(digest, line + head_len, 64) != 0)
		return -EBADMSG;
	if (json_parse(body, body_len, &parsed, &why) < 0)
		return why.errnum == ENOMEM ? -ENOMEM : -EBADMSG;
	if (!json_is_object(parsed))
		return -EBADMSG;
	*ret = take_ptr(parsed);
	return 0;
}

static bool all_zero(const char *p, size_t len)
{
	return len == 0 || (p[0] == '\0' && memcmp(p, p + 1, len - 1) == 0);
}

int record_parse(const char *data, size_t len, const char *format, struct record *ret_rec,
	json_t **ret_body, struct err *err)
{
	struct record rec = {.fd = -1, .capacity = len};
	_json_ json_t *merged = NULL;
	int r;

	while (rec.end < len && data[rec.end] != '\0') {
		const char *line = data + rec.end, *nl = memchr(line, '\n', len - rec.end);
		_json_ json_t *body = NULL;

		/* No LF, or a page of it missing: the write that a crash cut off. */
		if (!nl || memchr(line, '\0', (size_t)(nl - line)))
			break;
		if (is_newer(line, (size_t)(nl - line), format))
			return err_set(err, "store.failed", EPROTONOSUPPORT, "read",
				"written by a newer version of mayhem");
		r = parse_line(line, (size_t)(nl - line), format, rec.seq + 1, &body);
		if (r == -ENOMEM)
			return err_set(err, "store.failed", ENOMEM, "read", "no memory");
		if (r < 0)
			return err_set(err, "store.failed", EBADMSG, "read", "line %llu is damaged",
				(unsigned long long)rec.seq + 1);
		if (!merged)
			merged = json_incref(body);
		else if (json_object_update(merged, body) < 0)
			return err_set(err, "store.failed", ENOMEM, "read", "no memory");
		rec.seq++;
		rec.end = (size_t)(nl - data) + 1;
	}
	rec.tail_dirty = !all_zero(data + rec.end, len - rec.end);
	/* Text behind the torn line is not a torn write: somebody wrote there. */
	for (size_t i = rec.end; rec.tail_dirty && i + 10 < len; i++)
		if (data[i] == '\n' && memcmp(data + i + 1, "{\"format\"", 9) == 0)
			return err_set(err, "store.failed", EBADMSG, "read", "line %llu is damaged",
				(unsigned long long)rec.seq + 1);
	if (ret_rec)
		*ret_rec = rec;
	if (!merged)
		return err_set(err, "store.failed", ENODATA, "read", "the record is empty");
	if (ret_body)
		*ret_body = take_ptr(merged);
	return 0;
}

int record_read_of(int fd, uid_t owner, const char *format, struct record *ret_rec,
	json_t **ret_body, struct err *err)
{
	_free_ char *data = NULL;
	struct stat st;
	size_t used = 0;
	int r;

	if (fstat(fd, &st) < 0)
		return err_set(err, "store.failed", errno, "read", "cannot read the record");
	if (!S_ISREG(st.st_mode) || st.st_uid != owner ||
		(uint64_t)st.st_size > RECORD_CAPACITY_MAX)
		return err_set(err, "store.failed", EBADMSG, "read",
			"the record is not a regular file of ours of at most 4 MiB");
	data = malloc((size_t)st.st_size + 1);
	if (!data)
		return err_set(err, "store.failed", ENOMEM, "read", "no memory");
	while (used < (size_t)st.st_size) {
		ssize_t n = pread(fd, data + used, (size_t)st.st_size - used, (off_t)used);

		if (n < 0 && errno == EINTR)
			continue;
		if (n < 0)
			return err_set(err, "store.failed", errno, "read",
				"cannot read the record");
		if (n == 0)
			break;
		used += (size_t)n;
	}
	r = record_parse(data, used, format, ret_rec, ret_body, err);
	if (ret_rec && (r == 0 || r == -ENODATA))
		ret_rec->fd = fd;
	return r;
}

int record_read(int fd, const char *format, struct record *ret_rec, json_t **ret_body,
	struct err *err)
{
	return record_read_of(fd, geteuid(), format, ret_rec, ret_body, err);
}

/* The whole line with its LF. Caller frees. */
static char *render(const char *format, uint64_t seq, const json_t *body, size_t *ret_len)
{
	char digest[HASH_HEX_SIZE];
	size_t body_len;
	_free_ char *text = json_canonical(body, &body_len);
	char *line;
	int n;

	if (!text)
		return NULL;
	line = malloc(body_len + HEAD_MAX);
	if (!line)
		return NULL;
	hash_hex(text, body_len, digest);
	n = snprintf(line, body_len + HEAD_MAX,
		"{\"format\":\"%s\",\"seq\":%llu,\"sha256\":\"%s\",\"body\":%s}\n", format,
		(unsigned long long)seq, digest, text);
	*ret_len = (size_t)n;
	return line;
}

size_t record_line_size(const char *format, const json_t *body)
{
	size_t len = json_dumpb(body, NULL, 0, JSON_COMPACT | JSON_SORT_KEYS);

	return len ? len + strlen(format) + HEAD_MAX : 0;
}

/* Durable on return, without a second call where the kernel can do it in one. */
static int write_line(int fd, const char *line, size_t len, size_t at)
{
	struct iovec v = {.iov_base = (void *)(uintptr_t)line, .iov_len = len};
	ssize_t n;

	do
		n = pwritev2(fd, &v, 1, (off_t)at, RWF_DSYNC);
	while (n < 0 && errno == EINTR);
	if (n < 0 && (errno == EOPNOTSUPP || errno == ENOSYS)) {
		n = pwrite(fd, line, len, (off_t)at);
		if (n == (ssize_t)len && fdatasync(fd) < 0)
			return -errno;
	}
	if (n < 0)
		return -errno;
	return (size_t)n == len ? 0 : -EIO;
}

int record_append(struct record *rec, const char *format, const json_t *body, size_t reserve,
	struct err *err)
{
	size_t len;
	_free_ char *line = render(format, rec->seq + 1, body, &len);
	int r;

	if (!line)
		return err_set(err, "store.failed", ENOMEM, "write",
			"no memory for a line of the record");
	if (rec->end + len + reserve > rec->capacity)
		return err_set(err, "store.failed", EFBIG, "write", "the record is full");
	if (rec->tail_dirty) {
		r = write_zeros(rec->fd, rec->end, rec->capacity);
		if (r == 0 && fdatasync(rec->fd) < 0)
			r = -errno;
		if (r < 0)
			return err_set(err, "store.failed", -r, "write",
				"cannot clear the torn end of the record");
		rec->tail_dirty = false;
	}
	r = write_line(rec->fd, line, len, rec->end);
	if (r < 0) {
		rec->tail_dirty = true;
		return err_set(err, "store.failed", -r, "write", "cannot write the record");
	}
	rec->seq++;
	rec->end += len;
	return 0;
}
