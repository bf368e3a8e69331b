/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Lays out files __R_N.distcp of torch.distributed.checkpoint: items one behind the other, each an archive of
 * torch.save() of one tensor or object.  An item begins on a page, so that its data is aligned in the file as in the
 * archive.
 */
#ifndef RS_DCP_FRAME_H
#define RS_DCP_FRAME_H

#include "reshard/codec/format/format.h"

#define RS_DCP_ITEM_ALIGN 4096

/** Computes how long the item of a tensor is; only its type and shape count.  Errors: SC_E_UNSUPPORTED (torch has no
 *  such type), SC_E_NO_MEMORY. */
int rs_dcp_item_bytes(const struct rs_wanted *wanted, uint64_t *ret, struct sc_err *err);
/** Lays out items, in the order of what is wanted, and objects behind them; the i-th object is tensor `nr` + i of the
 *  frame, if it has no text.  Errors: SC_E_UNSUPPORTED, SC_E_NO_MEMORY.  *ret: rs_frame_done(). */
int rs_dcp_describe(const struct rs_wanted *wanted, uint32_t nr, const struct rs_object *objects, size_t nr_objects,
		    struct rs_frame *ret, struct sc_err *err);

#endif
