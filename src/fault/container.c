/* SPDX-License-Identifier: Apache-2.0 */
#include "fault/container.h"

#include <limits.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/text.h"

/* As tool.c's. */
#define DEFAULT_PATH "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"

bool container_engine_is_known(const char *engine)
{
	return text_equal(engine, "docker") || text_equal(engine, "podman") ||
		text_has_prefix(engine, "unix:///");
}

/* Whether tool_run() would find it: by absolute entries of PATH alone. */
static bool is_in_path(const char *command)
{
	const char *path = getenv("PATH");

	if (!path)
		path = DEFAULT_PATH;
	while (*path) {
		size_t len = strcspn(path, ":");
		char file[PATH_MAX];

		if (path[0] == '/' &&
			snprintf(file, sizeof(file), "%.*s/%s", (int)len, path, command) <
				(int)sizeof(file) &&
			access(file, X_OK) == 0)
			return true;
		path += len + (path[len] == ':');
	}
	return false;
}

size_t container_prefix(const char *engine, const char **ret)
{
	size_t n = 0;

	if (!text_has_prefix(engine, "unix:///")) {
		ret[n++] = engine;
	} else if (!is_in_path("docker") && is_in_path("podman")) {
		ret[n++] = "podman";
		ret[n++] = "--remote";
		ret[n++] = "--url";
		ret[n++] = engine;
	} else {
		/* Podman speaks Docker's interface on its socket, so this client serves both. */
		ret[n++] = "docker";
		ret[n++] = "-H";
		ret[n++] = engine;
	}
	return n;
}

static bool is_absent(const char *stderr_text)
{
	return stderr_text &&
		(strcasestr(stderr_text, "no such container") ||
			strcasestr(stderr_text, "no such object"));
}

/* "<64 hex> <pid>\n" */
static int parse_inspect(char *out, struct container *ret, pid_t *ret_pid)
{
	char *blank = out ? strchr(out, ' ') : NULL, *nl = blank ? strchr(blank, '\n') : NULL;
	uint64_t pid;

	if (!blank)
		return -EBADMSG;
	*blank++ = '\0';
	if (nl)
		*nl = '\0';
	if (!text_is_hex(out, CONTAINER_ID_SIZE - 1) || text_parse_u64(blank, &pid) < 0 ||
		pid > INT32_MAX)
		return -EBADMSG;
	text_copy(ret->id, sizeof(ret->id), out);
	*ret_pid = (pid_t)pid;
	return 0;
}

int container_resolve(struct fault_run *run, const char *engine, const char *name,
	struct container *ret, pid_t *ret_pid, struct err *err)
{
	const char *argv[12];
	size_t n = container_prefix(engine, argv);
	struct container c = {0};
	struct tool_result res;
	int r;

	argv[n++] = "inspect";
	argv[n++] = "--type";
	argv[n++] = "container";
	argv[n++] = "--format";
	argv[n++] = "{{.Id}} {{.State.Pid}}";
	argv[n++] = "--";
	argv[n++] = name;
	argv[n] = NULL;
	text_copy(c.engine, sizeof(c.engine), engine);
	r = tool_run(run, argv, TOOL_LIMIT_MS, &res, err);
	if (r < 0)
		return r;
	if (res.code == 0 && !res.timed_out)
		r = parse_inspect(res.out, &c, ret_pid);
	else
		r = is_absent(res.err) ? -ENOENT : -EIO;
	if (r < 0)
		err_set(err, r == -ENOENT ? "target_gone" : "failed_to_apply", 0, "container",
			"%s inspect %s: %.200s", engine, name,
			r == -EBADMSG	  ? "an answer that does not read"
				: res.err ? res.err
					  : "");
	else
		*ret = c;
	tool_result_free(&res);
	return r;
}

int container_signal(struct fault_run *run, const struct container *c, const char *signal,
	struct err *err)
{
	const char *argv[10];
	size_t n = container_prefix(c->engine, argv);

	argv[n++] = "kill";
	argv[n++] = "--signal";
	argv[n++] = signal;
	argv[n++] = c->id;
	argv[n] = NULL;
	return tool_must(run, argv, "signal", err);
}
