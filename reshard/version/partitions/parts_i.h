/* SPDX-License-Identifier: Apache-2.0 */
/* What this room tells the rooms above of partitions of datasets. */
#ifndef RS_PARTS_I_H
#define RS_PARTS_I_H

#include "reshard/version/partitions/parts.h"
#include "reshard/version/state/state_i.h"

/** Calls `each` with every path of a rank's partitions. */
int rs_data_names(const struct rs_view *view, int (*each)(void *arg, const char *path), void *arg);
void rs_parts_done(struct rs_parts *parts);
/** Drops partitions that are not open, and closes sources of datasets that were removed. */
void rs_parts_purge(struct rs_parts *parts);

#endif
