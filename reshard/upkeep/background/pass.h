/* SPDX-License-Identifier: Apache-2.0 */
/* A pass of the worker over one job's head. */
#ifndef RS_PASS_H
#define RS_PASS_H

#include "reshard/engine/io/flush.h"
#include "reshard/upkeep/background/upkeep_i.h"

struct rs_pass {
	struct rs_service *s;
	struct rs_job *job;
	struct rs_view *head;
	struct sc_err *err;
	int64_t told_ns;	/* atomic */
};

/** Begins to report progress in `status`: `what` is being done, with `total` bytes. */
void rs_pass_begin(struct rs_pass *p, const char *what, uint64_t total);
void rs_pass_end(struct rs_pass *p);
/** Sees to it that so many bytes count as done: some need not be read or written. */
void rs_pass_reach(struct rs_pass *p, uint64_t done);
/** Estimates the bytes of the files of ranks, for the progress: of those that `ranks` has, NULL: of all. */
uint64_t rs_head_bytes(const struct rs_view *head, const bool *ranks);
/** Counts bytes done.  Returns non-zero if there is a newer head, or no job any more.  Thread: any. */
int rs_pass_bytes(void *pass, uint64_t bytes);
bool rs_pass_is_stale(struct rs_pass *p);

/** Sees to it that the bytes of a blob's file stay once `flush` has ended: with sync=on they are flushed.  Takes the
 *  descriptor.  `rank` and `path` are for messages.  Errors: those of rs_flush_add(). */
int rs_pass_keep(struct rs_pass *p, struct rs_flush *flush, struct meta_store_dirs *dirs, int fd, uint64_t blob,
		 int rank, const char *path, struct sc_err *err);

/** Verifies the sets of the head that are not verified yet, and keeps the results.  Errors: SC_E_CANCELLED, those of
 *  reading and of the catalog. */
int rs_verify_head(struct rs_pass *p);
/** Does steps 21 to 25: writes the rank files of the head and switches the version over to them.  Errors:
*  SC_E_CANCELLED, those of engines and of the catalog. */
int rs_materialize(struct rs_pass *p);
/** Makes a set of the head's as the head presents it: same tensors, same digests, and files that have no blobs yet. */
int rs_set_presented(struct rs_pass *p, struct rs_set *old, struct rs_set **ret);
/** Gives replicas the blob of the first rank with the same bytes, which is listed before them.  Errors:
 *  SC_E_CANCELLED. */
int rs_set_share(struct rs_pass *p, struct rs_set *set);
/** Removes the written files of a set that no version has: the disk may have no room for them and for others. */
void rs_set_remove_new(struct rs_service *s, const struct rs_set *set);
/** Runs when all is written, while it is being flushed; fills the pass's error if it fails. */
typedef int rs_meanwhile_fn(void *arg);
/** Does steps 22 and 23: writes the files that a set lists, or finds blobs that have their bytes; both are on stable
 *  storage if sync=on.  `meanwhile` may be NULL.  Errors: SC_E_CANCELLED, those of engines, of the catalog and of
 *  `meanwhile`. */
int rs_materialize_files(struct rs_pass *p, struct rs_set *set, rs_meanwhile_fn *meanwhile, void *arg);

/* copies.c */
/** Copies of other nodes' blobs that are being made, empty but for `p` at first. */
struct rs_copying {
	struct rs_pass *p;
	struct rs_flush flush;		/* those that have no row yet */
	struct meta_store_dirs dirs;
	struct rs_sealed_list copies;
};
/** Copies a blob, unless its bytes are here; `rank` negative: of the job itself.  Errors: SC_E_CANCELLED, those of
 *  other nodes and of the store: then nothing of it is here. */
int rs_copy_blob(struct rs_copying *c, uint64_t blob, uint64_t bytes, int rank);
/** Makes room for one more copy: ends those before, if there is none.  To be called before each. */
int rs_copies_next(struct rs_copying *c);
/** Ends the copies that were begun: they are on stable storage then, and have rows; or (rc is an error) they go. */
int rs_copies_end(struct rs_copying *c, int rc);
/** Copies the files that would be lost with another node (struct rs_copies_ops).  Errors: those of rs_copy_blob(), but
 *  for errors of other nodes, which are counted. */
int rs_copies_keep(struct rs_pass *p);

/* homes.c */
/** Makes the files of the head that this node of a cluster keeps for itself: of views, and of other nodes' blobs.
 *  Errors: those of rs_materialize_files() and rs_copy_blob(). */
int rs_homes_keep(struct rs_pass *p);
/** Takes files of a set that were written, and are on stable storage if sync=on, for what this node keeps of the head.
 *  Errors: those of the catalog. */
int rs_homes_take(struct rs_pass *p, const struct rs_set *set, struct sc_err *err);

#endif
