/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The messages that the daemon and its helper, which has a GPU, send to each other: all of one size, over a socket
 * pair.  No file crosses it, nor the bytes of one: both sides map the pool (pool.h), and behind it the plan of one
 * round.
 *
 *     daemon   SETUP          BEGIN          ROUND 0      FILLED 0               FINISH           DRAINED 0
 *                │              │              │  ┌─────────┘  │                   │  ┌─────────────┘  │
 *     helper   READY          BEGUN          FILL 0         TAKEN 0  ...        DRAIN 0      ...    FINISHED
 *
 *     NEW ─SETUP─> SETTING ─READY─> IDLE ─BEGIN─> BEGINNING ─BEGUN─> BATCH ─FINISH─> FINISHING ─FINISHED─> IDLE
 *                                                                     │ ^                │ ^
 *                                                              ROUND  v │ TAKEN    DRAIN v │ DRAINED
 *                                         FILLING <─FILL, FILLED─> PUTTING <─DRAIN, DRAINED─> DRAINING
 *
 * Rounds are numbered over the life of a helper, from 0; round n has slot n % RS_POOL_SLOTS.  The helper asks, in the
 * order of rounds, for a round's input (FILL), and that the output of the round that had the slot before is written
 * (DRAIN).  It may say FAILED at any time, and BYE when nothing is asked of it: it then ends.  BYE may cross BEGIN.
 *
 * Where there is one GPU, a pass may end in its memory, in place of files:
 *
 *     IDLE ─LOAD─> LOADING ─LOADED, REFUSED─> IDLE   takes a buffer, which other processes may open; or has no room
 *     IDLE ─BEGIN of it─> ...                        what rounds write goes to its place there: no DRAIN
 *     IDLE ─FREE─> FREEING ─FREED─> IDLE
 *
 * A helper that has buffers is not idle.
 *
 * Helpers of several nodes may make a pass together: the pool's `world` is all of their GPUs.  One helper gives the
 * pass an id, which the daemons bring to the others, and BEGIN has the id at all of them:
 *
 *     IDLE ─ID─> NAMING ─NAMED─> IDLE
 *
 * Each side takes each message that it sends or gets through rs_wire_step(), which knows what may come.  A side trusts
 * no message that it gets: it has places and sizes of its own for all that is numbered here.
 */
#ifndef RS_WIRE_H
#define RS_WIRE_H

#include "meta/base/err.h"
#include "reshard/engine/gpu/pool.h"
#include "reshard/engine/rounds/rounds.h"

#define RS_WIRE_MAGIC 0x5ca1a604u	/* the last two digits: the version of these messages */
#define RS_WIRE_TEXT_BYTES 456

enum rs_wire_kind {
	/* of the daemon */
	RS_WIRE_SETUP = 1,	/* pool, devices, times; with the memory's descriptor */
	RS_WIRE_BEGIN, RS_WIRE_ROUND, RS_WIRE_FILLED, RS_WIRE_DRAINED, RS_WIRE_FINISH,
	RS_WIRE_LOAD, RS_WIRE_FREE, RS_WIRE_ID,
	/* of the helper */
	RS_WIRE_READY,		/* text: which devices */
	RS_WIRE_BEGUN, RS_WIRE_FILL, RS_WIRE_DRAIN, RS_WIRE_TAKEN, RS_WIRE_FINISHED,
	RS_WIRE_LOADED,		/* text: how others open it, as in pool.h */
	RS_WIRE_REFUSED,	/* text: the sentence */
	RS_WIRE_FREED,
	RS_WIRE_NAMED,		/* text: the id of a pass */
	RS_WIRE_FAILED,		/* text: the sentence */
	RS_WIRE_BYE,
	RS_WIRE_KINDS
};

struct rs_wire_message {
	uint32_t magic, kind;
	uint64_t nr;		/* of the round: ROUND, FILL, FILLED, DRAIN, DRAINED, TAKEN;
				   of the buffer, from 1: LOAD, FREE, BEGIN (0: files) */
	uint64_t window_bytes;	/* SETUP; of the buffer: LOAD */
	uint32_t boxes_max, peers, world, first;	/* SETUP: as in pool.h */
	uint32_t idle_ms;	/* without work for so long, the helper ends */
	uint32_t exchange_ms;	/* in which what peers exchange arrives */
	uint8_t devices[RS_POOL_PEERS_MAX];	/* of each peer */
	char text[RS_WIRE_TEXT_BYTES];		/* ends with 0; BEGIN of a pass of several nodes: its id */
};

enum rs_wire_phase {
	RS_WIRE_NEW, RS_WIRE_SETTING, RS_WIRE_IDLE, RS_WIRE_BEGINNING, RS_WIRE_BATCH, RS_WIRE_PUTTING, RS_WIRE_FILLING,
	RS_WIRE_DRAINING, RS_WIRE_FINISHING, RS_WIRE_LOADING, RS_WIRE_FREEING, RS_WIRE_NAMING, RS_WIRE_ENDED
};

/** The state of a conversation; all zero: no message was sent yet. */
struct rs_wire {
	enum rs_wire_phase phase, back;		/* back: where DRAINING ends */
	bool filled;				/* the round that is being put has its input */
	uint64_t put, drained;			/* rounds */
	uint64_t buffers;			/* a bit for each */
	uint64_t buffer;			/* of the pass, or that is taken or freed; 0: the pass is of files */
	struct rs_pool pool;
};

/** Returns a message of a kind. */
struct rs_wire_message rs_wire_message(enum rs_wire_kind kind, uint64_t nr);
/** Returns the name of a message's kind. */
const char *rs_wire_name(const struct rs_wire_message *m);

/**
 * Checks a message against the state, and takes the state further.  `by_helper`: the helper has sent the message.
 * Errors, which leave the state as it was: SC_E_STATE (the message may not come now, or says what cannot be).
 */
int rs_wire_step(struct rs_wire *w, const struct rs_wire_message *m, bool by_helper, struct sc_err *err);

/* --- the plan of a round: the share of each peer, in shared memory behind the pool --- */

/** Returns how many bytes are shared: pool and plan. */
uint64_t rs_wire_bytes(const struct rs_pool *pool);
/** Writes the plan of a round, which fits the pool: the shares of all peers of this node. */
void rs_wire_put_plan(const struct rs_pool *pool, void *memory, const struct rs_round *round);
/** Makes shares for plans of a pool, one for each peer of this node, with room in each of their arrays.  Owner: the
 *  caller, one release of *ret.  Errors: SC_E_NO_MEMORY. */
int rs_wire_make_shares(const struct rs_pool *pool, struct rs_share **ret, struct sc_err *err);
/**
 * Copies the plan of round `nr` into shares of rs_wire_make_shares(), and checks the copy, so that later changes by the
 * other side have no effect.  rs_tables_add() checks the boxes.
 * Errors: SC_E_STATE.
 */
int rs_wire_take_plan(const struct rs_pool *pool, const void *memory, uint64_t nr, struct rs_share *shares,
		      struct sc_err *err);

#endif
