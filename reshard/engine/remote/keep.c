/* SPDX-License-Identifier: Apache-2.0 */
/* Makes a landing a file of the store. */
#include "reshard/engine/remote/landing_i.h"

#include <assert.h>
#include <errno.h>
#include <inttypes.h>
#include <string.h>

#include "reshard/engine/io/hash.h"

#define STEP (8u << 20)		/* is waited for at a time */
#define AHEAD (32u << 20)	/* is asked for before; write-back begins in such pieces */

/* Begins L6: what is here stays.  False: the landing's file had a name already, and is not found any more; the next
 * open makes another landing. */
static bool stay(struct landing *l)
{
	bool named;

	(void)pthread_mutex_lock(&l->set->lock);
	named = l->named;
	l->stays = true;
	for (uint32_t c = 0; !named && l->nr_slots && c < l->nr; c++)
		landing_settle(l, c);
	if (named && !l->forgotten)
		landing_forget(l);
	(void)pthread_mutex_unlock(&l->set->lock);
	return !named;
}

static int open_unnamed(const struct rs_place *place, struct landing **ret, struct sc_err *err)
{
	struct rs_bytes *b;
	int rc;

	while ((rc = rs_place_open(place, &b, err)) == 0 && !stay((struct landing *)b))
		rs_place_close(place, b);
	*ret = rc == 0 ? (struct landing *)b : NULL;
	return rc;
}

/* Makes a chunk that stayed one that has just come, and may go again; false: out of memory, and it stays. */
static bool unsettle(struct landing *l, uint32_t chunk)
{
	struct slot *s;

	l->slots[chunk] = 0;
	if (landing_slot_new(l, chunk) < 0) {
		l->slots[chunk] = LANDING_STAYS;
		return false;
	}
	l->nr_stay--;
	landing_dequeue(l->set, l->slots[chunk]);
	s = slot_of(l, chunk);
	s->state = HERE;
	s->used = 1;
	l->set->nr_here++;
	return true;
}

/* Tells whether anybody else has the landing open; pulls have references, too. */
static bool is_shared(const struct landing *l)
{
	uint32_t mine = 1;

	for (const struct pull *p = l->set->pulls; p; p = p->after)
		mine += p->of == l;
	return l->refs > mine;
}

/* Ends L6 without a file.  Others may be reading chunks that stayed, of which no slot says so: then these go with the
 * last reader.  So do chunks that would only push out all others. */
static void let_go(struct landing *l)
{
	struct rs_landings *set = l->set;
	bool goes;

	(void)pthread_mutex_lock(&set->lock);
	goes = !l->forgotten && !is_shared(l) && l->nr_stay <= set->most;
	for (uint32_t c = 0; goes && l->nr_stay && c < l->nr; c++)
		if (l->slots[c] == LANDING_STAYS)
			goes = unsettle(l, c);
	l->stays = !goes;
	landing_trim(set);
	(void)pthread_mutex_unlock(&set->lock);
}

/* Brings all bytes of a landing.  They stay (L6), and are hashed while more come (`h` NULL: they are not hashed). */
static int bring(struct rs_bytes *b, int fd, struct rs_hashing *h, rs_tick_fn *tick, void *arg, struct sc_err *err)
{
	int rc = 0;

	for (uint64_t at = 0, n; rc == 0 && at < b->bytes; at += n) {
		n = sc_min_u64(STEP, b->bytes - at);
		rc = rs_bytes_need(b, at, n, NULL, err);
		if (rc < 0)
			break;
		rs_bytes_ahead(b, at + n, sc_min_u64(AHEAD, b->bytes - at - n));
		rs_bytes_release(b, at, n);
		if (h)
			rc = rs_hashing_add(h, b, at, n, err);
		if ((at + n) % AHEAD == 0)
			(void)sc_sys.begin_write_back(fd); /* the flush at the end has less to wait for */
		if (rc == 0 && tick && tick(arg, n))
			rc = sc_fail(err, SC_E_CANCELLED, "stopped");
	}
	return rc;
}

/* Forgets a landing: it goes with the last who has it open. */
static void forget(struct landing *l, bool wrong)
{
	(void)pthread_mutex_lock(&l->set->lock);
	l->wrong |= wrong;
	if (!l->forgotten)
		landing_forget(l);
	(void)pthread_mutex_unlock(&l->set->lock);
}

/* Refuses bytes that have another hash (L7), and tells the node that gave them. */
static int differ(struct landing *l, struct sc_err *err)
{
	const struct rs_puller *p = &l->set->config.puller;

	forget(l, true);
	p->differs(p->arg, &l->what);
	return sc_fail_sys(err, EIO, "blob %" PRIu64 " of node %" PRIu32 " came with other bytes than it had when it "
			   "was stored", l->what.blob, l->what.node);
}

/* Brings all bytes of a landing, and compares them with their hash, if anybody knows it. */
static int bring_right(struct landing *l, int fd, rs_tick_fn *tick, void *arg, struct rs_landing_kept *ret,
		       struct sc_err *err)
{
	const struct rs_puller *p = &l->set->config.puller;
	uint8_t is[RS_AWAY_HASH_BYTES];
	struct rs_hashing *h = NULL;
	int rc = 0;

	ret->has_hash = p->hash && p->hash(p->arg, &l->what, ret->hash) > 0;
	if (ret->has_hash)
		rc = rs_hashing_begin(&h, err);
	if (rc == 0)
		rc = bring(&l->bytes, fd, h, tick, arg, err);
	rs_hashing_end(h, is);
	if (rc == 0 && ret->has_hash && memcmp(is, ret->hash, sizeof(is)) != 0)
		rc = differ(l, err);
	return rc;
}

int rs_landing_keep(const struct rs_place *place, const struct meta_store *store, uint64_t number, rs_tick_fn *tick,
		    void *arg, struct rs_landing_kept *ret, struct sc_err *err)
{
	sc_cleanup(sc_closep) int fd = -1;
	struct landing *l;
	int rc;

	assert(place->ops == &rs_source_landing && place->at == 0);
	rc = open_unnamed(place, &l, err);
	if (rc < 0)
		return rc;
	rc = rs_bytes_fd(&l->bytes, &fd, err);
	if (rc == 0)
		rc = bring_right(l, fd, tick, arg, ret, err);
	if (rc == 0)
		rc = meta_store_adopt(store, number, fd, err);
	if (rc == SC_E_NO_SPACE)
		forget(l, false); /* others need the room */
	if (rc < 0)
		let_go(l);
	else
		l->named = true; /* only this thread looks */
	rs_place_close(place, &l->bytes);
	if (rc == 0)
		ret->fd = sc_steal_fd(&fd);
	return rc;
}
