/* SPDX-License-Identifier: Apache-2.0 */
#include "rpc/oneshot.h"

#include <poll.h>
#include <signal.h>
#include <string.h>
#include <sys/signalfd.h>

#include "base/cleanup.h"
#include "base/clock.h"
#include "base/json.h"
#include "launch/spawn.h"
#include "os/pidfd.h"
#include "rpc/relay.h"

#define READ_STEP (64u << 10)
#define EXIT_WAIT_MS 10000 /* between the end of its output and its exit */

struct output {
	char *data;
	size_t len, cap;
	bool interrupted;
};

static void cleanup_spawned(struct spawned *s)
{
	spawned_close(s);
}

static void cleanup_output(struct output *o)
{
	free(o->data);
}

/* 1: the end of it. */
static int read_some(int fd, struct output *o, struct err *err)
{
	ssize_t n;

	if (o->len + READ_STEP > o->cap) {
		size_t cap = o->cap ? o->cap * 2 : 2 * READ_STEP;
		char *grown = cap <= ONESHOT_OUTPUT_MAX ? realloc(o->data, cap) : NULL;

		if (!grown)
			return err_set(err, "agent.protocol", 0, "read",
				"the agent printed more than can be read");
		o->data = grown;
		o->cap = cap;
	}
	n = read(fd, o->data + o->len, READ_STEP);
	if (n < 0)
		return errno == EINTR || errno == EAGAIN ? 0 : 1;
	o->len += (size_t)n;
	return n == 0;
}

static void pass_signal_on(int signalfd, const struct spawned *child, struct output *o)
{
	struct signalfd_siginfo info;

	if (read(signalfd, &info, sizeof(info)) != (ssize_t)sizeof(info))
		return;
	o->interrupted = true;
	pidfd_signal(child->pidfd, SIGTERM);
}

static int collect(struct spawned *child, struct relay *relay, int signalfd, uint64_t timeout_ms,
	struct output *o, struct err *err)
{
	uint64_t end_ms = clock_boottime_ms() + timeout_ms;
	bool eof = false, exited = false;

	while (!eof) {
		struct pollfd p[] = {
			{.fd = child->outfd, .events = POLLIN},
			{.fd = exited ? -1 : child->pidfd, .events = POLLIN},
			{.fd = signalfd, .events = POLLIN},
			relay_poll(relay),
		};
		uint64_t left_ms = clock_until_ms(end_ms);
		int r;

		if (left_ms == 0)
			return err_set(err, "agent.lost", ETIMEDOUT, "wait",
				"the agent did not end within %llu s",
				(unsigned long long)timeout_ms / 1000);
		/* Exited: what is in the pipe is all there is, whoever else holds it. */
		r = poll(p, ARRAY_SIZE(p),
			exited ? 0 : (int)(left_ms < 3600000 ? left_ms : 3600000));
		if (r < 0 && errno != EINTR)
			return err_set(err, "internal", errno, "poll", "cannot wait");
		if (p[2].revents)
			pass_signal_on(signalfd, child, o);
		if (p[3].revents)
			relay_pass(relay);
		if (p[0].revents) {
			r = read_some(child->outfd, o, err);
			if (r < 0)
				return r;
			eof = r;
		} else if (exited) {
			eof = true;
		} else if (p[1].revents) {
			exited = true;
		}
	}
	return 0;
}

/* Its output has ended. It may have more to say on stderr, and waits for that to be read. */
static int await_exit(struct spawned *child, struct relay *relay, int *ret_code, int *ret_signo)
{
	uint64_t end_ms = clock_boottime_ms() + EXIT_WAIT_MS, left_ms;

	while (!pidfd_has_exited(child->pidfd) && (left_ms = clock_until_ms(end_ms))) {
		struct pollfd p[] = {
			{.fd = child->pidfd, .events = POLLIN},
			relay_poll(relay),
		};

		if (poll(p, ARRAY_SIZE(p), (int)left_ms) > 0 && p[1].revents)
			relay_pass(relay);
	}
	relay_end(relay);
	return pidfd_reap(child->pidfd, ret_code, ret_signo);
}

int oneshot_run(const struct transport *t, const char *const *words, size_t n, int signalfd,
	uint64_t timeout_ms, json_t **ret, int *ret_code, struct err *err)
{
	__attribute__((cleanup(cleanup_spawned))) struct spawned child = SPAWNED_INIT;
	__attribute__((cleanup(cleanup_output))) struct output out = {0};
	struct relay relay = {.fd = &child.errfd};
	_free_ struct transport_words *w = calloc(1, sizeof(*w));
	int code = 0, signo = 0;
	int r;

	if (!w)
		return err_set(err, "internal", ENOMEM, "run", "no memory");
	r = transport_words(t, words, n, w, err);
	if (r < 0)
		return r;
	r = launch_spawn(w->argv, !transport_is_local(t), &child, err);
	if (r == -ENOENT || r == -EACCES) {
		err_set(err, "agent.missing", -r, "exec", "cannot run %s", w->argv[0]);
		err_remedy(err, "name the agent by --agent PATH, or install it in PATH");
	}
	if (r < 0)
		return r;
	close_now(&child.infd);
	r = collect(&child, &relay, signalfd, timeout_ms, &out, err);
	if (r < 0) {
		relay_end(&relay);
		return r;
	}
	if (await_exit(&child, &relay, &code, &signo) < 0)
		return err_set(err, "agent.lost", ETIMEDOUT, "wait",
			"the agent closed its output and does not end");
	if (out.interrupted)
		return -EINTR;
	if (out.len == 0 || json_parse(out.data, out.len, ret, NULL) < 0)
		return transport_explain_exit(t, code, signo, err);
	*ret_code = code;
	return 0;
}
