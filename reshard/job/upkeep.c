/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The upkeep of sealed blobs, in the background:
 *   hash    of its bytes, once, after it was sealed; one that is damaged by then is named
 *   share   a file that a rank wrote again unchanged becomes one file with the older one, by a hard
 *           link.  Replicas of other ranks stay files of their own: damage is mended from them
 *   scrub   every blob is read again from the disk, at a limited rate.  One whose bytes are not those
 *           of its hash is mended from a blob with equal ones; if there is none, nobody reads it any more
 * Damage is another hash or size, or a file that is gone or that the disk does not give.  All other errors say nothing
 * about a blob: it is looked at again.
 */
#include "reshard/job/record.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdio.h>
#include <string.h>

SC_METRIC(bytes_shared, SC_COUNTER, "scalai_shared_bytes_total", "Bytes of rank files that were written again unchanged and take no space.");
SC_METRIC(bytes_scrubbed, SC_COUNTER, "scalai_scrubbed_bytes_total", "Bytes read again by scrubbing.");
SC_METRIC(blobs_mended, SC_COUNTER, "scalai_mended_blobs_total", "Damaged blobs that were mended from equal ones.");

#define CHUNK (1u << 20)
#define DAMAGED_AGAIN_S 3600	/* a disk may have recovered, a file may have been restored */
#define PAGE 4096		/* what a file takes at least */

static int64_t now_s(void)
{
	return sc_now_wall_ns() / 1000000000;
}

/* --- reading --- */

struct blobs {
	size_t nr, room;
	struct sealed {
		uint64_t id, bytes;
		uint8_t hash[16];
		bool has_hash;
	} *at;
	struct sc_err *err;
};

static int on_blob(void *arg, const struct meta_blob_row *row)
{
	struct blobs *b = arg;
	struct sealed x = {.id = row->id, .bytes = row->bytes, .has_hash = row->hash != NULL};

	if (row->hash)
		memcpy(x.hash, row->hash, sizeof(x.hash));
	return sc_vec_push(b, x) < 0 ? sc_nomem(b->err) : 0;
}

/* 1: the same bytes, 0: not, or an error. */
static int same_bytes(const struct sealed *x, int a, uint64_t same, int b, struct sc_err *err)
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

/* --- share --- */

/* For fsck --rebuild: without it all else is as good. */
static void describe(struct rs_service *s, uint64_t blob, const uint8_t hash[16])
{
	struct sc_err why;

	if (rs_record_write(s, blob, hash, &why) < 0)
		sc_log(SC_LOG_INFO, "%s: 'fsck --rebuild' would not find it", why.msg);
}

static int share(struct rs_service *s, const struct sealed *x, uint64_t same, struct sc_err *err)
{
	sc_cleanup(sc_closep) int mine = -1;
	sc_cleanup(sc_closep) int other = -1;
	struct stat a, b;
	int rc = meta_store_open_blob(&s->store, x->id, x->bytes, &mine, err);

	if (rc == 0)
		rc = meta_store_open_blob(&s->store, same, x->bytes, &other, err);
	if (rc == 0 && (sc_sys.fstat(mine, &a) < 0 || sc_sys.fstat(other, &b) < 0))
		rc = sc_fail_sys(err, errno, "stat");
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

/* Space is saved or it is not: no reason to stop. */
static int try_share(struct rs_service *s, const struct sealed *x, struct sc_err *err)
{
	struct sc_err why;
	uint64_t same;
	int rc = x->bytes < PAGE ? 1 : meta_blob_same_before(s->catalog, x->id, x->bytes, x->hash, &same, err);

	if (rc == 0 && same && share(s, x, same, &why) < 0)
		sc_log(SC_LOG_INFO, "blob %" PRIu64 " keeps a file of its own: %s", x->id, why.msg);
	return rc < 0 ? rc : 0;
}

/* --- what an error says --- */

bool rs_is_damage(const struct sc_err *why)
{
	return why->code == SC_E_DAMAGED || why->errnum == ENOENT;
}

/* Blobs that could not be looked at, for a reason that says nothing about them. */
struct left {
	unsigned nr;
	struct sc_err why;	/* of the first */
};

static void leave(struct left *left, const struct sc_err *why)
{
	if (left->nr++ == 0)
		left->why = *why;
}

/* Did this keep us from looking?  Then the blob is left for later. */
static bool left_by(struct left *left, const struct sc_err *why)
{
	bool is = why->code && !rs_is_damage(why);

	if (is)
		leave(left, why);
	return is;
}

static int say_left(const struct left *left, struct sc_err *err)
{
	if (!left->nr)
		return 0;
	*err = left->why;
	return sc_wrap(err, err->code, "%u blobs wait for another look", left->nr);
}

/* --- mend --- */

/* What needs the blob is tried again.  1: the mark is another one now, 0: it was so, or an error. */
static int mark(struct rs_service *s, uint64_t blob, bool damaged, struct sc_err *err)
{
	int rc = meta_store_set_damaged(&s->store, blob, damaged, err);
	struct rs_job *job;

	if (rc > 0)
		rs_kick(s, false);
	for (size_t i = 0; rc > 0 && (job = rs_job_at(s, i)); i++)
		rs_job_tell(job);
	return rc;
}

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

static int copy_over(struct rs_service *s, const struct sealed *x, uint64_t from_id, struct sc_err *err)
{
	sc_cleanup(sc_closep) int from = -1;
	sc_cleanup(sc_closep) int to = -1;
	struct meta_store_dirs dirs = {{0}};
	int rc = meta_store_open_blob(&s->store, from_id, x->bytes, &from, err);

	if (rc == 0)
		rc = meta_store_begin_replace(&s->store, &to, err);
	if (rc == 0)
		rc = rs_copy_file(to, from, from_id, x->bytes, "blob", err);
	if (rc == 0 && sc_sys.fsync(to) < 0)
		rc = sc_fail_sys(err, errno, "cannot flush blob %" PRIu64, x->id);
	if (rc < 0)
		return rc;
	/* garbage is collected in two steps, rows and then files: not between them */
	(void)pthread_mutex_lock(&s->making);
	rc = meta_blob_known(s->catalog, x->id, err);
	if (rc == 0)
		rc = sc_fail(err, SC_E_NOT_FOUND, "blob %" PRIu64 " is gone with its version", x->id);
	else if (rc > 0)
		rc = meta_store_replace(&s->store, x->id, err);
	(void)pthread_mutex_unlock(&s->making);
	meta_store_note_dir(&dirs, x->id);
	if (rc == 0)
		rc = meta_store_sync_dirs(&s->store, &dirs, err);
	rs_blob_forget(s->blobs, x->id);
	return rc;
}

int rs_blob_mend(struct rs_service *s, uint64_t blob, uint64_t bytes, const uint8_t hash[16], uint64_t *ret_from,
		 struct sc_err *err)
{
	struct sealed x = {.id = blob, .bytes = bytes};
	struct ids twins = {.err = err};
	struct left left = {0};
	int rc = meta_blob_twins(s->catalog, blob, bytes, hash, on_id, &twins, err);

	*ret_from = 0;
	for (size_t i = 0; rc == 0 && !*ret_from && i < twins.nr; i++) {
		struct sc_err why = {0};
		uint8_t now[16];
		uint64_t n;

		/* it may be damaged itself, or be the same file */
		if (rs_hash_blob(&s->store, twins.at[i], NULL, NULL, now, &n, &why) < 0)
			(void)left_by(&left, &why);
		if (why.code || n != bytes || memcmp(now, hash, 16) != 0)
			continue;
		rc = copy_over(s, &x, twins.at[i], err);
		if (rc == 0)
			*ret_from = twins.at[i];
	}
	if (rc == 0 && !*ret_from)
		rc = say_left(&left, err); /* one of them may be the right one */
	if (rc == 0 && *ret_from)
		rc = mark(s, blob, false, err);
	if (rc >= 0 && *ret_from)
		rc = meta_blob_checked(s->catalog, blob, hash, now_s(), false, err);
	if (rc == 0 && *ret_from)
		describe(s, blob, hash);
	sc_vec_done(&twins);
	return rc;
}

/* --- damage --- */

void rs_use_text(const struct meta_blob_use *use, struct sc_buf *buf)
{
	if (use->rank >= 0)
		sc_buf_printf(buf, "rank %" PRId64 " ", use->rank);
	sc_buf_printf(buf, "'%s'", use->path);
}

static int on_use(void *arg, const struct meta_blob_use *use)
{
	struct sc_buf *buf = arg;

	sc_buf_printf(buf, "%sjob '%s' version %" PRIu64 " ", buf->bytes ? ", " : "", use->job, use->version);
	rs_use_text(use, buf);
	return 0;
}

static int found_damage(struct rs_service *s, const struct sealed *x, const char *what, struct sc_err *err)
{
	struct sc_buf uses = {0};
	struct sc_err ignored;
	uint64_t from = 0;
	int rc;

	sc_buf_printf(&uses, "%s", "");
	rc = uses.failed ? sc_nomem(err) : meta_blob_uses(s->catalog, x->id, on_use, &uses, err);
	if (rc == 0 && x->has_hash)
		rc = rs_blob_mend(s, x->id, x->bytes, x->hash, &from, err);
	if (rc == SC_E_NOT_FOUND) {
		rc = 0;
	} else if (rc < 0) { /* it is looked at again; nobody may read it until then */
		(void)mark(s, x->id, true, &ignored);
	} else if (from) {
		sc_log(SC_LOG_WARN, "blob %" PRIu64 " %s; it is mended from blob %" PRIu64 ", continuing (%s)", x->id, what, from,
		       uses.text);
		sc_metric_add(&blobs_mended, 1);
	} else {
		rc = mark(s, x->id, true, err);
		if (rc > 0) /* once: it is looked at each hour */
			sc_log(SC_LOG_ERROR, "blob %" PRIu64 " %s, and nothing has the same bytes: it is not read any more (%s)",
			       x->id, what, uses.text);
		if (rc >= 0)
			rc = meta_blob_checked(s->catalog, x->id, x->has_hash ? x->hash : NULL, now_s(), true, err);
	}
	sc_buf_done(&uses);
	rs_blob_forget(s->blobs, x->id);
	rs_images_forget(s, NULL);
	return rc;
}

/* By what was read of a blob, or by `why` it could not be read.  0: it is as it was sealed; 1: it is damaged, which has been
 * dealt with, or gone; or an error. */
static int judge(struct rs_service *s, const struct sealed *x, const uint8_t hash[16], uint64_t bytes,
		 const struct sc_err *why, struct sc_err *err)
{
	char what[SC_ERR_BYTES_MAX + 32] = "has other bytes than when it was sealed";
	int rc;

	if (!why->code && bytes == x->bytes && (!x->has_hash || memcmp(hash, x->hash, 16) == 0))
		return 0;
	rc = meta_blob_known(s->catalog, x->id, err);
	if (rc <= 0)
		return rc < 0 ? rc : 1;
	if (why->code)
		(void)snprintf(what, sizeof(what), "is lost (%s)", why->msg);
	else if (bytes != x->bytes)
		(void)snprintf(what, sizeof(what), "has another size than when it was sealed");
	rc = found_damage(s, x, what, err);
	return rc < 0 ? rc : 1;
}

/* --- first hashes --- */

static int on_hashed(void *arg, uint64_t bytes)
{
	(void)bytes;
	return rs_worker_is_called(arg);
}

/* A blob can have many gigabytes, and what the worker is called for is waited for: it is left for later,
 * some times. */
static int hash_or_leave(struct rs_service *s, uint64_t blob, uint8_t hash[16], uint64_t *ret_bytes,
			 struct sc_err *err)
{
	bool may_wait = s->hash_put_off < RS_PUT_OFF_MAX;
	int rc = rs_hash_blob(&s->store, blob, may_wait ? on_hashed : NULL, s, hash, ret_bytes, err);

	s->hash_put_off = rc == SC_E_CANCELLED ? s->hash_put_off + 1 : 0;
	return rc;
}

static int hash_first(struct rs_service *s, struct sealed *x, struct left *left, struct sc_err *err)
{
	struct sc_err why = {0};
	uint64_t bytes = 0;
	int rc = hash_or_leave(s, x->id, x->hash, &bytes, &why);

	if (rc == SC_E_CANCELLED || left_by(left, &why))
		return 0;
	rc = judge(s, x, x->hash, bytes, &why, err);
	if (rc)
		return rc < 0 ? rc : 0;
	rc = try_share(s, x, err);
	if (rc < 0)
		return rc;
	describe(s, x->id, x->hash);
	return meta_blob_checked(s->catalog, x->id, x->hash, now_s(), false, err);
}

int rs_hash_blobs(struct rs_service *s, struct sc_err *err)
{
	struct blobs u = {.err = err};
	struct left left = {0};
	int rc = meta_blob_unhashed(s->catalog, on_blob, &u, err);

	for (size_t i = 0; rc == 0 && i < u.nr && !rs_worker_is_called(s); i++)
		rc = hash_first(s, &u.at[i], &left, err);
	sc_vec_done(&u);
	return rc < 0 ? rc : say_left(&left, err);
}

/* --- scrub --- */

struct scrub {
	struct rs_service *s;
	uint64_t bytes;		/* read since */
	int64_t began_ns;
	struct left left;
};

/* Waits until `ns` (monotonic) or the end of the service; true: the end. */
static bool pause_until(struct rs_service *s, int64_t ns)
{
	bool stop;

	(void)pthread_mutex_lock(&s->worker_lock);
	while (!s->stop && sc_now_ns() < ns)
		if (sc_sys.wait_until(&s->scrub_wake, &s->worker_lock, ns) == ETIMEDOUT)
			break;
	stop = s->stop;
	(void)pthread_mutex_unlock(&s->worker_lock);
	return stop;
}

static int on_read(void *arg, uint64_t bytes)
{
	struct scrub *p = arg;

	p->bytes += bytes;
	sc_metric_add(&bytes_scrubbed, bytes);
	return p->s->scrub_rate &&
	       pause_until(p->s, p->began_ns + (int64_t)((double)p->bytes * 1e9 / (double)p->s->scrub_rate));
}

static int scrub_blob(struct scrub *p, const struct sealed *x, struct sc_err *err)
{
	sc_cleanup(sc_closep) int fd = -1;
	struct rs_service *s = p->s;
	struct sc_err why = {0};
	uint8_t hash[16];
	uint64_t bytes = 0;
	/* not what the page cache has, and nothing that somebody wants is driven out of it */
	int rc = meta_store_open_damaged(&s->store, x->id, O_RDONLY | O_DIRECT, &fd, &why);

	if (rc < 0 && why.errnum == EINVAL) {
		why = (struct sc_err){0};
		rc = meta_store_open_damaged(&s->store, x->id, O_RDONLY, &fd, &why);
	}
	if (rc == 0)
		rc = rs_hash_fd(fd, x->id, on_read, p, hash, &bytes, &why);
	if (rc == SC_E_CANCELLED) {
		*err = why;
		return rc;
	}
	if (left_by(&p->left, &why))
		return 0;
	rc = judge(s, x, hash, bytes, &why, err);
	if (rc < 0 && rc != SC_E_CATALOG && rc != SC_E_CORRUPT && rc != SC_E_NO_SPACE) {
		leave(&p->left, err); /* it can't be mended now */
		return 0;
	}
	if (rc)
		return rc < 0 ? rc : 0;
	if (!x->has_hash || !meta_store_has_record(&s->store, x->id))
		describe(s, x->id, hash); /* of a store that is older than that */
	rc = mark(s, x->id, false, err);
	if (rc > 0)
		sc_log(SC_LOG_WARN, "blob %" PRIu64 " is intact again: it is read as before, continuing", x->id);
	return rc < 0 ? rc : meta_blob_checked(s->catalog, x->id, hash, now_s(), false, err);
}

int rs_service_scrub(struct rs_service *s, int64_t before_s, struct sc_err *err)
{
	struct scrub p = {.s = s, .began_ns = sc_now_ns()};
	struct blobs due = {.err = err};
	int64_t hour_ago = now_s() - DAMAGED_AGAIN_S;
	int rc = meta_blob_due(s->catalog, before_s, hour_ago > before_s ? hour_ago : before_s, on_blob, &due, err);

	for (size_t i = 0; rc == 0 && i < due.nr; i++)
		rc = scrub_blob(&p, &due.at[i], err);
	sc_vec_done(&due);
	return rc < 0 ? rc : say_left(&p.left, err);
}

bool rs_service_is_damaged(struct rs_service *s)
{
	return meta_store_has_damage(&s->store);
}

static int64_t clamp(int64_t v, int64_t least, int64_t most)
{
	return v < least ? least : v > most ? most : v;
}

static void *scrubber(void *arg)
{
	struct rs_service *s = arg;
	int64_t every_ns = clamp(s->scrub_every_s / 10, 1, 600) * 1000000000;
	int64_t next = sc_now_ns();

	while (!pause_until(s, next)) {
		struct sc_err err;
		int rc;

		next = sc_now_ns() + every_ns;
		rc = rs_service_scrub(s, now_s() - s->scrub_every_s, &err);
		if (rc < 0)
			(void)sc_wrap(&err, rc, "scrub");
		if (rc != SC_E_CANCELLED)
			rs_say_once(&s->scrub_said, rc, &err);
	}
	return NULL;
}

static int on_damaged(void *arg, uint64_t blob)
{
	struct rs_service *s = arg;
	struct sc_err ignored;
	int rc = meta_store_set_damaged(&s->store, blob, true, &ignored);

	return rc < 0 ? rc : 0;
}

int rs_damaged_load(struct rs_service *s, struct sc_err *err)
{
	int rc = meta_blob_damaged(s->catalog, on_damaged, s, err);

	return rc == SC_E_NO_MEMORY ? sc_nomem(err) : rc;
}

int rs_scrub_start(struct rs_service *s, struct sc_err *err)
{
	int rc = s->scrub_every_s ? pthread_create(&s->scrubber, NULL, scrubber, s) : 0;

	if (rc)
		return sc_fail_sys(err, rc, "cannot start scrubbing");
	s->has_scrubber = s->scrub_every_s != 0;
	if (s->has_scrubber)
		(void)pthread_setname_np(s->scrubber, "scalai-scrub");
	return 0;
}
