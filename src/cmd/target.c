/* SPDX-License-Identifier: Apache-2.0 */
#include "cmd/target.h"

#include <string.h>
#include <unistd.h>

#include "base/cleanup.h"
#include "base/clock.h"
#include "base/json.h"
#include "base/text.h"
#include "cmd/output.h"
#include "ident/process.h"
#include "os/procfs.h"

#define LISTED_MAX 8

static int own_identity(pid_t pid, json_t **ret, struct err *err)
{
	struct proc_identity id;
	int r = ident_read(pid, &id, NULL, err);

	if (r == -ESRCH) {
		err_set(err, "target.gone", 0, "target", "there is no process %d here", (int)pid);
		err_remedy(err, "name another by --pid or --process");
	}
	if (r < 0)
		return r;
	*ret = ident_to_json(&id);
	return *ret ? 0 : err_set(err, "internal", ENOMEM, "target", "no memory");
}

static int from_pid(const struct target_words *w, json_t **ret, struct err *err)
{
	int64_t number;
	pid_t pid;

	if (text_parse_i64(w->pid, &number) < 0)
		return err_set(err, "usage", 0, "target", "`%.32s` is no process id", w->pid);
	/* What no process has is refused where all else is that must not be touched. */
	if (!w->local || text_parse_pid(w->pid, &pid) < 0) {
		*ret = json_pack("{s:s, s:I}", "kind", "process", "pid", (json_int_t)number);
		return *ret ? 0 : err_set(err, "internal", ENOMEM, "target", "no memory");
	}
	return own_identity(pid, ret, err);
}

struct search {
	const char *name;
	pid_t found[LISTED_MAX];
	size_t n;
};

static int look(pid_t pid, void *arg)
{
	struct search *s = arg;
	struct proc_stat stat;

	if (pid == getpid() || procfs_read_stat(pid, &stat) < 0 || !text_equal(stat.comm, s->name))
		return 0;
	if (stat.state == 'Z' || stat.state == 'X')
		return 0;
	if (s->n < LISTED_MAX)
		s->found[s->n] = pid;
	s->n++;
	return 0;
}

static int several(const struct search *s, struct err *err)
{
	char list[128] = "";

	for (size_t i = 0; i < s->n && i < LISTED_MAX; i++) {
		size_t len = strlen(list);

		snprintf(list + len, sizeof(list) - len, "%s%d", i ? ", " : "", (int)s->found[i]);
	}
	err_set(err, "target.ambiguous", 0, "target", "%zu processes are named `%.32s`: pid %s%s",
		s->n, s->name, list, s->n > LISTED_MAX ? " and more" : "");
	err_remedy(err, "name one by --pid");
	return -EINVAL;
}

static int from_name(const struct target_words *w, json_t **ret, struct err *err)
{
	struct search s = {.name = w->process};
	int r;

	if (!w->local) {
		err_set(err, "usage", 0, "target", "--process looks on this host only");
		err_remedy(err, "name the process there by --pid");
		return -EINVAL;
	}
	r = procfs_each_process(look, &s);
	if (r < 0)
		return err_set(err, "internal", -r, "target", "cannot read /proc");
	if (s.n > 1)
		return several(&s, err);
	if (s.n == 0) {
		err_set(err, "target.gone", 0, "target", "no process here is named `%.64s`",
			w->process);
		err_remedy(err, "the name is what `ps -o comm` shows, at most 15 letters");
		return -ESRCH;
	}
	return own_identity(s.found[0], ret, err);
}

int target_resolve(const struct target_words *w, json_t **ret, struct err *err)
{
	const char *given[] = {w->pid, w->process, w->service, w->container, w->unit};
	size_t n = 0;

	for (size_t i = 0; i < ARRAY_SIZE(given); i++)
		n += given[i] != NULL;
	if (n > 1)
		return err_set(err, "usage", 0, "target", "more than one target is named");
	if (n == 0 && !w->host) {
		err_set(err, "usage", 0, "target", "no target is named");
		err_remedy(err,
			"one of --pid, --process, --service, --container, --unit; "
			"--host local for this host itself");
		return -EINVAL;
	}
	if (w->pid)
		return from_pid(w, ret, err);
	if (w->process)
		return from_name(w, ret, err);
	if (w->service)
		*ret = json_pack("{s:s, s:s}", "kind", "service", "name", w->service);
	else if (w->container)
		*ret = json_pack("{s:s, s:s, s:s}", "kind", "container", "engine",
			w->engine ? w->engine : "docker", "id", w->container);
	else if (w->unit)
		*ret = json_pack("{s:s, s:s}", "kind", "unit", "name", w->unit);
	else
		*ret = json_pack("{s:s}", "kind", "host");
	return *ret ? 0 : err_set(err, "usage", 0, "target", "the target's name is no text");
}

const char *target_text(const json_t *target, char *buf, size_t size)
{
	const char *kind = json_text_or(target, "kind", "target");
	const char *comm = json_text_or(target, "comm", NULL);
	const char *name = json_text_or(target, "name", json_text_or(target, "id", ""));

	if (!json_is_object(target))
		text_copy(buf, size, "-");
	else if (!text_equal(kind, "process"))
		snprintf(buf, size, "%s%s%s", kind, name[0] ? " " : "", name);
	else if (comm)
		snprintf(buf, size, "process %lld (%s)", (long long)json_int_or(target, "pid", 0),
			comm);
	else
		snprintf(buf, size, "process %lld", (long long)json_int_or(target, "pid", 0));
	return buf;
}

const char *target_since(const json_t *target, char *buf)
{
	char here[PROC_BOOT_ID_SIZE], utc[CLOCK_UTC_SIZE];
	uint64_t ticks = (uint64_t)json_int_or(target, "start_ticks", 0);
	long hz = sysconf(_SC_CLK_TCK);

	text_copy(buf, OUTPUT_TIME_SIZE, "-");
	if (!ticks || hz <= 0 || procfs_boot_id(here) < 0 ||
		!text_equal(here, json_text_or(target, "boot_id", "")))
		return buf;
	clock_format_utc(clock_utc_ms() - clock_boottime_ms() + ticks * 1000 / (uint64_t)hz, utc);
	return output_local_time(utc, 0, buf);
}
