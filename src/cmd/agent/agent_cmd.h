/* SPDX-License-Identifier: Apache-2.0 */
/* The subcommands of mayhem-agent. */
#pragma once

#include <jansson.h>
#include <stdbool.h>

#include "base/err.h"

#define AGENT_EXIT_DIRTY 7
#define AGENT_EXIT_USAGE 2
#define AGENT_EXIT_POLICY 3
#define AGENT_EXIT_CANNOT_START 8

/* What the command line said; each command uses its part. */
struct agent_args {
	const char *state_dir;
	const char *roles, *policy, *reason, *word;
	bool json, plan, sweep;
};

struct agent_command {
	const char *name;
	const char *usage; /* behind the name */
	const char *help;
	const char
		*options; /* which of "state roles policy reason json plan sweep word" it takes */
	int (*run)(const struct agent_args *args);
};

extern const struct agent_command agent_command_serve;
extern const struct agent_command agent_command_recover;
extern const struct agent_command agent_command_status;
extern const struct agent_command agent_command_halt;
extern const struct agent_command agent_command_resume;
extern const struct agent_command agent_command_doctor;
extern const struct agent_command agent_command_version;

/* Prints an error in the program's one form (text on stderr, or JSON on stdout) and returns code. */
int agent_fail(const struct agent_args *args, const struct err *err, int code);

/* One JSON object and a line end on stdout; takes j. */
void agent_print_json(json_t *j);
