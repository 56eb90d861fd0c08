/* SPDX-License-Identifier: Apache-2.0 */
#include "base/log.h"

#include <poll.h>
#include <stdarg.h>
#include <string.h>

#include "base/clock.h"
#include "base/text.h"

static const char *const level_names[LOG_LEVEL_MAX] = {"error", "warn", "info", "debug"};
static enum log_level threshold = LOG_LEVEL_WARN;

void log_set_level(enum log_level level)
{
	threshold = level;
}

int log_level_from_name(const char *name, enum log_level *ret)
{
	for (int i = 0; i < LOG_LEVEL_MAX; i++)
		if (text_equal(name, level_names[i])) {
			*ret = (enum log_level)i;
			return 0;
		}
	return -EINVAL;
}

void log_line(enum log_level level, const char *module, const char *fmt, ...)
{
	struct pollfd out = {.fd = STDERR_FILENO, .events = POLLOUT};
	char line[1024], when[CLOCK_UTC_SIZE];
	int saved = errno;
	size_t len;
	va_list ap;

	if (level > threshold)
		return;
	snprintf(line, sizeof(line), "%s %s %s: ", clock_format_utc(clock_utc_ms(), when),
		level_names[level], module);
	len = strlen(line);
	va_start(ap, fmt);
	vsnprintf(line + len, sizeof(line) - len - 1, fmt, ap);
	va_end(ap);
	for (char *c = line; *c; c++)
		if (*c == '\n' || *c == '\r')
			*c = ' ';
	len = strlen(line);
	line[len++] = '\n';
	/*
	 * One write per line; whether anybody reads it changes nothing here. A
	 * pipe that polls writable takes PIPE_BUF bytes without blocking; one that
	 * does not is full, and an undo does not wait for its reader.
	 */
	if (poll(&out, 1, 0) == 1 && write(STDERR_FILENO, line, len) < 0)
		errno = saved;
	errno = saved;
}
