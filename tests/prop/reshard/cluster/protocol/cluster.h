/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A cluster in memory: N cores of reshard/cluster/protocol, an etcd, the net between them, clocks that are slow, and faults.
 * Everything that is on its way lies in one pool, of which a schedule takes any: delays have no order and no bound.
 *
 * The promises, by the names of docs/cluster-protocol.md, are checked where they would be broken; world.broken then says which.
 */
#ifndef TESTS_CLUSTER_H
#define TESTS_CLUSTER_H

#include <setjmp.h>

#include "reshard/cluster/protocol/core.h"
#include "reshard/cluster/protocol/rules.h"

#define NODES_MAX 4
#define JOBS_MAX 2
#define RANGES 2		/* of bytes of a version; each has a home and a copy */
#define VERSIONS_MAX 64
#define OBJECTS 5		/* of a job; version n is made of object n % OBJECTS */
#define DEAD_MAX 16
#define MS INT64_C(1000000)
#define FRESH (100 * MS)
#define DRIFT_PPM 200000
#define SLACK (5 * MS)
#define TTL (330 * MS)

enum node_state { UP, PAUSED, DOWN, GONE };	/* GONE: down for good */

struct node {
	struct rs_core *core;
	enum node_state state;
	unsigned life;
	bool etcd_link, peer_link, renew_link;
	bool slow_watch;
	int64_t offset, rate_ppm;	/* of its clock */
	bool watching;
	size_t watch_at;		/* changes that it has been told */
	struct {			/* in memory */
		bool gate;
		uint64_t gate_token, asked, frozen;	/* asked: what is checked now; frozen: prepared for it */
		bool landed[RANGES];
		uint64_t using, storage;	/* sets; 0: none */
		uint64_t prev;			/* head before the one it learned last */
		uint64_t sweep;			/* revision of the last announcement when it asked for objects */
		struct death {
			uint64_t since, revision;
		} dead[DEAD_MAX];		/* what may be read still */
		unsigned nr_dead;
		uint64_t told;			/* revision that was SEEN */
	} now[JOBS_MAX];
	struct {			/* on disk */
		uint64_t head, storage, prepared, base;
		bool dirty;
		uint64_t dirty_on;
		bool stuck;		/* (rule left_out_ends) the row stays, and by that the gate */
		bool have[VERSIONS_MAX + 1][RANGES];
	} disk[JOBS_MAX];
	uint64_t lease;
	uint64_t listed;		/* epoch in which it was a member last */
};

struct kv {
	struct meta_key key;
	uint64_t create, mod, lease;
	struct meta_value value;
};
struct lease {
	uint64_t id;
	unsigned node;
	int64_t ends;
	bool alive;
};
struct version {		/* of the truth */
	uint64_t token, base;
	enum meta_command_kind change;
	unsigned parts;			/* a bit for each node whose files are in it */
	bool presented;			/* a commit that saved no tensor: its storage is that of the version below */
};

/* From this seed on commits are made by the nodes that are there: one that has prepared it, and is cut off before it
 * says so, is left out.  Before it all nodes are homes, and have to have prepared. */
#define LEFT_OUT_SEEDS (UINT64_C(1) << 32)

/*
 * What a schedule is mostly about; else most would get to few of the corners.
 *	SWIFT		much happens while F passes; a node that has just learned of a head dies and comes back
 *	LOSSY		answers are lost, requests that were given up are applied late
 *	RENEWALS	a node's renewals are lost, and nothing else
 *	SETTLES		topologies while files come together
 *	DISKS		a node that is ready loses its disk
 *	DELAYS		a node's watch and its confirmed reads take long; proposals are given up soon
 *	MEMORY		allocations of the cores fail
 */
enum mood { SWIFT, LOSSY, RENEWALS, SETTLES, DISKS, DELAYS, MEMORY, ANY, MOODS };

enum item_kind { REQUEST, ANSWER, MESSAGE, LOCAL };
struct item {
	enum item_kind kind;
	unsigned node, life;	/* of the sender; ANSWER, LOCAL: of the receiver */
	bool zombie;		/* its sender has stopped waiting */
	bool is_fresh;		/* ANSWER: says how new what the node knows is */
	int64_t born;
	struct rs_act act;	/* REQUEST, MESSAGE, LOCAL */
	struct rs_event event;	/* ANSWER */
	struct sc_arena arena;
};

#define QUEUE_MAX 64
struct queued {
	struct rs_event event;
	struct meta_set_name set;
	uint32_t nodes[NODES_MAX];
	struct meta_hash files[NODES_MAX];
};

struct weights {
	unsigned time, item, watch, open, hold, write, command, fault, repair, pull;
	unsigned lose, late, far;	/* percent of requests; far: of times that are long */
	bool commits;			/* commands are commits of files, too */
};

struct world {
	uint64_t random;
	unsigned nodes, jobs;
	int64_t time;
	struct node node[NODES_MAX];
	struct weights w;
	enum mood mood;
	unsigned laggard;	/* DELAYS: that node */
	bool leaves_out;	/* LEFT_OUT_SEEDS */
	bool quiet;		/* no faults, no losses, first come first served */
	unsigned faults, holds, disks;
	unsigned long steps;

	/* etcd */
	bool etcd_up;
	uint64_t revision;
	struct {
		struct kv *at;
		size_t nr, room;
	} kv;
	struct {
		struct meta_record *at;
		size_t nr, room;
	} changes;		/* below all/ */
	struct {
		struct meta_record *at;
		size_t nr, room;
	} nodes_past;		/* of nodes/, for a server that lags */
	struct {
		struct lease *at;
		size_t nr, room;
	} leases;
	struct sc_arena arena;	/* values */

	struct {
		struct item **at;
		size_t nr, room;
	} pool;

	bool busy;		/* a core's actions are being done */
	struct queued queue[QUEUE_MAX];
	unsigned queued;

	struct item *in_hand;	/* is being taken */

	/* in one schedule of four: a sweep of objects, and deaths that are seen late */
	struct {
		bool on;
		uint64_t random;
		uint64_t object[JOBS_MAX][OBJECTS];	/* revision at which each was put, 0: it is not there */
		uint64_t died[JOBS_MAX][VERSIONS_MAX + 1];	/* revision at which a set lost its last name */
		enum { SWEEP_IDLE, SWEEP_LOOKED, SWEEP_ANNOUNCED, SWEEP_LOOKED_AGAIN } state;
		struct {
			bool is;
			uint64_t mod;
		} goes[JOBS_MAX][OBJECTS], said[JOBS_MAX][OBJECTS];
		uint64_t announced;
		unsigned long removed, put_again;
	} sweep;

	/* the truth */
	struct version log[JOBS_MAX][VERSIONS_MAX + 1];
	uint64_t head[JOBS_MAX], seen[JOBS_MAX], tokens;
	bool failed[4096];
	unsigned long commits, done, refused, opens, settles, deletes, writes, seals, crashes, asides, shows, starved, left_out;

	jmp_buf out;
	char broken[300];
	char trace[40][120];	/* the last steps */
	unsigned long traced;
	bool aloud;		/* print it, too */
};

/* --- cluster.c: schedules --- */
void world_init(struct world *w, uint64_t seed);
void world_done(struct world *w);
/** One step of a random schedule; and parts of a step: leases end, one thing arrives, a node is told changes, cores are
 *  asked what their time has come for. */
void world_step(struct world *w);
void world_expire(struct world *w);
void world_take_item(struct world *w, size_t at);
void world_take_watch(struct world *w, unsigned i);
void world_wake(struct world *w);
unsigned pick(struct world *w, unsigned below);
void broken(struct world *w, const char *fmt, ...) __attribute__((format(printf, 2, 3), noreturn));
void trace(struct world *w, const char *fmt, ...) __attribute__((format(printf, 2, 3)));

/* --- cluster_rest.c --- */
/** Runs a random schedule, then one without faults; 0, or a promise is broken, as w->broken says. */
int world_run(struct world *w, unsigned long steps);

/* --- cluster_node.c: what a daemon would do around its core --- */
void node_start(struct world *w, unsigned i);
void node_crash(struct world *w, unsigned i);
void node_event(struct world *w, unsigned i, const struct rs_event *e);
void memory_may_fail(void);	/* from now on, where a schedule says so */
void node_local(struct world *w, const struct item *it);
int64_t node_clock(const struct world *w, unsigned i);
uint64_t node_current(const struct world *w, unsigned i, unsigned job);
void node_pull(struct world *w, unsigned i, unsigned job);
void node_sync(struct world *w, unsigned i, unsigned job);
struct meta_hash set_hash(unsigned job, uint64_t nr);
uint64_t set_nr(const struct meta_hash *h);
bool needs(const struct world *w, unsigned i, unsigned range, uint64_t version);
unsigned home(const struct world *w, unsigned range, uint64_t version);
struct item *pool_add(struct world *w, enum item_kind kind, unsigned node);
void pool_drop(struct world *w, size_t at);

/* --- cluster_sweep.c: objects, of which versions are made --- */
/** One step of a sweep, or of deaths that are seen late; it draws no number of the schedule's. */
void sweep_step(struct world *w);
uint64_t sweep_announced(struct world *w);	/* revision of the last announcement, 0: there was none */
/** A node asks whether etcd has what a new version is made of, and puts that if it has not. */
void sweep_ask(struct world *w, unsigned i, unsigned job, uint64_t nr);
void sweep_check(struct world *w, unsigned job, uint64_t nr);	/* a version is committed */
void sweep_died(struct world *w, unsigned i, unsigned job, uint64_t since, uint64_t revision);
/** A set's files go: nobody may read it. */
void sweep_deleted(struct world *w, unsigned job, uint64_t set);
void sweep_named(struct world *w, unsigned job);	/* the storages have changed */

/* --- cluster_users.c: on any node, at any time --- */
void user_open(struct world *w, unsigned i, unsigned job);
void user_hold(struct world *w, unsigned i, unsigned job);	/* a file, or closes it */
void user_write(struct world *w, unsigned i, unsigned job);
void user_command(struct world *w, unsigned i, unsigned job, bool topology);

/* --- cluster_etcd.c --- */
struct kv *kv_find(struct world *w, const struct meta_key *key);
bool registered(struct world *w, unsigned node, uint64_t epoch);
/** Does what a request asks for, and makes its answer in `answer`. */
void etcd_apply(struct world *w, struct item *request, struct item *answer);
void etcd_expire(struct world *w, struct lease *l);
void etcd_begin(struct world *w);
/** Checks what holds in every state. */
void check_durable(struct world *w);
void etcd_put(struct world *w, const struct meta_op *o);	/* at a revision of its own */

#endif
