/* SPDX-License-Identifier: Apache-2.0 */
/* What runs in the holder's process. Internal to lease. */
#pragma once

#include "lease/holder.h"

#define LINK_TYPE_ERR 0	 /* a struct err: the launch layer's own word */
#define LINK_TYPE_NEWS 1 /* JSON text */

struct holder_work {
	const struct holder_setup *setup;
	struct lease lease;
	struct lease_file file;
	struct fault_run run;
	struct cgroup_domain tools; /* beneath our own leaf, so that its end is theirs */
	int linkfd, sigfd, timerfd;
	int haltfd;		  /* an epoll on the agent's inotify: see holder_watch_halt() */
	enum lease_end stop;	  /* why it is to end, NONE: go on */
	bool undoing;		  /* from here on nothing interrupts a wait */
	bool held;		  /* the effect was observed once */
	uint64_t end_boottime_us; /* of the duration, 0: not yet or none */
	uint64_t poll_us;	  /* until the next look at the effect */
	enum effect effect;	  /* as last seen */
	unsigned lost_news;	  /* packets that the agent did not take */
};

/* The launch journal's claim: pending, durable. Runs in the held child. */
int holder_claim(void *self, const struct launch_record *rec, struct err *err);

int holder_body(void *arg, int linkfd, const struct launch_record *rec);

/* What the holder keeps open; fills at most 16. */
size_t holder_keepfds(const struct holder_setup *setup, int *ret);

/* Waits up to us for anything that concerns this lease, and deals with it. */
int holder_watch(struct holder_work *w, uint64_t us);
void holder_watch_halt(struct holder_work *w);
void holder_arm_timer(struct holder_work *w);
void holder_say(struct holder_work *w, const char *kind, bool ok, const char *reason,
	const char *detail, json_t *observation);
