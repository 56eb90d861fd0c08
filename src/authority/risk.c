/* SPDX-License-Identifier: Apache-2.0 */
#include "authority/risk.h"

#include <errno.h>

#include "base/text.h"

static const char *const names[RISK_MAX] = {"low", "medium", "high", "critical"};

const char *risk_name(enum risk r)
{
	return names[r];
}

int risk_from_name(const char *name, enum risk *ret)
{
	for (int i = 0; i < RISK_MAX; i++)
		if (text_equal(names[i], name)) {
			*ret = (enum risk)i;
			return 0;
		}
	return -EINVAL;
}
