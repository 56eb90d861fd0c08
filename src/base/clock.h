/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Two clocks and no third. Deadlines are on CLOCK_BOOTTIME, which counts
 * suspended time and cannot be set; what people read is UTC, RFC 3339 with
 * milliseconds.
 */
#pragma once

#include <stddef.h>
#include <stdint.h>

#define CLOCK_UTC_SIZE 32

uint64_t clock_boottime_ms(void);
uint64_t clock_boottime_us(void);
uint64_t clock_utc_ms(void);

/* "2026-01-02T03:04:05.678Z"; buf holds at least CLOCK_UTC_SIZE bytes. */
const char *clock_format_utc(uint64_t utc_ms, char *buf);

/* Milliseconds from now until a boottime, 0 when it has passed. */
uint64_t clock_until_ms(uint64_t boottime_ms);
