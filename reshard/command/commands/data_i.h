/* SPDX-License-Identifier: Apache-2.0 */
/* What the files of the command `data` share: data.c (its lines, the new version) and data_take.c (sources). */
#ifndef RS_DATA_I_H
#define RS_DATA_I_H

#include "reshard/command/commands/command_i.h"

/** The user who adds sources. */
struct rs_taking {
	struct rs_service *s;
	struct rs_job *job;
	uid_t uid;			/* opens the sources */
	gid_t gid;
	dev_t own;			/* the mount itself: its files are refused */
	struct sc_err *err;
};

/** Gives the names of both files of a dataset of Megatron's, which "x.bin", "x.idx" and "x" mean; `bin` and `idx` have
 *  room for `bytes`. */
void rs_megatron_paths(const char *path, char *bin, char *idx, size_t bytes);
/** Scans sources and makes a corpus that has no number yet; *ret is set even on failure, and rs_taken_done() frees
 *  it. */
int rs_take_sources(const struct rs_taking *as, const struct rs_data_spec *spec, char *const *paths, size_t nr,
		    struct rs_corpus **ret);
/** Frees a corpus; blobs of it that the catalog does not know become garbage.  Accepts NULL. */
void rs_taken_done(struct rs_service *s, struct rs_corpus *corpus);

#endif
