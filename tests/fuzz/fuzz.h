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

#define FUZZ_PARSERS(X) X(safetensors) X(torch) X(dcp) X(pickle) X(shards) X(layout) X(topology) X(spec) X(lines) X(records) X(npy) X(tar) X(tfrecord) X(megatron) X(wire) X(frame) X(etcd)

/* A parser gets n bytes: 0 accepted, else refused; a refusal has a sentence.  And what it takes, of eight kinds, is added to b. */
#define FUZZ_DECLARE(name)                                                                                             \
	int fuzz_##name(const uint8_t *p, size_t n);                                                                   \
	void seed_##name(struct bytes *b, unsigned which);
FUZZ_PARSERS(FUZZ_DECLARE)

/** Adds n bytes to b. */
void add(struct bytes *b, const void *p, size_t n);

/** A random number below n. */
unsigned pick(size_t n);

#endif
