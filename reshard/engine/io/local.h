/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The kind of source of this store's own files: sealed blobs, mapped read-only, with headers that are parsed once, and
 * shared by all readers.  Mappings that nobody uses are kept for a while, at most BLOBS_IDLE_MAX of them; they cost
 * address space and count as the daemon's VmRSS, not as its anonymous memory.
 */
#ifndef RS_LOCAL_H
#define RS_LOCAL_H

#include "meta/store/store.h"
#include "reshard/engine/io/source.h"
#include "reshard/codec/format/format.h"

/** Its places have `arg`: a struct rs_blobs, `id`: a blob. */
extern const struct rs_source_ops rs_source_local;
/** Takes the place of rs_source_local, with the same `arg` and `id`.  Tests set it before they open a store. */
extern const struct rs_source_ops *rs_source_extra;

struct rs_blobs;

struct rs_blob {
	struct rs_bytes bytes;		/* the whole file; bytes.blob is its number */
	const struct rs_format_ops *format;	/* as which it was parsed; NULL: it was not */
	struct rs_found found;		/* if it was parsed */
	/* owner: local.c, under its lock */
	struct rs_blobs *blobs;
	uint32_t refs;
	bool forgotten;			/* who asks again gets another, or an error */
	struct rs_blob *next, *idle_before, *idle_after;
};

int rs_blobs_new(const struct meta_store *store, struct rs_blobs **ret, struct sc_err *err);
struct rs_blobs *rs_blobs_free(struct rs_blobs *blobs);

/**
 * Gives a reference to a blob; rs_blob_put() ends it.  With a format the file is parsed.  The file has to have `bytes`
 * bytes; that is checked, so that reads of the mapping stay inside the file.
 * Errors: SC_E_SYSTEM, SC_E_DAMAGED, SC_E_NO_MEMORY, those of rs_format_parse().
 */
int rs_blob_get(struct rs_blobs *blobs, uint64_t id, const struct rs_format_ops *format, uint64_t bytes,
		struct rs_blob **ret, struct sc_err *err);
/** Gives a reference to a blob whose file the caller has parsed: copies what was found in it. */
int rs_blob_get_found(struct rs_blobs *blobs, uint64_t id, const struct rs_format_ops *format, uint64_t bytes,
		      const struct rs_found *found, struct rs_blob **ret, struct sc_err *err);
void rs_blob_put(struct rs_blobs *blobs, struct rs_blob *blob);
/** How blobs are read whose bytes are not in this store; set before any blob is. */
struct rs_elsewhere {
	void *arg;
	/** Gives the place of byte `at` of a blob: 1, 0 (it is here), or an error. */
	int (*place)(void *arg, uint64_t blob, uint64_t bytes, uint64_t at, struct rs_place *ret, struct sc_err *err);
	/** Tells whether what has the bytes can be asked now: 1, 0 with *ret_node, or an error. */
	int (*is_there)(void *arg, uint64_t blob, uint32_t *ret_node, struct sc_err *err);
	/** Tells whether the node that has written a blob is not there; others may have copies.  NULL: none is. */
	bool (*is_gone)(void *arg, uint64_t blob);
	/** Gives the place of what others have of a blob that is, or is to be, here: 1 or an error.  NULL: of none. */
	int (*copies)(void *arg, uint64_t blob, uint64_t bytes, struct rs_place *ret, struct sc_err *err);
};
void rs_blobs_elsewhere(struct rs_blobs *blobs, const struct rs_elsewhere *elsewhere);
/** Tells whether blobs may be on other nodes at all; `blobs` NULL: they are not. */
bool rs_blobs_may_be_away(const struct rs_blobs *blobs);
/** Gives the place of byte `at` of a blob, wherever it is: 1 (elsewhere), 0 (here), or an error. */
int rs_blob_place(struct rs_blobs *blobs, uint64_t id, uint64_t bytes, uint64_t at, struct rs_place *ret,
		  struct sc_err *err);
/** Gives the place of a blob's copies elsewhere, if there may be any: 1, 0 or an error. */
int rs_blob_copies(struct rs_blobs *blobs, uint64_t id, uint64_t bytes, struct rs_place *ret, struct sc_err *err);
/** Reads all `bytes` of a blob, wherever it is.  Errors: of its source. */
int rs_blob_read(struct rs_blobs *blobs, uint64_t id, uint64_t bytes, void *to, struct sc_err *err);
/** Tells whether a blob is here, or its node can be asked for it now: 1, 0 with the number of the node, or an error. */
int rs_blob_is_there(struct rs_blobs *blobs, uint64_t id, uint32_t *ret_node, struct sc_err *err);
/** Tells whether the node that has written a blob is not here: of replicas, another one is read. */
bool rs_blob_is_gone(struct rs_blobs *blobs, uint64_t id);
/** Drops mappings of a blob that is being removed, is damaged, or is another file now; nobody gets them any more, and
 *  those in use are dropped when they are put.  0: forgets all blobs that were on other nodes. */
void rs_blob_forget(struct rs_blobs *blobs, uint64_t id);

#endif
