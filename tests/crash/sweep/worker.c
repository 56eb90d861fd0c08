/* SPDX-License-Identifier: Apache-2.0 */
#include "worker.h"

#include "bench.h"

#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

enum { RECORDINGS = 3 };

void *shared_memory(size_t size)
{
	void *memory = mmap(NULL, size, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);

	return memory == MAP_FAILED ? NULL : memory;
}

static int worker_open(const struct crew_setup *setup, unsigned number, struct bench *ret)
{
	/* Ended from outside, the sweep leaves no worker; agents see EOF and put things back. */
	prctl(PR_SET_PDEATHSIG, SIGKILL);
	return bench_open(ret, setup->agent, setup->root, number, setup->deadline_ms, setup->fresh);
}

/*
 * How often somebody wakes up while waiting varies, and more so where others are slowed down: the
 * longest of a few runs in which only this process is counted.
 */
static bool worker_counts(struct bench *bench, unsigned scenario, const struct census *all,
	struct census_process *process, struct census *seen, struct outcome *outcome)
{
	struct point focus = {
		.role = process->role,
		.ordinal = process->ordinal,
		.action = ACTION_NONE,
	};
	unsigned longest = 0;

	for (unsigned i = 0; i < RECORDINGS; i++) {
		int birth;

		trial_record(bench, scenario, &focus, all, seen, outcome);
		if (outcome->verdict != VERDICT_HELD)
			return false;
		birth = census_birth_of(seen, focus.role, focus.ordinal);
		if (birth >= 0 && seen->process[birth].n_calls > longest) {
			*process = seen->process[birth];
			longest = process->n_calls;
		}
	}
	return true;
}

static int worker_records(const struct crew_setup *setup, unsigned scenario, struct census *ret,
	struct outcome *outcome)
{
	struct census *seen = shared_memory(sizeof(*seen));
	struct bench bench;

	if (!seen || worker_open(setup, 0, &bench) < 0)
		return 2;
	/* The second run finds what the first one made, as all later ones do. */
	for (unsigned i = 0; i < 2; i++) {
		trial_record(&bench, scenario, NULL, NULL, ret, outcome);
		if (outcome->verdict != VERDICT_HELD)
			return 1;
	}
	for (unsigned i = 0; i < ret->n_processes; i++) {
		if (!worker_counts(&bench, scenario, ret, &ret->process[i], seen, outcome))
			return 1;
	}
	bench_close(&bench);
	return 0;
}

int crew_record(const struct crew_setup *setup, unsigned scenario, struct census *ret,
	struct outcome *ret_outcome)
{
	pid_t pid = fork();
	int status;

	if (pid < 0)
		return -errno;
	if (pid == 0)
		_exit(worker_records(setup, scenario, ret, ret_outcome));
	while (waitpid(pid, &status, 0) < 0) {
		if (errno != EINTR)
			return -errno;
	}
	if (!WIFEXITED(status) || WEXITSTATUS(status) == 2)
		return -ECHILD;
	return WEXITSTATUS(status);
}

struct shared {
	atomic_size_t next; /* point to sweep */
	struct litter litter;
};

static int worker_sweeps(const struct crew_setup *setup, unsigned number, const struct plan *plan,
	const struct census *census, struct shared *shared, int reportfd)
{
	struct outcome warming;
	struct bench bench;
	struct census *unused = shared_memory(sizeof(*unused));
	struct report report;
	size_t at;

	if (!unused || worker_open(setup, number, &bench) < 0)
		return 1;
	bench.litter = &shared->litter;
	if (!setup->fresh && plan->n > 0)
		trial_record(&bench, plan->points[0].scenario, NULL, NULL, unused, &warming);
	while ((at = atomic_fetch_add(&shared->next, 1)) < plan->n) {
		const struct point *point = &plan->points[at];

		report = (struct report){.point = at};
		trial_run(&bench, point, &census[point->scenario], &report.outcome);
		/* Smaller than PIPE_BUF: whole, however many of us write. */
		if (write(reportfd, &report, sizeof(report)) != (ssize_t)sizeof(report))
			break;
		if (report.outcome.verdict == VERDICT_BROKEN)
			return 1;
	}
	bench_close(&bench);
	return 0;
}

int crew_start(const struct crew_setup *setup, const struct plan *plan, const struct census *census,
	unsigned n_workers, struct crew *ret)
{
	struct shared *shared = shared_memory(sizeof(*shared));
	int fds[2];

	if (!shared)
		return -ENOMEM;
	if (pipe2(fds, O_CLOEXEC) < 0)
		return -errno;
	*ret = (struct crew){.litter = &shared->litter, .reportfd = fds[0]};
	for (unsigned i = 0; i < n_workers && i < CREW_MAX; i++) {
		pid_t pid = fork();

		if (pid == 0) {
			close(fds[0]);
			_exit(worker_sweeps(setup, i, plan, census, shared, fds[1]));
		}
		if (pid > 0)
			ret->pids[ret->n++] = pid;
	}
	close(fds[1]);
	return ret->n ? 0 : -EAGAIN;
}

int crew_end(struct crew *crew)
{
	int failed = 0, status;

	for (unsigned i = 0; i < crew->n; i++) {
		if (waitpid(crew->pids[i], &status, 0) < 0 || status != 0)
			failed = 1;
	}
	close(crew->reportfd);
	return failed;
}
