/* SPDX-License-Identifier: Apache-2.0 */
/*
 * proc.pause: a process, or it and all its descendants, stands still. The
 * kernel would let a stopped process's new children run on, so a tree is
 * stopped in rounds, each recorded before it is stopped, until one finds
 * nobody new.
 */
#include <fcntl.h>
#include <string.h>

#include "base/cleanup.h"
#include "base/clock.h"
#include "base/json.h"
#include "base/text.h"
#include "fault/steps.h"
#include "fault/stopping.h"
#include "os/pidfd.h"

#define ROUNDS_MAX 20
#define ROUNDS_LIMIT_MS 1000
#define TREE_MAX 4096

struct member {
	struct proc_identity id;
	int pidfd;
};

struct tree {
	struct member *list;
	size_t n, capacity;
};

static bool is_tree(const struct fault_run *run)
{
	return text_equal(json_text_or(run->lease->params, "scope", "process"), "tree");
}

static int root_identity(const struct fault_run *run, struct proc_identity *ret, struct err *err)
{
	return ident_from_json(run->lease->target, ret, err);
}

static void tree_free(struct tree *t)
{
	for (size_t i = 0; i < t->n; i++)
		close_now(&t->list[i].pidfd);
	free(t->list);
	memset(t, 0, sizeof(*t));
}

static bool tree_has(const struct tree *t, pid_t pid)
{
	for (size_t i = 0; i < t->n; i++)
		if (t->list[i].id.pid == pid && !pidfd_has_exited(t->list[i].pidfd))
			return true;
	return false;
}

/* Takes over pidfd. */
static int tree_add(struct tree *t, const struct proc_identity *id, int pidfd)
{
	if (t->n == t->capacity) {
		size_t capacity = t->capacity ? t->capacity * 2 : 1;
		void *p =
			capacity > TREE_MAX ? NULL : realloc(t->list, capacity * sizeof(*t->list));

		if (!p) {
			close(pidfd);
			return -ENOMEM;
		}
		t->list = p;
		t->capacity = capacity;
	}
	t->list[t->n++] = (struct member){*id, pidfd};
	return 0;
}

struct round {
	struct tree *tree;
	size_t found; /* new in this round */
	int error;
};

/* Anybody whose parent is in the tree joins it; the caller repeats until nobody does. */
static int join_by_parent(pid_t pid, void *arg)
{
	struct round *r = arg;
	struct proc_identity id;
	struct proc_stat st;
	int fd;

	if (procfs_read_stat(pid, &st) < 0 || !tree_has(r->tree, st.ppid) || tree_has(r->tree, pid))
		return 0;
	if (ident_read(pid, &id, &fd, NULL) < 0)
		return 0; /* ended meanwhile */
	/* The parent was read by number: asked again now that the process is held. */
	if (procfs_read_stat(pid, &st) < 0 || !tree_has(r->tree, st.ppid) || pidfd_has_exited(fd)) {
		close(fd);
		return 0;
	}
	r->error = tree_add(r->tree, &id, fd);
	r->found++;
	return r->error;
}

/* All descendants of what is in the tree. */
static int tree_extend(struct tree *t, size_t *ret_found, struct err *err)
{
	size_t all = 0;

	for (;;) {
		struct round r = {.tree = t};

		procfs_each_process(join_by_parent, &r);
		if (r.error)
			return err_set(err, "failed_to_apply", -r.error, "tree",
				"the tree has more than %d processes", TREE_MAX);
		all += r.found;
		if (r.found == 0)
			break;
	}
	*ret_found = all;
	return 0;
}

static int own_tree(struct fault_run *run, struct tree **ret)
{
	if (!run->state)
		run->state = calloc(1, sizeof(struct tree));
	*ret = run->state;
	return run->state ? 0 : -ENOMEM;
}

/* A holder beneath the target could no longer undo its own fault, nor an agent see to it. */
static int spare_mayhems(const struct tree *t, size_t first, struct err *err)
{
	for (size_t i = first; i < t->n; i++)
		if (launch_is_mayhems(t->list[i].id.pid, t->list[i].id.comm))
			return err_set(err, "target.protected", 0, "check",
				"process %d (%s) in the tree is Mayhem's own", t->list[i].id.pid,
				t->list[i].id.comm);
	return 0;
}

/* The root, and for a tree everybody beneath it, as they are now. */
static int pause_check(struct fault_run *run, struct err *err)
{
	struct proc_identity root;
	struct tree *t;
	size_t found;
	int fd, r = root_identity(run, &root, err);

	if (r < 0)
		return r;
	if (own_tree(run, &t) < 0 || (fd = fcntl(run->target_pidfd, F_DUPFD_CLOEXEC, 0)) < 0)
		return err_set(err, "failed_to_apply", ENOMEM, "check", "no memory");
	tree_free(t);
	if (tree_add(t, &root, fd) < 0)
		return err_set(err, "failed_to_apply", ENOMEM, "check", "no memory");
	if (is_tree(run)) {
		r = tree_extend(t, &found, err);
		if (r == 0)
			r = spare_mayhems(t, 0, err);
		if (r < 0)
			return r;
	}
	for (size_t i = 0; i < t->n; i++) {
		r = stopping_check(run, &t->list[i].id, t->list[i].pidfd, err);
		if (err_is(err, "target_gone") && i > 0)
			continue; /* a child that ended is nobody's trouble */
		if (r < 0)
			return r;
	}
	return 0;
}

static int record_from(struct fault_run *run, const struct tree *t, size_t first, struct err *err)
{
	for (size_t i = first; i < t->n; i++) {
		int r = stopping_record(run, &t->list[i].id, err);

		if (r < 0)
			return r;
	}
	return 0;
}

static int pause_record(struct fault_run *run, struct err *err)
{
	return record_from(run, run->state, 0, err);
}

/* All are told before one is waited for: who waits in vfork cannot stop before its child does. */
static int stop_from(struct fault_run *run, const struct tree *t, size_t first, struct err *err)
{
	for (size_t i = first; i < t->n; i++) {
		int r = stopping_send(t->list[i].id.pid, t->list[i].pidfd, err);

		if (r < 0 && !(i > 0 && err_is(err, "target_gone")))
			return r;
	}
	for (size_t i = first; i < t->n; i++) {
		int r = stopping_await(run, t->list[i].id.pid, t->list[i].pidfd, err);

		if (r < 0 && !(i > 0 && err_is(err, "target_gone")))
			return r;
	}
	return 0;
}

static int pause_inject(struct fault_run *run, struct err *err)
{
	uint64_t limit = clock_boottime_ms() + ROUNDS_LIMIT_MS;
	struct tree *t = run->state;
	size_t first = 0, found = 0;

	for (int round = 0; round < ROUNDS_MAX && clock_until_ms(limit); round++) {
		int r = stop_from(run, t, first, err);

		if (r < 0)
			return r;
		first = t->n;
		if (!is_tree(run))
			return 0;
		r = tree_extend(t, &found, err);
		if (r < 0 || found == 0)
			return r;
		/* Written down before it is stopped, in every round. */
		r = spare_mayhems(t, first, err);
		if (r == 0)
			r = record_from(run, t, first, err);
		if (r == 0)
			r = run_save(run, err);
		if (r < 0)
			return r;
	}
	return err_set(err, "failed_to_apply", 0, "inject",
		"the tree of process %d grows faster than it can be stopped", t->list[0].id.pid);
}

static void pause_done(struct fault_run *run)
{
	if (run->state)
		tree_free(run->state);
	free(run->state);
	run->state = NULL;
}

const struct fault_steps proc_pause_steps = {
	.id = "proc.pause",
	.check = pause_check,
	.record = pause_record,
	.inject = pause_inject,
	.observe = stopping_observe,
	.undo = stopping_undo,
	.verify = stopping_verify,
	.remedy = stopping_remedy,
	.done = pause_done,
};
