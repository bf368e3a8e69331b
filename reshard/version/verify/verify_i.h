/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What the files of this room share.
 *
 *	verdict.c	keeps verdicts
 *	padding.c	looks at padding
 *	compare.c	compares copies, and digests logical tensors
 *	suspect.c	finds the blobs that have changed
 * Each calls only those below it.
 */
#ifndef RS_VERIFY_I_H
#define RS_VERIFY_I_H

#include "reshard/engine/io/digest.h"
#include "reshard/version/verify/verify.h"

/* A piece of a logical tensor that ranks hold. */
struct part {
	const struct meta_entry *entry;
	uint32_t rank;			/* that was read first, and whose digest this is */
	bool is_read;			/* by plans */
	struct rs_digest digest;
	struct part *next;
	uint64_t key[];			/* tensor, offsets, extents */
};

struct verify {
	struct rs_service *s;
	struct rs_set *set;
	struct rs_version whole;	/* a version of this set alone: origins for plans */
	struct rs_set *sets[1];
	rs_tick_fn *tick;
	void *arg;
	unsigned char *mine, *theirs;	/* padding */
	struct rs_digester *digester;
	unsigned char *chunk;		/* of a target */
	struct sc_map by_key;
	struct sc_arena arena;		/* of parts */
	struct part *first, **last;	/* in the order in which they were read */
	struct sc_buf report;
	unsigned lines, differ;
	bool *suspects, *blobs;		/* by tensor: it is not as it was; by blob of the set: it holds such a one */
	struct sc_err *err;
};

/* A rank's stored tensor as a source. */
struct own {
	struct rs_source source;
	struct rs_sources sources;
	struct sc_arena arena;
	struct rs_mapped mapped;
};

/** Tells whether a rank has its file as the blob of the replica before it, so that only that one's is read. */
bool rs_verify_is_shared(const struct rs_set *set, uint32_t rank, const char *file);
void rs_verify_begin(struct verify *v);
void rs_verify_end(struct verify *v);
/** Adds a line to the report; lines beyond its room are dropped. */
void rs_verify_line(struct verify *v, const char *fmt, ...) __attribute__((format(printf, 2, 3)));
int rs_verify_open_own(struct verify *v, uint32_t rank, const struct meta_stored *s, struct own *own);
void rs_verify_close_own(struct own *own);
typedef int rs_verify_fn(struct verify *v, uint32_t rank, const struct meta_stored *s);
/** Calls `each` for all that ranks store; for one blob of several replicas once. */
int rs_verify_each(struct verify *v, rs_verify_fn *each);

#endif
