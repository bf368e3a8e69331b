/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Keeps the log of records that are not in the catalog yet.  A request that changes a working tree appends its record
 * here before it is answered: the log is a file that is mapped, and what was stored in a mapped file outlives the
 * process.  Many records are then applied to the catalog in one transaction.
 *
 *     append -> append -> append ->      ring of records      -> drain: apply all in one transaction, give their room
 *     back
 *
 * After a kill of the process, a start finds all records whose append returned, and at most one more: one that was
 * being appended and is whole.  After a power cut or a reboot there are none: pages of a mapped file reach the disk in
 * any order, so what is found then is not used.
 *
 * A record's sequence is the position of its end in the stream of all bytes that were ever appended.  The catalog holds
 * the sequence up to which records were applied, written in the transaction that applied them.
 *
 * Thread: any.  Locks: a drain holds a lock while `apply` runs; an append that finds no room drains, so a caller of
 * append holds nothing that `apply` takes, above all no transaction of the catalog.
 */
#ifndef META_TAIL_H
#define META_TAIL_H

#include <stdbool.h>
#include <stdint.h>

#include "meta/tree/change.h"

struct meta_tail;

/** A record; its bytes are valid during the call of `apply`. */
struct meta_tail_record {
	uint64_t sequence;
	uint64_t request;		/* the caller's number for what it did */
	struct meta_bytes bytes;
};

/** The records that one call of `apply` applies; with them the catalog's sequence becomes `sequence`. */
struct meta_tail_batch {
	uint64_t sequence;
	/* private */
	const struct meta_tail *tail;
	uint64_t at;
};

/** Steps to the next record of a batch, in order: 1, 0 (there is none) or SC_E_CORRUPT (another program wrote to the
 *  file). */
int meta_tail_next(struct meta_tail_batch *batch, struct meta_tail_record *ret, struct sc_err *err);

/**
 * Applies a batch in one transaction, together with its sequence.  If it fails, nothing was applied; the records stay
 * and are handed over again by the next drain.
 */
typedef int meta_tail_apply_fn(void *arg, struct meta_tail_batch *batch, struct sc_err *err);

#define META_TAIL_BYTES_MIN 4096u		/* of the ring */
#define META_TAIL_BYTES_MAX (64u << 20)

/**
 * Opens the log `name` in folder `dir`, or makes it; its blocks are allocated, so that records find room on a full
 * disk. `bytes` of its ring: a power of two from META_TAIL_BYTES_MIN to META_TAIL_BYTES_MAX; a log that holds records
 * keeps its size.  `applied`: the catalog's sequence.  Records of a killed process that follow it wait for the first
 * drain, which a start does before it reads the catalog's rows.  Not for two processes at once.
 * Errors: SC_E_SYSTEM, SC_E_NO_SPACE, SC_E_NO_MEMORY; the file is as it was or holds no records.
 */
int meta_tail_open(int dir, const char *name, uint64_t bytes, uint64_t applied, meta_tail_apply_fn *apply, void *arg,
		   struct meta_tail **ret, struct sc_err *err);
/** Damage: what a start found behind the records that it can apply, if it is no append that a kill has cut short. */
struct meta_tail_damage {
	uint64_t at;		/* where the first record begins that is not whole */
	uint64_t behind;	/* whole records behind it, which are not applied: they may build on it */
};
/** Tells whether a record of the log was damaged when it was opened.  The next append overwrites that record, so
 *  whoever keeps the file moves it away before, and opens another one. */
bool meta_tail_is_damaged(const struct meta_tail *tail, struct meta_tail_damage *ret);
/** Closes the log; records that were not drained are there at the next start. */
struct meta_tail *meta_tail_close(struct meta_tail *tail);

/**
 * Appends a record, which from then on outlives the process.  Records have the order in which they were appended; a
 * caller that needs an order holds a lock of its own.  If there is no room, drains first, and fails if that fails.
 * *ret_sequence (or NULL) is stored before the record.  Where it is in memory that outlives the process, it tells the
 * next one whether the record is there: if the log does not end before it.
 * Errors: SC_E_LIMIT (longer than a quarter of the ring), those of `apply`; nothing was appended.
 */
int meta_tail_append(struct meta_tail *tail, uint64_t request, struct meta_bytes bytes, uint64_t *ret_sequence,
		     struct sc_err *err);

/** Applies all records that were appended before the call.  Errors: those of `apply`, and of meta_tail_next(). */
int meta_tail_drain(struct meta_tail *tail, struct sc_err *err);

/** Tells how many bytes of records wait. */
uint64_t meta_tail_waiting(struct meta_tail *tail);

#endif
