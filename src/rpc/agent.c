/* SPDX-License-Identifier: Apache-2.0 */
#include <poll.h>
#include <signal.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/inotify.h>
#include <sys/resource.h>
#include <sys/signalfd.h>
#include <sys/socket.h>
#include <time.h>

#include "base/arena.h"
#include "base/cleanup.h"
#include "base/clock.h"
#include "base/json.h"
#include "base/log.h"
#include "base/text.h"
#include "lease/halt.h"
#include "os/pidfd.h"
#include "rpc/agent_state.h"

#define EVENTS_AT_ONCE 64
#define END_LIMIT_MS 60000
#define LAST_WORDS_MS 2000
#define MISSED_HEARTBEATS 3
#define CHILD_POLL_MS 10

static const struct {
	const char *name;
	enum role role;
} roles[] = {{"proc", ROLE_PROC}, {"fs", ROLE_FS}, {"res", ROLE_RES}, {"net", ROLE_NET},
	{"engine", ROLE_ENGINE}, {"host", ROLE_HOST}, {"job", ROLE_JOB}};

int agent_parse_roles(const char *list, unsigned *ret, struct err *err)
{
	unsigned mask = 0;

	while (*list) {
		size_t len = strcspn(list, ","), i = 0;
		char name[16];

		while (len && *list == ' ')
			list++, len--;
		snprintf(name, sizeof(name), "%.*s", (int)(len < 15 ? len : 15), list);
		name[strcspn(name, " ")] = '\0';
		while (name[0] && i < ARRAY_SIZE(roles) && !text_equal(roles[i].name, name))
			i++;
		if (i == ARRAY_SIZE(roles)) {
			err_set(err, "params.range", 0, "roles", "no role `%s`", name);
			err_remedy(err, "roles are proc, fs, res, net, engine, host, job");
			return -EINVAL;
		}
		if (name[0])
			mask |= roles[i].role;
		list += len + (list[len] == ',');
	}
	*ret = mask;
	return 0;
}

int agent_watch(struct agent *a, struct source *s, int fd,
	void (*ready)(struct agent *, struct source *))
{
	struct epoll_event e = {.events = EPOLLIN, .data.ptr = s};

	s->fd = fd;
	s->ready = ready;
	if (epoll_ctl(a->epollfd, EPOLL_CTL_ADD, fd, &e) == 0)
		return 0;
	return -errno;
}

void agent_watch_child(struct agent *a, struct source *s, int fd,
	void (*ready)(struct agent *, struct source *))
{
	if (agent_watch(a, s, fd, ready) == 0)
		return;
	s->polled = true;
	a->n_polled++;
}

void agent_unwatch(struct agent *a, struct source *s)
{
	if (s->polled)
		a->n_polled--;
	else if (s->fd >= 0 && s->ready)
		epoll_ctl(a->epollfd, EPOLL_CTL_DEL, s->fd, NULL);
	s->polled = false;
	s->ready = NULL;
	s->fd = -1;
}

static void on_line(struct agent *a, const char *line, size_t len)
{
	struct frame f = {0};
	struct err err = {0};
	json_t *id;
	int code;

	a->last_frame_ms = clock_boottime_ms();
	if (frame_parse(line, len, &f, &id, &code, &err) < 0) {
		agent_error(a, id, code, &err);
		json_decref(id);
		return;
	}
	if (f.kind == FRAME_REQUEST)
		agent_dispatch(a, &f);
	frame_free(&f);
}

static void on_too_long(struct agent *a)
{
	_json_ json_t *none = json_null();
	struct err err;

	err_set(&err, "frame.too_long", 0, "frame", "a line is longer than %u bytes", FRAME_MAX);
	agent_error(a, none, RPC_INVALID_REQUEST, &err);
}

static void take_lines(struct agent *a)
{
	const char *line;
	size_t len;

	for (;;) {
		enum frame_next n;

		/* What is here already is answered as the answers find room. */
		a->lines_left = !agent_may_take(a);
		if (a->lines_left)
			return;
		n = frame_reader_next(&a->reader, &line, &len);
		if (n == FRAME_NEED_MORE)
			return;
		if (n == FRAME_LINE)
			on_line(a, line, len);
		else
			on_too_long(a);
	}
}

static void on_input(struct agent *a, struct source *s)
{
	char *at;
	ssize_t n;

	if (a->in_closed || a->lines_left || !agent_may_take(a))
		return;
	at = buf_reserve(&a->reader.in, 65536);
	n = at ? read(s->fd, at, 65536) : -1;
	if (n < 0 && (errno == EINTR || errno == EAGAIN))
		return;
	if (n <= 0) {
		a->in_closed = true;
		if (!a->in_always_ready)
			agent_unwatch(a, &a->in);
		agent_begin_end(a, false);
		return;
	}
	buf_commit(&a->reader.in, (size_t)n);
	take_lines(a);
}

static void on_output(struct agent *a, struct source *s)
{
	struct pollfd p = {.fd = s->fd, .events = POLLOUT};

	/* A reader that goes away is told whether or not there is something to write. */
	if (poll(&p, 1, 0) == 1 && p.revents & (POLLERR | POLLHUP))
		agent_lose_output(a);
	else
		agent_flush(a);
}

static void on_signal(struct agent *a, struct source *s)
{
	struct signalfd_siginfo si;

	if (read(s->fd, &si, sizeof(si)) != sizeof(si))
		return;
	agent_begin_end(a, true);
}

static void on_inotify(struct agent *a, struct source *s)
{
	char buf[4096];

	/* What changed matters little: the halt is looked at anew. */
	while (read(s->fd, buf, sizeof(buf)) > 0)
		;
	agent_check_halt(a);
}

/*
 * The end: nothing more is accepted; what lives is undone, at once when we
 * were told to by a signal, else once what is being injected was answered.
 */
void agent_begin_end(struct agent *a, bool interrupt)
{
	if (interrupt)
		a->interrupted = true;
	if (!a->ending) {
		a->ending = true;
		a->end_limit_ms = clock_boottime_ms() + END_LIMIT_MS;
	}
	for (struct entry *e = a->entries; e; e = e->next)
		if (e->holder && !e->survive && (e->active || a->interrupted))
			agent_entry_release(a, e, LEASE_END_AGENT_LOST);
	if (!a->in_closed && a->interrupted) {
		a->in_closed = true;
		if (!a->in_always_ready)
			agent_unwatch(a, &a->in);
	}
}

/* Nothing of this session lives any more, and nobody is at work for it. */
static bool is_undone(const struct agent *a)
{
	for (const struct entry *e = a->entries; e; e = e->next)
		if ((e->holder && !e->survive) || e->recoverer)
			return false;
	/* Who is still at work has a cgroup that only we remove. */
	return a->ready && !a->clerks && !a->tasks_running;
}

static bool is_all_said(const struct agent *a)
{
	if (json_array_size(a->queued) || json_array_size(a->deferred))
		return false;
	return a->out_broken || (a->out.len == 0 && !a->lines_left);
}

static bool is_over(struct agent *a)
{
	if (!a->ending)
		return false;
	if (clock_until_ms(a->end_limit_ms) == 0)
		return true;
	if (!is_undone(a))
		return false;
	/* Whoever was told to end does not wait long for a reader. */
	if (a->interrupted && clock_until_ms(a->end_limit_ms) > LAST_WORDS_MS)
		a->end_limit_ms = clock_boottime_ms() + LAST_WORDS_MS;
	return is_all_said(a);
}

/* Milliseconds until something is due by itself. */
static int next_due(struct agent *a)
{
	uint64_t now = clock_boottime_ms(), due = now + 60000;

	if (agent_may_take(a) && (a->lines_left || (a->in_always_ready && !a->in_closed)))
		return 0;
	if (a->heartbeat_ms && !a->ending &&
		a->last_frame_ms + MISSED_HEARTBEATS * a->heartbeat_ms < due)
		due = a->last_frame_ms + MISSED_HEARTBEATS * a->heartbeat_ms;
	if (a->ending && a->end_limit_ms < due)
		due = a->end_limit_ms;
	if (a->n_polled && due > now + CHILD_POLL_MS)
		due = now + CHILD_POLL_MS;
	if (a->releases_queued && a->release_patience_ms < due)
		due = a->release_patience_ms;
	return due > now ? (int)(due - now) + 1 : 0;
}

static void check_heartbeat(struct agent *a)
{
	if (!a->heartbeat_ms || a->ending ||
		clock_boottime_ms() < a->last_frame_ms + MISSED_HEARTBEATS * a->heartbeat_ms)
		return;
	log_warn("agent", "no frame for %d heartbeats: the channel is lost", MISSED_HEARTBEATS);
	a->in_closed = true;
	if (!a->in_always_ready)
		agent_unwatch(a, &a->in);
	/* Whoever is behind the dead channel will not read either. */
	a->out_broken = true;
	agent_begin_end(a, true);
}

static void poll_source(struct agent *a, struct source *s)
{
	struct pollfd p = {.fd = s->fd, .events = POLLIN};

	if (s->polled && s->ready && poll(&p, 1, 0) == 1)
		s->ready(a, s);
}

/* No memory, or too many watches for this user: such a child is asked instead. */
static void poll_children(struct agent *a)
{
	struct clerk *next;

	for (struct entry *e = a->entries; e; e = e->next) {
		poll_source(a, &e->link);
		poll_source(a, &e->pid);
	}
	for (struct clerk *c = a->clerks; c; c = next) {
		next = c->next;
		poll_source(a, &c->link);
		poll_source(a, &c->pid);
	}
}

static void take_events(struct agent *a, int timeout_ms)
{
	struct epoll_event events[EVENTS_AT_ONCE];
	int n = epoll_wait(a->epollfd, events, EVENTS_AT_ONCE, timeout_ms);

	for (int i = 0; i < n; i++) {
		struct source *s = events[i].data.ptr;

		if (s->ready)
			s->ready(a, s);
	}
	if (a->n_polled)
		poll_children(a);
	agent_dispatch_deferred(a);
	if (a->lines_left)
		take_lines(a);
	if (a->in_always_ready && !a->in_closed)
		on_input(a, &a->in);
	agent_release_queued(a);
	check_heartbeat(a);
	if (a->ending)
		agent_begin_end(a, false); /* what became active since is undone too */
	agent_flush(a);
	agent_forget_clerks(a);
	if (n > 0)
		agent_forget_entries(a);
}

static int run(struct agent *a, struct err *err)
{
	int r;

	/* A handshake that is there already is answered first: the recovery takes time to start. */
	take_events(a, 0);
	r = agent_recover_start(a, err);
	/* Or each holder would read the host's time zone by itself, on its way to the fault. */
	tzset();
	while (r == 0 && !is_over(a))
		take_events(a, next_due(a));
	return r;
}

static int watch_standard_streams(struct agent *a)
{
	int r = agent_watch(a, &a->in, STDIN_FILENO, on_input);

	/* A regular file cannot be watched, and never needs to be. */
	if (r == -EPERM)
		a->in_always_ready = true;
	else if (r < 0)
		return r;
	r = agent_watch(a, &a->outsrc, STDOUT_FILENO, on_output);
	if (r == -EEXIST || r == -EPERM)
		return 0;
	return r;
}

static int watch_signals(struct agent *a)
{
	sigset_t mask;
	int fd;

	signal(SIGPIPE, SIG_IGN);
	sigemptyset(&mask);
	sigaddset(&mask, SIGTERM);
	sigaddset(&mask, SIGINT);
	sigaddset(&mask, SIGHUP);
	sigprocmask(SIG_BLOCK, &mask, NULL);
	fd = signalfd(-1, &mask, SFD_CLOEXEC | SFD_NONBLOCK);
	return fd < 0 ? -errno : agent_watch(a, &a->signals, fd, on_signal);
}

/* Without inotify (there are few per user) a halt still ends every holder by SIGTERM. */
static void watch_halt(struct agent *a)
{
	int fd = inotify_init1(IN_CLOEXEC | IN_NONBLOCK);
	const uint32_t what = IN_CREATE | IN_MOVED_TO | IN_DELETE | IN_MOVED_FROM | IN_ATTRIB;

	if (fd < 0) {
		log_warn("agent", "no inotify: a halt is seen at the next request only");
		return;
	}
	inotify_add_watch(fd, a->store.dir.path, what);
	inotify_add_watch(fd, HALT_HOST_DIR, what);
	agent_watch(a, &a->inotify, fd, on_inotify);
}

static void find_ancestors(struct agent *a)
{
	pid_t pid = getpid();
	struct proc_stat st;

	while (pid > 1 && a->n_ancestors < AGENT_ANCESTORS_MAX && procfs_read_stat(pid, &st) == 0) {
		a->ancestors[a->n_ancestors++] = pid;
		pid = st.ppid;
	}
}

/* Many holders need many descriptors; the hard limit is the host's word, the soft one a habit. */
static void lift_descriptor_limit(void)
{
	struct rlimit rl;

	if (getrlimit(RLIMIT_NOFILE, &rl) == 0 && rl.rlim_cur < rl.rlim_max) {
		rl.rlim_cur = rl.rlim_max;
		setrlimit(RLIMIT_NOFILE, &rl);
	}
}

static int add_policies(struct agent *a, struct err *err)
{
	int r = policy_add_host_file(&a->policy, err);

	if (r == 0 && a->options.policy_file)
		r = policy_add_file(&a->policy, a->options.policy_file, err);
	return r;
}

static void name_agent(struct agent *a)
{
	struct proc_stat st = {0};

	procfs_read_stat(getpid(), &st);
	snprintf(a->agent_id, sizeof(a->agent_id), "ag-%s-%.8s-%d-%llu", a->kernel.hostname,
		a->store.boot_id, getpid(), (unsigned long long)st.start_ticks);
	snprintf(a->owner, sizeof(a->owner), "uid:%u", geteuid());
}

static int set_up(struct agent *a, struct err *err)
{
	int r = add_policies(a, err);

	if (r < 0)
		return r;
	r = lease_store_open(a->options.state_dir, true, &a->store, err);
	if (r < 0)
		return r;
	kernel_probe(&a->kernel);
	a->kernel.clone3_cgroup = launch_can_enter_cgroup();
	name_agent(a);
	find_ancestors(a);
	lift_descriptor_limit();
	if (pidfd_open_pid(getpid(), &a->self_pidfd) < 0)
		return err_set(err, "launch.failed", errno, "start", "cannot open our own pidfd");
	a->epollfd = epoll_create1(EPOLL_CLOEXEC);
	r = a->epollfd < 0 ? -errno : watch_signals(a);
	if (r == 0)
		r = watch_standard_streams(a);
	if (r < 0)
		return err_set(err, "launch.failed", -r, "start",
			"cannot watch the standard streams");
	watch_halt(a);
	a->halted = halt_is_on(&a->store, NULL);
	a->last_frame_ms = clock_boottime_ms();
	a->next_hint = 1;
	a->queued = json_array();
	a->deferred = json_array();
	frame_reader_init(&a->reader);
	buf_init(&a->out, AGENT_OUT_MAX);
	return 0;
}

static void tear_down(struct agent *a)
{
	agent_clerks_free(a);
	agent_entries_free(a);
	agent_tasks_free(a);
	json_decref(a->queued);
	json_decref(a->deferred);
	frame_reader_free(&a->reader);
	buf_free(&a->out);
	policy_free(&a->policy);
	close_now(&a->signals.fd);
	close_now(&a->inotify.fd);
	close_now(&a->epollfd);
	close_now(&a->self_pidfd);
	if (a->own_nonce[0])
		launch_move_back(&a->store.domain, a->own_nonce);
	cgroup_domain_prune(&a->store.domain);
	lease_store_close(&a->store);
}

int agent_serve(const struct agent_options *o, int *ret_code, struct err *err)
{
	struct agent *a;
	int r;

	arena_use();
	/* Outside the arena: children use the store, which is part of it. */
	a = calloc(1, sizeof(*a));
	if (!a)
		return err_set(err, "launch.failed", ENOMEM, "start", "no memory");
	a->options = *o;
	a->epollfd = a->self_pidfd = a->in.fd = a->outsrc.fd = a->signals.fd = a->inotify.fd = -1;
	a->store = (struct lease_store){.dir = STATE_DIR_INIT,
		.hostclaimsfd = -1,
		.domain = CGROUP_DOMAIN_INIT};
	policy_init(&a->policy);
	r = set_up(a, err);
	if (r == 0)
		r = run(a, err);
	if (r == 0) {
		agent_leave_watcher(a);
		*ret_code = a->dirty ? 7 : 0;
	}
	tear_down(a);
	free(a);
	return r;
}
