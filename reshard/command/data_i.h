/* SPDX-License-Identifier: Apache-2.0 */
/* The command `data`, shared by the files that do it: data.c (lines, the new version), data_take.c. */
#ifndef RS_DATA_I_H
#define RS_DATA_I_H

#include "reshard/command/command_i.h"

/** For whom sources are taken in. */
struct rs_taking {
	struct rs_service *s;
	struct rs_job *job;
	uid_t uid;			/* who opens them */
	gid_t gid;
	dev_t own;			/* the mount itself: nothing of it */
	struct sc_err *err;
};

/** *ret: a corpus that has no number yet, also when it fails; rs_taken_done() ends it. */
int rs_take_sources(const struct rs_taking *as, const struct rs_data_spec *spec, char *const *paths, size_t nr,
		    struct rs_corpus **ret);
/** What the catalog does not know by now is garbage.  NULL is nothing. */
void rs_taken_done(struct rs_service *s, struct rs_corpus *corpus);

#endif
