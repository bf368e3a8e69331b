/* SPDX-License-Identifier: Apache-2.0 */
/* Gives the functions of NCCL that the exchange calls, from the library of the machine.  NCCL's header declares them,
 * so that a wrong call does not compile. */
#ifndef RS_NCCL_H
#define RS_NCCL_H

#include <nccl.h>
#include <stddef.h>

#include "meta/base/err.h"

#define RS_NCCL_VERSION_MIN 22200	/* the oldest that is packaged with all of these */

/* name here, name there */
#define RS_NCCL_FUNCTIONS(F)                                                                       \
	F(version, ncclGetVersion)                                                                 \
	F(unique_id, ncclGetUniqueId)                                                              \
	F(init, ncclCommInitRankConfig)                                                            \
	F(state, ncclCommGetAsyncError)                                                            \
	F(finalize, ncclCommFinalize)                                                              \
	F(destroy, ncclCommDestroy)                                                                \
	F(abort, ncclCommAbort)                                                                    \
	F(group_start, ncclGroupStart)                                                             \
	F(group_end, ncclGroupEnd)                                                                 \
	F(send, ncclSend)                                                                          \
	F(recv, ncclRecv)                                                                          \
	F(text, ncclGetErrorString)

struct rs_nccl {
#define RS_NCCL_MEMBER(name, function) __typeof__(&function) name;
	RS_NCCL_FUNCTIONS(RS_NCCL_MEMBER)
};

/**
 * Finds libnccl.so.2, once for the process, and says its version: `NCCL 2.22.3`.
 * Errors: SC_E_UNSUPPORTED, with the sentence for `status`.
 */
int rs_nccl_load(const struct rs_nccl **ret, char *ret_text, size_t bytes, struct sc_err *err);

#endif
