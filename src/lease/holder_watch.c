/* SPDX-License-Identifier: Apache-2.0 */
/* What a holder waits on: its link, its agent, its end, its signals, its target. */
#include <poll.h>
#include <signal.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/signalfd.h>
#include <sys/timerfd.h>

#include "base/cleanup.h"
#include "base/clock.h"
#include "base/json.h"
#include "base/text.h"
#include "launch/link.h"
#include "lease/halt.h"
#include "lease/holder_body.h"
#include "os/pidfd.h"

void holder_say(struct holder_work *w, const char *kind, bool ok, const char *reason,
	const char *detail, json_t *observation)
{
	_json_ json_t *lease = lease_to_json(&w->lease);
	_json_ json_t *j = json_pack("{s:s, s:b, s:s, s:s, s:O?, s:o?}", "kind", kind, "ok", ok,
		"reason", reason, "detail", detail, "lease", lease, "observation", observation);
	_free_ char *text = j ? json_text(j) : NULL;

	/* A stopped agent must not hold up an undo: what it does not take is lost, and the record is not. */
	if (!text || w->linkfd < 0 || link_send(w->linkfd, LINK_TYPE_NEWS, text, strlen(text)) < 0)
		w->lost_news++;
}

void holder_arm_timer(struct holder_work *w)
{
	uint64_t at_us = w->lease.deadline_boottime_ms * 1000;
	struct itimerspec t = {0};

	if (w->end_boottime_us && w->end_boottime_us < at_us)
		at_us = w->end_boottime_us;
	t.it_value.tv_sec = (time_t)(at_us / 1000000);
	t.it_value.tv_nsec = (long)(at_us % 1000000) * 1000;
	timerfd_settime(w->timerfd, TFD_TIMER_ABSTIME, &t, NULL);
}

static void stop(struct holder_work *w, enum lease_end why)
{
	if (w->stop == LEASE_END_NONE)
		w->stop = why;
}

static void on_timer(struct holder_work *w)
{
	uint64_t ticks;

	if (read(w->timerfd, &ticks, sizeof(ticks)) != sizeof(ticks))
		return;
	if (w->end_boottime_us && clock_boottime_us() >= w->end_boottime_us)
		stop(w, LEASE_END_NORMAL);
	else
		stop(w, LEASE_END_DEADLINE);
}

static void on_signal(struct holder_work *w)
{
	struct signalfd_siginfo si;

	if (read(w->sigfd, &si, sizeof(si)) != sizeof(si))
		return;
	stop(w, halt_is_on(w->setup->store, w->lease.run_id) ? LEASE_END_HALTED : LEASE_END_MANUAL);
}

/*
 * The agent's inotify belongs to all its holders, and only the agent reads it:
 * what it has not read yet, every holder sees once, by an edge of its own. So a
 * halt by nothing but a file ends a fault whose agent stands still.
 */
void holder_watch_halt(struct holder_work *w)
{
	struct epoll_event e = {.events = EPOLLIN | EPOLLET};

	if (w->setup->sharedfd < 0)
		return;
	w->haltfd = epoll_create1(EPOLL_CLOEXEC);
	if (w->haltfd >= 0 && epoll_ctl(w->haltfd, EPOLL_CTL_ADD, w->setup->sharedfd, &e) < 0)
		close_now(&w->haltfd);
}

static void on_halt(struct holder_work *w)
{
	struct epoll_event e;

	if (epoll_wait(w->haltfd, &e, 1, 0) > 0 && halt_is_on(w->setup->store, w->lease.run_id))
		stop(w, LEASE_END_HALTED);
}

static void extend(struct holder_work *w, uint64_t ttl_ms)
{
	uint64_t was = w->lease.deadline_boottime_ms, was_ttl = w->lease.ttl_ms;
	struct err err = {0};

	w->lease.deadline_boottime_ms = clock_boottime_ms() + ttl_ms;
	w->lease.ttl_ms = ttl_ms;
	if (run_save(&w->run, &err) < 0) {
		w->lease.deadline_boottime_ms = was;
		w->lease.ttl_ms = was_ttl;
		holder_say(w, "answer", false, err.code, err.text, NULL);
		return;
	}
	holder_arm_timer(w);
	holder_say(w, "answer", true, "", "", NULL);
}

static void observe(struct holder_work *w)
{
	struct observation o = {0};
	struct err err = {0};

	if (w->run.steps->observe(&w->run, &o, &err) < 0)
		holder_say(w, "answer", false, err.code, err.text, NULL);
	else
		holder_say(w, "answer", true, "", o.detail, observation_to_json(&o, "during"));
}

static void on_link(struct holder_work *w)
{
	for (;;) {
		_free_ char *data = NULL;
		uint64_t arg = 0;
		uint8_t type;
		size_t len;
		int r = link_receive(w->linkfd, &type, &data, &len);

		if (r == -EAGAIN)
			return;
		if (r <= 0) {
			close_now(&w->linkfd); /* proves nothing; the agent's pidfd does */
			return;
		}
		if (len == sizeof(arg))
			memcpy(&arg, data, sizeof(arg));
		if (type == HOLDER_RELEASE)
			stop(w,
				arg > LEASE_END_NONE && arg < LEASE_END_MAX ? (enum lease_end)arg
									    : LEASE_END_NORMAL);
		else if (type == HOLDER_EXTEND)
			extend(w, arg);
		else if (type == HOLDER_OBSERVE)
			observe(w);
	}
}

int holder_watch(struct holder_work *w, uint64_t us)
{
	const struct holder_setup *s = w->setup;
	bool mind_agent = !w->lease.survive && w->stop == LEASE_END_NONE;
	bool mind_target =
		w->held && w->stop == LEASE_END_NONE && w->lease.undo_kind != UNDO_IRREVERSIBLE;
	struct pollfd p[] = {
		{.fd = w->sigfd, .events = POLLIN},
		{.fd = w->timerfd, .events = POLLIN},
		{.fd = mind_agent ? s->agent_pidfd : -1, .events = POLLIN},
		{.fd = mind_target ? w->run.target_pidfd : -1, .events = POLLIN},
		{.fd = w->linkfd, .events = POLLIN},
		{.fd = w->stop == LEASE_END_NONE ? w->haltfd : -1, .events = POLLIN},
	};
	struct timespec ts = {.tv_sec = (time_t)(us / 1000000),
		.tv_nsec = (long)(us % 1000000) * 1000};

	if (ppoll(p, ARRAY_SIZE(p), us == UINT64_MAX ? NULL : &ts, NULL) > 0) {
		if (p[2].revents)
			stop(w, LEASE_END_AGENT_LOST);
		if (p[0].revents)
			on_signal(w);
		if (p[1].revents)
			on_timer(w);
		if (p[5].revents)
			on_halt(w);
		if (p[3].revents)
			stop(w, LEASE_END_TARGET_GONE);
		if (p[4].revents)
			on_link(w);
	}
	return w->stop != LEASE_END_NONE && !w->undoing ? -EINTR : 0;
}
