/* SPDX-License-Identifier: Apache-2.0 */
#include "cmd/options.h"

#include <string.h>

#include "base/cleanup.h"
#include "base/text.h"

enum global {
	GLOBAL_ENGINE,
	GLOBAL_PODMAN,
	GLOBAL_STATE,
	GLOBAL_SUDO,
	GLOBAL_HOST,
	GLOBAL_AGENT,
	GLOBAL_ALLOW_CRITICAL,
	GLOBAL_LOG_LEVEL,
	GLOBAL_JSON,
	GLOBAL_QUIET,
	GLOBAL_VERBOSE,
	GLOBAL_NO_COLOR,
	GLOBAL_HELP,
	GLOBAL_MAX
};

static const struct option_entry global_options[] = {
	[GLOBAL_ENGINE] = {.name = "engine",
		.arg = "ENGINE",
		.help = "docker, podman or unix:///PATH, for --container"},
	[GLOBAL_PODMAN] = {.name = "podman", .letter = 'p', .help = "the same as --engine podman"},
	[GLOBAL_STATE] = {.name = "state",
		.arg = "DIR",
		.help = "the agent's state directory on this host"},
	[GLOBAL_SUDO] = {.name = "sudo", .help = "start the agent by sudo, without a password"},
	[GLOBAL_HOST] = {.name = "host",
		.arg = "HOST",
		.help = "where: local (default) or ssh:TARGET"},
	[GLOBAL_AGENT] = {.name = "agent", .arg = "PATH", .help = "the agent's program there"},
	[GLOBAL_ALLOW_CRITICAL] = {.name = "allow-critical",
		.help = "let faults of critical risk through"},
	[GLOBAL_LOG_LEVEL] = {.name = "log-level",
		.arg = "LEVEL",
		.help = "error, warn, info or debug, on stderr"},
	[GLOBAL_JSON] = {.name = "json", .help = "one JSON object on stdout"},
	[GLOBAL_QUIET] = {.name = "quiet", .letter = 'q', .help = "no progress, errors only"},
	[GLOBAL_VERBOSE] = {.name = "verbose", .letter = 'v', .help = "more of it"},
	[GLOBAL_NO_COLOR] = {.name = "no-color", .help = "no colour, as with NO_COLOR set"},
	[GLOBAL_HELP] = {.name = "help", .letter = 'h', .help = "help on the command"},
	[GLOBAL_MAX] = {0},
};

const struct option_entry *options_global(void)
{
	return global_options;
}

static void set_global(struct globals *g, enum global which, const char *value)
{
	switch (which) {
	case GLOBAL_ENGINE:
		g->engine = value;
		break;
	case GLOBAL_PODMAN:
		g->engine = "podman";
		break;
	case GLOBAL_STATE:
		g->state = value;
		break;
	case GLOBAL_SUDO:
		g->sudo = true;
		break;
	case GLOBAL_HOST:
		g->host = value;
		break;
	case GLOBAL_AGENT:
		g->agent = value;
		break;
	case GLOBAL_ALLOW_CRITICAL:
		g->allow_critical = true;
		break;
	case GLOBAL_LOG_LEVEL:
		g->log_level = value;
		break;
	case GLOBAL_JSON:
		g->json = true;
		break;
	case GLOBAL_QUIET:
		g->quiet = true;
		break;
	case GLOBAL_VERBOSE:
		g->verbose = true;
		break;
	case GLOBAL_NO_COLOR:
		g->no_color = true;
		break;
	case GLOBAL_HELP:
		g->help = true;
		break;
	case GLOBAL_MAX:
		break;
	}
}

/* An option word, taken apart: "--for=10s" is name "for", inline value "10s". */
struct option_word {
	const char *name;
	size_t len;
	const char *value; /* NULL: none with it */
	bool letter;
};

static struct option_word split_word(const char *word)
{
	struct option_word w = {.letter = word[1] != '-'};

	w.name = word + (w.letter ? 1 : 2);
	w.len = strcspn(w.name, "=");
	if (w.name[w.len] == '=')
		w.value = w.name + w.len + 1;
	return w;
}

static int find_option(const struct option_entry *table, const struct option_word *w)
{
	for (int i = 0; table && table[i].name; i++) {
		if (w->letter ? w->len == 1 && table[i].letter && table[i].letter == w->name[0]
			      : strlen(table[i].name) == w->len &&
					memcmp(table[i].name, w->name, w->len) == 0)
			return i;
	}
	return -1;
}

static int unknown_option(const struct invocation *v, const char *word, struct err *err)
{
	const char *names[COMMAND_OPTIONS_MAX + GLOBAL_MAX];
	char name[32];
	const char *near;
	size_t n = 0;

	for (const struct option_entry *o = v->command ? v->command->options : NULL; o && o->name;
		o++)
		names[n++] = o->name;
	for (const struct option_entry *o = global_options; o->name; o++)
		names[n++] = o->name;
	err_set(err, "usage", 0, "options", "%s has no option `%.64s`",
		v->command ? v->command->name : "mayhem", word);
	text_copy(name, sizeof(name), word + strspn(word, "-"));
	name[strcspn(name, "=")] = '\0';
	near = text_nearest(name, names, n);
	if (near)
		err_remedy(err, "did you mean `--%s`?", near);
	else if (v->command)
		err_remedy(err, "`mayhem help %s` lists them", v->command->name);
	else
		err_remedy(err, "`mayhem help` lists them");
	return -EINVAL;
}

/* Takes one option and, where it needs one, the word behind it. */
static int take_option(int argc, char **argv, int *i, struct invocation *v, struct err *err)
{
	const struct option_entry *own = v->command ? v->command->options : NULL;
	struct option_word w = split_word(argv[*i]);
	int at = find_option(own, &w);
	const struct option_entry *o;

	if (at >= 0) {
		o = &own[at];
	} else {
		int global = find_option(global_options, &w);

		if (global < 0)
			return unknown_option(v, argv[*i], err);
		o = &global_options[global];
		at = -1 - global;
	}
	if (!o->arg && w.value)
		return err_set(err, "usage", 0, "options", "`--%s` takes no value", o->name);
	if (o->arg && !w.value) {
		/* What looks like an option is one: a value like that is written --name=VALUE. */
		if (*i + 1 >= argc || text_has_prefix(argv[*i + 1], "--"))
			return err_set(err, "usage", 0, "options", "`--%s` needs a value: %s",
				o->name, o->arg);
		w.value = argv[++*i];
	}
	if (o->arg && !w.value[0])
		return err_set(err, "usage", 0, "options", "`--%s` is empty", o->name);
	if (at >= 0)
		v->opt[at] = o->arg ? w.value : "";
	else
		set_global(&v->g, (enum global)(-1 - at), w.value);
	return 0;
}

static int check_words(const struct invocation *v, struct err *err)
{
	const struct command *c = v->command;

	if (v->g.help)
		return 0;
	if (v->n_words < c->min_words)
		err_set(err, "usage", 0, "words", "%s needs %s", c->name, c->words);
	else if (c->max_words >= 0 && v->n_words > c->max_words)
		err_set(err, "usage", 0, "words", "%s does not take `%.64s`", c->name,
			v->words[c->max_words]);
	else
		return 0;
	err_remedy(err, "`mayhem help %s` shows how it is written", c->name);
	return -EINVAL;
}

int options_parse(int argc, char **argv, struct invocation *ret, struct err *err)
{
	bool options = true;
	int n = 0;

	*ret = (struct invocation){.words = argv};
	for (int i = 0; i < argc; i++) {
		int r = 0;

		if (options && text_equal(argv[i], "--"))
			options = false;
		else if (options && argv[i][0] == '-' && argv[i][1])
			r = take_option(argc, argv, &i, ret, err);
		else if (!ret->command)
			r = command_find(argv[i], &ret->command, err);
		else
			argv[n++] = argv[i];
		if (r < 0) {
			/* Whoever reads JSON is to be told in JSON, wherever they wrote it. */
			for (; i < argc; i++)
				if (text_equal(argv[i], "--json"))
					ret->g.json = true;
			return r;
		}
	}
	ret->n_words = n;
	return ret->command ? check_words(ret, err) : 0;
}
