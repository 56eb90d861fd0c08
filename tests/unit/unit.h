/* SPDX-License-Identifier: Apache-2.0 */
/* What every unit program needs: cmocka and its headers, and a place for files. */
#pragma once

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/err.h"

/* The skip's reason is what is printed last. */
#define unit_skip(reason)                                                                          \
	do {                                                                                       \
		print_message("%s\n", reason);                                                     \
		skip();                                                                            \
	} while (0)

/* A fresh directory, 0700. The caller frees the name after unit_temp_remove(). */
static inline char *unit_temp_make(void)
{
	char *path = strdup("/tmp/mayhem-unit-XXXXXX");

	assert_non_null(path);
	assert_non_null(mkdtemp(path));
	return path;
}

/* Everything below it, and itself; two levels are enough for a state directory. */
static inline void unit_temp_remove(const char *path)
{
	DIR *d = opendir(path);
	struct dirent *e;

	while (d && (e = readdir(d))) {
		if (strcmp(e->d_name, ".") == 0 || strcmp(e->d_name, "..") == 0)
			continue;
		if (unlinkat(dirfd(d), e->d_name, 0) < 0) {
			char below[PATH_MAX + NAME_MAX + 2];

			snprintf(below, sizeof(below), "%s/%s", path, e->d_name);
			unit_temp_remove(below);
		}
	}
	if (d)
		closedir(d);
	rmdir(path);
}
