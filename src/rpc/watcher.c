/* SPDX-License-Identifier: Apache-2.0 */
/* The watcher that an agent leaves behind for leases that outlive their session. */
#include <poll.h>
#include <signal.h>
#include <string.h>
#include <sys/inotify.h>

#include "base/cleanup.h"
#include "base/text.h"
#include "lease/halt.h"
#include "lease/recover.h"
#include "os/pidfd.h"
#include "rpc/clerk_body.h"

/* Over: its leaf goes, and what it did not finish is finished. */
static void on_ended(struct watcher_ask *ask, struct watched *w)
{
	close_now(&w->pidfd);
	lease_recover_one(ask->store, w->key, ask->find_steps, NULL);
	cgroup_leaf_remove(&ask->store->domain, w->nonce);
}

/* One run's halt ends its leases, the store's or the host's ends all. */
static void check_halt(struct watcher_ask *ask)
{
	for (size_t i = 0; i < ask->n; i++) {
		_lease_ struct lease l = {0};

		if (ask->held[i].pidfd < 0 ||
			lease_peek(ask->store, ask->held[i].key, &l, NULL) < 0)
			continue;
		if (halt_is_on(ask->store, l.run_id))
			pidfd_signal(ask->held[i].pidfd, SIGTERM);
	}
}

static int watch_halt(const struct lease_store *s)
{
	int fd = inotify_init1(IN_CLOEXEC | IN_NONBLOCK);

	if (fd < 0)
		return -1;
	inotify_add_watch(fd, s->dir.path, IN_CREATE | IN_MOVED_TO);
	inotify_add_watch(fd, HALT_HOST_DIR, IN_CREATE | IN_MOVED_TO);
	return fd;
}

int watcher_body(void *arg, int linkfd, const struct launch_record *rec)
{
	struct watcher_ask *ask = arg;
	struct pollfd *p = calloc(ask->n + 1, sizeof(*p));
	size_t left = ask->n;
	char buf[4096];

	close(linkfd); /* nobody is at the other end */
	ask->store->domain.basefd = -1;
	if (!p)
		return 1;
	p[ask->n] = (struct pollfd){.fd = watch_halt(ask->store), .events = POLLIN};
	check_halt(ask);
	while (left) {
		for (size_t i = 0; i < ask->n; i++)
			p[i] = (struct pollfd){.fd = ask->held[i].pidfd, .events = POLLIN};
		if (poll(p, ask->n + 1, -1) <= 0)
			continue;
		for (size_t i = 0; i < ask->n; i++)
			if (p[i].fd >= 0 && p[i].revents) {
				on_ended(ask, &ask->held[i]);
				left--;
			}
		if (p[ask->n].revents) {
			while (read(p[ask->n].fd, buf, sizeof(buf)) > 0)
				;
			check_halt(ask);
		}
	}
	free(p);
	if (cgroup_leave_self(&ask->store->domain) == 0)
		cgroup_leaf_remove(&ask->store->domain, rec->nonce);
	cgroup_domain_prune(&ask->store->domain);
	return 0;
}
