/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Element types: those of the safetensors format, by size.  Scalai never converts one.
 * The order is the format's own (narrowest first): its reference writer sorts by it, widest first.
 * Source: safetensors, `Dtype` in tensor.rs, version 0.8.
 */
#ifndef META_DTYPE_H
#define META_DTYPE_H

#include <stddef.h>
#include <stdint.h>

#define META_DTYPES(X)                                                                             \
	X(BOOL, 8)                                                                                 \
	X(F4, 4)                                                                                   \
	X(F6_E2M3, 6)                                                                              \
	X(F6_E3M2, 6)                                                                              \
	X(U8, 8)                                                                                   \
	X(I8, 8)                                                                                   \
	X(F8_E5M2, 8)                                                                              \
	X(F8_E4M3, 8)                                                                              \
	X(F8_E8M0, 8)                                                                              \
	X(F8_E4M3FNUZ, 8)                                                                          \
	X(F8_E5M2FNUZ, 8)                                                                          \
	X(I16, 16)                                                                                 \
	X(U16, 16)                                                                                 \
	X(F16, 16)                                                                                 \
	X(BF16, 16)                                                                                \
	X(I32, 32)                                                                                 \
	X(U32, 32)                                                                                 \
	X(F32, 32)                                                                                 \
	X(C64, 64)                                                                                 \
	X(F64, 64)                                                                                 \
	X(I64, 64)                                                                                 \
	X(U64, 64)

enum meta_dtype {
#define X(name, bits) META_DTYPE_##name,
	META_DTYPES(X)
#undef X
	META_DTYPES_NR,
};

const char *meta_dtype_name(enum meta_dtype dtype);
unsigned meta_dtype_bits(enum meta_dtype dtype);
/** Finds a type by its name; -1: there is no such type. */
int meta_dtype_find(const char *name, size_t bytes);

#endif
