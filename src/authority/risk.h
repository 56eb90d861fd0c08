/* SPDX-License-Identifier: Apache-2.0 */
/* How dangerous a fault is: the catalogue says it, policies and gates limit it. */
#pragma once

enum risk { RISK_LOW, RISK_MEDIUM, RISK_HIGH, RISK_CRITICAL, RISK_MAX };

const char *risk_name(enum risk r);

/* 0, or -EINVAL. */
int risk_from_name(const char *name, enum risk *ret);
