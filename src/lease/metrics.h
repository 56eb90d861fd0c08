/* SPDX-License-Identifier: Apache-2.0 */
/* What lives and what has ended, as a text file for node_exporter. Nothing listens. */
#pragma once

#include "lease/store.h"

/*
 * Writes path anew, by rename: mayhem_lease_active{fault,target,run,owner} and
 * mayhem_leases_total{fault,end}, the latter over what ended/ still keeps.
 */
int lease_metrics_write(const struct lease_store *s, const char *path, struct err *err);
