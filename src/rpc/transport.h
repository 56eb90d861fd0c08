/* SPDX-License-Identifier: Apache-2.0 */
/*
 * How a controller reaches an agent: the words that start one here, by sudo,
 * or on another host by ssh. ssh hands its words to a login shell on the
 * other side, so only words that no shell reads are ever sent. Nothing here
 * opens a socket or asks for a password.
 */
#pragma once

#include <limits.h>
#include <stdbool.h>
#include <stddef.h>

#include "base/err.h"

#define TRANSPORT_WORDS_MAX 32

/* Where an agent is. All texts are borrowed. */
struct transport {
	const char *host;  /* NULL: here; "ssh:TARGET" */
	const char *agent; /* path of the agent there, NULL: found as transport_words() says */
	const char *state; /* state directory, NULL: the agent's default; only for here */
	bool sudo;	   /* as root, without a password */
};

/* The words, ready to be started; argv points into the rest. */
struct transport_words {
	char *argv[TRANSPORT_WORDS_MAX + 1];
	size_t n;
	char agent[PATH_MAX];
	char control[PATH_MAX + 16];
};

/*
 * Builds PREFIX, the agent, `words`, and --state where it applies. The agent
 * here is t->agent, else MAYHEM_AGENT, else mayhem-agent beside this
 * executable, else from PATH; on another host t->agent, else from its PATH.
 * `words` is borrowed by ret. Codes: usage, transport.word, transport.host.
 */
int transport_words(const struct transport *t, const char *const *words, size_t n,
	struct transport_words *ret, struct err *err);

/* True for text that may be a word on another host: [A-Za-z0-9_./=:,@%+-], not empty. */
bool transport_word_is_safe(const char *word);

bool transport_is_local(const struct transport *t);

/* "this host" or the ssh target, for messages. */
const char *transport_name(const struct transport *t);

/*
 * What it means that the transport ended with this exit status before the
 * agent said anything. Fills err with agent.lost, agent.missing,
 * agent.unreachable, agent.sudo or agent.config; returns negative.
 */
int transport_explain_exit(const struct transport *t, int code, int signo, struct err *err);
