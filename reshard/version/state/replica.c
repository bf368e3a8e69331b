/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Finds, for a rank's file whose node is gone, the file of a replica.  Ranks that are alike hold the same tensors, so
 * what data-parallel replicas wrote on other nodes are copies of each other, though nobody asked for any.
 *
 * 1. Only a file of the same set, size and payload stands in, and none where copies are known to differ.
 * 2. An image is read from one place as long as it lives: from its own file, or from that of the replica.
 */
#include "reshard/version/state/state_i.h"

#include <string.h>

bool rs_blob_here(struct rs_service *s, uint64_t blob)
{
	return rs_blob_place(s->blobs, blob, 0, 0, &(struct rs_place){0}, &(struct sc_err){0}) == 0;
}

static bool may_be_read(struct rs_service *s, uint64_t blob)
{
	return !rs_blob_is_gone(s->blobs, blob) || rs_blob_here(s, blob);
}

const struct rs_set_blob *rs_replica_of(struct rs_service *s, const struct rs_set *set, const struct rs_set_blob *b)
{
	const struct rs_set *given = rs_set_given(set);
	uint32_t like;

	if (!set->view || (given != set && given->has_payloads) ||
	    __atomic_load_n(&set->verified, __ATOMIC_ACQUIRE) == META_DIFFER)
		return NULL;
	like = meta_view_alike(set->view, b->rank, b->path);
	for (size_t i = 0; i < set->nr_blobs; i++) {
		const struct rs_set_blob *other = &set->blobs[i];

		if (other->bytes == b->bytes && other->blob != b->blob && other->payload == b->payload &&
		    strcmp(other->path, b->path) == 0 && meta_view_alike(set->view, other->rank, other->path) == like &&
		    may_be_read(s, other->blob))
			return other;
	}
	return NULL;
}

int rs_replica_place(struct rs_service *s, const struct rs_version *v, uint64_t blob, struct rs_place *ret,
		     struct sc_err *err)
{
	const struct rs_set_blob *other = NULL;

	for (size_t i = 0; !other && i < v->nr_sets; i++)
		for (size_t k = 0; !other && k < v->sets[i]->nr_blobs; k++)
			if (v->sets[i]->blobs[k].blob == blob)
				other = rs_replica_of(s, v->sets[i], &v->sets[i]->blobs[k]);
	return other && rs_blob_place(s->blobs, other->blob, other->bytes, 0, ret, err) < 0 ? err->code : other != NULL;
}
