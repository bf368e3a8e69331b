/* SPDX-License-Identifier: Apache-2.0 */
/*
 *	joint.c		the pass, and the calls that it is made of
 *	wait.c		what nodes agree on: offers, plan, votes, ids
 *	list.c		the files that all nodes write, and a hash of how
 *	parties.c	who takes part, as text and back
 *	words.c		keys of etcd
 * Each calls only those below it.
 */
#ifndef RS_JOINT_I_H
#define RS_JOINT_I_H

#include "reshard/engine/gpu/remote.h"
#include "reshard/cluster/joint/joint.h"
#include "reshard/cluster/peers/peers_i.h"

/* --- words.c --- */

/** The words below nccl/JOB/VERSION/: those of this node, and what all nodes have said. */
struct rs_words {
	struct rs_member *m;
	uint64_t job, nr, lease;
	struct sc_arena arena;
	struct {
		size_t nr, room;
		struct rs_word {
			const char *name, *text;
		} *at;
	} all;
};

/** Begins; false: this node is no member now, or the job is none of the cluster's. */
bool rs_words_begin(struct rs_words *w, struct rs_member *m, const struct rs_view *head);
void rs_words_done(struct rs_words *w);
/** Says something.  Errors: SC_E_SYSTEM (etcd does not answer), SC_E_NO_MEMORY. */
int rs_words_say(struct rs_words *w, const char *name, const char *text, struct sc_err *err);
/** Says something of this node: "NAME-NODE". */
int rs_words_say_mine(struct rs_words *w, const char *name, const char *text, struct sc_err *err);
/** Says something, unless a node has said it before: 1 (said), 0 (a node had) or an error. */
int rs_words_say_first(struct rs_words *w, const char *name, const char *text, struct sc_err *err);
/** Reads what all nodes have said.  Errors: as above. */
int rs_words_hear(struct rs_words *w, struct sc_err *err);
/** Finds a word among those that were read last; NULL: nobody said it. */
const char *rs_words_find(const struct rs_words *w, const char *name);
/** Finds a word that a node has said of itself: "NAME-NODE"; NULL: it did not say it. */
const char *rs_words_of(const struct rs_words *w, const char *name, uint32_t node);
/** Takes back what this node has offered and voted; `all`: what all nodes have said. */
void rs_words_forget(struct rs_words *w, bool all);
/** Ends this version's words: when this node begins the next version, it takes back what all have said of this one,
 *  which others may still read until then. */
void rs_words_leave(struct rs_words *w);

/* --- parties.c --- */

struct rs_party {
	uint32_t node, peers, first;	/* its GPUs, as peers of all nodes */
	uint64_t window_bytes;
	uint32_t boxes_max;
	const char *ranks;		/* that have their home there (rs_ranks_next()); "-": none */
};

/** The parties of a plan, in the order of their numbers. */
struct rs_parties {
	size_t nr, room;
	struct rs_party *at;
};

/** Formats what a node offers, without its number. */
void rs_party_text(const struct rs_party *party, struct sc_buf *to);
/** Appends the ranks for which `is` says true. */
void rs_ranks_text(uint32_t ranks, bool (*is)(void *arg, uint32_t rank), void *arg, struct sc_buf *to);
/** Reads a plan, a line "NODE OFFER" for each party, in order.  `text` stays.  Errors: SC_E_FORMAT, SC_E_NO_MEMORY. */
int rs_parties_read(const char *text, struct sc_arena *arena, struct rs_parties *ret, struct sc_err *err);
/** Finds the party of a node; NULL: the node takes no part. */
const struct rs_party *rs_party_of(const struct rs_parties *parties, uint32_t node);
/** Gives the windows that all parties have, and how many peers there are. */
struct rs_pool rs_parties_pool(const struct rs_parties *parties);

/* --- list.c --- */

struct rs_joint_file {
	struct rs_image *image;		/* open; the list's own */
	uint32_t set, rank, writer;	/* of the version; the first of replicas; a peer */
	char *name;			/* as the view lists it */
	bool mine;
};

struct rs_joint_list {
	struct rs_pass *p;
	const struct rs_parties *parties;
	const struct rs_party *self;
	struct sc_arena arena;
	struct {
		size_t nr, room;
		struct rs_joint_file *at;
	} files;
	struct {
		size_t nr, room;
		struct rs_joint_reads {
			const void *ops;
			uint64_t id;
			uint32_t peer;
		} *at;			/* of places: which peers read them, as it was voted on */
	} readers;
};

#define RS_JOINT_FILES_MAX 256u	/* of a call */
#define RS_PLAN_HASH_DIGITS 32

/** Lists the files that all parties write of the views of the head.  rs_joint_list_done() ends the list, after errors,
 *  too.
 *  Errors: SC_E_UNSUPPORTED (a source's node takes no part), those of views and of opening. */
int rs_joint_list(struct rs_joint_list *l, struct sc_err *err);
void rs_joint_list_done(struct rs_joint_list *l);
/** Hashes what all parties would do in all calls; fills `ret` with digits and a 0.  Errors: as above. */
int rs_joint_hash(struct rs_joint_list *l, char ret[RS_PLAN_HASH_DIGITS + 1], struct sc_err *err);
/** Says which peer reads a place: one of the node that the blob is of.  `list` is a struct rs_joint_list. */
uint32_t rs_joint_reader(void *list, const struct rs_place *place);

/* --- wait.c --- */

struct rs_agreement {
	struct rs_words words;
	struct rs_pass *p;
	struct rs_parties parties;
	struct rs_joint_list list;
	bool leads;
	const struct rs_gpu_options *options;
};

/** Offers, and waits until there is a plan.  Errors: SC_E_UNSUPPORTED (a node does not come, or has said `stop`),
 *  SC_E_CANCELLED, those of etcd. */
int rs_agree_plan(struct rs_agreement *a, struct sc_err *err);
/** Votes for what `a->list` would do, and waits until all have voted the same.  Errors: as above. */
int rs_agree_votes(struct rs_agreement *a, struct sc_err *err);
/** Gives the id of a call: makes and says it, or waits for it.  Errors: as above, those of rs_gpu_joint_id(). */
int rs_agree_id(struct rs_agreement *a, unsigned call, const struct rs_write_options *how,
		char ret[RS_POOL_ID_DIGITS + 1], struct sc_err *err);

#endif
