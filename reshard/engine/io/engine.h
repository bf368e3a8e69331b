/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Engines write images as files.
 *
 *     materialize.c  \                        / host.c   reflink, read, gather; io_uring
 *     made.c          >  rs_engine_write()   <
 *     (tests)        /                        \ (tests)  byte by byte; reads and writes nothing
 *
 * Every kind gives the bytes of rs_image_read().  "host" runs everywhere; its property tests are also those of
 * the other kinds.  Callers use the functions below, never a member of rs_engine_ops.
 */
#ifndef RS_ENGINE_H
#define RS_ENGINE_H

#include "reshard/engine/io/image.h"

struct rs_engine_ops;
struct rs_joint;

/** Every kind's own struct begins with this one. */
struct rs_engine {
	const struct rs_engine_ops *ops;	/* set by rs_engine_open() */
};

/** One file to write.  Borrowed for the call. */
struct rs_target {
	const struct rs_image *image;	/* open, not same_as a blob */
	int fd;				/* of an empty file, O_RDWR */
};

/** Called with the number of bytes written; a non-zero return ends the work with SC_E_CANCELLED.  Thread: any. */
typedef int rs_tick_fn(void *arg, uint64_t bytes);

struct rs_write_options {
	bool will_flush;	/* begin write-back meanwhile: the caller flushes the files afterwards */
	bool clones_only;	/* clones and small pieces; SC_E_UNSUPPORTED where the file system refuses to clone */
	rs_tick_fn *tick;	/* NULL: nobody is told */
	void *arg;
	const struct rs_joint *joint;	/* of several nodes (reshard/engine/gpu/remote.h); NULL: of this one */
};

struct rs_written {
	uint64_t cloned, copied;	/* after success: all bytes of all targets together */
	size_t failed;			/* after an error: the target that it is about; nr: none in particular */
};

struct rs_engine_ops {
	const char *name;	/* as in `config`, `status` and metrics */
	unsigned threads;	/* how many engines may write at once */
	unsigned targets;	/* how many files one call takes */
	bool joins;		/* it makes joint calls */
	/** Checks that the kind can run here (NULL: always); SC_E_UNSUPPORTED has the sentence for `status`.  May
	 *  block; any thread. */
	int (*probe)(struct sc_err *err);
	/** Makes an engine for one thread.  `budget`: bytes of buffers; each kind has a minimum. */
	int (*open)(const struct meta_store *store, uint64_t budget, struct rs_engine **ret, struct sc_err *err);
	void (*close)(struct rs_engine *e);
	/**
	 * Writes all bytes of all targets.  Blocks.  When it returns, also after an error, nobody touches the
	 * descriptors; after an error the caller drops all nr files, which have some of the bytes.
	 * Not flushed.  A kind that falls back to "host" does so inside and answers 0; not of a joint call.
	 * Errors: SC_E_NO_SPACE, SC_E_SYSTEM, SC_E_NO_MEMORY, SC_E_CANCELLED, SC_E_DAMAGED, SC_E_UNSUPPORTED.
	 */
	int (*write)(struct rs_engine *e, const struct rs_target *targets, size_t nr,
		     const struct rs_write_options *how, struct rs_written *ret, struct sc_err *err);
};

#define RS_ENGINES_MAX 3
/** The kinds of this program, NULL at the end.  "host" is the first: it is always there. */
extern const struct rs_engine_ops *rs_engines[RS_ENGINES_MAX + 1];
/** Adds a kind of a room above.  For constructors: before there are threads. */
void rs_engine_add(const struct rs_engine_ops *ops);
/** A kind that rs_engine_choose() asks before all others, or NULL.  Tests set it before they open a store. */
extern const struct rs_engine_ops *rs_engine_extra;

/**
 * Chooses the kind that is named `wanted` (NULL: the best) if it can run here, else "host".
 * *ret_why: NULL, or why it is not the kind that was wanted; valid until this thread calls again.
 */
const struct rs_engine_ops *rs_engine_choose(const char *wanted, const char **ret_why);

/** Makes an engine of a kind, for one thread.  Owner: the caller, rs_engine_close().
 *  Errors: SC_E_NO_MEMORY, SC_E_SYSTEM. */
int rs_engine_open(const struct rs_engine_ops *ops, const struct meta_store *store, uint64_t budget,
		   struct rs_engine **ret, struct sc_err *err);
struct rs_engine *rs_engine_close(struct rs_engine *e);
/** Calls `write` of the engine's kind, see there.  1 <= nr <= e->ops->targets.  `ret` is filled in any case; remote.h
 *  tells of joint calls. */
int rs_engine_write(struct rs_engine *e, const struct rs_target *targets, size_t nr,
		    const struct rs_write_options *how, struct rs_written *ret, struct sc_err *err);

#endif
