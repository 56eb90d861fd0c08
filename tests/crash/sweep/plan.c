/* SPDX-License-Identifier: Apache-2.0 */
#include "plan.h"

#include "calls.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

void point_print(const struct point *point, char ret[POINT_TEXT_MAX])
{
	const char *action = point->action == ACTION_KILL ? "kill"
		: point->action == ACTION_BOTH		  ? "both"
							  : error_name(point->error);

	snprintf(ret, POINT_TEXT_MAX, "%s:%u:%u:%s:%s%s", role_name(point->role), point->ordinal,
		point->call, point->side == SIDE_ENTRY ? "entry" : "exit", action,
		point->action == ACTION_FAIL_ON ? "+" : "");
}

static bool action_parse(char *text, struct point *point)
{
	size_t n = strlen(text);

	if (strcmp(text, "kill") == 0) {
		point->action = ACTION_KILL;
		return true;
	}
	if (strcmp(text, "both") == 0) {
		point->action = ACTION_BOTH;
		return true;
	}
	point->action = ACTION_FAIL;
	if (n > 0 && text[n - 1] == '+') {
		text[n - 1] = '\0';
		point->action = ACTION_FAIL_ON;
	}
	return error_parse(text, &point->error);
}

static bool number_parse(const char *text, unsigned *ret)
{
	unsigned long value;
	char *end;

	errno = 0;
	value = strtoul(text, &end, 10);
	if (errno != 0 || end == text || *end != '\0' || value > 1000000)
		return false;
	*ret = (unsigned)value;
	return true;
}

bool point_parse(const char *text, struct point *ret)
{
	struct point point = {0};
	char copy[POINT_TEXT_MAX], *part[5], *rest = copy;

	if (strlen(text) >= sizeof(copy))
		return false;
	strcpy(copy, text);
	for (unsigned i = 0; i < 5; i++)
		part[i] = strsep(&rest, ":");
	if (!part[4] || rest)
		return false;

	if (!role_parse(part[0], &point.role) || !number_parse(part[1], &point.ordinal) ||
		!number_parse(part[2], &point.call) || point.call == 0)
		return false;
	if (strcmp(part[3], "entry") == 0)
		point.side = SIDE_ENTRY;
	else if (strcmp(part[3], "exit") == 0)
		point.side = SIDE_EXIT;
	else
		return false;
	if (!action_parse(part[4], &point))
		return false;
	*ret = point;
	return true;
}

int plan_add_one(struct plan *plan, const struct point *point)
{
	if (plan->n == plan->room) {
		size_t room = plan->room ? plan->room * 2 : 256;
		struct point *points = reallocarray(plan->points, room, sizeof(*points));

		if (!points)
			return -ENOMEM;
		plan->points = points;
		plan->room = room;
	}
	plan->points[plan->n++] = *point;
	return 0;
}

static int plan_add_deaths(struct plan *plan, struct point point, const struct census_call *call,
	const struct plan_wish *wish)
{
	static const enum call_side sides[] = {SIDE_ENTRY, SIDE_EXIT};
	int r;

	for (unsigned i = 0; i < 2; i++) {
		point.side = sides[i];
		if (point.side == SIDE_EXIT && !call_returns(call->nr))
			continue;
		point.action = ACTION_KILL;
		if (wish->kill && (r = plan_add_one(plan, &point)) < 0)
			return r;
		point.action = ACTION_BOTH;
		if (wish->both && (r = plan_add_one(plan, &point)) < 0)
			return r;
	}
	return 0;
}

static int plan_add_errors(struct plan *plan, struct point point, const struct census_call *call,
	const struct plan_wish *wish)
{
	int r;

	point.side = SIDE_ENTRY;
	for (size_t i = 0; i < wish->n_errors; i++) {
		point.error = wish->errors[i];
		if (!call_can_fail(call->nr, point.error, call->store))
			continue;
		if (!call->store && !wish->every_call)
			continue;
		point.action = ACTION_FAIL;
		if (wish->once && (r = plan_add_one(plan, &point)) < 0)
			return r;
		point.action = ACTION_FAIL_ON;
		/* No interruption lasts: whoever tries again would try for ever, and be right. */
		if (wish->on && call->store && point.error != EINTR &&
			(r = plan_add_one(plan, &point)) < 0)
			return r;
	}
	return 0;
}

int plan_add_all(struct plan *plan, const struct census *census, unsigned scenario,
	const struct plan_wish *wish)
{
	for (unsigned i = 0; i < census->n_processes; i++) {
		const struct census_process *process = &census->process[i];

		if (!(wish->roles & 1u << process->role))
			continue;
		for (unsigned n = wish->from; n <= process->n_calls && n <= wish->to; n++) {
			const struct census_call *call = &process->calls[n - 1];
			struct point point = {
				.scenario = scenario,
				.role = process->role,
				.ordinal = process->ordinal,
				.call = n,
			};
			int r = plan_add_deaths(plan, point, call, wish);

			if (r == 0)
				r = plan_add_errors(plan, point, call, wish);
			if (r < 0)
				return r;
		}
	}
	return 0;
}

/* splitmix64: small, and the same on every machine, which is all that a seed has to promise. */
static uint64_t draw_next(uint64_t *state)
{
	uint64_t z = *state += 0x9e3779b97f4a7c15u;

	z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
	z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
	return z ^ (z >> 31);
}

int plan_draw(struct plan *plan, size_t n, uint64_t seed)
{
	struct point *drawn;

	if (plan->n == 0)
		return 0;
	drawn = calloc(n ? n : 1, sizeof(*drawn));
	if (!drawn)
		return -ENOMEM;
	for (size_t i = 0; i < n; i++)
		drawn[i] = plan->points[draw_next(&seed) % plan->n];
	free(plan->points);
	*plan = (struct plan){.points = drawn, .n = n, .room = n};
	return 0;
}

void plan_free(struct plan *plan)
{
	free(plan->points);
	*plan = (struct plan){0};
}
