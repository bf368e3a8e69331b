/* SPDX-License-Identifier: Apache-2.0 */
/* Computes with shapes, and with boxes in them. */
#include <stdio.h>
#include <string.h>

#include "meta/model/slice.h"

bool meta_shape_elements(const struct meta_shape *shape, uint64_t *ret)
{
	uint64_t n = 1;

	for (int i = 0; i < shape->nr; i++)
		if (shape->dim[i] == 0) {
			*ret = 0;
			return true;
		}
	for (int i = 0; i < shape->nr; i++)
		if (!sc_mul_u64(n, shape->dim[i], &n))
			return false;
	*ret = n;
	return true;
}

bool meta_shape_equal(const struct meta_shape *a, const struct meta_shape *b)
{
	return a->nr == b->nr && (a->nr == 0 || memcmp(a->dim, b->dim, a->nr * sizeof(*a->dim)) == 0);
}

const char *meta_shape_text(const struct meta_shape *shape, char *buf, size_t bytes)
{
	size_t n = 0;

	buf[0] = 0;
	for (int i = 0; i < shape->nr && n < bytes; i++)
		n += (size_t)snprintf(buf + n, bytes - n, "%s%llu", i ? ", " : "[",
				      (unsigned long long)shape->dim[i]);
	if (n < bytes)
		(void)snprintf(buf + n, bytes - n, shape->nr ? "]" : "[]");
	return buf;
}

bool meta_box_equal(const struct meta_box *a, const struct meta_box *b)
{
	size_t bytes = a->nr * sizeof(*a->off);

	return a->nr == b->nr && a->at == b->at && memcmp(a->off, b->off, bytes) == 0 &&
	       memcmp(a->ext, b->ext, bytes) == 0 && memcmp(a->stride, b->stride, bytes) == 0;
}

uint64_t meta_box_elements(const struct meta_box *box)
{
	uint64_t n = 1;

	for (int i = 0; i < box->nr; i++)
		n *= box->ext[i];
	return n;
}

bool meta_box_meet(const struct meta_box *box, const uint64_t *off, const uint64_t *ext,
		   struct meta_box *ret)
{
	struct meta_box b = *box;

	for (int i = 0; i < box->nr; i++) {
		uint64_t lo = sc_max_u64(box->off[i], off[i]);
		uint64_t hi = sc_min_u64(box->off[i] + box->ext[i], off[i] + ext[i]);

		if (lo >= hi)
			return false;
		b.at += (lo - box->off[i]) * box->stride[i];
		b.off[i] = lo;
		b.ext[i] = hi - lo;
	}
	*ret = b;
	return true;
}
