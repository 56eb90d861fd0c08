/* SPDX-License-Identifier: Apache-2.0 */
#include "base/file.h"

#include <fcntl.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>

#include "base/cleanup.h"
#include "base/text.h"

#define FILE_NAME_MAX_BYTES 256

static ssize_t read_fully(int fd, char *buf, size_t size)
{
	size_t used = 0;

	while (used < size) {
		ssize_t n = read(fd, buf + used, size - used);

		if (n < 0 && errno == EINTR)
			continue;
		if (n < 0)
			return -errno;
		if (n == 0)
			break;
		used += (size_t)n;
	}
	return (ssize_t)used;
}

ssize_t file_read_into(int dirfd, const char *name, char *buf, size_t size)
{
	_close_ int fd = openat(dirfd, name, O_RDONLY | O_CLOEXEC | O_NOFOLLOW);
	ssize_t n;

	if (fd < 0)
		return -errno;
	n = read_fully(fd, buf, size);
	if (n < 0)
		return n;
	if ((size_t)n == size)
		return -EFBIG;
	buf[n] = '\0';
	return n;
}

int file_read_at(int dirfd, const char *name, size_t max, char **ret, size_t *ret_len)
{
	_close_ int fd = openat(dirfd, name, O_RDONLY | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK);
	_free_ char *buf = NULL;
	struct stat st;
	ssize_t n;

	if (fd < 0 || fstat(fd, &st) < 0)
		return -errno;
	if (!S_ISREG(st.st_mode))
		return -EINVAL;
	if ((uint64_t)st.st_size > max)
		return -EFBIG;
	/* The size is a hint: the file may grow meanwhile, and /proc says 0. */
	buf = malloc((st.st_size ? (size_t)st.st_size : max) + 2);
	if (!buf)
		return -ENOMEM;
	n = read_fully(fd, buf, (st.st_size ? (size_t)st.st_size : max) + 1);
	if (n < 0)
		return (int)n;
	if ((size_t)n > max)
		return -EFBIG;
	buf[n] = '\0';
	if (ret_len)
		*ret_len = (size_t)n;
	*ret = take_ptr(buf);
	return 0;
}

int file_write_all(int fd, const void *data, size_t len)
{
	const char *p = data;

	while (len) {
		ssize_t n = write(fd, p, len);

		if (n < 0 && errno == EINTR)
			continue;
		if (n < 0)
			return -errno;
		p += n;
		len -= (size_t)n;
	}
	return 0;
}

int file_write_at(int dirfd, const char *name, const void *data, size_t len, mode_t mode)
{
	char temp[FILE_NAME_MAX_BYTES], random[17];
	_close_ int fd = -1;
	int r = text_random_hex(random, 8);

	if (r < 0)
		return r;
	if (snprintf(temp, sizeof(temp), ".%s.%s", name, random) >= (int)sizeof(temp))
		return -ENAMETOOLONG;
	fd = openat(dirfd, temp, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC | O_NOFOLLOW, mode);
	if (fd < 0)
		return -errno;
	r = file_write_all(fd, data, len);
	if (r == 0 && fsync(fd) < 0)
		r = -errno;
	if (r == 0 && renameat(dirfd, temp, dirfd, name) < 0)
		r = -errno;
	if (r == 0 && fsync(dirfd) < 0)
		return -errno;
	if (r < 0)
		unlinkat(dirfd, temp, 0);
	return r;
}

int file_write_control(int dirfd, const char *name, const char *text)
{
	_close_ int fd = openat(dirfd, name, O_WRONLY | O_CLOEXEC | O_NOFOLLOW);

	if (fd < 0)
		return -errno;
	return write(fd, text, strlen(text)) < 0 ? -errno : 0;
}

static int lock(int fd, int op)
{
	while (flock(fd, op) < 0)
		if (errno != EINTR)
			return -errno;
	return 0;
}

int file_lock_try(int fd, int exclusive)
{
	return lock(fd, (exclusive ? LOCK_EX : LOCK_SH) | LOCK_NB);
}

int file_lock_wait(int fd, int exclusive)
{
	return lock(fd, exclusive ? LOCK_EX : LOCK_SH);
}
