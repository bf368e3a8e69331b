/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What each blob's file says about itself, in an extended attribute: enough to make the newest state
 * of its job again when the catalog is lost (rebuild.c).  Written once, when the blob is hashed.
 */
#ifndef RS_RECORD_H
#define RS_RECORD_H

#include "reshard/job/service_i.h"

struct rs_record {
	uint64_t blob;
	const char *job, *file, *layout, *topology, *path, *ranks; /* layout: name of its text in STORE/layouts */
	uint64_t uid, gid, job_mode, set, kind, mode;
	uint32_t layers, experts;	/* of the version for which the set was written, 0: its tensors tell */
	int64_t step;			/* -1: none */
	uint8_t hash[16];
};

/** Of a blob that is sealed and hashed.  Errors: SC_E_UNSUPPORTED, the file system has no such attributes. */
int rs_record_write(struct rs_service *s, uint64_t blob, const uint8_t hash[16], struct sc_err *err);
/** Of those of a set's blobs that are hashed: what was said of them was of an older set. */
int rs_record_renew(struct rs_service *s, const struct rs_set *set, struct sc_err *err);
/** Texts are the arena's.  Errors: SC_E_NOT_FOUND, the file says nothing; SC_E_FORMAT. */
int rs_record_read(struct rs_service *s, uint64_t blob, struct sc_arena *arena, struct rs_record *ret,
		   struct sc_err *err);
/** Calls `each` with each rank of `ranks` (RS_SHARED: of the job itself). */
int rs_record_ranks(const char *ranks, int (*each)(void *arg, uint32_t rank), void *arg, struct sc_err *err);

#endif
