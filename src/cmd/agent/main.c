/* SPDX-License-Identifier: Apache-2.0 */
#include <fcntl.h>
#include <limits.h>
#include <stdio.h>
#include <string.h>

#include "base/cleanup.h"
#include "base/json.h"
#include "base/log.h"
#include "base/text.h"
#include "cmd/agent/agent_cmd.h"
#include "state/dir.h"

static const struct agent_command *const commands[] = {&agent_command_serve, &agent_command_recover,
	&agent_command_status, &agent_command_halt, &agent_command_resume, &agent_command_doctor,
	&agent_command_version};

void agent_print_json(json_t *j)
{
	_json_ json_t *owned = j;
	_free_ char *text = j ? json_text(j) : NULL;

	printf("%s\n", text ? text : "{}");
}

int agent_fail(const struct agent_args *args, const struct err *err, int code)
{
	if (args->json)
		agent_print_json(json_pack("{s:i, s:{s:i, s:s, s:s, s:s, s:i}}", "v", 1, "error",
			"code", code, "reason", err->code, "message", err->text, "remedy",
			err->remedy, "exit", code));
	else
		fprintf(stderr, "error: %s [%s]\n", err->text, err->code);
	if (!args->json && err->remedy[0])
		fprintf(stderr, "  %s\n", err->remedy);
	return code;
}

static void print_help(FILE *f)
{
	fprintf(f,
		"usage: mayhem-agent COMMAND [OPTION…]\n\n"
		"The part of Mayhem that perturbs a host. A controller starts it; by hand it serves to look\n"
		"and to mend.\n\n");
	for (size_t i = 0; i < ARRAY_SIZE(commands); i++)
		fprintf(f, "  %-8s %s\n", commands[i]->name, commands[i]->help);
	fprintf(f, "\nmayhem-agent COMMAND --help says more. See mayhem-agent(8).\n");
}

static void print_command_help(const struct agent_command *c)
{
	printf("usage: mayhem-agent %s %s\n\n%s\n\n", c->name, c->usage, c->help);
	printf("exit codes: 0 ok, 2 usage, 3 policy, 7 something is dirty or unreadable, 8 cannot start\n");
	printf("example: mayhem-agent %s\n", c->name);
}

static int usage(const char *what, const char *word)
{
	fprintf(stderr, "error: %s `%s` [usage]\n  mayhem-agent --help lists what there is\n", what,
		word);
	return AGENT_EXIT_USAGE;
}

/* The option's value, in the same word after "=" or the next one; NULL when it is missing. */
static const char *value_of(char **argv, int *i, const char *name)
{
	size_t len = strlen(name);

	if (argv[*i][len] == '=')
		return argv[*i] + len + 1;
	return argv[*i + 1] ? argv[++*i] : NULL;
}

static bool is_option(const char *word, const char *name)
{
	return text_has_prefix(word, name) &&
		(word[strlen(name)] == '\0' || word[strlen(name)] == '=');
}

static bool takes(const struct agent_command *c, const char *option)
{
	return strstr(c->options, option);
}

static int parse(const struct agent_command *c, char **argv, struct agent_args *args,
	const char **ret_state)
{
	const struct {
		const char *name, *key;
		const char **value;
		bool *flag;
	} options[] = {
		{"--state", "state", ret_state, NULL},
		{"--roles", "roles", &args->roles, NULL},
		{"--policy", "policy", &args->policy, NULL},
		{"--reason", "reason", &args->reason, NULL},
		{"--json", "json", NULL, &args->json},
		{"--plan", "plan", NULL, &args->plan},
		{"--sweep", "sweep", NULL, &args->sweep},
	};

	for (int i = 0; argv[i]; i++) {
		size_t k = 0;

		while (k < ARRAY_SIZE(options) &&
			!(takes(c, options[k].key) && is_option(argv[i], options[k].name)))
			k++;
		if (k < ARRAY_SIZE(options) && options[k].flag) {
			*options[k].flag = true;
		} else if (k < ARRAY_SIZE(options)) {
			*options[k].value = value_of(argv, &i, options[k].name);
			if (!*options[k].value)
				return usage("a value is missing behind", options[k].name);
		} else if (argv[i][0] != '-' && takes(c, "word") && !args->word) {
			args->word = argv[i];
		} else if (is_option(argv[i], "--log-level")) {
			const char *v = value_of(argv, &i, "--log-level");
			enum log_level level;

			if (!v || log_level_from_name(v, &level) < 0)
				return usage("no log level", v ? v : "");
			log_set_level(level);
		} else {
			return usage("not understood:", argv[i]);
		}
	}
	return 0;
}

static int run_command(const struct agent_command *c, char **argv)
{
	static char default_dir[PATH_MAX]; /* not on the stack, which every holder inherits */
	struct agent_args args = {0};
	const char *state = NULL;
	struct err err = {0};
	int r;

	for (int i = 0; argv[i]; i++)
		if (text_equal(argv[i], "--help") || text_equal(argv[i], "-h")) {
			print_command_help(c);
			return 0;
		}
	r = parse(c, argv, &args, &state);
	if (r)
		return r;
	args.state_dir = state;
	if (!state && takes(c, "state")) {
		if (state_dir_default(default_dir, sizeof(default_dir), &err) < 0)
			return agent_fail(&args, &err, AGENT_EXIT_CANNOT_START);
		args.state_dir = default_dir;
	}
	return c->run(&args);
}

/* Who was started without a standard stream must not take a record or a socket for one. */
static void take_standard_numbers(void)
{
	int fd;

	do
		fd = open("/dev/null", O_RDWR | O_CLOEXEC);
	while (fd >= 0 && fd < STDERR_FILENO);
	if (fd > STDERR_FILENO)
		close(fd);
}

int main(int argc, char **argv)
{
	take_standard_numbers();
	if (argc < 2) {
		print_help(stderr);
		return AGENT_EXIT_USAGE;
	}
	if (text_equal(argv[1], "--help") || text_equal(argv[1], "-h") ||
		text_equal(argv[1], "help")) {
		print_help(stdout);
		return 0;
	}
	for (size_t i = 0; i < ARRAY_SIZE(commands); i++)
		if (text_equal(argv[1], commands[i]->name) ||
			(text_equal(argv[1], "--version") && commands[i] == &agent_command_version))
			return run_command(commands[i], argv + 2);
	return usage("no command", argv[1]);
}
