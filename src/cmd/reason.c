/* SPDX-License-Identifier: Apache-2.0 */
#include "cmd/reason.h"

#include <stddef.h>

#include "base/text.h"
#include "cmd/command.h"
#include "rpc/frame.h"

const struct reason reasons[] = {
	{"agent.capability.denied", EXIT_REFUSED,
		"The agent may not do this kind of thing. Its capabilities come from the host's own "
		"/etc/mayhem/agent.json, and a policy file or the handshake may have narrowed them.",
		"Ask whoever owns that host to allow the capability or the fault in agent.json."},
	{"agent.config", EXIT_CONFIG,
		"The agent did not start because it refuses its policy file: it does not read, or "
		"others than root may write it. The agent said which on its stderr.",
		"Mend /etc/mayhem/agent.json on that host."},
	{"agent.lost", EXIT_AGENT,
		"The session with the agent ended before it was done, or the agent was silent for "
		"too long. Its faults are undone by their holders at once, whatever ended it.",
		"Look with `mayhem leases`, and with `mayhem recover` if something is left."},
	{"agent.missing", EXIT_AGENT,
		"There is no mayhem-agent to run. It is looked for at --agent, MAYHEM_AGENT, beside "
		"mayhem itself and in PATH; on another host in the PATH of that login.",
		"Install it, or name it by --agent PATH."},
	{"agent.protocol", EXIT_AGENT,
		"The agent sent something that is no frame of the protocol. Perhaps another program "
		"or a login script wrote to its stdout.",
		"Try `mayhem version` on both hosts, and `ssh TARGET true`, which must print nothing."},
	{"agent.sudo", EXIT_AGENT,
		"sudo refused to start the agent without a password. Mayhem asks for none and "
		"carries none.",
		"Allow mayhem-agent in sudoers with NOPASSWD for that user."},
	{"agent.unreachable", EXIT_AGENT,
		"ssh could not connect to the host, or the connection broke. Faults there end by "
		"themselves when the agent misses the controller.",
		"Try the same with `ssh -o BatchMode=yes TARGET true`."},
	{"approval.required", EXIT_REFUSED,
		"The policy of that host wants a person to approve this operation. An approval is "
		"good for exactly this operation, once.",
		"Ask whoever may write to the agent's state directory to approve it."},
	{"cancelled", EXIT_NOT_COMPLETED,
		"The task was cancelled while it ran. What had been done was undone and looked at.",
		"Nothing needs to be mended."},
	{"catalogue.unknown", EXIT_INVALID, "No reason of that name is in the table.",
		"`mayhem explain` without a name lists all."},
	{"config.policy", EXIT_CONFIG,
		"A policy does not read, has unknown keys, or may be written by others than its "
		"owner. A policy that cannot be trusted is not guessed at.",
		"Mend the file that the message names."},
	{"failed_to_apply", EXIT_NOT_COMPLETED,
		"The fault was tried, and the effect did not come or not completely. What had been "
		"done was undone; the lease says how that ended.",
		"The detail names the step and the cause; `mayhem doctor` says what the host lacks."},
	{"fault.not_executable", EXIT_INVALID,
		"The fault is in the catalogue, but not on this host: the kernel, a right or a "
		"program is missing.",
		"`mayhem faults NAME` says what is missing, `mayhem doctor` how to get it."},
	{"fault.unknown", EXIT_INVALID, "There is no fault of that name in the catalogue.",
		"`mayhem faults` lists them."},
	{"frame.json", EXIT_AGENT,
		"A line was no JSON: it does not parse, is no valid UTF-8, or has a key twice.",
		"Only a program that speaks the protocol itself can cause it; mend that."},
	{"frame.shape", EXIT_AGENT,
		"A line was JSON, but no request of this protocol: a batch, an unknown top-level "
		"key, a wrong version, or an id that is neither integer nor string.",
		"Only a program that speaks the protocol itself can cause it; mend that."},
	{"frame.too_long", EXIT_AGENT,
		"A line was longer than 1 MiB. It was skipped and the session goes on.",
		"Ask for less at once: a smaller limit, fewer leases."},
	{"host.halted", EXIT_REFUSED,
		"The host is halted: somebody or something ended all faults there and wants no new "
		"ones. The halt file says who, when and why.",
		"`mayhem resume`, once the reason is gone."},
	{"internal", EXIT_GENERAL,
		"Something failed that should not: no memory, or a defect of Mayhem. Leases are "
		"safe: their holders are other processes.",
		"Report it, with the message and --log-level debug."},
	{"launch.failed", EXIT_AGENT,
		"A process could not be started. The stage and the system's own message say why; "
		"nothing was changed.",
		"Look at limits of processes and descriptors on that host."},
	{"lease.in_use", EXIT_NOT_COMPLETED,
		"Another process is at work on that lease right now: its holder, or a recovery.",
		"Wait a moment and look again with `mayhem leases`."},
	{"lease.not_yours", EXIT_REFUSED,
		"Only the session that started a fault may prolong or observe it. Any session may "
		"release it.",
		"Release it, and inject again for longer."},
	{"lease.shape", EXIT_INVALID,
		"The lease in the request is not one: a key is missing, unknown or of the wrong "
		"type, or it names both a target and undo operations.",
		"docs/protocol.md shows both kinds of lease."},
	{"lease.unknown", EXIT_INVALID,
		"No lease of that name is in the agent's state directory. Each user and each state "
		"directory has leases of its own.",
		"`mayhem leases --all` lists them; --state, --host and --sudo say where to look."},
	{"method.unknown", EXIT_AGENT,
		"The agent does not know the request: it is older than the controller, or the name "
		"is wrong.",
		"Bring both programs to the same version: `mayhem version`."},
	{"no_effect", EXIT_NOT_COMPLETED,
		"The fault would change nothing, or did not: the target is already so, or ignores "
		"it. A fault without effect proves nothing and counts as not done.",
		"The detail says what was found. Choose another target or fault."},
	{"params.missing", EXIT_INVALID,
		"A parameter that the fault or the request needs was not given.",
		"`mayhem faults NAME` lists the parameters of a fault."},
	{"params.range", EXIT_INVALID,
		"A value is outside of what is allowed, for a parameter, a duration or a limit.",
		"The message names the limits; `mayhem faults NAME` too."},
	{"params.type", EXIT_INVALID,
		"A value has the wrong type, a word where a number is wanted.",
		"`mayhem faults NAME` shows the type of each parameter."},
	{"params.unknown", EXIT_INVALID,
		"The fault or the request has no parameter of that name. Nothing unknown is ever "
		"ignored, because it may be a safety limit mistyped.",
		"`mayhem faults NAME` lists the parameters of a fault."},
	{"policy.denied", EXIT_REFUSED,
		"The policy of that host denies it: a fault, a resource, a number of leases, a "
		"length or a time of day. The message names file and key.",
		"Ask whoever owns that host, or stay within its policy."},
	{"resource_conflict", EXIT_NOT_COMPLETED,
		"Somebody else holds what the fault would touch: another lease, a tracer, an "
		"administrator's own setting, a process that is already stopped. Nothing was changed.",
		"The detail names the holder. Release that lease, or wait for its end."},
	{"risk.ceiling", EXIT_REFUSED,
		"The fault's risk is above what is allowed here. Critical faults always need "
		"--allow-critical as well.",
		"Choose a milder fault, or raise the ceiling where it is set."},
	{"role.denied", EXIT_REFUSED,
		"The agent was started with --roles, and this fault belongs to a role that was left "
		"out.",
		"Start the agent with that role, or without --roles."},
	{"session.ending", EXIT_AGENT,
		"The agent's session is at its end: it undoes what it holds and takes nothing new.",
		"Start a new session: run the command again."},
	{"store.failed", EXIT_AGENT,
		"The agent could not write to its state directory, or not read it. Without a record "
		"on disk nothing is changed.",
		"Look at space and rights of the state directory: `mayhem doctor`."},
	{"store.volatile", EXIT_REFUSED,
		"The state directory is lost with the next boot, and this fault outlives a boot. "
		"Nobody could undo it then.",
		"Name a state directory on a disk by --state."},
	{"target.ambiguous", EXIT_INVALID,
		"Several processes have that name, and Mayhem never guesses which is meant.",
		"Name one by --pid."},
	{"target.gone", EXIT_NOT_COMPLETED,
		"There is no such process any more, or there never was. Nothing was changed.",
		"Look for it again by name, or take its new pid."},
	{"target.kind", EXIT_INVALID,
		"The fault does not take this kind of target, or this agent cannot reach it yet.",
		"`mayhem faults NAME` lists the kinds that it takes."},
	{"target.protected", EXIT_REFUSED,
		"The target is never touched: pid 1, a kernel thread, Mayhem itself, or a process "
		"that its session depends on.",
		"Name a process of your own system."},
	{"target.unverifiable", EXIT_NOT_COMPLETED,
		"It cannot be told whether the process is the one that is meant. Mayhem does not "
		"act on a guess.",
		"Look at the process by hand; rights or a missing /proc are the usual causes."},
	{"target_drift", EXIT_NOT_COMPLETED,
		"The target is no longer what was planned: another process has its number now. "
		"Nothing was changed.",
		"Plan again: run the same command."},
	{"target_gone", EXIT_NOT_COMPLETED,
		"The target ended while the fault was on it. What it owned went with it, and the "
		"rest was undone.",
		"Find out whether it ended because of the fault."},
	{"transport.host", EXIT_USAGE, "The host is named in a way that is not known.",
		"Write --host ssh:TARGET, or leave it out for this host."},
	{"transport.word", EXIT_USAGE,
		"A word cannot be sent to another host. ssh hands its words to a shell there, so "
		"only letters, digits and _./=:,@%+- are sent.",
		"Use a path or a name without other letters, or run mayhem on that host."},
	{"undo_failed", EXIT_DIRTY,
		"The fault could not be undone, after three tries. The lease is dirty: something is "
		"left, and it says what.",
		"`mayhem leases` prints the commands that mend it; then `mayhem recover`."},
	{"usage", EXIT_USAGE, "The command line is not one that Mayhem knows.",
		"`mayhem help` and `mayhem help COMMAND`."},
	{"usage.ambiguous", EXIT_AMBIGUOUS,
		"The beginning of a command's name fits several commands.",
		"Write one letter more; scripts write commands in full."},
	{"verify_failed", EXIT_DIRTY,
		"Undo ran, but the earlier state was not seen to be back. The lease is dirty until "
		"it is.",
		"`mayhem leases` prints the commands that mend it; then `mayhem recover`."},
	{0},
};

const struct reason *reason_find(const char *code)
{
	for (const struct reason *r = reasons; r->code; r++)
		if (text_equal(r->code, code))
			return r;
	return NULL;
}

int reason_exit(const char *code, int64_t rpc_code)
{
	const struct reason *r = reason_find(code);

	if (r)
		return r->exit;
	if (rpc_code == RPC_INVALID_PARAMS)
		return EXIT_INVALID;
	return rpc_code == RPC_SAFETY_REFUSED ? EXIT_REFUSED : EXIT_AGENT;
}

/* Of several exit codes the first here holds. */
int exit_worse(int a, int b)
{
	static const int order[] = {EXIT_USAGE, EXIT_CONFIG, EXIT_INVALID, EXIT_DIRTY, EXIT_AGENT,
		EXIT_REFUSED, EXIT_NOT_COMPLETED, EXIT_GENERAL};

	for (size_t i = 0; i < sizeof(order) / sizeof(order[0]); i++)
		if (a == order[i] || b == order[i])
			return order[i];
	return a ? a : b;
}
