/* SPDX-License-Identifier: Apache-2.0 */
/* What the sources of the store share.  Private to this folder. */
#ifndef META_STORE_I_H
#define META_STORE_I_H

#include "meta/store/store.h"

/** Makes a folder, unless it is there, and opens it (`ret_fd` NULL: it does not). */
int store_make_dir(int at, const char *path, int *ret_fd, struct sc_err *err);
/** Says what an object is that is no regular file: "is a FIFO, not a file", say.  NULL: it is a regular file. */
const char *store_not_a_file(const struct stat *st);
/** Opens a file of STORE/`folder` for reading, never anything else.  Errors: SC_E_FORMAT (it is no file),
 *  SC_E_SYSTEM. */
int store_open_text(int dir, const char *folder, const char *name, int *ret_fd, struct sc_err *err);
/** Calls `each` for every file of a folder whose name is a number, and closes `fd`. */
int store_each_in(int fd, const char *name, int (*each)(void *arg, uint64_t number), void *arg, struct sc_err *err);
/** Moves a file to STORE/lost+found, as `name` or, if there is one, as NAME.2 and so on. */
int store_set_aside(const struct meta_store *store, int from, const char *path, const char *name, struct sc_err *err);

#endif
