/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The upkeep of sealed blobs, in the background:
 *   hash    of its bytes, once, after it was sealed
 *   share   a file that a rank wrote again unchanged becomes one file with the older one, by a hard
 *           link.  Replicas of other ranks stay files of their own: damage is mended from them
 *   scrub   every blob is read again from the disk, at a limited rate.  One whose bytes are not those
 *           of its hash is mended from a blob with equal ones; if there is none, nobody reads it any more
 */
#include "reshard/job/record.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <string.h>
#include <unistd.h>
#include <xxhash.h>

#define CHUNK (1u << 20)
#define PAGE 4096		/* what O_DIRECT wants, and what a file takes at least */

static int64_t now_s(void)
{
	return sc_now_wall_ns() / 1000000000;
}

/* --- reading --- */

/* Aligned for O_DIRECT; *ret_all is what is released. */
static unsigned char *aligned(size_t bytes, void **ret_all)
{
	*ret_all = sc_sys.alloc(bytes + PAGE);
	return *ret_all ? (unsigned char *)(((uintptr_t)*ret_all + PAGE - 1) / PAGE * PAGE) : NULL;
}

/* A piece; 0 at the end.  A read that ended inside of a page goes on without O_DIRECT. */
static ssize_t read_piece(int fd, unsigned char *to, uint64_t at)
{
	ssize_t n;

	if (at % PAGE)
		(void)fcntl(fd, F_SETFL, 0);
	do
		n = sc_sys.pread(fd, to, CHUNK, (off_t)at);
	while (n < 0 && errno == EINTR);
	return n;
}

static int hash_fd(int fd, uint64_t blob, rs_tick_fn *tick, void *arg, uint8_t ret[16], uint64_t *ret_bytes,
		   struct sc_err *err)
{
	void *all;
	unsigned char *buffer = aligned(CHUNK, &all);
	XXH3_state_t *state = XXH3_createState();
	XXH128_canonical_t hash;
	ssize_t n = 0;
	int rc = buffer && state ? 0 : sc_nomem(err);

	*ret_bytes = 0;
	if (rc == 0)
		(void)XXH3_128bits_reset(state);
	while (rc == 0 && (n = read_piece(fd, buffer, *ret_bytes)) > 0) {
		(void)XXH3_128bits_update(state, buffer, (size_t)n);
		*ret_bytes += (uint64_t)n;
		if (tick && tick(arg, (uint64_t)n))
			rc = sc_fail(err, SC_E_CANCELLED, "stopped");
	}
	if (rc == 0 && n < 0)
		rc = rs_cannot_read(blob, *ret_bytes, errno, err);
	if (rc == 0) {
		XXH128_canonicalFromHash(&hash, XXH3_128bits_digest(state));
		memcpy(ret, hash.digest, 16);
	}
	(void)XXH3_freeState(state);
	sc_sys.release(all);
	return rc;
}

static int hash_blob(struct rs_service *s, uint64_t blob, rs_tick_fn *tick, void *arg, uint8_t hash[16], uint64_t *ret_bytes,
		     struct sc_err *err)
{
	sc_cleanup(sc_closep) int fd = -1;
	int rc = meta_store_open_damaged(&s->store, blob, O_RDONLY, &fd, err);

	return rc < 0 ? rc : hash_fd(fd, blob, tick, arg, hash, ret_bytes, err);
}

int rs_hash_blob(struct rs_service *s, uint64_t blob, uint8_t hash[16], uint64_t *ret_bytes, struct sc_err *err)
{
	return hash_blob(s, blob, NULL, NULL, hash, ret_bytes, err);
}

struct blobs {
	size_t nr, room;
	struct sealed {
		uint64_t id, bytes;
		uint8_t hash[16];
	} *at;
	struct sc_err *err;
};

static int on_blob(void *arg, const struct meta_blob_row *row)
{
	struct blobs *b = arg;
	struct sealed x = {.id = row->id, .bytes = row->bytes};

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

/* --- hash and share --- */

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
		(void)__atomic_add_fetch(&s->counters.shared_bytes, x->bytes, __ATOMIC_RELAXED);
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
	int rc = hash_blob(s, blob, may_wait ? on_hashed : NULL, s, hash, ret_bytes, err);

	s->hash_put_off = rc == SC_E_CANCELLED ? s->hash_put_off + 1 : 0;
	return rc;
}

int rs_hash_blobs(struct rs_service *s, struct sc_err *err)
{
	struct blobs u = {.err = err};
	int rc = meta_blob_unhashed(s->catalog, on_blob, &u, err);

	for (size_t i = 0; rc == 0 && i < u.nr && !rs_worker_is_called(s); i++) {
		struct sealed *x = &u.at[i];
		struct sc_err gone;
		uint64_t bytes;

		/* one that was removed meanwhile needs none */
		if (hash_or_leave(s, x->id, x->hash, &bytes, &gone) < 0 || bytes != x->bytes)
			continue;
		rc = try_share(s, x, err);
		if (rc == 0)
			describe(s, x->id, x->hash);
		if (rc == 0)
			rc = meta_blob_checked(s->catalog, x->id, x->hash, now_s(), false, err);
	}
	sc_vec_done(&u);
	return rc;
}

/* --- mend --- */

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
	if (rc > 0)
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
	int rc = meta_blob_twins(s->catalog, blob, bytes, hash, on_id, &twins, err);

	*ret_from = 0;
	for (size_t i = 0; rc == 0 && !*ret_from && i < twins.nr; i++) {
		struct sc_err ignored;
		uint8_t now[16];
		uint64_t n;

		/* it may be damaged itself, or be the same file */
		if (rs_hash_blob(s, twins.at[i], now, &n, &ignored) < 0 || n != bytes || memcmp(now, hash, 16) != 0)
			continue;
		rc = copy_over(s, &x, twins.at[i], err);
		if (rc == 0)
			*ret_from = twins.at[i];
	}
	if (rc == 0 && *ret_from)
		rc = meta_store_set_damaged(&s->store, blob, false, err);
	if (rc == 0 && *ret_from)
		rc = meta_blob_checked(s->catalog, blob, hash, now_s(), false, err);
	if (rc == 0 && *ret_from)
		describe(s, blob, hash);
	sc_vec_done(&twins);
	return rc;
}

/* --- scrub --- */

struct scrub {
	struct rs_service *s;
	uint64_t bytes;		/* read since */
	int64_t began_ns;
};

/* Waits until `ns` (monotonic) or the end of the service; true: the end. */
static bool pause_until(struct rs_service *s, int64_t ns)
{
	struct timespec until = {ns / 1000000000, ns % 1000000000};
	bool stop;

	(void)pthread_mutex_lock(&s->worker_lock);
	while (!s->stop && sc_now_ns() < ns)
		if (pthread_cond_clockwait(&s->scrub_wake, &s->worker_lock, CLOCK_MONOTONIC, &until) == ETIMEDOUT)
			break;
	stop = s->stop;
	(void)pthread_mutex_unlock(&s->worker_lock);
	return stop;
}

static int on_read(void *arg, uint64_t bytes)
{
	struct scrub *p = arg;

	p->bytes += bytes;
	(void)__atomic_add_fetch(&p->s->counters.scrubbed_bytes, bytes, __ATOMIC_RELAXED);
	return p->s->scrub_rate &&
	       pause_until(p->s, p->began_ns + (int64_t)((double)p->bytes * 1e9 / (double)p->s->scrub_rate));
}

static int on_use(void *arg, const struct meta_blob_use *use)
{
	sc_buf_printf(arg, "%sjob '%s' version %" PRIu64 " rank %d '%s'", *((struct sc_buf *)arg)->text ? ", " : "", use->job,
		      use->version, (int)use->rank, use->path);
	return 0;
}

static int found_damage(struct rs_service *s, const struct sealed *x, const char *what, struct sc_err *err)
{
	struct sc_buf uses = {0};
	uint64_t from = 0;
	struct rs_job *job;
	int rc;

	sc_buf_printf(&uses, "%s", "");
	rc = uses.failed ? sc_nomem(err) : meta_blob_uses(s->catalog, x->id, on_use, &uses, err);
	if (rc == 0)
		rc = rs_blob_mend(s, x->id, x->bytes, x->hash, &from, err);
	if (rc == 0 && from) {
		sc_log(SC_LOG_WARN, "blob %" PRIu64 " %s; it is mended from blob %" PRIu64 ", continuing (%s)", x->id, what, from,
		       uses.text);
		(void)__atomic_add_fetch(&s->counters.mended_blobs, 1, __ATOMIC_RELAXED);
	} else if (rc == 0) {
		sc_log(SC_LOG_ERROR, "blob %" PRIu64 " %s, and nothing has the same bytes: it is not read any more (%s)", x->id,
		       what, uses.text);
		rc = meta_store_set_damaged(&s->store, x->id, true, err);
		if (rc == 0)
			rc = meta_blob_checked(s->catalog, x->id, x->hash, now_s(), true, err);
	}
	sc_buf_done(&uses);
	rs_blob_forget(s->blobs, x->id);
	rs_images_forget(s, NULL);
	for (size_t i = 0; (job = rs_job_at(s, i)); i++)
		rs_job_tell(job);
	return rc;
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

	if (rc < 0 && why.errnum == EINVAL)
		rc = meta_store_open_damaged(&s->store, x->id, O_RDONLY, &fd, &why);
	if (rc == 0)
		rc = hash_fd(fd, x->id, on_read, p, hash, &bytes, &why);
	if (rc == SC_E_CANCELLED || rc == SC_E_NO_MEMORY) {
		*err = why;
		return rc;
	}
	if (rc < 0) {
		int known = meta_blob_known(s->catalog, x->id, err);

		return known <= 0 ? known : found_damage(s, x, why.msg, err);
	}
	if (bytes != x->bytes)
		return found_damage(s, x, "has another size than when it was sealed", err);
	if (memcmp(hash, x->hash, 16) != 0)
		return found_damage(s, x, "has other bytes than when it was sealed", err);
	if (!meta_store_has_record(&s->store, x->id))
		describe(s, x->id, x->hash); /* of a store that is older than that */
	rc = meta_store_set_damaged(&s->store, x->id, false, err);
	return rc < 0 ? rc : meta_blob_checked(s->catalog, x->id, x->hash, now_s(), false, err);
}

int rs_service_scrub(struct rs_service *s, int64_t before_s, struct sc_err *err)
{
	struct scrub p = {.s = s, .began_ns = sc_now_ns()};
	struct blobs due = {.err = err};
	int rc = meta_blob_due(s->catalog, before_s, on_blob, &due, err);

	for (size_t i = 0; rc == 0 && i < due.nr; i++)
		rc = scrub_blob(&p, &due.at[i], err);
	sc_vec_done(&due);
	return rc;
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

		next = sc_now_ns() + every_ns;
		if (rs_service_scrub(s, now_s() - s->scrub_every_s, &err) < 0 && err.code != SC_E_CANCELLED)
			sc_log(SC_LOG_WARN, "scrub: %s, continuing", err.msg);
	}
	return NULL;
}

static int on_damaged(void *arg, uint64_t blob)
{
	struct rs_service *s = arg;
	struct sc_err ignored;

	return meta_store_set_damaged(&s->store, blob, true, &ignored);
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
