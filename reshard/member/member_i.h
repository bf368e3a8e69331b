/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What the files of a member share.
 *
 *	member.c	start, end, what control files say
 *	boot.c		the node's number, the cluster's secret
 *	head.c		the kind "etcd" of head.h: commands of this node
 *	worker.c	the worker: what the core wants of jobs, one after the other
 *	take.c		jobs and versions that other nodes made
 *	node.c		the node's thread: etcd, the net and the core
 *	pull.c		bytes of other nodes
 *	peers.c		addresses of nodes, messages to them, bytes for them
 *	jobs.c		jobs that all nodes have, as this node sees them
 *	objects.c	what versions are made of, to etcd and from there
 *	ask.c		requests of other threads to the node's
 * Each calls only those below it.
 *
 * Threads: `thread` has etcd, net and core to itself, but for rs_core_current(), which is called under `lock`.
 * `worker` alone holds gates of jobs.  `lock` is held for moments; nobody calls catalog, etcd or a job under it.
 */
#ifndef RS_MEMBER_I_H
#define RS_MEMBER_I_H

#include "meta/catalog/member.h"
#include "meta/member/etcd.h"
#include "reshard/cluster/core.h"
#include "reshard/upkeep/upkeep_i.h"
#include "reshard/member/member.h"
#include "reshard/net/net.h"
#include "reshard/objects/objects.h"

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
	uint64_t row;			/* token of a commit that the daemon before had prepared, 0: none */
	uint64_t refused;		/* token of a command that this node has refused: */
	char why[512];
	struct rs_move *move;		/* a command of this node, or NULL */
	struct sc_err stuck;		/* why a version cannot be taken; code 0: nothing */
};

/* Of the core to the worker, in order. */
struct rs_todo {
	struct rs_act act;		/* without what it points to */
	char *text;			/* of a job's row, NULL: none */
	struct meta_hash layout;	/* TODO_FIRST; text: the topology */
	enum { TODO_ACT, TODO_JOB, TODO_FIRST } what;
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

/* --- node.c --- */
int rs_node_start(struct rs_member *m, struct sc_err *err);
void rs_node_stop(struct rs_member *m);
/** Gives an event to the core and does what it answers; the node's thread. */
void rs_node_give(struct rs_member *m, const struct rs_event *e);
/** Takes a message of another node: for struct rs_net_config; `arg` is the member. */
void rs_node_message(void *arg, const struct rs_node_id *peer, const struct rs_net_frame *f);

/* --- take.c: the worker --- */
int rs_take_job(struct rs_member *m, uint64_t id, char *text, struct sc_err *err);
int rs_take_first(struct rs_member *m, const struct rs_todo *todo, struct sc_err *err);
int rs_take_version(struct rs_member *m, struct rs_shared *j, uint64_t nr, struct sc_err *err);
/** Text of a job's row. */
void rs_job_row_text(const struct meta_job_row *row, struct sc_buf *to);

/* --- worker.c --- */
int rs_follow_start(struct rs_member *m, struct sc_err *err);
void rs_follow_stop(struct rs_member *m);

/* --- head.c --- */
extern const struct rs_head_ops rs_head_etcd;
/** Wakes who waits for a command: the core knows its outcome.  The node's thread. */
void rs_move_done(struct rs_member *m, const struct rs_act *a);
/** Saves the version of a command of this node; the worker. */
int rs_move_save(struct rs_member *m, struct rs_move *move, struct sc_err *err);

/* --- boot.c --- */
/** Finds or makes the cluster's and this node's keys, by m->etcd, before there is a thread. */
int rs_member_boot(struct rs_member *m, struct sc_err *err);

#endif
