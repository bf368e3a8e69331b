/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Arranges the tensors of a file that Scalai writes.  Reflink shares whole blocks, so a tensor of whole blocks
 * should begin at the same byte of a block (its block offset, `skew`) as where it was written.
 * Frameworks save tensors by name, behind a header that ends anywhere, and each tensor that is not whole blocks
 * shifts those behind it:
 *
 *     saved    | header | a: 1 MiB | bias: 1.5 KiB | b: 1 MiB | bias | c: 2 MiB | bias ...
 *     skew               520                         2056              3592
 *
 * Cut for another topology, the small tensors have other sizes, and no tensor would keep its block offset.  So
 * tensors with the same block offset are grouped, and small tensors between two groups make up the difference.
 *
 * The order is part of the store's format: views of versions that are not materialized have it, and must stay the
 * same under later programs.  Another order needs another version of the catalog.
 * Pure.
 */
#ifndef RS_ARRANGE_H
#define RS_ARRANGE_H

#include "meta/base/err.h"
#include "meta/base/limits.h"
#include "meta/base/mem.h"
#include "meta/model/dtype.h"
#include "meta/model/state.h"

#define RS_SKEW_UNIT 8u	/* bytes: every element stays aligned */

/** A tensor of a file to write. */
struct rs_tensor_at {
	const char *name;
	enum meta_dtype dtype;
	struct meta_shape shape;
	uint64_t begin, end;	/* bytes */
	uint32_t skew;		/* byte of a block at which it should begin, a multiple of RS_SKEW_UNIT */
	uint32_t wanted;	/* its index before */
};

/**
 * Sorts tensors, of which name, dtype, shape and skew (below SC_DATA_ALIGN) are set; each is aligned for its type where
 * it comes to lie.  *ret_skew is where the data should begin, a multiple of RS_SKEW_UNIT.  If all that are whole blocks
 * have one skew the order is: these first, then the widest type, then by name.  Of each tensor begin is 0 then, and end
 * its bytes.
 * Errors: SC_E_LIMIT (a size overflows), SC_E_NO_MEMORY.
 */
int rs_arrange_tensors(struct rs_tensor_at *tensors, uint32_t nr, uint32_t *ret_skew, struct sc_err *err);

#endif
