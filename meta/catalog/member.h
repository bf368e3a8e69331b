/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What a store is to the cluster that it is in (reshard/member).
 *
 * Thread: any.  Errors: as in catalog.h.
 */
#ifndef META_MEMBER_H
#define META_MEMBER_H

#include "meta/catalog/catalog.h"

#define META_ID_BYTES 16

struct meta_member_row {
	const char *cluster;
	uint32_t node;		/* its number there, for ever */
	uint64_t lease;		/* of the last life, 0: none */
	uint8_t id[META_ID_BYTES];	/* of the cluster */
};
typedef int meta_member_fn(void *arg, const struct meta_member_row *row);
/** Calls `fn` if the store is in a cluster. */
int meta_member_get(struct meta_catalog *c, meta_member_fn *fn, void *arg, struct sc_err *err);
/** Joins one, once, and gives that node's inode numbers from now on; on stable storage. */
int meta_member_join(struct meta_catalog *c, const char *cluster, const uint8_t id[META_ID_BYTES], uint32_t node,
		     struct sc_err *err);
/** Tells what this store is: no other one is the same, but for its copies.  Errors: SC_E_CORRUPT, too. */
int meta_store_identity(struct meta_catalog *c, uint8_t ret[META_ID_BYTES], struct sc_err *err);
int meta_member_set_lease(struct meta_catalog *c, uint64_t lease, struct sc_err *err);

/** A job that all nodes have. */
struct meta_shared_job {
	uint64_t job, id;	/* here, and in the cluster; META_LOST and more: it is not there any more */
	uint64_t token, base;	/* of a commit that was prepared and has no outcome yet, and what it is over; 0: none */
};
typedef int meta_shared_job_fn(void *arg, const struct meta_shared_job *row);
int meta_shared_job_each(struct meta_catalog *c, meta_shared_job_fn *fn, void *arg, struct sc_err *err);
/** Adds one, unless it is there. */
int meta_shared_job_add(struct meta_catalog *c, uint64_t job, uint64_t id, struct sc_err *err);
/** Notes that a job is not in the cluster any more, inside a transaction. */
#define META_LOST (UINT64_C(1) << 63)
int meta_shared_job_lose(struct meta_catalog *c, uint64_t job, struct sc_err *err);
/** Notes a commit that was prepared; token 0: its outcome is known.  Inside a transaction, which the caller makes
 *  durable before it answers. */
int meta_shared_job_prepare(struct meta_catalog *c, uint64_t job, uint64_t token, uint64_t base, struct sc_err *err);

#endif
