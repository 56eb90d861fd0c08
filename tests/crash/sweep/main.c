/* SPDX-License-Identifier: Apache-2.0 */
/*
 * sweep: what happens to a paused process when those who paused it die or fail at call N.
 *
 * First the scenario is played with nothing done to it, a few times, and every system call of every
 * process is counted. From that come the points; each is played anew, with a blow struck at its
 * call, and then what must hold is checked. trial.h says what that is, roles.h who is who.
 *
 * Exit: 0 all points held, 1 some failed or something was left behind, 2 the sweep could not be done.
 */
#include "calls.h"
#include "clock.h"
#include "options.h"
#include "plan.h"
#include "session.h"
#include "worker.h"

#include <errno.h>
#include <fcntl.h>
#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <unistd.h>

struct tally {
	size_t swept, missed, failed, dirty, broken;
	unsigned names, marks; /* see litter.h */
	uint64_t us;
	unsigned slowest_us;
	struct point slowest;
	json_t *failures; /* owned */
};

/* LeakSanitizer cannot work under a tracer; the rest of a sanitizer build can. */
static int environment_prepare(void)
{
	const char *given = getenv("ASAN_OPTIONS");
	char *text;
	int r;

	if (asprintf(&text, "%s%sdetect_leaks=0", given ? given : "", given ? ":" : "") < 0)
		return -ENOMEM;
	r = setenv("ASAN_OPTIONS", text, 1);
	free(text);
	return r;
}

static void census_print(const struct options *options, unsigned scenario,
	const struct census *census)
{
	char buffer[16];

	for (unsigned i = 0; i < census->n_processes; i++) {
		const struct census_process *process = &census->process[i];
		unsigned n_store = 0;

		for (unsigned n = 0; n < process->n_calls; n++)
			n_store += process->calls[n].store;
		printf("%s %s:%u %u calls, %u on the store\n", scenarios[scenario].name,
			role_name(process->role), process->ordinal, process->n_calls, n_store);
		for (unsigned n = 0; options->count > 1 && n < process->n_calls; n++)
			printf("  %4u %s%s\n", n + 1, call_name(process->calls[n].nr, buffer),
				process->calls[n].store ? " (store)" : "");
	}
}

static int record_all(const struct options *options, struct census *census)
{
	struct outcome *outcome = shared_memory(sizeof(*outcome));

	if (!outcome)
		return -ENOMEM;
	for (unsigned i = 0; i < n_scenarios; i++) {
		int r;

		if (!(options->scenarios & 1u << i))
			continue;
		r = crew_record(&options->setup, i, &census[i], outcome);
		if (r == 0)
			continue;
		fprintf(stderr, "sweep: %s, with nothing done to it: %s\n", scenarios[i].name,
			r < 0 ? strerror(-r) : outcome->why);
		return r;
	}
	return 0;
}

static int plan_make(const struct options *options, const struct census *census, struct plan *plan)
{
	for (unsigned i = 0; i < n_scenarios; i++) {
		struct point point = options->point;
		int r;

		if (!(options->scenarios & 1u << i))
			continue;
		point.scenario = i;
		r = options->one ? plan_add_one(plan, &point)
				 : plan_add_all(plan, &census[i], i, &options->wish);
		if (r < 0)
			return r;
	}
	return options->random ? plan_draw(plan, options->random, options->seed) : 0;
}

static void failure_take(struct tally *tally, const struct point *point,
	const struct outcome *outcome)
{
	char text[POINT_TEXT_MAX], buffer[16];
	const char *call = outcome->call < 0 ? "no call" : call_name(outcome->call, buffer);

	point_print(point, text);
	fprintf(stderr, "FAILED --scenario %s --point %s (%s): %s\n",
		scenarios[point->scenario].name, text, call, outcome->why);
	json_array_append_new(tally->failures,
		json_pack("{s:s, s:s, s:s, s:s}", "scenario", scenarios[point->scenario].name,
			"point", text, "call", call, "why", outcome->why));
}

static void tally_take(struct tally *tally, const struct point *point,
	const struct outcome *outcome)
{
	tally->missed += outcome->verdict == VERDICT_MISSED;
	tally->broken += outcome->verdict == VERDICT_BROKEN;
	tally->failed += outcome->verdict == VERDICT_FAILED;
	tally->swept += outcome->verdict == VERDICT_HELD || outcome->verdict == VERDICT_FAILED;
	tally->dirty += outcome->dirty;
	if (outcome->back_us > tally->slowest_us) {
		tally->slowest_us = outcome->back_us;
		tally->slowest = *point;
	}
	if (outcome->verdict >= VERDICT_FAILED)
		failure_take(tally, point, outcome);
}

static int sweep(const struct options *options, const struct plan *plan,
	const struct census *census, struct tally *tally)
{
	uint64_t began_us = clock_us();
	struct report report;
	struct crew crew;
	size_t n = 0;
	int r = crew_start(&options->setup, plan, census, options->workers, &crew);

	if (r < 0)
		return r;
	while (read(crew.reportfd, &report, sizeof(report)) == (ssize_t)sizeof(report)) {
		tally_take(tally, &plan->points[report.point], &report.outcome);
		if (++n % 1000 == 0)
			fprintf(stderr, "sweep: %zu of %zu points\n", n, plan->n);
	}
	r = crew_end(&crew);
	tally->us = clock_us() - began_us;
	tally->names = atomic_load(&crew.litter->names);
	tally->marks = atomic_load(&crew.litter->marks);
	return r || n < plan->n ? -ECHILD : 0;
}

static double per_minute(const struct tally *tally)
{
	return tally->us ? (double)tally->swept * 60e6 / (double)tally->us : 0;
}

static void tally_print_json(const struct options *options, const struct tally *tally)
{
	json_t *all = json_pack("{s:i, s:I, s:I, s:I, s:I, s:i, s:i, s:f, s:f, s:f, s:I, s:O}", "v",
		1, "swept", (json_int_t)tally->swept, "missed", (json_int_t)tally->missed, "failed",
		(json_int_t)tally->failed, "dirty", (json_int_t)tally->dirty, "litter_names",
		(int)tally->names, "litter_marks", (int)tally->marks, "seconds",
		(double)tally->us / 1e6, "per_minute", per_minute(tally), "slowest_ms",
		tally->slowest_us / 1e3, "seed", (json_int_t)options->seed, "failures",
		tally->failures);
	char *text = json_dumps(all, JSON_COMPACT);

	puts(text ? text : "{}");
	free(text);
	json_decref(all);
}

static void tally_print(const struct options *options, const struct tally *tally)
{
	char text[POINT_TEXT_MAX];

	if (options->json) {
		tally_print_json(options, tally);
		return;
	}
	printf("%zu points swept in %.1f s, %.0f a minute: %zu failed, %zu left dirty, %zu missed\n",
		tally->swept, (double)tally->us / 1e6, per_minute(tally), tally->failed,
		tally->dirty, tally->missed);
	if (tally->slowest_us) {
		point_print(&tally->slowest, text);
		printf("slowest return of the target: %.1f ms, --scenario %s --point %s\n",
			tally->slowest_us / 1e3, scenarios[tally->slowest.scenario].name, text);
	}
	if (tally->names || tally->marks)
		printf("left behind: %u second names of records, %u cgroups of stores\n",
			tally->names, tally->marks);
	if (options->random)
		printf("seed %llu\n", (unsigned long long)options->seed);
}

/* Two sweeps in one folder would take each other's state directories for their own. */
static int root_lock(const char *root)
{
	int fd = open(root, O_RDONLY | O_DIRECTORY | O_CLOEXEC);

	if (fd >= 0 && flock(fd, LOCK_EX | LOCK_NB) == 0)
		return fd;
	fprintf(stderr, "sweep: %s: %s\n", root,
		fd < 0 ? strerror(errno) : "in use by another sweep");
	if (fd >= 0)
		close(fd);
	return -1;
}

static int run(const struct options *options)
{
	struct census *census = shared_memory(n_scenarios * sizeof(*census));
	struct tally tally = {.failures = json_array()};
	struct plan plan = {0};
	int r = census ? record_all(options, census) : -ENOMEM;

	for (unsigned i = 0; r == 0 && options->count && i < n_scenarios; i++)
		census_print(options, i, &census[i]);
	if (r == 0 && !options->count) {
		r = plan_make(options, census, &plan);
		if (r == 0)
			r = sweep(options, &plan, census, &tally);
		tally_print(options, &tally);
	}
	plan_free(&plan);
	json_decref(tally.failures);
	if (r != 0 || tally.broken)
		return 2;
	return tally.failed || tally.names || tally.marks ? 1 : 0;
}

int main(int argc, char **argv)
{
	struct options options;
	int r = options_read(argc, argv, &options);

	if (r == 0 && environment_prepare() == 0 && root_lock(options.setup.root) >= 0)
		r = run(&options);
	else
		r = r > 0 ? 0 : 2;
	options_free(&options);
	return r;
}
