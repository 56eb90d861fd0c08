/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What a subcommand of `mayhem` is: an entry that says its words, options,
 * help and examples, and a function that runs. Help, completion of prefixes
 * and the tests of the examples all read the entry. One file holds one
 * command; the table of them is in main.c.
 */
#pragma once

#include <stdbool.h>
#include <stddef.h>

#include "base/err.h"

#define COMMAND_OPTIONS_MAX 16
#define COMMAND_EXAMPLES_MAX 4

/* Exit codes, the whole list. Of several that apply, exit_worse() says which holds. */
enum exit_code {
	EXIT_OK = 0,
	EXIT_GENERAL = 1,
	EXIT_USAGE = 2,
	EXIT_CONFIG = 3,
	EXIT_INVALID = 4,
	EXIT_REFUSED = 5,
	EXIT_NOT_COMPLETED = 6,
	EXIT_DIRTY = 7,
	EXIT_AGENT = 8,
	EXIT_TOOLKIT = 9,
	EXIT_AMBIGUOUS = 10,
	EXIT_CODE_MAX
};

struct option_entry {
	const char *name; /* without its dashes; a table ends with NULL */
	const char *arg;  /* name of its value, NULL: it takes none */
	const char *help;
	char letter; /* 0: none */
};

struct globals {
	const char *engine, *state, *host, *agent, *log_level;
	bool sudo, allow_critical, json, quiet, verbose, no_color, help;
};

struct invocation;

struct command {
	const char *name;
	const char *words;   /* synopsis after the name and before the options */
	const char *summary; /* one line, begins with a verb */
	const char *text;    /* a paragraph or more for --help */
	const char *examples[COMMAND_EXAMPLES_MAX];
	const struct option_entry *options; /* NULL: none of its own */
	int min_words, max_words;	    /* -1: any number */
	bool first;			    /* among those that the help begins with */
	int (*run)(struct invocation *v);   /* returns an exit code */
};

/* A command line, taken apart. All texts are argv's. */
struct invocation {
	const struct command *command;
	struct globals g;
	const char *opt
		[COMMAND_OPTIONS_MAX]; /* by place in the table; NULL: not given; "" for a flag */
	char **words;
	int n_words;
};

/* All commands, ended by NULL; in main.c. */
extern const struct command *const commands[];

extern const struct command command_doctor, command_explain, command_faults, command_halt,
	command_help, command_inject, command_janitor, command_leases, command_recover,
	command_release, command_resume, command_status, command_version;

/* The graver of two, by the order 2 3 4 7 8 5 6 1 0. */
int exit_worse(int a, int b);

/* The help of one command, or of all. In help.c. */
void help_print_command(const struct command *c);
void help_print_all(void);

/*
 * The command of that name, or the only one that begins with it. Codes:
 * usage, usage.ambiguous.
 */
int command_find(const char *name, const struct command **ret, struct err *err);
