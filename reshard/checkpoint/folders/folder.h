/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Checkpoint folders: a folder of a job that says itself where each box of each tensor lies, as torch.distributed's
 * checkpoints (DCP) and DeepSpeed's (ZeRO) do.  Its files are files of the job's tree as any others.  A daemon reads
 * the description of the folder's tensors from these files each time it needs it, and keeps it nowhere else.
 *
 *     JOB/ckpt-200/.metadata, __0_0.distcp, ...    the files
 *     ckpt-200.safetensors:NAME                    its tensors, as layouts see them
 *     JOB/.as/TOPOLOGY/RANK/ckpt-200.safetensors   how ranks see them
 *
 * F1  A folder is complete, or it is refused: each chunk and object that it tells of is inside of its file, each chunk
 *     is a tensor of the type and shape that it says, and the chunks cover each tensor, each element once.
 * F2  A folder is a source only: no file of a rank's own folder is ever made of it.
 */
#ifndef RS_FOLDER_H
#define RS_FOLDER_H

#include "meta/catalog/trees.h"
#include "meta/model/state.h"
#include "reshard/engine/io/local.h"
#include "reshard/engine/plan/placed.h"

/* The marker files, which say what is in a folder; tree_entry_marker of the catalog's schema.sql has the same names. */
#define RS_FOLDER_METADATA ".metadata"
#define RS_FOLDER_ZERO12 "mp_rank_00_model_states.pt"
#define RS_FOLDER_ZERO3 "zero_pp_rank_0_mp_rank_00_model_states.pt"
/** Gives the i-th marker's name; NULL: there are no more. */
const char *rs_folder_marker(size_t i);

struct rs_folder_file {
	const char *path;		/* in the folder */
	uint64_t blob, bytes;
	uid_t uid;
	gid_t gid;
	mode_t mode;
};

/** A folder that was read; it never changes.  rs_folder_unref() ends a reference to it. */
struct rs_folder {
	uint32_t refs;
	struct sc_arena arena;
	const char *path;		/* in the job's folder */
	const char *file;		/* logical file of its tensors */
	struct meta_state state;
	struct {
		struct rs_placed_tensor *at;
		size_t nr, room;
	} tensors;			/* of each of the state */
	struct {
		struct rs_folder_file *at;
		size_t nr, room;
	} files;			/* that are used */
	struct rs_placed_objects objects;
	uint64_t chunks;
	const char *why;		/* it cannot be read in place, and so has no tensors; NULL: it can */
	struct rs_folder *of;		/* rs_folder_under(): the folder that this one is; NULL: it is one itself */
};

/** Finds a file of the folder: 1, 0 (there is none) or an error.  Leaves ret->path alone. */
typedef int rs_folder_find_fn(void *arg, const char *path, struct rs_folder_file *ret, struct sc_err *err);
/**
 * Reads a folder that has a marker; *ret is NULL if it is no checkpoint after all.
 * Errors: SC_E_FORMAT (F1: what is wrong), SC_E_UNSUPPORTED, SC_E_LIMIT, SC_E_NO_MEMORY, those of reading and finding.
 */
int rs_folder_read(struct rs_blobs *blobs, const char *path, rs_folder_find_fn *find, void *arg,
		   struct rs_folder **ret, struct sc_err *err);
/**
 * Gives a folder as a layout sees it: rows that are behind a tensor's true size are padding, a tensor of their own
 * (docs/layout.md, section 5).  A tensor's boxes are those of its padding, too.  *ret is the caller's reference;
 * without such rows it is the folder itself.  Errors: SC_E_NO_MEMORY.
 */
int rs_folder_under(struct rs_folder *folder, const struct meta_layout *layout, struct rs_folder **ret,
		    struct sc_err *err);
struct rs_folder *rs_folder_ref(struct rs_folder *folder);
void rs_folder_unref(struct rs_folder *folder);

/* --- folders.c: the checkpoint folders of committed trees --- */

/** Keeps the folders of the trees that were asked for last. */
struct rs_folders;
struct rs_folders *rs_folders_new(struct meta_catalog *catalog, struct rs_blobs *blobs);
struct rs_folders *rs_folders_free(struct rs_folders *folders);
/** Tells cheaply whether a tree may have checkpoint folders: 1, 0 or an error. */
int rs_folders_any(struct rs_folders *folders, uint64_t tree, struct sc_err *err);
/** Calls `each` for the folders of a tree, in order of their paths.  A folder that cannot be read (it is of a kind that
 *  is not read in place, its files are damaged, an earlier program committed it) says so in its `why`. */
int rs_folders_each(struct rs_folders *folders, uint64_t tree, int (*each)(void *arg, struct rs_folder *folder),
		    void *arg, struct sc_err *err);

#endif
