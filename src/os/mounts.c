/* SPDX-License-Identifier: Apache-2.0 */
#include "os/mounts.h"

#include <fcntl.h>
#include <string.h>

#include "base/cleanup.h"
#include "base/file.h"
#include "base/text.h"

#define MOUNTINFO_MAX (4 << 20)

/* Fields: id parent major:minor root MOUNTPOINT options … - FSTYPE source SUPEROPTIONS */
struct mount_line {
	char *point, *fstype, *options;
};

static bool split_line(char *line, struct mount_line *ret)
{
	char *dash = strstr(line, " - "), *p = line, *skip;

	if (!dash)
		return false;
	*dash = '\0';
	for (int i = 0; i < 4; i++)
		if (!strsep(&p, " ") || !p)
			return false;
	ret->point = strsep(&p, " ");
	p = dash + 3;
	ret->fstype = strsep(&p, " ");
	skip = strsep(&p, " ");
	ret->options = p;
	return ret->point && skip && p && !strchr(ret->point, '\\');
}

static bool has_option(const char *options, const char *word)
{
	size_t len = strlen(word);

	for (const char *p = options; p; p = strchr(p, ',')) {
		p += *p == ',';
		if (strncmp(p, word, len) == 0 && (p[len] == ',' || p[len] == '\0'))
			return true;
	}
	return false;
}

static void note_v1(const struct mount_line *m, struct mounts_cgroup *ret)
{
	static const char *const controllers[] = {"cpu", "cpuacct", "cpuset", "memory", "devices",
		"freezer", "blkio", "pids", "net_cls", "net_prio", "hugetlb", "perf_event"};

	for (size_t i = 0; i < ARRAY_SIZE(controllers); i++) {
		size_t used = strlen(ret->v1_list);

		if (!has_option(m->options, controllers[i]))
			continue;
		ret->v1_controllers = true;
		if (used + strlen(controllers[i]) + 2 < sizeof(ret->v1_list))
			snprintf(ret->v1_list + used, sizeof(ret->v1_list) - used, "%s%s",
				used ? "," : "", controllers[i]);
		if (text_equal(controllers[i], "freezer") && !ret->freezer[0])
			text_copy(ret->freezer, sizeof(ret->freezer), m->point);
	}
}

int mounts_find_cgroup(struct mounts_cgroup *ret)
{
	struct mounts_cgroup found = {0};
	_free_ char *text = NULL;
	int r = file_read_at(AT_FDCWD, "/proc/self/mountinfo", MOUNTINFO_MAX, &text, NULL);

	if (r < 0)
		return r;
	for (char *p = text, *line; (line = strsep(&p, "\n"));) {
		struct mount_line m;

		if (!split_line(line, &m))
			continue;
		if (text_equal(m.fstype, "cgroup2") && !found.v2[0])
			text_copy(found.v2, sizeof(found.v2), m.point);
		else if (text_equal(m.fstype, "cgroup"))
			note_v1(&m, &found);
	}
	*ret = found;
	return 0;
}
