/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A controller's end of one agent session: JSON-RPC, one object a line, over
 * the pipes of a transport. Requests may overlap; a reply is found by its id.
 * Whatever is waited for, signals are seen at once, and a quiet agent is
 * asked whether it is there. Never blocks without a limit, only passes on what
 * another host's stderr says, and believes nothing that is not a frame of this
 * protocol.
 *
 * What every waiting call may return besides its own:
 *   -EINTR   a signal came; client_signal() says which. Nothing is lost, the
 *            call may be made again.
 *   -EPIPE   the agent is gone; err says how (agent.lost and its kin).
 *   -ETIMEDOUT
 */
#pragma once

#include <jansson.h>
#include <stdbool.h>
#include <stdint.h>

#include "base/err.h"
#include "rpc/transport.h"

struct client;

/* A notification of the agent's. params is borrowed. */
typedef void (*client_notice)(void *arg, const char *method, const json_t *params);

struct client_options {
	const char *run_id;
	const char *agent_id; /* who we say we are */
	int signalfd;	      /* borrowed; -1: signals are not watched */
	uint64_t ping_ms;     /* a health.ping that often while waiting; 0: never */
	uint64_t quiet_ms;    /* without a frame for so long the agent counts as lost; 0: never */
	client_notice notice; /* NULL: notifications are dropped */
	void *notice_arg;
};

/* Starts `words` through the transport. Says nothing yet. All of t and o is borrowed for its life. */
int client_open(const struct transport *t, const char *const *words, size_t n,
	const struct client_options *o, struct client **ret, struct err *err);

/* Sends a request; takes params (NULL: none), adds run_id and agent_id. */
int client_start(struct client *c, const char *method, json_t *params, uint64_t *ret_id,
	struct err *err);

/*
 * Waits for the reply to that id. An error reply fills err from its data
 * (code from reason, remedy, stage) and returns -EREMOTEIO;
 * client_error_code() then has its number. timeout_ms 0: no limit but the
 * agent's silence. The caller owns *ret_result.
 */
int client_wait(struct client *c, uint64_t id, uint64_t timeout_ms, json_t **ret_result,
	struct err *err);

/* Both of the above. */
int client_call(struct client *c, const char *method, json_t *params, uint64_t timeout_ms,
	json_t **ret_result, struct err *err);

/* Handles what comes until something did or the time is over (which is 0 too). */
int client_pump(struct client *c, uint64_t timeout_ms, struct err *err);

/*
 * Ends the session: no more input for the agent, which then undoes what it
 * holds; reads on until it has gone. ret_code is its exit status, 128 + n
 * after a signal. May be called again after -EINTR and -ETIMEDOUT.
 */
int client_end(struct client *c, uint64_t timeout_ms, int *ret_code, struct err *err);

/* Gives up everything. An agent still there sees the end of its input. */
void client_close(struct client *c);

/* The JSON-RPC code of the last error reply, 0: none yet. */
int64_t client_error_code(const struct client *c);

/* The last signal seen, 0: none. */
int client_signal(const struct client *c);

static inline void cleanup_client(struct client **c)
{
	client_close(*c);
}

#define _client_ __attribute__((cleanup(cleanup_client)))
