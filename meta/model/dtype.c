/* SPDX-License-Identifier: Apache-2.0 */
#include "meta/model/dtype.h"

#include <string.h>

static const struct {
	const char *name;
	unsigned bits;
} dtypes[] = {
#define X(name, bits) {#name, bits},
	META_DTYPES(X)
#undef X
};

const char *meta_dtype_name(enum meta_dtype dtype)
{
	return dtypes[dtype].name;
}

unsigned meta_dtype_bits(enum meta_dtype dtype)
{
	return dtypes[dtype].bits;
}

int meta_dtype_find(const char *name, size_t bytes)
{
	for (int i = 0; i < META_DTYPES_NR; i++)
		if (strlen(dtypes[i].name) == bytes && memcmp(dtypes[i].name, name, bytes) == 0)
			return i;
	return -1;
}
