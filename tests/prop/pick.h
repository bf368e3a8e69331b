/* SPDX-License-Identifier: Apache-2.0 */
/* Random numbers of the property tests: the same ones for the same seed, on every machine. */
#ifndef PROP_PICK_H
#define PROP_PICK_H

#include <stdint.h>

static uint64_t random_state;

static unsigned pick(unsigned n)
{
	random_state = random_state * 6364136223846793005u + 1442695040888963407u;
	return (unsigned)(random_state >> 33) % n;
}

static inline uint64_t draw(void)
{
	return (uint64_t)pick(1u << 31) << 33 ^ (uint64_t)pick(1u << 31) << 16 ^ pick(1u << 16);
}

#endif
