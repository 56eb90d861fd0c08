/* SPDX-License-Identifier: Apache-2.0 */
#include "lease/steps.h"

#include "base/clock.h"
#include "base/json.h"

static const char *const effect_names[EFFECT_MAX] = {"unknown", "absent", "partial", "present"};

const char *effect_name(enum effect e)
{
	return effect_names[e];
}

/* Counts as integers, everything else as it is. */
static json_t *number(double v)
{
	long long whole = (long long)v;

	return (double)whole >= v && (double)whole <= v ? json_integer(whole) : json_real(v);
}

json_t *observation_to_json(const struct observation *o, const char *phase)
{
	char at[CLOCK_UTC_SIZE];

	return json_pack("{s:s, s:s, s:I, s:s, s:o, s:s, s:o, s:o, s:s, s:s, s:s}", "phase", phase,
		"at", clock_format_utc(clock_utc_ms(), at), "boottime_ms",
		(json_int_t)clock_boottime_ms(), "metric", o->metric ? o->metric : "", "value",
		number(o->value), "unit", o->unit ? o->unit : "", "asked", number(o->asked),
		"reached", number(o->reached), "effect", effect_names[o->effect], "source",
		"holder", "detail", o->detail);
}

int run_save(struct fault_run *run, struct err *err)
{
	return run->file ? lease_file_write(run->store, run->file, run->lease, err) : 0;
}
