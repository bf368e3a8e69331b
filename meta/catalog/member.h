/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Keeps what a store has to know of the cluster that it is in (reshard/cluster/node).
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
	uint64_t era;		/* of its keys: how often they were made anew */
	uint64_t revision;	/* of etcd, the highest that was noted in this era */
	uint64_t backup_era, backup;	/* era and revision of the backup; revision 0: there is none */
};
typedef int meta_member_fn(void *arg, const struct meta_member_row *row);
/** Calls `fn` if the store is in a cluster. */
int meta_member_get(struct meta_catalog *c, meta_member_fn *fn, void *arg, struct sc_err *err);
/** Puts the store into a cluster, once, as a node, whose inode numbers it gives from now on; on stable storage. */
int meta_member_join(struct meta_catalog *c, const char *cluster, const uint8_t id[META_ID_BYTES], uint32_t node,
		     struct sc_err *err);
/** Gives the id of this store, which no other store has but its copies.  Errors: SC_E_CORRUPT, too. */
int meta_store_identity(struct meta_catalog *c, uint8_t ret[META_ID_BYTES], struct sc_err *err);
int meta_member_set_lease(struct meta_catalog *c, uint64_t lease, struct sc_err *err);
/** Notes the highest revision of etcd that was seen.  A crash of the machine may lose the last notes. */
int meta_member_set_revision(struct meta_catalog *c, uint64_t revision, struct sc_err *err);

/** Notes that etcd's keys were made anew: no revision is known; the backup is of the era before.  On stable storage. */
int meta_member_set_era(struct meta_catalog *c, uint64_t era, struct sc_err *err);

/**
 * The backup of the cluster's keys (backup.c): the keys of etcd, all at one revision.  Each call below, but for the
 * walk, is made inside a transaction.  A new backup is read beside the old one: begin, put with `fresh`, and done,
 * which replaces the old one.
 */
int meta_backup_begin(struct meta_catalog *c, struct sc_err *err);
int meta_backup_put(struct meta_catalog *c, bool fresh, const char *key, const char *value, struct sc_err *err);
int meta_backup_drop(struct meta_catalog *c, const char *key, struct sc_err *err);
int meta_backup_done(struct meta_catalog *c, bool fresh, uint64_t revision, struct sc_err *err);
typedef int meta_backup_fn(void *arg, const char *key, const char *value);
/** Walks over the backup by key; `only`: over this key alone (NULL: over all). */
int meta_backup_each(struct meta_catalog *c, const char *only, meta_backup_fn *fn, void *arg, struct sc_err *err);

/** A job that all nodes have. */
struct meta_shared_job {
	uint64_t job, id;	/* here, and in the cluster; META_LOST and more: it is not there any more */
	uint64_t token, base;	/* of a commit that was prepared and has no outcome yet, and what it is over; 0: none */
};
typedef int meta_shared_job_fn(void *arg, const struct meta_shared_job *row);
int meta_shared_job_each(struct meta_catalog *c, meta_shared_job_fn *fn, void *arg, struct sc_err *err);
/** Finds the job with this id in the cluster: its id here, 0: there is none. */
int meta_shared_job_find(struct meta_catalog *c, uint64_t id, uint64_t *ret_job, struct sc_err *err);
/** Adds a job that all nodes have, unless it is there. */
int meta_shared_job_add(struct meta_catalog *c, uint64_t job, uint64_t id, struct sc_err *err);
/** Gives a job that this store makes its id in the cluster, or another one, before any node knows of it. */
int meta_shared_job_number(struct meta_catalog *c, uint64_t job, uint64_t id, struct sc_err *err);
/** Notes that a job is not in the cluster any more, inside a transaction. */
#define META_LOST (UINT64_C(1) << 63)
int meta_shared_job_lose(struct meta_catalog *c, uint64_t job, struct sc_err *err);
/** Notes a commit that was prepared; token 0: its outcome is known.  Inside a transaction, which the caller makes
 *  durable before it answers. */
int meta_shared_job_prepare(struct meta_catalog *c, uint64_t job, uint64_t token, uint64_t base, struct sc_err *err);

#endif
