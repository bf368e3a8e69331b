/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Checks a store that nobody has mounted, and makes a lost catalog again.
 *
 * Thread: one, on a service without background work.
 */
#ifndef RS_REPAIR_H
#define RS_REPAIR_H

#include "reshard/service/service.h"

/**
 * Checks everything that a store promises: rows that fit together, the size and hash of each blob, the copies and
 * hashes of each version's tensors, no unknown files.  `repair`: moves unknown files to lost+found, and repairs
 * damaged blobs from others with the same contents.  *ret_bad: the number of problems that remain; lines of `report`
 * name them.  Errors: those of reading.
 */
int rs_fsck(struct rs_service *s, bool repair, uint64_t *ret_bad, struct sc_buf *report, struct sc_err *err);
/** Fills a new catalog from the recovery records of the blobs; *ret_bad: the number of jobs and blobs left out. */
int rs_rebuild(struct rs_service *s, uint64_t *ret_bad, struct sc_buf *report, struct sc_err *err);

#endif
