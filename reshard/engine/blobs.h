/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Sealed blobs as memory: mapped read-only, their headers parsed once, shared by all who read
 * them.  Mappings that nobody uses are kept for a while, at most BLOBS_IDLE_MAX of them; they cost
 * address space and count as the daemon's VmRSS, not as its anonymous memory.
 *
 * Nobody reads `map` but the functions that are named *_read here, in image.h and in data/part.h, and the kernel:
 * where a file was cut or the disk fails, they answer SC_E_DAMAGED, and the process would end by SIGBUS without them.
 */
#ifndef RS_BLOBS_H
#define RS_BLOBS_H

#include "meta/store/store.h"
#include "reshard/format/format.h"

struct rs_blobs;

struct rs_blob {
	uint64_t id;
	const unsigned char *map;	/* NULL when the file is empty; see above */
	uint64_t bytes;
	const struct rs_format_ops *format;	/* as which it was parsed; NULL: it was not */
	struct rs_found found;		/* if it was parsed */
	/* owner: blobs.c, under its lock */
	uint32_t refs;
	struct rs_blob *next, *idle_before, *idle_after;
};

int rs_blobs_new(const struct meta_store *store, struct rs_blobs **ret, struct sc_err *err);
struct rs_blobs *rs_blobs_free(struct rs_blobs *blobs);

/**
 * A reference; rs_blob_put() ends it.  With a format the file is parsed.
 * It has so many bytes; this is checked, so that reads of the mapping stay inside the file.
 * Errors: SC_E_SYSTEM, SC_E_DAMAGED, SC_E_NO_MEMORY, those of rs_format_parse().
 */
int rs_blob_get(struct rs_blobs *blobs, uint64_t id, const struct rs_format_ops *format, uint64_t bytes,
		struct rs_blob **ret, struct sc_err *err);
void rs_blob_put(struct rs_blobs *blobs, struct rs_blob *blob);
/** Drops an idle mapping of a blob that is being removed. */
void rs_blob_forget(struct rs_blobs *blobs, uint64_t id);

/** Fills `to`; at + bytes is within the blob.  Errors: SC_E_DAMAGED. */
int rs_bytes_read(const struct rs_blob *blob, uint64_t at, uint64_t bytes, void *to, struct sc_err *err);
/** The same by a descriptor; blob 0: a file that is none of the store's.  Errors: SC_E_DAMAGED, SC_E_SYSTEM. */
int rs_fd_read(int fd, uint64_t blob, uint64_t at, uint64_t bytes, void *to, struct sc_err *err);
/** What both answer when byte `at` can't be read. */
int rs_cannot_read(uint64_t blob, uint64_t at, int errnum, struct sc_err *err);

#endif
