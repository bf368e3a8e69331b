/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Formats parse and lay out files: a format turns a file into tensors (name, type, shape, place in the file), and
 * tensors into a file.  Nothing outside of this room knows a format by name.
 *
 *     parse      file -> struct rs_found      tensors, by where they begin, and a payload: what is no tensor
 *     describe   tensors -> struct rs_frame   the pieces of a file, from its first byte to its last:
 *
 *     text | tensor 3 | tensor 0 | fill | tensor 1 | text          tensor: bytes of wanted[i], dense, row-major
 *
 * Callers use the functions below, never a member of struct rs_format_ops: they assert what a kind may rely on and what
 * it promises.  Everything is pure: files are read by a function that the caller gives.  Any thread.
 */
#ifndef RS_FORMAT_H
#define RS_FORMAT_H

#include "meta/base/err.h"
#include "meta/base/mem.h"
#include "meta/model/dtype.h"
#include "meta/model/state.h"

/* --- what a file holds --- */

/** Borrowed for the call. */
struct rs_file {
	const char *path;	/* in its rank's folder; only rs_format_is() and rs_format_of() need it */
	uint64_t bytes;
	void *arg;
	/** Reads bytes; at + bytes must be within the file.  Guarded: SC_E_DAMAGED if the file was shortened or the
	 *  disk fails. */
	int (*read)(void *arg, uint64_t at, uint64_t bytes, void *to, struct sc_err *err);
	/** Tells which tensors parse() is to leave in the payload; NULL: none.  Formats without objects do not ask. */
	bool (*is_object)(void *arg, const char *name);
	bool tensors_only;	/* the payload is not asked for: parse() may leave it out */
};

struct rs_found_tensor {
	const char *name;
	enum meta_dtype dtype;
	struct meta_shape shape;
	uint64_t at;		/* byte of the file where element 0 is: any alignment; two tensors may share bytes */
	/* in elements; NULL: dense, row-major; else dense in another order of the dimensions: a transposed matrix, an
	 * image with its channels last.  The wrapper refuses all others. */
	const uint64_t *stride;
};

/** Owns all that it points to; rs_found_done(). */
struct rs_found {
	struct sc_arena arena;
	uint32_t nr;
	struct rs_found_tensor *tensors;	/* by `at`, then name */
	const char *payload;	/* what is no tensor, ends with a 0; NULL: none */
	size_t payload_bytes;
	const char *const *left; /* names of tensors that are in the payload, for they cannot be cut; NULL at the end */
	uint32_t *slots, room;	/* of rs_found_tensor(), which rs_format_parse() fills; kinds leave them alone */
};

/* --- how a file is laid out --- */

struct rs_wanted {
	const char *name;
	enum meta_dtype dtype;
	struct meta_shape shape;
	uint32_t skew;		/* byte of a block at which it should begin, below SC_DATA_ALIGN */
};

enum rs_piece_kind { RS_PIECE_TEXT, RS_PIECE_FILL, RS_PIECE_TENSOR };

struct rs_piece {		/* ends where the next one begins */
	uint64_t at;
	const char *text;	/* TEXT */
	enum rs_piece_kind kind;
	uint32_t tensor;	/* TENSOR: index into what was wanted */
	unsigned char fill;	/* FILL: each byte */
};

/** Owns all that it points to; rs_frame_done(). */
struct rs_frame {
	struct sc_arena arena;
	char *text;		/* of pieces, sc_sys.release(); NULL: all text is in the arena */
	size_t text_bytes;
	uint64_t bytes;
	uint32_t nr;
	struct rs_piece *pieces;	/* the first one begins at byte 0; none is empty */
};

/** An object of a payload, by itself. */
struct rs_object {
	const char *name;	/* the path that leads to it, as a tensor's */
	const char *text;	/* a file of its format that holds it alone; NULL: it lies elsewhere */
	uint64_t bytes;
};

/* --- a format --- */

struct rs_format_ops {
	const char *name;	/* stored with each set of files */
	/**
	 * Is this file ours?  1, 0, or an error of reading.  Reads 64 KiB at most.  Our name with another content is 1:
	 * parse() refuses it, so a cut file never passes as an opaque one.
	 */
	int (*is)(const struct rs_file *file, struct sc_err *err);
	/**
	 * Copies the header by read(), each byte once, and works on the copy: a file that changes meanwhile can't
	 * deceive it.  Checks all that the format promises; executes nothing; takes linear time, and memory within
	 * limits.h.  *ret is zeroed; what is in it after an error, the wrapper frees.
	 * Errors: SC_E_FORMAT, SC_E_LIMIT, SC_E_NO_MEMORY, those of reading.
	 */
	int (*parse)(const struct rs_file *file, struct rs_found *ret, struct sc_err *err);
	/**
	 * Orders and places tensors.  Pure: the same tensors, in whatever order they are given, have the same bytes in
	 * every later program, for stores have such files (another order needs another name).  Tensors without bytes
	 * have no piece.  *ret: as of parse().
	 * Errors: SC_E_LIMIT, SC_E_UNSUPPORTED (the format can't hold these), SC_E_NO_MEMORY.
	 */
	int (*describe)(const struct rs_wanted *wanted, uint32_t nr, const char *payload, size_t payload_bytes,
			struct rs_frame *ret, struct sc_err *err);
	/**
	 * What every view gets of two ranks' payloads, in memory of sc_sys.alloc(), or NULL; -1: out of memory.  A
	 * payload may be NULL.  The member NULL: a payload is of its rank alone.
	 */
	int (*agree)(const char *a, const char *b, char **ret, bool *ret_differ);
	/**
	 * The name of a tensor that is in a file under a text, in the arena; NULL: out of memory.  The member NULL:
	 * every name is such a text.
	 */
	const char *(*name_of)(const char *text, struct sc_arena *arena);
	/**
	 * Lists what is in a payload, in the arena.  The member NULL: nothing that has a name.
	 * Errors: SC_E_CORRUPT, SC_E_LIMIT, SC_E_UNSUPPORTED (an object cannot be written), SC_E_NO_MEMORY.
	 */
	int (*objects)(const char *payload, size_t bytes, struct sc_arena *arena, struct rs_object **ret,
		       size_t *ret_nr, struct sc_err *err);
};

/** All formats, in the order in which they are asked.  The last one is rs_format_plain. */
extern const struct rs_format_ops *const rs_formats[];
/** Claims every file: one tensor of bytes, with the name "". */
extern const struct rs_format_ops rs_format_plain;
/** One more format, asked before the others; NULL: none.  Tests set it before they open a store. */
extern const struct rs_format_ops *rs_format_extra;

/* --- what callers use --- */

/** Finds a format by its stored name; NULL: this program does not have it. */
const struct rs_format_ops *rs_format_find(const char *name);
/** Finds the first format that claims the file.  Errors: those of reading. */
int rs_format_of(const struct rs_file *file, const struct rs_format_ops **ret, struct sc_err *err);

/** These call the members of struct rs_format_ops; *ret is written on success only. */
int rs_format_is(const struct rs_format_ops *format, const struct rs_file *file, struct sc_err *err);
int rs_format_parse(const struct rs_format_ops *format, const struct rs_file *file, struct rs_found *ret,
		    struct sc_err *err);
int rs_format_describe(const struct rs_format_ops *format, const struct rs_wanted *wanted, uint32_t nr,
		       const char *payload, size_t payload_bytes, struct rs_frame *ret, struct sc_err *err);
/** *ret is the caller's, sc_sys.release(); only of a format whose payloads are not each rank's own.  Errors:
 *  SC_E_NO_MEMORY. */
int rs_format_agree(const struct rs_format_ops *format, const char *a, const char *b, char **ret, bool *ret_differ,
		    struct sc_err *err);

/** Gives the name under which a format has a tensor whose name in a file of another format is `text`; NULL: out of
 *  memory. */
const char *rs_format_name(const struct rs_format_ops *format, const char *text, struct sc_arena *arena);
/** Lists the objects of a payload, in the arena; none if it is NULL.  Errors: as the member. */
int rs_format_objects(const struct rs_format_ops *format, const char *payload, size_t bytes, struct sc_arena *arena,
		      struct rs_object **ret, size_t *ret_nr, struct sc_err *err);

/** Refuses tensors that are not row-major.  Errors: SC_E_UNSUPPORTED. */
int rs_found_row_major(const struct rs_found *found, struct sc_err *err);
/** Finds a tensor by its name; NULL: there is none. */
const struct rs_found_tensor *rs_found_tensor(const struct rs_found *found, const char *name);
/** Finds a tensor by its name, faster if tensors are asked for in the order of the file; *at is 0 at first. */
const struct rs_found_tensor *rs_found_next(const struct rs_found *found, const char *name, uint32_t *at);
uint64_t rs_found_bytes(const struct rs_found_tensor *tensor);
/** Copies the tensors that were found in a file, without its payload. */
int rs_found_copy(const struct rs_found *from, struct rs_found *ret, struct sc_err *err);
void rs_found_done(struct rs_found *found);

/** Finds the piece that has byte `at` (below frame->bytes), and its end. */
const struct rs_piece *rs_frame_piece(const struct rs_frame *frame, uint64_t at);
uint64_t rs_piece_end(const struct rs_frame *frame, const struct rs_piece *piece);
void rs_frame_done(struct rs_frame *frame);

/** Describes a file that is in memory. */
struct rs_file rs_file_in_memory(const char *path, const void *memory, uint64_t bytes);

#endif
