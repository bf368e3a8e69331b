/* SPDX-License-Identifier: Apache-2.0 */
/* The lower layer that is a version's tree in the catalog, with the folders of the job and of its ranks. */
#ifndef RS_COMMITTED_H
#define RS_COMMITTED_H

#include "meta/catalog/trees.h"
#include "reshard/overlay/overlay.h"

struct rs_committed {
	struct meta_catalog *catalog;
	struct meta_tree tree;		/* id 0: there is no version */
	uint64_t job, root;
	uint32_t ranks;
	struct meta_inode_row folder;	/* mode, owner and times of the job's and ranks' folders, until somebody sets
					 * them */
	int64_t floor_ns;		/* when the last rollback put this version back: no object's ctime is older */
	void (*own_rank)(void *arg, struct meta_inode_row *row); /* gives a rank's folder another mode and owner than
					 * `folder` has; NULL: nothing does */
	void *arg;			/* of own_rank */
	bool lets_ranks_go;		/* see struct rs_lower */
};

/** Makes the lower layer; `c` is borrowed, and used under the overlay's lock. */
struct rs_lower rs_committed_lower(struct rs_committed *c);

#endif
