/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What bench/run cannot measure from Python: each word of the command line is a measurement, printed as lines of
 * "name value". Times are microseconds on CLOCK_MONOTONIC. Nothing that it starts outlives it.
 */
#include <errno.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/un.h>
#include <time.h>
#include <unistd.h>

#include "client.h"
#include "targets.h"

#define PING_EVERY (1 * MS)

static const char *agent;

static void say(const char *name, uint64_t from_ns, uint64_t to_ns)
{
	printf("%s %.1f\n", name, (double)(to_ns - from_ns) / 1000);
	fflush(stdout);
}

static unsigned number(const char *text)
{
	char *end;
	unsigned long n = strtoul(text, &end, 10);

	if (!text[0] || *end || n > 10000000)
		die("not a number: %s", text);
	return (unsigned)n;
}

static void signal_pidfd(int pidfd, int signo)
{
	if (syscall(SYS_pidfd_send_signal, pidfd, signo, NULL, 0) < 0)
		die("cannot signal: %s", strerror(errno));
}

/* A process that somebody else started, by the pid that a record named while it lives under our agent. */
static int open_pidfd(pid_t pid)
{
	int fd = (int)syscall(SYS_pidfd_open, pid, 0);

	if (fd < 0)
		die("no process %d: %s", pid, strerror(errno));
	return fd;
}

static void await_death(int pidfd)
{
	struct pollfd p = {.fd = pidfd, .events = POLLIN};

	if (poll(&p, 1, 60000) != 1)
		die("a killed process does not die");
}

struct held {
	char id[64];
	pid_t holder;
};

/* The answer to an injection, which must have worked. */
static void take_held(json_t *reply, struct held *ret)
{
	const json_t *result = json_object_get(reply, "result"),
		     *lease = json_object_get(result, "lease");
	const json_t *who = json_object_get(lease, "holder");

	if (!json_is_true(json_object_get(result, "ok"))) {
		char *text = json_dumps(reply, JSON_COMPACT);

		die("not injected: %.400s", text);
	}
	snprintf(ret->id, sizeof(ret->id), "%s", json_string_value(json_object_get(lease, "id")));
	ret->holder = (pid_t)json_integer_value(json_object_get(who, "pid"));
	json_decref(reply);
}

static void hold_one(struct client *c, const struct target *t, struct held *ret)
{
	client_inject(c, t->pid);
	take_held(client_reply(c, NULL), ret);
}

static void ask_release(struct client *c, const struct held *h)
{
	char more[128];

	snprintf(more, sizeof(more), ",\"lease_id\":\"%s\"", h->id);
	client_ask(c, "lease.release", more);
}

static void check_released(json_t *reply)
{
	const json_t *result = json_object_get(reply, "result");
	const char *state =
		json_string_value(json_object_get(json_object_get(result, "lease"), "state"));

	if (!json_is_true(json_object_get(result, "ok")) || !state ||
		strcmp(state, "released") != 0)
		die("not released: %.400s", json_dumps(reply, JSON_COMPACT));
	json_decref(reply);
}

static void release_one(struct client *c, const struct held *h)
{
	ask_release(c, h);
	check_released(client_reply(c, NULL));
}

/* start ROUNDS STATE...: from before it is started to the answer to its handshake, the states in turn. */
static void measure_start(int argc, char **argv)
{
	for (unsigned round = number(argv[0]); round > 0; round--)
		for (int i = 1; i < argc; i++) {
			struct client c;
			uint64_t answered;
			char name[16];

			client_start(&c, agent, argv[i]);
			client_ask(&c, "handshake", "");
			json_decref(client_reply(&c, &answered));
			snprintf(name, sizeof(name), "start%d", i - 1);
			say(name, c.start_ns, answered);
			client_end(&c);
		}
}

/* run ROUNDS PROGRAM ARGS...: from before it is started to its end. */
static void measure_run(int argc, char **argv)
{
	(void)argc;
	for (unsigned round = number(argv[0]); round > 0; round--) {
		uint64_t from = now_ns();
		int pidfd;
		pid_t pid = start_program(argv + 1, -1, -1, &pidfd);

		if (await_end(pid, pidfd) != 0)
			die("%s failed", argv[1]);
		say("run", from, now_ns());
	}
}

static bool next_round(void)
{
	char line[16];

	return fgets(line, sizeof(line), stdin) != NULL;
}

/* pause STATE PID: a lease for each line of stdin, taken back at once. PID 0: a process of our own. */
static void measure_pause(int argc, char **argv)
{
	struct client c;
	struct target t;

	(void)argc;
	if (number(argv[1]))
		target_watch(&t, (pid_t)number(argv[1]));
	else
		target_start(&t);
	client_start(&c, agent, argv[0]);
	client_handshake(&c);
	while (next_round()) {
		uint64_t from, stopped, answered;
		struct held h;
		json_t *reply;

		from = now_ns();
		client_inject(&c, t.pid);
		client_work(&c, from);
		stopped = target_await(&t, true);
		reply = client_reply(&c, &answered);
		take_held(reply, &h);
		release_one(&c, &h);
		say("stopped", from, stopped);
		say("answered", from, answered);
	}
	client_end(&c);
	target_end(&t);
}

/* command PID STOP... [-- CONTINUE...]: from before STOP is started to the process seen stopped, for each line. */
static void measure_command(int argc, char **argv)
{
	struct target t;
	char **more = NULL;

	target_watch(&t, (pid_t)number(argv[0]));
	for (int i = 1; i < argc; i++)
		if (strcmp(argv[i], "--") == 0) {
			argv[i] = NULL;
			more = argv + i + 1;
			break;
		}
	while (next_round()) {
		uint64_t from = now_ns(), stopped;
		int pidfd;
		pid_t pid = start_program(argv + 1, -1, -1, &pidfd);

		stopped = target_await(&t, true);
		if (more && await_end(pid, pidfd) != 0)
			die("%s failed", argv[1]);
		if (more)
			pid = start_program(more, -1, -1, &pidfd);
		target_await(&t, false);
		if (await_end(pid, pidfd) != 0)
			die("%s failed", more ? more[0] : argv[1]);
		say("stopped", from, stopped);
	}
	target_end(&t);
}

static int engine_open(const char *path)
{
	struct sockaddr_un to = {.sun_family = AF_UNIX};
	int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);

	snprintf(to.sun_path, sizeof(to.sun_path), "%s", path);
	if (fd < 0 || connect(fd, (struct sockaddr *)&to, sizeof(to)) < 0)
		die("cannot connect to %s: %s", path, strerror(errno));
	return fd;
}

static void engine_ask(int fd, const char *name, const char *signal_name)
{
	char text[256];
	int n = snprintf(text, sizeof(text),
		"POST /v1.40/containers/%s/kill?signal=%s HTTP/1.1\r\nHost: d\r\nContent-Length: 0\r\n\r\n",
		name, signal_name);

	if (write(fd, text, (size_t)n) != n)
		die("the engine does not read");
}

static void engine_answer(int fd)
{
	char text[4096];
	ssize_t n = read(fd, text, sizeof(text) - 1);

	text[n > 0 ? n : 0] = '\0';
	if (!strstr(text, " 204 "))
		die("the engine says: %.200s", text);
}

/* engine PID SOCKET NAME: a kill by the engine's API over a connection that is open, for each line. */
static void measure_engine(int argc, char **argv)
{
	int fd = engine_open(argv[1]);
	struct target t;

	(void)argc;
	target_watch(&t, (pid_t)number(argv[0]));
	while (next_round()) {
		uint64_t from = now_ns(), stopped;

		engine_ask(fd, argv[2], "STOP");
		stopped = target_await(&t, true);
		engine_answer(fd);
		engine_ask(fd, argv[2], "CONT");
		target_await(&t, false);
		engine_answer(fd);
		say("stopped", from, stopped);
	}
	target_end(&t);
}

/* undone agent|holder ROUNDS STATE [busy]: from SIGKILL to the process seen running. */
static void measure_undone(int argc, char **argv)
{
	bool kill_agent = strcmp(argv[0], "agent") == 0;
	struct client c = {.pidfd = -1};
	struct target t;

	target_start(&t);
	if (argc > 3)
		burners_start();
	for (unsigned round = number(argv[1]); round > 0; round--) {
		uint64_t from, running;
		struct held h;
		int pidfd;

		if (c.pidfd < 0) {
			client_start(&c, agent, argv[2]);
			client_handshake(&c);
		}
		hold_one(&c, &t, &h);
		pidfd = kill_agent ? c.pidfd : open_pidfd(h.holder);
		from = now_ns();
		signal_pidfd(pidfd, SIGKILL);
		running = target_await(&t, false);
		say("undone", from, running);
		if (kill_agent) {
			client_bury(&c);
		} else {
			close(pidfd);
			release_one(&c, &h); /* until its end is on record as well */
		}
	}
	burners_end();
	if (c.pidfd >= 0)
		client_end(&c);
	target_end(&t);
}

/* pings N STATE: N pings as fast as they are taken. */
static void measure_pings(int argc, char **argv)
{
	unsigned n = number(argv[0]), answered = 0;
	struct client c;
	uint64_t from, limit;

	(void)argc;
	client_start(&c, agent, argv[1]);
	client_handshake(&c);
	for (unsigned i = 0; i < n; i++)
		client_ask(&c, "health.ping", "");
	from = now_ns();
	limit = from + 60 * SECOND;
	while (answered < n) {
		client_work(&c, limit);
		while (client_line(&c))
			answered++;
		if (now_ns() > limit)
			die("%u pings of %u answered in a minute", answered, n);
	}
	say("pings", from, c.read_ns);
	client_end(&c);
}

struct many {
	struct client c;
	struct target *targets;
	struct held *held;
	unsigned n;
	unsigned ping_id; /* 0: none is out */
	uint64_t ping_ns;
	uint64_t done_ns; /* when the last answer came */
};

static void ping_answered(struct many *m, const char *name)
{
	m->ping_id = 0;
	say(name, m->ping_ns, m->c.read_ns);
}

/*
 * Works until n answers that are no ping's came; a ping every millisecond meanwhile, said as name. The
 * answers are read and kept, and understood once all are there: that would take the time of a ping.
 */
static void work(struct many *m, unsigned n, const char *name,
	void (*take)(struct many *, json_t *))
{
	uint64_t next_ping = now_ns();
	char **kept = calloc(n, sizeof(*kept)), *line;
	unsigned got = 0;

	while (kept && (got < n || m->ping_id)) {
		if (name && got < n && !m->ping_id && now_ns() >= next_ping) {
			m->ping_id = client_ask(&m->c, "health.ping", "");
			m->ping_ns = now_ns();
			next_ping = m->ping_ns + PING_EVERY;
		}
		client_work(&m->c, name && !m->ping_id ? next_ping : now_ns() + SECOND);
		while ((line = client_line(&m->c))) {
			if (strstr(line, "\"pong\"")) {
				ping_answered(m, name);
			} else if (got < n) {
				kept[got++] = strdup(line);
				m->done_ns = m->c.read_ns;
			}
		}
	}
	for (unsigned i = 0; i < got; i++) {
		take(m, json_loads(kept[i], 0, NULL));
		free(kept[i]);
	}
	free(kept);
}

static void take_injected(struct many *m, json_t *j)
{
	take_held(j, &m->held[m->n++]);
}

static void take_released(struct many *m, json_t *j)
{
	(void)m;
	check_released(j);
}

static void many_start(struct many *m, unsigned n, const char *state)
{
	memset(m, 0, sizeof(*m));
	m->targets = calloc(n, sizeof(*m->targets));
	m->held = calloc(n, sizeof(*m->held));
	if (!m->targets || !m->held)
		die("no memory");
	for (unsigned i = 0; i < n; i++)
		target_start(&m->targets[i]);
	client_start(&m->c, agent, state);
	client_handshake(&m->c);
}

static void many_hold(struct many *m, unsigned n, const char *ping_name)
{
	m->n = 0;
	for (unsigned i = 0; i < n; i++)
		client_inject(&m->c, m->targets[i].pid);
	work(m, n, ping_name, take_injected);
}

static void many_release(struct many *m, const char *ping_name)
{
	for (unsigned i = 0; i < m->n; i++)
		ask_release(&m->c, &m->held[i]);
	work(m, m->n, ping_name, take_released);
}

static void many_end(struct many *m, unsigned n)
{
	for (unsigned i = 0; i < n; i++)
		target_end(&m->targets[i]);
	free(m->targets);
	free(m->held);
}

static void ping_for(struct many *m, unsigned n, const char *name)
{
	struct timespec ts = {.tv_nsec = PING_EVERY};

	while (n--) {
		uint64_t from = now_ns(), answered;

		client_ask(&m->c, "health.ping", "");
		json_decref(client_reply(&m->c, &answered));
		say(name, from, answered);
		nanosleep(&ts, NULL);
	}
}

/* many N STATE: held, and released. */
static void measure_many(int argc, char **argv)
{
	unsigned n = number(argv[0]);
	struct many m;
	uint64_t from;

	(void)argc;
	many_start(&m, n, argv[1]);
	from = now_ns();
	many_hold(&m, n, "ping_injecting");
	say("injected", from, m.done_ns);
	ping_for(&m, 500, "ping_held");
	from = now_ns();
	many_release(&m, "ping_releasing");
	say("released", from, m.done_ns);
	for (unsigned i = 0; i < n; i++)
		if (target_stopped(&m.targets[i]))
			die("released, and stopped");
	client_end(&m.c);
	many_end(&m, n);
}

/* last N STATE: N held, the agent killed; until the last of them runs. */
static void measure_last(int argc, char **argv)
{
	unsigned n = number(argv[0]);
	struct many m;
	uint64_t from;

	(void)argc;
	many_start(&m, n, argv[1]);
	many_hold(&m, n, NULL);
	from = now_ns();
	signal_pidfd(m.c.pidfd, SIGKILL);
	say("last", from, targets_await_running(m.targets, n));
	client_bury(&m.c);
	many_end(&m, n);
}

/* recover N STATE: N held, then agent and holders are killed; recover from its start to its end. */
static void measure_recover(int argc, char **argv)
{
	const char *argv_recover[] = {agent, "recover", "--state", argv[1], NULL};
	unsigned n = number(argv[0]);
	struct many m;
	uint64_t from;
	int pidfd;
	pid_t pid;

	(void)argc;
	many_start(&m, n, argv[1]);
	many_hold(&m, n, NULL);
	signal_pidfd(m.c.pidfd, SIGSTOP); /* or it would start mending at the first of them */
	for (unsigned i = 0; i < n; i++) {
		int holder = open_pidfd(m.held[i].holder);

		signal_pidfd(holder, SIGKILL);
		await_death(holder); /* until then it holds the lock of its lease */
		close(holder);
	}
	client_kill(&m.c);
	for (unsigned i = 0; i < n; i++)
		if (!target_stopped(&m.targets[i]))
			die("a process runs although nobody mended it");
	from = now_ns();
	pid = start_program((char *const *)(uintptr_t)argv_recover, -1, -1, &pidfd);
	if (await_end(pid, pidfd) != 0)
		die("recover failed");
	say("recover", from, now_ns());
	for (unsigned i = 0; i < n; i++)
		if (target_stopped(&m.targets[i]))
			die("recovered, and stopped");
	many_end(&m, n);
}

/* fill N STATE: makes N ended leases. */
static void measure_fill(int argc, char **argv)
{
	unsigned n = number(argv[0]), at_once = 50;
	struct many m;

	(void)argc;
	many_start(&m, at_once, argv[1]);
	for (unsigned done = 0; done < n; done += at_once) {
		many_hold(&m, at_once, NULL);
		many_release(&m, NULL);
	}
	client_end(&m.c);
	many_end(&m, at_once);
}

/* The sum, in KiB, of the lines of /proc/PID/FILE that start with key. */
static unsigned long kib(pid_t pid, const char *file, const char *key)
{
	char path[64], line[256];
	unsigned long sum = 0;
	FILE *f;

	snprintf(path, sizeof(path), "/proc/%d/%s", pid, file);
	f = fopen(path, "re");
	if (!f)
		die("cannot read %s", path);
	while (fgets(line, sizeof(line), f))
		if (strncmp(line, key, strlen(key)) == 0)
			sum += strtoul(strchr(line, ':') + 1, NULL, 10);
	fclose(f);
	return sum;
}

static unsigned long kernel_bytes(const char *cgroup)
{
	char path[512];
	unsigned long bytes = 0;
	FILE *f;

	snprintf(path, sizeof(path), "%s/memory.kmem.usage_in_bytes", cgroup);
	f = fopen(path, "re");
	if (f && fscanf(f, "%lu", &bytes) != 1)
		bytes = 0;
	if (f)
		fclose(f);
	return bytes;
}

static void say_memory(const char *who, pid_t pid)
{
	printf("%s_rss_kib %lu\n%s_pss_kib %lu\n%s_private_kib %lu\n%s_tables_kib %lu\n", who,
		kib(pid, "smaps_rollup", "Rss:"), who, kib(pid, "smaps_rollup", "Pss:"), who,
		kib(pid, "smaps_rollup", "Private_"), who, kib(pid, "status", "VmPTE:"));
}

/* memory N STATE [CGROUP]: the agent idle, and N holders. CGROUP: of v1, in which we are alone. */
static void measure_memory(int argc, char **argv)
{
	unsigned n = number(argv[0]);
	unsigned long before;
	struct many m;

	many_start(&m, n, argv[1]);
	client_ask(&m.c, "lease.list",
		",\"limit\":1"); /* answered once the start's recovery is over */
	json_decref(client_reply(&m.c, NULL));
	poll(NULL, 0, 300);
	say_memory("agent", m.c.pid);
	before = argc > 2 ? kernel_bytes(argv[2]) : 0;
	many_hold(&m, n, NULL);
	poll(NULL, 0, 300);
	for (unsigned i = 0; i < m.n; i++)
		say_memory("holder", m.held[i].holder);
	if (before)
		printf("holder_kernel_kib %.1f\n",
			(double)(kernel_bytes(argv[2]) - before) / 1024 / n);
	say_memory("agent_holding", m.c.pid);
	many_release(&m, NULL);
	client_end(&m.c);
	many_end(&m, n);
}

static const struct {
	const char *name;
	int least;
	void (*measure)(int argc, char **argv);
} words[] = {{"start", 2, measure_start}, {"run", 2, measure_run}, {"pause", 2, measure_pause},
	{"command", 2, measure_command}, {"engine", 3, measure_engine},
	{"undone", 3, measure_undone}, {"pings", 2, measure_pings}, {"many", 2, measure_many},
	{"last", 2, measure_last}, {"recover", 2, measure_recover}, {"fill", 2, measure_fill},
	{"memory", 2, measure_memory}};

int main(int argc, char **argv)
{
	struct rlimit rl;

	if (argc < 3)
		die("usage: driver AGENT MEASUREMENT ARGS...; bench/run knows which");
	if (getrlimit(RLIMIT_NOFILE, &rl) == 0) {
		rl.rlim_cur = rl.rlim_max;
		setrlimit(RLIMIT_NOFILE, &rl);
	}
	signal(SIGPIPE, SIG_IGN);
	agent = argv[1];
	for (size_t i = 0; i < sizeof(words) / sizeof(*words); i++)
		if (strcmp(argv[2], words[i].name) == 0 && argc - 3 >= words[i].least) {
			words[i].measure(argc - 3, argv + 3);
			return 0;
		}
	die("no measurement %s, or too few words", argv[2]);
}
