/* SPDX-License-Identifier: Apache-2.0 */
/* Shared by the files of fs/: the mounted file system, open files, replies. */
#ifndef FS_I_H
#define FS_I_H

#define FUSE_USE_VERSION 318
#include <fuse_lowlevel.h>
#include <poll.h>
#include <pthread.h>

#include "fs/handover/hold.h"
#include "fs/node/node.h"
#include "meta/base/log.h"
#include "reshard/job/control.h"

/*
 * Over io_uring a parked request keeps an entry of its core's ring, and a ring without entries stops
 * that core: waiters, long commands and what is parked together must be fewer than the entries of one ring.
 */
#define FS_RING_ENTRIES 256	/* memory that no request has used is none */
#define FS_RING_WAITERS 8
#define FS_LONG_THREADS 4	/* that answer verify and data */
#define FS_RING_PARKED 224	/* that wait for a job, or are commands of one: parked.c */

#define FS_GENERATION_SHIFT 40	/* of file handles */
#define FS_COMMITTED_BUCKETS 4096
#define FS_FOLDERS_TOLD 4096	/* that the kernel was told attributes of; others share an entry */
#define FS_LISTED_MAX 4096	/* folders whose names the kernel keeps */
#define FS_FOREVER 1e9	/* seconds: names are made stale by the epoch, not by time */

struct fs_name {
	char *name;
	mode_t type;
	uint64_t ino;			/* 0: of what the name is looked up as */
};

/** An open file.  A file handle is its number in the table, and the generation of the daemon. */
struct fs_handle {
	enum { FS_H_DIR = 1, FS_H_CONTROL, FS_H_VIEW, FS_H_FD, FS_H_PASS, FS_H_GPU } kind;
	uint64_t ino;
	uint64_t number;		/* what the kernel calls it */
	uint64_t object;		/* its number in a working tree; 0: nobody has asked for it yet */
	bool writes;
	uint32_t writer;		/* its entry of writers.c + 1; 0: it has none */
	uint64_t held;			/* the blob whose file is not removed before this is closed */
	uint32_t kept;			/* its entry of opens.c + 1; 0: it has none */
	bool later;			/* of an earlier daemon, not opened by this one yet; atomic */
	/* DIR */
	bool is_listed;
	bool fills;			/* the kernel keeps what it reads by this one (listings.c) */
	struct rs_listing listing;	/* of a folder of a working tree */
	struct fs_names {		/* of another one */
		struct fs_name *at;
		size_t nr, room;
	} names;
	/* CONTROL */
	struct fs_control *control;
	/* a committed file, whatever becomes of its version */
	struct rs_view *view;
	uint64_t blob;			/* 0: a view */
	uint64_t bytes;
	bool is_committed;		/* it is in `committed` of struct fs */
	struct fs_handle *next;		/* there, with the same remainder of its ino */
	/* VIEW */
	struct rs_image *image;		/* or NULL: */
	struct rs_data_file *data;
	/* FD: reads and writes go through the daemon */
	int fd;
	/* GPU: of the image, or of what fd is open for */
	struct rs_load *load;
};

struct fs {
	struct rs_service *service;
	struct fuse_session *se;
	struct {
		pthread_t thread;
		bool is_needed, is_there, stop; /* this is a node of a cluster; the thread runs; atomic */
	} looker;			/* service.c */
	uid_t uid;
	gid_t gid;
	bool passthrough;	/* the kernel and our privileges allow it */
	bool epoch;		/* names can be made stale at once */
	bool no_passthrough;	/* by option */
	void (*on_ring)(void);	/* what a thread of a ring calls first: fs_parked_ring() */
	bool is_held;		/* likewise: another daemon may take over */
	bool rings;		/* by option: FUSE over io_uring */
	bool io_uring;		/* requests do come by rings, atomic */
	bool kills_set_id;	/* SUID and SGID go at a write or chown by us: FUSE_HANDLE_KILLPRIV_V2 */
	int64_t began_ns;
	int64_t took_over_ns;	/* sc_now_ns(); long ago: it did not */
	pthread_mutex_t lock;	/* handles, committed, and in `kept` backings, told_stale, writers, reserved */
	bool are_told_stale;		/* there are such; atomic */
	struct {
		uint32_t *at;
		size_t nr, room;
	} free_writers;			/* entries that are none, below kept->nr_writers */
	struct {
		uint32_t *at;
		size_t nr, room;
	} free_opens;			/* likewise, below kept->nr_opens */
	int64_t lost_opens_ns;		/* likewise */
	int64_t lost_writers_ns;	/* when those are dropped that nobody asked for again; 0: there are none */
	struct fs_handle *committed[FS_COMMITTED_BUCKETS]; /* open files of versions */
	struct fs_folder_told {		/* of folders with the same remainder of their node; under lock */
		fuse_ino_t ino;
		int64_t ns;		/* when the kernel was told attributes of it */
		int64_t other_ns;	/* when for another thread than before */
		int64_t changed_ns;	/* when names changed */
		pid_t thread;		/* who asked or changed last */
		bool is_other;		/* somebody else has asked since the last change */
		bool is_shared;		/* by several folders */
	} told[FS_FOLDERS_TOLD];	/* folders.c */
	struct fs_listed {		/* a folder whose names the kernel may know; under lock */
		fuse_ino_t ino;
		uint64_t changes;	/* rs_tree_list_changes() when it was opened last */
		uint64_t filler;	/* the open folder by which they are read; 0: none */
	} listed[FS_LISTED_MAX];	/* listings.c */
	struct {
		struct fs_handle **at;
		size_t nr, room;
	} handles;
	struct {
		size_t *at;
		size_t nr, room;
	} free_handles;
	struct fs_kept *kept;		/* backings under lock, too */
	bool replays;			/* the request came to a daemon that died */
	pthread_mutex_t adopt_lock;
	struct {
		pthread_mutex_t lock;
		pthread_cond_t wake;
		pthread_t thread;
		bool stop;
		struct fs_written {
			fuse_ino_t *at;
			size_t nr, room;
		} files;
	} write_back;			/* write_back.c */
	struct {
		pthread_mutex_t lock;
		pthread_cond_t wake;
		pthread_t thread;
		bool started, stop, all;
		bool is_urgent;		/* bytes may be given back */
		bool is_busy;		/* with nodes that it has taken */
		pthread_cond_t settled;	/* signalled when the thread is done with these nodes */
		struct fs_nodes {
			fuse_ino_t *at;
			size_t nr, room;
		} nodes, later;		/* `later`: of a job whose gate was closed */
	} forget;			/* forget.c */
	/* waiters and polls: notify.c */
	pthread_mutex_t notify_lock;
	pthread_cond_t notify_wake;
	pthread_t notifier;
	bool stop, news;
	struct fs_waiter *waiters;
	int ring_waiters;		/* and parked reads that hold an entry of a ring, atomic */
	struct fs_poll *polls;		/* of open control files that somebody polls */
	struct {
		pthread_mutex_t lock;
		pthread_cond_t wake;
		pthread_t thread;
		bool started, stop;
		int nr;			/* parked, and about to be; atomic */
		uint32_t nr_interrupted;
		struct fs_read *parked;
		struct fs_read *told, **told_end; /* of these, whose bytes have come: first come, first answered */
	} reads;			/* reads.c */
	struct {
		pthread_mutex_t lock;
		pthread_cond_t news;
		bool stop;
		int nr;
		struct fs_gpu_open *opens; /* that are not answered */
	} gpu;				/* gpu.c */
	int long_threads, waiting_threads; /* that answer verify and data, and other commands; atomic */
	dev_t device;			/* the mount's */
};

/* reply.c */
struct fs *fs_of(fuse_req_t req);
/** True if the request arrived on a ring and the session has ended: the ring is gone, and the kernel has already failed
 *  the request.  Do not reply. */
bool fs_is_lost(const struct fs *fs, bool by_ring);

/* handles.c */
/** Adds an open file and returns its number; 0: out of memory.  Takes `h`. */
uint64_t fs_handle_add(struct fs *fs, struct fs_handle *h);
struct fs_handle *fs_handle_get(struct fs *fs, uint64_t fh);
/** Tells whether this daemon has given the number, not an earlier one. */
static inline bool fs_handle_is_mine(const struct fs *fs, uint64_t fh)
{
	return fh >> FS_GENERATION_SHIFT == fs->kept->generation;
}

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

/* takeover.c */
/** Reads and answers the kernel's first request. */
int fs_begin(struct fs *fs, struct sc_err *err);
/** Continues the session of a daemon that died. */
int fs_take_over(struct fs *fs, struct sc_err *err);

/* kept.c */
/** Registers a command of this handle; NULL: too many at once, so it will not be recognised if it is resent.
 *  *ret_is_replay: a daemon that died had begun the command. */
struct fs_command *fs_command_begin(struct fs *fs, uint64_t fh, const void *text, size_t bytes, off_t at,
				    bool *ret_is_replay);
void fs_command_end(struct fs_command *c);
/** Registers that reading this handle's text has begun. */
void fs_text_begun(struct fs *fs, uint64_t fh, uint64_t bytes);
/** Tells whether the text was read at least up to `at`, and ended there. */
bool fs_text_is_read(struct fs *fs, uint64_t fh, uint64_t at);
/** Registers (`begun`) or unregisters a document of this handle that is not judged yet. */
void fs_document(struct fs *fs, uint64_t fh, bool begun);
/** Tells whether the handle had such a document in a daemon that died. */
bool fs_document_is_lost(struct fs *fs, uint64_t fh);

/* requests.c: with -o hold, requests that come again */
/** Sees to it that each request is entered under its number before it is served; when the session is mounted. */
int fs_requests_begin(struct fs *fs, struct sc_err *err);
/** Judges the requests that an earlier daemon had entered; before the first one comes again. */
void fs_requests_load(struct fs *fs);
/** Tells whether the request that this thread has read comes again. */
bool fs_request_comes_again(void);
/** Tells whether it does, and an earlier daemon has made its record. */
bool fs_was_done(void);
/** What this thread has read is answered; for those that come again, and those that were parked. */
void fs_request_answered(void);
/** Returns the kernel's number of what this thread has read, or serves; 0: it is not known, without -o hold. */
uint64_t fs_request_number(void);
/** Enters a request that another thread has read, and this one serves now. */
void fs_request_runs(struct fs *fs, uint64_t number);
/** All requests that came again are answered. */
void fs_requests_settle(struct fs *fs);

/* again.c */
/** Registers that a request of this thread fails with ESTALE: the kernel retries lookup and open once; a second ESTALE
 *  would reach the program.  `copies`: it wants to write to a committed file, and only the lookup of its name can copy
 *  that up. */
void fs_told_stale(struct fs *fs, pid_t thread, bool copies);
/** Returns when this thread, which is retrying, was told so (0: it is not retrying), and whether its lookup copies. */
int64_t fs_looks_again(struct fs *fs, pid_t thread, bool *ret_copies);
/** The open of the retry is answered: what the thread was told until then is over. */
void fs_looked_again(struct fs *fs, pid_t thread, int64_t told);

/* writers.c */
/** Counts a handle that may write to this file of a working tree.  Under rs_tree_enter().
 *  Errors: ENFILE (too many), SC_E_NO_MEMORY. */
int fs_writer_begin(struct fs *fs, struct fs_handle *h, uint64_t blob, pid_t thread, struct sc_err *err);
/** Registers that the kernel has got handle `fh`, with this h->writer; the kernel may already have closed it. */
void fs_writer_answered(struct fs *fs, uint32_t writer, uint64_t fh);
/** Ends the count of handle `fh`, before the kernel is answered; h is NULL for one of an earlier daemon. */
void fs_writer_end(struct fs *fs, const struct fs_handle *h, uint64_t fh);
/** Keeps a file of a working tree from being committed until this thread opens it, or for RS_RESERVED_NS.
 *  Under rs_tree_enter(). */
void fs_reserve(struct fs *fs, uint64_t blob, pid_t thread);
void fs_redeem(struct fs *fs, uint64_t blob, pid_t thread);
/** Counts the handles that earlier daemons had counted, before anything is served. */
int fs_writers_load(struct fs *fs, struct sc_err *err);
/** Call when all resent requests are answered. */
void fs_writers_settle(struct fs *fs);
/** Drops expired entries, before a commit counts writers. */
void fs_writers_check(struct fs *fs);

/* opens.c */
/** Gives an open file, not answered yet, an entry by which the next daemon knows it. */
void fs_open_keep(struct fs *fs, struct fs_handle *h);
/** Registers that the kernel has got handle `fh`, with this h->kept; the kernel may already have closed it. */
void fs_open_answered(struct fs *fs, uint32_t kept, uint64_t fh);
/** End an entry.  Under fs->lock. */
void fs_open_drop(struct fs *fs, struct fs_handle *h);
void fs_open_forget(struct fs *fs, uint32_t at);

/* reply.c: the only place where failures become replies */
void fs_fail(fuse_req_t req, const char *op, const struct sc_err *err);
/** Refuses a command: keeps the sentence for the `error` of the job (NULL: of the mount), logs it, and replies.
 *  Returns the errno. */
int fs_refuse(fuse_req_t req, struct rs_job *job, const char *command, const struct sc_err *err);

/* node.c: nodes and what they are of */
/** Returns the rank of a node of this view; RS_SHARED: it is the job's own. */
uint32_t fs_rank(const struct fs_node *n, const struct rs_view *view);
/** Returns the job of a node; NULL: it was removed. */
struct rs_job *fs_job(struct fs *fs, const struct fs_node *n);
/** Refuses a change of what is only shown: SC_E_SEALED. */
int fs_fail_sealed(struct sc_err *err);
/** Returns the row of a control file's node; NULL: the node is no control file. */
const struct rs_control *fs_control_of(const struct fs_node *n);
/** Returns the node of a folder, link or special file of a working tree. */
struct fs_node fs_node_of_number(struct rs_job *job, uint64_t number);
/** Returns the node that what was looked up by number has now. */
struct fs_node fs_node_of_look(struct rs_job *job, const struct rs_look *look);
/** Registers of which object the node of a written file is, before the kernel is told of the node. */
void fs_number_keep(struct fs *fs, uint64_t ino, uint64_t number);
/** Finds the object of a written file's node, also if an earlier daemon has committed it; 0: it is nothing any more. */
int fs_number_of_bytes(struct fs *fs, struct rs_job *job, const struct fs_node *n, uint64_t *ret, struct sc_err *err);
/** Finds a node's number in the working tree of its job.  Errors: SC_E_STALE (it is nothing any more), SC_E_SEALED
 *  (it is of a version), SC_E_PERMISSION (a control file, or the mount's root). */
int fs_number(struct fs *fs, const struct fs_node *n, struct rs_job **ret_job, uint64_t *ret, struct sc_err *err);
/** Gives the view of a node that has a place, and its path there. */
int fs_view(struct fs *fs, const struct fs_node *n, struct rs_view **ret, const char **ret_path, struct sc_err *err);
bool fs_rank_number(const char *name, uint32_t *ret);
/** A name in a folder of a working tree, for what changes it. */
struct fs_folder {
	struct rs_job *job;
	uint64_t number;
	struct meta_bytes name;
};
/** Errors: SC_E_SEALED (in another folder), SC_E_PERMISSION (a name that is ours). */
int fs_folder(struct fs *fs, uint64_t parent, const char *name, struct fs_folder *ret, struct sc_err *err);
/** Gives the node of the folder above a folder. */
int fs_parent(struct fs *fs, const struct fs_node *n, struct fs_node *ret, struct sc_err *err);

/* session.c */
struct fs_mount_options;
int fs_session_new(struct fs *fs, const struct fs_mount_options *o, struct sc_err *err);
void fs_session_read_ahead(dev_t device);	/* larger for this mount only: views through mmap are twice as fast */

/* service.c */
struct rs_member_options;
int fs_service_start(struct fs *fs, const struct rs_options *options, const struct rs_member_options *member,
		     struct sc_err *err);
/** Looks, beside the session's loop, whether it ends, and then lets no request wait for other nodes any more. */
void fs_service_look(struct fs *fs);
void fs_service_looked(struct fs *fs);	/* the loop has ended */
/** Lets no command wait for other nodes any more: before those that run are waited for. */
void fs_service_leave(struct fs *fs);
void fs_service_end(struct fs *fs);
/** Prints the files of /.ctl that describe the mount; for struct rs_events. */
void fs_describe(void *arg, const char *name, struct sc_buf *buf);

/* current.c */
/** Waits until what a name in a folder is found as is the newest (NULL: what the folder lists).  Errors: SC_E_STATE. */
int fs_current(struct fs *fs, uint64_t folder, const char *name, struct sc_err *err);
/** Returns for how long the kernel may keep a name or attributes, at most so many seconds. */
double fs_keep(struct fs *fs, double seconds);

/* stat.c */
struct fs_found {
	struct fs_node node;
	struct stat st;
	double timeout;
	uint64_t changes;	/* of a folder of a working tree: rs_tree_applied(), of when it was looked up */
};
int fs_stat(struct fs *fs, uint64_t ino, struct fs_found *ret, struct sc_err *err);
/** Gives node and attributes of what was looked up in a working tree by number. */
int fs_stat_look(struct fs *fs, struct rs_job *job, const struct rs_look *look, struct fs_found *ret,
		 struct sc_err *err);
/** Gives those of what is at a path of a view, as the view has it.  Errors: SC_E_NOT_FOUND, without a message. */
int fs_stat_path(struct fs *fs, struct rs_view *view, uint32_t rank, const char *path, struct fs_found *ret,
		 struct sc_err *err);
/** Fails with SC_E_NOT_FOUND, without a message: that is no failure. */
int fs_no_entry(struct sc_err *err);

/* resolve.c */
/** Looks a name up.  Errors: SC_E_NOT_FOUND, without a message, if there is no such name. */
int fs_lookup(struct fs *fs, uint64_t parent, const char *name, struct fs_found *ret, struct sc_err *err);
void fs_entry(struct fs *fs, const struct fs_found *found, struct fuse_entry_param *ret);

/* list.c */
/** Lists a folder that is none of a working tree, by names; fs_names_done() frees them, also after an error. */
int fs_list(struct fs *fs, uint64_t ino, struct fs_names *ret, struct sc_err *err);
/** Tells whether a folder is of a working tree, so that it has a struct rs_listing. */
static inline bool fs_is_listed_by_number(const struct fs_node *n)
{
	return n->kind == FS_JOB || n->kind == FS_INODE || n->kind == FS_IMPLIED;
}

/* folders.c */
/** Lets the kernel keep the attributes of a folder, if it may, which it is about to be told: sets found->timeout. */
void fs_folder_told(fuse_req_t req, struct fs *fs, struct fs_found *found);
/** Makes the kernel ask again for those of a folder in which a name has come or gone, before the reply to that. */
void fs_folder_changed(fuse_req_t req, struct fs *fs, fuse_ino_t ino);

/* listings.c */
/** Lets the kernel keep what it reads by an open folder, which is in the table, if it may: sets `fi`. */
void fs_listing_opened(struct fs *fs, struct fs_handle *h, struct fuse_file_info *fi);
void fs_listing_closed(struct fs *fs, const struct fs_handle *h);

/* room.c */
/** Waits, 0.1 s at most, until the bytes of removed files are free, after a command has found no room.  Returns whether
 *  there was anything to wait for. */
bool fs_room_for_command(struct fs *fs);
/** Waits in the same way before a file is made, if less than 256 MiB are free. */
void fs_room_for_file(struct fs *fs);
/** Waits in the same way before statfs(2) is answered. */
void fs_room_to_show(struct fs *fs);

/* forget.c */
int fs_forget_start(struct fs *fs, struct sc_err *err);
void fs_forget_stop(struct fs *fs);
/** Looks, soon, whether a node's object, if it has no name, is known to the kernel; drops it if it is not. */
void fs_forget(struct fs *fs, fuse_ino_t ino);
/** Looks again at those that a job's gate kept, and serves what waits for it: it has opened; for struct rs_events. */
void fs_opened(void *arg, struct rs_job *job);
/** Tells whether the kernel knows an object that is no regular file; for struct rs_events. */
bool fs_is_known(void *arg, struct rs_job *job, uint64_t number);
/** Does so with all objects that have no name: after a take-over, and after a command that may have taken names. */
void fs_forget_all(struct fs *fs);

/* control.c */
/** Opens a control file; fs_control_close() closes it.  `job`: NULL for a file of the mount. */
int fs_control_open(fuse_req_t req, struct fs *fs, struct rs_job *job, const struct rs_control *row, int flags,
		    struct fs_control **ret, struct sc_err *err);
/** Registers that text written to the file before the daemon was replaced is lost. */
void fs_control_lost(struct fs *fs, struct fs_control *c, uint64_t fh);
void fs_control_close(struct fs *fs, struct fs_control *c);
void fs_control_read(fuse_req_t req, struct fs *fs, struct fs_control *c, uint64_t fh, size_t bytes, off_t at);
void fs_control_write(fuse_req_t req, struct fs *fs, struct fs_control *c, uint64_t fh, const char *text,
		      size_t bytes, off_t at);
void fs_control_flush(fuse_req_t req, struct fs *fs, struct fs_control *c, uint64_t fh);
void fs_control_poll(fuse_req_t req, struct fs *fs, struct fs_control *c, struct fuse_pollhandle *ph);

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

/* write_back.c: starts writing a file of a working tree to the device, soon */
void fs_write_back(struct fs *fs, fuse_ino_t ino);
int fs_write_back_start(struct fs *fs, struct sc_err *err);
void fs_write_back_stop(struct fs *fs);

/* notify.c */
int fs_notify_start(struct fs *fs, struct sc_err *err);
void fs_notify_stop(struct fs *fs);
void fs_notify_news(struct fs *fs);
/** Parks a write of `bytes` to a control file (0: its close); one of the next two functions takes it over. */
struct fs_waiter *fs_notify_new(fuse_req_t req, struct fs *fs, struct rs_job *job, const struct rs_control *row,
				size_t bytes);
/** Answers the write when rs_control_held() of its row says that `held` is over. */
void fs_notify_hold(struct fs_waiter *w, uint64_t held);
/** Answers the write from another thread, with `err` if it holds an error; then ends `command` (or NULL). */
void fs_notify_done(struct fs_waiter *w, struct fs_command *command, const struct sc_err *err);
/** What a control file's poll(2) waits for: part of the open file, used by the four below only. */
struct fs_poll {
	struct rs_job *job;		/* NULL: there is never news */
	uint64_t seen;			/* news that its reader has got; atomic */
	struct fuse_pollhandle *ph;	/* whom to tell; under notify_lock */
	struct fs_poll *next;
};
/** Marks all changes up to now as seen; p->job is not NULL. */
void fs_poll_seen(struct fs_poll *p);
bool fs_poll_has_news(const struct fs_poll *p);
/** Answers a poll.  Takes `ph` (or NULL), which is notified of the next change. */
void fs_poll_begin(fuse_req_t req, struct fs *fs, struct fs_poll *p, struct fuse_pollhandle *ph);
/** Ends a poll, before the open file is freed. */
void fs_poll_end(struct fs *fs, struct fs_poll *p);

/** A read of a view: of `bytes` bytes, one at least, and no more than there are. */
struct fs_seen {
	struct fs *fs;
	fuse_req_t req;
	struct rs_image *image;
	struct rs_view *view;
	fuse_ino_t ino;
	size_t bytes;
	uint64_t at;
};
/* seen.c */
/** Answer a read: with bytes that were needed, or with an error, which the job's `error` keeps. */
void fs_send_seen(const struct fs_seen *seen);
void fs_fail_seen(const struct fs_seen *seen, const struct sc_err *err);
/** Answers a read of a partition. */
void fs_read_data(fuse_req_t req, struct fs *fs, const struct fs_handle *h, size_t bytes, uint64_t at);
void fs_buffers_done(void);	/* at the end */

/* reads.c */
/** Answers a read of an image that may wait (rs_mapped.waits), at once or, from another thread, when its bytes have
 *  come. */
void fs_read_late(const struct fs_seen *seen);
/** At the end: answers what is parked, and waits until no source will call. */
void fs_reads_stop(struct fs *fs);

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
/** Opens a node of a view: h->view at `path`; `again`: the caller will not retry. */
/** Opens the file of h->blob, of h->bytes, at a node of h->view, whose bytes another node has. */
int fs_open_elsewhere(struct fs *fs, const struct fs_node *n, struct fs_handle *h, struct fuse_file_info *fi,
		      struct sc_err *err);
int fs_open_image(struct fs *fs, const struct fs_node *n, const char *path, bool again, struct fs_handle *h,
		  struct fuse_file_info *fi, struct sc_err *err);
int fs_open_control(fuse_req_t req, struct fs *fs, const struct fs_node *n, struct fs_handle *h,
		    struct fuse_file_info *fi, struct sc_err *err);

/* reopen.c */
/** Reopens a file or folder that an earlier daemon had open.  `req` may be NULL except for a control file. */
int fs_reopen(fuse_req_t req, struct fs *fs, struct fs_handle *h, uint64_t fh, int flags, struct sc_err *err);
/** Returns the open file of a request; reopens one that an earlier daemon had open.  NULL: that failed, and the
 *  request is answered. */
struct fs_handle *fs_handle_of(fuse_req_t req, struct fs *fs, uint64_t ino, struct fuse_file_info *fi);

/* operations: op_*.c */
void op_lookup(fuse_req_t req, fuse_ino_t parent, const char *name);
void op_getattr(fuse_req_t req, fuse_ino_t ino, struct fuse_file_info *fi);
void op_setattr(fuse_req_t req, fuse_ino_t ino, struct stat *attr, int set,
		struct fuse_file_info *fi);
void op_readlink(fuse_req_t req, fuse_ino_t ino);
void op_statfs(fuse_req_t req, fuse_ino_t ino);
void op_opendir(fuse_req_t req, fuse_ino_t ino, struct fuse_file_info *fi);
void op_readdir(fuse_req_t req, fuse_ino_t ino, size_t bytes, off_t at, struct fuse_file_info *fi);
void op_mkdir(fuse_req_t req, fuse_ino_t parent, const char *name, mode_t mode);
void op_mknod(fuse_req_t req, fuse_ino_t parent, const char *name, mode_t mode, dev_t dev);
void op_unlink(fuse_req_t req, fuse_ino_t parent, const char *name);
void op_rmdir(fuse_req_t req, fuse_ino_t parent, const char *name);
void op_rename(fuse_req_t req, fuse_ino_t parent, const char *name, fuse_ino_t new_parent,
	       const char *new_name, unsigned flags);
void op_symlink(fuse_req_t req, const char *link, fuse_ino_t parent, const char *name);
void op_link(fuse_req_t req, fuse_ino_t ino, fuse_ino_t parent, const char *name);
void op_create(fuse_req_t req, fuse_ino_t parent, const char *name, mode_t mode,
	       struct fuse_file_info *fi);
void op_open(fuse_req_t req, fuse_ino_t ino, struct fuse_file_info *fi);
void op_read(fuse_req_t req, fuse_ino_t ino, size_t bytes, off_t at, struct fuse_file_info *fi);
void op_write(fuse_req_t req, fuse_ino_t ino, const char *text, size_t bytes, off_t at,
	      struct fuse_file_info *fi);
void op_flush(fuse_req_t req, fuse_ino_t ino, struct fuse_file_info *fi);
void op_release(fuse_req_t req, fuse_ino_t ino, struct fuse_file_info *fi);
void op_fsync(fuse_req_t req, fuse_ino_t ino, int data_only, struct fuse_file_info *fi);
void op_fsyncdir(fuse_req_t req, fuse_ino_t ino, int data_only, struct fuse_file_info *fi);
void op_forget(fuse_req_t req, fuse_ino_t ino, uint64_t times);
void op_forget_multi(fuse_req_t req, size_t nr, struct fuse_forget_data *forgets);
void op_getxattr(fuse_req_t req, fuse_ino_t ino, const char *name, size_t bytes);
void op_setxattr(fuse_req_t req, fuse_ino_t ino, const char *name, const char *value, size_t bytes, int flags);
void op_listxattr(fuse_req_t req, fuse_ino_t ino, size_t bytes);
void op_removexattr(fuse_req_t req, fuse_ino_t ino, const char *name);
void op_fallocate(fuse_req_t req, fuse_ino_t ino, int mode, off_t at, off_t bytes,
		  struct fuse_file_info *fi);
void op_lseek(fuse_req_t req, fuse_ino_t ino, off_t at, int whence, struct fuse_file_info *fi);
void op_copy_file_range(fuse_req_t req, fuse_ino_t from, off_t from_at,
			struct fuse_file_info *from_fi, fuse_ino_t to, off_t to_at,
			struct fuse_file_info *to_fi, size_t bytes, int flags);
void op_ioctl(fuse_req_t req, fuse_ino_t ino, unsigned int request, void *arg, struct fuse_file_info *fi,
	      unsigned int flags, const void *in, size_t in_bytes, size_t out_bytes);
void op_poll(fuse_req_t req, fuse_ino_t ino, struct fuse_file_info *fi,
	     struct fuse_pollhandle *ph);

#endif
