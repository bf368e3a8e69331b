/* SPDX-License-Identifier: Apache-2.0 */
/* A pass of the worker over one job's head; shared by worker.c and materialize.c. */
#ifndef RS_PASS_H
#define RS_PASS_H

#include "reshard/engine/flush.h"
#include "reshard/upkeep/upkeep_i.h"

struct rs_pass {
	struct rs_service *s;
	struct rs_job *job;
	struct rs_view *head;
	struct sc_err *err;
	int64_t told_ns;	/* atomic */
};

/** Begins to report progress in `status`: what is done, and how many bytes it will be. */
void rs_pass_begin(struct rs_pass *p, const char *what, uint64_t total);
void rs_pass_end(struct rs_pass *p);
/** Counts bytes done.  Returns non-zero if there is a newer head, or no job any more.  Thread: any. */
int rs_pass_bytes(void *pass, uint64_t bytes);
bool rs_pass_is_stale(struct rs_pass *p);

/** What is in a blob's file is to stay, when `flush` has ended: flushed with sync=on.  Takes the descriptor.  `rank`,
 *  `path`: for messages.  Errors: those of rs_flush_add(). */
int rs_pass_keep(struct rs_pass *p, struct rs_flush *flush, struct meta_store_dirs *dirs, int fd, uint64_t blob,
		 int rank, const char *path, struct sc_err *err);

/** Verifies what is not verified of the head, and keeps the result.  Errors: SC_E_CANCELLED, those of reading and
 *  of the catalog. */
int rs_verify_head(struct rs_pass *p);
/** Does steps 21 to 25: writes the rank files of the head and switches the version over to them.  Errors:
*  SC_E_CANCELLED, those of engines and of the catalog. */
int rs_materialize(struct rs_pass *p);
/** Makes a set of the head's as the head presents it: same tensors, same digests, and files that have no blobs yet. */
int rs_set_presented(struct rs_pass *p, struct rs_set *old, struct rs_set **ret);
/** Gives replicas the blob of the rank that they are like, which is listed before them.  Errors: SC_E_CANCELLED. */
int rs_set_share(struct rs_pass *p, struct rs_set *set);
/** Removes files of a set that were written, and that nobody has: there may be no room for them and for others. */
void rs_set_remove_new(struct rs_service *s, const struct rs_set *set);
/** Runs when all is written, while it is being flushed; fills the pass's error if it fails. */
typedef int rs_meanwhile_fn(void *arg);
/** Does steps 22 and 23: writes the files that a set lists, or finds blobs that have these bytes; they are on stable
 *  storage if sync=on.  `meanwhile` may be NULL.  Errors: as above, and its own. */
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
/** Before each: ends those before, if there is no room for another. */
int rs_copies_next(struct rs_copying *c);
/** Those that were begun are on stable storage, and have rows; or (rc) they go. */
int rs_copies_end(struct rs_copying *c, int rc);
/** Copies what other nodes lose if a node is lost (struct rs_copies_ops).  Errors: as above, but those of other nodes,
 *  which are counted. */
int rs_copies_keep(struct rs_pass *p);

/* homes.c */
/** Makes the files of the head real that this node of a cluster keeps, for itself: those that are views, and those that
 *  are other nodes' blobs.  Errors: as above, and of other nodes. */
int rs_homes_keep(struct rs_pass *p);
/** Takes files of a set that were written, and are on stable storage if sync=on, for what this node keeps of the head.
 *  Errors: those of the catalog. */
int rs_homes_take(struct rs_pass *p, const struct rs_set *set, struct sc_err *err);

#endif
