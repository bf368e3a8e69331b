/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Makes etcd's keys of a cluster anew from the backups that stores have of them (reshard/cluster/peers/backup.c), when
 * etcd has lost its data, and no copy of that is as new.
 *
 * A backup travels as text: "scalai-backup 2", the lines cluster, id, era, revision and node, a line "KEY VALUE" in
 * base64 for each key, and "end NR SUM", the last one: the XXH3-128 of all bytes before it.  Programs from before wrote
 * "scalai-backup 1", without a sum, which is read, too.
 */
#ifndef RS_RESTORE_H
#define RS_RESTORE_H

#include <stdio.h>

#include "reshard/cluster/node/member.h"

/** Writes the backup of a store that nobody has mounted.  Errors: SC_E_NOT_FOUND (the store is in no cluster, or has
 *  none yet), SC_E_SYSTEM. */
int rs_backup_print(struct rs_service *s, FILE *to, struct sc_err *err);

/**
 * Makes the keys of the cluster o->cluster anew from the newest one of these files (paths), and reports to `report`
 * what was made, and which versions fewer than a majority of them knew.  Nodes are mounted only when all is there.
 * `replace`: what etcd still has of the cluster, is removed first.
 * Errors: SC_E_FORMAT (a file is no backup, or not whole), SC_E_STATE (they are of several clusters), SC_E_EXISTS (etcd
 * has the cluster, and not `replace`), SC_E_BUSY (a node of it is mounted, or somebody makes it, too), SC_E_SYSTEM.
 */
int rs_backup_restore(const struct rs_member_options *o, const char *const *paths, size_t nr, bool replace,
		      struct sc_buf *report, struct sc_err *err);

#endif
