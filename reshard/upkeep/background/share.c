/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Hashes blobs for the first time, and shares files.  A blob is hashed once after it was sealed; a blob that is cut
 * short or cannot be read by then is noted.  A file that a rank wrote again unchanged becomes one file with the older
 * one, by a hard link.  Replicas of other ranks stay files of their own: damage is mended from them.
 */
#include "reshard/upkeep/background/upkeep_i.h"

#include <errno.h>
#include <inttypes.h>
#include <string.h>
#include <sys/stat.h>

#include "reshard/upkeep/recovery/record.h"

SC_METRIC(bytes_shared, SC_COUNTER, "scalai_shared_bytes_total",
	  "Bytes of rank files that were written again unchanged and take no space.");

SC_METRIC(hashes_owed, SC_GAUGE, "scalai_hashes_owed", "Sealed files whose bytes the worker has still to hash.");

#define CHUNK (1u << 20)

#define PAGE 4096		/* what a file takes at least */

int rs_sealed_add(void *arg, const struct meta_blob_row *row)
{
	struct rs_sealed_list *b = arg;
	struct rs_sealed x = {.id = row->id, .bytes = row->bytes, .has_hash = row->hash != NULL};

	if (row->hash)
		memcpy(x.hash, row->hash, sizeof(x.hash));
	return sc_vec_push(b, x) < 0 ? sc_nomem(b->err) : 0;
}

/* Compares two files byte by byte: 1 (equal), 0, or an error. */
static int same_bytes(const struct rs_sealed *x, int a, uint64_t same, int b, struct sc_err *err)
{
	unsigned char *buffer = sc_sys.alloc(2 * (size_t)CHUNK);
	int rc = buffer ? 1 : sc_nomem(err);

	for (uint64_t at = 0; rc == 1 && at < x->bytes; at += CHUNK) {
		uint64_t n = sc_min_u64(x->bytes - at, CHUNK);

		rc = rs_fd_read(a, x->id, at, n, buffer, err);
		if (rc == 0)
			rc = rs_fd_read(b, same, at, n, buffer + CHUNK, err);
		if (rc == 0)
			rc = memcmp(buffer, buffer + CHUNK, n) == 0;
	}
	sc_sys.release(buffer);
	return rc;
}

static int share(struct rs_service *s, const struct rs_sealed *x, uint64_t same, struct sc_err *err)
{
	sc_cleanup(sc_closep) int mine = -1;
	sc_cleanup(sc_closep) int other = -1;
	struct stat a, b;
	int rc = meta_store_open_blob(&s->store, x->id, x->bytes, &mine, err);

	if (rc == 0)
		rc = meta_store_open_blob(&s->store, same, x->bytes, &other, err);
	if (rc == 0 && (sc_sys.fstat(mine, &a) < 0 || sc_sys.fstat(other, &b) < 0))
		rc = sc_fail_sys(err, errno, "cannot stat blob %" PRIu64, x->id);
	if (rc < 0 || a.st_ino == b.st_ino)
		return rc;
	rc = same_bytes(x, mine, same, other, err);
	if (rc <= 0)
		return rc;
	/* it may be of a time with sync=off */
	if (sc_sys.fdatasync(other) < 0)
		return sc_fail_sys(err, errno, "cannot flush blob %" PRIu64, same);
	rc = meta_store_share(&s->store, x->id, same, err);
	if (rc == 0) {
		rs_blob_forget(s->blobs, x->id);
		sc_metric_add(&bytes_shared, x->bytes);
	}
	return rc;
}

/* Shares a blob's file with an equal one, if there is one; a failure is logged and ignored. */
static int try_share(struct rs_service *s, const struct rs_sealed *x, struct sc_err *err)
{
	struct sc_err why;
	uint64_t same;
	int rc = x->bytes < PAGE ? 1 : meta_blob_same_before(s->catalog, x->id, x->bytes, x->hash, &same, err);

	if (rc == 0 && same && share(s, x, same, &why) < 0)
		sc_log(SC_LOG_INFO, "blob %" PRIu64 " is not shared with an equal one and keeps its space: %s", x->id,
			why.msg);
	return rc < 0 ? rc : 0;
}

static int on_hashed(void *arg, uint64_t bytes)
{
	(void)bytes;
	return rs_worker_is_called(arg);
}

/* Hashes a blob, or, some times, leaves it for later: it can have many gigabytes, and somebody may wait for what the
 * worker is called for. */
static int hash_or_leave(struct rs_service *s, uint64_t blob, uint8_t hash[16], uint64_t *ret_bytes,
			 struct sc_err *err)
{
	bool may_wait = s->upkeep->hash_put_off < RS_PUT_OFF_MAX;
	int rc = rs_hash_blob(&s->store, blob, may_wait ? on_hashed : NULL, s, hash, ret_bytes, err);

	s->upkeep->hash_put_off = rc == SC_E_CANCELLED ? s->upkeep->hash_put_off + 1 : 0;
	return rc;
}

int rs_hash_note(struct rs_service *s, const struct rs_sealed *x, struct sc_err *err)
{
	int rc = try_share(s, x, err);

	if (rc < 0)
		return rc;
	rs_record_keep(s, x->id, x->hash);
	return meta_blob_checked(s->catalog, x->id, x->hash, rs_now_s(), false, err);
}

/* Hashes a blob for the first time.  Notes one that is cut short or cannot be read, as if a read had met it (met.c):
 * the worker looks at it again soon, and somebody may be restoring it.  1: it is hashed or noted, 0: it is left for
 * later. */
static int hash_first(struct rs_service *s, struct rs_sealed *x, struct rs_left *left, struct sc_err *err)
{
	struct sc_err why = {0};
	uint64_t bytes = 0;
	int rc = hash_or_leave(s, x->id, x->hash, &bytes, &why);

	if (rc == SC_E_CANCELLED || rs_left_by(left, &why))
		return 0;
	if (rc == 0 && bytes != x->bytes)
		rc = sc_fail(&why, SC_E_DAMAGED, "it has %" PRIu64 " bytes instead of %" PRIu64, bytes, x->bytes);
	if (rc < 0) {
		(void)sc_about(&why, x->id);
		rs_damage_met(s, &why);
		return 1;
	}
	rc = rs_hash_note(s, x, err);
	return rc < 0 ? rc : 1;
}

int rs_hash_blobs(struct rs_service *s, struct sc_err *err)
{
	struct rs_sealed_list u = {.err = err};
	struct rs_left left = {0};
	size_t owed = 0;
	int rc = meta_blob_unhashed(s->catalog, rs_sealed_add, &u, err);

	if (rc == 0)
		sc_metric_set(&hashes_owed, owed = u.nr);
	for (size_t i = 0; rc >= 0 && i < u.nr && !rs_worker_is_called(s); i++) {
		rc = hash_first(s, &u.at[i], &left, err);
		owed -= rc > 0;
		sc_metric_set(&hashes_owed, owed);
	}
	sc_vec_done(&u);
	return rc < 0 ? rc : rs_left_say(&left, err);
}
