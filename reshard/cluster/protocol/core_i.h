/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The state that the files of the core share.  Each event changes facts; then rs_core_event() runs all steps below,
 * which look at the facts, not at the event: a step whose time has come does its action, whatever led there.
 *
 *	core.c		takes events in, gives actions out
 *	command.c	a proposal of this node: propose, commit, resolve, shown
 *	member.c	a proposal of any node: gate, check, answer, outcome; hide and show
 *	bytes.c		ready, settle, retire, low-water, delete
 *	register.c	registration, freshness, fence, list of members
 *	cells.c		what is known of etcd: all/, as the watch delivers it
 *	acts.c		actions, requests, transactions, lists, jobs, which all others use
 * Each calls only those below it.
 */
#ifndef RS_CORE_I_H
#define RS_CORE_I_H

#include "reshard/cluster/protocol/core.h"
#include "reshard/cluster/protocol/rules.h"

#define NS_MAX INT64_MAX

/* Requests that may be on their way, one of each kind; those before SLOT_COMMAND are the node's, the
 * others each job's. */
enum slot {
	SLOT_LEASE, SLOT_KEEPALIVE, SLOT_FRESH, SLOT_SNAPSHOT, SLOT_KEEPER, SLOT_LOW, SLOT_DELETE,
	SLOT_COMMAND, SLOT_STRAY, SLOT_SHOWN, SLOT_READY, SLOT_SETTLE, SLOT_RETIRE, SLOT_NR
};
struct request {
	uint64_t id;		/* 0: none is on its way */
	uint64_t epoch;		/* of the registration that sent it */
	int64_t sent, again;	/* not again before this */
};

struct cell {
	bool present;
	uint64_t create, mod;
};

struct sets {			/* one allocation */
	uint32_t nr;
	struct meta_set_name *at;
};
struct nodes {
	struct meta_member *at;
	size_t nr, room;
};

struct store_cell {
	struct cell cell;
	uint64_t nr;
	bool settled;
	struct sets sets;
};

/* a set of which files are here, or that open files read from */
struct set_fact {
	struct meta_hash set;
	uint64_t died;		/* revision at which nothing named it any more, or later; 0: it lives */
};
struct set_facts {
	struct set_fact *at;
	size_t nr, room;
};

enum gate_state { GATE_NONE, GATE_CHECKING, GATE_WRITING, GATE_PREPARED, GATE_REFUSED };
struct gate {
	enum gate_state state;
	uint64_t token, base;
	int64_t since, resend;
	int code;		/* why it is refused */
};

/*
 *	PROPOSING -> PREPARING <-> COMPOSING -> COMMITTING -> COMMITTED -> (done)
 *			 |			    |		^
 *			 +------> RESOLVING <-------+ lost	|
 *				   |   +------------------------+ its token is in the chain
 *				   v
 *				 (failed, when the proposal is gone)
 */
enum phase {
	PHASE_NONE, PHASE_PROPOSING, PHASE_PREPARING, PHASE_COMPOSING, PHASE_COMMITTING, PHASE_RESOLVING,
	PHASE_COMMITTED
};
struct command {
	enum phase phase;
	uint64_t token, base, create;	/* create: of the proposal; 0: it is not known to be there */
	enum meta_command_kind change;
	struct meta_hash record;
	int64_t deadline;
	int64_t allowed;		/* how long it had */
	int code;			/* that it fails with */
	bool full;			/* etcd is out of space: it takes removals that put nothing */
	uint64_t wait;			/* for the watch to be there, before it commits again */
	uint64_t base_mod, head_mod;	/* revision of the head that it is proposed on, and of its commit */
	int64_t committed;		/* when that was known */
	uint32_t *homes;
	uint32_t nr_homes;
	struct nodes acks, hidden, members;	/* members: those of its commit */
	struct sets sets;			/* storage of its version */
	bool settled;				/* likewise */
};

struct job {
	uint64_t id;
	size_t index;			/* in the core's list */
	struct cell head_cell, shown_cell, proposal_cell;
	struct meta_head_value head;
	struct meta_proposal_value proposal;
	uint64_t shown;
	struct {
		struct store_cell *at;
		size_t nr, room;
	} stores;			/* by number */
	uint64_t stored;		/* revision of the last change of them that is known */
	struct {
		struct tag_cell {
			struct cell cell;
			uint64_t nr;
			char *name;
		} *at;
		size_t nr, room;
	} tags;
	uint32_t keep;			/* versions without a tag; 0: all */
	bool stray_full;		/* as `full` of a command */
	uint64_t died, seen;		/* revisions: of the last death; up to which nothing dead is read here */

	uint64_t known;			/* the head that this node goes by; 0: none */
	int64_t learned;		/* when, in this life */
	bool hidden;			/* no older one is shown */
	uint64_t published;		/* what plain paths get; 0: they wait */
	int64_t say_hidden;

	struct gate gate;
	uint64_t prepared, prepared_base;	/* row that has no outcome yet */
	bool aside_due;
	struct command command;

	uint64_t placed;		/* version that the next three are about */
	struct nodes destinations;	/* their epochs are 0 */
	struct {
		struct meta_hash *at;
		size_t nr, room;
	} kept;				/* what they keep, of which the next is made; nr 0: whatever that is */
	struct sets future;		/* its storage, once it is settled */
	uint64_t placed_sweep;		/* revision of `all/sweep` when that was made */
	bool landed, on_disk;
	struct meta_hash files;		/* what this node keeps */
	uint64_t ready_epoch;		/* that ready was put by; 0: not yet */
	bool told_early;		/* (rule delete_after_settle) */
	struct set_facts have, using;
	struct request requests[SLOT_NR - SLOT_COMMAND];
};

enum lease_state { LEASE_REVOKING, LEASE_GRANTING, LEASE_REGISTERING, LEASE_HELD };

struct rs_core {
	struct rs_core_config config;	/* without its jobs */
	int64_t wait;			/* WAIT: after it nobody shows what was the head before */
	int64_t now, wake;
	bool failed;			/* out of memory */

	struct sc_arena arena;		/* of the actions */
	struct {
		struct rs_act *at;
		size_t nr, room;
	} acts;
	size_t next_act;
	uint64_t counter;
	struct request requests[SLOT_COMMAND];

	enum lease_state lease_state;
	uint64_t lease, epoch;		/* epoch 0: not registered */
	int64_t granted, renewed;	/* when the request was sent */
	int64_t taken;			/* since when others' key keeps this node from registering, 0: it does not */
	bool active;			/* this epoch is among the members */
	bool is_fenced;			/* as the driver was told */

	bool watching;
	uint64_t position;		/* all changes of all/ up to this revision are known */
	uint64_t whole;			/* revision of the last snapshot that was taken */
	uint64_t snapshot;		/* while one is taken: the first revision that was missed, else 0 */
	bool fresh;			/* the next is a time */
	int64_t fresh_at;		/* what is known was current then */
	bool tick_waits;
	uint64_t tick;			/* freshness asked for is given when `position` is here */
	int64_t tick_at;

	struct cell members_cell, sweep_cell;
	struct nodes members;
	bool is_keeper;
	uint64_t keeper_create;

	uint64_t low_put, last_death, tick_mod;
	bool low_again;			/* what is read has changed */
	struct {
		struct job **at;
		size_t nr, room;
	} jobs;
	struct sc_map by_id;
};

/* --- acts.c --- */
struct job *rs_core_job(struct rs_core *c, uint64_t id);	/* makes it; NULL: out of memory, or too many */
struct rs_act *rs_core_act(struct rs_core *c, enum rs_act_kind kind, const struct job *j); /* never NULL */
struct rs_act *rs_core_ask(struct rs_core *c, enum rs_act_kind kind, struct job *j, enum slot slot);
bool rs_core_may_ask(struct rs_core *c, const struct job *j, enum slot slot);	/* none on its way, its time has come */
struct request *rs_core_request(const struct rs_core *c, const struct job *j, enum slot slot);
/** Finds the request that an answer is for; NULL: nobody waits for it any more. */
struct request *rs_core_answered(struct rs_core *c, uint64_t id, enum slot *ret_slot, struct job **ret_job);
void rs_core_wake_at(struct rs_core *c, int64_t at);
bool rs_nodes_add(struct rs_core *c, struct nodes *v, uint32_t node, uint64_t epoch);	/* true: it is new */
bool rs_nodes_have(const struct nodes *v, uint32_t node, uint64_t epoch);
void rs_nodes_copy(struct rs_core *c, struct nodes *to, const struct nodes *from);
void rs_sets_copy(struct rs_core *c, struct sets *to, uint32_t nr, const struct meta_set_name *from);
struct set_fact *rs_facts_find(const struct set_facts *v, const struct meta_hash *set);
void rs_facts_set(struct rs_core *c, struct set_facts *v, const struct meta_hash *set, bool on);
const char *rs_core_text(struct rs_core *c, const char *text);	/* a copy that lives as long as the actions */

/* transactions: room for META_TXN_COMPARES_MAX, and META_TXN_OPS_MAX of either list */
struct meta_txn *rs_txn(struct rs_core *c, struct job *j, enum slot slot);	/* begins with "self" */
struct meta_txn *rs_txn_bare(struct rs_core *c, struct job *j, enum slot slot);	/* without */
void rs_txn_if(struct meta_txn *t, int what, struct meta_key key, uint64_t revision);
struct meta_op *rs_txn_put(struct meta_txn *t, struct meta_key key);	/* its value is to be filled */
void rs_txn_delete(struct meta_txn *t, struct meta_key key);
void rs_txn_clear(struct meta_txn *t, enum meta_range range, struct meta_key key);
void rs_txn_get(struct meta_txn *t, struct meta_key key);
void rs_txn_else_get(struct meta_txn *t, struct meta_key key);
struct meta_op *rs_txn_list(struct meta_txn *t, enum meta_range range);
void rs_txn_tick(struct meta_txn *t);
static inline struct meta_key rs_key(enum meta_key_kind kind, const struct job *j, uint64_t nr)
{
	return (struct meta_key){.kind = kind, .job = j ? j->id : 0, .nr = nr};
}
static inline struct meta_key rs_key_node(enum meta_key_kind kind, uint32_t node)
{
	return (struct meta_key){.kind = kind, .node = node};
}
/** Finds the first record of a kind in an answer; NULL: it has none, or the key is absent. */
const struct meta_record *rs_record(const struct rs_event *e, enum meta_key_kind kind);

/* --- cells.c --- */
/** Takes news of a key below all/, from the watch, or from a transaction of this node that the watch has not
 *  reached. */
void rs_cells_take(struct rs_core *c, const struct meta_record *r);
void rs_cells_snapshot(struct rs_core *c, const struct rs_event *e);
struct store_cell *rs_store_of(const struct job *j, uint64_t nr);	/* NULL: the version has none */
/** Finds the newest version that is stored in these sets; NULL: there is none. */
const struct store_cell *rs_store_in(const struct job *j, uint32_t nr, const struct meta_set_name *sets);
void rs_store_tell(struct rs_core *c, struct job *j);		/* STORED, of the head */
/** Tells whether a version is stored in a set that the command with this token made. */
bool rs_set_made(const struct job *j, uint64_t token);
bool rs_set_named(const struct job *j, const struct meta_hash *set);
/** Finds sets that are here, though nothing names them or will name them, and notes that they are dead. */
void rs_sets_sweep(struct rs_core *c, struct job *j);

/* --- register.c --- */
void rs_register_step(struct rs_core *c);
void rs_register_answer(struct rs_core *c, enum slot slot, const struct request *was, const struct rs_event *e);
bool rs_core_serves(const struct rs_core *c, int64_t now, int64_t *ret_until);
void rs_core_fence(struct rs_core *c);

/* --- member.c --- */
void rs_member_step(struct rs_core *c, struct job *j);
void rs_member_event(struct rs_core *c, struct job *j, const struct rs_event *e);
void rs_member_lift(struct rs_core *c, struct job *j, uint64_t token);
void rs_member_relearn(struct rs_core *c, struct job *j);

/* --- command.c --- */
void rs_command_begin(struct rs_core *c, struct job *j, const struct rs_event *e);
void rs_command_step(struct rs_core *c, struct job *j);
void rs_command_answer(struct rs_core *c, struct job *j, enum slot slot, const struct rs_event *e);
void rs_command_composed(struct rs_core *c, struct job *j, const struct rs_event *e);
void rs_command_message(struct rs_core *c, struct job *j, const struct rs_message *m, uint32_t node, uint64_t epoch);
void rs_command_done(struct job *j);

/* --- bytes.c --- */
void rs_bytes_step(struct rs_core *c, struct job *j);
void rs_bytes_node_step(struct rs_core *c);
void rs_bytes_answer(struct rs_core *c, struct job *j, enum slot slot, const struct rs_event *e);
void rs_bytes_event(struct rs_core *c, struct job *j, const struct rs_event *e);
void rs_bytes_learn(struct rs_core *c, struct job *j);	/* another head */

#endif
