/* SPDX-License-Identifier: Apache-2.0 */
#include "os/procfs.h"

#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>

#include "base/cleanup.h"
#include "base/file.h"
#include "base/text.h"

/* One blank-separated field; advances *p past it and the blank. */
static int next_field(const char **p, const char *end, const char **ret, size_t *ret_len)
{
	const char *start = *p, *blank;

	if (start >= end)
		return -EBADMSG;
	blank = memchr(start, ' ', (size_t)(end - start));
	*ret = start;
	*ret_len = (size_t)((blank ? blank : end) - start);
	*p = blank ? blank + 1 : end;
	return *ret_len ? 0 : -EBADMSG;
}

static int next_i64(const char **p, const char *end, int64_t *ret)
{
	char buf[24];
	const char *s;
	size_t len;
	int r = next_field(p, end, &s, &len);

	if (r < 0)
		return r;
	if (len >= sizeof(buf))
		return -EBADMSG;
	memcpy(buf, s, len);
	buf[len] = '\0';
	return text_parse_i64(buf, ret) < 0 ? -EBADMSG : 0;
}

/* Skips n fields. */
static int skip_fields(const char **p, const char *end, unsigned n)
{
	const char *s;
	size_t len;

	while (n--) {
		int r = next_field(p, end, &s, &len);

		if (r < 0)
			return r;
	}
	return 0;
}

static int parse_head(const char *text, const char *open, const char *close, struct proc_stat *ret)
{
	size_t comm_len = (size_t)(close - open - 1);
	uint64_t pid;

	if (open == text || open[-1] != ' ')
		return -EBADMSG;
	if (text_parse_u64_n(text, (size_t)(open - text - 1), &pid) < 0 || pid > INT32_MAX)
		return -EBADMSG;
	if (comm_len >= sizeof(ret->comm) || memchr(open, '\0', comm_len + 1))
		return -EBADMSG;
	ret->pid = (pid_t)pid;
	memcpy(ret->comm, open + 1, comm_len);
	ret->comm[comm_len] = '\0';
	return 0;
}

static int parse_tail(const char *p, const char *end, struct proc_stat *ret)
{
	int64_t v[6], flags, threads, start;
	const char *s;
	size_t len;

	if (next_field(&p, end, &s, &len) < 0 || len != 1 || *s < 'A' || *s > 'z')
		return -EBADMSG;
	ret->state = *s;
	for (size_t i = 0; i < 5; i++) /* ppid pgrp session tty_nr tpgid */
		if (next_i64(&p, end, &v[i]) < 0 || v[i] < INT32_MIN || v[i] > INT32_MAX)
			return -EBADMSG;
	if (next_i64(&p, end, &flags) < 0 || flags < 0 || flags > UINT32_MAX)
		return -EBADMSG;
	if (skip_fields(&p, end, 10) < 0 || next_i64(&p, end, &threads) < 0 || threads < 0)
		return -EBADMSG;
	if (skip_fields(&p, end, 1) < 0 || next_i64(&p, end, &start) < 0 || start < 0)
		return -EBADMSG;
	ret->ppid = (pid_t)v[0];
	ret->pgrp = (pid_t)v[1];
	ret->session = (pid_t)v[2];
	ret->tty_nr = (int)v[3];
	ret->tpgid = (pid_t)v[4];
	ret->flags = (unsigned)flags;
	ret->num_threads = (uint64_t)threads;
	ret->start_ticks = (uint64_t)start;
	return 0;
}

int procfs_parse_stat(const char *text, size_t len, struct proc_stat *ret)
{
	struct proc_stat st = {0};
	const char *open = memchr(text, '(', len);
	const char *close = memrchr(text, ')', len);
	const char *end = text + len;

	if (!open || !close || close < open || end - close < 3 || close[1] != ' ')
		return -EBADMSG;
	if (end[-1] == '\n')
		end--;
	if (parse_head(text, open, close, &st) < 0 || parse_tail(close + 2, end, &st) < 0)
		return -EBADMSG;
	*ret = st;
	return 0;
}

/* -ENOENT of a /proc/<pid> path is a process that is gone. */
static int gone(ssize_t r)
{
	return r == -ENOENT ? -ESRCH : (int)r;
}

static int read_stat(const char *path, struct proc_stat *ret)
{
	char buf[2048];
	ssize_t n = file_read_into(AT_FDCWD, path, buf, sizeof(buf));

	if (n < 0)
		return gone(n);
	return procfs_parse_stat(buf, (size_t)n, ret);
}

int procfs_read_stat(pid_t pid, struct proc_stat *ret)
{
	char path[64];

	if (pid <= 0)
		return -EINVAL;
	snprintf(path, sizeof(path), "/proc/%d/stat", pid);
	return read_stat(path, ret);
}

int procfs_read_thread_stat(pid_t pid, pid_t tid, struct proc_stat *ret)
{
	char path[64];

	snprintf(path, sizeof(path), "/proc/%d/task/%d/stat", pid, tid);
	return read_stat(path, ret);
}

/* The value of the line that starts with key, up to its end. */
static int status_line(const char *text, const char *key, const char **ret, size_t *ret_len)
{
	size_t klen = strlen(key);

	for (const char *p = text; *p;) {
		const char *nl = strchrnul(p, '\n');

		if (strncmp(p, key, klen) == 0 && p[klen] == ':') {
			p += klen + 1;
			p += strspn(p, "\t ");
			*ret = p;
			*ret_len = p < nl ? (size_t)(nl - p) : 0;
			return 0;
		}
		p = *nl ? nl + 1 : nl;
	}
	return -EBADMSG;
}

static int status_hex(const char *text, const char *key, uint64_t *ret)
{
	const char *v;
	size_t len;

	if (status_line(text, key, &v, &len) < 0)
		return -EBADMSG;
	return text_parse_hex_n(v, len, ret) < 0 ? -EBADMSG : 0;
}

/* The nth tab-separated number of a line (from 0). */
static int status_nth(const char *text, const char *key, unsigned nth, uint64_t *ret)
{
	const char *v;
	size_t len;

	if (status_line(text, key, &v, &len) < 0)
		return -EBADMSG;
	for (;;) {
		size_t digits = strspn(v, "0123456789");

		if (digits == 0 || digits > len)
			return -EBADMSG;
		if (nth-- == 0)
			return text_parse_u64_n(v, digits, ret) < 0 ? -EBADMSG : 0;
		v += digits;
		len -= digits;
		if (len == 0 || *v != '\t')
			return -EBADMSG;
		v++;
		len--;
	}
}

static int status_ns_pids(const char *text, struct proc_status *ret)
{
	unsigned n = 0;
	uint64_t pid;

	while (n < 32 && status_nth(text, "NSpid", n, &pid) == 0) {
		ret->ns_pid = (pid_t)pid;
		n++;
	}
	ret->ns_levels = n;
	return n ? 0 : -EBADMSG;
}

int procfs_parse_status(const char *text, struct proc_status *ret)
{
	struct proc_status st = {0};
	uint64_t tracer, euid;

	if (status_nth(text, "TracerPid", 0, &tracer) < 0 || status_nth(text, "Uid", 1, &euid) < 0)
		return -EBADMSG;
	if (status_hex(text, "SigBlk", &st.sig_blocked) < 0 ||
		status_hex(text, "SigIgn", &st.sig_ignored) < 0 ||
		status_hex(text, "SigCgt", &st.sig_caught) < 0 || status_ns_pids(text, &st) < 0)
		return -EBADMSG;
	st.tracer_pid = (pid_t)tracer;
	st.uid = (uid_t)euid;
	*ret = st;
	return 0;
}

int procfs_read_status(pid_t pid, struct proc_status *ret)
{
	char path[64], buf[8192];
	ssize_t n;

	if (pid <= 0)
		return -EINVAL;
	snprintf(path, sizeof(path), "/proc/%d/status", pid);
	n = file_read_into(AT_FDCWD, path, buf, sizeof(buf));
	return n < 0 ? gone(n) : procfs_parse_status(buf, ret);
}

int procfs_boot_id(char ret[static PROC_BOOT_ID_SIZE])
{
	char buf[64];
	ssize_t n = file_read_into(AT_FDCWD, "/proc/sys/kernel/random/boot_id", buf, sizeof(buf));

	if (n < 0)
		return (int)n;
	if (n != PROC_BOOT_ID_SIZE || buf[n - 1] != '\n')
		return -EBADMSG;
	memcpy(ret, buf, PROC_BOOT_ID_SIZE - 1);
	ret[PROC_BOOT_ID_SIZE - 1] = '\0';
	return 0;
}

void procfs_machine_id(char ret[static 33])
{
	char buf[64];
	ssize_t n = file_read_into(AT_FDCWD, "/etc/machine-id", buf, sizeof(buf));

	ret[0] = '\0';
	if (n < 32)
		return;
	buf[32] = '\0';
	if (text_is_hex(buf, 32))
		memcpy(ret, buf, 33);
}

uint64_t procfs_ns_inode(pid_t pid, const char *name)
{
	char path[64];
	struct stat st;

	if (pid)
		snprintf(path, sizeof(path), "/proc/%d/ns/%s", pid, name);
	else
		snprintf(path, sizeof(path), "/proc/self/ns/%s", name);
	return stat(path, &st) < 0 ? 0 : st.st_ino;
}

int procfs_exe(pid_t pid, uint64_t *ret_dev, uint64_t *ret_ino)
{
	char path[64];
	struct stat st;

	snprintf(path, sizeof(path), "/proc/%d/exe", pid);
	if (stat(path, &st) < 0)
		return gone(-errno);
	*ret_dev = st.st_dev;
	*ret_ino = st.st_ino;
	return 0;
}

/* Calls fn with the controllers and path of each line of /proc/<pid>/cgroup. */
static int each_cgroup(pid_t pid, int (*fn)(const char *controllers, const char *path, void *arg),
	void *arg)
{
	char file[64], buf[8192];
	ssize_t n;

	if (pid)
		snprintf(file, sizeof(file), "/proc/%d/cgroup", pid);
	else
		snprintf(file, sizeof(file), "/proc/self/cgroup");
	n = file_read_into(AT_FDCWD, file, buf, sizeof(buf));
	if (n < 0)
		return gone(n);
	for (char *line = buf, *nl; *line; line = nl + 1) {
		char *controllers, *path;
		int r;

		nl = strchr(line, '\n');
		if (!nl)
			return -EBADMSG;
		*nl = '\0';
		controllers = strchr(line, ':');
		path = controllers ? strchr(controllers + 1, ':') : NULL;
		if (!path)
			return -EBADMSG;
		*path++ = '\0';
		r = fn(controllers + 1, path, arg);
		if (r)
			return r;
	}
	return 0;
}

struct cgroup_query {
	const char *controller;
	char *ret;
	size_t size;
};

static bool list_has(const char *list, const char *word)
{
	size_t len = strlen(word);

	for (const char *p = list; p; p = strchr(p, ',')) {
		p += *p == ',';
		if (strncmp(p, word, len) == 0 && (p[len] == ',' || p[len] == '\0'))
			return true;
	}
	return false;
}

static int match_controller(const char *controllers, const char *path, void *arg)
{
	struct cgroup_query *q = arg;
	bool hit = q->controller[0] ? list_has(controllers, q->controller) : controllers[0] == '\0';

	if (!hit)
		return 0;
	return text_copy(q->ret, q->size, path) ? 1 : -ENAMETOOLONG;
}

int procfs_cgroup(pid_t pid, const char *controller, char *ret, size_t size)
{
	struct cgroup_query q = {controller, ret, size};
	int r = each_cgroup(pid, match_controller, &q);

	if (r < 0)
		return r;
	return r ? 0 : -ENOENT;
}

static int match_suffix(const char *controllers _unused_, const char *path, void *arg)
{
	const char *slash = strrchr(path, '/');

	return slash && text_equal(slash + 1, arg);
}

int procfs_cgroup_ends_in(pid_t pid, const char *name, bool *ret)
{
	int r = each_cgroup(pid, match_suffix, (void *)(uintptr_t)name);

	if (r < 0)
		return r;
	*ret = r > 0;
	return 0;
}

static int each_number(const char *path, int (*fn)(pid_t, void *), void *arg)
{
	_closedir_ DIR *d = opendir(path);
	struct dirent *e;

	if (!d)
		return gone(-errno);
	while ((errno = 0, e = readdir(d))) {
		pid_t pid;
		int r;

		if (text_parse_pid(e->d_name, &pid) < 0)
			continue;
		r = fn(pid, arg);
		if (r)
			return r;
	}
	return errno ? gone(-errno) : 0;
}

int procfs_each_process(int (*fn)(pid_t, void *), void *arg)
{
	return each_number("/proc", fn, arg);
}

int procfs_each_thread(pid_t pid, int (*fn)(pid_t, void *), void *arg)
{
	char path[64];

	snprintf(path, sizeof(path), "/proc/%d/task", pid);
	return each_number(path, fn, arg);
}
