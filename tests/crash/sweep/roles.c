/* SPDX-License-Identifier: Apache-2.0 */
#include "roles.h"

#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

/* The name a role shows to us, and the one it shows to the kernel. */
static const struct {
	const char *name, *comm;
} roles[ROLE_MAX] = {
	[ROLE_AGENT] = {"agent", ""},
	[ROLE_HOLDER] = {"holder", "mh-holder"},
	[ROLE_RECOVER] = {"recover", "mh-recover"},
	[ROLE_CLERK] = {"clerk", "mh-clerk"},
	[ROLE_WATCH] = {"watch", "mh-watch"},
	[ROLE_TOOL] = {"tool", "mh-tool"},
	[ROLE_PROBE] = {"probe", "mh-probe"},
	[ROLE_SERVICE] = {"service", "mh-service"},
	[ROLE_NEWBORN] = {"newborn", ""},
};

const char *role_name(enum role role)
{
	return roles[role].name;
}

bool role_parse(const char *name, enum role *ret)
{
	for (unsigned i = 0; i < ROLE_MAX; i++) {
		if (strcmp(name, roles[i].name) == 0) {
			*ret = (enum role)i;
			return true;
		}
	}
	return false;
}

bool role_read(pid_t pid, enum role *ret)
{
	char path[32], comm[32];
	ssize_t n;
	int fd;

	snprintf(path, sizeof(path), "/proc/%d/comm", (int)pid);
	fd = open(path, O_RDONLY | O_CLOEXEC);
	if (fd < 0)
		return false;
	n = read(fd, comm, sizeof(comm) - 1);
	close(fd);
	if (n <= 1)
		return false;
	comm[n - 1] = '\0';

	for (unsigned i = 0; i < ROLE_MAX; i++) {
		if (strcmp(comm, roles[i].comm) == 0) {
			*ret = (enum role)i;
			return true;
		}
	}
	return false;
}

int census_birth_of(const struct census *census, enum role role, unsigned ordinal)
{
	for (unsigned i = 0; i < census->n_processes; i++) {
		const struct census_process *process = &census->process[i];

		if (process->role == role && process->ordinal == ordinal)
			return (int)i;
	}
	return -1;
}
