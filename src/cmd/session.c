/* SPDX-License-Identifier: Apache-2.0 */
#include "cmd/session.h"

#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/signalfd.h>

#include "base/cleanup.h"
#include "base/json.h"
#include "base/log.h"
#include "base/text.h"
#include "rpc/frame.h"

#define AGENT_ID "mayhem"
#define PING_MS 2000
#define QUIET_MS 15000
#define HANDSHAKE_MS 30000
#define END_MS 60000
#define ONESHOT_MS 600000
#define HEARTBEAT_S 5
#define PATIENCE 2 /* signals at the end; one more and we go */

int session_signals(int *ret_fd, struct err *err)
{
	static const int wanted[] = {SIGINT, SIGTERM, SIGHUP};
	sigset_t set;
	int fd;

	sigemptyset(&set);
	for (size_t i = 0; i < ARRAY_SIZE(wanted); i++) {
		struct sigaction now;

		if (sigaction(wanted[i], NULL, &now) == 0 && now.sa_handler != SIG_IGN)
			sigaddset(&set, wanted[i]);
	}
	fd = signalfd(-1, &set, SFD_CLOEXEC | SFD_NONBLOCK);
	if (fd < 0 || sigprocmask(SIG_BLOCK, &set, NULL) < 0)
		return err_set(err, "internal", errno, "signals", "cannot watch signals");
	*ret_fd = fd;
	return 0;
}

void session_transport(const struct invocation *v, struct transport *ret)
{
	const char *state = v->g.state;

	/* sudo clears the environment: what was said there must be said in words. */
	if (!state && v->g.sudo)
		state = getenv("MAYHEM_STATE_DIR");
	*ret = (struct transport){
		.host = v->g.host,
		.agent = v->g.agent,
		.state = state && state[0] ? state : NULL,
		.sudo = v->g.sudo,
	};
}

static int name_run(const char *name, struct session *s, struct err *err)
{
	char random[9];
	int r = text_random_hex(random, 4);

	if (r < 0)
		return err_set(err, "internal", -r, "run", "no random bits");
	snprintf(s->run_id, sizeof(s->run_id), "r-%.40s-%s", name, random);
	return 0;
}

static int shake_hands(struct session *s, bool events, struct err *err)
{
	bool local = transport_is_local(&s->transport);
	json_t *params = json_pack("{s:[s], s:i, s:b}", "protocols", FRAME_PROTOCOL, "heartbeat_s",
		local ? 0 : HEARTBEAT_S, "events", events);

	return client_call(s->client, "handshake", params, HANDSHAKE_MS, &s->hello, err);
}

int session_open(const struct invocation *v, const char *name, client_notice notice, void *arg,
	struct session *ret, struct err *err)
{
	static const char *const serve[] = {"serve"};
	struct client_options o = {
		.run_id = ret->run_id,
		.agent_id = AGENT_ID,
		.ping_ms = PING_MS,
		.quiet_ms = QUIET_MS,
		.notice = notice,
		.notice_arg = arg,
	};
	int r = name_run(name, ret, err);

	if (r == 0)
		r = session_signals(&ret->signalfd, err);
	if (r < 0)
		return r;
	o.signalfd = ret->signalfd;
	session_transport(v, &ret->transport);
	r = client_open(&ret->transport, serve, ARRAY_SIZE(serve), &o, &ret->client, err);
	if (r == 0)
		r = shake_hands(ret, notice != NULL, err);
	if (r == 0)
		log_debug("session", "agent %s, version %s",
			json_text_or(ret->hello, "agent_id", "?"),
			json_text_or(ret->hello, "agent_version", "?"));
	return r;
}

int session_end(struct session *s, struct err *err)
{
	int code = 0, interrupts = 0, r;

	do
		r = client_end(s->client, END_MS, &code, err);
	while (r == -EINTR && interrupts++ < PATIENCE);
	if (r == -EINTR)
		err_set(err, "cancelled", 0, "end",
			"not waited for: the agent on %s undoes what it holds by itself",
			transport_name(&s->transport));
	if (r < 0)
		return EXIT_AGENT;
	if (code == 0 || code == EXIT_DIRTY)
		return code;
	err_set(err, "agent.lost", 0, "end", "the agent on %s ended with status %d",
		transport_name(&s->transport), code);
	return EXIT_AGENT;
}

void session_close(struct session *s)
{
	client_close(s->client);
	s->client = NULL;
	json_decref(s->hello);
	s->hello = NULL;
	close_now(&s->signalfd);
}

/* The agent's own error object, as it would be told here. */
static int refused(const json_t *error, struct err *err)
{
	err_set(err, json_text_or(error, "reason", "agent.protocol"), 0, "agent", "%s",
		json_text_or(error, "message", "the agent gives no reason"));
	err_remedy(err, "%s", json_text_or(error, "remedy", ""));
	return -EREMOTEIO;
}

int session_oneshot(const struct invocation *v, const char *const *words, size_t n, json_t **ret,
	int *ret_code, struct err *err)
{
	const char *all[TRANSPORT_WORDS_MAX];
	struct transport t;
	_json_ json_t *answer = NULL;
	_close_ int signalfd = -1;
	int r;

	if (n + 1 > ARRAY_SIZE(all))
		return err_set(err, "usage", E2BIG, "words", "too many words for an agent");
	memcpy(all, words, n * sizeof(*words));
	all[n] = "--json";
	r = session_signals(&signalfd, err);
	if (r < 0)
		return r;
	session_transport(v, &t);
	r = oneshot_run(&t, all, n + 1, signalfd, ONESHOT_MS, &answer, ret_code, err);
	if (r == -EINTR) {
		err_set(err, "cancelled", 0, "signal", "stopped by a signal");
		err_remedy(err, "the agent ended in order; run it again to see what is left");
	}
	if (r < 0)
		return r;
	if (json_object_get(answer, "error"))
		return refused(json_object_get(answer, "error"), err);
	*ret = take_ptr(answer);
	return 0;
}

const char *session_again(const struct invocation *v, char *buf, size_t size)
{
	const struct {
		const char *name, *value;
	} options[] = {{"--host", v->g.host}, {"--agent", v->g.agent}, {"--state", v->g.state}};

	snprintf(buf, size, "mayhem");
	for (size_t i = 0; i < ARRAY_SIZE(options); i++) {
		size_t len = strlen(buf);

		if (options[i].value)
			snprintf(buf + len, size - len, " %s %s", options[i].name,
				options[i].value);
	}
	if (v->g.sudo) {
		size_t len = strlen(buf);

		snprintf(buf + len, size - len, " --sudo");
	}
	return buf;
}
