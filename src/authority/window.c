/* SPDX-License-Identifier: Apache-2.0 */
#include "authority/window.h"

#include <limits.h>
#include <string.h>
#include <time.h>

#include "base/cleanup.h"
#include "base/json.h"
#include "base/text.h"

#define ZONES "/usr/share/zoneinfo"

static const char *const day_names[] = {"sun", "mon", "tue", "wed", "thu", "fri", "sat"};

static int day_index(const char *s, size_t len)
{
	for (int i = 0; i < 7; i++)
		if (len == 3 && strncmp(s, day_names[i], 3) == 0)
			return i;
	return -EINVAL;
}

/* "mon-fri" or "sat" as a mask of days; 0 when it does not read. */
static unsigned parse_days(const char *s)
{
	const char *dash = strchr(s, '-');
	int from = day_index(s, dash ? (size_t)(dash - s) : strlen(s));
	int to = dash ? day_index(dash + 1, strlen(dash + 1)) : from;
	unsigned mask = 0;

	if (from < 0 || to < 0)
		return 0;
	for (int d = from;; d = (d + 1) % 7) {
		mask |= 1u << d;
		if (d == to)
			return mask;
	}
}

/* "09:30" as minutes of the day; "24:00" is the end of it. */
static int parse_minutes(const char *s)
{
	uint64_t h, m;

	if (strlen(s) != 5 || s[2] != ':' || text_parse_u64_n(s, 2, &h) < 0 ||
		text_parse_u64_n(s + 3, 2, &m) < 0)
		return -EINVAL;
	if (m > 59 || h * 60 + m > 24 * 60)
		return -EINVAL;
	return (int)(h * 60 + m);
}

/* A key of another type would else count as absent, and absent means always. */
static bool all_texts(const json_t *window)
{
	const char *key;
	json_t *v;

	json_object_foreach((json_t *)window, key, v)
		if (!json_is_string(v))
			return false;
	return true;
}

/* An unknown zone would be UTC to the C library, and a window open at other hours than meant. */
static bool is_zone(const char *tz)
{
	char path[PATH_MAX];

	if (text_equal(tz, "UTC"))
		return true;
	return tz[0] && tz[0] != '/' && !strstr(tz, "..") &&
		snprintf(path, sizeof(path), ZONES "/%s", tz) < (int)sizeof(path) &&
		access(path, R_OK) == 0;
}

static int check_window(const json_t *w, const char *name, struct err *err)
{
	static const char *const keys[] = {"days", "from", "to", "tz"};
	const char *tz = json_text_or(w, "tz", "UTC");
	int from = parse_minutes(json_text_or(w, "from", "00:00"));
	int to = parse_minutes(json_text_or(w, "to", "24:00"));

	if (!json_is_object(w) || !all_texts(w) ||
		json_check_keys(w, keys, ARRAY_SIZE(keys), "a window", "config.policy", err) < 0 ||
		!parse_days(json_text_or(w, "days", "sun-sat")) || from < 0 || to < 0)
		return err_set(err, "config.policy", 0, "policy",
			"%s: a window is {days: \"mon-fri\", from: \"09:00\", to: \"16:00\", tz}",
			name);
	if (to <= from)
		return err_set(err, "config.policy", 0, "policy",
			"%s: a window ends after it begins; one over midnight is two", name);
	if (!is_zone(tz))
		return err_set(err, "config.policy", 0, "policy",
			"%s: `%.64s` is no time zone that this host knows", name, tz);
	return 0;
}

int window_check_list(const json_t *list, const char *name, struct err *err)
{
	size_t i;
	json_t *w;

	if (list && !json_is_array(list))
		return err_set(err, "config.policy", 0, "policy", "%s: `windows` must be a list",
			name);
	json_array_foreach((json_t *)list, i, w)
		if (check_window(w, name, err) < 0)
			return -EINVAL;
	return 0;
}

/* Local time in a named zone. The agent has one thread, and TZ is put back. */
static void local_time(uint64_t utc_ms, const char *tz, struct tm *ret)
{
	const char *was = getenv("TZ");
	_free_ char *saved = was ? strdup(was) : NULL;
	time_t t = (time_t)(utc_ms / 1000);

	setenv("TZ", tz, 1);
	tzset();
	localtime_r(&t, ret);
	if (saved)
		setenv("TZ", saved, 1);
	else
		unsetenv("TZ");
	tzset();
}

bool window_list_open(const json_t *list, uint64_t utc_ms)
{
	size_t i;
	json_t *w;

	if (json_array_size(list) == 0)
		return true;
	json_array_foreach((json_t *)list, i, w) {
		int from = parse_minutes(json_text_or(w, "from", "00:00"));
		int to = parse_minutes(json_text_or(w, "to", "24:00")), now;
		struct tm tm;

		local_time(utc_ms, json_text_or(w, "tz", "UTC"), &tm);
		now = tm.tm_hour * 60 + tm.tm_min;
		if (parse_days(json_text_or(w, "days", "sun-sat")) & 1u << tm.tm_wday &&
			now >= from && now < to)
			return true;
	}
	return false;
}
