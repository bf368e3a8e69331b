/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Sources: the bytes of a file as memory, and whether they are there yet.
 *
 *     place ── rs_place_open() ──> struct rs_bytes ── need ──> read ── release
 *
 * A file of this store ("local") is always there.  Of another kind, a range is there from a need() that
 * answered RS_HERE until its release(): every read is between the two.  Nobody touches `map` but the functions
 * named *_read (here, in sources.h, image.h and data/part.h), rs_sources_digest(), and the kernel: where a file was
 * cut or its disk fails, they answer SC_E_DAMAGED, and the process would end by SIGBUS without them.
 *
 * Callers use the functions below, never a member of struct rs_source_ops.
 */
#ifndef RS_SOURCE_H
#define RS_SOURCE_H

#include "meta/base/err.h"
#include "reshard/engine/plan/plan.h"

enum { RS_HERE = 0, RS_LATER = 1 };

/** Is embedded in a struct that waits for bytes, and lives until it is called. */
struct rs_done {
	/** Once, on any thread, with no lock held.  `err` NULL: ask again. */
	void (*call)(struct rs_done *done, const struct sc_err *err);
};

/**
 * A need of several ranges (sources.h, image.h) that is asked for more than once.  It is embedded in a struct that
 * waits, zeroed but for done.call.  Ranges that are there stay while others are waited for: if ranges came and went one
 * by one, all would never be there at once.
 */
struct rs_later {
	struct rs_done done;		/* is called after each RS_LATER */
	uint64_t bytes;			/* of an image: so many are there from the beginning */
	uint32_t copies;		/* and of the gather that comes next so many copies */
};

/** Shared; the bytes never change.  Every kind's own struct begins with this one. */
struct rs_bytes {
	const struct rs_source_ops *ops;
	const unsigned char *map;	/* NULL when there are none; see above */
	uint64_t bytes;
	uint64_t blob;			/* for messages; 0: none of this store */
};

/** Any thread. */
struct rs_source_ops {
	const char *name;
	/** A reference.  May block for a directory, not for bytes.
	 *  Errors: SC_E_SYSTEM, SC_E_DAMAGED (another size, EIO, gone), SC_E_NO_MEMORY. */
	int (*open)(void *arg, uint64_t id, uint64_t bytes_expected, struct rs_bytes **ret, struct sc_err *err);
	void (*close)(void *arg, struct rs_bytes *b);
	/** A descriptor of the same bytes, O_RDONLY, the caller's to close: for reflink, read(), O_DIRECT.  What is
	 *  read by it was needed before, too. */
	int (*fd)(struct rs_bytes *b, int *ret_fd, struct sc_err *err);
	/**
	 * RS_HERE: [at, at + bytes) is there and stays until the matching release().  RS_LATER: it is not, `done`
	 * will be called; nothing is to be released.  With `done` it never blocks; without, it blocks and never
	 * answers RS_LATER.  NULL: all bytes are always there.
	 */
	int (*need)(struct rs_bytes *b, uint64_t at, uint64_t bytes, struct rs_done *done, struct sc_err *err);
	void (*release)(struct rs_bytes *b, uint64_t at, uint64_t bytes);
	/** Begins to bring bytes that will be needed soon, as far as there is room; nothing is to be released.  NULL
	 *  where `need` is. */
	void (*ahead)(struct rs_bytes *b, uint64_t at, uint64_t bytes);
};

/** These call the members of struct rs_source_ops, see there. */
int rs_place_open(const struct rs_place *place, struct rs_bytes **ret, struct sc_err *err);
void rs_place_close(const struct rs_place *place, struct rs_bytes *b);
int rs_bytes_fd(struct rs_bytes *b, int *ret_fd, struct sc_err *err);
/** at + bytes is within the file. */
int rs_bytes_need(struct rs_bytes *b, uint64_t at, uint64_t bytes, struct rs_done *done, struct sc_err *err);
void rs_bytes_release(struct rs_bytes *b, uint64_t at, uint64_t bytes);
void rs_bytes_ahead(struct rs_bytes *b, uint64_t at, uint64_t bytes);

/** Waits for the bytes and fills `to`; at + bytes is within the file.  Errors: SC_E_DAMAGED, those of need(). */
int rs_bytes_read(struct rs_bytes *b, uint64_t at, uint64_t bytes, void *to, struct sc_err *err);
/** Reads by a descriptor; blob 0: a file that is none of the store's.  Errors: SC_E_DAMAGED, SC_E_SYSTEM. */
int rs_fd_read(int fd, uint64_t blob, uint64_t at, uint64_t bytes, void *to, struct sc_err *err);
/** Makes the error of a read if byte `at` can't be read. */
int rs_cannot_read(uint64_t blob, uint64_t at, int errnum, struct sc_err *err);

#endif
