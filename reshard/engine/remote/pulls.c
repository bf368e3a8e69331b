/* SPDX-License-Identifier: Apache-2.0 */
/* Pulls chunks that are needed, tells those who wait, and punches out chunks that may go. */
#include "reshard/engine/remote/landing_i.h"

#include <assert.h>
#include <errno.h>
#include <inttypes.h>

#include "meta/base/log.h"
#include "meta/base/metric.h"

#define PULL_CHUNKS (RS_PULL_BYTES / RS_CHUNK_BYTES)
#define TOLD_NS INT64_C(1000000000)	/* L2 */
#define USED_MAX 2			/* how often the hand passes what was needed */
#define HOLE_CHUNKS ((4u << 20) / RS_CHUNK_BYTES)
#define AHEAD_FIRST ((4u << 20) / RS_CHUNK_BYTES)
#define AHEAD_MAX ((32u << 20) / RS_CHUNK_BYTES)

SC_METRIC(bytes_pulled, SC_COUNTER, "scalai_pulled_bytes_total", "Bytes that came from other nodes.");
SC_METRIC(chunks_evicted, SC_COUNTER, "scalai_evicted_chunks_total",
	  "Chunks of 64 KiB of other nodes that gave way to others.");

/* --- chunks that go --- */

static bool may_go(const struct slot *s, int64_t now)
{
	return s->of && s->state == HERE && !s->needs && !(s->told_ns && now - s->told_ns < TOLD_NS);
}

/* Finds a chunk that may go; 0: none. */
static uint32_t find_victim(struct rs_landings *set, int64_t now)
{
	for (size_t i = 0; i < (USED_MAX + 1) * set->slots.nr; i++) {
		struct slot *s = &set->slots.at[set->hand];
		const uint32_t at = set->hand;

		set->hand = (uint32_t)((set->hand + 1) % set->slots.nr);
		if (!may_go(s, now))
			continue;
		if (!s->used)
			return at;
		s->used--;
	}
	return 0;
}

static bool may_go_too(struct landing *l, uint32_t chunk, int64_t now)
{
	const struct slot *s = slot_of(l, chunk);

	return s && may_go(s, now) && !s->used;
}

/* Finds a chunk that may go, with its neighbours: a hole of many chunks costs little more than a hole of one. */
static bool find_hole(struct rs_landings *set, struct hole *ret)
{
	const uint32_t goal = set->most - (set->most / 16 < HOLE_CHUNKS ? set->most / 16 : HOLE_CHUNKS);
	const int64_t now = sc_now_ns();
	const uint32_t i = find_victim(set, now), most = set->nr_here - goal;
	struct landing *l = set->slots.at[i].of;

	if (!i)
		return false;
	*ret = (struct hole){l, set->slots.at[i].chunk, 1};
	while (ret->nr < most && ret->first + ret->nr < l->nr && may_go_too(l, ret->first + ret->nr, now))
		ret->nr++;
	while (ret->nr < most && ret->first && may_go_too(l, ret->first - 1, now)) {
		ret->first--;
		ret->nr++;
	}
	return true;
}

static void start_pulls(struct rs_landings *set);

/* Frees the chunks of a hole.  The caller holds the lock, which is dropped meanwhile. */
static void make_hole(struct rs_landings *set, const struct hole *h)
{
	struct landing *l = h->of, *useless;

	for (uint32_t c = h->first; c < h->first + h->nr; c++)
		slot_of(l, c)->state = GOING;
	set->nr_here -= h->nr;
	landing_ref(l);
	(void)pthread_mutex_unlock(&set->lock);
	/* all of the last one, too: of a part of a block nothing would be freed */
	if (punch(l->fd, (uint64_t)h->first * RS_CHUNK_BYTES, (uint64_t)h->nr * RS_CHUNK_BYTES) < 0)
		sc_log(SC_LOG_ERROR, "store: cannot free bytes of blob %" PRIu64 " of node %u (%m), continuing with "
		       "more of them than there may be", l->what.blob, l->what.node);
	(void)pthread_mutex_lock(&set->lock);
	for (uint32_t c = h->first; c < h->first + h->nr; c++)
		if (slot_of(l, c)->needs)
			landing_enqueue(set, l->slots[c]);
		else
			landing_slot_free(l, c);
	sc_metric_add(&chunks_evicted, h->nr);
	useless = landing_put(l);
	if (useless) {
		(void)pthread_mutex_unlock(&set->lock);
		landing_free(useless);
		(void)pthread_mutex_lock(&set->lock);
	}
}

/* Punches out chunks, one thread at a time for all. */
void landing_trim(struct rs_landings *set)
{
	struct hole h;

	if (set->trims)
		return;
	set->trims = true;
	while (set->nr_here > set->most && find_hole(set, &h))
		make_hole(set, &h);
	set->trims = false;
	start_pulls(set); /* of what was asked for while it went */
}

/* --- waiters and pulls --- */

/* Ends the needs that the first chunks of a range have. */
static void unpin(struct landing *l, uint32_t first, uint32_t end, int64_t told_ns)
{
	for (uint32_t c = first; c < end; c++) {
		struct slot *s = slot_of(l, c);

		if (!s)
			continue; /* it stays */
		assert(s->needs);
		s->needs--;
		if (told_ns)
			s->told_ns = told_ns;
		else
			s->used = USED_MAX;
		landing_settle(l, c);
	}
}

/* Moves waiters for chunk `c` (UINT32_MAX: for any chunk) to *told.  If the chunk `came`, only those for which it was
 * the last missing chunk; else all of them. */
static void take_waiters(struct landing *l, uint32_t c, bool came, struct waiter **told)
{
	for (struct waiter **at = &l->waiters; *at;) {
		struct waiter *w = *at;

		if (c != UINT32_MAX && (c < w->first || c >= w->end)) {
			at = &w->next;
			continue;
		}
		if (came && --w->missing) {
			at = &w->next;
			continue;
		}
		*at = w->next;
		unpin(l, w->first, w->end, sc_now_ns());
		w->next = *told;
		*told = w;
	}
}

static void tell(struct waiter *told, const struct sc_err *err)
{
	for (struct waiter *w = told, *next; w; w = next) {
		struct rs_done *done = w->done;

		next = w->next;
		sc_sys.release(w);
		done->call(done, err);
	}
}

/* Ends the pull of chunks: they are here, or lacked.  The caller holds the lock. */
static void land(struct landing *l, uint32_t first, uint32_t nr, bool came, struct waiter **told)
{
	for (uint32_t c = first; c < first + nr; c++) {
		if (came) {
			slot_of(l, c)->state = HERE;
			slot_of(l, c)->used = 1;
			l->set->nr_here++;
		}
		take_waiters(l, c, came, told);
		if (!came)
			landing_slot_free(l, c);
		else
			landing_settle(l, c);
	}
}

/* Tells whether a pull is of many bytes: such pulls have room for RS_PULL_BYTES, and are used again. */
static bool is_large(uint64_t bytes)
{
	return bytes > RS_PULL_BYTES / 4;
}

static struct pull *make_pull(struct rs_landings *set, uint64_t bytes)
{
	struct pull *p = is_large(bytes) ? set->spare : NULL;

	if (!p)
		return sc_sys.alloc(sizeof(*p) + (is_large(bytes) ? RS_PULL_BYTES : bytes));
	set->spare = p->after;
	set->nr_spare--;
	return p;
}

static void keep_pull(struct rs_landings *set, struct pull *p)
{
	if (!is_large(chunk_bytes(p->of, p->first, p->nr)) || set->nr_spare >= set->config.pulls_max) {
		sc_sys.release(p);
		return;
	}
	p->after = set->spare;
	set->spare = p;
	set->nr_spare++;
}

static void on_pulled(struct rs_done *done, const struct sc_err *why)
{
	struct pull *p = (struct pull *)done;
	struct landing *l = p->of, *useless;
	struct rs_landings *set = l->set;
	const uint64_t at = (uint64_t)p->first * RS_CHUNK_BYTES, bytes = chunk_bytes(l, p->first, p->nr);
	struct waiter *told = NULL;
	struct sc_err err = {0};

	if (why)
		err = *why;
	else if (sc_pwrite_all(l->fd, p->bytes, bytes, at) < 0)
		(void)sc_fail_sys(&err, errno, "cannot write what has come to the store");
	else
		sc_metric_add(&bytes_pulled, bytes);
	if (err.code)
		(void)sc_wrap(&err, err.code, "blob %" PRIu64 " of node %u, at byte %" PRIu64, l->what.blob,
			      l->what.node, at);
	(void)pthread_mutex_lock(&set->lock);
	land(l, p->first, p->nr, !err.code, &told);
	if (p->before)
		p->before->after = p->after;
	else
		set->pulls = p->after;
	if (p->after)
		p->after->before = p->before;
	keep_pull(set, p);
	useless = landing_put(l);
	(void)pthread_mutex_unlock(&set->lock);
	landing_free(useless);
	tell(told, err.code ? &err : NULL);
	(void)pthread_mutex_lock(&set->lock);
	landing_trim(set);
	set->nr_pulls--;
	(void)pthread_cond_broadcast(&set->quiet);
	start_pulls(set);
	(void)pthread_mutex_unlock(&set->lock);
}

/* Takes the first chunk of the queue, with its neighbours, as one pull.  NULL: there is none, or no memory for it; then
 * its waiters are in *told. */
static struct pull *next_pull(struct rs_landings *set, struct waiter **told)
{
	struct slot *s = &set->slots.at[set->slots.at[0].next];
	struct landing *l = s->of;
	uint32_t first, nr = 1;
	struct pull *p;

	if (s == set->slots.at)
		return NULL;
	first = s->chunk;
	while (nr < PULL_CHUNKS && first + nr < l->nr && slot_of(l, first + nr) &&
	       slot_of(l, first + nr)->state == QUEUED)
		nr++;
	for (uint32_t c = first; c < first + nr; c++) {
		landing_dequeue(set, l->slots[c]);
		slot_of(l, c)->state = COMING;
	}
	p = make_pull(set, chunk_bytes(l, first, nr));
	if (!p) {
		land(l, first, nr, false, told);
		return NULL;
	}
	*p = (struct pull){.done = {on_pulled}, .of = l, .first = first, .nr = nr, .after = set->pulls};
	if (p->after)
		p->after->before = p;
	set->pulls = p;
	landing_ref(l);
	return p;
}

/* Begins as many pulls as may be on their way.  One thread does so at a time, as `begin` may call back.  The caller
 * holds the lock, which is dropped meanwhile. */
static void start_pulls(struct rs_landings *set)
{
	if (set->starts || set->stop) /* then the set may be gone as soon as the lock is */
		return;
	set->starts = true;
	while (!set->stop && set->nr_pulls < set->config.pulls_max) {
		struct waiter *told = NULL;
		struct pull *p = next_pull(set, &told);
		struct sc_err err;

		if (!p && !told)
			break;
		set->nr_pulls += p != NULL;
		(void)pthread_mutex_unlock(&set->lock);
		if (told)
			tell(told, (sc_nomem(&err), &err));
		if (p)
			set->config.puller.begin(set->config.puller.arg, &p->of->what,
						 (uint64_t)p->first * RS_CHUNK_BYTES,
						 chunk_bytes(p->of, p->first, p->nr), p->bytes, &p->done);
		(void)pthread_mutex_lock(&set->lock);
	}
	set->starts = false;
	(void)pthread_cond_broadcast(&set->quiet);
}

/* Asks for the lacked chunks of a range, and needs all its chunks.  Returns how many are not here, or -1: out of
 * memory, and nothing is needed. */
static int64_t pin(struct landing *l, uint32_t first, uint32_t end)
{
	uint32_t missing = 0;

	for (uint32_t c = first; c < end; c++) {
		struct slot *s;

		if (!l->slots[c] && landing_slot_new(l, c) < 0) {
			unpin(l, first, c, 0); /* what was asked for comes */
			return -1;
		}
		s = slot_of(l, c);
		if (!s)
			continue; /* it stays */
		s->needs++;
		s->told_ns = 0;
		missing += s->state != HERE;
	}
	return missing;
}

/* Moves the chunks of a range to the front of the queue: somebody waits for them, others are only asked for ahead. */
static void hurry(struct landing *l, uint32_t first, uint32_t end)
{
	for (uint32_t c = end; c-- > first;)
		if (slot_of(l, c) && slot_of(l, c)->state == QUEUED) {
			landing_dequeue(l->set, l->slots[c]);
			landing_enqueue_first(l->set, l->slots[c]);
		}
}

/* Asks for the chunks behind a range, if the range begins where the last one has ended. */
static void read_ahead(struct landing *l, uint32_t first, uint32_t end)
{
	const uint32_t most = l->set->most / 16 < AHEAD_MAX ? l->set->most / 16 : AHEAD_MAX;
	typeof(l->ahead) *a = &l->ahead;
	uint32_t until;

	if (a->told || (first == a->first && end == a->end))
		return; /* it is needed again, by who has waited for it */
	if (first > a->end || first + 1 < a->end || !a->end)
		a->window = a->until = 0;
	else if (!a->window)
		a->window = AHEAD_FIRST;
	else if (a->until < end + a->window / 2)
		a->window *= 2;
	a->first = first;
	a->end = end;
	a->window = a->window < most ? a->window : most;
	if (a->until >= end + a->window / 2 || !a->window)
		return;
	until = end + a->window < l->nr ? end + a->window : l->nr;
	for (uint32_t c = a->until > end ? a->until : end; c < until; c++)
		if (!l->slots[c] && landing_slot_new(l, c) < 0)
			return; /* out of memory: it is asked for when it is needed */
	a->until = until;
}

static int need(struct landing *l, uint32_t first, uint32_t end, struct rs_done *done, struct sc_err *err)
{
	struct waiter *w = sc_zalloc(sizeof(*w));
	struct rs_landings *set = l->set;
	int64_t missing = -1;
	int rc = RS_HERE;

	(void)pthread_mutex_lock(&set->lock);
	if (set->stop)
		rc = sc_fail(err, SC_E_CANCELLED, "blob %" PRIu64 " of node %u is not read any more: the mount ends",
			     l->what.blob, l->what.node);
	else if (l->wrong)
		rc = sc_fail_sys(err, EIO, "what came of blob %" PRIu64 " of node %u was found to be wrong: open the "
				 "file again", l->what.blob, l->what.node);
	else if (w)
		missing = pin(l, first, end);
	if (rc == RS_HERE && missing < 0)
		rc = sc_nomem(err);
	if (missing > 0)
		hurry(l, first, end);
	if (missing >= 0)
		read_ahead(l, first, end);
	if (missing > 0) {
		*w = (struct waiter){.done = done, .first = first, .end = end, .missing = (uint32_t)missing,
				     .next = l->waiters};
		l->waiters = sc_steal(&w);
		rc = RS_LATER;
	}
	start_pulls(set);
	(void)pthread_mutex_unlock(&set->lock);
	sc_sys.release(w);
	return rc;
}

struct blocked {
	struct rs_done done;		/* first */
	pthread_mutex_t lock;
	pthread_cond_t wake;
	bool called;
	struct sc_err err;
};

static void on_blocked(struct rs_done *done, const struct sc_err *err)
{
	struct blocked *b = (struct blocked *)done;

	(void)pthread_mutex_lock(&b->lock);
	if (err)
		b->err = *err;
	b->called = true;
	(void)pthread_cond_signal(&b->wake);
	(void)pthread_mutex_unlock(&b->lock);
}

int landing_need(struct rs_bytes *bytes, uint64_t at, uint64_t nr, struct rs_done *done, struct sc_err *err)
{
	struct landing *l = (struct landing *)bytes;
	const uint32_t first = (uint32_t)(at / RS_CHUNK_BYTES), end = (uint32_t)((at + nr - 1) / RS_CHUNK_BYTES + 1);
	struct blocked b = {{on_blocked}, PTHREAD_MUTEX_INITIALIZER, PTHREAD_COND_INITIALIZER, false, {0}};
	int rc = need(l, first, end, done ? done : &b.done, err);

	while (rc == RS_LATER && !done) {
		(void)pthread_mutex_lock(&b.lock);
		while (!b.called)
			(void)pthread_cond_wait(&b.wake, &b.lock);
		b.called = false;
		(void)pthread_mutex_unlock(&b.lock);
		if (b.err.code) {
			*err = b.err;
			return err->code;
		}
		rc = need(l, first, end, &b.done, err);
	}
	return rc;
}

void landing_release(struct rs_bytes *bytes, uint64_t at, uint64_t nr)
{
	struct landing *l = (struct landing *)bytes;
	struct rs_landings *set = l->set;

	(void)pthread_mutex_lock(&set->lock);
	unpin(l, (uint32_t)(at / RS_CHUNK_BYTES), (uint32_t)((at + nr - 1) / RS_CHUNK_BYTES + 1), 0);
	landing_trim(set);
	(void)pthread_mutex_unlock(&set->lock);
}

void landing_ahead(struct rs_bytes *bytes, uint64_t at, uint64_t nr)
{
	struct landing *l = (struct landing *)bytes;
	struct rs_landings *set = l->set;
	const uint32_t first = (uint32_t)(at / RS_CHUNK_BYTES), most = set->most / 16;
	uint32_t end = (uint32_t)((at + nr - 1) / RS_CHUNK_BYTES + 1);

	(void)pthread_mutex_lock(&set->lock);
	l->ahead.told = true;
	end = end - first < most ? end : first + most;
	for (uint32_t c = first; c < end && !set->stop; c++)
		if (!l->slots[c] && landing_slot_new(l, c) < 0)
			break; /* out of memory: it is asked for when it is needed */
	start_pulls(set);
	(void)pthread_mutex_unlock(&set->lock);
}

/* Cancels the pulls that are on their way.  The caller holds the lock, which is dropped: then any of them may end. */
static void cancel_pulls(struct rs_landings *set)
{
	struct pull *p = set->pulls;

	while (p) {
		struct rs_done *done = &p->done;

		if (p->cancelled) {
			p = p->after;
			continue;
		}
		p->cancelled = true;
		(void)pthread_mutex_unlock(&set->lock);
		set->config.puller.cancel(set->config.puller.arg, done);
		(void)pthread_mutex_lock(&set->lock);
		p = set->pulls;
	}
}

void rs_landings_stop(struct rs_landings *set)
{
	struct waiter *told = NULL;
	struct sc_err err;

	(void)sc_fail(&err, SC_E_CANCELLED, "bytes of other nodes do not come any more: the mount ends");
	(void)pthread_mutex_lock(&set->lock);
	set->stop = true;
	for (size_t i = 0; i < LANDING_BUCKETS; i++)
		for (struct landing *l = set->buckets[i]; l; l = l->next)
			take_waiters(l, UINT32_MAX, false, &told);
	cancel_pulls(set);
	while (set->nr_pulls || set->starts)
		(void)pthread_cond_wait(&set->quiet, &set->lock);
	(void)pthread_mutex_unlock(&set->lock);
	tell(told, &err);
}
