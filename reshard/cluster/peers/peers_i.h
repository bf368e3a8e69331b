/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A member of a cluster, as its threads share it, and what they ask of etcd and of other nodes.
 *
 *	probe.c		members that a command waits for, and that cannot be reached
 *	pull.c		bytes of other nodes, from those that have them
 *	near.c		which nodes are here, or were a moment ago
 *	peers.c		addresses of nodes, messages to them, bytes for them
 *	offer.c		what this node has uncommitted, for the one that commits
 *	jobs.c		jobs that all nodes have, as this node sees them
 *	objects.c	what versions are made of, to etcd and from there
 *	pack.c		objects as texts, which values of etcd are
 *	ask.c		requests of other threads to the node's
 *	backup.c	the cluster's keys, in the catalog
 *	bound.c		numbers that this node may give to files
 *	ended.c		jobs that were removed, of which etcd has no keys any more
 *	boot.c		the cluster's secret, the node's number, and the store that it belongs to
 * Each calls only those below it.
 *
 * Threads: `thread` has etcd, net and core to itself, but for rs_core_current() and rs_core_members(), which are called
 * under `lock`.  `worker` alone holds gates of jobs.  `lock` is held for moments; nobody calls catalog, etcd or a job
 * under it.
 */
#ifndef RS_PEERS_I_H
#define RS_PEERS_I_H

#include "meta/catalog/member.h"
#include "meta/catalog/nodes.h"
#include "meta/member/etcd.h"
#include "reshard/cluster/protocol/core.h"
#include "reshard/cluster/peers/boot.h"
#include "reshard/cluster/peers/holders.h"
#include "reshard/exchange/merge/join.h"
#include "reshard/exchange/merge/part.h"
#include "reshard/engine/remote/landing.h"
#include "reshard/cluster/net/net.h"
#include "reshard/exchange/objects/objects.h"
#include "reshard/cluster/peers/steps.h"
#include "reshard/upkeep/background/upkeep_i.h"

#define MEMBER_MS INT64_C(1000000)
#define RS_PEER_TEXT 192

/* A command of this node; its thread waits for it. */
struct rs_move {
	struct rs_advance *a;
	struct rs_turn *turn;
	uint64_t token;			/* of this attempt */
	bool composes;			/* all nodes have prepared, and wait for the version */
	bool composed;			/* it has been handed to the core */
	bool saves, saved;		/* the worker is at it; the version is in the catalog, and the head in memory */
	bool overtaken;			/* the worker has it, a later one, or the job's end, and saves no more */
	bool failed;			/* the worker could not save it when it tried last */
	bool done;			/* the core knows the outcome: */
	int code;
	struct sc_err err;		/* why it was refused; code 0: nobody has said so */
	char late[2 * RS_PEER_TEXT];	/* members that have not prepared it a while after it was proposed; "": none */
	struct rs_object_parts parts;	/* of a commit: what nodes had uncommitted */
	uint64_t members;		/* rs_core_members_mod() of these nodes */
	bool joins;			/* others than this node */
	struct rs_joined joined;
	struct rs_joining joining;
	struct {
		size_t nr, room;
		struct sc_buf *at;
	} texts;			/* of parts */
};

/* A job that all nodes have. */
struct rs_shared {
	uint64_t id;			/* in the cluster */
	struct rs_job *job;		/* NULL: it is not made here yet */
	uint64_t asked_head;		/* version that was the newest here when etcd was asked for all keys; 0: none;
					 * the node's thread */
	uint64_t shown;			/* version that plain paths show, once the core says the same */
	uint64_t wants, token;		/* version to take, 0: none; and of the command that made it */
	uint64_t show;			/* to be shown once it was taken, 0: none */
	uint64_t gate;			/* token of the command that the worker holds the gate for, 0: it is open */
	bool opens;			/* the gate is to be opened when the version was taken */
	uint64_t row, row_base;		/* token of a commit that is prepared here, maybe by the daemon before, and is
					 * not here yet, 0: none; and the version that it was made over */
	struct {
		uint64_t token;		/* of the commit for which it was made, 0: there is none */
		uint8_t name[RS_OBJECT_NAME_BYTES];
		struct sc_buf text;
	} part;				/* what is uncommitted here: the worker changes it, under m->lock */
	struct {
		uint64_t nr;		/* of the version, 0: nothing was said */
		struct rs_object_names sets;
		bool done;		/* it is stored so here */
		uint8_t tried[RS_OBJECT_NAME_BYTES]; /* SHA-256 of what nodes kept when some of it was kept nowhere */
	} storage;			/* of the newest version, as etcd has it: the worker's, under m->lock */
	struct {
		size_t nr, room;
		struct rs_gone {
			uint64_t since, revision;	/* of its death: between these */
			uint64_t version;	/* its row, 0: it has none */
			int64_t since_ns;
			bool is_set, is_taken;	/* is_taken: what has replaced it is taken here; then */
			uint64_t until;		/* it is over when the first so many of `sets` are not read */
		} *at;			/* what has died, and was not SEEN yet; in this order */
		struct {
			size_t nr, room;
			struct rs_left_set {
				struct rs_set *set;
				uint64_t at;	/* how many there were before it */
			} *at;
		} sets;			/* that were a version's storage, and may be read still */
		uint64_t nr_left, seen;	/* sets that there were ever; revision that was SEEN */
		struct {
			size_t nr, room;
			struct meta_hash *at;
		} later;		/* to be deleted when all versions are here */
		uint64_t head;		/* version that has died, and was the newest one here; 0: none */
		bool said;		/* why it cannot be */
	} dead;				/* the worker's (reshard/cluster/stored/gone.c) */
	uint64_t refused;		/* token of a command that this node has refused: */
	char why[512];
	struct rs_move *move;		/* a command of this node, or NULL */
	struct sc_err stuck;		/* why a version cannot be taken; code 0: nothing */
	struct sc_err behind;		/* why the row here is older than all nodes'; code 0: it is not */
	uint64_t behind_mod;		/* revision of what is to be followed then */
	bool gone;			/* it was removed from the cluster, and is not here any more, or */
	bool kept;			/* only as files of it are not committed here */
	uint64_t row_mod, first_mod, config_mod; /* revisions of name and owner, of the first layout and topology, and
					 * of settings, that are here */
	struct {			/* what could not be done, and is tried again; the worker's own */
		struct rs_row_again {
			char *text;	/* NULL: none */
			struct meta_hash layout; /* FIRST; text: the topology */
			uint64_t mod;
		} row, first, config;
		uint64_t end;		/* revision as of which it is not in etcd, 0: not so */
		bool tags, missed;	/* missed: versions that others made while this node was away */
	} again;
	struct {			/* that nodes keep of each other's files (cluster/copies), under m->lock */
		struct rs_copied mine, all;	/* as of this node's last pass; as all nodes have said */
		uint64_t gone, all_gone;	/* nodes that were gone, but might be back: of `mine`, of `all` */
		uint32_t silent;	/* nodes that have not said it yet */
		bool puts, asks, done;	/* `mine` is to be put; the worker is asked; all is as it is to be */
		bool waits;		/* older versions are still to come: until then nothing is copied, or said */
		int64_t tried_ns, ask_ns;	/* of the last pass; when others are asked, 0: they need not be */
		uint32_t again;		/* passes in a row in which only what was lost was tried again */
		int64_t kicked_ns;	/* when the worker was last asked to */
	} copies;
	bool lacks_tagged;		/* etcd has tags of versions that are not here */
	bool said_missed;		/* why older versions cannot be taken */
	uint64_t nccl_left;		/* version below whose keys words of nodes were left (cluster/joint), 0: none */
	uint64_t older;			/* version taken before the newest, as it has what was prepared; 0: none */
};

/* Of the core to the worker, in order. */
struct rs_todo {
	struct rs_act act;		/* without what it points to */
	char *text;			/* of a job's row or settings, NULL: none */
	void *more;			/* STORED: names of act.nr_sets sets; PLACE: act.nr_keep of struct rs_keep */
	struct meta_hash layout;	/* TODO_FIRST; text: the topology */
	uint64_t mod;			/* revision of the key; END: as of which it is absent */
	enum { TODO_ACT, TODO_JOB, TODO_FIRST, TODO_END, TODO_CONFIG, TODO_TAGS, TODO_COPIES, TODO_BOUND } what;
};

struct rs_peer {
	uint32_t node;
	char address[64], name[64];
};

/* what is said where a copy of this node's store is mounted, too */
#define RS_TAKEN "another daemon is registered as this node, with a copy of its store: unmount one of them"
#define RS_FULL \
	"etcd is out of space and takes no changes: compact and defragment it, or give it a larger " \
	"--quota-backend-bytes, then disarm its alarm (etcdctl compact, defrag, alarm disarm)"

struct rs_member {
	struct rs_service *s;
	char *cluster, *name, *listen, *domain;
	uint32_t node;
	struct {			/* as the catalog had it when it was mounted */
		bool is;		/* it is in a cluster: this one */
		uint32_t node;
		uint8_t id[16];		/* of the cluster */
		uint64_t era, revision, backup; /* of etcd: the highest that it had seen; of the backup, 0: none */
	} joined;
	struct {			/* the thread that follows all keys of the cluster, with a client of its own */
		struct meta_etcd *etcd;
		struct sc_thread thread;
	} backup;
	struct {			/* numbers of files that this life may give: the worker's, once it runs */
		struct meta_bound_value is;	/* of etcd, as of revision `mod` */
		uint64_t mod;
		bool lost;		/* another one has changed it */
		uint64_t jobs;		/* under m->lock: `is.jobs`, for all threads */
		int64_t again_ns;	/* the node's thread: not asked for before */
	} bound;
	uint64_t lease;
	uint64_t asked;			/* requests of boot.c */
	struct rs_core_times times;
	uint64_t era;			/* of etcd's keys: how often they were made anew */
	uint8_t id[16], secret[RS_SECRET_BYTES];
	struct rs_core *core;
	struct meta_etcd *etcd;
	struct rs_net *net;
	struct rs_landings *landings;
	struct sc_thread thread, worker, sweep;

	pthread_mutex_t lock;		/* of all below */
	pthread_cond_t changed;
	bool gave_up;			/* a lookup has waited in vain since it serves no more, since: */
	int64_t fenced_ns;
	struct rs_boot_options boot;
	char servers[512];		/* of etcd, for people */
	int64_t silent_ns;		/* since when etcd has not answered, while it starts */
	bool told_silent;
	bool stop, serves;
	bool taken;			/* another daemon is registered as this node: RS_TAKEN */
	struct {			/* of whether it is a member (the node's thread) */
		int64_t since_ns;
		uint32_t nr;
	} said;
	bool full;			/* etcd is out of space: RS_FULL */
	bool outdated;			/* it takes no part any more: the cluster speaks a protocol that this program
					 * does not, or etcd has lost its data */
	char left[512];			/* why; "": it is the protocol */
	uint64_t seen, noted;		/* of etcd, the highest revision; that the catalog has it (the worker's) */
	uint8_t protocol;		/* that the cluster speaks */
	uint8_t protocol_made;		/* that it was made with: of `meta` */
	struct {
		size_t nr, room;
		struct rs_shared **at;
	} jobs;
	struct {			/* to the worker */
		size_t nr, room;
		struct rs_todo *at;
	} todo;
	struct {			/* to the node's thread */
		size_t nr, room;
		struct rs_event *at;
	} events;
	struct rs_ask *asks;		/* not sent yet */
	struct rs_pulling *pulls;	/* not begun yet */
	unsigned waiting;		/* lookups that wait */
	struct {
		size_t nr, room;
		struct rs_holder *at;
	} members, domains;		/* as etcd has them: members sorted as holders.h wants; all nodes' domains */
	struct {
		size_t nr, room;
		uint32_t *at;
	} drained;
	uint64_t members_mod, drained_mod, domains_mod;
	uint32_t last;			/* number that a node was given, as far as this one knows */
	struct {
		size_t nr, room;
		struct {
			uint32_t node;
			int64_t since_ns;
		} *at;
	} gone;				/* that were members, and may be back in a moment */
	struct {
		size_t nr, room;
		struct rs_holder *at;
	} keepers;			/* that may keep copies: of the service's worker, for one pass */
	uint32_t copies;		/* nodes that have a file's bytes, where a job does not say */
	uint64_t registration;		/* lease of this life, 0: none */

	/* the thread's own */
	struct rs_ask *sent;
	uint64_t next_ask, epoch;
	struct {
		size_t nr, room;
		struct rs_peer *at;
	} peers;
	bool asks_peers;
	bool checked;			/* etcd has all that this store has */
	uint64_t position;		/* revision of etcd that is known of jobs' rows */
	struct rs_pulling *pulls_again;	/* that have failed, and are tried again */
	struct rs_probe *probes;	/* members that a command waits for (probe.c) */
	int64_t probed_ns;
	struct rs_served {
		uint32_t node;
		uint64_t number, blob;
	} served[256];			/* copies that were asked for */
	struct {
		uint64_t blob, bytes;
	} sealed[256];			/* blobs that were, and are sealed */
};

/* --- ask.c --- */
typedef void rs_answer_fn(void *arg, const struct meta_answer *answer);
struct rs_ask {
	struct rs_ask *next;
	const struct meta_txn *txn;
	rs_answer_fn *take;		/* on the node's thread, while the answer lives; NULL: nobody wants it */
	void *arg;
	uint64_t id;
	bool done;
	enum meta_outcome outcome;
	enum rs_unanswered {		/* of META_UNKNOWN: */
		RS_LOST,		/* it was done, will be, or never will */
		RS_UNSENT,		/* etcd was not reached: it was not done, and never will be */
		RS_NO_ROOM		/* etcd is out of space: it was not done, or was the last one that was */
	} why;
};
/** Carries out a transaction; any thread but the node's.  META_UNKNOWN, too, if the member ends. */
enum meta_outcome rs_member_ask(struct rs_member *m, const struct meta_txn *txn, rs_answer_fn *take, void *arg);
/** Carries it out, too, and says why it was not answered. */
enum meta_outcome rs_member_ask_why(struct rs_member *m, const struct meta_txn *txn, rs_answer_fn *take, void *arg,
				    enum rs_unanswered *ret_why);
/** Waits 50 ms.  False: it is `until`, or the member ends. */
bool rs_ask_pause(struct rs_member *m, int64_t until);
/** Hands an event to the core; any thread. */
void rs_member_post(struct rs_member *m, const struct rs_event *e);

/* --- boot.c --- */
/** Finds or makes the cluster's and this node's keys, by m->etcd, before there is a thread.  Errors: SC_E_STATE (the
 *  store is not the one that this node has), SC_E_BUSY (this node is mounted already), SC_E_LIMIT, SC_E_SYSTEM. */
int rs_member_boot(struct rs_member *m, struct sc_err *err);
/** Takes the numbers of files that this life gives; the store has joined the cluster.  Errors: SC_E_BUSY,
 *  SC_E_SYSTEM. */
int rs_member_boot_numbers(struct rs_member *m, struct sc_err *err);
/** Begins another era of etcd's keys, if the newest versions that the store's backup has are those that etcd has, or
 *  has dropped.  Errors: SC_E_STALE (they are of another history), SC_E_SYSTEM. */
int rs_member_boot_era(struct rs_member *m, struct sc_err *err);
/** Gives this node's next numbers back, when it ends: the next life begins with them. */
void rs_member_end_numbers(struct rs_member *m);

/* --- backup.c --- */
/** Begins to keep it, by m->backup.etcd, when it is known that etcd has lost nothing. */
int rs_backup_start(struct rs_member *m, struct sc_err *err);
/** Ends it, after m->stop, and its client. */
void rs_backup_stop(struct rs_member *m);
/** Finds what etcd says of a job by a key of this kind that is there; NULL: nothing. */
const struct meta_record *rs_record_of_job(const struct meta_answer *answer, enum meta_key_kind kind, uint64_t job);
/** Tells whether somebody has removed the key of a job, but not the job: who does so leaves a key that says so; or the
 *  key that says which jobs have ended. */
bool rs_removed_by_hand(const struct meta_answer *changes);
/** Waits until the backup has this version of a job.  SC_E_BUSY: it is behind.  Not under m->lock. */
int rs_backup_wait(struct rs_member *m, uint64_t job, uint64_t nr, struct sc_err *err);
/** Notes in the catalog how far etcd was, for the next mount: the worker, or when it has ended. */
void rs_revision_note(struct rs_member *m);

/* --- bound.c --- */
/** Puts this node's next numbers into its key `bound`, if that is as it was at revision `mod`. */
struct rs_bound_edit {
	struct meta_compare same;
	struct meta_op put;
	struct meta_txn txn;		/* of these two */
};
void rs_bound_edit(const struct rs_member *m, const struct meta_bound_value *was, uint64_t mod,
		   const struct meta_numbers *next, struct rs_bound_edit *ret);
/** Gives the first numbers of this life, behind those that were given (`first`: by the catalog), and where they end. */
void rs_bound_after(const struct rs_member *m, const struct meta_bound_value *was, struct meta_numbers *first,
		    struct meta_numbers *ret_end);
/** The node's thread: asks the worker for more when there are few left. */
void rs_bound_tick(struct rs_member *m);
/** The worker: gets more of etcd. */
void rs_bound_move(struct rs_member *m);
/** The worker: notes in etcd that this node may have a version of a job, before it saves the first one.  Errors:
 *  SC_E_STALE (the job was removed), SC_E_BUSY (another daemon has this node's number), SC_E_SYSTEM. */
int rs_bound_know(struct rs_member *m, uint64_t job, struct sc_err *err);
/** Tells whether etcd knows that this node may have had a version of the job; any thread. */
bool rs_bound_knows(struct rs_member *m, uint64_t job);

/* --- ended.c: pure --- */
#define RS_JOB_NUMBERS_MAX ((UINT64_C(1) << 28) - 1)
/** Gives the number of a job, from 1 on, by its id in the cluster; 0: it has none, as a program from before made it. */
uint64_t rs_job_number(uint64_t id);
uint64_t rs_job_with_number(uint64_t number, uint64_t random);
/** Tells whether a number is in a text of `all/ended` (NULL: there is none). */
bool rs_ended_has(const char *text, uint64_t number);
/** Prints such a text once more, with a number in it.  Errors: SC_E_FORMAT, SC_E_NO_MEMORY. */
int rs_ended_add(const char *text, uint64_t number, struct sc_buf *to, struct sc_err *err);
/** Tells whether a job has ended and has no keys any more, by an answer that has `all/ended` if there is one. */
bool rs_ended_covers(const struct meta_answer *answer, uint64_t id);

/* --- objects.c --- */
/** Objects in memory, between the catalog's transaction and etcd. */
struct rs_bag {
	struct {
		size_t nr, room;
		struct {
			uint8_t name[RS_OBJECT_NAME_BYTES];
			struct sc_buf bytes;
		} *at;
	} all;
	struct rs_object_names referred;	/* that were put before, by whoever named them first */
	uint8_t lacks[RS_OBJECT_NAME_BYTES];	/* that was asked for, and is not there */
	bool lacking;
	struct meta_key kept;		/* of kind KEPT: they are a node's lists of what it keeps, else versions' */
	uint64_t lease;			/* that they go with; 0: they stay */
	uint64_t sweep;			/* of rs_bag_refer(): revision of `all/sweep`, 0: there is none */
	struct sc_buf sweeping;		/* likewise, the text of `sweeping` */
};
/** `arg` is a bag: what is put goes there, what is got comes from there. */
extern const struct rs_object_ops rs_bag_ops;
void rs_bag_done(struct rs_bag *bag);
/** Puts all of them into etcd.  Errors: SC_E_BUSY (etcd has not answered; nothing but objects was put),
 *  SC_E_NO_SPACE. */
int rs_bag_put(struct rs_member *m, const struct rs_bag *bag, struct sc_err *err);
/** Gets the one that is lacking.  Errors: SC_E_SYSTEM (etcd has not answered), SC_E_NOT_FOUND. */
int rs_bag_get(struct rs_member *m, struct rs_bag *bag, struct sc_err *err);
/** Asks whether etcd has what was put before, and adds to the bag what was removed since, or what the sweep has
 *  announced; before rs_bag_put().  Whoever then names these objects compares `all/sweep` with bag->sweep in that
 *  transaction, and asks again if it is another.  Errors: SC_E_BUSY (etcd has not answered; nothing but objects was
 *  put), those of rs_objects_put_again(). */
int rs_bag_refer(struct rs_member *m, struct rs_bag *bag, struct sc_err *err);

/** A line of `sweeping`: the beginning of an object's name; lines are in order. */
#define RS_SWEEPING_LINE 17
void rs_sweeping_line(const struct rs_object_name *name, char ret[RS_SWEEPING_LINE + 1]);

/* --- jobs.c --- */
/** Keeps why this node refuses a command: for the command here, or for the node whose it is. */
void rs_move_refuse(struct rs_member *m, struct rs_shared *j, uint64_t token, const struct sc_err *err);
/** Tells whether there is something to do for the worker, which is busy with something that can wait. */
bool rs_member_is_called(struct rs_member *m);

/** Notes that a change of a job's row, which all nodes have, could not be saved here: `health` says so until the worker
 *  has followed it. */
void rs_shared_behind(struct rs_member *m, struct rs_shared *j, const struct sc_err *why);
/** Returns the newest version of a job here, 0: it has none.  Not under m->lock. */
uint64_t rs_shared_head(struct rs_member *m, const struct rs_shared *j);
/** Gives the job at a place of the list, which only grows; NULL: behind the last one.  Not under m->lock. */
struct rs_shared *rs_shared_at(struct rs_member *m, size_t i);
/** Notes, as j->asked_head, what this store has of each job when etcd is asked for all keys.  The node's thread. */
void rs_shared_note_heads(struct rs_member *m);

/* under m->lock */
/** Finds a job by its number in the cluster; makes an entry.  NULL: out of memory. */
struct rs_shared *rs_shared_of(struct rs_member *m, uint64_t id);
struct rs_shared *rs_shared_find(struct rs_member *m, const struct rs_job *job);
/** Finds it, and waits a moment for one of a job that was just made; NULL: it has none. */
struct rs_shared *rs_shared_wait(struct rs_member *m, const struct rs_job *job);
/** Finds the job's command with this token; NULL: it has none such. */
struct rs_move *rs_move_of(struct rs_member *m, uint64_t id, uint64_t token);
/** As `current`, `known` and `until` of head.h. */
int rs_member_current(struct rs_member *m, struct rs_job *job, struct sc_err *err);
int rs_member_known(struct rs_member *m, struct rs_job *job, struct sc_err *err);
int64_t rs_member_until(struct rs_member *m);
/** As `soon` of head.h. */
void rs_member_soon(struct rs_member *m, struct rs_job *job);
/** Hands something to the worker; out of memory is said in the log, and the node is fenced by its core. */
bool rs_member_todo(struct rs_member *m, const struct rs_todo *todo);
int64_t rs_member_now(void);

/* --- near.c --- */
#define GONE_TTLS 3			/* a node that is gone so long is not waited for any more */
/** The node's thread: takes a list of members, of drained nodes, or of domains; copies are looked at anew.  Of other
 *  keys: nothing. */
void rs_near_take(struct rs_member *m, const struct meta_record *r);
/** Reads one line "NUMBER NAME" of the list of domains and moves *p to the next line.  *ret_name is the name, which
 *  ends at the newline before *p.  False: no line is left, or the line is malformed. */
bool rs_domain_line(const char **p, unsigned long *ret_node, const char **ret_name);
/** Under m->lock.  Returns the number of a node's domain; 0: it is in none. */
uint32_t rs_near_domain(const struct rs_member *m, uint32_t node);
/** Forgets those that have been gone for long.  True: there were some. */
bool rs_near_expire(struct rs_member *m);
/** Counts nodes whose blobs are known as gone just now: when the member starts. */
int rs_near_start(struct rs_member *m, struct sc_err *err);
/** Under m->lock.  May a node be back in a moment, or is it here?  And only that. */
bool rs_near_is(const struct rs_member *m, uint32_t node);
bool rs_near_is_here(const struct rs_member *m, uint32_t node);
/** Under m->lock.  Finds a node that is no member now, and was not given up (`drain`); 0: there is none.  `first`:
 *  that one, if it is. */
uint32_t rs_near_absent(const struct rs_member *m, uint32_t first);

/* --- pull.c --- */
struct rs_pulling {
	struct rs_member *m;
	uint32_t node, bytes;		/* 4 MiB at most */
	uint64_t blob, at;		/* of that node */
	uint64_t whole;			/* bytes that the blob has, 0: it is not known */
	uint32_t holders, tries, lacking; /* nodes that may have it; of those, asked in this round, and had it not */
	bool is_away;			/* its own node is none of them */
	uint64_t part;			/* not 0: in place of a blob what the node has uncommitted, for this command */
	const char *about;		/* not NULL: RS_ABOUT_BYTES about the blob, in place of bytes of it */
	uint32_t only;			/* not 0: this node is asked, once */
	uint8_t *to;
	void (*done)(struct rs_pulling *p); /* once, on the node's thread or this one; err.code 0: they are there */
	struct sc_err err;
	int64_t again, give_up;
	struct rs_pulling *next;
	char said[256];		/* why a holder that may have it has not given it; "": none was asked */
	int64_t began_ns;
};
/** Lets blobs of other nodes be read; before there is a thread. */
int rs_pulls_start(struct rs_member *m, struct sc_err *err);
/** Pulls bytes of a sealed blob; any thread. */
void rs_member_pull(struct rs_member *m, struct rs_pulling *p);
/* What may be asked about a blob: its hash; and the same, after which the node looks at the blob's bytes, or forgets
 * what it has of them from others, as that may be wrong. */
#define RS_ABOUT_HASH "hash"
#define RS_ABOUT_LOOK "look"
#define RS_ABOUT_WRONG "wrong"
#define RS_ABOUT_BYTES 17	/* 1 (0: the node does not know it), its XXH3-128 */
/** Pulls what `what` says, but for its `m` and `done`, and waits for it; any thread but the node's.  Errors: of
 *  rs_member_pull(). */
int rs_member_fetch(struct rs_member *m, const struct rs_pulling *what, struct sc_err *err);
/** Tells all members that what they had of a blob from here may be wrong.  Does not wait for them. */
void rs_member_tell_wrong(struct rs_member *m, uint64_t blob);
/** The node's thread: begins one; begins those again whose time has come (`all`: all of them). */
void rs_pull_begin(struct rs_member *m, struct rs_pulling *p);
void rs_pulls_again(struct rs_member *m, bool all);

/* --- offer.c --- */
/** Makes this node's part for a commit, whose gate is closed; the worker. */
int rs_part_prepare(struct rs_member *m, struct rs_shared *j, uint64_t token, struct sc_err *err);
/** Tells whether this node's part, if it has any, is in a version: 1, 0 or an error; the worker. */
int rs_part_is_in(struct rs_member *m, struct rs_shared *j, const uint8_t version[RS_OBJECT_NAME_BYTES],
		  struct sc_err *err);
void rs_part_drop(struct rs_member *m, struct rs_shared *j);
#define RS_PART_HEADER (sizeof(uint64_t) + RS_OBJECT_NAME_BYTES)	/* its bytes, its name; the text follows */
/** Copies bytes [from, from + nr) of header and text. */
void rs_part_copy(const struct rs_shared *j, uint64_t from, uint32_t nr, uint8_t *to);
/** Gives another node bytes of it, enum rs_frame_code; the node's thread. */
int rs_part_serve(struct rs_member *m, const struct rs_pull *p, uint8_t *to);

/* --- peers.c: the node's thread --- */
/** Reads the number of all/protocol: of a record of that key; 0: there is none. */
uint8_t rs_protocol_in(const struct meta_record *r);
/** Refuses a protocol that this program does not speak: SC_E_UNSUPPORTED. */
int rs_protocol_check(const struct rs_member *m, uint8_t protocol, struct sc_err *err);
/** Looks whether the node could listen, and its certificates be used.  Changes nothing. */
int rs_peers_try(const struct rs_member *m, const char *tls, struct sc_err *err);
/** Listens; messages go to `message`.  tls: a folder of certificates, or NULL.  ucx: over UCX, else over TCP. */
int rs_peers_start(struct rs_member *m,
		   void (*message)(void *arg, const struct rs_node_id *peer, const struct rs_net_frame *f),
		   const char *tls, bool ucx, struct sc_err *err);
void rs_peers_send(struct rs_member *m, const struct rs_act *a);
/** Takes the list of nodes that was asked for. */
void rs_peers_take(struct rs_member *m, const struct meta_answer *answer);
/** Gives bytes of a sealed blob by its number, of a copy, or of what is uncommitted: enum rs_frame_code. */
int rs_peers_serve(struct rs_member *m, const struct rs_pull *p, uint8_t *to);
/** Gives an address; NULL: it is not known, and asked for. */
const char *rs_peers_address(struct rs_member *m, uint32_t node);
/** Formats a node for people: its number, with name and address if they are known; returns `to`. */
const char *rs_peers_text(const struct rs_member *m, uint32_t node, char to[RS_PEER_TEXT]);

/* --- probe.c: the node's thread --- */
/** Asks members that commands wait for whether they are there; `refuse` is called for one that was not for long. */
void rs_probes_tick(struct rs_member *m,
		    void (*refuse)(struct rs_member *m, const struct meta_member *at, uint64_t job, uint64_t token));
void rs_probes_end(struct rs_member *m);

#endif
