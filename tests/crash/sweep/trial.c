/* SPDX-License-Identifier: Apache-2.0 */
#include "trial.h"

#include "clock.h"
#include "record.h"
#include "session.h"
#include "tracer.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>
#include <sys/signalfd.h>
#include <sys/wait.h>
#include <unistd.h>

struct trial {
	struct bench *bench;
	const struct scenario *scenario;
	const struct point *point; /* NULL: a recording */
	const struct point *focus; /* of a recording; NULL: all */
	struct tracer tracer;
	struct session session;
	char above[RECORD_KEY_MAX]; /* the leases of this trial have higher keys */
	uint64_t deadline_us, acted_us;
	bool alone; /* no process of the scenario is left */
	struct outcome *outcome;
};

/* A target that is paused, and a controller that never ends it. */
static const struct scenario staging = {
	.name = "staging",
	.steps = {STEP_HANDSHAKE, STEP_INJECT, STEP_AWAIT_TARGET},
};

/* The first reason stays: what follows is its consequence. */
__attribute__((format(printf, 3, 4))) static bool trial_end(struct trial *trial,
	enum verdict verdict, const char *format, ...)
{
	va_list args;

	if (trial->outcome->verdict >= VERDICT_FAILED)
		return false;
	trial->outcome->verdict = verdict;
	va_start(args, format);
	vsnprintf(trial->outcome->why, sizeof(trial->outcome->why), format, args);
	va_end(args);
	return false;
}

static bool is_death_of(const struct trial *trial, enum role role)
{
	return trial->point && trial->point->action == ACTION_KILL && trial->point->role == role;
}

static bool is_death_of_both(const struct trial *trial)
{
	return trial->point && trial->point->action == ACTION_BOTH;
}

static void trial_wind_up(struct trial *trial)
{
	trial->deadline_us = clock_us() + trial->bench->deadline_ms * 1000u;
}

static int trial_start(struct trial *trial, const struct scenario *scenario)
{
	struct bench *bench = trial->bench;
	const char *verb = scenario->recover ? "recover" : "serve";
	char *argv[] = {(char *)bench->agent, (char *)verb, "--state", bench->state, NULL};
	int in[2], out[2], r;
	pid_t pid;

	if (pipe2(in, O_CLOEXEC) < 0 || pipe2(out, O_CLOEXEC) < 0)
		return -errno;
	r = tracer_spawn(&trial->tracer, argv, (int[]){in[0], out[1], bench->errorfd}, &pid);
	close(in[0]);
	close(out[1]);
	trial->alone = false;
	trial_wind_up(trial);
	if (r < 0) {
		close(in[1]);
		close(out[0]);
		return r;
	}
	return session_begin(&trial->session, scenario, &bench->target, in[1], out[0]);
}

static void trial_acted(struct trial *trial)
{
	trial->acted_us = clock_us();
	trial_wind_up(trial);
	target_ask(&trial->bench->target);
	if (is_death_of_both(trial) || is_death_of(trial, ROLE_AGENT))
		session_free(&trial->session);
	else if (is_death_of(trial, ROLE_HOLDER))
		trial->session.held = true;
	else if (trial->scenario->orphan)
		trial->session.impatient = true;
}

static void trial_reap(struct trial *trial)
{
	int status;
	pid_t pid;

	while ((pid = waitpid(-1, &status, WNOHANG | __WALL)) > 0) {
		tracer_take(&trial->tracer, pid, status);
		if (trial->tracer.acted && trial->acted_us == 0)
			trial_acted(trial);
	}
	trial->alone = pid < 0 && errno == ECHILD;
}

static void trial_turn(struct trial *trial)
{
	struct target *target = &trial->bench->target;
	struct pollfd fds[] = {
		{.fd = trial->bench->childfd, .events = POLLIN},
		{.fd = trial->session.outfd, .events = POLLIN},
		{.fd = target->answerfd, .events = POLLIN},
	};
	struct signalfd_siginfo info;

	poll(fds, 3, clock_left_ms(trial->deadline_us));
	if (fds[0].revents && read(fds[0].fd, &info, sizeof(info)) < 0 && errno != EAGAIN)
		trial_end(trial, VERDICT_BROKEN, "signalfd: %s", strerror(errno));
	trial_reap(trial);
	if (fds[1].revents && trial->session.outfd >= 0)
		session_hear(&trial->session);
	if (target_runs(target)) {
		trial->session.held = false;
		if (trial->acted_us && trial->outcome->back_us == 0)
			trial->outcome->back_us = (unsigned)(clock_us() - trial->acted_us);
	}
	session_advance(&trial->session);
}

/* Who is left, as far as it has ever been seen: the rest are their children. */
static bool trial_overdue(struct trial *trial)
{
	const char *awaits = session_awaits(&trial->session);
	char who[128] = "";
	size_t n = 0;

	for (unsigned i = 0; i < trial->tracer.n_tracees && n < sizeof(who) - 32; i++) {
		const struct tracee *tracee = &trial->tracer.tracees[i];

		if (tracee->pid > 0 && kill(tracee->pid, 0) == 0)
			n += (size_t)snprintf(who + n, sizeof(who) - n, " %s:%u",
				role_name(tracee->role), tracee->ordinal);
	}
	if (trial->session.held)
		awaits = "the target to run, its holder being dead";
	return trial_end(trial, VERDICT_FAILED, "past the deadline, waiting for %s; alive:%s",
		awaits ? awaits : "the processes to end", who);
}

static bool trial_play(struct trial *trial)
{
	while (!trial->alone) {
		if (clock_us() >= trial->deadline_us)
			return trial_overdue(trial);
		trial_turn(trial);
		if (trial->outcome->verdict == VERDICT_BROKEN)
			return false;
	}
	if (trial->tracer.fault_signal)
		return trial_end(trial, VERDICT_FAILED, "%s died of signal %d",
			role_name(trial->tracer.fault_role), trial->tracer.fault_signal);
	return true;
}

static const char *why_not_paused(const struct session *session)
{
	if (session->refusal[0])
		return session->refusal;
	return session->injected ? "the answer was ok, and the target runs" : "no answer";
}

/* Leaves a lease that is active, its target stopped, and nobody to end it. */
static bool trial_stage_once(struct trial *trial, char ret_why[SESSION_REFUSAL_MAX])
{
	bool staged;
	int r;

	tracer_begin(&trial->tracer, NULL, NULL, trial->bench->store_dirs, NULL);
	r = trial_start(trial, &staging);
	while (r == 0 && !trial->alone && !trial->session.injected &&
		trial->session.refusal[0] == '\0' && clock_us() < trial->deadline_us)
		trial_turn(trial);
	staged = r == 0 && trial->session.injected && trial->session.stopped;
	snprintf(ret_why, SESSION_REFUSAL_MAX, "%s",
		r < 0 ? strerror(-r) : why_not_paused(&trial->session));
	tracer_kill_all(&trial->tracer);
	session_free(&trial->session);
	return staged;
}

/* It is not what is tested: a halt of the whole host by somebody else, say, may pass. */
static bool trial_stage(struct trial *trial)
{
	char why[SESSION_REFUSAL_MAX];

	for (unsigned i = 0; i < 3; i++) {
		if (trial_stage_once(trial, why))
			return true;
		bench_prepare(trial->bench);
	}
	return trial_end(trial, VERDICT_BROKEN, "no orphan could be staged: %s", why);
}

static bool judge_look(struct trial *trial, struct store_view *ret)
{
	char why[RECORD_WHY_MAX] = "";
	int r = store_look(trial->bench->state, trial->above, ret, why);

	if (r < 0)
		return trial_end(trial, VERDICT_FAILED, "%s", why[0] ? why : strerror(-r));
	/* No death tears a record, and what could not be read now may be readable again. */
	if (ret->n_aside > 0)
		return trial_end(trial, VERDICT_FAILED, "a record was set aside");
	return true;
}

static bool judge_target(struct trial *trial, const struct store_view *view, const char *when)
{
	if (bench_target_answers(trial->bench, trial->bench->deadline_ms))
		return true;
	return trial_end(trial, VERDICT_FAILED, "the target is stopped %s; %s is %s", when,
		view->has_newest ? view->newest.key : "no lease",
		view->has_newest ? view->newest.state : "there");
}

/* What must hold before anybody calls recover. */
static bool judge_before(struct trial *trial, struct store_view *view)
{
	bool mended = !is_death_of_both(trial) && (!trial->scenario->orphan || !trial->point);
	bool settled = mended && (!trial->point || trial->point->action == ACTION_KILL);

	if (!judge_look(trial, view))
		return false;
	if ((mended || (view->has_newest && view->newest.safe)) &&
		!judge_target(trial, view, mended ? "without recover" : "before recover"))
		return false;
	if (settled && view->n_open > view->n_open_settled)
		return trial_end(trial, VERDICT_FAILED, "%s is left %s", view->newest.key,
			view->newest.state);
	if (trial->session.injected && !view->has_newest)
		return trial_end(trial, VERDICT_FAILED, "the lease that was answered is gone");
	return true;
}

static bool judge_recover(struct trial *trial)
{
	int status = -1, r = bench_command(trial->bench, "recover", NULL, &status);

	if (r < 0)
		return trial_end(trial, VERDICT_FAILED, "recover: %s", strerror(-r));
	if (!WIFEXITED(status) || (WEXITSTATUS(status) != 0 && WEXITSTATUS(status) != 7))
		return trial_end(trial, VERDICT_FAILED, "recover ended with wait status %#x",
			(unsigned)status);
	return true;
}

static bool judge_after(struct trial *trial)
{
	struct store_view view;

	if (!judge_recover(trial) || !judge_look(trial, &view) ||
		!judge_target(trial, &view, "after recover"))
		return false;
	if (view.n_open > view.n_open_dirty)
		return trial_end(trial, VERDICT_FAILED, "after recover %s is still open, %s",
			view.newest.key, view.newest.state);
	trial->outcome->dirty = view.n_open_dirty > 0;
	return true;
}

static void trial_judge(struct trial *trial)
{
	struct store_view view;

	if (!judge_before(trial, &view))
		return;
	/* Without a lease there is nothing that recover would do: then it must have been done. */
	if (is_death_of_both(trial) || view.n_open > 0) {
		if (!judge_after(trial))
			return;
	} else if (!judge_target(trial, &view, "at the end")) {
		return;
	}
	if (trial->point && !trial->tracer.acted)
		trial->outcome->verdict = VERDICT_MISSED;
}

/* The next point begins as if this one had not been. */
static void trial_clean(struct trial *trial)
{
	struct bench *bench = trial->bench;

	session_free(&trial->session);
	if (trial->outcome->verdict >= VERDICT_FAILED) {
		char name[POINT_TEXT_MAX + 64] = "recording", text[POINT_TEXT_MAX];

		bench_kill_leftovers();
		target_continue(&bench->target);
		if (trial->point) {
			point_print(trial->point, text);
			snprintf(name, sizeof(name), "%s-%s", trial->scenario->name, text);
		}
		bench_keep(bench, name);
	}
	if (trial->outcome->verdict >= VERDICT_FAILED || trial->outcome->dirty) {
		target_end(&bench->target);
		bench_reset(bench);
	}
}

static void trial_do(struct trial *trial, const struct census *expected, struct census *record)
{
	int r = bench_prepare(trial->bench);

	store_highest(trial->bench->state, trial->above);
	if (r < 0)
		trial_end(trial, VERDICT_BROKEN, "no target: %s", strerror(-r));
	else if (trial->scenario->orphan && !trial_stage(trial))
		return;
	tracer_begin(&trial->tracer, trial->point ? trial->point : trial->focus, expected,
		trial->bench->store_dirs, record);
	if (r == 0)
		r = trial_start(trial, trial->scenario);
	if (r < 0)
		trial_end(trial, VERDICT_BROKEN, "no agent: %s", strerror(-r));
	else if (trial_play(trial))
		trial_judge(trial);
	trial->outcome->call = trial->tracer.acted ? trial->tracer.acted_on : -1;
}

static void trial_begin(struct trial *ret, struct bench *bench, unsigned scenario,
	const struct point *point, struct outcome *outcome)
{
	*outcome = (struct outcome){.verdict = VERDICT_HELD, .call = -1};
	*ret = (struct trial){
		.bench = bench,
		.scenario = &scenarios[scenario],
		.point = point,
		.session = {.infd = -1, .outfd = -1, .ended = true},
		.outcome = outcome,
	};
}

void trial_record(struct bench *bench, unsigned scenario, const struct point *focus,
	const struct census *expected, struct census *ret_census, struct outcome *ret)
{
	struct trial trial;

	*ret_census = (struct census){0};
	trial_begin(&trial, bench, scenario, NULL, ret);
	trial.focus = focus;
	trial_do(&trial, expected, ret_census);
	if (ret->verdict == VERDICT_HELD && !trial.scenario->orphan && !trial.session.stopped)
		trial_end(&trial, VERDICT_FAILED, "the target was not paused: %s",
			why_not_paused(&trial.session));
	trial_clean(&trial);
}

void trial_run(struct bench *bench, const struct point *point, const struct census *expected,
	struct outcome *ret)
{
	struct trial trial;

	trial_begin(&trial, bench, point->scenario, point, ret);
	trial_do(&trial, expected, NULL);
	trial_clean(&trial);
}
