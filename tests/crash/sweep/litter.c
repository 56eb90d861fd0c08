/* SPDX-License-Identifier: Apache-2.0 */
#include "litter.h"

#include <dirent.h>
#include <fcntl.h>
#include <jansson.h>
#include <limits.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

/* An ended record whose spare name stands is read again by every recovery to come. */
static void count_names(const char *dir, struct litter *litter)
{
	char path[PATH_MAX];
	struct dirent *entry;
	struct stat st;
	DIR *leases;

	snprintf(path, sizeof(path), "%s/leases", dir);
	leases = opendir(path);
	while (leases && (entry = readdir(leases))) {
		if (fstatat(dirfd(leases), entry->d_name, &st, AT_SYMLINK_NOFOLLOW) == 0 &&
			S_ISREG(st.st_mode) && st.st_nlink > 1)
			atomic_fetch_add(&litter->names, 1);
	}
	if (leases)
		closedir(leases);
}

static bool is_cgroup_mount(const char *line)
{
	const char *type = strstr(line, " - ");

	return type &&
		(strncmp(type + 3, "cgroup ", 7) == 0 || strncmp(type + 3, "cgroup2 ", 8) == 0);
}

/* The fifth field of a line of mountinfo. */
static bool mount_point(const char *line, char ret[PATH_MAX])
{
	size_t n;

	for (unsigned i = 0; i < 4 && line; i++) {
		line = strchr(line, ' ');
		line = line ? line + 1 : NULL;
	}
	n = line ? strcspn(line, " ") : 0;
	if (n == 0 || n >= PATH_MAX)
		return false;
	memcpy(ret, line, n);
	ret[n] = '\0';
	return true;
}

static void count_marks(const char *store, struct litter *litter)
{
	char point[PATH_MAX], path[PATH_MAX + 64], *line = NULL;
	FILE *mounts = fopen("/proc/self/mountinfo", "re");
	size_t room = 0;

	while (mounts && getline(&line, &room, mounts) > 0) {
		if (!is_cgroup_mount(line) || !mount_point(line, point))
			continue;
		snprintf(path, sizeof(path), "%s/mayhem/%s", point, store);
		if (access(path, F_OK) == 0)
			atomic_fetch_add(&litter->marks, 1);
	}
	free(line);
	if (mounts)
		fclose(mounts);
}

void litter_count(const char *dir, struct litter *litter)
{
	char path[PATH_MAX];
	const char *store;
	json_t *mark;

	snprintf(path, sizeof(path), "%s/store.json", dir);
	mark = json_load_file(path, 0, NULL);
	store = json_string_value(json_object_get(mark, "store"));
	if (store && strlen(store) == 32)
		count_marks(store, litter);
	json_decref(mark);
	count_names(dir, litter);
}
