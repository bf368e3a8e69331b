/* SPDX-License-Identifier: Apache-2.0 */
#ifndef RS_COPY_H
#define RS_COPY_H

#include <stdint.h>

#include "meta/base/err.h"
#include "reshard/engine/io/source.h"

/**
 * Copies the first `bytes` of one file to another, which is empty: by reflink where the file system can, else in the
 * kernel.  `blob` is the blob that `from` reads (0: a file that is not the store's); `path` is for the error.
 * Errors: SC_E_SYSTEM, SC_E_NO_SPACE, SC_E_DAMAGED (the blob cannot be read).
 */
int rs_copy_file(int to, int from, uint64_t blob, uint64_t bytes, const char *path, struct sc_err *err);
/** Copies the first `bytes` of a place, which is on another node, to a file.
 *  Errors: of the source; SC_E_SYSTEM, SC_E_NO_SPACE. */
int rs_copy_place(int to, const struct rs_place *from, uint64_t bytes, struct sc_err *err);

#endif
