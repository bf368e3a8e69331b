/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A large cluster, of which one node is real: the planner makes the plan of its ranks, and the protocol's state machine
 * is told what all other nodes would say.  Nodes have eight ranks each, of a model of 405 billion parameters whose
 * weights and optimizer are cut by tp, pp and dp, so no two ranks have a file in common.
 */
#ifndef TESTS_MANY_H
#define TESTS_MANY_H

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include "meta/base/mem.h"
#include "meta/member/keys.h"

#define RANKS 8u		/* of a node */
#define FILE_NAME "model.safetensors"

#define MUST(call)                                                                                                     \
	do {                                                                                                           \
		if ((call) < 0)                                                                                        \
			fail_msg("%s: %s", #call, err.msg);                                                            \
	} while (0)

/* --- test_many.c --- */
/** Bytes that the program has from its allocator. */
extern size_t many_bytes;

/* --- many_plan.c --- */
struct many_plan {
	size_t regions, bytes;		/* that it reads from others or from here */
	size_t all;			/* bytes that it keeps to read its ranks' files: these, their headers, sources, names */
	uint64_t moved;			/* bytes that its ranks need and it has not */
	uint64_t distinct;		/* those, what several of its ranks need counted once */
};
/* What a topology moves between nodes, by the planner. */
struct many_cost {
	unsigned ranks;
	uint64_t bound;
	uint64_t *into, *out;		/* bytes that each node takes, and gives */
};
struct many_job;
/** Makes the job at tp=8 pp=16 and as many dp as there are nodes for; a multiple of 16. */
struct many_job *many_job_new(unsigned nodes);
void many_job_free(struct many_job *j);
unsigned many_ranks(const struct many_job *j);
/** Plans the ranks of a node at another topology.  False: it has none there. */
bool many_plan(struct many_job *j, const char *topology, unsigned node, struct many_plan *ret);
/** Has the planner say what a topology moves; many_cost_done() ends it. */
void many_cost(struct many_job *j, const char *topology, unsigned nodes, struct many_cost *ret);
void many_cost_done(struct many_cost *c);
/** Appends lines of all tensors, as a set has them. */
void many_tensors(const struct many_job *j, struct sc_buf *buf);
/** Bytes of a rank's file. */
uint64_t many_file_bytes(const struct many_job *j, uint32_t rank);
const char *many_topology(const struct many_job *j);
extern const char many_layout[];

/* --- many_etcd.c --- */
/** Adds up what etcd has of such a job with so many versions, and prints it by kinds of keys. */
uint64_t many_etcd(const struct many_job *j, unsigned nodes, unsigned versions);

/* --- many_core.c --- */
struct many_change {
	unsigned to, from;		/* messages to the node that commits, and of another one */
	unsigned txns, records;		/* that change something; what each watch is told */
	size_t told;			/* its bytes */
	double core_ms;			/* processor time of the committer's state machine, and the longest event */
	double longest_ms;
	size_t members, settle;		/* bytes of the list; of what a settle reads */
};
void many_change(unsigned nodes, struct many_change *ret);

#endif
