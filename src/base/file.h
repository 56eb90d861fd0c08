/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Small files, read and written whole, always relative to a directory
 * descriptor. Reads are bounded; writes are atomic and durable; links are
 * never followed at the last component.
 */
#pragma once

#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

/*
 * Reads a whole file of at most max bytes; the result is NUL-terminated and
 * the caller frees it. -EFBIG when it is longer.
 */
int file_read_at(int dirfd, const char *name, size_t max, char **ret, size_t *ret_len);

/*
 * The same into a buffer of the caller's, without allocation: for /proc and
 * cgroup files. Returns the length; a file that does not fit is -EFBIG.
 */
ssize_t file_read_into(int dirfd, const char *name, char *buf, size_t size);

/* Temp sibling, write, fsync, rename, fsync of the directory. */
int file_write_at(int dirfd, const char *name, const void *data, size_t len, mode_t mode);

/* All of it, through EINTR and short writes. */
int file_write_all(int fd, const void *data, size_t len);

/* Writes a short text to an existing control file (cgroup, proc) in one write. */
int file_write_control(int dirfd, const char *name, const char *text);

/* flock without waiting: 0, or -EWOULDBLOCK when somebody else has it. */
int file_lock_try(int fd, int exclusive);
int file_lock_wait(int fd, int exclusive);
