/* SPDX-License-Identifier: Apache-2.0 */
/* What the parts of the background work share: the worker, garbage, and the care of sealed blobs. */
#ifndef RS_UPKEEP_I_H
#define RS_UPKEEP_I_H

#include "meta/base/sys.h"
#include "reshard/command/command_i.h"
#include "reshard/upkeep/upkeep.h"

/** Blobs that could not be looked at, for a reason that says nothing about them. */
struct rs_left {
	unsigned nr;
	struct sc_err why;	/* of the first */
};

struct rs_sealed_list {
	size_t nr, room;
	struct rs_sealed {
		uint64_t id, bytes;
		uint8_t hash[16];
		bool has_hash;
	} *at;
	struct sc_err *err;
};

/* damage.c */
/** Which file a blob is: "rank 3 'model.safetensors'", or the path alone of one that no rank has. */
void rs_use_text(const struct meta_blob_use *use, struct sc_buf *buf);
/** Is this what was read of a blob, or whether it can be read, that says that it is damaged?  Other errors pass. */
bool rs_is_damage(const struct sc_err *why);
/** What the last service found damaged stays so. */
int rs_damaged_load(struct rs_service *s, struct sc_err *err);
/** Logs what fails again and again once, until it works or fails in another way. */
void rs_say_once(struct sc_err *said, int rc, const struct sc_err *err);
/** Appends to a list of uses, for the log: "job 'gpt' version 3 rank 0 'model.safetensors'". */
int rs_use_add(void *buf, const struct meta_blob_use *use);
/** Counts a blob as left, for this reason. */
void rs_left_add(struct rs_left *left, const struct sc_err *why);
/** Did this keep us from looking?  Then the blob is left for later. */
bool rs_left_by(struct rs_left *left, const struct sc_err *why);
/** 0: none was left; else the first reason. */
int rs_left_say(const struct rs_left *left, struct sc_err *err);
/** Notes that a blob is damaged, or not any more: what needs it is tried again then.  1: this was news; 0; an error. */
int rs_blob_mark(struct rs_service *s, uint64_t blob, bool damaged, struct sc_err *err);
/** Collects blobs; `list` is a struct rs_sealed_list. */
int rs_sealed_add(void *list, const struct meta_blob_row *row);
static inline int64_t rs_now_s(void)
{
	return sc_now_wall_ns() / 1000000000;
}

/* mend.c */
/** Replaces a damaged blob by a copy of one with that size and hash; *ret_from 0: there is none. */
int rs_blob_mend(struct rs_service *s, uint64_t blob, uint64_t bytes, const uint8_t hash[16], uint64_t *ret_from,
		 struct sc_err *err);
/**
 * Judges a blob by what was read of it, or by `why` it could not be read.  0: it is as it was sealed; 1: it is damaged,
 * which has been dealt with, or gone; or an error.
 */
int rs_blob_judge(struct rs_service *s, const struct rs_sealed *blob, const uint8_t hash[16], uint64_t bytes,
		  const struct sc_err *why, struct sc_err *err);

/* share.c */
/** Hashes all that have no hash yet, until the worker is called to something else. */
int rs_hash_blobs(struct rs_service *s, struct sc_err *err);

/* scrub.c */
int rs_scrub_start(struct rs_service *s, struct sc_err *err);	/* rs_worker_stop() ends it */

/* garbage.c */
int rs_garbage(struct rs_service *s, struct sc_err *err);
/** Removes rows of what no version needs; their blobs are nameless then. */
int rs_garbage_rows(struct rs_service *s, struct sc_err *err);
/** Files of blobs that other jobs have now say so (record.c). */
void rs_records_renew(struct rs_service *s);
/** Removes files of nameless blobs.  `may_wait`: some are left for later. */
int rs_garbage_files(struct rs_service *s, bool may_wait, struct sc_err *err);
/** Removes all garbage at once. */
int rs_garbage_collect(struct rs_service *s, struct sc_err *err);

/* made.c */
/** A rank file became real: `cloned` of its bytes by reflink. */
void rs_made_count(uint64_t bytes, uint64_t cloned);

/* worker.c */
int rs_worker_start(struct rs_service *s, struct sc_err *err);
void rs_worker_stop(struct rs_service *s);

#endif
