/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Places the sources of gathers, opens them together, needs and reads their bytes.
 */
#ifndef RS_SOURCES_H
#define RS_SOURCES_H

#include "reshard/engine/io/digest.h"
#include "reshard/engine/io/local.h"
#include "reshard/engine/plan/placed.h"

struct meta_catalog;

/** How an image finds what its bytes are made of; filled by whoever owns the versions. */
struct rs_origins {
	void *arg;
	/** The view under which a tensor is stored (by its logical file); NULL: it is placed. */
	rs_origin_fn *view_of;
	/** Where the boxes of a tensor without such a view are. */
	const struct rs_placed_tensor *(*placed_of)(void *arg, const struct meta_tensor *tensor);
	/** What else is in the folder of such a logical file. */
	const struct rs_placed_objects *(*objects_of)(void *arg, const char *logical);
	/** The format of the files of such a view. */
	const struct rs_format_ops *(*format_of)(void *arg, const struct meta_view *stored);
	/** The blob here of a rank's stored file of such a view; false: there is none.  No I/O. */
	bool (*blob_of)(void *arg, const struct meta_view *stored, uint32_t rank, const char *file,
			uint64_t *ret_blob, uint64_t *ret_bytes);
	/**
	 * What decides the bytes of all views of a logical file, however it is stored: materialization must
	 * not change one of them.  The payload of a rank's file, by number (0: none, or one that all ranks have), and
	 * its bytes, NULL or in the arena or where they live as long as the version; and the byte of a block at which
	 * a tensor began where it was written.  `like`: a tensor of the file.
	 */
	uint64_t (*payload_of)(void *arg, const struct meta_view *view, uint32_t rank, const char *file,
			       const struct meta_tensor *like);
	int (*payload)(const struct rs_origins *o, uint64_t number, const struct meta_tensor *like,
		       struct sc_arena *arena, const char **ret, size_t *ret_bytes, struct sc_err *err);
	struct meta_catalog *catalog;	/* of payload() */
	uint32_t (*skew_of)(void *arg, const struct meta_tensor *tensor);
	/**
	 * Fills `place` of sources, once, before they are opened.  What it leaves without one, or all if this is
	 * NULL, is the tensor of that name in the blob of blob_of(), among `blobs`.  With nr > 0 it may replace
	 * copies of the gathers and add sources, but not change the resulting bytes.  What it places is row-major.
	 * Errors: SC_E_NOT_FOUND, SC_E_NO_MEMORY, others of its kind.
	 */
	int (*place)(void *arg, struct rs_gather *gathers, uint32_t nr, struct rs_sources *sources, struct sc_err *err);
	struct rs_blobs *blobs;
	/** In which format files are laid out; NULL: in their own.  What is no tensor of another one is left out. */
	const struct rs_format_ops *as;
	/** Names that tensors have in files instead of their own, until `from` is NULL; `to` NULL: it is left out. */
	const struct rs_renamed {
		const char *from, *to;
	} *renamed;
	bool anywhere;	/* of replicas none is read because it is here: all nodes of a cluster read the same */
};

/** The kinds of this room, NULL at the end; the first is that of a store's own files.  Others come with their places
 *  (reshard/engine/remote). */
extern const struct rs_source_ops *const rs_source_kinds[];

/** Sources, opened.  The arrays are in the arena that was given. */
struct rs_mapped {
	const struct rs_sources *sources;
	const unsigned char **data;	/* of each: byte 0 of its tensor */
	struct rs_bytes **bytes;	/* of each: the file that it is in; sources may share one */
	const struct rs_order **orders;	/* of each: how it lies; NULL: row-major */
	bool *opened;			/* of each: its file was opened for it, and is closed with it */
	bool waits;			/* not all bytes of all of them are always there */
};

/** Places and opens the sources of gathers, and makes the gathers read them in the order in which their bytes lie;
 *  rs_sources_close() ends it.  Errors: those of `place`, of rs_blob_get() and rs_place_open(); SC_E_FORMAT (a file
 *  lacks a tensor).  On failure the gathers are as they were, but for what `place` did. */
int rs_sources_open(struct rs_sources *sources, struct rs_gather *gathers, uint32_t nr,
		    const struct rs_origins *origins, struct sc_arena *arena, struct rs_mapped *ret,
		    struct sc_err *err);
void rs_sources_close(struct rs_mapped *mapped);
/** Makes a gather that was added to after the sources were opened read them as they lie. */
void rs_sources_reorder(const struct rs_mapped *mapped, struct rs_gather *gather);

/** Needs the source bytes of which bytes [at, at + bytes) of a gather are made: they are there from RS_HERE until
 *  rs_sources_release() with the same arguments.  It is like `need` in source.h, with `later` for its `done`; but after
 *  RS_LATER some bytes may be there: when done is called, the caller asks once more, or gives up.  Errors name the
 *  source. */
int rs_sources_need(const struct rs_mapped *mapped, const struct rs_gather *gather, uint64_t at, uint64_t bytes,
		    struct rs_later *later, struct sc_err *err);
/** Releases the bytes of a need that has answered RS_LATER, once done was called. */
void rs_sources_give_up(const struct rs_mapped *mapped, const struct rs_gather *gather, uint64_t at, uint64_t bytes,
			struct rs_later *later);
void rs_sources_release(const struct rs_mapped *mapped, const struct rs_gather *gather, uint64_t at, uint64_t bytes);
/** Asks for the bytes of a gather ahead: `ahead` in source.h. */
void rs_sources_ahead(const struct rs_mapped *mapped, const struct rs_gather *gather, uint64_t at, uint64_t bytes);
/** Fills `to` with bytes of a gather, which were needed before.  Errors: SC_E_DAMAGED, which names the source. */
int rs_sources_read(const struct rs_mapped *mapped, const struct rs_gather *gather, uint64_t at, uint64_t bytes,
		    unsigned char *to, struct sc_err *err);
/** Digests the bytes that one copy puts into [at, at + bytes) of its target, whose byte 0 is byte `base` of the tensor.
 *  They were needed before.  Errors: those of rs_sources_read(). */
int rs_sources_digest(const struct rs_mapped *mapped, const struct rs_copy *copy, uint64_t at, uint64_t bytes,
		      uint64_t base, struct rs_digester *digester, struct sc_err *err);
/** Runs fn(arg), which reads needed bytes of the sources, under the guard.  Errors: as rs_sources_read(). */
int rs_sources_guard(const struct rs_mapped *mapped, void (*fn)(void *arg), void *arg, struct sc_err *err);

#endif
