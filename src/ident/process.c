/* SPDX-License-Identifier: Apache-2.0 */
#include "ident/process.h"

#include <string.h>

#include "base/cleanup.h"
#include "base/json.h"
#include "base/text.h"
#include "os/pidfd.h"

static const char *const verdict_names[IDENT_VERDICT_MAX] = {"gone", "unverifiable", "foreign",
	"same", "owned"};

const char *ident_verdict_name(enum ident_verdict v)
{
	return verdict_names[v];
}

int ident_boot_id(char ret[static PROC_BOOT_ID_SIZE])
{
	static char known[PROC_BOOT_ID_SIZE];
	int r = known[0] ? 0 : procfs_boot_id(known);

	if (r == 0)
		memcpy(ret, known, sizeof(known));
	return r;
}

uint64_t ident_own_pidns(void)
{
	return procfs_ns_inode(0, "pid");
}

static void read_cgroup(pid_t pid, char *ret, size_t size)
{
	if (procfs_cgroup(pid, "", ret, size) < 0 && procfs_cgroup(pid, "freezer", ret, size) < 0)
		ret[0] = '\0';
	text_make_printable(ret);
}

int ident_read_fast(pid_t pid, struct proc_identity *ret, int *ret_pidfd, struct err *err)
{
	struct proc_identity id = {.pid = pid};
	struct proc_status status;
	struct proc_stat stat;
	_close_ int fd = -1;
	int r = pidfd_open_pid(pid, &fd);

	if (r == -ESRCH || r == -EINVAL)
		return err_set(err, "target.gone", ESRCH, "identity", "no process %d", pid);
	if (r == 0)
		r = procfs_read_stat(pid, &stat);
	if (r == 0)
		r = procfs_read_status(pid, &status);
	if (r == 0)
		r = ident_boot_id(id.boot_id);
	/* Not exited now: the number was its own all the time, so the facts are its own. */
	if (fd >= 0 && pidfd_has_exited(fd))
		return err_set(err, "target.gone", ESRCH, "identity", "process %d has ended", pid);
	if (r < 0)
		return err_set(err, "target.unverifiable", -r, "identity",
			"cannot inspect process %d", pid);
	id.start_ticks = stat.start_ticks;
	id.uid = status.uid;
	id.pidns_inode = ident_own_pidns();
	id.pidfs_inode = pidfd_inode(fd);
	text_copy(id.comm, sizeof(id.comm), stat.comm);
	text_make_printable(id.comm); /* any bytes, and cut at 15: a record holds text */
	*ret = id;
	if (ret_pidfd)
		*ret_pidfd = take_fd(&fd);
	return 0;
}

int ident_complete(struct proc_identity *id, int pidfd, struct err *err)
{
	uint64_t dev = 0, ino = 0;
	char cgroup[IDENT_CGROUP_SIZE];

	/* No exe (a kernel thread) or no right to see it is no error: it stays unknown. */
	if (procfs_exe(id->pid, &dev, &ino) < 0)
		dev = ino = 0;
	read_cgroup(id->pid, cgroup, sizeof(cgroup));
	if (pidfd_has_exited(pidfd))
		return err_set(err, "target.gone", ESRCH, "identity", "process %d has ended",
			id->pid);
	id->exe_dev = dev;
	id->exe_ino = ino;
	text_copy(id->cgroup, sizeof(id->cgroup), cgroup);
	return 0;
}

int ident_read(pid_t pid, struct proc_identity *ret, int *ret_pidfd, struct err *err)
{
	struct proc_identity id;
	_close_ int fd = -1;
	int r = ident_read_fast(pid, &id, &fd, err);

	if (r == 0)
		r = ident_complete(&id, fd, err);
	if (r < 0)
		return r;
	*ret = id;
	if (ret_pidfd)
		*ret_pidfd = take_fd(&fd);
	return 0;
}

static void decide(struct ident_match *m, enum ident_verdict v, const char *reason)
{
	m->verdict = v;
	m->reason = reason;
}

/* The last rung, for targets where the kernel has no pidfs: every fact must agree, and be known. */
static void match_weak(const struct proc_identity *was, const struct proc_identity *now,
	struct ident_match *m)
{
	if (was->uid != now->uid)
		decide(m, IDENT_FOREIGN, "its user differs");
	else if (was->exe_ino && !now->exe_ino)
		decide(m, IDENT_UNVERIFIABLE, "its executable cannot be read");
	else if (was->exe_ino != now->exe_ino || was->exe_dev != now->exe_dev)
		decide(m, IDENT_FOREIGN, "its executable differs");
	else if (!was->cgroup[0] || !now->cgroup[0])
		decide(m, IDENT_UNVERIFIABLE, "its cgroup is not known");
	else if (!text_equal(was->cgroup, now->cgroup))
		decide(m, IDENT_FOREIGN, "its cgroup differs");
	else {
		decide(m, IDENT_SAME, "start time, executable, user and cgroup agree");
		m->weak = true;
	}
}

/* Where the kernel has no pidfs, or had none: what /proc says, rung by rung. */
static void match_facts(const struct proc_identity *was, const char *nonce, int *ret_pidfd,
	struct ident_match *m)
{
	struct proc_identity now;
	struct err err = {0};
	bool ours = false;
	int r = ident_read(was->pid, &now, ret_pidfd, &err);

	if (r == -ESRCH)
		return decide(m, IDENT_GONE, "no such process");
	if (r < 0)
		return decide(m, IDENT_UNVERIFIABLE, "it cannot be inspected");
	if (was->start_ticks != now.start_ticks)
		decide(m, IDENT_FOREIGN, "its start time differs");
	else if (!nonce)
		match_weak(was, &now, m);
	else if (procfs_cgroup_ends_in(was->pid, nonce, &ours) < 0)
		decide(m, IDENT_UNVERIFIABLE, "its cgroup cannot be read");
	else if (ours)
		decide(m, IDENT_OWNED, "start time and launch nonce agree");
	else
		match_weak(was, &now, m);
}

/* The pidfd's own inode is never given to another process: it decides alone, and nothing else is read. */
static bool match_inode(const struct proc_identity *was, const char *nonce, int *ret_pidfd,
	struct ident_match *m)
{
	enum ident_verdict yes = nonce ? IDENT_OWNED : IDENT_SAME;
	_close_ int fd = -1;
	uint64_t inode;

	if (!was->pidfs_inode || pidfd_open_pid(was->pid, &fd) < 0)
		return false;
	inode = pidfd_inode(fd);
	if (!inode)
		return false;
	decide(m, was->pidfs_inode == inode ? yes : IDENT_FOREIGN, "pidfs inode");
	*ret_pidfd = take_fd(&fd);
	return true;
}

static void match_live(const struct proc_identity *was, const char *nonce, struct ident_match *m)
{
	_close_ int fd = -1;

	if (!match_inode(was, nonce, &fd, m))
		match_facts(was, nonce, &fd, m);
	/* What was read by number counts only if the pidfd is still alive behind it. */
	if (fd >= 0 && pidfd_has_exited(fd))
		return decide(m, IDENT_GONE, "it ended while it was looked at");
	if (m->verdict == IDENT_SAME || m->verdict == IDENT_OWNED)
		m->pidfd = take_fd(&fd);
}

void ident_match(const struct proc_identity *was, const char *nonce, struct ident_match *ret)
{
	struct ident_match m = {.verdict = IDENT_UNVERIFIABLE, .pidfd = -1};
	char boot_id[PROC_BOOT_ID_SIZE];

	if (was->pid <= 0)
		decide(&m, IDENT_GONE, "no pid was recorded");
	else if (!was->boot_id[0])
		decide(&m, IDENT_UNVERIFIABLE, "no boot was recorded");
	else if (ident_boot_id(boot_id) < 0)
		decide(&m, IDENT_UNVERIFIABLE, "this boot's id cannot be read");
	else if (!text_equal(boot_id, was->boot_id))
		decide(&m, IDENT_GONE, "it belonged to another boot");
	else if (was->pidns_inode && was->pidns_inode != ident_own_pidns())
		decide(&m, IDENT_UNVERIFIABLE, "it was recorded in another pid namespace");
	else
		match_live(was, nonce && nonce[0] ? nonce : NULL, &m);
	*ret = m;
}

json_t *ident_to_json(const struct proc_identity *id)
{
	return json_pack("{s:s, s:i, s:I, s:s, s:I, s:I, s:s, s:{s:I, s:I}, s:I, s:s}", "kind",
		"process", "pid", (int)id->pid, "start_ticks", (json_int_t)id->start_ticks,
		"boot_id", id->boot_id, "pidns_inode", (json_int_t)id->pidns_inode, "pidfs_inode",
		(json_int_t)id->pidfs_inode, "comm", id->comm, "exe", "device",
		(json_int_t)id->exe_dev, "inode", (json_int_t)id->exe_ino, "uid",
		(json_int_t)id->uid, "cgroup", id->cgroup);
}

static int get_u64(const json_t *j, const char *key, uint64_t *ret, struct err *err)
{
	int64_t v;
	int r = json_get_int(j, key, 0, INT64_MAX, &v, "lease.shape", err);

	if (r == -ENOENT)
		return err_set(err, "lease.shape", 0, "identity", "a process has no `%s`", key);
	if (r == 0)
		*ret = (uint64_t)v;
	return r;
}

static int get_text(const json_t *j, const char *key, char *dst, size_t size, struct err *err)
{
	int r = json_get_text(j, key, dst, size, "lease.shape", err);

	return r == -ENOENT
		? err_set(err, "lease.shape", 0, "identity", "a process has no `%s`", key)
		: r;
}

int ident_from_json(const json_t *j, struct proc_identity *ret, struct err *err)
{
	static const char *const keys[] = {"kind", "pid", "start_ticks", "boot_id", "pidns_inode",
		"pidfs_inode", "comm", "exe", "uid", "cgroup"};
	struct proc_identity id = {0};
	uint64_t pid, uid;
	const json_t *exe = json_object_get(j, "exe");

	if (!json_is_object(j) || !text_equal(json_text_or(j, "kind", ""), "process") ||
		!json_is_object(exe))
		return err_set(err, "lease.shape", 0, "identity", "not a process identity");
	if (json_check_keys(j, keys, ARRAY_SIZE(keys), "a process", "lease.shape", err) < 0 ||
		get_u64(j, "pid", &pid, err) < 0 || get_u64(j, "uid", &uid, err) < 0 ||
		get_u64(j, "start_ticks", &id.start_ticks, err) < 0 ||
		get_u64(j, "pidns_inode", &id.pidns_inode, err) < 0 ||
		get_u64(j, "pidfs_inode", &id.pidfs_inode, err) < 0 ||
		get_u64(exe, "device", &id.exe_dev, err) < 0 ||
		get_u64(exe, "inode", &id.exe_ino, err) < 0 ||
		get_text(j, "boot_id", id.boot_id, sizeof(id.boot_id), err) < 0 ||
		get_text(j, "comm", id.comm, sizeof(id.comm), err) < 0 ||
		get_text(j, "cgroup", id.cgroup, sizeof(id.cgroup), err) < 0)
		return -EINVAL;
	if (pid > INT32_MAX || uid > UINT32_MAX)
		return err_set(err, "lease.shape", 0, "identity", "pid or uid out of range");
	id.pid = (pid_t)pid;
	id.uid = (uid_t)uid;
	*ret = id;
	return 0;
}
