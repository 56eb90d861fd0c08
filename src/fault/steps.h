/* SPDX-License-Identifier: Apache-2.0 */
/* The steps that this folder implements. Internal to fault. */
#pragma once

#include "lease/steps.h"

extern const struct fault_steps proc_pause_steps;
extern const struct fault_steps process_stop_steps;
extern const struct fault_steps process_kill_steps;

extern const struct fault_steps declared_signal_steps;
extern const struct fault_steps declared_payload_steps;
extern const struct fault_steps declared_tool_steps;
extern const struct fault_steps declared_noop_steps;
