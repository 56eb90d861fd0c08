/* SPDX-License-Identifier: Apache-2.0 */
#include <stdio.h>

#include "cmd/agent/agent_cmd.h"
#include "rpc/frame.h"

static int run(const struct agent_args *args)
{
	if (args->json)
		agent_print_json(json_pack("{s:i, s:s, s:s}", "v", 1, "agent", MAYHEM_VERSION,
			"protocol", FRAME_PROTOCOL));
	else
		printf("mayhem-agent %s, protocol %s\n", MAYHEM_VERSION, FRAME_PROTOCOL);
	return 0;
}

const struct agent_command agent_command_version = {
	.name = "version",
	.usage = "[--json]",
	.help = "print the version and the protocol",
	.options = "json",
	.run = run,
};
