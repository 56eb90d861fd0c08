/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The way back, the same for a live holder and for recovery: releasing, undo,
 * verify, released or dirty. Only `active` gates a change; here nothing that
 * cannot be written keeps an undo from running.
 */
#pragma once

#include "lease/steps.h"

/*
 * Undoes and looks, up to three times; leaves the lease released or dirty,
 * with notes and remedy, and writes it as often as it takes. 0 released,
 * -EUCLEAN dirty; -EIO when the state is right and could not be written.
 */
int lease_undo(struct fault_run *run, enum lease_end end, struct err *err);

/* A pending lease that never took effect: nothing to undo. */
int lease_expire(struct fault_run *run, enum lease_end end, struct err *err);

/* One line to the journal: "mayhem: active proc.pause on …, lease l-…, run r-…, by uid:0". Never waits. */
void lease_announce(const struct lease *l);
