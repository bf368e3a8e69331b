/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The protocol of several daemons, one namespace, for one node: a state machine without I/O, threads or clocks.
 *
 *	rs_core_event()		takes what has happened: an answer or a change of etcd, a message, a command, a
 *				local fact, or that time has passed
 *	rs_core_next()		gives what to do about it, one action at a time, in this order
 *	rs_core_current()	says which version plain paths of a job get now
 *
 * Times are of one clock that does not stop while the machine sleeps (CLOCK_BOOTTIME), in nanoseconds.  One thread, or
 * one lock around all calls.  docs/cluster-protocol.md has the protocol and its rules, rules.h their names.
 */
#ifndef RS_CORE_H
#define RS_CORE_H

#include "meta/member/txn.h"

struct rs_core;

/* Times of the protocol, in ns of the node's own clock. */
struct rs_core_times {
	int64_t fresh;		/* F: plain paths are answered so long after a confirmed read was sent */
	int64_t drift_ppm;	/* clocks of two nodes run apart at most so fast */
	int64_t slack;		/* added to what F becomes by that */
	int64_t ttl;		/* of a registration, by etcd's clock */
	int64_t renew, fence;	/* after the last confirmed renewal was sent: renew, stop */
	int64_t keep;		/* the keeper looks at the registrations so often */
	int64_t resend;		/* messages and requests without an effect are repeated after this */
	int64_t low;		/* low-water marks are put so often */
	int64_t care;		/* the keeper settles and retires what the committer has left for so long */
};

/* A job, as this node's catalog and store have it at the start. */
struct rs_core_job {
	uint64_t job, head;		/* 0: none */
	uint64_t prepared, base;	/* token of a row without an outcome, and what it was prepared on; 0: none */
	uint32_t nr_known, nr_have;
	const struct meta_hash *known;	/* sets that the catalog names for the head */
	const struct meta_hash *have;	/* sets of which files are here */
};

struct rs_core_config {
	struct rs_core_times times;
	uint32_t node;				/* number of this node */
	struct meta_node_value self;		/* what nodes/<node> says; borrowed for the core's life */
	uint64_t lease;				/* of the last life; 0: none is known */
	uint32_t keep_versions;			/* of a job; 0: all */
	uint32_t nr_jobs;
	const struct rs_core_job *jobs;		/* borrowed for the call */
};

enum rs_message_kind { RS_MSG_PREPARED, RS_MSG_REFUSED, RS_MSG_HIDDEN };

struct rs_message {
	enum rs_message_kind kind;
	uint64_t job, token, nr;	/* token: PREPARED, REFUSED; nr: HIDDEN */
	int code;			/* REFUSED: SC_E_* */
};

enum rs_event_kind {
	RS_EV_TIME,	/* no more than that */
	RS_EV_ANSWER,	/* of an action with an `id` */
	RS_EV_SNAPSHOT, /* the same, of ACT_SNAPSHOT: all keys of all/, at one revision */
	RS_EV_WATCH,	/* all that changed below all/ at one revision or several, none left out */
	RS_EV_UNWATCHED,/* changes may have been missed */
	RS_EV_MESSAGE,
	RS_EV_COMMAND,	/* ends in ACT_DONE */
	RS_EV_COMPOSED, /* answers ACT_COMPOSE */
	RS_EV_CHECKED,	/* answers ACT_CHECK */
	RS_EV_PREPARED, /* the row of ACT_PREPARE is on stable storage, or cannot be (`code`) */
	RS_EV_HIDDEN,	/* ACT_HIDE is done: no plain path of the job is answered with an older version any more */
	RS_EV_PLACED,	/* where version `nr` is to be: follows from its record, or answers ACT_PLACE */
	RS_EV_BYTES,	/* how far this node's files of version `nr` are */
	RS_EV_HAVE,	/* files of `set` are here, or no more.  What is made for the head is told of when a storage
			   names it, or PLACED without `files`: a set that nothing names is dead, its files go */
	RS_EV_USING,	/* open files read from `set`, or none does */
	RS_EV_KEEP,	/* so many versions without a tag are kept: `nr`, 0: all */
	RS_EV_SEEN,	/* nothing that may have died up to `revision`, as ACT_DIED said, is read here any more, but
			   for USING */
};

struct rs_event {
	enum rs_event_kind kind;
	uint64_t job;			/* all but the first six */
	uint64_t id;			/* ANSWER, SNAPSHOT */
	enum meta_outcome outcome;	/* ANSWER; of a lease that is gone: REFUSED; SNAPSHOT: APPLIED or UNKNOWN */
	uint64_t revision;		/* ANSWER, SNAPSHOT, WATCH: of etcd after it */
	uint64_t lease;			/* ANSWER to GRANT */
	uint32_t nr_records;
	const struct meta_record *records;	/* borrowed for the call */
	uint32_t from;			/* MESSAGE: number and epoch of the node that sent it */
	uint64_t epoch;
	struct rs_message message;
	uint64_t token;			/* COMMAND, COMPOSED, CHECKED, PREPARED */
	enum meta_command_kind change;	/* COMMAND */
	struct meta_hash record;	/* COMMAND: of the draft; COMPOSED: of the version's record */
	int64_t deadline;		/* COMMAND: so long from now */
	uint32_t nr_nodes;
	const uint32_t *nodes;		/* COMMAND: homes that must have prepared; PLACED: destinations */
	struct meta_version_value version;	/* COMPOSED */
	uint64_t members;		/* COMPOSED: rs_core_members_mod() of those whose files are in it, 0: of any */
	uint64_t sweep;			/* COMPOSED, PLACED: revision of `all/sweep` when it was asked whether etcd has
					 * the objects that are named, 0: there was none */
	uint32_t nr_sets;
	const struct meta_set_name *sets;	/* storage of the version, without tokens; PLACED: once it is settled */
	const struct meta_hash *files;	/* PLACED: what `nodes` keep, of which it is made; NULL: whatever they keep */
	int code;			/* CHECKED, COMPOSED: 0 or SC_E_*; ANSWER that is UNKNOWN, as etcd is out of
					 * space: SC_E_NO_SPACE */
	bool dirty;			/* CHECKED: files are written and not committed */
	bool presented;			/* COMPOSED: some of it is stored otherwise than the version presents it, as it
					 * is that of an unsettled version below */
	uint64_t nr;			/* HIDDEN, PLACED, BYTES */
	bool landed, on_disk;		/* BYTES: all of them */
	struct meta_hash set;		/* HAVE, USING; BYTES: names what this node keeps */
	bool on;
};

enum rs_act_kind {
	/* requests to etcd; each is answered by an event with its id, RS_UNKNOWN after a deadline of the driver's */
	RS_ACT_TXN,
	RS_ACT_GRANT,		/* a lease of `ttl` */
	RS_ACT_KEEPALIVE,	/* of `lease` */
	RS_ACT_REVOKE,		/* `lease`; one that is gone is REFUSED */
	RS_ACT_SNAPSHOT,	/* read all/ at one revision, then watch from there */
	RS_ACT_REWATCH,		/* the watch is behind for too long: go on with another connection; has no answer */
	/* facts to keep on stable storage before the next action */
	RS_ACT_KEEP_LEASE,	/* `lease`, for the next life */
	RS_ACT_SEND,		/* `message` to `node`, or not: it is sent again while it matters */
	/* of the whole node */
	RS_ACT_FENCE,		/* plain paths wait, writes fail, until ACT_SERVE */
	RS_ACT_SERVE,
	/* of a job */
	RS_ACT_GATE,		/* from now on nothing is opened for writing or named anew, for `token` */
	RS_ACT_CHECK,		/* may `token` have it?  Answered by CHECKED */
	RS_ACT_PREPARE,		/* write the row (token, base), in place of another; answered by PREPARED */
	RS_ACT_SEAL,		/* what was prepared for `token` is version `nr` */
	RS_ACT_FORGET,		/* it is not: remove the row; the files stay uncommitted.  A check or a write of a row
				   that is not done yet is not to be done after this, or after the next check */
	RS_ACT_ASIDE,		/* files written to an older version than `nr` and not sealed are set aside */
	RS_ACT_UNGATE,
	RS_ACT_HIDE,		/* `nr`, of command `token`, is the head: show no older one, then HIDDEN */
	RS_ACT_SHOW,		/* plain paths show `nr` */
	RS_ACT_COMPOSE,		/* all have prepared: make the version's record, answered by COMPOSED; again, if it
				   was made of other members than there are now */
	RS_ACT_DONE,		/* command `token`: 0, or SC_E_* and it never will be; SC_E_STALE: see the versions */
	RS_ACT_STORED,		/* the storage of `nr` is `sets`: flip */
	RS_ACT_PULL,		/* version `nr` is not settled: get this node's part */
	RS_ACT_PLACE,		/* all members keep their part of `nr`: of `keep`, make its storage; answered by PLACED,
				   or not at all */
	RS_ACT_DIED,		/* at `revision`, or since `base`, as far as is known: version `nr`, or a set (nr 0),
				   may be read here; answered by SEEN */
	RS_ACT_DELETE,		/* the files of `set`, or the version that it stands for: rs_version_of() */
};

/* What a node keeps of a version. */
struct rs_keep {
	uint32_t node;
	struct meta_hash files;
};

struct rs_act {
	enum rs_act_kind kind;
	uint64_t id, job, nr, token, base, lease, revision;
	int64_t ttl;
	uint32_t node;
	uint64_t epoch;			/* SEND: of this node */
	enum meta_command_kind change;
	int code;
	struct rs_message message;
	struct meta_txn txn;
	uint32_t nr_sets;
	const struct meta_set_name *sets;
	uint32_t nr_keep;
	const struct rs_keep *keep;
	struct meta_hash set;
};

/** Returns the hash that stands for a version in HAVE, USING and DELETE; it lives as long as the version has a
 *  storage. */
struct meta_hash rs_version_life(uint64_t job, uint64_t nr);
/** Returns the version of a job for which a hash stands; 0: the hash is that of a set. */
uint64_t rs_version_of(const struct meta_hash *set, uint64_t job);

/** Makes a core that begins to register.  SC_E_LIMIT (times that do not hold together), SC_E_NO_MEMORY. */
int rs_core_new(const struct rs_core_config *config, int64_t now, struct rs_core **ret, struct sc_err *err);
void rs_core_free(struct rs_core *c);

/** Takes an event; the caller has taken all actions of the last one by rs_core_next().  SC_E_NO_MEMORY: the core is of
 *  no use any more, answers no plain path, and must be made anew, as after a crash. */
int rs_core_event(struct rs_core *c, int64_t now, const struct rs_event *e, struct sc_err *err);

/** Returns the next action, which lives until the next event; NULL: there are no more. */
const struct rs_act *rs_core_next(struct rs_core *c);

/** Returns when the core wants RS_EV_TIME at the latest. */
int64_t rs_core_wake(const struct rs_core *c);

/** Tells whether a daemon that lives is registered by this node's number, for which this one waits. */
bool rs_core_is_taken(const struct rs_core *c, int64_t now);

/** Returns the version that an open by plain path gets now (0: the job has none), and in *ret_until the time until
 *  which that may be cached; both 0: it waits, as the node may not know the head, or must not show it yet. */
uint64_t rs_core_current(const struct rs_core *c, int64_t now, uint64_t job, int64_t *ret_until);

/** Returns the revision of `all/tick`, which each change below all/ puts, as far as this node knows; 0: it is no
 *  member, or does not know what changes. */
uint64_t rs_core_tick(const struct rs_core *c);
/** Returns the newest version of a job; 0: there is none. */
uint64_t rs_core_head(const struct rs_core *c, uint64_t job);
/** Tells whether a version has a storage: it was not dropped. */
bool rs_core_stores(const struct rs_core *c, uint64_t job, uint64_t nr);
/** Walks over the sets that versions are stored in, of all jobs, until `fn` returns something else than 0, which it
 *  then returns, too. */
int rs_core_each_set(const struct rs_core *c, int (*fn)(void *arg, const struct meta_hash *set), void *arg);
/** Gives the number of the `at`-th job that this node knows of; 0: there are no more. */
uint64_t rs_core_job_at(const struct rs_core *c, size_t at);
/** Returns the epoch of this node's registration; 0: it is not registered. */
uint64_t rs_core_epoch(const struct rs_core *c);
/** Gives the numbers of at most `room` members, in order, as far as this node knows.  Returns how many members there
 *  are. */
size_t rs_core_members(const struct rs_core *c, uint32_t *ret, size_t room);
/** Returns the revision at which the list of members was put; 0: there is none. */
uint64_t rs_core_members_mod(const struct rs_core *c);
/** Lists members that this node's command waits for: up to `room` of those that have not prepared it yet.  Returns how
 *  many it has listed; 0, too, for a command that waits for nobody. */
size_t rs_core_waits_for(const struct rs_core *c, uint64_t job, uint64_t token, struct meta_member *ret, size_t room);
/** Tells whether a node is a member. */
bool rs_core_lists(const struct rs_core *c, uint32_t node);
/** Tells whether a node is a member, by this epoch, as far as this one knows. */
bool rs_core_has_member(const struct rs_core *c, uint32_t node, uint64_t epoch);

#endif
