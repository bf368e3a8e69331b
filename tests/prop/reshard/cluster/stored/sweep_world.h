/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The world of test_sweep.c: an etcd, who makes versions and jobs there, and what becomes of them.
 *
 *	sweep_etcd.c	transactions
 *	sweep_world.c	promises, and all that happens beside the sweep
 *	test_sweep.c	what the sweep calls; schedules
 */
#ifndef TESTS_SWEEP_WORLD_H
#define TESTS_SWEEP_WORLD_H

#include "reshard/cluster/stored/sweep_i.h"
#include "tests/prop/reshard/cluster/stored/sweep_etcd.h"

#define OBJECTS 4096
#define SETS 16u
#define PAYLOADS 8u
#define LAYOUT (SETS + PAYLOADS)	/* objects that all versions share come first */
#define JOBS 16u
#define VERSIONS 16u
#define NODES 2u			/* that may have parts in versions */
#define KEEP 2u
#define MAKERS 3u			/* the last one is of the program before */
#define OLD 2u
#define ROUNDS 12
#define MOST 6000			/* schedules, until one has broken a promise without a rule */

struct truth {				/* of one history of etcd */
	uint64_t jobs;			/* the last number that was given */
	struct job {
		uint64_t id;		/* 0: there is none */
		bool removed;
		unsigned head, version[VERSIONS + 1];	/* objects, by number of the version; 0: it has no record any more */
	} job[JOBS];
};

struct world {
	uint64_t random;
	struct fake_etcd etcd, copy;
	struct truth now, then;		/* then: as of the copy */
	bool has_copy, faults;
	unsigned restored;		/* how often */
	unsigned objects;
	struct object {
		unsigned names[2], nr;
		unsigned parts;		/* a bit for each node */
	} object[OBJECTS];
	uint64_t knows[JOBS][NODES];	/* the newest version of a job that a node has saved */
	struct maker {
		enum { IDLE, ASKED, PUTS } state;
		unsigned job, head, at, object[4], put[4], nr;
		uint64_t head_mod, sweep;
		char *sweeping;
	} maker[MAKERS];
	unsigned sweeper, lives[2];	/* who asks; in which history it sends, or 0: it is dead */
	struct rs_sweep sweep[2];
	bool nested;
	unsigned first;		/* a job */
	void (*at)(void);	/* called before the first transaction that removes a key of this kind */
	enum meta_key_kind at_kind;
	unsigned long rounds, commits, removed, again;
	char broken[200];
};
extern struct world w;

/* --- test_sweep.c --- */
unsigned pick(unsigned below);
void broken(const char *fmt, ...) __attribute__((format(printf, 1, 2)));
/** A node makes a round of the sweep, 0 or 1. */
void sweep(unsigned who);

/* --- sweep_world.c --- */
struct edit {
	struct meta_compare is[8];
	struct meta_op ops[8];
	struct meta_txn txn;
};
struct meta_op *add(struct edit *e, int what, struct meta_key k);
bool done(struct edit *e);	/* false: a compare did not hold */
struct got {
	uint64_t mod;		/* 0: it is absent */
	char *text;		/* of SWEEPING and ENDED */
};
void on_got(void *arg, const struct meta_answer *answer);
struct meta_hash name_of(unsigned object);
struct meta_key object_key(unsigned object);
struct meta_key key(enum meta_key_kind kind, uint64_t job, uint64_t nr);
bool has(struct meta_key k);
unsigned spoken(void);		/* the cluster's protocol */
void check(void);		/* all promises but the last */
void make_job(void);
void remove_a_job(void);
void make_version(unsigned job, unsigned set);
void copy(void);		/* of etcd's data, */
void restore(void);		/* which is put in its place */
void speak(void);
void happens(void);
void forget_makers(unsigned first);

#endif
