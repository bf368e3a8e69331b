/* SPDX-License-Identifier: Apache-2.0 */
/* What the files of a rebuild share: rebuild.c makes jobs and their files of tensors, rebuild_blobs.c reads the blobs,
 * rebuild_trees.c the trees. */
#ifndef RS_REBUILD_I_H
#define RS_REBUILD_I_H

#include "reshard/repair/repair_i.h"
#include "reshard/upkeep/recovery/record.h"
#include "reshard/upkeep/recovery/tree_join.h"
#include "reshard/upkeep/background/upkeep_i.h"

/** Tells whether an error says nothing of the job with which it came: then the rebuild ends, and nothing was moved. */
bool rs_rebuild_ends(int rc, const struct sc_err *err);

struct rs_rebuild_file {
	uint64_t blob;
	struct rs_job *user;	/* that has it now, NULL: none */
	enum { RS_UNREAD, RS_INTACT, RS_DAMAGED } state;
	uint64_t bytes;		/* of one that is intact */
	uint8_t hash[16];	/* likewise */
	bool has_hash;		/* it was known before: it has a record */
	bool counted;		/* as one that a job is made of */
};

struct rs_rebuild {
	struct rs_service *s;
	struct sc_buf *report;
	struct sc_err *err;
	struct rs_repair_progress progress;
	struct sc_arena arena;
	uint64_t bad, last_blob, last_set;	/* numbers that were used */
	bool silent;		/* there are files that say nothing, not even their hash */
	struct {
		size_t nr, room;
		struct rs_record *at;
	} all, lost;		/* of whole files; of damaged ones */
	struct {
		size_t nr, room;
		struct rs_rebuild_file *at;
	} files;		/* all that there are, by number once they are sorted */
	struct {
		size_t nr, room;
		struct {
			uint64_t blob, of;
		} *at;
	} twins;		/* of a blob that several ranks have: a file of a working tree is one rank's */
	struct {
		size_t nr, room;
		struct rs_rebuild_tree {
			uint64_t id, version;
			const char *job;	/* NULL: its record is damaged */
			uint64_t uid, gid, job_mode;
		} *at;
	} trees;		/* the newest version's first, damaged ones last, once they are read */
};

/* rebuild_blobs.c */
/** Hashes a blob, as the next part of the progress. */
int rs_rebuild_hash(struct rs_rebuild *r, uint64_t blob, uint8_t hash[16], uint64_t *ret_bytes, struct sc_err *why);
/** Reads the records of all blobs, of whole and of damaged ones; names the damaged ones. */
int rs_rebuild_read_blobs(struct rs_rebuild *r);

/* rebuild_trees.c */
/** Finds the file of a blob among those that are sorted; NULL: there is none. */
struct rs_rebuild_file *rs_rebuild_file(const struct rs_rebuild *r, uint64_t blob);
void rs_rebuild_sort_files(struct rs_rebuild *r);
/** Looks at all recovery records of trees. */
int rs_rebuild_read_trees(struct rs_rebuild *r);
/** Reads the newest whole tree of a job from *at (0 at first) on, and moves *at behind it: 1, 0 (there is none) or an
 *  error.  *ret_newest: no newer tree of the job was passed over. */
int rs_rebuild_find_tree(struct rs_rebuild *r, const char *job, size_t *at, struct rs_joined *ret, bool *ret_newest);
/** Gives a job what its tree tells: in its head, or in a version that it gets. */
int rs_rebuild_tree(struct rs_rebuild *r, struct rs_job *job, struct rs_joined *tree, const char *layout_text);
/** Writes the records of blobs and of the new trees, and moves the old trees to lost+found. */
int rs_rebuild_keep(struct rs_rebuild *r);

#endif
