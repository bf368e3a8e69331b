/* SPDX-License-Identifier: Apache-2.0 */
/* Finds, among the blobs of a tensor whose digest has changed, those with other bytes than when they were first
 * hashed. */
#include "reshard/version/verify/verify_i.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>

#include "meta/catalog/catalog.h"
#include "reshard/engine/io/hash.h"

struct hashed {
	bool is;
	uint8_t hash[16];
};

static int on_blob(void *arg, const struct meta_blob_row *row)
{
	struct hashed *h = arg;

	h->is = row->hash != NULL;
	if (h->is)
		memcpy(h->hash, row->hash, sizeof(h->hash));
	return 0;
}

int rs_verify_suspect(struct rs_service *s, uint64_t blob, rs_tick_fn *tick, void *arg, struct sc_err *err)
{
	struct hashed was = {false};
	struct sc_err why = {0};
	uint8_t hash[16];
	uint64_t bytes;
	int rc = meta_blob_sealed(s->catalog, blob, on_blob, &was, err);

	if (rc < 0 || !was.is)
		return rc;
	rc = rs_hash_blob(&s->store, blob, tick, arg, hash, &bytes, &why);
	if (rc == 0 && memcmp(hash, was.hash, sizeof(hash)) == 0)
		return 0;
	if (rc < 0 && why.code != SC_E_DAMAGED && why.errnum != ENOENT) { /* it says nothing about the blob */
		*err = why;
		return rc;
	}
	if (rc == 0)
		(void)sc_fail(&why, SC_E_DAMAGED, "it has other bytes than when it was written");
	(void)sc_about(&why, blob);
	rs_damage_met(s, &why);
	*err = why;
	return rc == 0 ? RS_SUSPECT_OTHER : RS_SUSPECT_UNREADABLE;
}

int rs_verify_refuse(int found, const char *file, struct sc_err *err)
{
	const struct sc_err why = *err;

	if (found == RS_SUSPECT_OTHER)
		return sc_fail(err, SC_E_DAMAGED, "%s has other bytes than when it was written: it is mended from "
			       "another copy, if there is one", file);
	return sc_fail(err, SC_E_DAMAGED, "%s: %s; it is mended from another copy, if there is one", file, why.msg);
}

bool rs_verify_is_shared(const struct rs_set *set, uint32_t rank, const char *file)
{
	uint32_t like = set->view ? meta_view_alike(set->view, rank, file) : rank; /* a folder has no ranks */
	const struct rs_set_blob *mine = like == rank ? NULL : rs_set_find(set, rank, file);
	const struct rs_set_blob *other = mine ? rs_set_find(set, like, file) : NULL;

	return other && mine->blob == other->blob;
}

int rs_verify_files(struct rs_service *s, const struct rs_set *set, rs_tick_fn *tick, void *arg, struct sc_err *err)
{
	int rc = 0;

	for (size_t i = 0; rc == 0 && i < set->nr_blobs; i++) {
		const struct rs_set_blob *b = &set->blobs[i];
		char file[SC_ERR_BYTES_MAX];

		if (!rs_verify_is_shared(set, b->rank, b->path) && rs_blob_here(s, b->blob))
			rc = rs_verify_suspect(s, b->blob, tick, arg, err);
		if (rc > 0) {
			(void)snprintf(file, sizeof(file), "rank %u '%s'", b->rank, b->path);
			rc = rs_verify_refuse(rc, file, err);
		}
	}
	return rc;
}
