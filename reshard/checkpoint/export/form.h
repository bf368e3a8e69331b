/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The form of a view: which files it shows of the tensors of a version, and their images.
 *
 *     rs_form_ranks    RANK/NAME               each rank's files in the formats in which ranks wrote them
 *     rs_form_pt       RANK/NAME.pt            each rank's files as torch.save() writes them
 *     rs_form_dcp      .metadata, N/__R_0.distcp    a folder of torch.distributed.checkpoint; one in it for each
 *                                              checkpoint folder
 *     rs_form_hf       model.safetensors, config.json, ...    one folder of Hugging Face's, of the model alone
 *     rs_form_gpu      RANK/NAME               the same, for who wants them in the memory of a GPU
 *     rs_form_vllm     model-rank-0-part-0.safetensors, ...   one folder of vLLM's, of the model alone
 *
 * Callers know no form but by these names, and use the functions below.  Everything follows from names, types, shapes,
 * cuts and payloads: nothing is read but the data.  Any thread.
 */
#ifndef RS_FORM_H
#define RS_FORM_H

#include <sys/types.h>

#include "reshard/engine/io/image.h"

/** The version that is shown, as forms need it; borrowed for the call. */
struct rs_formed {
	const struct meta_view *view;
	uint64_t version;			/* its number */
	const struct rs_origins *origins;
	const char *options;			/* of a form that has some */
	bool archived;		/* it is in the folder of that version: no name in it has to say whose it is */
	const struct rs_plain_files *plain;	/* of a form that shows some */
};

/** A plain file of the version; the form shows it under its name. */
struct rs_plain {
	const char *name;
	uint64_t blob, bytes;
	uid_t uid;
	gid_t gid;
	mode_t mode;
};

struct rs_plain_files {
	size_t nr, room;
	struct rs_plain *at;
	struct sc_arena arena;
};

typedef int rs_form_file_fn(void *arg, const char *file);

struct rs_form {
	char mark;		/* before the topology of a view in the catalog, where no axis begins so; 0: none */
	bool folders;		/* checkpoint folders of the job are among the files */
	bool tensors_alone;	/* nothing else of the version is beside its files */
	bool one_folder;	/* its files are those of all ranks together, shown as rank 0's */
	bool whole;		/* they are the same at every topology */
	bool plain;		/* plain files are beside them */
	bool small_reads;	/* who reads them reads small pieces, back and forth */
	bool has_options;	/* a word without blanks, which says more */
	int (*files)(const struct rs_formed *x, uint32_t rank, rs_form_file_fn *each, void *arg, struct sc_err *err);
	int (*image)(const struct rs_formed *x, uint32_t rank, const char *file, bool as_view, struct rs_image **ret,
		     struct sc_err *err);
	/* NULL: files have the names that ranks gave them, or (one_folder) are made of all */
	int (*stored)(const struct rs_formed *x, uint32_t rank, const char *file, struct sc_arena *arena,
		      const char **ret, struct sc_err *err);
	/* NULL: no path says whose version it is */
	bool (*version_of)(const struct rs_formed *x, const char *path, uint32_t *ret);
	/* of one_folder; NULL: each of its files is made of all files of tensors */
	bool (*is_of)(const struct rs_formed *x, const char *file, const char *logical);
};

extern const struct rs_form rs_form_ranks, rs_form_pt, rs_form_dcp, rs_form_hf, rs_form_vllm, rs_form_gpu;

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
/** Tells which version a path in the folder names; false: it names none, and is of the version that the folder
 *  shows. */
bool rs_form_version(const struct rs_form *form, const struct rs_formed *x, const char *path, uint32_t *ret);
/** Tells whether a file of a form that is one folder is made of a logical file. */
bool rs_form_is_of(const struct rs_form *form, const struct rs_formed *x, const char *file, const char *logical);
/* names.c */
/** Returns a path of keys in a torch file with dots between them.  NULL: out of memory. */
const char *rs_form_flat_path(struct sc_arena *arena, const char *path);
/** Returns a tensor's name, in which the keys of a torch file's path are joined by dots.  NULL: out of memory. */
const char *rs_form_flat_name(struct sc_arena *arena, const struct rs_origins *origins,
			      const struct meta_tensor *tensor);

/* text.c */
#define RS_FORM_TEXT_BYTES 4608
/** What the catalog keeps of a view of a version. */
struct rs_form_said {
	const struct rs_form *form;
	const char *options, *topology;	/* topology '': the version's own presentation */
	bool archived, folders;		/* folders: the checkpoint folders of the job are in the version */
};
/** Writes it as a text for the catalog. */
void rs_form_text(const struct rs_form_said *said, char ret[RS_FORM_TEXT_BYTES]);
/** Reads such a text, in place. */
void rs_form_read(char *text, struct rs_form_said *ret);

/* model.c */
/** Finds which files of tensors are the model, as a glob of logical files: what the options say, or those that are
 *  named like one.  It lives as long as the options.  Errors: SC_E_UNSUPPORTED says what to write to config. */
int rs_form_model_files(const struct rs_formed *x, const char **ret, struct sc_err *err);

/* form_plain.c */
/** Lists the plain files of a version's tree (0: none) that are shown; `root`: number of the job's folder.
 *  *ret is zeroed before; rs_form_plain_done() in any case. */
int rs_form_plain_files(struct meta_catalog *catalog, uint64_t tree, uint64_t root, struct rs_plain_files *ret,
			struct sc_err *err);
void rs_form_plain_done(struct rs_plain_files *files);
/** Finds a plain file that is shown; NULL: there is none of this name. */
const struct rs_plain *rs_form_plain(const struct rs_formed *x, const char *name);

#endif
