/* SPDX-License-Identifier: Apache-2.0 */
#include "client.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <spawn.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#define LIMIT (60 * SECOND)

extern char **environ;

void die(const char *format, ...)
{
	va_list ap;

	va_start(ap, format);
	fputs("driver: ", stderr);
	vfprintf(stderr, format, ap);
	fputc('\n', stderr);
	va_end(ap);
	exit(1);
}

uint64_t now_ns(void)
{
	struct timespec ts;

	clock_gettime(CLOCK_MONOTONIC, &ts);
	return (uint64_t)ts.tv_sec * SECOND + (uint64_t)ts.tv_nsec;
}

pid_t start_program(char *const *argv, int infd, int outfd, int *ret_pidfd)
{
	posix_spawn_file_actions_t actions;
	pid_t pid;
	int r;

	posix_spawn_file_actions_init(&actions);
	if (infd >= 0)
		posix_spawn_file_actions_adddup2(&actions, infd, 0);
	else
		posix_spawn_file_actions_addopen(&actions, 0, "/dev/null", O_RDONLY, 0);
	if (outfd >= 0)
		posix_spawn_file_actions_adddup2(&actions, outfd, 1);
	else
		posix_spawn_file_actions_addopen(&actions, 1, "/dev/null", O_WRONLY, 0);
	r = posix_spawnp(&pid, argv[0], &actions, NULL, argv, environ);
	posix_spawn_file_actions_destroy(&actions);
	if (r)
		die("cannot start %s: %s", argv[0], strerror(r));
	*ret_pidfd = (int)syscall(SYS_pidfd_open, pid, 0);
	if (*ret_pidfd < 0)
		die("no pidfd: %s", strerror(errno));
	return pid;
}

int await_end(pid_t pid, int pidfd)
{
	struct pollfd p = {.fd = pidfd, .events = POLLIN};
	int status;

	if (poll(&p, 1, (int)(LIMIT / MS)) != 1)
		die("process %d does not end", pid);
	close(pidfd);
	if (waitpid(pid, &status, 0) != pid)
		die("process %d is not ours", pid);
	return WIFEXITED(status) ? WEXITSTATUS(status) : -1;
}

void client_start(struct client *c, const char *agent, const char *state)
{
	const char *argv[] = {agent, "serve", "--state", state, NULL};
	int in[2], out[2];

	memset(c, 0, sizeof(*c));
	if (pipe2(in, O_CLOEXEC) < 0 || pipe2(out, O_CLOEXEC) < 0)
		die("no pipes: %s", strerror(errno));
	c->start_ns = now_ns();
	c->pid = start_program((char *const *)(uintptr_t)argv, in[0], out[1], &c->pidfd);
	close(in[0]);
	close(out[1]);
	c->infd = in[1];
	c->outfd = out[0];
	fcntl(c->infd, F_SETFL, O_NONBLOCK);
	fcntl(c->outfd, F_SETFL, O_NONBLOCK);
}

static void *room(char **buf, size_t *size, size_t want)
{
	if (want > *size) {
		*size = want * 2;
		*buf = realloc(*buf, *size);
		if (!*buf)
			die("no memory");
	}
	return *buf;
}

unsigned client_ask(struct client *c, const char *method, const char *more_params)
{
	size_t most = strlen(method) + strlen(more_params) + 160;

	room(&c->out, &c->out_size, c->out_len + most);
	c->out_len += (size_t)snprintf(c->out + c->out_len, most,
		"{\"jsonrpc\":\"2.0\",\"id\":%u,\"method\":\"%s\",\"params\":{\"run_id\":\"r-bench\","
		"\"agent_id\":\"bench\"%s}}\n",
		++c->next_id, method, more_params);
	return c->next_id;
}

static void write_some(struct client *c)
{
	ssize_t n = write(c->infd, c->out + c->out_at, c->out_len - c->out_at);

	if (n < 0 && errno != EAGAIN)
		die("the agent does not read: %s", strerror(errno));
	if (n > 0)
		c->out_at += (size_t)n;
	if (c->out_at == c->out_len)
		c->out_at = c->out_len = 0;
}

static void read_some(struct client *c)
{
	ssize_t n;

	if (c->in_at == c->in_len)
		c->in_at = c->in_len = 0;
	room(&c->in, &c->in_size, c->in_len + 65536);
	n = read(c->outfd, c->in + c->in_len, 65536);
	if (n == 0)
		die("the agent has ended");
	if (n < 0 && errno != EAGAIN)
		die("cannot read from the agent: %s", strerror(errno));
	if (n > 0) {
		c->read_ns = now_ns();
		c->in_len += (size_t)n;
	}
}

void client_work(struct client *c, uint64_t deadline_ns)
{
	struct pollfd p[2] = {{.fd = c->outfd, .events = POLLIN},
		{.fd = c->infd, .events = POLLOUT}};
	struct timespec ts = {0};
	uint64_t now;

	if (c->out_len)
		write_some(c);
	now = now_ns();
	if (deadline_ns > now) {
		ts.tv_sec = (time_t)((deadline_ns - now) / SECOND);
		ts.tv_nsec = (long)((deadline_ns - now) % SECOND);
	}
	if (!c->out_len)
		p[1].fd = -1;
	if (ppoll(p, 2, &ts, NULL) > 0 && p[0].revents)
		read_some(c);
}

char *client_line(struct client *c)
{
	char *start = c->in + c->in_at, *end;

	if (c->in_at == c->in_len)
		return NULL;
	end = memchr(start, '\n', c->in_len - c->in_at);
	if (!end)
		return NULL;
	*end = '\0';
	c->in_at = (size_t)(end - c->in) + 1;
	return start;
}

json_t *client_reply(struct client *c, uint64_t *ret_ns)
{
	uint64_t limit = now_ns() + LIMIT;
	char *line;
	json_t *j;

	while (!(line = client_line(c))) {
		if (now_ns() > limit)
			die("no answer within a minute");
		client_work(c, limit);
	}
	if (ret_ns)
		*ret_ns = c->read_ns;
	j = json_loads(line, 0, NULL);
	if (!j)
		die("not JSON: %.200s", line);
	return j;
}

void client_handshake(struct client *c)
{
	client_ask(c, "handshake", "");
	json_decref(client_reply(c, NULL));
}

static void client_free(struct client *c)
{
	if (c->infd >= 0)
		close(c->infd);
	close(c->outfd);
	free(c->in);
	free(c->out);
	memset(c, 0, sizeof(*c));
	c->infd = c->outfd = c->pidfd = -1;
}

int client_end(struct client *c)
{
	int code;

	close(c->infd);
	c->infd = -1;
	code = await_end(c->pid, c->pidfd);
	client_free(c);
	return code;
}

void client_bury(struct client *c)
{
	await_end(c->pid, c->pidfd);
	client_free(c);
}

void client_kill(struct client *c)
{
	syscall(SYS_pidfd_send_signal, c->pidfd, SIGKILL, NULL, 0);
	client_bury(c);
}

int client_inject(struct client *c, pid_t pid)
{
	char more[256];

	snprintf(more, sizeof(more),
		",\"fault_id\":\"proc.pause\",\"lease\":{\"target\":{\"kind\":\"process\",\"pid\":%d},"
		"\"params\":{},\"duration_ms\":600000}",
		pid);
	return (int)client_ask(c, "task.execute", more);
}
