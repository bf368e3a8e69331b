/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Paths, in a version and in the working tree on top of a job's head.  This room changes files of the working tree, and
 * counts them while handles may write to them.
 */
#ifndef RS_TREE_H
#define RS_TREE_H

#include <sys/uio.h>

#include "reshard/state/state.h"

/* --- datasets: what is left of an epoch for a rank, in files of data/ (reshard/data) --- */

struct rs_data_file;
bool rs_view_has_data(const struct rs_view *view, const char *path);
/** Opens a file of a dataset; rs_data_close() closes it.  Errors: SC_E_NOT_FOUND, SC_E_SOURCE. */
int rs_data_open(struct rs_service *s, struct rs_view *view, uint32_t rank, const char *path,
		 struct rs_data_file **ret, struct sc_err *err);
void rs_data_close(struct rs_service *s, struct rs_data_file *file);
uint64_t rs_data_bytes(const struct rs_data_file *file);
/** Reads a file of a dataset; at + bytes must be within the file.  Errors: SC_E_SOURCE (a source has changed). */
int rs_data_read(struct rs_data_file *file, uint64_t at, uint64_t bytes, unsigned char *to,
		 struct sc_err *err);
/** Gives the same bytes as pieces of memory, checked now.  Returns their number, 0 (more than `room`), or an error. */
int rs_data_pieces(struct rs_data_file *file, uint64_t at, uint64_t bytes, struct iovec *iov, int room,
		   struct sc_err *err);

/* --- trees --- */

enum rs_kind { RS_NONE, RS_DIR, RS_VIEW, RS_BLOB, RS_WORK, RS_DATA };

/** What is at a path inside a rank's folder (or, rank RS_SHARED, in the job's folder). */
struct rs_look {
	enum rs_kind kind;
	uint64_t bytes;		/* RS_WORK: 0, its file says */
	uint64_t blob;		/* of RS_BLOB and RS_WORK */
	struct rs_owner owner;	/* of RS_WORK its file says; of a folder that follows from files its mode is 0 */
	int64_t mtime_ns;
	bool from_work;		/* RS_DIR: a folder that was made, else it follows from the files */
	uint64_t place;		/* of RS_VIEW, RS_BLOB, RS_DATA: the rank's, in the view that has it (fs/node.h) */
};

/** Looks a path up.  `view` NULL: in the job's head with its working tree on top.  Kind RS_NONE is no error. */
int rs_look(struct rs_service *s, struct rs_job *job, struct rs_view *view, uint32_t rank,
	    const char *path, struct rs_look *ret, struct sc_err *err);
/** Lists the names in a folder, each once. */
int rs_list(struct rs_service *s, struct rs_job *job, struct rs_view *view, uint32_t rank,
	    const char *path, int (*each)(void *arg, const char *name, bool is_dir), void *arg,
	    struct sc_err *err);
/** Calls `each` for the ranks that have a folder, in order. */
int rs_ranks(struct rs_service *s, struct rs_job *job, struct rs_view *view,
	     int (*each)(void *arg, uint32_t rank), void *arg, struct sc_err *err);

/** Between these a file of the working tree is opened for writing, or changed by its path: the head does not move. */
void rs_tree_enter(struct rs_job *job);
void rs_tree_leave(struct rs_job *job);
/** Makes a file of the working tree, in place of what was written at its path; *ret_fd is open O_RDWR on its bytes. */
int rs_work_create(struct rs_service *s, struct rs_job *job, uint32_t rank, const char *path,
		   const struct rs_owner *owner, uint64_t *ret_blob, int *ret_fd, struct sc_err *err);
/** Likewise, where nothing was written.  Errors: SC_E_EXISTS. */
int rs_work_create_new(struct rs_service *s, struct rs_job *job, uint32_t rank, const char *path,
		       const struct rs_owner *owner, uint64_t *ret_blob, int *ret_fd, struct sc_err *err);
/** Copies a committed file up to the working tree (`truncate`: makes an empty file), or finds the one that is
 *  already there.  Errors: SC_E_STALE (the path has neither), SC_E_SEALED. */
int rs_work_copy_up(struct rs_service *s, struct rs_job *job, uint32_t rank, const char *path,
		    bool truncate, uint64_t *ret_blob, struct sc_err *err);
int rs_work_mkdir(struct rs_service *s, struct rs_job *job, uint32_t rank, const char *path,
		  const struct rs_owner *owner, struct sc_err *err);
int rs_work_unlink(struct rs_service *s, struct rs_job *job, uint32_t rank, const char *path,
		   struct sc_err *err);
int rs_work_rmdir(struct rs_service *s, struct rs_job *job, uint32_t rank, const char *path,
		  struct sc_err *err);
int rs_work_rename(struct rs_service *s, struct rs_job *job, uint32_t rank, const char *path,
		   uint32_t new_rank, const char *new_path, bool no_replace, struct sc_err *err);
int rs_work_chattr_dir(struct rs_service *s, struct rs_job *job, uint32_t rank, const char *path,
		       const struct rs_owner *owner, int64_t mtime_ns, struct sc_err *err);
/** Tells whether a blob is a file of the working tree, or one that was removed from it and is open. */
bool rs_work_is(struct rs_service *s, struct rs_job *job, uint64_t blob);
/** Opens the bytes of a working-tree file.  Errors: SC_E_STALE (it is sealed or removed by now). */
int rs_work_open(struct rs_service *s, struct rs_job *job, uint64_t blob, int flags, int *ret_fd,
		 struct sc_err *err);
/** Flushes the bytes of a working-tree file, its name and its row.  `fd`: open on the file. */
int rs_work_sync(struct rs_service *s, uint64_t blob, int fd, bool data_only, struct sc_err *err);
/** Pin and unpin a file of the working tree: if it is removed in between, it keeps its bytes and can be opened. */
int rs_work_hold(struct rs_service *s, uint64_t blob, struct sc_err *err);
void rs_work_release(struct rs_service *s, uint64_t blob);
/** Begin and end a writer: in between, no commit seals the file.  Begin under the lock that found it uncommitted. */
int rs_writer_begin(struct rs_service *s, uint64_t blob, struct sc_err *err);
void rs_writer_end(struct rs_service *s, uint64_t blob);
#define RS_RESERVED_NS INT64_C(10000000000) /* for which a thread that was told to open a file may be starved of CPU */
/** Keeps a file from being committed until rs_writer_redeem(), which must be called, or until a time of sc_now_ns(). */
int rs_writer_reserve(struct rs_service *s, uint64_t blob, int64_t until_ns, struct sc_err *err);
void rs_writer_redeem(struct rs_service *s, uint64_t blob);
bool rs_work_is_removed(struct rs_service *s, uint64_t blob);

#endif
