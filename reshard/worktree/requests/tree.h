/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The working tree of a job: what programs made and changed, on top of what its head shows (reshard/version/view).
 * This room changes working trees, and counts their files while handles may write to them.  It knows neither FUSE nor
 * nodeids. A working tree is asked by number (reshard/overlay): a number is one object for ever, and what programs see
 * (st_ino).
 *
 * Locks: functions that change a working tree are called between rs_tree_enter() and rs_tree_leave(), and take
 * job.names for writing by themselves; those that read take it for reading.  Errors of a number that is nothing any
 * more: SC_E_STALE.
 */
#ifndef RS_TREE_H
#define RS_TREE_H

#include "meta/store/store.h"
#include "meta/tree/change.h"
#include "meta/tree/tail.h"
#include "reshard/overlay/listing.h"
#include "reshard/version/view/shown.h"

/* --- what there is --- */

/**
 * Looks up a path inside a rank's folder, or the job's folder (rank RS_SHARED): in a view, or (view NULL) in the
 * working tree of the job's head.  Does not follow links.  Kind RS_NONE is no error.
 */
int rs_look(struct rs_service *s, struct rs_job *job, struct rs_view *view, uint32_t rank, const char *path,
	    struct rs_look *ret, struct sc_err *err);
/** Lists the names in a folder, each once, without "." and "..".  In the job's folder these include the ranks. */
int rs_list(struct rs_service *s, struct rs_job *job, struct rs_view *view, uint32_t rank, const char *path,
	    int (*each)(void *arg, const char *name, mode_t type), void *arg, struct sc_err *err);
/* --- a working tree, by number --- */

/** Finds the job to which a number belongs; NULL: it belongs to none, or the job was removed. */
struct rs_job *rs_job_of_number(struct rs_service *s, uint64_t ino);
/** Returns the number of the job's folder; the folder of rank r is root + 1 + r. */
uint64_t rs_job_root(const struct rs_job *job);
/** Looks up a number; RS_NONE: nothing has it.  Attributes of the job's own folder are the job's (rs_job_attr()), but
 *  for the times and nlink. */
int rs_tree_get(struct rs_service *s, struct rs_job *job, uint64_t ino, struct rs_look *ret, struct sc_err *err);
/** Looks up a name in a folder; RS_NONE: there is no such name.  Errors: SC_E_NAME (too long), SC_E_STALE. */
int rs_tree_child(struct rs_service *s, struct rs_job *job, uint64_t folder, struct meta_bytes name,
		  struct rs_look *ret, struct sc_err *err);
/** Gives only the type of an object (S_IFDIR, ...), which is cheaper than a look; 0: nothing has the number. */
int rs_tree_type(struct rs_service *s, struct rs_job *job, uint64_t ino, mode_t *ret, struct sc_err *err);
/** Gives the folder above a folder; the job's root is above itself. */
int rs_tree_parent(struct rs_service *s, struct rs_job *job, uint64_t folder, uint64_t *ret, struct sc_err *err);
/** Finds the number that a file of a view has in the working tree of its job; the view may be an older head. */
int rs_tree_of_file(struct rs_service *s, struct rs_view *view, uint32_t rank, const char *path, uint64_t *ret,
		    struct sc_err *err);
/** Finds the number of the file that has this blob, or had it before a commit; 0: there is no such file any more. */
int rs_tree_of_blob(struct rs_service *s, struct rs_job *job, uint64_t blob, uint64_t *ret, struct sc_err *err);
/** Notes the number of the file whose blob an earlier daemon has committed.  Without memory the file is not found. */
void rs_tree_was_of(struct rs_job *job, uint64_t blob, uint64_t ino);
/** Makes a listing of a folder anew (zeroed at first, rs_listing_done() frees it); numbers in it are as programs see
 *  them. */
int rs_tree_list(struct rs_service *s, struct rs_job *job, uint64_t folder, struct rs_listing *ret, struct sc_err *err);
bool rs_tree_list_is_old(struct rs_job *job, const struct rs_listing *l);
/** Gives a number that is another one when anything in the working tree has changed since. */
uint64_t rs_tree_applied(const struct rs_job *job);
/** Gives a number that is another one when a name in the folder may have come or gone since. */
uint64_t rs_tree_list_changes(struct rs_job *job, uint64_t folder);
int rs_tree_link_text(struct rs_service *s, struct rs_job *job, uint64_t ino, struct sc_buf *ret, struct sc_err *err);
/** Reads an extended attribute: 1, 0 (there is none), or an error. */
int rs_tree_xattr(struct rs_service *s, struct rs_job *job, uint64_t ino, struct meta_bytes name, struct sc_buf *ret,
		  struct sc_err *err);
/** Appends the names of all extended attributes of an object, each with a 0 behind it. */
int rs_tree_xattrs(struct rs_service *s, struct rs_job *job, uint64_t ino, struct sc_buf *ret, struct sc_err *err);

/* --- changing it --- */

/** Enter and leave the gate.  Who opens a file of the working tree for writing, or changes anything, is inside
 *  meanwhile, and the head does not move. */
void rs_tree_enter(struct rs_job *job);
/** Enters if the gate is open and nobody is about to close it; else returns false, and rs_events.opened tells when the
 *  gate opens. */
bool rs_tree_try_enter(struct rs_job *job);
void rs_tree_leave(struct rs_job *job);

/** Makes the log store in *note, if it is 0, where the next record of this thread ends, before the record is there
 *  (meta_tail_append()).  NULL: it stores nothing any more. */
void rs_log_note(uint64_t *note);
/** Tells whether the record whose end an earlier process has noted in that way was there when this service began. */
bool rs_log_had(const struct rs_service *s, uint64_t note);

/** For fsck: tells whether the next start will find a damaged record, and drop it and those behind it. */
bool rs_log_is_damaged(const struct rs_service *s, struct meta_tail_damage *ret);
/** Moves the log, if there is one, to lost+found before anybody opens it. */
int rs_log_set_aside(struct rs_service *s, struct sc_err *err);
/** Gives the next name that a damaged log got in lost+found, from *nr (0 at first) on.  False: there are no more. */
bool rs_log_next_kept(const struct rs_service *s, unsigned *nr, char ret[META_ASIDE_BYTES]);

/** The attributes of an object that is to be made: the mode has its type; rs_tree_make() takes care of the folder's
 *  SGID. */
struct rs_make {
	mode_t mode;
	uid_t uid;
	gid_t gid;
	uint64_t rdev;
	struct meta_bytes target;	/* of a symbolic link */
};
/**
 * Makes a folder, link, special file, or an empty file, which *ret_fd (may be NULL: it is closed) has open O_RDWR.
 * In the job's folder the name of a rank makes the folder of that rank.
 * Errors: those of rs_overlay_make(); SC_E_COMMAND (a rank's name: no folder, or the topology has no such rank).
 */
int rs_tree_make(struct rs_service *s, struct rs_job *job, uint64_t folder, struct meta_bytes name,
		 const struct rs_make *what, struct rs_look *ret, int *ret_fd, struct sc_err *err);
/* The next four are as rs_overlay_link() and so on, and refuse files of datasets (SC_E_SEALED). */
int rs_tree_link(struct rs_service *s, struct rs_job *job, uint64_t ino, uint64_t folder, struct meta_bytes name,
		 struct sc_err *err);
int rs_tree_unlink(struct rs_service *s, struct rs_job *job, uint64_t folder, struct meta_bytes name,
		   struct sc_err *err);
int rs_tree_rmdir(struct rs_service *s, struct rs_job *job, uint64_t folder, struct meta_bytes name,
		  struct sc_err *err);
int rs_tree_rename(struct rs_service *s, struct rs_job *job, uint64_t folder, struct meta_bytes name,
		   uint64_t new_folder, struct meta_bytes new_name, enum rs_rename how, struct sc_err *err);
/** Sets attributes of an object; those of a RS_WORK file are set on its file, too. */
int rs_tree_set_attrs(struct rs_service *s, struct rs_job *job, uint64_t ino, const struct rs_attrs *set,
		      struct sc_err *err);
/** Copies a committed file into the working tree (`truncate`: as an empty file), unless it is a RS_WORK already; gives
 *  its blob.  Errors: SC_E_STALE, SC_E_SEALED (a file of a dataset), SC_E_IS_DIR. */
int rs_tree_copy_up(struct rs_service *s, struct rs_job *job, uint64_t ino, bool truncate, uint64_t *ret_blob,
		    struct sc_err *err);
int rs_tree_set_xattr(struct rs_service *s, struct rs_job *job, uint64_t ino, struct meta_bytes name,
		      struct meta_bytes value, enum rs_xattr_set how, struct sc_err *err);
int rs_tree_drop_xattr(struct rs_service *s, struct rs_job *job, uint64_t ino, struct meta_bytes name,
		       struct sc_err *err);
/** Tells whether an object without a name waits to be forgotten: then ask the kernel, and call rs_tree_forget(). */
bool rs_tree_is_nameless(struct rs_service *s, struct rs_job *job, uint64_t ino);
/** Forgets an object that has no name and that no kernel knows any more. */
int rs_tree_forget(struct rs_service *s, struct rs_job *job, uint64_t ino, struct sc_err *err);
/** Tells whether any object has no name; cheap. */
bool rs_tree_any_nameless(struct rs_service *s);
/** Walks over all objects without a name, in all jobs; `blob` is that of a file of the working tree, else 0.  `each` is
 *  called without a lock. */
int rs_tree_each_nameless(struct rs_service *s, int (*each)(void *arg, struct rs_job *job, uint64_t ino, uint64_t blob),
			  void *arg);
/** Makes all changes of names and attributes so far durable (sync=off or not). */
int rs_tree_flush(struct rs_service *s, struct sc_err *err);

/* --- files that programs may write to, by blob --- */

/** Tells whether a blob is a file of the working tree, be it one without a name that is open. */
bool rs_work_is(struct rs_service *s, struct rs_job *job, uint64_t blob);
/** Opens the bytes of a working-tree file.  Errors: SC_E_STALE (it is sealed or removed by now). */
int rs_work_open(struct rs_service *s, struct rs_job *job, uint64_t blob, int flags, int *ret_fd,
		 struct sc_err *err);
/** Flushes the bytes of a working-tree file, its name and its row; `fd` is open on the file. */
int rs_work_sync(struct rs_service *s, uint64_t blob, int fd, bool data_only, struct sc_err *err);
/** Pin and unpin a file of the working tree: if it is removed in between, it keeps its bytes and can be opened. */
int rs_work_hold(struct rs_service *s, uint64_t blob, struct sc_err *err);
void rs_work_release(struct rs_service *s, uint64_t blob);
/** Begin and end a writer: in between, no commit seals the file.  Begin under the lock that found it uncommitted. */
int rs_writer_begin(struct rs_service *s, uint64_t blob, struct sc_err *err);
void rs_writer_end(struct rs_service *s, uint64_t blob);
/** Tells whether a handle has the blob open. */
bool rs_work_is_open(struct rs_service *s, uint64_t blob);
bool rs_work_is_written(struct rs_service *s, uint64_t blob);
#define RS_RESERVED_NS INT64_C(10000000000) /* for which a thread that was told to open a file may be starved of CPU */
/** Keeps a file from being committed until rs_writer_redeem(), which must be called, or until a time of sc_now_ns(). */
int rs_writer_reserve(struct rs_service *s, uint64_t blob, int64_t until_ns, struct sc_err *err);
void rs_writer_redeem(struct rs_service *s, uint64_t blob);
/** Count the open files of a view.  In a daemon that is held, the rows of its version stay until the last one is
 *  closed. */
void rs_view_opened(struct rs_service *s, const struct rs_view *view);
void rs_view_closed(struct rs_service *s, const struct rs_view *view);
/** Tells whether files of a version are open; they are counted in a store that is held, and on a node of a cluster. */
bool rs_version_is_open(struct rs_service *s, uint64_t version);

#endif
