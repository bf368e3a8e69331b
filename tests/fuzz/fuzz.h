/* SPDX-License-Identifier: Apache-2.0 */
/* What the files of this test share. */
#ifndef TESTS_FUZZ_H
#define TESTS_FUZZ_H

#include <stddef.h>
#include <stdint.h>

#define INPUT_MAX (64u << 10)

struct bytes {
	size_t n;
	uint8_t at[INPUT_MAX];
};

/* The targets, each with its share: how many executions take about a tenth of a second of one core, with the sanitizers. */
#define FUZZ_PARSERS(X) \
	X(safetensors, 2000) X(torch, 1100) X(dcp, 220) X(pickle, 3700) X(shards, 3800) X(layout, 550) \
	X(topology, 2900) X(spec, 6400) X(lines, 6900) X(records, 7200) X(npy, 3200) X(tar, 1400) \
	X(tfrecord, 8800) X(megatron, 4700) X(wire, 900) X(frame, 3800) X(etcd, 200)

/* A parser gets n bytes: 0 accepted, else refused; a refusal has a sentence.  And what it takes, of eight kinds, is added to b. */
#define FUZZ_DECLARE(name, share)                                                                                             \
	int fuzz_##name(const uint8_t *p, size_t n);                                                                   \
	void seed_##name(struct bytes *b, unsigned which);
FUZZ_PARSERS(FUZZ_DECLARE)

/** Adds n bytes to b. */
void add(struct bytes *b, const void *p, size_t n);

/** A random number below n. */
unsigned pick(size_t n);

#endif
