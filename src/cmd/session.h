/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A command's way to the agent: the transport of its global options, signals
 * by descriptor, a session after its handshake, or one command of the agent
 * run to its end.
 */
#pragma once

#include <jansson.h>
#include <stdbool.h>

#include "cmd/command.h"
#include "rpc/client.h"
#include "rpc/oneshot.h"

#define SESSION_CALL_MS 30000

struct session {
	struct transport transport;
	struct client *client; /* NULL: not open */
	json_t *hello;	       /* the answer to the handshake */
	char run_id[64];
	int signalfd;
};

#define SESSION_INIT                                                                               \
	{                                                                                          \
		.signalfd = -1                                                                     \
	}

/*
 * INT, TERM and HUP by descriptor from here on; the caller owns *ret_fd. What
 * was ignored when we started (nohup) stays ignored.
 */
int session_signals(int *ret_fd, struct err *err);

/* The transport that the global options name; borrows them. */
void session_transport(const struct invocation *v, struct transport *ret);

/*
 * Starts an agent's session and shakes hands. `name` goes into the run's id.
 * notice (may be NULL) gets the agent's events. -EINTR: a signal came first.
 */
int session_open(const struct invocation *v, const char *name, client_notice notice, void *arg,
	struct session *ret, struct err *err);

/* Ends it; the agent undoes what it holds. 0 or 7, or what the agent's loss means. */
int session_end(struct session *s, struct err *err);

void session_close(struct session *s);

/*
 * Runs one command of the agent with --json and returns its object.
 * *ret_code is the agent's exit status.
 */
int session_oneshot(const struct invocation *v, const char *const *words, size_t n, json_t **ret,
	int *ret_code, struct err *err);

/*
 * "mayhem --host ssh:web1 --sudo": how to say the same place again. Options
 * that were not given are left out.
 */
const char *session_again(const struct invocation *v, char *buf, size_t size);

static inline void cleanup_session(struct session *s)
{
	session_close(s);
}

#define _session_ __attribute__((cleanup(cleanup_session)))
