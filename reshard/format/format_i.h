/* SPDX-License-Identifier: Apache-2.0 */
/* The kinds of formats, for their list alone (format.c). */
#ifndef RS_FORMAT_I_H
#define RS_FORMAT_I_H

#include "reshard/format/format.h"

extern const struct rs_format_ops rs_format_safetensors;
extern const struct rs_format_ops rs_format_torch;

#endif
