/* SPDX-License-Identifier: Apache-2.0 */
#include "launch/link.h"

#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/stat.h>

#include "base/cleanup.h"
#include "base/file.h"

struct head {
	uint8_t type;
	uint8_t in_file; /* the payload is in the descriptor that comes along */
	uint16_t reserved;
	uint32_t len;
};

static int payload_file(const void *data, size_t len, int *ret_fd)
{
	_close_ int fd = memfd_create("mayhem-link", MFD_CLOEXEC);
	int r;

	if (fd < 0)
		return -errno;
	r = file_write_all(fd, data, len);
	if (r == 0)
		*ret_fd = take_fd(&fd);
	return r;
}

int link_send(int fd, uint8_t type, const void *data, size_t len)
{
	struct head head = {.type = type, .in_file = len > LINK_INLINE_MAX, .len = (uint32_t)len};
	struct iovec iov[2] = {{&head, sizeof(head)},
		{(void *)(uintptr_t)data, head.in_file ? 0 : len}};
	union {
		struct cmsghdr align;
		char buf[CMSG_SPACE(sizeof(int))];
	} control = {0};
	struct msghdr msg = {.msg_iov = iov, .msg_iovlen = 2};
	_close_ int file = -1;

	if (len > LINK_PAYLOAD_MAX)
		return -EMSGSIZE;
	if (head.in_file) {
		struct cmsghdr *c;
		int r = payload_file(data, len, &file);

		if (r < 0)
			return r;
		msg.msg_control = control.buf;
		msg.msg_controllen = sizeof(control.buf);
		c = CMSG_FIRSTHDR(&msg);
		c->cmsg_level = SOL_SOCKET;
		c->cmsg_type = SCM_RIGHTS;
		c->cmsg_len = CMSG_LEN(sizeof(int));
		memcpy(CMSG_DATA(c), &file, sizeof(int));
	}
	return sendmsg(fd, &msg, MSG_DONTWAIT | MSG_NOSIGNAL) < 0 ? -errno : 0;
}

static int passed_fd(struct msghdr *msg)
{
	int fd = -1;

	for (struct cmsghdr *c = CMSG_FIRSTHDR(msg); c; c = CMSG_NXTHDR(msg, c))
		if (c->cmsg_level == SOL_SOCKET && c->cmsg_type == SCM_RIGHTS)
			memcpy(&fd, CMSG_DATA(c), sizeof(int));
	return fd;
}

static int read_file(int fd, char *buf, size_t len)
{
	for (size_t used = 0; used < len;) {
		ssize_t n = pread(fd, buf + used, len - used, (off_t)used);

		if (n <= 0)
			return n < 0 ? -errno : -EBADMSG;
		used += (size_t)n;
	}
	return 0;
}

int link_receive(int fd, uint8_t *ret_type, char **ret_data, size_t *ret_len)
{
	union {
		struct cmsghdr align;
		char buf[CMSG_SPACE(sizeof(int))];
	} control;
	struct head head;
	ssize_t size = recv(fd, &head, sizeof(head), MSG_DONTWAIT | MSG_PEEK);
	struct msghdr msg = {.msg_iovlen = 2,
		.msg_control = control.buf,
		.msg_controllen = sizeof(control.buf)};
	struct iovec iov[2];
	_free_ char *buf = NULL;
	_close_ int file = -1;
	ssize_t n;

	if (size <= 0)
		return size < 0 && errno != ECONNRESET ? -errno : 0;
	if (size != sizeof(head) || head.len > LINK_PAYLOAD_MAX)
		return -EBADMSG;
	buf = malloc((size_t)head.len + 1);
	if (!buf)
		return -ENOMEM;
	iov[0] = (struct iovec){&head, sizeof(head)};
	iov[1] = (struct iovec){buf, head.in_file ? 0 : head.len};
	msg.msg_iov = iov;
	n = recvmsg(fd, &msg, MSG_DONTWAIT | MSG_CMSG_CLOEXEC);
	if (n < 0)
		return -errno;
	file = passed_fd(&msg);
	if (head.in_file && (file < 0 || read_file(file, buf, head.len) < 0))
		return -EBADMSG;
	if (!head.in_file && (size_t)n != sizeof(head) + head.len)
		return -EBADMSG;
	buf[head.len] = '\0';
	*ret_type = head.type;
	*ret_len = head.len;
	*ret_data = take_ptr(buf);
	return 1;
}
