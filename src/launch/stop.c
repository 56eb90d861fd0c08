/* SPDX-License-Identifier: Apache-2.0 */
#include <signal.h>
#include <string.h>

#include "base/cleanup.h"
#include "launch/launch.h"
#include "os/pidfd.h"

#define KILL_WAIT_MS 5000

int launch_adopt(const struct launch_record *rec, struct launched *ret,
	enum ident_verdict *ret_verdict, struct err *err)
{
	struct launched l = LAUNCHED_INIT;
	struct ident_match m;

	ident_match(&rec->id, rec->nonce, &m);
	*ret_verdict = m.verdict;
	if (m.pidfd < 0)
		return err_set(err, m.verdict == IDENT_GONE ? "target.gone" : "target.unverifiable",
			0, "identity", "process %d: %s", rec->id.pid, m.reason);
	l.rec = *rec;
	l.pidfd = m.pidfd;
	*ret = l;
	return 0;
}

static int note_survivor(pid_t pid, void *arg)
{
	struct launch_end *end = arg;

	if (end->n_survivors < ARRAY_SIZE(end->survivors) &&
		ident_read_fast(pid, &end->survivors[end->n_survivors], NULL, NULL) == 0)
		end->n_survivors++;
	return 0;
}

static void reap(struct launched *l, struct launch_end *end)
{
	if (pidfd_reap(l->pidfd, &end->code, &end->signo) == 0)
		end->reaped = true;
}

/* Ends everything in the leaf and removes it. True when that is proven. */
static bool end_leaf(struct launched *l, struct cgroup_domain *domain, struct launch_end *end)
{
	if (!l->rec.cgroup[0] || !domain)
		return true;
	if (l->leaffd < 0 && cgroup_leaf_open(domain, l->rec.nonce, &l->leaffd) < 0)
		return true; /* removed already, which the kernel allows only when it is empty */
	if (cgroup_leaf_populated(domain, l->leaffd) > 0) {
		cgroup_leaf_kill(domain, l->leaffd);
		if (cgroup_leaf_wait_empty(domain, l->leaffd, KILL_WAIT_MS) < 0) {
			cgroup_each_process(l->leaffd, note_survivor, end);
			return false;
		}
	}
	reap(l, end); /* a zombie keeps nothing, but the directory may count it for a moment */
	return cgroup_leaf_remove(domain, l->rec.nonce) == 0;
}

int launch_stop(struct launched *l, struct cgroup_domain *domain, uint64_t grace_ms,
	struct launch_end *ret, struct err *err)
{
	struct launch_end end = {0};
	bool exited;

	if (grace_ms) {
		pidfd_signal(l->pidfd, SIGTERM);
		pidfd_signal(l->pidfd, SIGCONT); /* a stopped process would never see it */
	}
	exited = pidfd_wait_exit(l->pidfd, grace_ms) == 0;
	if (!exited) {
		end.escalated = true;
		/* The cgroup first where there is one: then nothing it forks meanwhile escapes. */
		if (!l->rec.cgroup[0])
			pidfd_signal(l->pidfd, SIGKILL);
	}
	end.dead = end_leaf(l, domain, &end);
	if (pidfd_wait_exit(l->pidfd, KILL_WAIT_MS) < 0)
		end.dead = false;
	reap(l, &end);
	*ret = end;
	if (end.dead)
		return 0;
	return err_set(err, "launch.failed", ETIMEDOUT, "stop", "death of process %d is not proven",
		l->rec.id.pid);
}

void launch_finish(struct launched *l, const struct cgroup_domain *domain, struct launch_end *ret)
{
	struct launch_end end = {0};

	reap(l, &end);
	end.dead = pidfd_has_exited(l->pidfd);
	close_now(&l->leaffd);
	if (domain && l->rec.cgroup[0] && cgroup_leaf_remove(domain, l->rec.nonce) < 0)
		end.dead = false; /* somebody it started lives there */
	if (ret)
		*ret = end;
}
