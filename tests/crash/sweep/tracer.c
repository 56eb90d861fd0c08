/* SPDX-License-Identifier: Apache-2.0 */
#include "tracer.h"

#include "calls.h"
#include "child.h"
#include "regs.h"

#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/ptrace.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

/* No PTRACE_O_EXITKILL: what a dead tracer would take along is what has to mend the target. */
#define TRACER_OPTIONS                                                                             \
	(PTRACE_O_TRACESYSGOOD | PTRACE_O_TRACECLONE | PTRACE_O_TRACEFORK | PTRACE_O_TRACEVFORK |  \
		PTRACE_O_TRACEEXEC)

void tracer_begin(struct tracer *ret, const struct point *point, const struct census *expected,
	const char *const *store_dirs, struct census *record)
{
	*ret = (struct tracer){
		.point = point,
		.store_dirs = store_dirs,
		.census = record,
		.victim_birth = -1,
	};
	if (point && point->role == ROLE_NEWBORN)
		ret->victim_birth = (int)point->ordinal;
	else if (point && expected)
		ret->victim_birth = census_birth_of(expected, point->role, point->ordinal);
}

static struct tracee *tracee_of(struct tracer *tracer, pid_t pid)
{
	for (unsigned i = 0; i < tracer->n_tracees; i++) {
		if (tracer->tracees[i].pid == pid)
			return &tracer->tracees[i];
	}
	return NULL;
}

static void tracee_record_role(struct tracer *tracer, const struct tracee *tracee)
{
	struct census *census = tracer->census;

	if (!census || tracee->birth >= CENSUS_PROCESSES_MAX)
		return;
	census->process[tracee->birth].role = tracee->role;
	census->process[tracee->birth].ordinal = tracee->ordinal;
	if (census->n_processes <= tracee->birth)
		census->n_processes = tracee->birth + 1;
}

/* A child may be seen before the event of its parent, or after it: whichever comes first. */
static struct tracee *tracer_meet(struct tracer *tracer, pid_t pid)
{
	struct tracee *tracee = tracee_of(tracer, pid);

	if (tracee || tracer->n_tracees == TRACEES_MAX)
		return tracee;
	tracee = &tracer->tracees[tracer->n_tracees];
	*tracee = (struct tracee){
		.pid = pid,
		.traced = true,
		.birth = tracer->n_tracees,
		.role = ROLE_NEWBORN,
		.ordinal = tracer->n_tracees,
		.counting = true,
	};
	tracer->n_tracees++;
	tracer->n_traced++;
	tracee_record_role(tracer, tracee);
	return tracee;
}

static void tracee_name(struct tracer *tracer, struct tracee *tracee, enum role role)
{
	tracee->role = role;
	tracee->ordinal = tracer->n_by_role[role]++;
	tracee_record_role(tracer, tracee);
}

static void tracee_lost(struct tracer *tracer, struct tracee *tracee)
{
	if (tracee->traced)
		tracer->n_traced--;
	tracee->traced = false;
}

static void tracee_detach(struct tracer *tracer, struct tracee *tracee, int signo)
{
	ptrace(PTRACE_DETACH, tracee->pid, NULL, (void *)(intptr_t)signo);
	tracee_lost(tracer, tracee);
}

static bool tracee_is_victim(const struct tracer *tracer, const struct tracee *tracee)
{
	const struct point *point = tracer->point;

	if (!point)
		return false;
	if (tracee->role == ROLE_NEWBORN)
		return (int)tracee->birth == tracer->victim_birth;
	return tracee->role == point->role && tracee->ordinal == point->ordinal;
}

/* Stops at every call are dear: only who is counted, or may still turn out to be, gets them. */
static bool tracee_is_watched(const struct tracer *tracer, const struct tracee *tracee)
{
	return tracee->role == ROLE_NEWBORN || tracee_is_victim(tracer, tracee) ||
		(tracer->census && !tracer->point);
}

static void tracee_resume(struct tracer *tracer, struct tracee *tracee, int signo)
{
	enum __ptrace_request how =
		tracee_is_watched(tracer, tracee) ? PTRACE_SYSCALL : PTRACE_CONT;

	if (tracer->letting_go)
		tracee_detach(tracer, tracee, signo);
	else
		ptrace(how, tracee->pid, NULL, (void *)(intptr_t)signo);
}

static int tracer_seize(struct tracer *tracer, pid_t pid, int gatefd)
{
	struct tracee *agent;

	if (ptrace(PTRACE_SEIZE, pid, NULL, (void *)(intptr_t)TRACER_OPTIONS) < 0)
		return -errno;
	agent = tracer_meet(tracer, pid);
	agent->counting = false;
	tracee_name(tracer, agent, ROLE_AGENT);
	return write(gatefd, "", 1) == 1 ? 0 : -EPIPE;
}

int tracer_spawn(struct tracer *tracer, char *const argv[], const int stdfd[3], pid_t *ret_pid)
{
	int gate[2], r;
	pid_t pid;

	if (pipe2(gate, O_CLOEXEC) < 0)
		return -errno;
	pid = fork();
	if (pid == 0) {
		char go;

		close(gate[1]);
		if (read(gate[0], &go, 1) != 1)
			_exit(127);
		child_become(argv, stdfd);
	}
	r = pid < 0 ? -errno : tracer_seize(tracer, pid, gate[1]);
	close(gate[0]);
	close(gate[1]);
	if (r == 0)
		*ret_pid = pid;
	return r;
}

static void tracee_kill(struct tracee *tracee)
{
	tracee->condemned = true;
	kill(tracee->pid, SIGKILL);
}

void tracer_kill_all(struct tracer *tracer)
{
	int status;
	pid_t pid;

	for (unsigned i = 0; i < tracer->n_tracees; i++) {
		if (tracer->tracees[i].traced)
			tracee_kill(&tracer->tracees[i]);
	}
	/* Whoever was born while we killed is attached to us and reports: it dies here. */
	while ((pid = waitpid(-1, &status, __WALL)) > 0 || errno == EINTR) {
		struct tracee *tracee = pid > 0 ? tracer_meet(tracer, pid) : NULL;

		if (!tracee)
			continue;
		if (!WIFSTOPPED(status))
			tracee_lost(tracer, tracee);
		else
			tracee_kill(tracee);
	}
}

void tracer_let_go(struct tracer *tracer)
{
	int status;
	pid_t pid;

	tracer->letting_go = true;
	for (unsigned i = 0; i < tracer->n_tracees; i++) {
		if (tracer->tracees[i].traced)
			ptrace(PTRACE_INTERRUPT, tracer->tracees[i].pid, NULL, NULL);
	}
	while (tracer->n_traced > 0) {
		pid = waitpid(-1, &status, __WALL);
		if (pid > 0)
			tracer_take(tracer, pid, status);
		else if (errno != EINTR)
			break;
	}
}

static void tracer_act(struct tracer *tracer, struct tracee *tracee)
{
	tracer->acted = true;
	tracer->acted_on = tracee->nr;
	if (tracer->point->action == ACTION_BOTH) {
		tracer_kill_all(tracer);
	} else {
		if (tracer->point->action == ACTION_KILL)
			tracee_kill(tracee);
		else
			tracee_resume(tracer, tracee, 0);
		tracer_let_go(tracer);
	}
}

/* True: the call is answered by us. */
static bool tracee_refuse(struct tracer *tracer, struct tracee *tracee,
	const struct call_stop *stop)
{
	const struct point *point = tracer->point;
	bool store;

	if (tracee->calls < point->call)
		return false;
	if (tracer->acted && point->action != ACTION_FAIL_ON)
		return false;
	store = call_is_store(tracee->pid, stop, tracer->store_dirs);
	if (point->action == ACTION_FAIL_ON && !store)
		return false;
	if (!call_can_fail(stop->nr, point->error, store))
		return false;
	if (regs_skip_call(tracee->pid) < 0)
		return false;
	if (!tracer->acted)
		tracer->acted_on = stop->nr;
	tracee->failing = true;
	if (point->action == ACTION_FAIL_ON)
		tracer->acted = true;
	return true;
}

static void census_take(struct tracer *tracer, const struct tracee *tracee,
	const struct call_stop *stop)
{
	struct census *census = tracer->census;
	struct census_process *process = &census->process[tracee->birth];

	if (tracee->birth >= CENSUS_PROCESSES_MAX || process->n_calls == CENSUS_CALLS_MAX) {
		census->overflowed = true;
		return;
	}
	process->calls[process->n_calls++] = (struct census_call){
		.nr = (short)stop->nr,
		.store = call_is_store(tracee->pid, stop, tracer->store_dirs),
	};
}

static bool tracee_is_at_point(const struct tracer *tracer, const struct tracee *tracee,
	enum call_side side)
{
	const struct point *point = tracer->point;

	return tracee_is_victim(tracer, tracee) && !tracer->acted && point->side == side &&
		point->call == tracee->calls &&
		(point->action == ACTION_KILL || point->action == ACTION_BOTH);
}

static void tracee_enters(struct tracer *tracer, struct tracee *tracee,
	const struct call_stop *stop)
{
	if (!tracee->counting)
		return;
	tracee->calls++;
	tracee->nr = stop->nr;
	tracee->names_itself = stop->nr == SYS_prctl && stop->args[0] == PR_SET_NAME;
	if (tracer->census && tracee_is_watched(tracer, tracee))
		census_take(tracer, tracee, stop);
	if (tracee_is_at_point(tracer, tracee, SIDE_ENTRY)) {
		tracer_act(tracer, tracee);
		return;
	}
	if (tracee_is_victim(tracer, tracee) && tracer->point->action >= ACTION_FAIL)
		tracee_refuse(tracer, tracee, stop);
	tracee_resume(tracer, tracee, 0);
}

static void tracee_leaves(struct tracer *tracer, struct tracee *tracee)
{
	enum role role;

	if (tracee->names_itself && tracee->role == ROLE_NEWBORN && role_read(tracee->pid, &role))
		tracee_name(tracer, tracee, role);
	tracee->names_itself = false;
	if (tracee_is_at_point(tracer, tracee, SIDE_EXIT)) {
		tracer_act(tracer, tracee);
		return;
	}
	if (tracee->failing) {
		regs_set_result(tracee->pid, -tracer->point->error);
		tracee->failing = false;
		if (tracer->point->action == ACTION_FAIL) {
			tracer_act(tracer, tracee);
			return;
		}
	}
	tracee_resume(tracer, tracee, 0);
}

static void tracee_at_call(struct tracer *tracer, struct tracee *tracee)
{
	struct call_stop stop;

	if (tracer->letting_go || regs_read_call(tracee->pid, &stop) < 0)
		tracee_resume(tracer, tracee, 0);
	else if (stop.side == SIDE_ENTRY)
		tracee_enters(tracer, tracee, &stop);
	else
		tracee_leaves(tracer, tracee);
}

static void tracee_at_event(struct tracer *tracer, struct tracee *tracee, int event, int signo)
{
	unsigned long child = 0;

	switch (event) {
	case PTRACE_EVENT_FORK:
	case PTRACE_EVENT_VFORK:
	case PTRACE_EVENT_CLONE:
		if (ptrace(PTRACE_GETEVENTMSG, tracee->pid, NULL, &child) == 0)
			tracer_meet(tracer, (pid_t)child);
		break;
	case PTRACE_EVENT_EXEC:
		tracee->counting = true;
		break;
	case PTRACE_EVENT_STOP:
		/* A group stop is somebody's SIGSTOP: it stays stopped, until their SIGCONT. */
		if (signo != SIGTRAP && !tracer->letting_go) {
			ptrace(PTRACE_LISTEN, tracee->pid, NULL, NULL);
			return;
		}
		break;
	default:
		break;
	}
	tracee_resume(tracer, tracee, 0);
}

static void tracee_ended(struct tracer *tracer, struct tracee *tracee, int status)
{
	int signo = WIFSIGNALED(status) ? WTERMSIG(status) : 0;

	if (signo == SIGSEGV || signo == SIGABRT || signo == SIGBUS || signo == SIGILL ||
		signo == SIGFPE || signo == SIGSYS || signo == SIGPIPE ||
		(tracee->role == ROLE_AGENT && signo != 0 && !tracee->condemned)) {
		tracer->fault_signal = signo;
		tracer->fault_role = tracee->role;
	}
	tracee_lost(tracer, tracee);
	tracee->pid = 0;
}

void tracer_take(struct tracer *tracer, pid_t pid, int status)
{
	struct tracee *tracee = tracee_of(tracer, pid);

	if (!WIFSTOPPED(status)) {
		if (tracee)
			tracee_ended(tracer, tracee, status);
		return;
	}
	if (!tracee)
		tracee = tracer_meet(tracer, pid);
	if (!tracee) {
		/* More than there is room for: it goes its way unseen. */
		ptrace(PTRACE_DETACH, pid, NULL, NULL);
		return;
	}
	if (WSTOPSIG(status) == (SIGTRAP | 0x80))
		tracee_at_call(tracer, tracee);
	else if (status >> 16)
		tracee_at_event(tracer, tracee, status >> 16, WSTOPSIG(status));
	else
		tracee_resume(tracer, tracee, WSTOPSIG(status));
}
