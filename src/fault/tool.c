/* SPDX-License-Identifier: Apache-2.0 */
#include "fault/tool.h"

#include <fcntl.h>
#include <poll.h>
#include <string.h>

#include "base/cleanup.h"
#include "base/clock.h"
#include "base/json.h"
#include "base/text.h"
#include "os/pidfd.h"

#define POLL_MS 20
#define EXIT_LIMIT_MS 2000
#define DETAIL_MAX 200

struct capture {
	int fd;
	char *data;
	size_t len;
};

void tool_result_free(struct tool_result *r)
{
	free(r->out);
	free(r->err);
	memset(r, 0, sizeof(*r));
}

/* Reads what is there; beyond the limit it is read and thrown away, so that the command is not held up. */
static void drain(struct capture *c)
{
	char chunk[16384];
	ssize_t n;

	while (c->fd >= 0 && (n = read(c->fd, chunk, sizeof(chunk))) != 0) {
		size_t keep;
		char *p;

		if (n < 0)
			return;
		keep = (size_t)n < TOOL_OUTPUT_MAX - c->len ? (size_t)n : TOOL_OUTPUT_MAX - c->len;
		p = realloc(c->data, c->len + keep + 1);
		if (!p)
			continue;
		memcpy(p + c->len, chunk, keep);
		c->data = p;
		c->len += keep;
		c->data[c->len] = '\0';
	}
	close_now(&c->fd);
}

/* 0 ended, -ETIMEDOUT, -EINTR. */
static int follow(struct fault_run *run, struct launched *l, struct capture *out,
	struct capture *err_out, uint64_t limit_ms)
{
	uint64_t limit = clock_boottime_ms() + limit_ms;

	for (;;) {
		struct pollfd p[] = {
			{.fd = l->pidfd, .events = POLLIN},
			{.fd = out->fd, .events = POLLIN},
			{.fd = err_out->fd, .events = POLLIN},
		};

		poll(p, ARRAY_SIZE(p), POLL_MS);
		drain(out);
		drain(err_out);
		if (pidfd_has_exited(l->pidfd)) {
			/* A grandchild may hold the pipes: what was written before the end is there now. */
			drain(out);
			drain(err_out);
			return 0;
		}
		if (clock_until_ms(limit) == 0)
			return -ETIMEDOUT;
		if (run_wait(run, 0) < 0)
			return -EINTR;
	}
}

static void environment(char path[static 1024], char home[static 512], char **envp)
{
	const char *p = getenv("PATH"), *h = getenv("HOME");

	snprintf(path, 1024, "PATH=%s",
		p ? p : "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin");
	snprintf(home, 512, "HOME=%s", h ? h : "/");
	envp[0] = path;
	envp[1] = home;
	envp[2] = NULL;
}

static int start(struct fault_run *run, const char *const *argv, struct capture *out,
	struct capture *err_out, struct launched *ret, struct err *err)
{
	char path[1024], home[512], *envp[3];
	int o[2] = {-1, -1}, e[2] = {-1, -1}, r;
	struct launch_spec spec = {
		.kind = LAUNCH_TOOL,
		.domain = run->tools,
		.argv = (char *const *)(uintptr_t)argv,
		.envp = envp,
		.cwdfd = -1,
		.stdfd = {-1, -1, -1},
		.required = LAUNCH_DIM_ALL,
	};

	environment(path, home, envp);
	if (pipe2(o, O_CLOEXEC) < 0 || pipe2(e, O_CLOEXEC) < 0) {
		r = err_set(err, "failed_to_apply", errno, "tool", "cannot make pipes");
	} else {
		spec.stdfd[1] = o[1];
		spec.stdfd[2] = e[1];
		fcntl(o[0], F_SETFL, O_NONBLOCK);
		fcntl(e[0], F_SETFL, O_NONBLOCK);
		r = launch_hold(&spec, NULL, ret, err);
		if (r == 0)
			r = launch_go(ret, err);
		if (r < 0) {
			if (ret->pidfd >= 0 && pidfd_wait_exit(ret->pidfd, EXIT_LIMIT_MS) == 0)
				launch_finish(ret, run->tools, NULL);
			launched_close(ret);
			err_set(err, "failed_to_apply", -r, "tool", "cannot run %s", argv[0]);
		}
	}
	close_now(&o[1]);
	close_now(&e[1]);
	out->fd = o[0];
	err_out->fd = e[0];
	return r;
}

int tool_run(struct fault_run *run, const char *const *argv, uint64_t limit_ms,
	struct tool_result *ret, struct err *err)
{
	struct capture out = {.fd = -1}, err_out = {.fd = -1};
	struct launched l = LAUNCHED_INIT;
	struct launch_end end = {0};
	int r = start(run, argv, &out, &err_out, &l, err), f = 0;

	if (r == 0) {
		f = follow(run, &l, &out, &err_out, limit_ms);
		/* What it left running on purpose (an engine's monitor) is nobody's to kill. */
		if (f == 0 && l.leaffd >= 0 && cgroup_leaf_populated(run->tools, l.leaffd) > 0)
			cgroup_leaf_let_go(run->tools, l.leaffd);
		if (f == 0)
			launch_finish(&l, run->tools, &end);
		else
			launch_stop(&l, run->tools, 0, &end, NULL);
		launched_close(&l);
	}
	close_now(&out.fd);
	close_now(&err_out.fd);
	*ret = (struct tool_result){.code = end.code,
		.signo = end.signo,
		.timed_out = f == -ETIMEDOUT,
		.out = out.data,
		.err = err_out.data};
	if (r == 0 && f == -EINTR)
		r = err_set(err, "cancelled", EINTR, "tool", "%s was ended", argv[0]);
	if (r < 0)
		tool_result_free(ret);
	return r;
}

int tool_must(struct fault_run *run, const char *const *argv, const char *stage, struct err *err)
{
	struct tool_result res;
	int r = tool_run(run, argv, TOOL_LIMIT_MS, &res, err);

	if (r < 0)
		return r;
	if (res.timed_out)
		r = err_set(err, "failed_to_apply", 0, stage, "%s took longer than %d s", argv[0],
			TOOL_LIMIT_MS / 1000);
	else if (res.signo)
		r = err_set(err, "failed_to_apply", 0, stage, "%s was ended by signal %d", argv[0],
			res.signo);
	else if (res.code)
		r = err_set(err, "failed_to_apply", 0, stage, "%s answered %d: %.*s", argv[0],
			res.code, DETAIL_MAX, res.err ? res.err : "");
	tool_result_free(&res);
	return r;
}

void tool_free_argv(char **argv)
{
	for (size_t i = 0; argv && argv[i]; i++)
		free(argv[i]);
	free(argv);
}

/* One item with each placeholder replaced. NULL without memory. */
static char *replace(const char *item, const char *engine, const char *cont)
{
	size_t size = strlen(item) + 1;
	char *out, *w;

	for (const char *p = item; engine && (p = strchr(p, '@')); p++)
		size += strlen(engine) + strlen(cont);
	out = w = malloc(size);
	if (!out)
		return NULL;
	while (*item) {
		const char *by = NULL;

		if (engine && text_has_prefix(item, "@engine"))
			by = engine, item += 7;
		else if (engine && text_has_prefix(item, "@cont"))
			by = cont, item += 5;
		if (by)
			w = stpcpy(w, by);
		else
			*w++ = *item++;
	}
	*w = '\0';
	return out;
}

int tool_parse_argv(const char *json, const char *engine, const char *cont, char ***ret,
	struct err *err)
{
	_json_ json_t *list = NULL;
	char **argv;
	size_t i;
	json_t *v;

	if (json_parse(json, strlen(json), &list, err) < 0 || !json_is_array(list))
		return err_set(err, "lease.shape", 0, "tool",
			"an argv must be JSON text of a list of strings");
	if (json_array_size(list) == 0 || json_array_size(list) > TOOL_ARGS_MAX)
		return err_set(err, "lease.shape", 0, "tool", "an argv has 1 to %d items",
			TOOL_ARGS_MAX);
	argv = calloc(json_array_size(list) + 1, sizeof(*argv));
	if (!argv)
		return err_set(err, "lease.shape", ENOMEM, "tool", "no memory");
	json_array_foreach(list, i, v) {
		argv[i] = json_is_string(v) ? replace(json_string_value(v), engine, cont) : NULL;
		if (!argv[i] || !*argv[0] || strstr(argv[i], "@engine") ||
			strstr(argv[i], "@cont")) {
			tool_free_argv(argv);
			return err_set(err, "lease.shape", 0, "tool",
				"an argv holds something that is no text, or @engine or @cont without both known");
		}
	}
	*ret = argv;
	return 0;
}
