/* SPDX-License-Identifier: Apache-2.0 */
/* What the sources of trees share.  Private to this folder. */
#ifndef META_TREE_I_H
#define META_TREE_I_H

#include "meta/catalog/db_i.h"
#include "meta/catalog/trees.h"

/* Condition on an upper inode: a FIFO, socket or device, which is never committed (no file, folder or link: S_IFMT). */
#define IS_SPECIAL "mode & 61440 NOT IN (32768, 16384, 40960)"
/* Condition on an entry: it names one of job ?1.  There are few or none of these, and no index for them. */
#define SPECIAL_ENTRY                                                                                                  \
	"EXISTS (SELECT 1 FROM inode WHERE job = ?1 AND " IS_SPECIAL ") AND ino IN (SELECT ino FROM inode WHERE job "  \
	"= ?1 AND " IS_SPECIAL ")"

/** Loads the chain of a tree, unless it is known.  Under the lock. */
int tree_chain(struct meta_catalog *c, struct meta_tree *tree, struct sc_err *err);

/** Walks over the files of versions' trees that have a blob, newest versions first. */
int tree_blob_uses(struct meta_catalog *c, uint64_t blob, meta_blob_use_fn *fn, void *arg, struct sc_err *err);

#endif
