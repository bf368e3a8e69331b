/* SPDX-License-Identifier: Apache-2.0 */
/*
 * One commit, as the files of two rooms share it.  This room has the items, which are what ranks wrote: it parses their
 * files (parse.c), and refuses what is suspicious in them (suspect.c, pairs.c, facts.c; folders.c and chunks.c for
 * folders of the job).  The room above, reshard/command/commit, has the protocol (commit.c), and makes the version
 * (read.c, classes.c, keep.c, sets.c, rows.c, names.c).
 */
#ifndef RS_ITEMS_I_H
#define RS_ITEMS_I_H

#include "reshard/command/commands/command_i.h"
#include "reshard/exchange/merge/part.h"

struct item {			/* a change of the working tree, or what completes it (classes.c) */
	enum { ITEM_WROTE, ITEM_LIKE, ITEM_KEPT } how;
	bool gone;		/* the file was removed */
	bool lost;		/* it had tensors in the head, and has none: it is gone, or plain now */
	bool moved;		/* of ITEM_WROTE: the bytes are the head's, under another name, mode or owner */
	bool opened;		/* of ITEM_WROTE: opened to be written, and not written: the bytes are the head's */
	bool was_plain, stays;	/* of a moved one: it had no tensors; that is so still */
	uint32_t nlink;		/* of a moved one: its names, those that are no items among them */
	bool made, pinned;	/* of the head's: its blob is sealed and flushed with this commit; it is held */
	bool copied;		/* of ITEM_WROTE: an open log, of which `blob` is a copy, as for its other names */
	uint32_t rank, like;	/* like: whose file it is, of ITEM_LIKE */
	const char *path;	/* lives as long as the service */
	uint64_t path_id;
	uint64_t blob;
	uint64_t ino;		/* of ITEM_WROTE; the next two are as its file has them */
	struct rs_owner own;
	int64_t atime_ns, mtime_ns, ctime_ns;	/* ctime: of the bytes; 0: no later than the row's */
	const struct rs_format_ops *format;
	bool away;		/* its bytes are on another node: */
	struct rs_place place;
	struct rs_bytes *remote;
	struct rs_blob *parsed;	/* of a file of tensors; of one like another: borrowed, as the next two */
	const struct rs_found *found; /* its tensors: those of `parsed`, or, without objects, of `own_found` */
	struct rs_found *own_found;
	const char *logical;	/* logical file, once it is inferred; NULL: a plain file */
	size_t row;		/* of c->written: its first tensor */
	uint32_t nr_rows;
	uint64_t bytes;
	uint8_t hash[16];	/* of a plain file */
	struct rs_owner owner;	/* with which it is committed */
	int64_t step;		/* of what is moved, opened or kept: as the head has it */
	uint64_t stored;	/* of a file without tensors: the blob that the tree has for it */
};

struct commit {
	struct rs_advance a;
	struct rs_service *s;
	struct rs_job *job, *tree;	/* tree: whose working tree it is: with what other nodes wrote, a second one */
	struct sc_err *err;
	int64_t step;
	const char *note;
	bool has_samples;		/* `samples` was given */
	bool takes_kept;		/* kept=yes: files that were not written may stay beside those that were */
	uint64_t samples;
	const struct rs_view *head;	/* of which this is the next; NULL: none */
	struct {
		uint64_t nr;
		int64_t step;
	} before;			/* the head when the command was given; nr 0: none */
	struct sc_map head_sets;	/* the head's sets by file, while sets are made */
	uint64_t compared;		/* a bit for each of the head's first 64 sets: its files have their hashes */
	uint64_t layout_id;
	const struct meta_layout *layout;
	struct meta_topology topo;
	struct sc_arena arena;
	struct {
		struct item *at;
		size_t nr, room;
	} items;
	struct {
		struct meta_written *at;
		size_t nr, room;
	} written;
	struct {
		struct rs_seal *at;
		size_t nr, room;
	} seals;
	struct meta_changes rows;	/* of the new version's tree: rs_turn_plan() */
	struct rs_leaves leaves;	/* likewise */
	struct meta_state state;	/* all logical tensors of the new version */
	struct rs_version *version;
	int64_t phase_ns;		/* when its phase began: phase_ends() */
};

/** Sorts the items by rank and path. */
void rs_commit_sort(struct commit *c);
/** Finds the item of a rank and a path: what the rank wrote or removed there, or the replica's or the head's file that
 *  the commit takes instead.  NULL: there is none.  The items are sorted. */
const struct item *rs_commit_item(const struct commit *c, uint32_t rank, const char *path);
/** Finds the item of a rank and a path among the first `nr` items, which are sorted. */
const struct item *rs_commit_find(const struct commit *c, size_t nr, uint32_t rank, const char *path);
/** The part of an entry of a new set that a rank stores. */
struct part {
	uint32_t rank;
	const char *file, *name;
	const struct item *item;	/* NULL: its file is not of this commit, or was not parsed */
	const struct rs_found_tensor *at;	/* NULL: likewise */
};
/** Gives the coordinates that an entry fixes, and 0 for the other axes. */
void rs_commit_coords(const struct meta_view *view, const struct meta_entry *e, uint32_t ret[SC_AXES_MAX]);
/** Finds the part of an entry that the rank at these coordinates has; names are in `arena`.  The items are sorted. */
int rs_commit_part(struct commit *c, const struct meta_view *view, const struct meta_entry *e,
		   const uint32_t coords[SC_AXES_MAX], struct sc_arena *arena, struct part *ret);
/** Tells whether a rank has any tensor: in a file that it wrote, or that stands for one. */
bool rs_commit_has_rows(const struct commit *c, uint32_t rank);
/** Adds items for ranks that wrote and removed nothing, of what replicas of theirs did.  Errors: SC_E_STATE (a rank
 *  removed what a replica of it wrote), SC_E_NO_MEMORY. */
int rs_commit_complete(struct commit *c);
/** Adds items for the head's other files of the logical files that were written.  1: there are some, 0: there are
 *  none. */
int rs_commit_add_kept(struct commit *c);
/** Adds items for the head's files of rows of padding that no rank is shown, of the logical files that were written. */
int rs_commit_add_hidden(struct commit *c);
/** Replaces the error by one that names the ranks of which one must write a file, if none of them has ever written it.
 *  Returns the code of the error. */
int rs_commit_refuse_missing(struct commit *c, int rc);
/** Finds or makes the blob of a kept file.  Errors: of images, of the engine, of the catalog. */
int rs_commit_keep(struct commit *c, struct item *it);
/** Finds or makes the blob of a file of the head that was moved. */
int rs_commit_find_moved(struct commit *c, struct item *it);
/** Takes owner, mode, times and size of a file from its descriptor. */
int rs_commit_stat(struct commit *c, struct item *it, int fd);
/** Returns the step of a file of the head, or META_STEP_UNKNOWN. */
int64_t rs_commit_step_below(const struct commit *c, uint32_t rank, const char *path);
/** Finds the format of an item's file; opaque: it has no tensors, whatever is in it.  Errors: of reading. */
int rs_commit_find_format(struct commit *c, struct item *it, bool *ret_opaque);
/** Opens the bytes of an item that are on another node.  Errors: of the source. */
int rs_commit_reach(struct commit *c, struct item *it);
/** Reads bytes of the file of an item that was parsed, on whichever node they are. */
int rs_commit_bytes(const struct item *it, uint64_t at, uint64_t bytes, void *to, struct sc_err *err);
/** Parses an item's blob: it->parsed, it->found.  Errors: as rs_blob_get(). */
int rs_commit_parse(struct commit *c, struct item *it);
/** Copies the logs that were open when the gate was closed: their items get the copies.  Errors: SC_E_BUSY (one shrinks
 *  all the time), of the catalog and the system. */
int rs_commit_logs(struct commit *c);
/** Does step 2: reads the headers of written files, and infers the logical tensors of the new version (c->state). */
int rs_commit_read(struct commit *c);
/** Makes the sets of the new version (c->version), of files that were written and of those that are taken over. */
int rs_commit_sets(struct commit *c);
/** Refuses a checkpoint folder of the job that is not whole.  Errors: SC_E_FORMAT, SC_E_STATE (no .metadata yet),
 *  SC_E_NO_MEMORY, of reading. */
int rs_commit_folders(struct commit *c);
/** Finds a file by its number as the new version will have it: 1, 0 (it is no plain or tensors' file) or an error.
 *  ret->path is left alone. */
int rs_commit_file(struct commit *c, uint64_t ino, struct rs_folder_file *ret, struct sc_err *err);
/** Refuses a folder whose chunks say that its writers, ranks of this topology, had other parts of a tensor than the
 *  layout gives them.  Errors: SC_E_STATE, SC_E_NO_MEMORY. */
int rs_commit_chunks(struct commit *c, const struct rs_folder *folder);
/** Refuses tensors of a new set that the layout cuts though ranks wrote them whole.  Reads little unless there are
 *  some.  Errors: SC_E_STATE, SC_E_NO_MEMORY, errors of reading. */
int rs_commit_suspect(struct commit *c, const struct rs_set *set);
/** Refuses a weight whose cut dimension is not as long as its bias, which the layout cuts by the same axis.  Errors:
 *  SC_E_STATE, SC_E_NO_MEMORY. */
int rs_commit_pairs(struct commit *c, const struct rs_set *set);
/** Refuses tensors whose shape is not what the config.json beside them says.  Errors: SC_E_STATE, of reading,
 *  SC_E_NO_MEMORY. */
int rs_commit_facts(struct commit *c);
/** Makes the tree's rows of files (c->rows); plain files that all ranks wrote equal get one blob.  Then finds the names
 *  of one file that are several from then on (c->leaves). */
int rs_commit_rows(struct commit *c);

struct named {			/* an inode, of which items are names, or which names leave */
	uint64_t ino;
	size_t row;		/* of c->rows */
	uint32_t names;		/* items */
	const struct item *first;	/* NULL: no item is */
};
/** Finds which names of one file are to be several (names.c); `by_ino`: struct named, to which it may add. */
int rs_commit_names(struct commit *c, struct sc_map *by_ino);

#endif
