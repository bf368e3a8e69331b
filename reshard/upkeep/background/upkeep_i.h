/* SPDX-License-Identifier: Apache-2.0 */
/* What the files of this room share: the worker, garbage, and the care of sealed blobs. */
#ifndef RS_UPKEEP_I_H
#define RS_UPKEEP_I_H

#include "meta/base/sys.h"
#include "reshard/command/commands/command_i.h"
#include "reshard/upkeep/background/upkeep.h"

#define RS_PUT_OFF_MAX 4

/* What this room remembers.  The scrubber's fields are under worker.lock; the others are the worker's. */
struct rs_upkeep {
	struct rs_numbers nameless;	/* blobs without a row, whose files are to go */
	unsigned put_off, hash_put_off;	/* times that they, or the next hash, were left for later: RS_PUT_OFF_MAX */
	struct {
		struct sc_err rows, files, hashes, met, trees, reserve;
	} logged;			/* what the worker logged last of what fails still */
	bool no_reflink;		/* the store's file system has none; atomic, any thread's */
	struct sc_thread scrubber;
	pthread_cond_t scrub_wake;
	int64_t scrub_every_s;		/* 0: never */
	uint64_t scrub_rate;		/* bytes a second, 0: no limit */
	struct rs_progress scrub;	/* what: NULL: nothing is due */
	struct sc_err scrub_logged;
};

/** Blobs that could not be checked, for a reason that says nothing about the blobs. */
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
/** Prints the file that a blob is: "rank 3 'model.safetensors'", or the path alone if no rank has it. */
void rs_use_text(const struct meta_blob_use *use, struct sc_buf *buf);
/** Tells whether an error of reading a blob means that the blob is damaged; other errors are transient. */
bool rs_is_damage(const struct sc_err *why);
/** Tells whether any version uses a blob: 1, 0, or an error of the catalog. */
int rs_blob_is_used(struct rs_service *s, uint64_t blob, struct sc_err *err);
/** Loads the marks of damaged blobs from the catalog. */
int rs_damaged_load(struct rs_service *s, struct sc_err *err);
/** Logs a repeated failure once, until the call succeeds or fails in another way. */
void rs_say_once(struct sc_err *said, int rc, const struct sc_err *err);
/** Appends to a list of uses, for the log: "job 'gpt' version 3 rank 0 'model.safetensors'". */
int rs_use_add(void *buf, const struct meta_blob_use *use);
/** Counts a blob that could not be checked, and why. */
void rs_left_add(struct rs_left *left, const struct sc_err *why);
/** Tells whether this error kept us from checking a blob; if so, counts the blob: it is checked later. */
bool rs_left_by(struct rs_left *left, const struct sc_err *why);
/** Returns 0 if all blobs could be checked, else the first error. */
int rs_left_say(const struct rs_left *left, struct sc_err *err);
/** Notes that a blob is damaged, or not any more; then heads that need it are tried again.  Returns 1 (this was news),
 *  0, or an error. */
int rs_blob_mark(struct rs_service *s, uint64_t blob, bool damaged, struct sc_err *err);
/** Makes each open from now on read a blob (0: any blob of another node) from where its bytes are now. */
void rs_blob_anew(struct rs_service *s, uint64_t blob);
/** Tells all nodes, by rs_bytes_were_wrong(), that the bytes of a blob on this node were wrong; it is marked or
 *  mended. */
void rs_damage_tell(struct rs_service *s, uint64_t blob);
/** Collects blobs; `list` is a struct rs_sealed_list. */
int rs_sealed_add(void *list, const struct meta_blob_row *row);
static inline int64_t rs_now_s(void)
{
	return sc_now_wall_ns() / 1000000000;
}

/* mend.c */
#define RS_MENDED_TEXT 40
/** Repairs a damaged blob from one with the same size and hash, or from another node; ret_from says from which ("":
 *  there is none). */
int rs_blob_mend(struct rs_service *s, uint64_t blob, uint64_t bytes, const uint8_t hash[16],
		 char ret_from[RS_MENDED_TEXT], struct sc_err *err);
/**
 * Judges a blob by the hash and size that were read, or by the error `why` of reading it.  Returns 0 if the blob is
 * intact, 1 if it is damaged (it is then repaired or marked) or was removed, or an error.
 */
int rs_blob_judge(struct rs_service *s, const struct rs_sealed *blob, const uint8_t hash[16], uint64_t bytes,
		  const struct sc_err *why, struct sc_err *err);

/* share.c */
/** Hashes all blobs that have no hash yet, until the worker is called for something else. */
int rs_hash_blobs(struct rs_service *s, struct sc_err *err);
/** Notes the hash of a sealed blob, shares its file with an equal one, and writes its record. */
int rs_hash_note(struct rs_service *s, const struct rs_sealed *blob, struct sc_err *err);

/* met.c */
/** Looks at the blobs whose damage somebody has met, as far as they are due. */
void rs_met_check(struct rs_service *s);
/** Returns when the next of these blobs is to be looked at; 0: there is none. */
int64_t rs_met_due(struct rs_service *s);

/* scrub.c */
/** Tells how far scrubbing is with what is due; ret->what is NULL if nothing is. */
void rs_scrub_progress(struct rs_service *s, struct rs_progress *ret);
int rs_scrub_start(struct rs_service *s, struct sc_err *err);	/* rs_worker_stop() ends it */

/* garbage.c */
/** Removes the garbage of an earlier daemon; `takes_over`: but for what programs may still have of dropped versions. */
int rs_garbage(struct rs_service *s, bool takes_over, struct sc_err *err);
/** Removes rows that no version needs; their blobs are then orphans.  `may_wait`: rows of versions that were dropped a
 *  moment ago stay, and *ret_more says that there are such. */
int rs_garbage_rows(struct rs_service *s, bool may_wait, bool *ret_more, struct sc_err *err);
/** Removes the files of orphan blobs.  `may_wait`: may defer some. */
int rs_garbage_files(struct rs_service *s, bool may_wait, struct sc_err *err);
/** Removes all garbage at once. */
int rs_garbage_collect(struct rs_service *s, struct sc_err *err);

/* made.c */
/** Counts a rank file that became real, `cloned` of its bytes by reflink. */
void rs_made_count(uint64_t bytes, uint64_t cloned);
/** Releases blobs that opens made of earlier heads, RS_LEAVING_NS after these were left, or at once (`all`).
 *  *ret_gone: there is garbage now.  Returns true if some are still held. */
bool rs_made_expire(struct rs_service *s, bool all, bool *ret_gone);
/** Hides the files that opens have made of a view, as they may have bytes that were damaged then.  Returns whether
 *  there were any. */
bool rs_made_wrong(struct rs_job *job, uint64_t view);

/* worker.c */
/** Makes s->upkeep.  Errors: no memory. */
int rs_upkeep_new(struct rs_service *s, int64_t scrub_every_s, uint64_t scrub_bytes_per_s, struct sc_err *err);
void rs_upkeep_free(struct rs_service *s);
int rs_worker_start(struct rs_service *s, struct sc_err *err);
void rs_worker_stop(struct rs_service *s);

#endif
