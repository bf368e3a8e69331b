/* SPDX-License-Identifier: Apache-2.0 */
/* What the files of rs_form_dcp share. */
#ifndef RS_FORM_DCP_I_H
#define RS_FORM_DCP_I_H

#include "reshard/checkpoint/export/form.h"

/* --- dcp_parts.c --- */

#define RS_FORM_FOLDER_SUFFIX ".safetensors" /* of a checkpoint folder's logical file */

/** One of the folders that are shown; the paths are borrowed. */
struct rs_form_folder {
	const struct rs_formed *x;
	size_t bytes;			/* of its path, which is at the beginning of each of its files; with the '/' */
	const char *path;
	const char *logical;		/* file of its tensors; NULL: it has all tensors of the ranks' own files */
};

/** Tells whether a tensor is of a checkpoint folder. */
bool rs_form_is_placed(const struct rs_formed *x, const struct meta_tensor *tensor);
bool rs_form_folder_has(const struct rs_form_folder *folder, const struct meta_tensor *tensor);
/** Finds the folder of a path of so many bytes, 0: that of the ranks' own files; false: there is none. */
bool rs_form_folder_at(const struct rs_formed *x, const char *path, size_t bytes, struct rs_form_folder *ret);
/** Calls `each` with the folders until one call returns non-zero, and returns that: that of the ranks' own files first,
 *  if there are some, or nothing has tensors. */
int rs_form_each_folder(const struct rs_formed *x, int (*each)(void *arg, const struct rs_form_folder *folder),
			void *arg);

struct rs_form_chunk {
	uint32_t tensor;
	struct meta_box box;		/* of the tensor; dense */
};

struct rs_form_chunks {
	size_t nr, room;
	struct rs_form_chunk *at;
};

/** Lists the boxes that a rank has of a folder's tensors; sc_vec_done() in any case.  Errors: those of slicing. */
int rs_form_chunks_of(const struct rs_form_folder *folder, uint32_t rank, struct rs_form_chunks *ret,
		      struct sc_err *err);
/** Returns the item that a chunk is. */
struct rs_wanted rs_form_wanted_of(const struct meta_view *view, const struct rs_form_chunk *chunk);

struct rs_form_objects {
	struct sc_arena arena;
	size_t nr, room;
	struct rs_object *at;
	const char **keys;		/* of each, FILE:NAME as tensors have them */
	size_t keys_room;
	const struct rs_placed_object *placed;	/* where each lies; NULL: they are texts */
	const struct rs_formed *x;
	struct sc_err *err;
};

/** Lists the objects of a folder that a rank's file has: rank 0's has all; rs_form_objects_done() in any case.
 *  Errors: of payloads. */
int rs_form_objects_of(const struct rs_form_folder *folder, uint32_t rank, struct rs_form_objects *ret,
		       struct sc_err *err);
void rs_form_objects_done(struct rs_form_objects *objects);

#define RS_FORM_DCP_NAME_BYTES 64
/** Gives the name of a rank's file in its folder. */
void rs_form_dcp_file(uint64_t version, uint32_t rank, char ret[RS_FORM_DCP_NAME_BYTES]);

/* --- dcp_metadata.c --- */
/** Makes the .metadata of a folder in a zeroed image.  Errors: SC_E_UNSUPPORTED (torch has no such type, two names are
 *  equal), those of the two lists above. */
int rs_form_dcp_metadata(struct rs_image *image, const struct rs_form_folder *folder, struct sc_err *err);

#endif
