/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A stand-in for the CUDA runtime and NCCL, by their own headers: the functions that reshard/engine/gpu_helper calls, on the CPU.  What of
 * CUDA it does not have does not link; NCCL's are found as those of the library are (linked with --wrap=dlopen, dlsym, dlerror).
 *
 * No thread and no clock: what is enqueued runs late (when the host asks for it again and again), eagerly (as soon as it
 * may) or at random, as a seed decides, so a failure comes again.
 *
 * Each access of host, copies and kernels has a vector clock.  Two that overlap, of which one writes, and that neither a
 * stream nor an event nor a wait of the host puts in order, are a race in every order of running: it is named by both.
 * Memory that nobody has written is poison, and who reads it is named; so is who uses memory that is not there.
 */
#ifndef TEST_FAKE_CUDA_H
#define TEST_FAKE_CUDA_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum fake_order { FAKE_LATE, FAKE_EAGER, FAKE_RANDOM, FAKE_ORDERS };

#define FAKE_DEVICES 4
#define FAKE_DEVICE_BYTES ((size_t)1 << 30)	/* of each */

/** Begins with devices that nobody has used, and no finding. */
void fake_begin(enum fake_order order, uint64_t seed);

/** What the machine has; fake_begin() gives it FAKE_DEVICES that are as they should be, and an NCCL. */
struct fake_machine {
	int driver, devices, major;	/* CUDA's version of the driver, 0: there is none; compute capability */
	bool prohibited;
	int nccl;			/* its version; 0: there is none */
};
void fake_machine(const struct fake_machine *machine);

/** What the last rank of each communicator does: it does not join; does not begin the nth group, in silence or so that the
 *  others hear of it; is late with everything. */
enum fake_peer { FAKE_PEER_GOOD, FAKE_PEER_NEVER, FAKE_PEER_DIES, FAKE_PEER_IS_HEARD, FAKE_PEER_LATE };
void fake_peer(enum fake_peer what, unsigned nth);
/** Groups that were handed over. */
unsigned fake_groups(void);

struct fake_findings {
	unsigned races, deadlocks, misuse, leaks;
	char first[300];	/* the first of them, in words */
};
/** Those so far. */
struct fake_findings fake_found(void);
/** Tells whether all that was enqueued has run. */
bool fake_rests(void);
/** The most bytes that were there at a time, of a device, or pinned. */
size_t fake_most(bool pinned);
/** Ends: what is still there is a leak. */
struct fake_findings fake_end(void);

/** The host's own accesses of pinned memory. */
void fake_host_uses(const void *p, size_t bytes, bool write, const char *what);

/** The nth call from the begin fails; 0: none.  What ends something ends it all the same. */
void fake_fail_call(unsigned nth);
/** The nth copy, kernel or exchange fails, and all devices with it: they do nothing any more. */
void fake_fail_run(unsigned nth);
/** The nth copy, kernel or exchange does not end; 0: all do, also the one that did not. */
void fake_hang_run(unsigned nth);
/** Tells whether what does not end is an exchange: it ends when it is aborted. */
bool fake_hangs_exchange(void);
/** So many calls could have failed, so many copies, kernels and exchanges began. */
unsigned fake_calls(void);
unsigned fake_ran(void);

/** What a handle of memory has in it. */
struct fake_handle {
	uint64_t magic, pid, at, bytes;
};
#define FAKE_HANDLE_MAGIC 0x656c646e6168u

/* --- for kernels --- */

struct fake_op;

/** Memory of the device, or pinned. */
struct fake_area {
	unsigned char *at;
	size_t bytes;
	uint8_t *written;	/* of each byte: somebody has */
	int device;		/* -1: pinned, of the host */
	bool gone;
	struct fake_area *next;
};

struct fake_kernel {
	const char *name;
	unsigned nr_args;
	size_t args_bytes[4];
	/** False: it touched what is not there, and the device faults. */
	bool (*run)(struct fake_op *op, void **args, unsigned blocks, unsigned threads, uint64_t seed);
};
/** The kernel that libraries have; whoever is linked has it. */
extern const struct fake_kernel fake_the_kernel;

/** Notes an access of a kernel; NULL, which is named: there is no such memory of the device. */
struct fake_area *fake_uses(struct fake_op *op, const void *p, size_t bytes, bool write);
/** Names something wrong with what a kernel does. */
void fake_misuse(struct fake_op *op, const char *what);

#endif
