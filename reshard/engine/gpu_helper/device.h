/* SPDX-License-Identifier: Apache-2.0 */
/* Finds out which GPU there is, and whether Scalai can use it. */
#ifndef RS_DEVICE_H
#define RS_DEVICE_H

#include <stddef.h>

#include "meta/base/err.h"

/**
 * Checks that a device, as CUDA numbers it, can be used, and describes it in a few words.
 * Errors: SC_E_UNSUPPORTED, with the sentence for `status`.
 */
int rs_device_check(int device, char *ret_text, size_t bytes, struct sc_err *err);

#endif
