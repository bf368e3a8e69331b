/* SPDX-License-Identifier: Apache-2.0 */
/* Open files. */
#ifndef FS_OPEN_H
#define FS_OPEN_H

#include "fs/fs_i.h"

struct fs_asked;
struct fs_node;

/* handles.c */
/** Adds an open file and returns its number; 0: out of memory.  Takes `h`. */
uint64_t fs_handle_add(struct fs *fs, struct fs_handle *h);
struct fs_handle *fs_handle_get(struct fs *fs, uint64_t fh);
/** Registers `h` as an open of a version's file, so that all opens of the inode see one size and one content. */
void fs_handle_committed(struct fs *fs, struct fs_handle *h);
/** Gives what an inode is open as; false: it is not open. */
bool fs_handle_find(struct fs *fs, uint64_t ino, struct rs_view **ret_view, uint64_t *ret_blob, uint64_t *ret_bytes);
/** Takes an open file out of the table; the caller frees it with fs_handle_free(). */
struct fs_handle *fs_handle_take(struct fs *fs, uint64_t fh);
void fs_handle_free(struct fs *fs, struct fs_handle *h);
void fs_names_done(struct fs_names *names);
/** Walks over the files and folders of a job that are open, by number; for struct rs_events. */
int fs_handle_each(void *arg, struct rs_job *job, int (*fn)(void *arg, uint64_t number), void *fn_arg);
/** Tells whether a regular file of a working tree is open, under whichever node. */
bool fs_handle_has(struct fs *fs, uint64_t number);
/** Makes the kernel ask again for names, and for the attributes of what is open, after a command. */
void fs_names_changed(struct fs *fs);

/* backing.c */
/**
 * Makes this open a passthrough open of the file of *fd, and closes *fd; returns false, and keeps *fd, if
 * that is impossible.  *fd must be open for reading even if the client writes: the kernel opens its path
 * once more for each client, as the client asked, and the lease by which a commit detects writers must see
 * only the clients' opens.
 */
bool fs_passthrough(fuse_req_t req, struct fs *fs, uint64_t ino, int *fd, struct fuse_file_info *fi);
/** Ends a passthrough open.  `req` NULL: the request is answered, and the kernel keeps the backing file until the mount
*  ends. */
void fs_passthrough_end(fuse_req_t req, struct fs *fs, uint64_t ino);
/** Repairs the table of backing files that an earlier daemon left. */
void fs_backings_check(struct fs *fs);

/* work.c: the only way to the bytes of uncommitted files */
/** Opens the bytes of a node for one call.  `flags` may ask for writing only where a handle that may write is open
 *  (W1).  Errors: SC_E_UNSUPPORTED (not a file of a working tree), SC_E_STALE (not one any more). */
int fs_open_bytes(struct fs *fs, fuse_ino_t ino, int flags, int *ret_fd, struct sc_err *err);
/** Makes the kernel ask again for the attributes of the other nodes that an object may have, after a change that came
 *  by node `n`; if the change has copied the file up (`was_committed`), also for names. */
void fs_changed(struct fs *fs, const struct fs_node *n, struct rs_job *job, uint64_t number, bool was_committed);
/** Tells whether the object is a committed file. */
bool fs_is_committed(struct fs *fs, struct rs_job *job, uint64_t number);
/** Returns a mode without the set-user-id and set-group-id bits that a write or chown by this caller takes. */
mode_t fs_killed_mode(fuse_req_t req, mode_t mode, gid_t gid);
/** Takes them from a file that this caller writes to, as the kernel does for callers other than root. */
void fs_drop_set_id(fuse_req_t req, int fd);
/** Finds the file of the working tree that a node is of; if it is committed, copies it up (`truncate`: makes it empty).
 *  RS_HERE: the caller is inside the gate of *ret_job.  RS_LATER, and errors: as fs_enter(); SC_E_STALE (the file is
 *  gone), SC_E_SEALED (.v and .as are read-only). */
int fs_work_begin(fuse_req_t req, const struct fs_asked *a, const struct fs_node *n, bool truncate,
		  struct rs_job **ret_job, uint64_t *ret_blob, struct sc_err *err);
/** Fails an open for writing of a committed file with SC_E_STALE, after copying it up: the retry of the thread
 *  finds the copy, which no commit seals before.  RS_LATER: as fs_enter(). */
int fs_work_instead(fuse_req_t req, const struct fs_asked *a, const struct fs_node *n, bool truncate,
		    struct sc_err *err);

/* gpu.c */
/** Loads a file of a view for GPUs, of h->image or h->fd, and parks the open: 1: another thread will answer it.  0: it
 *  is loaded.  Errors: as rs_load_start() and its done(), SC_E_BUSY. */
int fs_gpu_open(fuse_req_t req, struct fs *fs, struct fs_handle *h, uint32_t rank, struct fuse_file_info *fi,
		struct sc_err *err);
/** Answers a read of such a file: where the bytes are. */
void fs_gpu_read(fuse_req_t req, const struct fs_handle *h, size_t bytes, uint64_t at);
/** At the end: gives up what is being loaded, and waits until all opens are answered. */
void fs_gpu_stop(struct fs *fs);
/** Ends all helpers, when nothing is open any more. */
void fs_gpu_end(void);

/* ahead.c */
/** Keeps an open file for a thread that looks again, until fs_ahead_opened() or for RS_RESERVED_NS (A1).  Takes `h`. */
void fs_ahead_keep(struct fs *fs, struct fs_handle *h, pid_t thread);
/** Keeps a folder of a version, for as long, for a thread that looks again (A2). */
void fs_ahead_keep_folder(struct fs *fs, const struct fs_node *n, pid_t thread);
/** Ends all, as the mount ends. */
void fs_ahead_end(struct fs *fs);
/** Ends what is kept ahead of a thread, which has found a file, or whose open is answered. */
void fs_ahead_opened(struct fs *fs, pid_t thread);
/** Tells when the next of them ends by itself, by sc_now_ns(); 0: there is none. */
int64_t fs_ahead_due(struct fs *fs);
/** Ends those whose time is over. */
void fs_ahead_expire(struct fs *fs);

/* opened.c */
/** Makes a handle with a number, for an open that fs_open_end() ends; NULL: out of memory. */
struct fs_handle *fs_open_begin(struct fs *fs, uint64_t ino, struct sc_err *err);
/** Ends an open that begins anew later (parked.h), before the kernel has got anything of it. */
void fs_open_put_off(struct fs *fs, struct fs_handle *h);
/** Answers an open or a create (`e`), or undoes it if it failed or the kernel does not take the reply. */
void fs_open_end(fuse_req_t req, struct fs *fs, struct fs_handle *h, const struct fuse_entry_param *e,
		 struct fuse_file_info *fi, const char *op, int rc, const struct sc_err *err);

/* op_open.c */
/** Opens a file of the working tree through passthrough or, if that is impossible, by a descriptor.
 *  Under rs_tree_enter(). */
int fs_open_work(fuse_req_t req, struct fs *fs, struct rs_job *job, uint64_t blob, struct fs_handle *h,
		 struct fuse_file_info *fi, struct sc_err *err);
/** Opens the file of h->blob, of h->bytes, at a node of h->view, whose bytes another node has. */
int fs_open_elsewhere(struct fs *fs, const struct fs_node *n, struct fs_handle *h, struct fuse_file_info *fi,
		      struct sc_err *err);
/** Opens a node of a view: h->view at `path`; `again`: the caller will not retry. */
int fs_open_image(struct fs *fs, const struct fs_node *n, const char *path, bool again, struct fs_handle *h,
		  struct fuse_file_info *fi, struct sc_err *err);
int fs_open_control(fuse_req_t req, struct fs *fs, const struct fs_node *n, struct fs_handle *h,
		    struct fuse_file_info *fi, struct sc_err *err);
void op_open(fuse_req_t req, fuse_ino_t ino, struct fuse_file_info *fi);

/* reopen.c */
/** Opens a committed file, `h->ino`, so that the daemon can read it. */
int fs_reopen_committed(struct fs *fs, struct fs_handle *h, const struct fs_node *n, struct sc_err *err);
/** Reopens a file or folder that an earlier daemon had open.  `req` may be NULL except for a control file. */
int fs_reopen(fuse_req_t req, struct fs *fs, struct fs_handle *h, uint64_t fh, int flags, struct sc_err *err);
/** Returns the open file of a request; reopens one that an earlier daemon had open.  NULL: that failed, and the
 *  request is answered. */
struct fs_handle *fs_handle_of(fuse_req_t req, struct fs *fs, uint64_t ino, struct fuse_file_info *fi);

#endif
