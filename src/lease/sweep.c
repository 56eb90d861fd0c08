/* SPDX-License-Identifier: Apache-2.0 */
#include "lease/sweep.h"

#include <string.h>
#include <sys/file.h>

#include "base/cleanup.h"
#include "base/file.h"
#include "base/text.h"

#define KILL_WAIT_MS 5000

struct sweep {
	struct lease_store *s;
	bool remove;
	json_t *list;
	json_t *nonces; /* of leases not at a safe end: an object used as a set */
};

static int note_nonce(const char *key, void *arg)
{
	struct sweep *w = arg;
	_lease_ struct lease l = {0};

	if (lease_peek(w->s, key, &l, NULL) == 0 && !lease_is_safe(&l) && l.holder.nonce[0])
		json_object_set_new(w->nonces, l.holder.nonce, json_true());
	return 0;
}

static int sweep_leaf(const char *nonce, void *arg)
{
	struct sweep *w = arg;
	char name[LAUNCH_CGROUP_SIZE];
	_close_ int fd = -1;
	bool populated, removed = false;

	if (cgroup_leaf_open(&w->s->domain, nonce, &fd) < 0)
		return 0;
	/* Its launcher or the process itself holds the lock as long as one of them lives. */
	if (file_lock_try(fd, 1) < 0 || json_object_get(w->nonces, nonce))
		return 0;
	populated = cgroup_leaf_populated(&w->s->domain, fd) > 0;
	if (!populated) {
		cgroup_leaf_remove(&w->s->domain, nonce);
		return 0;
	}
	if (w->remove && cgroup_leaf_kill(&w->s->domain, fd) == 0 &&
		cgroup_leaf_wait_empty(&w->s->domain, fd, KILL_WAIT_MS) == 0)
		removed = cgroup_leaf_remove(&w->s->domain, nonce) == 0;
	snprintf(name, sizeof(name), "mayhem/%s/%s", w->s->dir.store, nonce);
	json_array_append_new(w->list,
		json_pack("{s:s, s:s, s:b}", "kind", "cgroup", "name", name, "removed", removed));
	return 0;
}

int lease_sweep(struct lease_store *s, bool remove, json_t *list)
{
	struct sweep w = {.s = s, .remove = remove, .list = list, .nonces = json_object()};
	int r;

	/* Marks are judged by records read before: a launch holds its leaf's lock until its record is durable. */
	r = lease_each(s, false, note_nonce, &w);
	if (r == 0)
		r = cgroup_each_leaf(&s->domain, sweep_leaf, &w);
	json_decref(w.nonces);
	cgroup_domain_prune(&s->domain);
	return r;
}
