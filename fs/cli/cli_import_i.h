/* SPDX-License-Identifier: Apache-2.0 */
/* How `scalai import` tells files and folders apart, by their names and formats, and makes folders.  It follows
 * links. */
#ifndef FS_CLI_IMPORT_I_H
#define FS_CLI_IMPORT_I_H

#include <limits.h>
#include <stdbool.h>
#include <stdint.h>
#include <sys/types.h>

enum cli_folder {
	CLI_NOTHING,		/* that could be imported */
	CLI_RANKS,		/* 0, 1, ...: all of it is copied as it is */
	CLI_NAMED_RANKS,	/* rank_0, ...; or files of ranks side by side */
	CLI_LEGACY,		/* Megatron's mp_rank_... */
	CLI_CHECKPOINT,		/* of torch.distributed or DeepSpeed */
	CLI_MODEL,		/* files of whole tensors, which become rank 0 of one rank */
	CLI_SHARDS,		/* likewise, in several files without an index, which become one */
};

enum cli_folder cli_folder_kind(const char *path);
/** Tells whether a file has tensors, by its name or its first bytes. */
bool cli_is_tensors(const char *path);

/** Counts the bytes of a file, or of the files in a folder.  What cannot be read counts for nothing. */
uint64_t cli_bytes_of(const char *path, bool follow);

/** Say what a file, or a folder of CLI_NOTHING, looks like and what to do instead; return 1. */
int cli_no_tensors(const char *path);
int cli_not_importable(const char *path);

/** Read from the name of a folder or file to which rank it belongs; `plain` is the file's name without the rank. */
bool cli_rank_folder(const char *name, uint32_t *ret);
bool cli_rank_file(const char *name, uint32_t *ret, char plain[NAME_MAX + 1]);
/** Reads from the name of a shard which of how many it is; `plain` is the name of the file that they make together. */
bool cli_shard(const char *name, uint32_t *ret, uint32_t *ret_of, char plain[NAME_MAX + 1]);
/** Reads the coordinates of tp and pp out of mp_rank_TT or mp_rank_TT_PPP. */
bool cli_legacy_folder(const char *name, uint32_t ret[2]);
/** Computes the rank at coordinates of tp and pp, and 0 on other axes, in a topology as the file `topology` shows it:
 *  its first axis is the fastest.  -1: there is no such rank. */
long cli_rank_at(const char *topology, const uint32_t at[2]);

/** Makes a folder, as mkdir(2) does; one that is there, a rank's that a topology has made, gets the permissions of a
 *  new one. */
int cli_make_folder(const char *path, mode_t mode);
/** Tells whether a folder can be read and has nothing in it; errno stays. */
bool cli_is_empty(const char *path);

#endif
