/* SPDX-License-Identifier: Apache-2.0 */
#include "cmd/lease_view.h"

#include <stdio.h>
#include <string.h>
#include <time.h>

#include "base/cleanup.h"
#include "base/json.h"
#include "base/text.h"
#include "cmd/output.h"

bool lease_view_is_over(const json_t *lease)
{
	const char *state = json_text_or(lease, "state", "");

	return text_equal(state, "released") || text_equal(state, "expired");
}

bool lease_view_is_dirty(const json_t *lease)
{
	return text_equal(json_text_or(lease, "state", ""), "dirty");
}

static int parse_utc(const char *utc, uint64_t *ret_ms)
{
	struct tm tm = {0};
	const char *rest = utc ? strptime(utc, "%Y-%m-%dT%H:%M:%S", &tm) : NULL;
	uint64_t ms = 0;

	if (!rest)
		return -1;
	if (rest[0] == '.' && strspn(rest + 1, "0123456789") == 3)
		text_parse_u64_n(rest + 1, 3, &ms);
	*ret_ms = (uint64_t)timegm(&tm) * 1000 + ms;
	return 0;
}

const char *lease_view_end(const json_t *lease, char *buf)
{
	const json_t *ttl = json_object_get(lease, "ttl_seconds");
	int64_t duration_ms = json_int_or(lease, "duration_ms", -1);
	uint64_t from_ms;

	buf[0] = '\0';
	if (duration_ms >= 0 && parse_utc(json_text_or(lease, "injected_at", NULL), &from_ms) == 0)
		return clock_format_utc(from_ms + (uint64_t)duration_ms, buf);
	if (json_is_number(ttl) &&
		parse_utc(json_text_or(lease, "created_at", NULL), &from_ms) == 0)
		return clock_format_utc(from_ms + (uint64_t)(json_number_value(ttl) * 1000), buf);
	return buf;
}

const json_t *lease_view_last_observation(const json_t *lease)
{
	const json_t *list = json_object_get(lease, "observations");
	size_t n = json_array_size(list);

	return n ? json_array_get(list, n - 1) : NULL;
}

const json_t *lease_view_observation(const json_t *lease, const char *phase)
{
	const json_t *found = NULL;
	json_t *observation;
	size_t n;

	json_array_foreach(json_object_get(lease, "observations"), n, observation) {
		if (text_equal(json_text_or(observation, "phase", ""), phase))
			found = observation;
	}
	return found;
}

const char *lease_view_story(const json_t *lease, char *buf, size_t size)
{
	static const char *const phases[] = {"before", "during", "after"};
	size_t len = 0;

	buf[0] = '\0';
	for (size_t i = 0; i < ARRAY_SIZE(phases); i++) {
		const json_t *observation = lease_view_observation(lease, phases[i]);
		const json_t *value = json_object_get(observation, "value");

		if (!json_is_number(value) || len >= size)
			continue;
		if (len == 0)
			snprintf(buf, size, "%s", json_text_or(observation, "metric", "measured"));
		else
			snprintf(buf + len, size - len, ",");
		len = strlen(buf);
		snprintf(buf + len, size - len, " %g %s", json_number_value(value), phases[i]);
		len = strlen(buf);
	}
	return buf;
}

const char *lease_view_measured(const json_t *observation, char *buf, size_t size)
{
	const json_t *value = json_object_get(observation, "value");
	const json_t *asked = json_object_get(observation, "asked");
	const char *unit = json_text_or(observation, "unit", "");
	char of[32] = "";

	buf[0] = '\0';
	if (!json_is_number(value))
		return buf;
	if (json_is_number(asked) && json_number_value(asked) > 0)
		snprintf(of, sizeof(of), " of %g", json_number_value(asked));
	if (text_equal(unit, "count"))
		unit = "";
	snprintf(buf, size, "%s %g%s%s%s", json_text_or(observation, "metric", "measured"),
		json_number_value(value), of, unit[0] ? " " : "", unit);
	return buf;
}

void lease_view_remedy(const json_t *lease)
{
	const char *notes = json_text_or(lease, "escalation_notes", NULL);
	size_t n;
	json_t *argv;

	if (notes)
		fprintf(stderr, "%s: %s\n", json_text_or(lease, "id", "?"), notes);
	json_array_foreach(json_object_get(lease, "remedy"), n, argv) {
		fputs("  ", stderr);
		output_argv(stderr, argv);
		putc('\n', stderr);
	}
}
