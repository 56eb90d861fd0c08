/* SPDX-License-Identifier: Apache-2.0 */
/* mayhem, the controller: the table of its commands, and which of them is meant. */
#include <signal.h>
#include <stdio.h>
#include <string.h>

#include "base/log.h"
#include "base/text.h"
#include "cmd/command.h"
#include "cmd/options.h"
#include "cmd/output.h"

/* In the order of the help. */
const struct command *const commands[] = {
	&command_doctor,
	&command_halt,
	&command_leases,
	&command_inject,
	&command_release,
	&command_recover,
	&command_janitor,
	&command_resume,
	&command_status,
	&command_faults,
	&command_explain,
	&command_version,
	&command_help,
	NULL,
};

static int ambiguous(const char *name, struct err *err)
{
	char list[256] = "";

	for (const struct command *const *c = commands; *c; c++) {
		size_t len = strlen(list);

		if (text_has_prefix((*c)->name, name))
			snprintf(list + len, sizeof(list) - len, "%s%s", len ? ", " : "",
				(*c)->name);
	}
	err_set(err, "usage.ambiguous", 0, "command", "`%s` may be %s", name, list);
	err_remedy(err, "write one letter more");
	return -EINVAL;
}

static int unknown(const char *name, struct err *err)
{
	const char *names[64], *near;
	size_t n = 0;

	for (const struct command *const *c = commands; *c; c++)
		names[n++] = (*c)->name;
	near = text_nearest(name, names, n);
	err_set(err, "usage", 0, "command", "there is no command `%.64s`", name);
	if (near)
		err_remedy(err, "did you mean `%s`? `mayhem help` lists all", near);
	else
		err_remedy(err, "`mayhem help` lists them");
	return -EINVAL;
}

int command_find(const char *name, const struct command **ret, struct err *err)
{
	const struct command *found = NULL;
	int n = 0;

	for (const struct command *const *c = commands; *c; c++) {
		if (text_equal((*c)->name, name)) {
			*ret = *c;
			return 0;
		}
		if (name[0] && text_has_prefix((*c)->name, name)) {
			found = *c;
			n++;
		}
	}
	if (n > 1)
		return ambiguous(name, err);
	if (n == 0)
		return unknown(name, err);
	*ret = found;
	return 0;
}

static int set_log_level(const struct globals *g, struct err *err)
{
	const char *name = g->log_level ? g->log_level : getenv("MAYHEM_LOG_LEVEL");
	enum log_level level = g->verbose ? LOG_LEVEL_INFO
		: g->quiet		  ? LOG_LEVEL_ERROR
					  : LOG_LEVEL_WARN;

	if (name && name[0] && log_level_from_name(name, &level) < 0) {
		err_set(err, "usage", 0, "options", "`%.32s` is no log level", name);
		err_remedy(err, "one of error, warn, info, debug");
		return -EINVAL;
	}
	log_set_level(level);
	return 0;
}

int main(int argc, char **argv)
{
	struct invocation v;
	struct err err = {0};
	int r;

	/* A reader that went away is an error where it is written to, not a death. */
	signal(SIGPIPE, SIG_IGN);
	if (argc > 1 && (text_equal(argv[1], "--version") || text_equal(argv[1], "-V")))
		argv[1] = (char *)"version";
	r = options_parse(argc > 0 ? argc - 1 : 0, argv + 1, &v, &err);
	output_setup(&v.g);
	if (r == 0)
		r = set_log_level(&v.g, &err);
	if (r < 0)
		return output_error(&v, &err, 0);
	if (v.g.help || !v.command) {
		if (v.command)
			help_print_command(v.command);
		else
			help_print_all();
		return v.g.help ? EXIT_OK : EXIT_USAGE;
	}
	r = v.command->run(&v);
	if (fflush(stdout) != 0 && r == EXIT_OK)
		r = EXIT_GENERAL;
	return r;
}
