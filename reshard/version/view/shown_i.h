/* SPDX-License-Identifier: Apache-2.0 */
/* What this room tells the rooms above of what a view shows. */
#ifndef RS_SHOWN_I_H
#define RS_SHOWN_I_H

#include "reshard/overlay/committed.h"
#include "reshard/version/partitions/parts_i.h"
#include "reshard/version/view/shown.h"
#include "reshard/version/state/state_i.h"

/* --- below.c: what a view shows, by number --- */

struct rs_below;
/** Gives the struct by which a view is asked by number, as the lower layer of a working tree or below .v; it lives as
 *  long as the view, which is not NULL. */
int rs_view_below(struct rs_view *view, struct rs_below **ret, struct sc_err *err);
struct rs_lower rs_below_lower(struct rs_below *b);
/** Tells the one path at which a number is always found, whichever of its names was asked for: 1, 0 (nowhere), or an
 *  error. */
int rs_below_link(struct rs_below *b, uint64_t ino, uint64_t *ret_path_id, struct sc_err *err);
/** Tells which file of the view a number is: 1, 0 (none), or an error.  The path lives as long as the service. */
int rs_below_file(struct rs_below *b, uint64_t ino, uint32_t *ret_rank, uint64_t *ret_path_id, const char **ret_path,
		  struct sc_err *err);
/** Looks up the bytes of a committed file by its row: kind, bytes, blob, place, rank, path_id.  1, 0 (the row is of no
 *  file of the view), or an error. */
int rs_below_bytes(struct rs_below *b, const struct meta_inode_row *row, struct rs_look *ret, struct sc_err *err);
/** Takes over the version's floor_ns, which has changed. */
void rs_below_note_floor(struct rs_view *view);
/** Tells whether a rank shows its own rows of the tree (docs/tree.md, B2), and how many ranks the tree had. */
bool rs_below_has_own_rows(struct rs_below *b, uint32_t rank, uint32_t *ret_rows_ranks);
/** Calls `each` with the paths of a rank's files of tensors. */
int rs_below_shards(struct rs_below *b, uint32_t rank, int (*each)(void *arg, const char *path), void *arg,
		    struct sc_err *err);
/** Walks over the names that a number has, each once. */
int rs_below_names(struct rs_below *b, uint64_t ino, meta_entry_fn *fn, void *arg, struct sc_err *err);
/** Walks over the names of a rank's files of tensors that were one file where they were written, and are several here
 *  (docs/tree.md, B4), with the numbers that they have here. */
int rs_below_each_split(struct rs_below *b, uint32_t rank, meta_entry_fn *fn, void *arg, struct sc_err *err);
/** Goes down a path from a folder of the tree, whether its rows count or not (B1); *ret 0: there is nothing.  Cheap if
 *  the view has no tree.  Fails, too, if the rows are those of a version that was dropped. */
int rs_below_tree_path(struct rs_below *b, uint64_t folder, const char *path, uint64_t *ret, struct sc_err *err);
/** Finds a number by its path; 0: there is none. */
int rs_below_find(struct rs_below *b, uint32_t rank, const char *path, uint64_t *ret, struct sc_err *err);

/* --- each.c: all that the tree tells of --- */

/** Takes a folder, plain file or link from a walk; `row` and `path` are valid during the call.  Non-zero ends the
 *  walk. */
typedef int rs_shown_fn(void *arg, uint32_t rank, const char *path, const struct meta_inode_row *row);
/** Walks over the folders, plain files and links that a rank of a view shows (RS_SHARED: the job's own folder), without
 *  files of tensors and datasets; a folder comes before what is in it. */
int rs_view_each(struct rs_view *view, uint32_t rank, rs_shown_fn *fn, void *arg, struct sc_err *err);
/** Walks over the plain files and links of the version's tree that no rank of the view shows; `rank` is one of the
 *  tree's topology. */
int rs_view_each_unplaced(struct rs_view *view, rs_shown_fn *fn, void *arg, struct sc_err *err);
/** Returns the topology under which the rows of the version's tree were made. */
const char *rs_view_rows_topology(struct rs_view *view);
/** Walks over the plain files and links that ranks of the view show, and that no rank of another presentation would
 *  show. */
int rs_view_each_lost(struct rs_view *view, const struct meta_layout *layout, const struct meta_topology *topo,
		      rs_shown_fn *fn, void *arg, struct sc_err *err);

/* --- view.c --- */
/* for walks over extended attributes: the value of one, by its name; the names of all */
struct rs_xattr_search {
	struct meta_bytes name;
	struct sc_buf *ret;
	bool found;
};
int rs_on_xattr_value(void *search, struct meta_bytes name, struct meta_bytes value);
int rs_on_xattr_name(void *buf, struct meta_bytes name, struct meta_bytes value);
/** Makes a look of a row, and says where the bytes of a committed file are: in `view`, under the row's number. */
int rs_look_row(struct rs_view *view, const struct meta_inode_row *row, struct rs_look *ret, struct sc_err *err);
/** Look up a path in a view, and list a folder; see rs_look() and rs_list(). */
int rs_view_look(struct rs_view *view, uint32_t rank, const char *path, struct rs_look *ret, struct sc_err *err);
int rs_view_list(struct rs_view *view, uint32_t rank, const char *path,
		 int (*each)(void *arg, const char *name, mode_t type), void *arg, struct sc_err *err);

/* --- owner.c --- */
/** Gives mode and owner of a folder that nobody made. */
void rs_owner_of_folder(struct rs_job *job, struct rs_owner *ret);
/** Finds mode and owner of a rank's file of tensors, at any topology, however it is stored. */
int rs_view_owner(const struct rs_view *view, uint32_t rank, const char *file, struct rs_owner *ret,
		  struct sc_err *err);
/** Joins mode and owner of one more file of which a file is made: it has the bits that all have.  Where owners differ,
 *  the file is the job owner's, without bits for group and others. */
void rs_owner_join(struct rs_job *job, struct rs_owner *all, const struct rs_owner *more);
/** Clears the bits of users who cannot search a folder above a file.  If users may belong to one class of the folder
 *  and another class of the file, both classes count. */
void rs_owner_limit_by(struct rs_owner *file, const struct meta_inode_row *folder);

/* --- stored.c --- */
/** Checks the view of a commit: the files that ranks wrote are stored as the view presents them (their headers were
 *  compared with it when the state was inferred), and all that was inferred is in a file.  Errors: SC_E_STATE. */
int rs_view_check_written(const struct rs_view *view, const struct meta_state *inferred, struct sc_err *err);
/** Tells whether all bytes of a set are here: 1, 0 (other nodes have some), or an error. */
int rs_set_is_here(struct rs_service *s, const struct rs_set *set, struct sc_err *err);
/** Looks up, once, all that a set's view lists, in its blobs, but for blobs that other nodes have.  Errors: SC_E_STATE
 *  names what is missing; errors of reading. */
int rs_set_look_up(struct rs_service *s, struct rs_set *set, struct sc_err *err);
int rs_version_look_up(struct rs_service *s, const struct rs_version *v, struct sc_err *err);

#endif
