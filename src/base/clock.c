/* SPDX-License-Identifier: Apache-2.0 */
#include "base/clock.h"

#include <stdio.h>
#include <time.h>

static uint64_t now_us(clockid_t id)
{
	struct timespec ts;

	clock_gettime(id, &ts);
	return (uint64_t)ts.tv_sec * 1000000 + (uint64_t)ts.tv_nsec / 1000;
}

uint64_t clock_boottime_us(void)
{
	return now_us(CLOCK_BOOTTIME);
}

uint64_t clock_boottime_ms(void)
{
	return now_us(CLOCK_BOOTTIME) / 1000;
}

uint64_t clock_utc_ms(void)
{
	return now_us(CLOCK_REALTIME) / 1000;
}

const char *clock_format_utc(uint64_t utc_ms, char *buf)
{
	time_t s = (time_t)(utc_ms / 1000);
	struct tm tm = {0}; /* stays so for a year beyond all counting */

	gmtime_r(&s, &tm);
	snprintf(buf, CLOCK_UTC_SIZE, "%04d-%02d-%02dT%02d:%02d:%02d.%03uZ",
		(tm.tm_year + 1900) % 10000, (tm.tm_mon + 1) % 100, tm.tm_mday % 100,
		tm.tm_hour % 100, tm.tm_min % 100, tm.tm_sec % 100, (unsigned)(utc_ms % 1000));
	return buf;
}

uint64_t clock_until_ms(uint64_t boottime_ms)
{
	uint64_t now = clock_boottime_ms();

	return boottime_ms > now ? boottime_ms - now : 0;
}
