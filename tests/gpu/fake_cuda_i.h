/* SPDX-License-Identifier: Apache-2.0 */
/* The insides of the stand-in. */
#ifndef TEST_FAKE_CUDA_I_H
#define TEST_FAKE_CUDA_I_H

#include "tests/gpu/fake_cuda.h"

#include <cuda_runtime_api.h>

#define FAKE_CLOCKS 32		/* 0: the host; then streams */
#define FAKE_ASKS_MAX 5000	/* whoever asks so often has no deadline */

struct fake_clock {
	uint32_t at[FAKE_CLOCKS];
};

enum fake_kind { FAKE_COPY, FAKE_SET, FAKE_KERNEL, FAKE_GROUP, FAKE_WAIT, FAKE_MARK };

struct fake_op {
	enum fake_kind kind;
	struct CUstream_st *stream;
	struct fake_clock clock;
	struct fake_op *next, *all;
	unsigned nth;		/* of those that began; 0: it has not */
	bool ran;
	char name[60];
	struct fake_op *dep;	/* of a wait */
	void *to;		/* of a copy */
	const void *from;
	size_t bytes;
	enum cudaMemcpyKind copy;
	int value;		/* of a set */
	void *args[4];		/* of a kernel */
	unsigned blocks, threads;
	struct ncclComm *comm;	/* of a group; NULL: it was aborted */
	struct fake_transfer *transfers;
	unsigned nr_transfers, group;	/* which one of all, from 1 */
	bool began;
};

struct CUstream_st {
	unsigned clock_nr, ops;
	int device;
	bool open;
	struct fake_clock clock;
	struct fake_op *head, *tail;
};

struct CUevent_st {
	struct fake_op *op;	/* NULL: it was never recorded */
	int device;
	bool timed;
};

struct fake_device {
	enum fake_order order;
	uint64_t random;
	int device;		/* that the thread has set; -1: none */
	struct fake_machine what;
	cudaError_t sticky;
	struct fake_clock host;
	struct CUstream_st *streams[FAKE_CLOCKS - 1];
	unsigned nr_streams, events, libraries, asked;
	struct fake_area *areas;
	size_t bytes[FAKE_DEVICES + 1], most[FAKE_DEVICES + 1];	/* pinned, of each device */
	struct fake_op *ops;
	struct ncclComm *comms;
	enum fake_peer peer;
	unsigned peer_nth, groups;
	unsigned nets;		/* communicators with ranks of other processes: these take time */
	unsigned calls, ran, fail_call, fail_run, hang_run;
	struct fake_findings found;
};
extern struct fake_device fake;

uint64_t fake_random(void);
void fake_find(unsigned *counter, const char *fmt, ...) __attribute__((format(printf, 2, 3)));
void fake_join(struct fake_clock *a, const struct fake_clock *b);
/** `at` NULL: allocates it. */
struct fake_area *fake_area_new(void *at, size_t bytes, int device);
struct fake_area *fake_area_of(const void *p);
struct fake_op *fake_enqueue(struct CUstream_st *s, enum fake_kind kind, const char *name);
/** Runs the head of a stream, if it may; false: nothing happened. */
bool fake_step(struct CUstream_st *s);
/** Runs what the order runs by itself at a call. */
void fake_some(void);
/** Goes on with a group at the head of its stream; true: something happened.  Sets op->ran when it has ended. */
bool fake_step_group(struct fake_op *op);
void fake_nccl_end(void);
/** What the host is told that asks whether an operation has ended. */
cudaError_t fake_ask(struct fake_op *op);

#endif
