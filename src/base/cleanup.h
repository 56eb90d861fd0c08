/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Ownership by scope. A variable marked _close_ or _free_ owns what it holds;
 * take_fd() and take_ptr() hand ownership on and leave the variable empty.
 */
#pragma once

#include <dirent.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#define ARRAY_SIZE(a) (sizeof(a) / sizeof((a)[0]))
#define _unused_ __attribute__((unused))
#define _printf_(f, a) __attribute__((format(printf, f, a)))

static inline void cleanup_close(int *fd)
{
	if (*fd >= 0) {
		int saved = errno;

		close(*fd);
		errno = saved;
		*fd = -1;
	}
}

static inline void cleanup_free(void *p)
{
	free(*(void **)p);
}

static inline void cleanup_fclose(FILE **f)
{
	if (*f)
		fclose(*f);
}

static inline void cleanup_closedir(DIR **d)
{
	if (*d)
		closedir(*d);
}

#define _close_ __attribute__((cleanup(cleanup_close)))
#define _free_ __attribute__((cleanup(cleanup_free)))
#define _fclose_ __attribute__((cleanup(cleanup_fclose)))
#define _closedir_ __attribute__((cleanup(cleanup_closedir)))

static inline int take_fd(int *fd)
{
	int ret = *fd;

	*fd = -1;
	return ret;
}

#define take_ptr(p)                                                                                \
	({                                                                                         \
		__typeof__(p) *take_ptr_ = &(p);                                                   \
		__typeof__(p) take_ret_ = *take_ptr_;                                              \
		*take_ptr_ = NULL;                                                                 \
		take_ret_;                                                                         \
	})

/* Closes *fd now, keeping errno, and leaves it -1. */
static inline void close_now(int *fd)
{
	cleanup_close(fd);
}
