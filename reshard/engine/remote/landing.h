/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Landings: a kind of source (reshard/engine/io/source.h) for bytes of a blob that another node has.  Blob numbers are
 * given once in the life of a store and sealed blobs never change, so node and number name bytes for ever.
 *
 *     lacked ── need() ──> asked for ── the puller ──> here ── nobody needs it, and too much is ──> lacked
 *
 * A landing is a sparse file without a name in this store's file system, mapped, in chunks of RS_CHUNK_BYTES.  What is
 * asked for and not here is pulled: a chunk once, whoever waits for it, neighbours together.  When more than
 * `bytes_max` are here, chunks that were not used for the longest time are punched out of their files (CLOCK).
 *
 *  L1  A chunk that need() has answered RS_HERE for stays until its release().
 *  L2  A chunk that somebody waits for is not lacked again before he is told, nor in the second after that unless
 *      somebody has asked for it.  So every wait ends, however small bytes_max is; for that it may be exceeded, by what
 *      is needed and waited for at that moment.
 *  L3  Bytes are in the file before anybody is told that they are here.
 *  L4  Each waiter is told once: when all of his range is here, or why a part of it cannot come.  What has failed is
 *      lacked, and is pulled anew for who asks next.
 *  L5  A hole is punched before the chunk is asked for again.
 *  L6  If the file of a landing is to be one of the store's (rs_landing_keep()), its chunks that are here, and those
 *      that come, stay, do not count, and take no slot.  If no file comes of it, they may go again, or go with the last
 *      who has the landing open.
 *  L7  If a node that has the bytes knows their hash, a file of the store that is made of them has this hash.  Bytes
 *      with another hash become no file, and nobody gets them any more.
 *
 * A reader that says what it reads next (`ahead`), as images do, gets that, at most a sixteenth of bytes_max at once,
 * and nothing else.  For other readers it is guessed: one that reads on where the last read has ended gets bytes before
 * it asks, from 4 MiB ahead on, twice as far each time that it has come half the way, at most 32 MiB and a sixteenth of
 * bytes_max.  Bytes that somebody waits for come first.
 *
 * A restart begins with nothing: the file has no name, and nothing on disk says what is in it.  A bitmap there might
 * say so only of chunks that were flushed before it, which would cost a flush for each and save, after a crash, to pull
 * bytes_max again.  Nothing is lost by it: a landing is never the only place of its bytes.
 *
 * 64 KiB: a read of 4 KiB over the net takes 10 us more than it would for 4 KiB, and 50 GB have 800,000 chunks, whose
 * table (4 bytes each) takes memory where chunks are here.
 */
#ifndef RS_LANDING_H
#define RS_LANDING_H

#include "meta/store/store.h"
#include "reshard/engine/io/engine.h"
#include "reshard/engine/io/source.h"

#define RS_CHUNK_BYTES 65536u
#define RS_PULL_BYTES (16 * RS_CHUNK_BYTES)
#define RS_AWAY_HASH_BYTES 16

/** Bytes that another node has: its blob number `blob`, of so many bytes. */
struct rs_away {
	uint32_t node;
	uint64_t blob, bytes;
};

/** Who brings bytes from other nodes; filled by whoever owns the network. */
struct rs_puller {
	void *arg;
	/**
	 * Begins to bring bytes [at, at + bytes), RS_PULL_BYTES at most, to `to`.  `done` is called once, by any
	 * thread, maybe before this returns, with no lock held: when the bytes are there, and known to be right, or
	 * with the reason why not, a sentence that need not name node and blob.  It writes to a file.  Nobody touches
	 * `to` after it.
	 */
	void (*begin)(void *arg, const struct rs_away *what, uint64_t at, uint64_t bytes, void *to,
		      struct rs_done *done);
	/** Ends it soon: done is called all the same.  Of one that has ended it does nothing. */
	void (*cancel)(void *arg, struct rs_done *done);
	/** Gives the hash (XXH3-128) that such a blob has by those who have it, and waits for it: 1, or 0: nobody who
	 *  is here knows it.  NULL: nobody knows any. */
	int (*hash)(void *arg, const struct rs_away *what, uint8_t ret[RS_AWAY_HASH_BYTES]);
	/** Tells those who have it that bytes of it came which have another hash: they look at theirs. */
	void (*differs)(void *arg, const struct rs_away *what);
};

struct rs_landing_config {
	const struct meta_store *store;
	struct rs_puller puller;
	uint64_t bytes_max;	/* that are here; L2 */
	uint32_t pulls_max;	/* at a time: each has RS_PULL_BYTES of memory */
};

struct rs_landings;

/** Its places are made by rs_landing_place(). */
extern const struct rs_source_ops rs_source_landing;

/** Errors: SC_E_UNSUPPORTED (files without a name, or holes), SC_E_SYSTEM, SC_E_NO_MEMORY. */
int rs_landings_new(const struct rs_landing_config *config, struct rs_landings **ret, struct sc_err *err);
/** Fails all waits, and all needs from now on, and returns when no pull is on its way. */
void rs_landings_stop(struct rs_landings *landings);
/** Frees the set, after rs_landings_stop(), when all its places are closed. */
struct rs_landings *rs_landings_free(struct rs_landings *landings);

/** Gives the place of byte `at` of another node's blob, for struct rs_origins.  Errors: SC_E_LIMIT (numbers or size are
 *  beyond what any store has). */
int rs_landing_place(struct rs_landings *landings, const struct rs_away *what, uint64_t at, struct rs_place *ret,
		     struct sc_err *err);

/** Tells whether a place is in a landing, and in which blob of which node. */
bool rs_landing_is(const struct rs_place *place, uint32_t *ret_node, uint64_t *ret_blob);

struct rs_landing_kept {
	int fd;			/* of the file, to be flushed; the caller closes it */
	bool has_hash;		/* its bytes were compared with it */
	uint8_t hash[RS_AWAY_HASH_BYTES];
};
/**
 * Makes a place that rs_landing_place() gave, of a whole blob, a file of the store, blob `number`: brings what is
 * lacked and gives the landing's own file a name, so nothing is copied.  `tick` may be NULL.  One thread at a time.
 * Errors: those of need(), SC_E_SYSTEM (also: there is such a file; EIO: the bytes have another hash than they had when
 * they were sealed), SC_E_CANCELLED by `tick`.
 */
int rs_landing_keep(const struct rs_place *place, const struct meta_store *store, uint64_t number, rs_tick_fn *tick,
		    void *arg, struct rs_landing_kept *ret, struct sc_err *err);

/** Forgets the bytes that are here of another node's blob, as they have changed, or may have: who opens it from now on
 *  gets them anew.  `wrong`: they never were the blob's, and who has it open gets SC_E_SYSTEM (EIO) instead. */
void rs_landing_forget(struct rs_landings *landings, uint32_t node, uint64_t blob, bool wrong);

#endif
