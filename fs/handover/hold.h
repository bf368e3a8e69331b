/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The holder (mount -o hold): a process that only keeps /dev/fuse open and starts a daemon.  When the
 * daemon dies another one takes over: it gets the kernel's INIT request as it came, asks the kernel to
 * resend the requests that were not answered, and goes on.  Open files, mappings, directories, working
 * directories and reads in flight of other processes continue.
 *
 * SIGUSR1 to the holder ends the daemon and runs the program anew from where it is installed: an upgrade.
 *
 * Nodeids are made of the catalog's numbers, so they stay valid.  State that is only in memory and must outlive
 * a daemon is in struct fs_kept, which the holder and its daemons share: 7 MiB, of which only the pages that were
 * used take memory.
 */
#ifndef FS_HOLD_H
#define FS_HOLD_H

#include <stdbool.h>
#include <stdint.h>
#include <sys/types.h>

#include "meta/base/err.h"

#define FS_BACKINGS_MAX 32768
#define FS_COMMANDS_MAX 256
#define FS_DOCUMENTS_MAX 64
#define FS_TEXTS_MAX 256
#define FS_WRITERS_MAX 65536
#define FS_RESERVED_MAX 1024
#define FS_OPENS_MAX 65536
#define FS_NUMBERS_MAX 65536
#define FS_REQUESTS_MAX 64	/* more than threads that serve */
#define FS_TOLD_STALE 64	/* threads that retry a lookup at the same time */

struct fs_kept {
	uint64_t layout;		/* version and size of this structure: another program may have another one */
	uint32_t generation;		/* of daemons, from 1 */
	uint32_t live;			/* the last generation that began to serve */
	uint32_t init_bytes;
	unsigned char init[1024];	/* the kernel's first request */
	char message[SC_ERR_BYTES_MAX];	/* why a daemon did not start */
	uint32_t nr_backings;
	struct fs_backing {		/* all passthrough opens of an inode share one backing file */
		uint64_t ino;
		int32_t id;
		uint32_t opens;
	} backings[FS_BACKINGS_MAX];
	struct fs_command {		/* commands that are being carried out */
		uint64_t token;		/* random, 0: none.  In the version that it makes */
		uint64_t fh;
		int64_t at;
		uint64_t text_hash;
		uint32_t generation;
	} commands[FS_COMMANDS_MAX];
	struct fs_text {		/* how long a text is that is being read; the last ones */
		uint64_t fh, bytes;
	} texts[FS_TEXTS_MAX];
	uint32_t next_text;
	uint64_t documents[FS_DOCUMENTS_MAX];	/* handles whose layout is written and not closed; 0: none */
	struct fs_told_stale {		/* who is told to look again */
		int64_t ns;		/* 0: nobody */
		int32_t thread;
		bool copies;		/* its lookup copies the file up */
	} told_stale[FS_TOLD_STALE];
	uint64_t writer_order;
	uint32_t nr_writers;		/* entries in use are below it */
	struct fs_writer {		/* handles that may write: writers.c */
		uint64_t blob;		/* 0: none */
		uint64_t fh;
		uint64_t order;		/* in which they were made */
		int32_t thread;
		uint32_t generation;	/* of the daemon that opened it */
		bool answered;		/* the kernel has this handle */
	} writers[FS_WRITERS_MAX];
	struct fs_reserved {		/* files that a thread was told to open */
		uint64_t blob;		/* 0: none */
		int64_t until_ns;	/* of sc_now_ns() */
		int32_t thread;
	} reserved[FS_RESERVED_MAX];
	uint32_t nr_opens;		/* entries in use are below it */
	struct fs_open {		/* open files: opens.c */
		uint64_t fh;		/* 0: none */
		uint64_t ino, bytes;
		bool writes;
		bool passes;		/* the kernel reads it by itself */
		bool answered;		/* the kernel has this handle */
	} opens[FS_OPENS_MAX];
	struct fs_number {		/* of which object a node of bytes is, of the last ones: node.c */
		uint64_t node;		/* 0: none */
		uint64_t number;
	} numbers[FS_NUMBERS_MAX];
	struct fs_request {		/* what each thread does: requests.c */
		uint64_t unique;	/* the kernel's number; 0: none */
		uint64_t sequence;	/* where its first record in the log ends; 0: it has none */
	} requests[FS_REQUESTS_MAX];
	int32_t lock_fd;		/* of the store's lock, in a daemon that takes over; 0: none */
	uint64_t open_blobs[FS_OPENS_MAX]; /* what each of them is open as; 0: a view, or none */
};

/** Maps zeroed shared memory; *ret_fd (or NULL) is its file.  Returns NULL when out of memory. */
struct fs_kept *fs_kept_new(int *ret_fd);
/** Tells whether this process is a holder that ran the program anew, after SIGUSR1. */
bool fs_is_held(void);

/**
 * Goes on with the mount that systemd has kept for this unit, if it has: afterwards fs_is_held() is true.
 * `mounted`: is the store mounted where it shall be?
 */
void fs_hold_resume(bool mounted);

#define FS_HOLD_ENDED 1
#define FS_HOLD_LEFT 2

struct fs_hold_calls {
	void *arg;
	/* of the child: fuse_fd is -1 in the first one, which mounts; it hands /dev/fuse and the store's lock over by
	 * fs_hold_tell() if tell_fd is not -1, when it serves */
	int (*serve)(void *arg, struct fs_kept *kept, int fuse_fd, int tell_fd, struct sc_err *err);
	void (*live)(void *arg);	/* once, when the first child serves */
	bool (*is_mounted)(void *arg);	/* is the mount still there? */
};

/**
 * Runs `serve` in a child, and in a new child after each that was killed, until one ends by itself.  `argv`: of this
 * program, NULL at its end.  SIGTERM and SIGINT are passed on to the child, which then ends by itself.
 * Returns 0; FS_HOLD_ENDED when the child was killed meanwhile: the caller unmounts; or FS_HOLD_LEFT: the signal has
 * ended the child alone, and the mount stays with systemd.
 * Errors: those of the child.
 */
int fs_hold(const struct fs_hold_calls *calls, char **argv, struct sc_err *err);
int fs_hold_tell(int tell_fd, int fuse_fd, int lock_fd, struct sc_err *err);

#endif
