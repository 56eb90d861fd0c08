/* SPDX-License-Identifier: Apache-2.0 */
#include "fault/fault.h"

#include <string.h>

#include "base/cleanup.h"
#include "base/json.h"
#include "base/text.h"
#include "fault/steps.h"

static const struct fault_steps *const native[] = {&proc_pause_steps, &process_kill_steps,
	&process_stop_steps};

/* Exact ids before families. */
static const struct {
	const char *name;
	const struct fault_steps *steps;
} executors[] = {
	{"cpu.throttle", &declared_tool_steps},
	{"fs.read_only", &declared_tool_steps},
	{"process.crash_loop", &declared_tool_steps},
	{"proc", &declared_signal_steps},
	{"process", &declared_signal_steps},
	{"mem", &declared_payload_steps},
	{"cpu", &declared_payload_steps},
	{"fs", &declared_payload_steps},
	{"fd", &declared_payload_steps},
	{"load", &declared_payload_steps},
	{"fuzz", &declared_payload_steps},
	{"net", &declared_tool_steps},
	{"disk", &declared_tool_steps},
	{"container", &declared_tool_steps},
	{"node", &declared_tool_steps},
	{"http", &declared_tool_steps},
	{"db", &declared_tool_steps},
	{"dns", &declared_tool_steps},
	{"tls", &declared_tool_steps},
	{"clock", &declared_tool_steps},
	{"dependency", &declared_tool_steps},
};

/* Sorted: capabilities.query lists them. */
const char *const fault_families[] = {"clock", "container", "cpu", "db", "dependency", "disk",
	"dns", "fd", "fs", "fuzz", "http", "load", "mem", "net", "node", "proc", "process", "tls"};

size_t fault_families_n(void)
{
	return ARRAY_SIZE(fault_families);
}

const struct fault_steps *fault_find_native(const char *fault_id)
{
	for (size_t i = 0; i < ARRAY_SIZE(native); i++)
		if (text_equal(native[i]->id, fault_id))
			return native[i];
	return NULL;
}

const struct fault_steps *fault_find_declared(const char *fault_id, const json_t *undo_ops)
{
	const char *dot = strchr(fault_id, '.');
	size_t family = dot ? (size_t)(dot - fault_id) : strlen(fault_id);

	if (text_equal(json_text_or(json_array_get(undo_ops, 0), "op", ""), "noop"))
		return &declared_noop_steps;
	for (size_t i = 0; i < ARRAY_SIZE(executors); i++)
		if (text_equal(executors[i].name, fault_id))
			return executors[i].steps;
	for (size_t i = 0; i < ARRAY_SIZE(executors); i++)
		if (strlen(executors[i].name) == family &&
			strncmp(executors[i].name, fault_id, family) == 0)
			return executors[i].steps;
	return NULL;
}

const struct fault_steps *fault_find_steps(const struct lease *l)
{
	return l->declared ? fault_find_declared(l->fault_id, l->undo_ops)
			   : fault_find_native(l->fault_id);
}

bool fault_needs_shell_exec(const struct fault_steps *s)
{
	return s == &declared_tool_steps || s == &declared_payload_steps;
}
