/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Sealed blobs as memory: mapped read-only, their headers parsed once, shared by all who read
 * them.  Mappings that nobody uses are kept for a while, at most BLOBS_IDLE_MAX of them; they cost
 * address space and count as the daemon's VmRSS, not as its anonymous memory.
 */
#ifndef RS_BLOBS_H
#define RS_BLOBS_H

#include "meta/store/store.h"
#include "reshard/format/safetensors.h"

struct rs_blobs;

struct rs_blob {
	uint64_t id;
	const unsigned char *map;	/* NULL when the file is empty */
	uint64_t bytes;
	struct rs_safetensors st;	/* if `is_tensors` */
	bool is_tensors;
	/* owner: blobs.c, under its lock */
	uint32_t refs;
	struct rs_blob *next, *idle_before, *idle_after;
};

int rs_blobs_new(const struct meta_store *store, struct rs_blobs **ret, struct sc_err *err);
struct rs_blobs *rs_blobs_free(struct rs_blobs *blobs);

/**
 * A reference; rs_blob_put() ends it.  With `tensors` the file is parsed as safetensors.
 * `bytes_expected` (UINT64_MAX: any) is checked, so that reads of the mapping stay inside the file.
 * Errors: SC_E_SYSTEM, SC_E_FORMAT, SC_E_NO_MEMORY.
 */
int rs_blob_get(struct rs_blobs *blobs, uint64_t id, bool tensors, uint64_t bytes_expected,
		struct rs_blob **ret, struct sc_err *err);
void rs_blob_put(struct rs_blobs *blobs, struct rs_blob *blob);
/** Drops an idle mapping of a blob that is being removed. */
void rs_blob_forget(struct rs_blobs *blobs, uint64_t id);

#endif
