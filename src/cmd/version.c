/* SPDX-License-Identifier: Apache-2.0 */
/* mayhem version: of both programs and of the protocol. */
#include <stdio.h>

#include "base/json.h"
#include "cmd/output.h"
#include "cmd/session.h"
#include "rpc/frame.h"

enum { WITH_AGENT };

static const struct option_entry options[] = {
	[WITH_AGENT] = {.name = "with-agent", .help = "ask the agent as well"},
	{0},
};

static int run(struct invocation *v)
{
	static const char *const words[] = {"version"};
	_json_ json_t *theirs = NULL;
	const char *agent = NULL;
	struct err err;
	int code = 0;

	/* Without being asked no other program is started: this is to be instant. */
	if (v->opt[WITH_AGENT]) {
		if (session_oneshot(v, words, 1, &theirs, &code, &err) < 0)
			return output_error(v, &err, 0);
		agent = json_text_or(theirs, "agent", json_text_or(theirs, "version", NULL));
	}
	if (v->g.json) {
		output_json(json_pack("{s:s, s:s?, s:s}", "mayhem", MAYHEM_VERSION, "agent", agent,
			"protocol", FRAME_PROTOCOL));
		return EXIT_OK;
	}
	printf("mayhem %s, protocol %s\n", MAYHEM_VERSION, FRAME_PROTOCOL);
	if (agent)
		printf("mayhem-agent %s\n", agent);
	return EXIT_OK;
}

const struct command command_version = {
	.name = "version",
	.words = "",
	.summary = "prints versions",
	.text = "Prints the version of mayhem and of the protocol; with --with-agent also the\n"
		"agent's, here or on --host.",
	.examples = {"mayhem version", "mayhem version --with-agent --json"},
	.options = options,
	.run = run,
};
