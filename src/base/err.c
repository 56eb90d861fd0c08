/* SPDX-License-Identifier: Apache-2.0 */
#include "base/err.h"

#include <stdarg.h>
#include <string.h>

#include "base/text.h"

int err_set(struct err *err, const char *code, int errnum, const char *stage, const char *fmt, ...)
{
	int ret = errnum ? -errnum : -EINVAL;
	size_t used;
	va_list ap;

	if (!err)
		return ret;
	memset(err, 0, sizeof(*err));
	text_copy(err->code, sizeof(err->code), code);
	text_copy(err->stage, sizeof(err->stage), stage);
	err->errnum = errnum;
	va_start(ap, fmt);
	vsnprintf(err->text, sizeof(err->text), fmt, ap);
	va_end(ap);
	used = strlen(err->text);
	if (errnum && used + 4 < sizeof(err->text))
		snprintf(err->text + used, sizeof(err->text) - used, ": %s", strerror(errnum));
	return ret;
}

void err_remedy(struct err *err, const char *fmt, ...)
{
	va_list ap;

	if (!err)
		return;
	va_start(ap, fmt);
	vsnprintf(err->remedy, sizeof(err->remedy), fmt, ap);
	va_end(ap);
}

bool err_is(const struct err *err, const char *code)
{
	return err && strcmp(err->code, code) == 0;
}
