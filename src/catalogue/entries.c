/* SPDX-License-Identifier: Apache-2.0 */
/* The catalogue itself. To add a fault is to add an entry here and a file of steps in src/fault. */
#include "base/cleanup.h"
#include "catalogue/catalogue.h"

static const struct param pause_params[] = {
	{.name = "scope",
		.type = PARAM_STRING,
		.fallback = "process",
		.values = {"process", "tree"},
		.help = "the process alone, or with all its descendants"},
	{0},
};

static const struct param stop_params[] = {
	{.name = "escalate",
		.type = PARAM_BOOLEAN,
		.fallback = "false",
		.help = "send SIGKILL when the grace is over and it is still there"},
	{.name = "grace",
		.type = PARAM_DURATION,
		.fallback = "10s",
		.min = 0,
		.max = 300000,
		.help = "how long it may take to end after SIGTERM"},
	{0},
};

static const struct param kill_params[] = {
	{.name = "signal",
		.type = PARAM_STRING,
		.fallback = "KILL",
		.values = {"KILL"},
		.help = "the signal that ends it"},
	{0},
};

static const struct fault_entry entries[] = {
	{"proc.pause", RISK_LOW, 600, TARGET_PROCESS | TARGET_SERVICE | TARGET_CONTAINER,
		UNDO_RECORDED, pause_params, "stop a process (SIGSTOP) and continue it afterwards"},
	{"process.kill", RISK_HIGH, 60, TARGET_PROCESS | TARGET_SERVICE | TARGET_CONTAINER,
		UNDO_IRREVERSIBLE, kill_params, "kill a process (SIGKILL)"},
	{"process.stop", RISK_MEDIUM, 300, TARGET_PROCESS | TARGET_SERVICE | TARGET_CONTAINER,
		UNDO_IRREVERSIBLE, stop_params, "ask a process to end (SIGTERM)"},
};

const struct fault_entry *catalogue_entries(size_t *ret_n)
{
	*ret_n = ARRAY_SIZE(entries);
	return entries;
}
