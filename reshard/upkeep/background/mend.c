/* SPDX-License-Identifier: Apache-2.0 */
/* Mends a damaged blob from a blob with equal bytes, or from another node's copy; if there is neither, nobody reads the
 * blob any more. */
#include "reshard/upkeep/background/upkeep_i.h"

#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "reshard/engine/io/copy.h"
#include "reshard/engine/io/local.h"
#include "reshard/upkeep/recovery/record.h"

SC_METRIC(blobs_mended, SC_COUNTER, "scalai_mended_blobs_total",
	  "Damaged blobs that were repaired from replicas or other nodes' copies.");

struct ids {
	size_t nr, room;
	uint64_t *at;
	struct sc_err *err;
};

static int on_id(void *arg, uint64_t id)
{
	struct ids *ids = arg;

	return sc_vec_push(ids, id) < 0 ? sc_nomem(ids->err) : 0;
}

/* Puts a file that has the right bytes, `to`, in the place of the damaged one. */
static int replace(struct rs_service *s, const struct rs_sealed *x, int to, struct sc_err *err)
{
	struct meta_store_dirs dirs = {{0}};
	int rc;

	if (sc_sys.fsync(to) < 0)
		return sc_fail_sys(err, errno, "cannot flush blob %" PRIu64, x->id);
	/* garbage is collected in two steps, rows and then files: not between them */
	(void)pthread_mutex_lock(&s->making);
	rc = meta_blob_known(s->catalog, x->id, err);
	if (rc == 0)
		rc = sc_fail(err, SC_E_NOT_FOUND, "blob %" PRIu64 " was removed with its version", x->id);
	else if (rc > 0)
		rc = meta_store_replace(&s->store, x->id, err);
	(void)pthread_mutex_unlock(&s->making);
	/* whoever opens the file from here on does not meet the damaged one, however long the flush takes */
	rs_blob_anew(s, x->id);
	meta_store_note_dir(&dirs, x->id);
	return rc < 0 ? rc : meta_store_sync_dirs(&s->store, &dirs, err);
}

static int copy_over(struct rs_service *s, const struct rs_sealed *x, uint64_t from_id, struct sc_err *err)
{
	sc_cleanup(sc_closep) int from = -1;
	sc_cleanup(sc_closep) int to = -1;
	int rc = meta_store_open_blob(&s->store, from_id, x->bytes, &from, err);

	if (rc == 0)
		rc = meta_store_begin_replace(&s->store, &to, err);
	if (rc == 0)
		rc = rs_copy_file(to, from, from_id, x->bytes, "blob", err);
	return rc < 0 ? rc : replace(s, x, to, err);
}

/* Fetches the bytes of a blob from other nodes: 1, 0 (no node has given the right bytes), or an error. */
static int fetch_over(struct rs_service *s, const struct rs_sealed *x, struct sc_err *err)
{
	sc_cleanup(sc_closep) int to = -1;
	struct rs_place place;
	uint8_t hash[16];
	uint64_t bytes;
	int rc = rs_blob_copies(s->blobs, x->id, x->bytes, &place, err);

	if (rc <= 0)
		return rc;
	rc = meta_store_begin_replace(&s->store, &to, err);
	if (rc == 0)
		rc = rs_copy_place(to, &place, x->bytes, err);
	if (rc == SC_E_SYSTEM && err->errnum == EIO) {
		sc_log(SC_LOG_WARN, "blob %" PRIu64 " is damaged, and no other node has given it: %s", x->id, err->msg);
		return 0;
	}
	if (rc == 0)
		rc = rs_hash_fd(to, x->id, NULL, NULL, hash, &bytes, err);
	if (rc < 0 || bytes != x->bytes || memcmp(hash, x->hash, sizeof(hash)) != 0)
		return rc;
	rc = replace(s, x, to, err);
	return rc < 0 ? rc : 1;
}

/* Mends a blob from other nodes.  Meanwhile nobody reads the blob here: this node would be the first one that is asked
 * for its bytes. */
static int copy_from_nodes(struct rs_service *s, const struct rs_sealed *x, struct sc_err *err)
{
	struct sc_err ignored;
	int was_not, rc;

	if (!rs_blobs_may_be_away(s->blobs))
		return 0;
	was_not = meta_store_set_damaged(&s->store, x->id, true, err);
	if (was_not < 0)
		return was_not;
	rc = fetch_over(s, x, err);
	if (rc <= 0 && was_not > 0)
		(void)meta_store_set_damaged(&s->store, x->id, false, &ignored);
	return rc;
}

/* Mends a blob from another blob of this store: 1, 0 (none has its bytes), or an error. */
static int copy_from_twin(struct rs_service *s, const struct rs_sealed *x, uint64_t *ret_from, struct sc_err *err)
{
	struct ids twins = {.err = err};
	struct rs_left left = {0};
	int rc = meta_blob_twins(s->catalog, x->id, x->bytes, x->hash, on_id, &twins, err);

	*ret_from = 0;
	for (size_t i = 0; rc == 0 && !*ret_from && i < twins.nr; i++) {
		struct sc_err why = {0};
		uint8_t now[16];
		uint64_t n;

		/* it may be damaged itself, or be the same file */
		if (rs_hash_blob(&s->store, twins.at[i], NULL, NULL, now, &n, &why) < 0)
			(void)rs_left_by(&left, &why);
		if (why.code || n != x->bytes || memcmp(now, x->hash, 16) != 0)
			continue;
		rc = copy_over(s, x, twins.at[i], err);
		if (rc == 0)
			*ret_from = twins.at[i];
	}
	sc_vec_done(&twins);
	if (rc == 0 && !*ret_from)
		rc = rs_left_say(&left, err); /* one of them may be the right one */
	return rc < 0 ? rc : *ret_from != 0;
}

int rs_blob_mend(struct rs_service *s, uint64_t blob, uint64_t bytes, const uint8_t hash[16],
		 char ret_from[RS_MENDED_TEXT], struct sc_err *err)
{
	struct rs_sealed x = {.id = blob, .bytes = bytes, .has_hash = true};
	uint64_t twin;
	int rc;

	*ret_from = 0;
	memcpy(x.hash, hash, sizeof(x.hash));
	rc = copy_from_twin(s, &x, &twin, err);
	if (rc > 0)
		(void)snprintf(ret_from, RS_MENDED_TEXT, "blob %" PRIu64, twin);
	if (rc == 0)
		rc = copy_from_nodes(s, &x, err);
	if (rc <= 0)
		return rc;
	if (!*ret_from)
		(void)snprintf(ret_from, RS_MENDED_TEXT, "another node's copy");
	rc = rs_blob_mark(s, blob, false, err);
	if (rc >= 0)
		rc = meta_blob_checked(s->catalog, blob, hash, rs_now_s(), false, err);
	if (rc == 0) {
		rs_record_keep(s, blob, hash);
		sc_metric_add(&blobs_mended, 1);
	}
	return rc;
}

static int found_damage(struct rs_service *s, const struct rs_sealed *x, const char *what, struct sc_err *err)
{
	struct sc_buf uses = {0};
	struct sc_err ignored;
	char from[RS_MENDED_TEXT] = "";
	int rc;

	sc_buf_printf(&uses, "%s", "");
	rc = uses.failed ? sc_nomem(err) : meta_blob_uses(s->catalog, x->id, rs_use_add, &uses, err);
	if (rc == 0 && x->has_hash)
		rc = rs_blob_mend(s, x->id, x->bytes, x->hash, from, err);
	if (rc == SC_E_NOT_FOUND) {
		rc = 0;
	} else if (rc < 0) { /* it is looked at again; nobody may read it until then */
		(void)rs_blob_mark(s, x->id, true, &ignored);
	} else if (*from) {
		sc_log(SC_LOG_WARN, "%s: blob %" PRIu64 " %s; repaired from %s, which had the same bytes, continuing",
		       uses.bytes ? uses.text : "a file of no version", x->id, what, from);
	} else {
		rc = rs_blob_mark(s, x->id, true, err);
		if (rc > 0) /* once: it is looked at each hour */
			sc_log(SC_LOG_ERROR,
			       "%s: blob %" PRIu64 " %s; no replica has the same bytes, so reads fail with EIO until "
			       "it is "
			       "restored", uses.bytes ? uses.text : "a file of no version", x->id, what);
		if (rc >= 0)
			rc = meta_blob_checked(s->catalog, x->id, x->has_hash ? x->hash : NULL, rs_now_s(), true, err);
	}
	sc_buf_done(&uses);
	return rc;
}

int rs_blob_judge(struct rs_service *s, const struct rs_sealed *x, const uint8_t hash[16], uint64_t bytes,
		  const struct sc_err *why, struct sc_err *err)
{
	char what[SC_ERR_BYTES_MAX + 32] = "has other bytes than when it was stored";
	/* what cannot be read, or is marked, is given to nobody: what others have of it is right, or of another node */
	const bool given = !why->code && !meta_store_is_damaged(&s->store, x->id);
	int rc;

	if (!why->code && bytes == x->bytes && (!x->has_hash || memcmp(hash, x->hash, 16) == 0))
		return 0;
	rc = meta_blob_known(s->catalog, x->id, err);
	if (rc <= 0)
		return rc < 0 ? rc : 1;
	if (why->code)
		(void)snprintf(what, sizeof(what), "cannot be read (%s)", why->msg);
	else if (bytes != x->bytes)
		(void)snprintf(what, sizeof(what), "has another size than when it was stored");
	rc = found_damage(s, x, what, err);
	if (given)
		rs_damage_tell(s, x->id);
	else
		rs_blob_anew(s, x->id);
	return rc < 0 ? rc : 1;
}
