/* SPDX-License-Identifier: Apache-2.0 */
/* mayhem help: what the table of commands says about itself. */
#include <stdio.h>
#include <string.h>

#include "base/json.h"
#include "cmd/options.h"
#include "cmd/output.h"

/* "--for DURATION", "-h, --help" */
static void option_words(const struct option_entry *o, char *buf, size_t size)
{
	char letter[8] = "";

	if (o->letter)
		snprintf(letter, sizeof(letter), "-%c, ", o->letter);
	snprintf(buf, size, "%s--%s%s%s", letter, o->name, o->arg ? " " : "", o->arg ? o->arg : "");
}

static void print_options(const struct option_entry *o)
{
	for (; o && o->name; o++) {
		char words[48];

		option_words(o, words, sizeof(words));
		printf("  %-24s %s\n", words, o->help);
	}
}

void help_print_command(const struct command *c)
{
	printf("usage: mayhem %s%s%s%s\n\n%s\n", c->name, c->words[0] ? " " : "", c->words,
		c->options ? " [OPTIONS]" : "", c->text);
	if (c->options) {
		printf("\nOptions:\n");
		print_options(c->options);
	}
	printf("\nEverywhere: --host, --sudo, --state, --agent, --json and more; `mayhem help`.\n");
	for (size_t i = 0; i < COMMAND_EXAMPLES_MAX && c->examples[i]; i++)
		printf("%sEXAMPLE: %s\n", i ? "" : "\n", c->examples[i]);
}

static void print_commands(bool first)
{
	for (const struct command *const *c = commands; *c; c++)
		if ((*c)->first == first)
			printf("  %-10s %s\n", (*c)->name, (*c)->summary);
}

void help_print_all(void)
{
	printf("mayhem breaks a running system on purpose, and puts back what was there\n\n"
	       "usage: mayhem COMMAND [WORDS] [OPTIONS]\n\n");
	print_commands(true);
	printf("\n");
	print_commands(false);
	printf("\nEverywhere:\n");
	print_options(options_global());
	printf("\n`mayhem help COMMAND` says more. First: mayhem doctor; mayhem faults\n");
}

static json_t *command_to_json(const struct command *c)
{
	json_t *examples = json_array(), *options = json_array();

	for (size_t i = 0; i < COMMAND_EXAMPLES_MAX && c->examples[i]; i++)
		json_array_append_new(examples, json_string(c->examples[i]));
	for (const struct option_entry *o = c->options; o && o->name; o++)
		json_array_append_new(options,
			json_pack("{s:s, s:s?, s:s}", "name", o->name, "arg", o->arg, "help",
				o->help));
	return json_pack("{s:s, s:s, s:s, s:s, s:o, s:o}", "name", c->name, "words", c->words,
		"summary", c->summary, "text", c->text, "options", options, "examples", examples);
}

static int run(struct invocation *v)
{
	const struct command *c = NULL;
	json_t *list;
	struct err err;

	if (v->n_words && command_find(v->words[0], &c, &err) < 0)
		return output_error(v, &err, 0);
	if (v->g.json) {
		list = json_array();
		for (const struct command *const *one = commands; *one; one++)
			if (!c || *one == c)
				json_array_append_new(list, command_to_json(*one));
		output_json(json_pack("{s:o}", "commands", list));
	} else if (c) {
		help_print_command(c);
	} else {
		help_print_all();
	}
	return EXIT_OK;
}

const struct command command_help = {
	.name = "help",
	.words = "[COMMAND]",
	.summary = "explains a command",
	.text = "Prints what a command does, its options and an example, or the list of commands.",
	.examples = {"mayhem help inject"},
	.max_words = 1,
	.run = run,
};
