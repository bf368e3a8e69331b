/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Offsets: 55 bits of the name's hash, and 7 that tell names with equal hashes apart, in the order of their bytes.
 * (Among 16 million names, two have equal hashes with a probability of one in 250.  If one of them is removed while a
 * reader is between the two, the other may come twice or not at all.)
 */
#include "reshard/overlay/listing.h"

#include <stdlib.h>
#include <string.h>
#include <xxhash.h>

#define TIE_BITS 7

static int add(void *arg, struct meta_bytes name, uint64_t ino)
{
	struct rs_listing *l = arg;
	struct rs_listed x = {(XXH3_64bits(name.at, name.nr) >> (64 - 55)) << TIE_BITS, ino,
			      {sc_arena_copy(&l->names, name.at, name.nr), name.nr}};

	if (x.offset < RS_OFFSET_FIRST)
		x.offset = UINT64_C(1) << TIE_BITS;
	return x.name.at && sc_vec_push(l, x) == 0 ? 0 : SC_E_NO_MEMORY;
}

static int by_offset(const void *a, const void *b)
{
	const struct rs_listed *x = a, *y = b;
	size_t n = x->name.nr < y->name.nr ? x->name.nr : y->name.nr;
	int order = x->offset != y->offset ? (x->offset < y->offset ? -1 : 1) : memcmp(x->name.at, y->name.at, n);

	return order ? order : (x->name.nr > y->name.nr) - (x->name.nr < y->name.nr);
}

int rs_listing_make(const struct rs_overlay *o, uint64_t folder, struct rs_listing *ret, struct sc_err *err)
{
	int rc;

	rs_listing_done(ret);
	ret->folder = folder;
	ret->changes = rs_overlay_changes(o, folder);
	rc = rs_overlay_children(o, folder, add, ret, err);
	if (rc == SC_E_NO_MEMORY)
		return sc_nomem(err);
	if (rc < 0)
		return rc;
	if (ret->nr)
		qsort(ret->at, ret->nr, sizeof(*ret->at), by_offset);
	for (size_t i = 1; i < ret->nr; i++)
		if (ret->at[i].offset <= ret->at[i - 1].offset)
			ret->at[i].offset = ret->at[i - 1].offset + 1;
	return 0;
}

void rs_listing_done(struct rs_listing *l)
{
	sc_vec_done(l);
	sc_arena_done(&l->names);
	*l = (struct rs_listing){0};
}

bool rs_listing_is_old(const struct rs_overlay *o, const struct rs_listing *l)
{
	return l->changes != rs_overlay_changes(o, l->folder);
}

size_t rs_listing_after(const struct rs_listing *l, uint64_t offset)
{
	return sc_first(l->nr, i, l->at[i].offset > offset);
}
