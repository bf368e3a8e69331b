/* SPDX-License-Identifier: Apache-2.0 */
#include "meta/model/deal.h"

#include <inttypes.h>

uint64_t meta_deal_length(const struct meta_deal *deal, uint64_t nr)
{
	return deal->drop_last ? nr - nr % deal->batch : nr;
}

int meta_deal_seek(const struct meta_deal *deal, uint64_t nr, uint64_t consumed, struct meta_at *ret,
		   struct sc_err *err)
{
	uint64_t length = meta_deal_length(deal, nr);

	*ret = (struct meta_at){0};
	if (length == 0)
		return 0;
	ret->epoch = consumed / length;
	ret->position = consumed % length;
	if (ret->position % deal->batch)
		return sc_fail(err, SC_E_COMMAND,
			       "%" PRIu64 " samples of epoch %" PRIu64 " end inside global batch %" PRIu64
			       " (global_batch=%" PRIu64 "); give a position at the end of a batch",
			       ret->position, ret->epoch, ret->position / deal->batch, deal->batch);
	return 0;
}

/* Returns how many samples a rank has of a batch of `nr`. */
static uint64_t per_rank(const struct meta_deal *deal, uint64_t nr, uint32_t ranks)
{
	return deal->uneven == META_UNEVEN_PAD ? nr / ranks + (nr % ranks != 0) : nr / ranks;
}

int meta_share_init(const struct meta_deal *deal, uint64_t nr, uint64_t begin, uint32_t ranks,
		    uint32_t rank, struct meta_share *s, struct sc_err *err)
{
	uint64_t left = meta_deal_length(deal, nr) - begin;

	if (deal->uneven == META_UNEVEN_REFUSE && deal->batch % ranks)
		return sc_fail(err, SC_E_TOPOLOGY, "%u data-parallel ranks do not divide global_batch=%" PRIu64
			       "; choose another number, or add the dataset with uneven=pad or uneven=drop", ranks,
			       deal->batch);
	*s = (struct meta_share){.begin = begin, .batch = deal->batch, .ranks = ranks, .rank = rank,
				 .strided = deal->strided, .full = left / deal->batch, .tail = left % deal->batch,
				 .per = per_rank(deal, deal->batch, ranks)};
	s->tail_per = per_rank(deal, s->tail, ranks);
	s->tail_from = rank * s->tail_per;
	if (deal->uneven == META_UNEVEN_REFUSE) {
		uint64_t rest = s->tail % ranks;

		s->tail_from += rank < rest ? rank : rest;
		s->tail_per += rank < rest;
	}
	return 0;
}

uint64_t meta_share_count(const struct meta_share *s)
{
	return s->full * s->per + s->tail_per;
}

uint64_t meta_share_at(const struct meta_share *s, uint64_t i, uint64_t *ret_run)
{
	uint64_t b = s->per ? i / s->per : 0, at, size = s->batch, per = s->per, from = s->rank * s->per, k;

	if (b >= s->full) {
		b = s->full;
		size = s->tail;
		per = s->tail_per;
		from = s->tail_from;
	}
	k = i - b * s->per;
	at = s->strided ? s->rank + k * s->ranks : from + k;
	*ret_run = s->strided && s->ranks > 1 ? 1 : per - k;
	if (at >= size) { /* padding: the batch's first samples again */
		at %= size;
		*ret_run = 1;
	} else if (*ret_run > size - at) {
		*ret_run = size - at;
	}
	/* one rank alone has whole batches, one after another */
	if (s->ranks == 1)
		*ret_run += (b < s->full ? (s->full - 1 - b) * s->batch + s->tail : 0);
	return s->begin + b * s->batch + at;
}
