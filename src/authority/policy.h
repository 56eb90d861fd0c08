/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What an agent may do, in layers: the host's own file first, then --policy,
 * then what the controller asked for in its handshake. Every layer must
 * allow, so a later one can only narrow. An empty list allows all in
 * allowed_faults and allowed_resources, and nothing anywhere else.
 */
#pragma once

#include <jansson.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "authority/risk.h"
#include "base/err.h"

enum capability { /* a mask */
	CAPABILITY_FAULT_INJECT = 1 << 0,
	CAPABILITY_FAULT_UNDO = 1 << 1,
	CAPABILITY_PROBE_RUN = 1 << 2,
	CAPABILITY_RESOURCE_ACCESS = 1 << 3,
	CAPABILITY_NETWORK_ACCESS = 1 << 4,
	CAPABILITY_SHELL_EXEC = 1 << 5,
	CAPABILITY_ALL = (1 << 6) - 1
};

#define POLICY_LAYERS_MAX 3
#define POLICY_HOST_FILE "/etc/mayhem/agent.json"

struct policy_layer {
	const char *
		name; /* "/etc/mayhem/agent.json", "--policy …", "handshake": for refusals; owned */
	json_t *doc; /* owned; checked when it was added */
	unsigned capabilities;
	enum risk risk_ceiling;
};

struct policy {
	struct policy_layer layers[POLICY_LAYERS_MAX];
	size_t n_layers;
};

void policy_init(struct policy *p);
void policy_free(struct policy *p);

/*
 * The host's file, if there is one. It must be a regular file, owned by root
 * and writable by nobody else, or the agent does not start.
 */
int policy_add_host_file(struct policy *p, struct err *err);

/* A file named on the command line. */
int policy_add_file(struct policy *p, const char *path, struct err *err);

/* `capabilities` of the handshake: {allowed_faults, allowed_resources, capabilities}. */
int policy_add_handshake(struct policy *p, const json_t *capabilities, struct err *err);

/* What is asked. resources: names of the target, any of which may be allowed or protected. */
struct policy_ask {
	const char *fault_id;
	enum risk risk;
	const char *const *resources;
	size_t n_resources;
	uint64_t duration_ms;
	unsigned live_leases;
	uint64_t now_utc_ms;
};

/* 0, or -EPERM with agent.capability.denied, policy.denied, risk.ceiling, approval.required, target.protected. */
int policy_check_inject(const struct policy *p, const struct policy_ask *ask, struct err *err);
int policy_check_capability(const struct policy *p, enum capability c, struct err *err);

/* True when some layer lists this engine socket. */
bool policy_lists_engine(const struct policy *p, const char *endpoint);

/* The shortest max_duration_s of all layers in ms, or UINT64_MAX. */
uint64_t policy_max_duration_ms(const struct policy *p);

/* The textfile of the host's layer, or NULL. */
const char *policy_metrics_file(const struct policy *p);
