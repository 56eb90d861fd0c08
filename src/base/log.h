/* SPDX-License-Identifier: Apache-2.0 */
/*
 * One line per event on stderr: `TIME LEVEL module: text`. A closed or full
 * stderr is ignored; a line break in the text is written as a blank, so that
 * nobody can forge a line.
 */
#pragma once

#include "base/cleanup.h"

enum log_level { LOG_LEVEL_ERROR, LOG_LEVEL_WARN, LOG_LEVEL_INFO, LOG_LEVEL_DEBUG, LOG_LEVEL_MAX };

void log_set_level(enum log_level level);

/* The level of that name, or -EINVAL. */
int log_level_from_name(const char *name, enum log_level *ret);

void log_line(enum log_level level, const char *module, const char *fmt, ...) _printf_(3, 4);

#define log_error(...) log_line(LOG_LEVEL_ERROR, __VA_ARGS__)
#define log_warn(...) log_line(LOG_LEVEL_WARN, __VA_ARGS__)
#define log_info(...) log_line(LOG_LEVEL_INFO, __VA_ARGS__)
#define log_debug(...) log_line(LOG_LEVEL_DEBUG, __VA_ARGS__)
