/* SPDX-License-Identifier: Apache-2.0 */
/* Paths, for the rooms above: rows of the working tree, open files, and owners. */
#ifndef RS_TREE_I_H
#define RS_TREE_I_H

#include "reshard/state/state_i.h"
#include "reshard/tree/tree.h"

struct rs_work {
	uint64_t blob;				/* also the row's id */
	enum meta_work_kind kind;
	const char *path;
	uint64_t path_id;
	mode_t mode;
	uid_t uid;
	gid_t gid;
	int64_t mtime_ns;
	size_t slot;				/* in its rank's rows */
	bool stays;				/* rs_work_settle() */
};

struct rs_work_rank {
	uint32_t rank;
	size_t nr, room;
	struct rs_work **at;
	struct sc_map by_path;
};

struct rs_work_rows {			/* copies */
	size_t nr, room;
	struct rs_work *at;
};

/* opened.c */
void rs_opened_init(struct rs_service *s);
void rs_opened_done(struct rs_service *s);
enum rs_writers { RS_QUIET, RS_OPEN, RS_RESERVED };
/** Tells whether a handle may write to the blob, or a thread is about to open it (W1 and W2 of opened.c). */
enum rs_writers rs_work_writers(struct rs_service *s, uint64_t blob);
/** Waits until a handle was closed, at most `ns`. */
void rs_work_wait(struct rs_service *s, int64_t ns);
/** Removes the file of a blob that has no name any more; if it is open, when it is closed. */
int rs_remove_bytes(struct rs_service *s, uint64_t blob, struct sc_err *err);

/* gate.c */
/** Closes the gate: nobody is inside until rs_tree_open().  `quiet`: and no program can write to a written file; waits
 *  a moment for files that were just closed.  Errors: SC_E_BUSY names one that can be written; of the system. */
int rs_tree_close(struct rs_job *job, bool quiet, struct sc_err *err);
void rs_tree_open(struct rs_job *job);

/* rows.c */
/** Limits the mode with which a file of the working tree is committed by those of the folders above it; under
 *  job.tree. */
void rs_owner_limit(struct rs_job *job, uint32_t rank, const char *path, struct rs_owner *owner);
/** Gives mode and owner of a folder that was not made explicitly; under job.state. */
void rs_owner_of_folder(struct rs_job *job, bool is_rank, struct rs_owner *ret);
/** Sets mode and owner of a new file of the working tree. */
int rs_work_own(int fd, const struct rs_owner *owner, const char *path, struct sc_err *err);
/* under job.state, but rs_work_is_file(), rs_work_rows(), rs_work_clear() and rs_work_show() */
/** Makes room for so many more rows of a rank: until rs_work_unreserve(), that many rs_work_put() cannot fail. */
int rs_work_reserve(struct rs_job *job, uint32_t rank, size_t more);
void rs_work_unreserve(struct rs_job *job, size_t nr);
struct rs_work_rank *rs_work_rank(struct rs_job *job, uint32_t rank);
struct rs_work *rs_work_find(struct rs_job *job, uint32_t rank, const char *path);
/** Adds a row, or replaces that of its path. */
void rs_work_put(struct rs_job *job, uint32_t rank, struct rs_work w);
void rs_work_drop(struct rs_job *job, uint32_t rank, const char *path);
bool rs_work_is_file(struct rs_job *job, uint64_t blob);
/** Copies a rank's rows, so that no lock is held over callbacks. */
int rs_work_rows(struct rs_job *job, uint32_t rank, struct rs_work_rows *ret, struct sc_err *err);
/** Clears all rows, or all but those that stay (rs_work_settle). */
void rs_work_clear(struct rs_job *job, bool all);
/** Clears what rs_work_settle() did not keep and makes `head` (taken) the job's: no lookup sees only one of the two. */
void rs_work_show(struct rs_job *job, struct rs_view *head);

/* tree.c */
/** Tells whether there is a committed file below `path` that was not removed: 1, 0 or an error; under job.state. */
int rs_tree_committed_below(struct rs_job *job, const struct rs_view *head, uint32_t rank,
			    const char *path, struct sc_err *err);
/** Looks a path up in a view, without any working tree. */
int rs_tree_look(struct rs_service *s, struct rs_view *view, uint32_t rank, const char *path,
		 struct rs_look *ret, struct sc_err *err);
int rs_work_load(struct rs_job *job, struct sc_err *err);
/**
 * Before the working tree is cleared for a new head (NULL: there is none): folders that this head has, too, keep their
 * modes and owners, and stay.  The next one and rs_work_clear() clear the rest, in the catalog and in memory.
 */
int rs_work_settle(struct rs_job *job, const struct rs_view *head, struct sc_err *err);
int rs_work_clear_rows(struct rs_job *job, struct sc_err *err);

/* owner.c */
/** Finds mode and owner of a rank's file of tensors, at any topology, however it is stored. */
int rs_view_owner(const struct rs_view *view, uint32_t rank, const char *file, struct rs_owner *ret,
		  struct sc_err *err);
/** Finds mode and owner of a rank's plain file, which rs_set_plain() has found. */
void rs_plain_owner(struct rs_job *job, const struct rs_set *set, const struct meta_layout *layout,
		    const struct meta_topology *topo, uint32_t rank, struct rs_owner *ret);

/* stored.c */
/** Of a commit: the files that ranks wrote are stored as its view presents them (their headers were compared with it
 *  when
 *  the state was inferred), and all that was inferred is in a file.  Errors: SC_E_STATE. */
int rs_view_check_written(const struct rs_view *view, const struct meta_state *inferred, struct sc_err *err);
/** Looks up, once, all that a set's view lists in its blobs: SC_E_STATE with what is missing, or an error of reading.
 *  */
int rs_set_look_up(struct rs_service *s, struct rs_set *set, struct sc_err *err);
int rs_version_look_up(struct rs_service *s, const struct rs_version *v, struct sc_err *err);

/* files.c */
static inline bool rs_look_is_committed(const struct rs_look *look)
{
	return look->kind == RS_VIEW || look->kind == RS_BLOB;
}

/** Makes an empty file that has no row yet, open O_RDWR.  Who gives it no row removes it. */
int rs_file_make(struct rs_service *s, const char *path, const struct rs_owner *owner, uint64_t *ret_blob,
		 int *ret_fd, struct sc_err *err);
/** Makes a copy (`truncate`: an empty one) of a committed file, without a row.  *ret_blob is 0 if the path has no
 *  committed file any more. */
int rs_file_copy(struct rs_service *s, struct rs_job *job, uint32_t rank, const char *path, bool truncate,
		 uint64_t *ret_blob, struct sc_err *err);

/* work.c */
/* for fsck --rebuild */
bool rs_work_has(struct rs_job *job, uint32_t rank, const char *path);
/** Makes a file of the working tree of a blob's file that has no row. */
int rs_work_adopt(struct rs_service *s, struct rs_job *job, uint32_t rank, const char *path,
		  const struct rs_owner *owner, uint64_t blob, struct sc_err *err);

/* parts.c */
/** Calls `each` with every path of a rank's partitions. */
int rs_data_names(const struct rs_view *view, int (*each)(void *arg, const char *path), void *arg);
void rs_parts_done(struct rs_parts *parts);
/** Drops partitions that are not open, and closes sources of datasets that were removed. */
void rs_parts_purge(struct rs_parts *parts);

#endif
