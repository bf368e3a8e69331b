/* SPDX-License-Identifier: Apache-2.0 */
/* What the files of this room share: keep.c and landing.c call pulls.c, which calls table.c. */
#ifndef RS_LANDING_I_H
#define RS_LANDING_I_H

#include <fcntl.h>
#include <pthread.h>

#include "meta/base/mem.h"
#include "reshard/engine/remote/landing.h"

#define LANDING_BUCKETS 1024
#define LANDING_STAYS UINT32_MAX	/* in the place of a slot's number: the chunk is here, and needs none (L6) */

/* A chunk that is not lacked.  All is under the set's lock, as of landings. */
struct slot {
	struct landing *of;		/* NULL: free; the next such is `next` */
	uint32_t chunk;
	enum { QUEUED, COMING, HERE, GOING } state;
	uint32_t needs;			/* and waiters */
	uint8_t used;
	int64_t told_ns;		/* when a waiter was told; 0: somebody has asked since, or nobody was */
	uint32_t before, next;		/* in the queue */
};

struct landing {
	struct rs_bytes bytes;		/* first */
	struct rs_landings *set;
	struct rs_away what;
	int fd;
	uint32_t nr;			/* chunks */
	uint32_t *slots;		/* of each; 0: it is lacked */
	uint32_t nr_slots, nr_stay;
	uint32_t refs;			/* opens and pulls */
	bool forgotten;			/* it is in no bucket */
	bool wrong;			/* nobody gets its bytes any more */
	bool stays;			/* L6 */
	bool named;			/* its file is one of the store's, or was: it cannot be another one */
	struct waiter *waiters;
	struct {
		uint32_t first, end;	/* chunks of the last need */
		uint32_t window;	/* asked for ahead of it; 0: it did not go on where one had ended */
		uint32_t until;		/* chunks below are asked for */
		bool told;		/* who reads says what comes next */
	} ahead;
	struct landing *next;		/* in its bucket */
	struct landing *idle_before, *idle_after;
};

struct waiter {
	struct rs_done *done;
	uint32_t first, end, missing;
	struct waiter *next;
};

/* Chunks that go together. */
struct hole {
	struct landing *of;
	uint32_t first, nr;
};

struct pull {
	struct rs_done done;		/* first */
	struct landing *of;
	uint32_t first, nr;
	bool cancelled;
	struct pull *before, *after;
	unsigned char bytes[];
};

struct rs_landings {
	struct rs_landing_config config;
	pthread_mutex_t lock;
	pthread_cond_t quiet;
	struct {
		size_t nr, room;
		struct slot *at;	/* [0] is the queue's ends */
	} slots;
	uint32_t free, hand;
	uint32_t nr_here, most;
	uint32_t nr_pulls;
	struct pull *pulls;
	struct pull *spare;		/* by `after`, at most pulls_max: their memory is not given back each time */
	uint32_t nr_spare;
	bool starts, trims, stop;
	struct landing *buckets[LANDING_BUCKETS];
	struct landing idle;		/* ring: after = longest idle */
	uint32_t nr_idle;
};

static inline uint64_t chunk_bytes(const struct landing *l, uint32_t first, uint32_t nr)
{
	return sc_min_u64((uint64_t)nr * RS_CHUNK_BYTES, l->bytes.bytes - (uint64_t)first * RS_CHUNK_BYTES);
}

static inline struct slot *slot_of(struct landing *l, uint32_t chunk)
{
	return l->slots[chunk] && l->slots[chunk] != LANDING_STAYS ? &l->set->slots.at[l->slots[chunk]] : NULL;
}

static inline int punch(int fd, uint64_t at, uint64_t bytes)
{
	return sc_sys.fallocate(fd, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, (off_t)at, (off_t)bytes);
}

/* table.c: all under the lock, but landing_free() */
/** Makes a slot for a chunk that is lacked, and asks for it.  -1: out of memory. */
int landing_slot_new(struct landing *l, uint32_t chunk);
/** Frees the slot of a chunk, which is lacked from now on. */
void landing_slot_free(struct landing *l, uint32_t chunk);
/** Takes its slot from a chunk that is here and that nobody needs, if what is here of the landing stays. */
void landing_settle(struct landing *l, uint32_t chunk);
/** Adds a slot to the end of the queue, or to its front, or takes it out. */
void landing_enqueue(struct rs_landings *set, uint32_t slot);
void landing_enqueue_first(struct rs_landings *set, uint32_t slot);
void landing_dequeue(struct rs_landings *set, uint32_t slot);
struct landing **landing_bucket(struct rs_landings *set, uint32_t node, uint64_t blob);
/** Gives a reference to a known landing; NULL: it is not known. */
struct landing *landing_find(struct rs_landings *set, uint32_t node, uint64_t blob);
/** Takes one more reference. */
void landing_ref(struct landing *l);
/** Gives up a reference.  Returns a landing to free, or NULL. */
struct landing *landing_put(struct landing *l);
/** Takes a landing out of its bucket: it is not found any more. */
void landing_forget(struct landing *l);
/** Takes an idle landing out of the set; the caller frees it. */
struct landing *landing_drop(struct landing *l);
/** Frees a landing (NULL: nothing), without the lock: the kernel frees its bytes. */
void landing_free(struct landing *l);

/* pulls.c */
int landing_need(struct rs_bytes *bytes, uint64_t at, uint64_t nr, struct rs_done *done, struct sc_err *err);
void landing_release(struct rs_bytes *bytes, uint64_t at, uint64_t nr);
void landing_ahead(struct rs_bytes *bytes, uint64_t at, uint64_t nr);
/** Punches out chunks until no more are here than may be, or the rest is needed.  The caller holds the lock, which is
 *  dropped meanwhile. */
void landing_trim(struct rs_landings *set);

#endif
