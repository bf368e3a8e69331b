/* SPDX-License-Identifier: Apache-2.0 */
/*
 * An image: the bytes of one rank file of a view, described and not stored: the frame that its format makes
 * (reshard/format/format.h), in which each tensor is a gather from blobs.
 *
 *     frame   |  text  |  tensor 0  |  tensor 1  |  fill  |  tensor 2  | ...
 *                          gather       gather                gather   <- strided copies from mapped blobs
 *
 * Reading a view, materializing it and comparing it are reads of its image.  An image whose bytes
 * are those of an existing blob knows that (`same_as`): then the file *is* that blob.
 */
#ifndef RS_IMAGE_H
#define RS_IMAGE_H

#include "reshard/engine/blobs.h"
#include "reshard/plan/plan.h"

/** How an image finds what its bytes are made of; filled by whoever owns the versions. */
struct rs_origins {
	void *arg;
	/** The view under which a tensor is stored (by its logical file). */
	rs_origin_fn *view_of;
	/** The format of the files of such a view. */
	const struct rs_format_ops *(*format_of)(void *arg, const struct meta_view *stored);
	/** The blob of a rank's stored file of such a view; false: there is none. */
	bool (*blob_of)(void *arg, const struct meta_view *stored, uint32_t rank, const char *file,
			uint64_t *ret_blob, uint64_t *ret_bytes);
	/**
	 * What decides the bytes of all views of a logical file, however it is stored: materialization must
	 * not change one of them.  The payload that all ranks agree on, or NULL; and the byte of a block at which a
	 * tensor began where it was written.
	 */
	const char *(*payload_of)(void *arg, const char *logical_file);
	uint32_t (*skew_of)(void *arg, const struct meta_tensor *tensor);
};

/** The sources of gathers, mapped.  The arrays are in the arena that was given. */
struct rs_mapped {
	const struct rs_sources *sources;
	const unsigned char **data;	/* of each: byte 0 of its tensor */
	struct rs_blob **blobs;
};

struct rs_image {
	uint64_t bytes;
	uint64_t same_as;	/* blob with these contents, 0: none */
	void *keeper;		/* of whoever shares it (reshard/job) */
	/* of a description (same_as == 0): */
	struct rs_frame frame;		/* its arena has what follows, too */
	uint32_t nr;
	struct rs_gather *gathers;	/* of each tensor, as pieces of the frame number them */
	struct rs_sources sources;
	struct rs_mapped mapped;	/* after rs_image_open() */
};

/**
 * Describe a rank's file.  No I/O.  `as_view`: even if a blob has the same contents.
 * Errors: SC_E_NOT_FOUND (the rank has no such file), SC_E_STATE, SC_E_NO_MEMORY, those of rs_format_describe().
 */
int rs_image_new(const struct meta_view *view, uint32_t rank, const char *file, bool as_view,
		 const struct rs_origins *origins, struct rs_image **ret, struct sc_err *err);
/** The image of what is a blob already. */
int rs_image_same(uint64_t blob, uint64_t bytes, struct rs_image **ret, struct sc_err *err);
/** Would it be made of few clones, and little else? */
bool rs_image_clones(const struct rs_image *image);
struct rs_image *rs_image_free(struct rs_image *image, struct rs_blobs *blobs);

/** Maps the sources.  Once, by one thread.  Errors: those of rs_blob_get(); SC_E_FORMAT (a file lacks a tensor). */
int rs_image_open(struct rs_image *image, struct rs_blobs *blobs, const struct rs_origins *origins,
		  struct sc_err *err);

/** Fills `to`; at + bytes is within the image, and the image is open and not same_as a blob.  Errors: SC_E_DAMAGED,
 *  which names the source. */
int rs_image_read(const struct rs_image *image, uint64_t at, uint64_t bytes, unsigned char *to, struct sc_err *err);

/**
 * One contiguous piece of memory with bytes from `at` on, at most `bytes` of them; 0: there is none
 * (padding, fill).  *ret_source is the source it comes from, UINT32_MAX for text of the frame.
 */
uint64_t rs_image_run(const struct rs_image *image, uint64_t at, uint64_t bytes,
		      const unsigned char **ret_data, uint32_t *ret_source);

/** Where the piece of the frame that has byte `at` ends. */
uint64_t rs_image_border(const struct rs_image *image, uint64_t at);

/** Maps the sources of any gather; the arrays are in `arena`.  rs_sources_close() ends it.  Errors: as above. */
int rs_sources_open(const struct rs_sources *sources, struct rs_blobs *blobs, const struct rs_origins *origins,
		    struct sc_arena *arena, struct rs_mapped *ret, struct sc_err *err);
void rs_sources_close(struct rs_mapped *mapped, struct rs_blobs *blobs);
/** Fills `to` with bytes of a gather from them.  Errors: SC_E_DAMAGED, which names the source. */
int rs_sources_read(const struct rs_mapped *mapped, const struct rs_gather *gather, uint64_t at, uint64_t bytes,
		    unsigned char *to, struct sc_err *err);

#endif
