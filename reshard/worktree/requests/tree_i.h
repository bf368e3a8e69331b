/* SPDX-License-Identifier: Apache-2.0 */
/* What this room tells the rooms above of working trees: the gate, open files, the log. */
#ifndef RS_TREE_I_H
#define RS_TREE_I_H

#include "reshard/version/view/shown_i.h"
#include "reshard/worktree/requests/tree.h"

/* --- requests.c --- */
/** Makes what this room remembers of all jobs, s->requests.  Errors: no memory. */
int rs_requests_new(struct rs_service *s, struct sc_err *err);
/** Frees s->requests, and removes the files of blobs that had no name and were open. */
void rs_requests_free(struct rs_service *s);

/* --- opened.c --- */
enum rs_writers { RS_QUIET, RS_OPEN, RS_RESERVED };
/** Tells whether a handle may write to the blob, or a thread is about to open it (W1 and W2 of opened.c). */
enum rs_writers rs_work_writers(struct rs_service *s, uint64_t blob);
/** Waits until a handle was closed, at most `ns`. */
void rs_work_wait(struct rs_service *s, int64_t ns);
/** Removes the file of a blob that no row has any more; an open file is removed when it is closed. */
int rs_remove_bytes(struct rs_service *s, uint64_t blob, struct sc_err *err);

/* --- pins.c --- */
/** Makes a blob that is not collected as garbage until rs_unpin(), which must be called; *ret_fd is its empty file. */
int rs_pin_new(struct rs_service *s, uint64_t *ret_blob, int *ret_fd, struct sc_err *err);
/** Unpins a blob.  Accepts 0. */
void rs_unpin(struct rs_service *s, uint64_t blob);
/** Tells whether a blob is pinned, or is a file of a head that an open made real. */
bool rs_made_holds(struct rs_service *s, uint64_t blob);

/* --- hidden.c --- */
/** Takes a version from its job, in the caller's transaction; in a daemon that is held, its rows stay. */
int rs_version_drop(struct rs_service *s, uint64_t version, struct sc_err *err);
/** Removes the rows of dropped versions of which no file is open, in the caller's transaction: once RS_LEAVING_NS have
 *  passed since they were dropped, or now (`all`).  *ret_more: some still wait. */
int rs_hidden_remove(struct rs_service *s, bool all, bool *ret_more, struct sc_err *err);

/* --- gate.c --- */
/** Closes the gate: nobody is inside until rs_tree_open().  `quiet`: waits a moment until no program can write to a
 *  written file, but for logs, whose blobs are in job->logs then.  Errors: SC_E_BUSY names a file that can be written;
 *  errors of the system. */
int rs_tree_close(struct rs_job *job, bool quiet, struct sc_err *err);
void rs_tree_open(struct rs_job *job);
/** Tells whether a file of the working tree was an open log when a commit closed the gate. */
bool rs_tree_is_open_log(const struct rs_job *job, uint64_t blob);
/** Gives the layout whose `log` lines count; NULL: the layout has none, or this is a node of a cluster, where no line
 *  counts.  The gate is closed. */
int rs_tree_log_layout(struct rs_job *job, const struct meta_layout **ret, struct sc_err *err);
/** Tells whether a program can write to a file of the working tree: 1, 0 or an error.  The gate is closed. */
int rs_tree_is_written(struct rs_job *job, uint64_t blob, struct sc_err *err);

/* --- name.c: under job.names --- */
/** Finds the folder of the rank, or of the job, in which an object is; 0: it is in none any more. */
int rs_tree_home(struct rs_job *job, const struct meta_inode_row *row, struct sc_arena *texts, uint64_t *ret,
		 struct sc_err *err);
/** Calls `each` with each path that an object has in its home, under job.names; a callback that returns non-zero ends
 *  the walk, and that value is returned. */
typedef int rs_path_fn(void *arg, const char *path);
int rs_tree_each_path(struct rs_job *job, uint64_t ino, rs_path_fn *each, void *arg, struct sc_err *err);
/** Appends the name of an object of the working tree, as "rank 3: 'a/b'" or "'a/b'".  The caller holds job.names. */
int rs_tree_name(struct rs_job *job, uint64_t ino, const char *more, struct sc_buf *ret, struct sc_err *err);

/* --- look.c: under job.names, `ino` as the overlay has it --- */
int rs_look_at(struct rs_job *job, uint64_t ino, struct rs_look *ret, struct sc_err *err);
/** Finds the number at a path; 0: there is none. */
int rs_find_path(struct rs_job *job, uint32_t rank, const char *path, uint64_t *ret, struct sc_err *err);

/* --- own.c: files with bytes of their own, by blob --- */
struct rs_own {
	uint64_t blob, ino;
};
/** Makes an entry, and room for it in the map, so that rs_own_put() cannot fail.  NULL: out of memory. */
struct rs_own *rs_own_new(struct sc_map *map, uint64_t blob, uint64_t ino);
void rs_own_put(struct sc_map *map, struct rs_own *own);
/** Finds the number of the file that has a blob; 0: none has. */
uint64_t rs_own_find(const struct sc_map *map, uint64_t blob);
/** Collects the files with bytes of their own that the rows of an upper layer have. */
int rs_own_of_rows(const struct meta_changes *rows, struct sc_map *ret, struct sc_err *err);
/** Counts the objects without a name again.  The caller holds job.names for writing. */
void rs_count_nameless(struct rs_job *job);
/** Takes the objects without a name that rs_count_nameless() counted of a job from the sum of all jobs. */
void rs_uncount_nameless(struct rs_job *job);
/** Remembers which numbers had the blobs that a commit took: those of job.by_blob, but for `stay`.  A kernel may still
 *  know a file by its blob. */
void rs_own_sealed(struct rs_job *job, const struct sc_map *stay);

/* --- begin.c, log.c --- */
enum rs_tree_from { RS_TREE_NEW, RS_TREE_CLONED, RS_TREE_LOADED };
/** Makes the working tree of a job: empty, that of a job that was cloned (inside the transaction), or that of the
 *  catalog; job->head, if any, is there already then. */
int rs_tree_begin(struct rs_job *job, enum rs_tree_from from, struct sc_err *err);
void rs_tree_end(struct rs_job *job);
/** Tells how many ranks a job without a version has: those of its first topology (NULL: none was written) under its
 *  first layout (0: none was).  Errors: of meta_topology_parse(). */
int rs_first_ranks(struct rs_service *s, uint64_t layout, const char *topology, uint32_t *ret, struct sc_err *err);
/** Gives the lower layer of a working tree whose head is a view (NULL: no version). */
int rs_tree_lower(struct rs_job *job, struct rs_view *view, struct rs_lower *ret, struct sc_err *err);
/** Opens the log, and applies what a killed process has left there; before the first rs_tree_begin().  A damaged log
 *  goes to lost+found, with all blobs that no row names; `looks_only`: it stays. */
int rs_log_open(struct rs_service *s, bool looks_only, struct sc_err *err);
/** Starts the thread that drains the log; without it, it is drained when it is full and at the end. */
int rs_log_start(struct rs_service *s, struct sc_err *err);
void rs_log_close(struct rs_service *s);
/** Drains the log: all records so far are in the catalog. */
int rs_log_drain(struct rs_service *s, struct sc_err *err);
/* for struct rs_overlay_log; `arg` is the job */
int rs_log_write(void *arg, const struct meta_changes *record, struct sc_err *err);
int rs_number_take(void *arg, uint64_t *ret, struct sc_err *err);
/** Notes in memory that a job has a block of numbers. */
int rs_numbers_note(struct rs_service *s, uint64_t first, uint64_t nr, uint64_t job, struct sc_err *err);
/** For fsck --rebuild: makes the folders of a path, and a file there whose bytes are the file of this blob. */
int rs_work_adopt(struct rs_service *s, struct rs_job *job, uint32_t rank, const char *path,
		  const struct rs_owner *owner, uint64_t blob, struct sc_err *err);
/** Tells whether somebody wrote a file at this rank and path. */
bool rs_work_has(struct rs_job *job, uint32_t rank, const char *path);
/** Sets mode and owner of a new file of the working tree. */
int rs_work_own(int fd, const struct rs_owner *owner, const char *path, struct sc_err *err);
/** Limits the mode with which a file is committed by the modes of the folders above it, as another topology does not
 *  have all of these folders.  The gate is closed. */
int rs_owner_limit(struct rs_job *job, uint32_t rank, const char *path, struct rs_owner *owner, struct sc_err *err);
/** Limits the mode in the same way; the caller holds job.names. */
int rs_owner_limit_named(struct rs_job *job, uint32_t rank, const char *path, struct rs_owner *owner,
			 struct sc_err *err);

/* --- files.c --- */
static inline bool rs_look_is_committed(const struct rs_look *look)
{
	return look->kind == RS_VIEW || look->kind == RS_BLOB;
}

/** Makes an empty file that has no row yet, open O_RDWR.  A caller that gives it no row has to remove it. */
int rs_file_make(struct rs_service *s, const char *name, const struct rs_owner *owner, uint64_t *ret_blob,
		 int *ret_fd, struct sc_err *err);
/** Makes a copy (`truncate`: an empty one), without a row, of a committed file that rs_look() has found. */
int rs_file_copy(struct rs_service *s, struct rs_view *view, uint32_t rank, const char *path,
		 const struct rs_look *look, bool truncate, uint64_t *ret_blob, struct sc_err *err);

#endif
