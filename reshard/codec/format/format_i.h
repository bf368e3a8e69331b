/* SPDX-License-Identifier: Apache-2.0 */
/* The kinds of formats, for their list (format.c), and what they share. */
#ifndef RS_FORMAT_I_H
#define RS_FORMAT_I_H

#include "reshard/codec/format/format.h"

extern const struct rs_format_ops rs_format_safetensors;
extern const struct rs_format_ops rs_format_torch;

/** Orders tensors of struct rs_found by their first byte, then by name; for qsort(3). */
int rs_found_by_place(const void *a, const void *b);

#endif
