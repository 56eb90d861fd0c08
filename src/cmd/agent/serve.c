/* SPDX-License-Identifier: Apache-2.0 */
#include "base/log.h"
#include "cmd/agent/agent_cmd.h"
#include "rpc/agent.h"

static int run(const struct agent_args *args)
{
	struct agent_options o = {
		.state_dir = args->state_dir,
		.roles = ROLE_ALL,
		.policy_file = args->policy,
		.version = MAYHEM_VERSION,
	};
	struct err err = {0};
	int code = 0;

	if (args->roles && agent_parse_roles(args->roles, &o.roles, &err) < 0)
		return agent_fail(args, &err, AGENT_EXIT_USAGE);
	if (agent_serve(&o, &code, &err) < 0)
		return agent_fail(args, &err,
			err_is(&err, "config.policy") ? AGENT_EXIT_POLICY
						      : AGENT_EXIT_CANNOT_START);
	return code;
}

const struct agent_command agent_command_serve = {
	.name = "serve",
	.usage = "[--roles proc,fs,…] [--policy FILE] [--state DIR] [--log-level LEVEL]",
	.help = "serve one session of mayhem/1 on stdin and stdout, until end of file",
	.options = "state roles policy",
	.run = run,
};
