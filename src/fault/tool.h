/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Running a command for a declared lease: by argv, without a shell, stdin
 * empty, PATH and HOME alone in its environment, a bounded part of its output
 * kept, within a time limit, through the launch layer like everything else.
 */
#pragma once

#include "lease/steps.h"

#define TOOL_ARGS_MAX 64
#define TOOL_OUTPUT_MAX (1u << 20)
#define TOOL_LIMIT_MS 30000

struct tool_result {
	int code; /* exit code, -1 when a signal ended it */
	int signo;
	bool timed_out;
	char *out, *err; /* NUL-terminated, cut at TOOL_OUTPUT_MAX; tool_result_free() */
};

/*
 * 0 when it ran, whatever it answered. -ENOENT etc. when it could not be
 * started; -EINTR when the run is to end (the command is killed).
 */
int tool_run(struct fault_run *run, const char *const *argv, uint64_t limit_ms,
	struct tool_result *ret, struct err *err);
void tool_result_free(struct tool_result *r);

/* The same, and an answer other than 0 is an error with the first 200 characters of stderr. */
int tool_must(struct fault_run *run, const char *const *argv, const char *stage, struct err *err);

/* JSON text of a list of strings as argv; placeholders "@engine", "@cont" replaced when both are given. */
int tool_parse_argv(const char *json, const char *engine, const char *cont, char ***ret,
	struct err *err);
void tool_free_argv(char **argv);
