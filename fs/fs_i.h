/* SPDX-License-Identifier: Apache-2.0 */
/* Shared by the rooms of fs/: the mounted file system, and open files. */
#ifndef FS_I_H
#define FS_I_H

#define FUSE_USE_VERSION 318
#include <fuse_lowlevel.h>
#include <poll.h>
#include <pthread.h>

#include "meta/base/log.h"
#include "meta/base/thread.h"
#include "reshard/service/control.h"

/*
 * Over io_uring a parked request keeps an entry of its core's ring, and a ring without entries stops that core:
 * waiters, long commands and parked requests together must be fewer than the entries of one ring.
 */
#define FS_RING_ENTRIES 256	/* memory that no request has used is none */
#define FS_RING_WAITERS 8
#define FS_LONG_THREADS 4	/* that answer verify and data */
#define FS_RING_PARKED 224	/* that wait for a job, or are commands of one: parked.c */

#define FS_GENERATION_SHIFT 40	/* of file handles */
#define FS_COMMITTED_BUCKETS 4096
#define FS_FOLDERS_TOLD 4096	/* that the kernel was told attributes of; others share an entry */
#define FS_LISTED_MAX 4096	/* folders whose names the kernel keeps */
#define FS_AHEAD_MAX 64		/* files that are open, and folders that stay, ahead of a retry at the same time */
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
		struct sc_thread thread;
		bool is_needed, stop; /* this is a node of a cluster; atomic */
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
	struct fs_ahead {		/* found by a retry (open/ahead.c); until_ns 0: nothing; under lock */
		uint64_t fh;		/* of a file; 0: a folder */
		struct rs_view *view;	/* of a folder, pinned */
		int64_t until_ns;
		pid_t thread;
	} ahead[FS_AHEAD_MAX];
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
		struct sc_thread thread;
		bool stop;
		struct fs_written {
			fuse_ino_t *at;
			size_t nr, room;
		} files;
	} write_back;			/* write_back.c */
	struct {
		pthread_mutex_t lock;
		pthread_cond_t wake;
		struct sc_thread thread;
		bool stop, all;
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
	struct sc_thread notifier;
	bool stop, news;
	struct fs_waiter *waiters;
	int ring_waiters;		/* and parked reads that hold an entry of a ring, atomic */
	struct fs_poll *polls;		/* of open control files that somebody polls */
	struct {
		pthread_mutex_t lock;
		pthread_cond_t wake;
		struct sc_thread thread;
		bool stop;
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

#endif
