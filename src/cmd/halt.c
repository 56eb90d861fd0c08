/* SPDX-License-Identifier: Apache-2.0 */
/* mayhem halt and resume: ends everything and keeps it ended, and the way back. */
#include <stdio.h>

#include "base/json.h"
#include "base/text.h"
#include "cmd/output.h"
#include "cmd/session.h"

enum { REASON };

static const struct option_entry options[] = {
	[REASON] = {.name = "reason", .arg = "TEXT", .help = "why, for whoever finds the halt"},
	{0},
};

static int run_halt(struct invocation *v)
{
	const char *words[4] = {"halt"};
	_json_ json_t *report = NULL;
	struct err err = {0};
	size_t n = 1;
	int code = 0;

	if (v->n_words)
		words[n++] = v->words[0];
	if (v->opt[REASON]) {
		words[n++] = "--reason";
		words[n++] = v->opt[REASON];
	}
	if (session_oneshot(v, words, n, &report, &code, &err) < 0)
		return output_error(v, &err, 0);
	if (v->g.json)
		output_json(json_incref(report));
	else
		printf("halted%s%s: %lld ended, %lld still live, %lld dirty; `mayhem resume` takes "
		       "faults again\n",
			v->n_words ? " " : "", v->n_words ? v->words[0] : "",
			(long long)json_int_or(report, "ended", 0),
			(long long)json_int_or(report, "live", 0),
			(long long)json_int_or(report, "dirty", 0));
	return code;
}

static int run_resume(struct invocation *v)
{
	const char *words[2] = {"resume"};
	_json_ json_t *report = NULL;
	struct err err = {0};
	size_t n = 1;
	int code = 0;

	if (v->n_words)
		words[n++] = v->words[0];
	if (session_oneshot(v, words, n, &report, &code, &err) < 0)
		return output_error(v, &err, 0);
	if (v->g.json)
		output_json(json_incref(report));
	else
		printf("faults are taken again\n");
	return code;
}

const struct command command_halt = {
	.name = "halt",
	.words = "[RUN]",
	.summary = "ends every fault on the host, and takes no new one",
	.text = "Ends all faults of the agent's state directory at once, also where an agent hangs,\n"
		"and refuses new ones until `mayhem resume`. With the name of a run: of that run\n"
		"alone. Needs the right to write the state directory, and nothing more; a file\n"
		"/run/mayhem/halt does the same for all state directories of a host.",
	.examples = {"mayhem halt --reason INC-1234", "mayhem halt"},
	.options = options,
	.max_words = 1,
	.first = true,
	.run = run_halt,
};

const struct command command_resume = {
	.name = "resume",
	.words = "[RUN]",
	.summary = "takes faults again after a halt",
	.text = "Takes back what `mayhem halt` said. What was ended stays ended.",
	.examples = {"mayhem resume"},
	.max_words = 1,
	.run = run_resume,
};
