/* SPDX-License-Identifier: Apache-2.0 */
#include "options.h"

#include "calls.h"
#include "session.h"

#include <errno.h>
#include <getopt.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static const char usage[] =
	"usage: sweep --agent PATH --state-root DIR [options]\n"
	"Kills or fails a process of an agent's session at each of its system calls, and checks\n"
	"that the target runs again and that no record says so too early.\n"
	"\n"
	"  --scenario NAME|all   default pause-release; several are given apart by commas\n"
	"  --role ROLE|both|all  agent, holder, recover, clerk, watch, tool, probe, service,\n"
	"                        newborn; both kills agent and holder together at the calls\n"
	"                        of either\n"
	"  --action ACTION       kill, both, errors (each error once, then lasting), error=NAME,\n"
	"                        error=NAME+ (it and every later call on the store), all\n"
	"                        default: kill and both for agent and holder, and errors\n"
	"  --calls store|all     errors: at the calls on the store (default), or at every call\n"
	"                        that its manual page lets fail so\n"
	"  --from N --to N       only calls N to N of each process\n"
	"  --random N --seed S   N points drawn from what the above chooses\n"
	"  --point ROLE:ORDINAL:CALL:entry|exit:ACTION\n"
	"                        this one, as a failing point is printed\n"
	"  -j N                  workers, default 3\n"
	"  --fresh               a new state directory for every point\n"
	"  --deadline-ms N       default 5000\n"
	"  --count               only list who makes how many calls; twice: list the calls\n"
	"  --json                the result as one object\n";

enum {
	OPT_AGENT = 256,
	OPT_ROOT,
	OPT_SCENARIO,
	OPT_ROLE,
	OPT_ACTION,
	OPT_CALLS,
	OPT_FROM,
	OPT_TO,
	OPT_RANDOM,
	OPT_SEED,
	OPT_POINT,
	OPT_FRESH,
	OPT_DEADLINE,
	OPT_COUNT,
	OPT_JSON,
	OPT_HELP
};

static const struct option longs[] = {
	{"agent", required_argument, NULL, OPT_AGENT},
	{"state-root", required_argument, NULL, OPT_ROOT},
	{"scenario", required_argument, NULL, OPT_SCENARIO},
	{"role", required_argument, NULL, OPT_ROLE},
	{"action", required_argument, NULL, OPT_ACTION},
	{"calls", required_argument, NULL, OPT_CALLS},
	{"from", required_argument, NULL, OPT_FROM},
	{"to", required_argument, NULL, OPT_TO},
	{"random", required_argument, NULL, OPT_RANDOM},
	{"seed", required_argument, NULL, OPT_SEED},
	{"point", required_argument, NULL, OPT_POINT},
	{"fresh", no_argument, NULL, OPT_FRESH},
	{"deadline-ms", required_argument, NULL, OPT_DEADLINE},
	{"count", no_argument, NULL, OPT_COUNT},
	{"json", no_argument, NULL, OPT_JSON},
	{"help", no_argument, NULL, OPT_HELP},
	{0},
};

static bool number_read(const char *text, uint64_t max, uint64_t *ret)
{
	char *end;

	errno = 0;
	*ret = strtoull(text, &end, 10);
	return errno == 0 && end != text && *end == '\0' && *text != '-' && *ret <= max;
}

static bool unsigned_read(const char *text, unsigned *ret)
{
	uint64_t value;

	if (!number_read(text, 1000000, &value))
		return false;
	*ret = (unsigned)value;
	return true;
}

static bool scenarios_read(char *text, unsigned *ret)
{
	char *name;

	*ret = 0;
	while ((name = strsep(&text, ","))) {
		int at = scenario_find(name);

		if (strcmp(name, "all") == 0)
			*ret |= (1u << n_scenarios) - 1;
		else if (at >= 0)
			*ret |= 1u << at;
		else
			return false;
	}
	return true;
}

static bool role_read_option(const char *text, struct plan_wish *wish)
{
	enum role role;

	if (strcmp(text, "all") == 0) {
		wish->roles = (1u << ROLE_MAX) - 1;
	} else if (strcmp(text, "both") == 0) {
		wish->roles = 1u << ROLE_AGENT | 1u << ROLE_HOLDER;
		wish->both = true;
	} else if (role_parse(text, &role)) {
		wish->roles = 1u << role;
	} else {
		return false;
	}
	return true;
}

static void wish_errors(struct options *options)
{
	static const int all[ERRORS_MAX] = {ENOSPC, EIO, EMFILE, ENOMEM, EINTR};

	memcpy(options->errors, all, sizeof(all));
	options->wish.n_errors = ERRORS_MAX;
	options->wish.once = true;
	options->wish.on = true;
}

static bool error_read_option(const char *text, struct options *options)
{
	char name[16];
	size_t n = strlen(text);

	if (n == 0 || n >= sizeof(name))
		return false;
	strcpy(name, text);
	options->wish.on = name[n - 1] == '+';
	options->wish.once = !options->wish.on;
	if (options->wish.on)
		name[n - 1] = '\0';
	options->wish.n_errors = 1;
	return error_parse(name, &options->errors[0]);
}

static bool action_read_option(const char *text, struct options *options)
{
	bool all = strcmp(text, "all") == 0;

	if (strncmp(text, "error=", 6) == 0)
		return error_read_option(text + 6, options);
	options->wish.kill = options->wish.kill || all || strcmp(text, "kill") == 0;
	options->wish.both = options->wish.both || all || strcmp(text, "both") == 0;
	if (all || strcmp(text, "errors") == 0)
		wish_errors(options);
	return all || options->wish.kill || options->wish.both || options->wish.n_errors > 0;
}

static bool calls_read_option(const char *text, struct plan_wish *wish)
{
	wish->every_call = strcmp(text, "all") == 0;
	return wish->every_call || strcmp(text, "store") == 0;
}

/* Absolute and without links: what /proc says of a descriptor is compared with it. */
static bool root_read(const char *text, struct options *options)
{
	options->setup.root = realpath(text, NULL);
	return options->setup.root != NULL;
}

static bool option_take(int option, char *value, struct options *options)
{
	uint64_t number = 0;

	switch (option) {
	case OPT_AGENT:
		options->setup.agent = value;
		return true;
	case OPT_ROOT:
		return root_read(value, options);
	case OPT_SCENARIO:
		return scenarios_read(value, &options->scenarios);
	case OPT_ROLE:
		return role_read_option(value, &options->wish);
	case OPT_ACTION:
		return action_read_option(value, options);
	case OPT_CALLS:
		return calls_read_option(value, &options->wish);
	case OPT_FROM:
		return unsigned_read(value, &options->wish.from) && options->wish.from > 0;
	case OPT_TO:
		return unsigned_read(value, &options->wish.to);
	case OPT_RANDOM:
		options->random = number_read(value, 10000000, &number) ? (size_t)number : 0;
		return options->random > 0;
	case OPT_SEED:
		return number_read(value, UINT64_MAX, &options->seed);
	case OPT_POINT:
		options->one = true;
		return point_parse(value, &options->point);
	case OPT_DEADLINE:
		return unsigned_read(value, &options->setup.deadline_ms);
	case 'j':
		return unsigned_read(value, &options->workers) && options->workers > 0;
	default:
		return false;
	}
}

static bool flag_take(int option, struct options *options)
{
	switch (option) {
	case OPT_FRESH:
		options->setup.fresh = true;
		return true;
	case OPT_COUNT:
		options->count++;
		return true;
	case OPT_JSON:
		options->json = true;
		return true;
	default:
		return false;
	}
}

static void options_complete(struct options *options)
{
	struct plan_wish *wish = &options->wish;

	if (!wish->kill && !wish->both && wish->n_errors == 0) {
		wish->kill = true;
		if (wish->roles == 0) {
			wish->both = true;
			wish_errors(options);
		}
	}
	if (wish->roles == 0)
		wish->roles = 1u << ROLE_AGENT | 1u << ROLE_HOLDER;
	wish->errors = options->errors;
	if (options->one)
		options->workers = 1;
}

void options_free(struct options *options)
{
	free(options->setup.root);
	options->setup.root = NULL;
}

int options_read(int argc, char **argv, struct options *ret)
{
	int option;

	*ret = (struct options){
		.setup = {.deadline_ms = 5000},
		.scenarios = 1,
		.wish = {.from = 1, .to = UINT_MAX},
		.seed = 1,
		.workers = 3,
	};
	while ((option = getopt_long(argc, argv, "j:", longs, NULL)) != -1) {
		if (option == OPT_HELP) {
			fputs(usage, stdout);
			return 1;
		}
		if (option == '?' ||
			(!flag_take(option, ret) && !option_take(option, optarg, ret))) {
			fprintf(stderr, "sweep: %s does not read\n", argv[optind - 1]);
			return -EINVAL;
		}
	}
	if (!ret->setup.agent || !ret->setup.root || optind != argc) {
		fputs(usage, stderr);
		return -EINVAL;
	}
	if (access(ret->setup.agent, X_OK) < 0) {
		fprintf(stderr, "sweep: %s cannot be run: %s\n", ret->setup.agent, strerror(errno));
		return -EINVAL;
	}
	options_complete(ret);
	return 0;
}
