/* SPDX-License-Identifier: Apache-2.0 */
/*
 * An image describes the bytes of one rank file of a view without storing them: the frame that its format makes
 * (reshard/codec/format/format.h), with each tensor in it a gather from blobs.
 *
 *     frame   |  text  |  tensor 0  |  tensor 1  |  fill  |  tensor 2  | ...
 *                          gather       gather                gather   <- strided copies from mapped blobs
 *
 * Reading a view, materializing it and comparing it all read its image.  If an image has the bytes of
 * an existing blob, `same_as` names the blob: the file *is* that blob.
 */
#ifndef RS_IMAGE_H
#define RS_IMAGE_H

#include "reshard/engine/io/sources.h"

struct rs_image {
	uint64_t bytes;
	uint64_t same_as;	/* blob with these contents, 0: none; described, too, if the blob is elsewhere */
	bool stands_in;		/* that blob is a replica's, as the rank's own one is gone with its node */
	void *keeper;		/* of whoever shares it (reshard/service) */
	/* of a description (same_as == 0): */
	struct rs_frame frame;		/* its arena has what follows, too */
	uint32_t nr;
	struct rs_gather *gathers;	/* of each tensor, as pieces of the frame number them */
	struct rs_sources sources;
	struct rs_mapped mapped;	/* after rs_image_open() */
	struct rs_ahead *ahead;		/* how far its readers are; NULL: all bytes are always there */
};

/**
 * Describes a rank's file.  No I/O.  `as_view`: describes it even if a blob has the same contents.
 * Errors: SC_E_NOT_FOUND (the rank has no such file), SC_E_STATE, SC_E_NO_MEMORY, those of rs_format_describe().
 */
int rs_image_new(const struct meta_view *view, uint32_t rank, const char *file, bool as_view,
		 const struct rs_origins *origins, struct rs_image **ret, struct sc_err *err);
/** A tensor of a file, or a part of one: its name there, and which piece of it. */
struct rs_planned {
	const char *name;
	const struct meta_tensor *tensor;
	struct meta_piece piece;
	uint32_t part;		/* as struct meta_stored has it; not 0: it is joined to the one before */
};

/** Describes a file of a format in a zeroed image.  No I/O.  Errors: those of rs_format_describe(), of planning. */
int rs_image_describe(struct rs_image *image, const struct rs_format_ops *format, const struct rs_planned *parts,
		      uint32_t nr, const char *payload, size_t payload_bytes, const struct rs_origins *origins,
		      struct sc_err *err);
/** Makes a zeroed image that of a text, which has a byte or more and is copied.  Errors: SC_E_NO_MEMORY. */
int rs_image_text(struct rs_image *image, const char *text, size_t bytes, struct sc_err *err);
/** Describes, in a zeroed image or one with `same_as`, a file of `bytes` bytes that lies at a place as it is.  Errors:
 *  SC_E_NO_MEMORY. */
int rs_image_whole(struct rs_image *image, uint64_t bytes, const struct rs_place *place, struct sc_err *err);
/** Adds the copies of a box of a tensor to a gather of the image; rs_plan_done() of its sources after the last one.
 *  Errors: those of planning. */
int rs_image_plan(struct rs_image *image, const struct meta_tensor *tensor, const struct meta_box *box,
		  struct rs_gather *gather, const struct rs_origins *origins, struct sc_err *err);
/** Finds the rank of a stored view at the same coordinates, by the names of axes.  On an axis that had fewer ranks the
 *  coordinate is taken modulo its degree if it `wraps`, else it is 0. */
uint32_t rs_same_coordinates(const struct meta_view *view, uint32_t rank, const struct meta_view *stored, bool wraps);
/** Makes the image of a file that is a blob. */
int rs_image_same(uint64_t blob, uint64_t bytes, struct rs_image **ret, struct sc_err *err);
/** Tells whether the file could be made of few clones and little else. */
bool rs_image_clones(const struct rs_image *image);
struct rs_image *rs_image_free(struct rs_image *image);

/** Places and opens the sources.  Once, by one thread.  Errors: those of rs_sources_open(). */
int rs_image_open(struct rs_image *image, const struct rs_origins *origins, struct sc_err *err);

/*
 * Bytes of an open image (not same_as a blob); at + bytes is within it.  They are there from a need() that answered
 * RS_HERE until the release() with the same arguments, and are read in between: by rs_image_read(), at the address that
 * rs_image_run() tells, or by a descriptor of the source.
 */
/** Do for an image what rs_sources_need() and rs_sources_give_up() do for a gather. */
int rs_image_need(const struct rs_image *image, uint64_t at, uint64_t bytes, struct rs_later *later,
		  struct sc_err *err);
void rs_image_give_up(const struct rs_image *image, uint64_t at, uint64_t bytes, struct rs_later *later);
void rs_image_release(const struct rs_image *image, uint64_t at, uint64_t bytes);
/** Begins to bring bytes that will be needed soon; nothing is to be released. */
void rs_image_ahead(const struct rs_image *image, uint64_t at, uint64_t bytes);
/** Tells that a reader needs bytes next.  If he reads on where the last read has ended, bytes are asked for ahead of
 *  him: 4 MiB, and twice as far each time that he has come half the way, at most 32 MiB. */
void rs_image_reads(const struct rs_image *image, uint64_t at, uint64_t bytes);
/** Fills `to`.  Errors: SC_E_DAMAGED, which names the source. */
int rs_image_read(const struct rs_image *image, uint64_t at, uint64_t bytes, unsigned char *to, struct sc_err *err);
/** Waits for bytes, reads and releases them. */
int rs_image_fetch(const struct rs_image *image, uint64_t at, uint64_t bytes, unsigned char *to, struct sc_err *err);

/**
 * Gives one contiguous piece of memory with bytes from `at` on, at most `bytes` of them.  Returns its size, 0 if
 * there is none (padding, fill).  *ret_source is the source that it comes from, UINT32_MAX for text of the frame.
 */
uint64_t rs_image_run(const struct rs_image *image, uint64_t at, uint64_t bytes,
		      const unsigned char **ret_data, uint32_t *ret_source);

/** Returns the end of the piece of the frame that has byte `at`. */
uint64_t rs_image_border(const struct rs_image *image, uint64_t at);

#endif
