/* SPDX-License-Identifier: Apache-2.0 */
/* The index of a model in several files, as Hugging Face's libraries read it: in which file each tensor is. */
#ifndef RS_SHARDS_H
#define RS_SHARDS_H

#include "meta/base/err.h"
#include "meta/base/mem.h"

struct rs_sharded {
	const char *name, *file;
};

/** Appends the JSON text; `bytes`: of all tensors.  The same tensors, in any order, have the same text.
 *  Errors: SC_E_UNSUPPORTED (a name is not UTF-8), SC_E_NO_MEMORY. */
int rs_shards_index(const struct rs_sharded *tensors, size_t nr, uint64_t bytes, struct sc_buf *ret,
		    struct sc_err *err);
/** Calls `each` with each tensor of an index, until one call returns non-zero, and returns that.
 *  Errors: SC_E_FORMAT, SC_E_NO_MEMORY. */
int rs_shards_read(const char *text, size_t bytes, int (*each)(void *arg, const struct rs_sharded *tensor), void *arg,
		   struct sc_err *err);

#endif
