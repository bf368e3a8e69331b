/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A whole state as a folder that torch.distributed.checkpoint.load() takes: the images of its files.
 *
 *     .metadata           what is where
 *     12/__R_0.distcp     what rank R holds, each box of a tensor an item; of replicas the first one has it
 *
 * 12 is the version's number: who has read one .metadata gets no bytes of another version, though the path of the
 * folder is the head's, which moves.
 *
 * A tensor has the name that it has in its file, with the keys of a torch file's path joined by dots, as DCP flattens
 * them; if two files have one of that name, `FILE:NAME`.  Everything but the data follows from names, types, shapes and
 * cuts.  Objects are not in it.
 */
#ifndef RS_IMAGE_DCP_H
#define RS_IMAGE_DCP_H

#include "reshard/engine/image.h"

/** Calls `each` with the names of the files; a rank that holds nothing has none.  Errors: SC_E_NO_MEMORY, those of
 *  `each`, of slicing. */
int rs_dcp_files(const struct meta_view *view, uint64_t version, int (*each)(void *arg, const char *file), void *arg,
		 struct sc_err *err);
/** Describes one of them.  Errors: SC_E_NOT_FOUND, SC_E_UNSUPPORTED (torch has no such type; names), those of
 *  rs_image_new(). */
int rs_image_dcp(const struct meta_view *view, uint64_t version, const char *file, const struct rs_origins *origins,
		 struct rs_image **ret, struct sc_err *err);

#endif
