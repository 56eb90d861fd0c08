/* SPDX-License-Identifier: Apache-2.0 */
/* A container of Docker or Podman, reached through the engine's own command by argv. */
#pragma once

#include "fault/tool.h"

#define CONTAINER_ID_SIZE 65
#define CONTAINER_ENGINE_SIZE 128

struct container {
	char engine[CONTAINER_ENGINE_SIZE]; /* "docker", "podman", or unix:///PATH */
	char id[CONTAINER_ID_SIZE];	    /* full */
};

/* docker, podman, or a unix socket; what a policy lists is checked by the agent. */
bool container_engine_is_known(const char *engine);

/* The full id of what has this name now, and its init's pid. -ENOENT: no such container. */
int container_resolve(struct fault_run *run, const char *engine, const char *name,
	struct container *ret, pid_t *ret_pid, struct err *err);

/* `engine kill --signal NAME id`. */
int container_signal(struct fault_run *run, const struct container *c, const char *signal,
	struct err *err);

/* The argv prefix of an engine: fills at most 4 and returns how many. */
size_t container_prefix(const char *engine, const char **ret);
