/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A member of a cluster, as its threads share it, and what they ask of etcd and of other nodes.
 *
 *	pull.c		bytes of other nodes
 *	peers.c		addresses of nodes, messages to them, bytes for them
 *	offer.c		what this node has uncommitted, for the one that commits
 *	jobs.c		jobs that all nodes have, as this node sees them
 *	objects.c	what versions are made of, to etcd and from there
 *	ask.c		requests of other threads to the node's
 * Each calls only those below it.
 *
 * Threads: `thread` has etcd, net and core to itself, but for rs_core_current() and rs_core_members(), which are called
 * under `lock`.  `worker` alone holds gates of jobs.  `lock` is held for moments; nobody calls catalog, etcd or a job
 * under it.
 */
#ifndef RS_PEERS_I_H
#define RS_PEERS_I_H

#include "meta/catalog/member.h"
#include "meta/member/etcd.h"
#include "reshard/cluster/core.h"
#include "reshard/join/join.h"
#include "reshard/join/part.h"
#include "reshard/landing/landing.h"
#include "reshard/net/net.h"
#include "reshard/objects/objects.h"
#include "reshard/upkeep/upkeep_i.h"

#define MEMBER_MS INT64_C(1000000)

/* A command of this node; its thread waits for it. */
struct rs_move {
	struct rs_advance *a;
	struct rs_turn *turn;
	uint64_t token;			/* of this attempt */
	bool composes;			/* all nodes have prepared, and wait for the version */
	bool composed;			/* it has been handed to the core */
	bool saves, saved;		/* the worker is at it; the version is in the catalog, and the head in memory */
	bool done;			/* the core knows the outcome: */
	int code;
	struct sc_err err;		/* why it was refused; code 0: nobody has said so */
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
	uint64_t shown;			/* version that plain paths show, once the core says the same */
	uint64_t wants, token;		/* version to take, 0: none; and of the command that made it */
	uint64_t show;			/* to be shown once it was taken, 0: none */
	uint64_t gate;			/* token of the command that the worker holds the gate for, 0: it is open */
	bool opens;			/* the gate is to be opened when the version was taken */
	uint64_t row;			/* token of a commit that is prepared here, maybe by the daemon before, and is
					 * not here yet; 0: none */
	struct {
		uint64_t token;		/* of the commit for which it was made, 0: there is none */
		uint8_t name[RS_OBJECT_NAME_BYTES];
		struct sc_buf text;
	} part;				/* what is uncommitted here: the worker changes it, under m->lock */
	uint64_t refused;		/* token of a command that this node has refused: */
	char why[512];
	struct rs_move *move;		/* a command of this node, or NULL */
	struct sc_err stuck;		/* why a version cannot be taken; code 0: nothing */
	bool gone;			/* it was removed from the cluster, and is not here any more, or */
	bool kept;			/* only as files of it are not committed here */
	uint64_t row_mod, config_mod;	/* revisions of name and owner, and of settings, that are here */
	struct {			/* what could not be done, and is tried again; the worker's own */
		char *row;		/* text of the row, NULL: none */
		uint64_t row_mod;
		bool end, tags;
	} again;
	bool lacks_tagged;		/* etcd has tags of versions that are not here */
};

/* Of the core to the worker, in order. */
struct rs_todo {
	struct rs_act act;		/* without what it points to */
	char *text;			/* of a job's row or settings, NULL: none */
	struct meta_hash layout;	/* TODO_FIRST; text: the topology */
	uint64_t mod;			/* revision of the key */
	enum { TODO_ACT, TODO_JOB, TODO_FIRST, TODO_END, TODO_CONFIG, TODO_TAGS } what;
};

struct rs_peer {
	uint32_t node;
	char address[64];
};

struct rs_member {
	struct rs_service *s;
	char *cluster, *name, *listen;
	uint32_t node;
	uint64_t lease;
	struct rs_core_times times;
	uint8_t id[16], secret[RS_SECRET_BYTES];
	struct rs_core *core;
	struct meta_etcd *etcd;
	struct rs_net *net;
	struct rs_landings *landings;
	pthread_t thread, worker;
	bool has_thread, has_worker;

	pthread_mutex_t lock;		/* of all below */
	pthread_cond_t changed;
	bool stop, serves;
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

	/* the thread's own */
	struct rs_ask *sent;
	uint64_t next_ask, epoch;
	struct {
		size_t nr, room;
		struct rs_peer *at;
	} peers;
	bool asks_peers;
	uint64_t position;		/* revision of etcd that is known of jobs' rows */
	struct rs_pulling *pulls_again;	/* that have failed, and are tried again */
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
};
/** Carries out a transaction; any thread but the node's.  META_UNKNOWN, too, if the member ends. */
enum meta_outcome rs_member_ask(struct rs_member *m, const struct meta_txn *txn, rs_answer_fn *take, void *arg);
/** Hands an event to the core; any thread. */
void rs_member_post(struct rs_member *m, const struct rs_event *e);

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
	uint8_t lacks[RS_OBJECT_NAME_BYTES];	/* that was asked for, and is not there */
	bool lacking;
};
/** `arg` is a bag: what is put goes there, what is got comes from there. */
extern const struct rs_object_ops rs_bag_ops;
void rs_bag_done(struct rs_bag *bag);
/** Puts all of them into etcd; gets the one that is lacking.  Errors: SC_E_SYSTEM (etcd has not answered),
 *  SC_E_NOT_FOUND. */
int rs_bag_put(struct rs_member *m, const struct rs_bag *bag, struct sc_err *err);
int rs_bag_get(struct rs_member *m, struct rs_bag *bag, struct sc_err *err);

/* --- jobs.c: under m->lock --- */
/** Finds a job by its number in the cluster; makes an entry.  NULL: out of memory. */
struct rs_shared *rs_shared_of(struct rs_member *m, uint64_t id);
struct rs_shared *rs_shared_find(struct rs_member *m, const struct rs_job *job);
/** Finds it, and waits a moment for one of a job that was just made; NULL: it has none. */
struct rs_shared *rs_shared_wait(struct rs_member *m, const struct rs_job *job);
/** Finds the job's command with this token; NULL: it has none such. */
struct rs_move *rs_move_of(struct rs_member *m, uint64_t id, uint64_t token);
/** As `current` and `until` of head.h. */
int rs_member_current(struct rs_member *m, struct rs_job *job, struct sc_err *err);
int64_t rs_member_until(struct rs_member *m);
/** Hands something to the worker; out of memory is said in the log, and the node is fenced by its core. */
bool rs_member_todo(struct rs_member *m, const struct rs_todo *todo);
int64_t rs_member_now(void);

/* --- pull.c --- */
struct rs_pulling {
	struct rs_member *m;
	uint32_t node, bytes;		/* 4 MiB at most */
	uint64_t blob, at;		/* of that node */
	uint64_t part;			/* not 0: in place of a blob what the node has uncommitted, for this command */
	uint8_t *to;
	void (*done)(struct rs_pulling *p); /* once, on the node's thread or this one; err.code 0: they are there */
	struct sc_err err;
	int64_t again, give_up;
	struct rs_pulling *next;
};
/** Lets blobs of other nodes be read; before there is a thread. */
int rs_pulls_start(struct rs_member *m, struct sc_err *err);
/** Pulls bytes of a sealed blob; any thread. */
void rs_member_pull(struct rs_member *m, struct rs_pulling *p);
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
/** Listens; messages go to `message`. */
int rs_peers_start(struct rs_member *m,
		   void (*message)(void *arg, const struct rs_node_id *peer, const struct rs_net_frame *f),
		   struct sc_err *err);
void rs_peers_send(struct rs_member *m, const struct rs_act *a);
/** Takes the list of nodes that was asked for. */
void rs_peers_take(struct rs_member *m, const struct meta_answer *answer);
/** Gives an address; NULL: it is not known, and asked for. */
const char *rs_peers_address(struct rs_member *m, uint32_t node);

#endif
