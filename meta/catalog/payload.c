/* SPDX-License-Identifier: Apache-2.0 */
/* Keeps payloads, the part of a file that is no tensor.  Rows of set_blob and of given name them. */
#include "meta/catalog/db_i.h"

#include <inttypes.h>
#include <string.h>
#include <xxhash.h>

static int find(struct meta_catalog *c, const void *hash16, uint64_t *ret_id, struct sc_err *err)
{
	*ret_id = 0;
	return db_each(c, err, db_id, ret_id, "SELECT id FROM payload WHERE hash = ?", "b", hash16);
}

int meta_payload_put(struct meta_catalog *c, const void *payload, size_t bytes, uint64_t *ret_id, struct sc_err *err)
{
	XXH128_canonical_t hash;
	uint64_t id;
	int rc;

	XXH128_canonicalFromHash(&hash, XXH3_128bits(payload, bytes));
	db_lock(c);
	rc = find(c, hash.digest, &id, err);
	if (rc == 0 && !id) {
		rc = db_run(c, err, "INSERT INTO payload (hash, bytes) VALUES (?, ?)", "bB", hash.digest,
			    &(struct meta_bytes){payload, bytes});
		if (rc == 0)
			rc = find(c, hash.digest, &id, err);
	}
	db_unlock(c);
	if (rc == 0)
		*ret_id = id;
	return rc;
}

struct getting {
	meta_payload_fn *fn;
	void *arg;
	uint64_t id;
	bool found;
	struct sc_err *err;
};

/* Hands over a payload after a comparison with its hash: SQLite has no checksum of its own. */
static int on_payload(void *arg, sqlite3_stmt *row)
{
	struct getting *g = arg;
	const void *bytes = sqlite3_column_blob(row, 0), *hash = sqlite3_column_blob(row, 1);
	const size_t nr = (size_t)sqlite3_column_bytes(row, 0);
	XXH128_canonical_t now;

	XXH128_canonicalFromHash(&now, XXH3_128bits(bytes, nr));
	if (!hash || sqlite3_column_bytes(row, 1) != sizeof(now) || memcmp(hash, &now, sizeof(now)) != 0)
		return sc_fail(g->err, SC_E_CORRUPT, "catalog: payload %" PRIu64 " has other bytes than it was stored "
			       "with", g->id);
	g->found = true;
	return g->fn(g->arg, bytes, nr);
}

int meta_payload_get(struct meta_catalog *c, uint64_t id, meta_payload_fn *fn, void *arg, struct sc_err *err)
{
	struct getting g = {.fn = fn, .arg = arg, .id = id, .err = err};
	int rc = db_each(c, err, on_payload, &g, "SELECT bytes, hash FROM payload WHERE id = ?", "i", id);

	return rc < 0 || g.found ? rc : sc_fail(err, SC_E_NOT_FOUND, "catalog: payload %" PRIu64 " is missing", id);
}
