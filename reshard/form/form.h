/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The form of a view: which files it shows of the tensors of a version, and their images.
 *
 *     rs_form_ranks    RANK/NAME               each rank's files in the formats in which ranks wrote them
 *     rs_form_pt       RANK/NAME.pt            each rank's files as torch.save() writes them
 *     rs_form_dcp      .metadata, N/__R_0.distcp    one folder of torch.distributed.checkpoint
 *
 * Callers know no form but by these names, and use the functions below.  Everything follows from names, types, shapes,
 * cuts and payloads: nothing is read but the data.  Any thread.
 */
#ifndef RS_FORM_H
#define RS_FORM_H

#include "reshard/engine/image.h"

/** What is shown; borrowed for the call. */
struct rs_formed {
	const struct meta_view *view;
	uint64_t version;			/* its number */
	const struct rs_origins *origins;
};

typedef int rs_form_file_fn(void *arg, const char *file);

struct rs_form {
	char mark;		/* before the topology of a view in the catalog, where no axis begins so; 0: none */
	bool folders;		/* checkpoint folders of the job are among the files */
	bool tensors_alone;	/* nothing else of the version is beside its files */
	bool one_folder;	/* its files are those of all ranks together, shown as rank 0's */
	int (*files)(const struct rs_formed *x, uint32_t rank, rs_form_file_fn *each, void *arg, struct sc_err *err);
	int (*image)(const struct rs_formed *x, uint32_t rank, const char *file, bool as_view, struct rs_image **ret,
		     struct sc_err *err);
	/* NULL: files have the names that ranks gave them, or (one_folder) are made of all */
	int (*stored)(const struct rs_formed *x, uint32_t rank, const char *file, struct sc_arena *arena,
		      const char **ret, struct sc_err *err);
	/* NULL: no name says whose version it is */
	bool (*version_of)(const char *name, uint32_t *ret);
};

extern const struct rs_form rs_form_ranks, rs_form_pt, rs_form_dcp;

/** Finds the form that a mark says; NULL: there is none. */
const struct rs_form *rs_form_of(char mark);
/** Calls `each` with the names of a rank's files, until one call returns non-zero.  Errors: SC_E_NO_MEMORY, those of
 *  `each`, of slicing. */
int rs_form_files(const struct rs_form *form, const struct rs_formed *x, uint32_t rank, rs_form_file_fn *each,
		  void *arg, struct sc_err *err);
/** Gives the file of the rank that is shown under a name; *ret is in the arena, or `file`.  Errors: SC_E_NOT_FOUND. */
int rs_form_stored(const struct rs_form *form, const struct rs_formed *x, uint32_t rank, const char *file,
		   struct sc_arena *arena, const char **ret, struct sc_err *err);
/** Describes a file; of a form that renames files, by its stored name.  `as_view`: as rs_image_new().
 *  Errors: SC_E_NOT_FOUND, SC_E_UNSUPPORTED (the form cannot have such tensors), those of rs_image_new(). */
int rs_form_image(const struct rs_form *form, const struct rs_formed *x, uint32_t rank, const char *file, bool as_view,
		  struct rs_image **ret, struct sc_err *err);
/** Tells of which version a name in the folder is, whichever version the folder shows; false: of that one. */
bool rs_form_version(const struct rs_form *form, const char *name, uint32_t *ret);

#endif
