/* SPDX-License-Identifier: Apache-2.0 */
/* clock.h: microseconds that only move forward; every deadline of the sweep is one of these. */
#pragma once

#include <stdint.h>
#include <time.h>

static inline uint64_t clock_us(void)
{
	struct timespec now;

	clock_gettime(CLOCK_MONOTONIC, &now);
	return (uint64_t)now.tv_sec * 1000000u + (uint64_t)now.tv_nsec / 1000u;
}

/* What is left until `deadline_us`, as poll() wants it: rounded up, so that nobody spins. */
static inline int clock_left_ms(uint64_t deadline_us)
{
	uint64_t now = clock_us();

	return now >= deadline_us ? 0 : (int)((deadline_us - now + 999u) / 1000u);
}
