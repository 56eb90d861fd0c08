/* SPDX-License-Identifier: Apache-2.0 */
/* What an agent session knows. Internal to the agent's side of rpc. */
#pragma once

#include <sys/types.h>

#include "authority/policy.h"
#include "lease/holder.h"
#include "os/kernel.h"
#include "rpc/agent.h"
#include "rpc/frame.h"

#define AGENT_OUT_PAUSE (2u << 20) /* beyond it stdin is not read, and events are dropped */
#define AGENT_OUT_MAX (AGENT_OUT_PAUSE + 6u * FRAME_MAX) /* room for what was asked before that */
#define AGENT_DEFERRED_MAX 1000 /* requests that wait; beyond it stdin is not read either */
#define AGENT_SPARES 8
#define AGENT_TASKS_KEPT 1000
#define AGENT_ENTRIES_KEPT 1000 /* ended ones, for answers */
#define AGENT_ANCESTORS_MAX 64
#define AGENT_RELEASES_AT_ONCE 6

struct agent;

/* Something epoll tells of. */
struct source {
	void (*ready)(struct agent *a, struct source *s);
	int fd;
	bool polled; /* epoll would not take it: asked again and again */
};

/* Who is to be answered, and how. */
enum waiting_for { WAIT_TASK, WAIT_RELEASE, WAIT_EXTEND, WAIT_OBSERVE, WAIT_CANCEL };

struct waiter {
	struct waiter *next;
	enum waiting_for what;
	json_t *id; /* of the request */
	struct task *task;
};

enum task_state { TASK_QUEUED, TASK_RUNNING, TASK_DONE, TASK_CANCELLED };

struct task {
	struct task *next; /* newest first */
	unsigned number;
	enum task_state state;
	char detail[256];
	struct entry *entry; /* its lease, NULL when there is none */
};

/* A lease of this session: live with a holder, or ended and kept for answers. */
struct entry {
	struct entry *next;
	struct source link, pid;
	struct holder *holder;	  /* NULL once it is over */
	struct clerk *recoverer;  /* its holder died without a safe end */
	char key[LEASE_KEY_SIZE]; /* "" until its holder has claimed one */
	char run_id[LEASE_TEXT_SIZE], owner[LEASE_TEXT_SIZE];
	struct proc_identity target; /* pid 0: none */
	bool survive, check_only, active, ended, dirty, releasing;
	bool release_queued;
	unsigned release_round; /* in which it was told to end */
	uint64_t max_ttl_ms;	/* an extension reaches no further */
	uint64_t deadline_boottime_ms;
	json_t *lease;		/* as last told */
	struct waiter *waiters; /* oldest first */
	unsigned task_number;
};

/* A child that does what the agent may not wait for, and answers once or more. */
struct clerk {
	struct clerk *next;
	struct source link, pid;
	struct launched l;
	json_t *id; /* the request it answers, NULL */
	struct entry *entry;
	void (*told)(struct agent *a, struct clerk *c, const json_t *what);
	void (*over)(struct agent *a, struct clerk *c);
	bool answered, is_list;
	struct task *task;
};

struct agent {
	struct agent_options options;
	struct lease_store store;
	struct policy policy;
	struct kernel kernel;
	struct frame_reader reader;
	struct buf out;
	int epollfd, self_pidfd;
	struct source in, outsrc, signals, inotify;
	pid_t ancestors[AGENT_ANCESTORS_MAX];
	size_t n_ancestors;
	char agent_id[256], owner[LEASE_TEXT_SIZE], session[LEASE_TEXT_SIZE];
	bool events, survive, halted;
	uint64_t heartbeat_ms, last_frame_ms;
	unsigned n_polled;
	uint64_t event_seq, events_dropped;
	char own_nonce
		[LAUNCH_NONCE_SIZE]; /* of our own leaf: children died at birth where we were */
	bool ready;		     /* the start's recovery has read all records */
	bool in_always_ready, in_closed, out_broken, ending, interrupted;
	bool lines_left; /* read, and not looked at for want of room */
	uint64_t end_limit_ms;
	json_t *queued;	  /* requests that wait for `ready` */
	json_t *deferred; /* requests that wait for others, see agent_order.c */
	unsigned next_hint;
	char spares[AGENT_SPARES][LEASE_SPARE_SIZE];
	size_t n_spares;
	bool stocking;
	bool counting, count_again; /* a clerk writes the metrics file; something moved meanwhile */
	struct entry *entries;
	unsigned live;
	unsigned releasing, release_round, releases_queued;
	uint64_t release_patience_ms;
	struct task *tasks;
	unsigned next_task, tasks_running;
	struct clerk *clerks, *gone;
	bool dirty;
};

/* agent.c: sources and the end */
int agent_watch(struct agent *a, struct source *s, int fd,
	void (*ready)(struct agent *, struct source *));
/* For the descriptors of a child, which must be minded whatever the kernel refuses. */
void agent_watch_child(struct agent *a, struct source *s, int fd,
	void (*ready)(struct agent *, struct source *));
void agent_unwatch(struct agent *a, struct source *s);
/* agent_output.c */
void agent_lose_output(struct agent *a); /* nobody reads any more */
void agent_flush(struct agent *a); /* what stdout takes now; stdin is read while there is room */
void agent_reply(struct agent *a, const json_t *id, json_t *result); /* takes result */
void agent_error(struct agent *a, const json_t *id, int code, const struct err *err);
void agent_notify(struct agent *a, const char *method,
	json_t *params); /* takes params; dropped when full */
void agent_begin_end(struct agent *a, bool interrupt);

/* agent_methods.c */
void agent_dispatch(struct agent *a, struct frame *f);
void agent_dispatch_queued(struct agent *a);
void agent_serve_method(struct agent *a, const json_t *id, const char *method,
	const json_t *params);

/* agent_order.c: requests that wait for others */
bool agent_may_take(const struct agent *a);
/* True when the request has to wait, and was kept. */
bool agent_defer(struct agent *a, const json_t *id, const char *method, const json_t *params);
void agent_dispatch_deferred(struct agent *a);

/* agent_task.c: task.* */
void agent_task_execute(struct agent *a, const json_t *id, const json_t *params);
void agent_task_status(struct agent *a, const json_t *id, const json_t *params);
void agent_task_cancel(struct agent *a, const json_t *id, const json_t *params);
struct task *agent_task_new(struct agent *a, struct entry *e);
void agent_task_done(struct agent *a, struct task *t, enum task_state state, const char *detail);
json_t *agent_task_result(const struct task *t, bool ok, const char *reason, const char *detail,
	json_t *lease, json_t *observation);
json_t *agent_task_cancelled(const struct task *t);
void agent_tasks_free(struct agent *a);

/* agent_entry.c: the leases of this session */
struct entry *agent_entry_find(struct agent *a, const char *key);
struct entry *agent_entry_new(struct agent *a, const struct lease *l);
int agent_entry_start(struct agent *a, struct entry *e, const struct holder_setup *setup,
	struct err *err);
void agent_entry_wait(struct entry *e, enum waiting_for what, const json_t *id, struct task *t);
void agent_entry_release(struct agent *a, struct entry *e, enum lease_end why);
void agent_release_queued(struct agent *a);
/* Something is being done to it that was asked for: an injection, or its end. */
bool agent_entry_is_busy(const struct entry *e);
void agent_entry_ended(struct agent *a, struct entry *e, const struct holder_news *n);
void agent_forget_entries(struct agent *a);
void agent_entries_free(struct agent *a);
bool agent_is_holder(const struct agent *a, pid_t pid);
void agent_check_halt(struct agent *a);

/* agent_request.c: what a task.execute asks for, checked */
int agent_read_lease(struct agent *a, const json_t *params, struct lease *ret,
	const struct fault_steps **ret_steps, int *ret_code, struct err *err);
int agent_permit(struct agent *a, struct lease *l, const struct fault_steps *steps, struct entry *e,
	int *ret_pidfd, int *ret_code, struct err *err);
/* The key a lease object of a request means. */
int agent_lease_key(const json_t *lease, const json_t *params, char ret[static LEASE_KEY_SIZE],
	struct err *err);
bool agent_role_allows(const struct agent *a, const char *fault_id);

/* agent_clerk.c */
int agent_recover_start(struct agent *a, struct err *err);
void agent_stock(struct agent *a);
void agent_count(struct agent *a);
int agent_recover_entry(struct agent *a, struct entry *e, struct err *err);
void agent_clerk_list(struct agent *a, const json_t *id, const json_t *params);
void agent_clerk_release(struct agent *a, const json_t *id, const char *key, const json_t *params,
	struct task *t);
void agent_clerk_verify(struct agent *a, const json_t *id, const char *key, struct task *t);
void agent_leave_watcher(struct agent *a);
void agent_forget_clerks(struct agent *a);
void agent_clerks_free(struct agent *a);
