/* SPDX-License-Identifier: Apache-2.0 */
#ifndef TESTS_TORCH_TEXT_H
#define TESTS_TORCH_TEXT_H

#include "reshard/codec/torch/torch.h"

/** Appends a line for each tensor (path, type, shape, strides if it is not dense, byte, "DTensor"), and how many are
 *  inside of other objects. */
void torch_text(const struct rs_torch *torch, struct sc_buf *ret);
/** Gives the bytes from a tensor's first element to behind its last one; 0: it is empty. */
uint64_t torch_extent(const struct rs_torch_tensor *t);
/** A window on bytes in memory; `bytes` is borrowed. */
struct rs_window window_in_memory(const void *at, uint64_t bytes);

#endif
