/* SPDX-License-Identifier: Apache-2.0 */
#include "meta/model/order.h"

#include "meta/base/mem.h"

#define ROUNDS_LARGE 8		/* four of each half */
#define BITS_LARGE 14		/* small halves mix slowly: twice the rounds below */

static uint64_t key_of(uint64_t seed, uint64_t epoch, uint64_t use)
{
	return sc_mix64(sc_mix64(sc_mix64(seed + 0x9e3779b97f4a7c15u) + epoch) + use);
}

/* Makes a permutation of [0, nr); `nr` is at least 1. */
static void permute(struct meta_perm *perm, uint64_t nr, uint64_t key)
{
	unsigned bits = 2;

	while (bits < 64 && (nr - 1) >> bits)
		bits++;
	perm->nr = nr;
	perm->left = bits / 2;
	perm->right = bits - perm->left;
	perm->rounds = bits < BITS_LARGE ? META_PERM_ROUNDS : ROUNDS_LARGE;
	for (int i = 0; i < META_PERM_ROUNDS; i++)
		perm->key[i] = sc_mix64(key += 0x9e3779b97f4a7c15u);
}

/* Takes the top `bits` of a product, which are mixed best. */
static uint64_t round_of(uint64_t x, uint64_t key, unsigned bits)
{
	x = (x ^ key) * 0x9e3779b97f4a7c15u;
	x = (x ^ x >> 32) * 0xbf58476d1ce4e5b9u;
	return (x ^ x >> 32) * 0x94d049bb133111ebu >> (64 - bits);
}

/* Returns the number to which a permutation takes i, i < nr; each `tweak` makes another permutation. */
static uint64_t permuted(const struct meta_perm *perm, uint64_t tweak, uint64_t i)
{
	const unsigned l = perm->left, r = perm->right;

	do {
		uint64_t left = i >> r, right = i & ((UINT64_C(1) << r) - 1);

		for (int k = 0; k < perm->rounds; k += 2) {
			left ^= round_of(right, perm->key[k] + tweak, l);
			right ^= round_of(left, perm->key[k + 1] + tweak, r);
		}
		i = left << r | right;
	} while (i >= perm->nr);
	return i;
}

void meta_order_init(struct meta_order *o, uint64_t nr, enum meta_shuffle shuffle, uint64_t block,
		     uint64_t seed, uint64_t epoch)
{
	*o = (struct meta_order){.nr = nr, .shuffle = nr ? shuffle : META_SHUFFLE_NONE, .block = block};
	if (o->shuffle == META_SHUFFLE_GLOBAL) {
		permute(&o->all, nr, key_of(seed, epoch, 0));
	} else if (o->shuffle == META_SHUFFLE_BLOCK) {
		o->full = nr / block;
		/* the short block lies anywhere among the others */
		o->short_slot = key_of(seed, epoch, 1) % (o->full + 1);
		if (o->full)
			permute(&o->all, o->full, key_of(seed, epoch, 2));
		permute(&o->inside, block, key_of(seed, epoch, 3));
		if (nr % block)
			permute(&o->inside_last, nr % block, key_of(seed, epoch, 4));
	}
}

static uint64_t block_at(const struct meta_order *o, uint64_t position)
{
	uint64_t rest = o->nr % o->block, border = o->short_slot * o->block, nr;

	if (position >= border && position - border < rest)
		return o->full * o->block + permuted(&o->inside_last, 0, position - border);
	if (position >= border)
		position -= rest;
	nr = permuted(&o->all, 0, position / o->block);
	return nr * o->block + permuted(&o->inside, sc_mix64(nr), position % o->block);
}

uint64_t meta_order_at(const struct meta_order *o, uint64_t position)
{
	switch (o->shuffle) {
	case META_SHUFFLE_GLOBAL:
		return permuted(&o->all, 0, position);
	case META_SHUFFLE_BLOCK:
		return block_at(o, position);
	default:
		return position;
	}
}
