/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Keeps what catalogs of several nodes have in common, and what a catalog knows of the others.
 *
 *     numbers of inodes   are the same on all nodes: node N gives those from N << 42 on.  A job has the same folders
 *                         everywhere
 *     blobs               have a number here; another node's is there a blob of another number.  Its row here is as any
 *                         other, but there is no file, or a copy
 *     objects             are layouts, sets, trees, payloads and datasets, named by the SHA-256 of what they say
 *                         (reshard/exchange/objects).  Ids are each catalog's own
 *
 * Thread: any.  Errors: as in catalog.h.
 */
#ifndef META_NODES_H
#define META_NODES_H

#include "meta/catalog/catalog.h"

#define META_NODE_BITS 16
#define META_NODE_NUMBERS 42	/* the bit of an inode's number where that of its node begins */

/** Gives inode numbers of a node (1 to 2^16 - 1) from now on.  Errors: SC_E_STATE (other numbers were given). */
int meta_numbers_of_node(struct meta_catalog *c, uint32_t node, struct sc_err *err);
/** The next numbers of a blob and of an inode. */
struct meta_numbers {
	uint64_t blob, inode;
};
int meta_numbers_next(struct meta_catalog *c, struct meta_numbers *ret, struct sc_err *err);
/** Gives numbers from `first` on, none before it, and only smaller ones than `end` (SC_E_BUSY), until it is called
 *  again. */
int meta_numbers_from(struct meta_catalog *c, const struct meta_numbers *first, const struct meta_numbers *end,
		      struct sc_err *err);
/** Tells whether more than half of these numbers were given. */
bool meta_numbers_are_few(struct meta_catalog *c);
/**
 * Notes a block of numbers that some node has taken for a job: 1, 0 (it is noted), or an error.
 * Errors: SC_E_CORRUPT (this catalog has these numbers otherwise, or would give them itself).
 */
int meta_numbers_put(struct meta_catalog *c, uint64_t first, uint64_t nr, uint64_t job, struct sc_err *err);

/**
 * Finds the number here of a blob of another node, or adds its row.  Inside a transaction; a row that nothing uses is
 * garbage.  Errors: SC_E_CORRUPT (it has another size here), SC_E_LIMIT.
 */
int meta_blob_put_away(struct meta_catalog *c, uint32_t node, uint64_t number, uint64_t bytes, uint64_t *ret_blob,
		       struct sc_err *err);
/** Notes that a blob of this number, which has a row that was not sealed, has its bytes on another node.  Inside a
 *  transaction. */
int meta_blob_is_away(struct meta_catalog *c, uint64_t blob, uint32_t node, uint64_t number, uint64_t bytes,
		      struct sc_err *err);
/** Tells which blob of which node has the bytes: 1, 0 (they are here), or an error. */
int meta_blob_away(struct meta_catalog *c, uint64_t blob, uint32_t *ret_node, uint64_t *ret_number,
		   struct sc_err *err);
/** Tells which blob of which node it is, wherever its bytes are: 1, 0 (this node's own), or an error. */
int meta_blob_origin(struct meta_catalog *c, uint64_t blob, uint32_t *ret_node, uint64_t *ret_number,
		     struct sc_err *err);
/** Finds a blob of another node whose bytes are here, too: 1, 0 (there is none), or an error. */
int meta_blob_here(struct meta_catalog *c, uint32_t node, uint64_t number, uint64_t *ret_blob, struct sc_err *err);
struct meta_away_row {
	uint64_t blob, bytes, number;
	uint32_t node;
	bool here;
};
typedef int meta_away_fn(void *arg, const struct meta_away_row *row);
/** Walks over other nodes' blobs that versions of a job have, or trees below them had (meta_blob_uses() tells), the
 *  newest first. */
int meta_away_each(struct meta_catalog *c, uint64_t job, meta_away_fn *fn, void *arg, struct sc_err *err);
/** Walks over the nodes to which blobs of versions belong. */
int meta_away_nodes(struct meta_catalog *c, meta_id_fn *fn, void *arg, struct sc_err *err);
/** Notes that the bytes of another node's blob are here, too: its file is on stable storage. */
int meta_blob_came(struct meta_catalog *c, uint64_t blob, struct sc_err *err);

/** A file of a version that this node made for itself; `rank`: the first one whose file has these bytes. */
struct meta_home_row {
	uint64_t version, rank, path, blob, bytes;
};
typedef int meta_home_fn(void *arg, const struct meta_home_row *row);
/** Adds a file of a version that this node made for itself, and seals its blob, which is on stable storage. */
int meta_home_put(struct meta_catalog *c, const struct meta_home_row *row, struct sc_err *err);
int meta_home_each(struct meta_catalog *c, uint64_t version, meta_home_fn *fn, void *arg, struct sc_err *err);

/**
 * Makes a set the storage of a version, in place of the set of the same file.  It gets the verdict and digests of that
 * set, which is held from then on.  1, 0 (the version has this set already), or an error.  Inside a transaction.
 * Errors: SC_E_CORRUPT (there is no such set).
 */
int meta_version_settle(struct meta_catalog *c, uint64_t version, uint64_t set, struct sc_err *err);
/** Lets a held set go: unless a version has it, it is garbage. */
int meta_set_let_go(struct meta_catalog *c, uint64_t set, struct sc_err *err);
/** Tells whether a version that is not retired has a set: 1, 0, or an error. */
int meta_set_is_shown(struct meta_catalog *c, uint64_t set, struct sc_err *err);
typedef int meta_held_fn(void *arg, const uint8_t name[32]);
/** Walks over the names of the sets of a job that are held. */
int meta_held_each(struct meta_catalog *c, uint64_t job, meta_held_fn *fn, void *arg, struct sc_err *err);
/** Hides a version that no node shows any more, and drops its views: nothing of it can be opened. */
int meta_version_retire(struct meta_catalog *c, uint64_t version, struct sc_err *err);
/** Removes a version's rows; its sets are held.  Inside a transaction. */
int meta_version_let_go(struct meta_catalog *c, uint64_t version, struct sc_err *err);
struct meta_same_row {
	uint64_t home, away, bytes;
};
typedef int meta_same_fn(void *arg, const struct meta_same_row *row);
/** Walks over files that this node made of a version, for which the version's storage has a file of another node that
 *  is not here. */
int meta_home_same(struct meta_catalog *c, uint64_t version, meta_same_fn *fn, void *arg, struct sc_err *err);
/** Drops the rows of files that this node made of a version: its storage has them now, or nobody wants them. */
int meta_home_drop(struct meta_catalog *c, uint64_t version, struct sc_err *err);

enum meta_object_kind {
	META_OBJECT_LAYOUT = 1,
	META_OBJECT_SET,
	META_OBJECT_TREE,
	META_OBJECT_PAYLOAD,
	META_OBJECT_DATASET,
};

struct meta_object {
	enum meta_object_kind kind;
	uint64_t id;
	uint8_t name[32];
	uint32_t depth;		/* of a tree: objects that it is made of, itself included; else 1 */
};

/** Gives a row its name as an object, for ever.  Inside the transaction that adds the row, or a later one. */
int meta_object_put(struct meta_catalog *c, const struct meta_object *object, struct sc_err *err);
/** Find an object by kind and id, and by kind and name (of equal ones the oldest): 1, 0 (none), or an error. */
int meta_object_of(struct meta_catalog *c, enum meta_object_kind kind, uint64_t id, struct meta_object *ret,
		   struct sc_err *err);
int meta_object_named(struct meta_catalog *c, enum meta_object_kind kind, const uint8_t name[32],
		      struct meta_object *ret, struct sc_err *err);

#endif
