/* SPDX-License-Identifier: Apache-2.0 */
/* Scrubs: reads every blob again from the disk, at a limited rate, and checks its hash (mend.c). */
#include "reshard/upkeep/background/upkeep_i.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>

#include "reshard/upkeep/recovery/record.h"

SC_METRIC(bytes_scrubbed, SC_COUNTER, "scalai_scrubbed_bytes_total", "Bytes read again by scrubbing.");
SC_METRIC(bytes_left, SC_GAUGE, "scalai_scrub_left_bytes", "Bytes that are due and that scrubbing has still to read.");

#define DAMAGED_AGAIN_S 3600	/* a disk may have recovered, a file may have been restored */

struct scrub {
	struct rs_service *s;
	uint64_t bytes;		/* read since */
	uint64_t until;		/* what is due up to the end of this blob */
	int64_t began_ns;
	struct rs_left left;
};

/* --- how far it is --- */

void rs_scrub_progress(struct rs_service *s, struct rs_progress *ret)
{
	(void)pthread_mutex_lock(&s->worker.lock);
	*ret = s->upkeep->scrub;
	(void)pthread_mutex_unlock(&s->worker.lock);
}

static void set_progress(struct rs_service *s, const struct rs_progress *p)
{
	(void)pthread_mutex_lock(&s->worker.lock);
	s->upkeep->scrub = *p;
	(void)pthread_mutex_unlock(&s->worker.lock);
	sc_metric_set(&bytes_left, p->total - p->done);
}

/* Counts bytes of a blob, but no more than it has had; `all`: all of it, however many were read. */
static void count(struct scrub *p, uint64_t bytes, bool all)
{
	struct rs_progress now;

	rs_scrub_progress(p->s, &now);
	now.done = all ? p->until : sc_min_u64(now.done + bytes, p->until);
	set_progress(p->s, &now);
}

/* --- blobs --- */

/* Waits until `ns` (monotonic) or the end of the service; returns true at the end. */
static bool pause_until(struct rs_service *s, int64_t ns)
{
	bool stop;

	(void)pthread_mutex_lock(&s->worker.lock);
	while (!s->worker.stop && sc_now_ns() < ns)
		if (sc_sys.wait_until(&s->upkeep->scrub_wake, &s->worker.lock, ns) == ETIMEDOUT)
			break;
	stop = s->worker.stop;
	(void)pthread_mutex_unlock(&s->worker.lock);
	return stop;
}

static int on_read(void *arg, uint64_t bytes)
{
	struct scrub *p = arg;

	p->bytes += bytes;
	sc_metric_add(&bytes_scrubbed, bytes);
	count(p, bytes, false);
	return p->s->upkeep->scrub_rate &&
	       pause_until(p->s, p->began_ns + (int64_t)((double)p->bytes * 1e9 / (double)p->s->upkeep->scrub_rate));
}

static int scrub_blob(struct scrub *p, const struct rs_sealed *x, struct sc_err *err)
{
	sc_cleanup(sc_closep) int fd = -1;
	struct rs_service *s = p->s;
	struct sc_err why = {0};
	uint8_t hash[16];
	uint64_t bytes = 0;
	/* O_DIRECT: reads the disk and not the page cache, and evicts nothing from it */
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
	if (rs_left_by(&p->left, &why))
		return 0;
	rc = rs_blob_judge(s, x, hash, bytes, &why, err);
	if (rc < 0 && rc != SC_E_CATALOG && rc != SC_E_CORRUPT && rc != SC_E_NO_SPACE) {
		rs_left_add(&p->left, err); /* it can't be mended now */
		return 0;
	}
	if (rc)
		return rc < 0 ? rc : 0;
	if (!x->has_hash || !meta_store_has_record(&s->store, x->id))
		rs_record_keep(s, x->id, hash); /* of a store that is older than that */
	rc = rs_blob_mark(s, x->id, false, err);
	if (rc > 0)
		sc_log(SC_LOG_WARN, "blob %" PRIu64 " is intact again and is read as before, continuing", x->id);
	return rc < 0 ? rc : meta_blob_checked(s->catalog, x->id, hash, rs_now_s(), false, err);
}

static void begin(struct scrub *p, const struct rs_sealed_list *due)
{
	struct rs_progress now = {.what = "reading", .began_ns = p->began_ns};

	for (size_t i = 0; i < due->nr; i++)
		now.total += due->at[i].bytes;
	set_progress(p->s, &now);
}

int rs_service_scrub(struct rs_service *s, int64_t before_s, struct sc_err *err)
{
	struct scrub p = {.s = s, .began_ns = sc_now_ns()};
	struct rs_sealed_list due = {.err = err};
	int64_t hour_ago = rs_now_s() - DAMAGED_AGAIN_S;
	int rc =
	    meta_blob_due(s->catalog, before_s, hour_ago > before_s ? hour_ago : before_s, rs_sealed_add, &due, err);

	if (due.nr)
		begin(&p, &due);
	for (size_t i = 0; rc == 0 && i < due.nr; i++) {
		p.until += due.at[i].bytes;
		rc = scrub_blob(&p, &due.at[i], err);
		count(&p, 0, true);
	}
	set_progress(s, &(struct rs_progress){0});
	sc_vec_done(&due);
	return rc < 0 ? rc : rs_left_say(&p.left, err);
}

static int64_t clamp(int64_t v, int64_t least, int64_t most)
{
	return v < least ? least : v > most ? most : v;
}

static void *scrubber(void *arg)
{
	struct rs_service *s = arg;
	int64_t every_ns = clamp(s->upkeep->scrub_every_s / 10, 1, 600) * 1000000000;
	int64_t next = sc_now_ns();

	while (!pause_until(s, next)) {
		struct sc_err err;
		int rc;

		next = sc_now_ns() + every_ns;
		rc = rs_service_scrub(s, rs_now_s() - s->upkeep->scrub_every_s, &err);
		if (rc < 0)
			(void)sc_wrap(&err, rc, "scrub");
		if (rc != SC_E_CANCELLED)
			rs_say_once(&s->upkeep->scrub_logged, rc, &err);
	}
	return NULL;
}

int rs_scrub_start(struct rs_service *s, struct sc_err *err)
{
	return s->upkeep->scrub_every_s ? sc_thread_start(&s->upkeep->scrubber, "scalai-scrub", scrubber, s, err) : 0;
}
