/* SPDX-License-Identifier: Apache-2.0 */
/* Computes XXH3 of long inputs, by the instructions that this processor has; the values are the same with all. */
#ifndef SC_XXH_H
#define SC_XXH_H

#include <xxhash.h>
#if SC_XXH_DISPATCH
#include <xxh_x86dispatch.h>
#endif

#endif
