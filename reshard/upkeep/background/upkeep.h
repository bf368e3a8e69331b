/* SPDX-License-Identifier: Apache-2.0 */
/* How other rooms start background work, and wait for it. */
#ifndef RS_UPKEEP_H
#define RS_UPKEEP_H

#include "reshard/version/state/state.h"

/** Does the worker's work once, in this thread: verifies, materializes, hashes, removes garbage.  Only with
 *  quiet_worker.  Returns the first error. */
int rs_service_work(struct rs_service *s, struct sc_err *err);
/** Tells whether the worker has done what it was called for, and waits for a call or to try again what failed. */
bool rs_worker_rests(struct rs_service *s);
/** Tells whether there are damaged blobs, marked or only met by a read; `status` of their jobs names them. */
bool rs_service_is_damaged(struct rs_service *s);
/** Forgets what has bytes of a blob that were given and are wrong, or may be (0: of any blob of another node): who
 *  opens a file from now on gets other bytes.  Thread: any. */
void rs_bytes_were_wrong(struct rs_service *s, uint64_t blob);
/** Tells whether wrong bytes were ever given: then the kernel may have some in its cache of any file. */
bool rs_service_gave_wrong(const struct rs_service *s);
/** Reads blobs again that were last checked before that time (seconds since 1970), and damaged ones after an hour, a
 *  thousand at most. */
int rs_service_scrub(struct rs_service *s, int64_t before_s, struct sc_err *err);

/** Makes a file of the head real by reflink, if that takes milliseconds.  Returns true if so: then look it up again. */
bool rs_make_real(struct rs_service *s, struct rs_view *view, uint32_t rank, const char *file,
		  struct rs_image *image);

/** Tells whether this node of a cluster keeps the files of a rank of a job's head. */
bool rs_home(const struct rs_view *head, uint32_t rank);
/** Takes over the files that an earlier daemon made of a job's head; before there is a worker. */
int rs_homes_load(struct rs_job *job, struct sc_err *err);
/** Tells whether all files that this node keeps of a view, which is a head, are here; as of its last pass. */
bool rs_homes_are_here(const struct rs_view *head);

/* How much a node has of the copies that it is to keep of other nodes' files, of all versions of a job. */
struct rs_copied {
	uint64_t version;		/* the newest one */
	uint64_t basis;			/* of struct rs_copies_ops */
	uint32_t replicas;
	uint64_t wants, has;		/* bytes */
	uint64_t lost, files;		/* bytes and files that no node has which is here */
	uint64_t newest;		/* files of these that the newest version has */
	char file[160];			/* one of them, as rs_use_text() names it; "": there is none */
	bool others;			/* other nodes are here than at the last pass */
	bool again;			/* only what was lost is tried again: nothing is new */
};

/* Tells which copies a node is to keep (reshard/cluster/copies). */
struct rs_copies_ops {
	/** Begins a pass: sets c->basis, c->others, and c->replicas if it is 0.  False: it has been done, for this
	 *  version, basis and number of copies. */
	bool (*begin)(void *arg, struct rs_job *job, struct rs_copied *c);
	/** Tells whether this node keeps a copy of a node's blob. */
	bool (*keeps)(void *arg, uint32_t replicas, uint32_t node, uint64_t number);
	/** Tells whether a node is here, or may be back in a moment. */
	bool (*is_near)(void *arg, uint32_t node);
	/** Ends a pass. */
	void (*done)(void *arg, struct rs_job *job, const struct rs_copied *c);
	/** Tells whether all nodes have theirs of a version, the head: 1, 0, or an error (some of it is lost). */
	int (*are_done)(void *arg, struct rs_job *job, uint64_t version, struct sc_err *err);
	/** Tells the other nodes that what they had of a blob from here may be wrong.  Does not wait. */
	void (*wrong)(void *arg, uint64_t blob);
	/** Appends lines of `status`. */
	void (*describe)(void *arg, struct rs_job *job, struct sc_buf *buf);
	/** Control files of the mount: the table of nodes; a node is emptied, or (`-NAME`) not any more. */
	int (*nodes)(void *arg, struct sc_buf *buf, struct sc_err *err);
	int (*drain)(void *arg, const char *text, struct sc_err *err);
	/** Likewise: what the cluster is; `protocol=N` lets it speak another protocol. */
	int (*cluster)(void *arg, struct sc_buf *buf, struct sc_err *err);
	int (*set_cluster)(void *arg, const char *text, struct sc_err *err);
};
/** Sets these functions; they are NULL on a machine of its own.  `arg` is the service's member. */
void rs_copies_by(struct rs_service *s, const struct rs_copies_ops *ops);

#endif
