/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The service: jobs, their versions, their working trees, and the commands that change them.
 * fs/ turns files into calls of this header; nothing here knows FUSE.
 *
 *     job ── head ──> version ── sets ──> set ── rank, file ──> blob
 *      │                 │                 └ view under which it was written
 *      │                 └ view: presentation (a version at a topology)
 *      └ working tree: what ranks have written since
 *
 * Thread: any, but for rs_service_new/free.  Objects with _ref/_unref are immutable and shared.
 * Lock order: job.command, job.tree, service.naming, service.making, catalog (a transaction holds it), job.state,
 * service.lock, blobs; nothing calls the catalog while it holds job.state or service.lock.
 */
#ifndef RS_SERVICE_H
#define RS_SERVICE_H

#include <sys/types.h>
#include <sys/uio.h>

#include "meta/catalog/catalog.h"
#include "reshard/engine/image.h"

struct rs_service;
struct rs_job;
struct rs_view;
struct rs_set;

#define RS_SHARED UINT32_MAX	/* the "rank" of files of the job itself */

/** News travels upward: declared here, filled by fs/. */
struct rs_events {
	void *arg;
	/** Names or attributes of this job's files have changed: cached entries are stale. */
	void (*names_changed)(void *arg);
	/** Something that control files show has changed. */
	void (*news)(void *arg, uint64_t job);
	/** Adds to a control file of the mount (`health`, `version`) what only the mount knows.  May be NULL. */
	void (*describe)(void *arg, const char *name, struct sc_buf *buf);
};

struct rs_options {
	const char *store;
	const char *preset_dir;		/* of the user's own presets, or NULL */
	const struct rs_events *events;	/* NULL: nobody listens */
	bool quiet_worker;		/* no background work: rs_service_work() does it */
	bool keep_garbage;		/* fsck looks at it first */
	bool takes_over;		/* of a daemon that died: the kernel remembers its numbers */
	bool rebuild;			/* for rs_rebuild(): a new catalog, STORE/scalai.db.new, over blobs */
	int64_t scrub_every_s;		/* each blob is read again so often; 0: never */
	uint64_t scrub_bytes_per_s;	/* 0: no limit */
};

int rs_service_new(const struct rs_options *options, struct rs_service **ret, struct sc_err *err);
struct rs_service *rs_service_free(struct rs_service *s);
/** What the worker does, once, in this thread: verify, materialize, hash, remove garbage.
 *  Only with quiet_worker.  The first error is returned. */
int rs_service_work(struct rs_service *s, struct sc_err *err);
/** There are blobs that nobody reads any more; `status` of their jobs says which. */
bool rs_service_is_damaged(struct rs_service *s);
/** Reads blobs again that were last checked before that time (seconds since 1970), and damaged ones after an hour, a
 *  thousand at most. */
int rs_service_scrub(struct rs_service *s, int64_t before_s, struct sc_err *err);

/**
 * Checks everything a store promises: rows that fit together, each blob's size and hash, copies and
 * hashes of each version's tensors, no file too many.  `repair`: files that no row knows go to
 * lost+found, a damaged blob is replaced by another one with the same contents.
 * *ret_bad: what is wrong and stays so.  Lines of `report` say what.  Errors: of reading.
 */
int rs_fsck(struct rs_service *s, bool repair, uint64_t *ret_bad, struct sc_buf *report, struct sc_err *err);
/** Fills a new catalog with what the blobs say of themselves; *ret_bad: what could not be made again. */
int rs_rebuild(struct rs_service *s, uint64_t *ret_bad, struct sc_buf *report, struct sc_err *err);
const struct meta_store *rs_service_store(struct rs_service *s);

/* --- jobs --- */

struct rs_job_attr {
	uint64_t id;
	uid_t uid;
	gid_t gid;
	mode_t mode;
	int64_t mtime_ns;	/* of its newest version or file */
};

/** NULL: no such job.  Jobs are kept for the life of the service; a removed one is marked. */
struct rs_job *rs_job_by_id(struct rs_service *s, uint64_t id);
struct rs_job *rs_job_by_name(struct rs_service *s, const char *name);
/** Job number i of the service's list, NULL at the end; removed ones are skipped by the caller. */
struct rs_job *rs_job_at(struct rs_service *s, size_t i);
bool rs_job_is_removed(struct rs_job *job);
uint64_t rs_job_id(struct rs_job *job);
int rs_job_make(struct rs_service *s, const char *name, mode_t mode, uid_t uid, gid_t gid,
		struct rs_job **ret, struct sc_err *err);
int rs_job_remove(struct rs_service *s, struct rs_job *job, struct sc_err *err);
int rs_job_rename(struct rs_service *s, struct rs_job *job, const char *name, struct sc_err *err);
int rs_job_chattr(struct rs_service *s, struct rs_job *job, mode_t mode, uid_t uid, gid_t gid,
		  struct sc_err *err);
void rs_job_attr(struct rs_job *job, struct rs_job_attr *ret);
const char *rs_job_name(struct rs_job *job, char *buf, size_t bytes);

/* --- commands: each decided when the call returns; a refusal changes nothing --- */

/** Who commands. */
struct rs_caller {
	struct rs_service *service;
	uid_t uid;
	gid_t gid;
	dev_t own_device;	/* the mount itself: no source of data may lie in it */
	uint64_t token;		/* of this command, in the version that it makes; 0: it has none */
};

/** Has the command with this token made its version?  1, 0, or an error of the catalog. */
int rs_requested(struct rs_service *s, uint64_t token, struct sc_err *err);

int rs_job_topology(struct rs_service *s, struct rs_job *job, const char *text, struct sc_err *err);
int rs_job_layout(struct rs_service *s, struct rs_job *job, const char *text, struct sc_err *err);
/** "step=N samples=N note=..."; `busy_text` of EBUSY names the file. */
int rs_job_commit(struct rs_service *s, struct rs_job *job, const char *text, struct sc_err *err);
int rs_job_discard(struct rs_service *s, struct rs_job *job, struct sc_err *err);
int rs_job_rollback(struct rs_service *s, struct rs_job *job, const char *text, struct sc_err *err);
int rs_job_config(struct rs_service *s, struct rs_job *job, const char *text, struct sc_err *err);
/** Lines of `add name=... path=...`, `remove name=...`, `refresh name=...`: all of them or none.
 *  Sources are opened as the caller.  May take long. */
int rs_job_data(const struct rs_caller *who, struct rs_job *job, const char *text, struct sc_err *err);
/** Compares every copy of the head and hashes every logical tensor, against what was recorded. */
int rs_job_verify(struct rs_service *s, struct rs_job *job, struct sc_err *err);

/** "tag VERSION NAME": kept, whatever keep= says; "untag VERSION". */
int rs_job_tag(struct rs_service *s, struct rs_job *job, const char *text, struct sc_err *err);

/** Parses what `wait` is written: a version's number, or nothing for the head. */
int rs_job_wait_parse(struct rs_service *s, struct rs_job *job, const char *text,
		      uint64_t *ret_version, struct sc_err *err);
/** 1: materialized, 0: not yet, negative: the last attempt failed, or there will be none. */
int rs_job_wait_poll(struct rs_service *s, struct rs_job *job, uint64_t version,
		     struct sc_err *err);

/* --- texts of control files, rendered at open --- */

int rs_render_topology(struct rs_service *s, struct rs_job *job, struct sc_buf *buf,
		       struct sc_err *err);
int rs_render_layout(struct rs_service *s, struct rs_job *job, struct sc_buf *buf,
		     struct sc_err *err);
int rs_render_versions(struct rs_service *s, struct rs_job *job, struct sc_buf *buf,
		       struct sc_err *err);
int rs_render_status(struct rs_service *s, struct rs_job *job, struct sc_buf *buf,
		     struct sc_err *err);
int rs_render_config(struct rs_service *s, struct rs_job *job, struct sc_buf *buf,
		     struct sc_err *err);
int rs_render_plan(struct rs_service *s, struct rs_job *job, const char *topology,
		   struct sc_buf *buf, struct sc_err *err);
int rs_render_data(struct rs_service *s, struct rs_job *job, struct sc_buf *buf, struct sc_err *err);
/** `text`: two versions. */
int rs_render_diff(struct rs_service *s, struct rs_job *job, const char *text, struct sc_buf *buf,
		   struct sc_err *err);
int rs_render_verify(struct rs_service *s, struct rs_job *job, struct sc_buf *buf,
		     struct sc_err *err);
void rs_render_error(struct rs_job *job, struct sc_buf *buf);
/** Keeps the last refusal of a job, for `error`. */
void rs_job_refused(struct rs_job *job, const char *command, const struct sc_err *err);
bool rs_job_shows_hidden(struct rs_job *job);
bool rs_job_syncs(struct rs_job *job);	/* sync=on */
/** Counts up whenever control files of the job would show something new. */
uint64_t rs_job_news(struct rs_job *job);

/* --- views: a version at a topology --- */

/** References; rs_view_unref() ends them.  SC_E_NOT_FOUND when there is none. */
int rs_view_head(struct rs_service *s, struct rs_job *job, struct rs_view **ret,
		 struct sc_err *err);
int rs_view_version(struct rs_service *s, struct rs_job *job, uint64_t nr, struct rs_view **ret,
		    struct sc_err *err);
/** By its number or tag. */
int rs_view_named(struct rs_service *s, struct rs_job *job, const char *word, struct rs_view **ret,
		  struct sc_err *err);
int rs_view_as(struct rs_service *s, struct rs_job *job, const char *topology, struct rs_view **ret,
	       struct sc_err *err);
/** The same version as something read-only (.v/N): another number than the head's. */
int rs_view_archived(struct rs_service *s, struct rs_job *job, const char *word, struct rs_view **ret,
		     struct sc_err *err);
/** Is this what the job's ranks see now?  Is it a version's own presentation (not .v, .as)? */
bool rs_view_is_head(const struct rs_view *view);
bool rs_view_is_own(const struct rs_view *view);
/** What `as` shows, for this caller alone: it has no number, and nobody finds it again. */
int rs_view_present(struct rs_service *s, struct rs_job *job, const char *topology, struct rs_view **ret,
		    struct sc_err *err);
/** Replaces a reference to a view by one with the storage that its version had a moment ago; false: it had none. */
bool rs_view_before(struct rs_service *s, struct rs_view **view);
/** The view that has a place: nodeids are made of them, and a view has one for each of its ranks. */
int rs_view_at(struct rs_service *s, uint64_t place, struct rs_view **ret, struct sc_err *err);
bool rs_view_has(const struct rs_view *view, uint64_t place);
uint64_t rs_view_place(const struct rs_view *view, uint32_t rank);
uint32_t rs_view_rank(const struct rs_view *view, uint64_t place);
struct rs_view *rs_view_ref(struct rs_view *view);
void rs_view_unref(struct rs_service *s, struct rs_view *view);
/** The name of the first axis: `AXIS=1` is the topology of one rank. */
const char *rs_view_first_axis(const struct rs_view *view);
struct rs_job *rs_view_job(const struct rs_view *view);
int64_t rs_view_made_ns(const struct rs_view *view);
/** Versions of a job, oldest first; until `each` answers non-zero. */
int rs_versions_each(struct rs_service *s, struct rs_job *job, int (*each)(void *arg, uint64_t nr),
		     void *arg, struct sc_err *err);

/** The image of a rank's file, shared; SC_E_NOT_FOUND. `open`: its sources are mapped. */
int rs_view_image(struct rs_service *s, struct rs_view *view, uint32_t rank, const char *file,
		  bool as_view, bool open, struct rs_image **ret, struct sc_err *err);
void rs_image_unref(struct rs_service *s, struct rs_image *image);
/** Makes a file of the head real by reflink, if that takes milliseconds: then look again. */
bool rs_make_real(struct rs_service *s, struct rs_view *view, uint32_t rank, const char *file,
		  struct rs_image *image);

/* --- datasets: what is left of an epoch for a rank, in files of data/ (reshard/data) --- */

struct rs_data_file;
bool rs_view_has_data(const struct rs_view *view, const char *path);
/** rs_data_close() ends it.  Errors: SC_E_NOT_FOUND, SC_E_SOURCE. */
int rs_data_open(struct rs_service *s, struct rs_view *view, uint32_t rank, const char *path,
		 struct rs_data_file **ret, struct sc_err *err);
void rs_data_close(struct rs_service *s, struct rs_data_file *file);
uint64_t rs_data_bytes(const struct rs_data_file *file);
/** at + bytes is within the file.  Errors: SC_E_SOURCE: a source is not as it was. */
int rs_data_read(struct rs_data_file *file, uint64_t at, uint64_t bytes, unsigned char *to,
		 struct sc_err *err);
/** The same bytes as pieces of memory, checked now; how many, 0: more than `room`, or an error. */
int rs_data_pieces(struct rs_data_file *file, uint64_t at, uint64_t bytes, struct iovec *iov, int room,
		   struct sc_err *err);

/* --- trees --- */

enum rs_kind { RS_NONE, RS_DIR, RS_VIEW, RS_BLOB, RS_WORK, RS_DATA };

struct rs_owner {
	uid_t uid;
	gid_t gid;
	mode_t mode;
};

/** What a path inside a rank directory (or, rank RS_SHARED, of the job itself) is. */
struct rs_look {
	enum rs_kind kind;
	uint64_t bytes;		/* RS_WORK: 0, its file says */
	uint64_t blob;		/* of RS_BLOB and RS_WORK */
	struct rs_owner owner;	/* of RS_WORK its file says; of a folder that follows from files its mode is 0 */
	int64_t mtime_ns;
	bool from_work;		/* RS_DIR: a folder that was made, else it follows from the files */
	uint64_t place;		/* of RS_VIEW, RS_BLOB, RS_DATA: the rank's, in the view that has it (fs/node.h) */
};

/** `view` NULL: the job's head with its working tree on top.  Kind RS_NONE is no error. */
int rs_look(struct rs_service *s, struct rs_job *job, struct rs_view *view, uint32_t rank,
	    const char *path, struct rs_look *ret, struct sc_err *err);
/** Names in a folder, each once. */
int rs_list(struct rs_service *s, struct rs_job *job, struct rs_view *view, uint32_t rank,
	    const char *path, int (*each)(void *arg, const char *name, bool is_dir), void *arg,
	    struct sc_err *err);
/** Ranks that have a directory: calls `each` in order. */
int rs_ranks(struct rs_service *s, struct rs_job *job, struct rs_view *view,
	     int (*each)(void *arg, uint32_t rank), void *arg, struct sc_err *err);

/** A new file of the working tree; *ret_fd is O_RDWR on its bytes. */
int rs_work_create(struct rs_service *s, struct rs_job *job, uint32_t rank, const char *path,
		   const struct rs_owner *owner, uint64_t *ret_blob, int *ret_fd, struct sc_err *err);
/** Makes a working-tree file from a committed one (or an empty one, `truncate`), or finds the one that is there.
 *  Errors: SC_E_STALE, the path has neither; SC_E_SEALED. */
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
/** Is this blob a file of the working tree, or one that was removed from it and is open? */
bool rs_work_is(struct rs_service *s, struct rs_job *job, uint64_t blob);
/** Finds the path of a file that a commit has sealed, in the head; *ret_path lives as long as the service.
 *  Errors: SC_E_STALE, the head does not have this file. */
int rs_work_sealed_path(struct rs_job *job, uint64_t blob, uint32_t *ret_rank, const char **ret_path,
			struct sc_err *err);
/** Opens the bytes of a working-tree file; SC_E_STALE when it is none any more (sealed, gone). */
int rs_work_open(struct rs_service *s, struct rs_job *job, uint64_t blob, int flags, int *ret_fd,
		 struct sc_err *err);
/** The bytes of a working-tree file, its name and its row on stable storage.  `fd`: open on it. */
int rs_work_sync(struct rs_service *s, uint64_t blob, int fd, bool data_only, struct sc_err *err);
/** Between these, a file of the working tree that is removed keeps its bytes (and can be opened). */
int rs_work_hold(struct rs_service *s, uint64_t blob, struct sc_err *err);
void rs_work_release(struct rs_service *s, uint64_t blob);
/** Between these, no commit seals the file.  The first is called under the lock that found it uncommitted. */
int rs_writer_begin(struct rs_service *s, uint64_t blob, struct sc_err *err);
void rs_writer_end(struct rs_service *s, uint64_t blob);
#define RS_RESERVED_NS INT64_C(1500000000) /* for which a thread may be told to open a file */
/** Keeps a file from commits until rs_writer_redeem(), which must come, or until a time of sc_now_ns(). */
int rs_writer_reserve(struct rs_service *s, uint64_t blob, int64_t until_ns, struct sc_err *err);
void rs_writer_redeem(struct rs_service *s, uint64_t blob);
bool rs_work_is_removed(struct rs_service *s, uint64_t blob);
/** Held while a file of the working tree is opened for writing or changed by its path: no commit seals meanwhile. */
void rs_tree_read_lock(struct rs_job *job);
void rs_tree_unlock(struct rs_job *job);

/* --- numbers of paths, for nodeids --- */

/** The number of a path of this job, whose `error` says so when there is none left. */
int rs_path_id(struct rs_job *job, const char *path, uint64_t *ret, struct sc_err *err);
/** The text of a path's number; lives as long as the service. */
int rs_path_text(struct rs_service *s, uint64_t id, const char **ret, struct sc_err *err);

#endif
