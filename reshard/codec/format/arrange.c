/* SPDX-License-Identifier: Apache-2.0 */
#include "reshard/codec/format/arrange.h"

#include <stdlib.h>
#include <string.h>

#define SKEWS (SC_DATA_ALIGN / RS_SKEW_UNIT)
#define BRIDGES_MAX 64	/* of a file: an open must not take long, whatever the sizes are */
#define SIZES_MAX 32	/* different ones that are tried for a bridge */

/* Tensors by a number below SKEWS, each list in canonical order. */
struct shelf {
	uint32_t *at;
	uint32_t next[SKEWS], end[SKEWS];
};

struct arrangement {
	const struct rs_tensor_at *tensors;	/* canonical */
	uint32_t nr;
	uint32_t *places;	/* 2 nr; indexes in file order are in [front, back), which grows to both sides */
	uint32_t front, back;
	bool *placed;
	struct shelf whole;	/* by skew */
	struct shelf odd;	/* what can shift others, by how many units of a block */
	uint64_t left[SKEWS];	/* bytes of large whole ones of this skew that have no place yet */
};

static uint64_t bytes_of(const struct rs_tensor_at *t)
{
	return t->end - t->begin;
}

static bool is_whole(const struct rs_tensor_at *t)
{
	return bytes_of(t) % SC_DATA_ALIGN == 0;
}

/* Orders wide types before narrow ones, so that every element is aligned. */
static int canonical(const void *a, const void *b)
{
	const struct rs_tensor_at *x = a, *y = b;

	if (is_whole(x) != is_whole(y))
		return is_whole(x) ? -1 : 1;
	return x->dtype != y->dtype ? (int)y->dtype - (int)x->dtype : strcmp(x->name, y->name);
}

/* Returns the list of a shelf to which a tensor belongs; SKEWS: to none. */
static uint32_t key_of(const struct rs_tensor_at *t, bool whole)
{
	if (is_whole(t) != whole || (!whole && bytes_of(t) % RS_SKEW_UNIT))
		return SKEWS;
	return (uint32_t)(whole ? t->skew : bytes_of(t) % SC_DATA_ALIGN) / RS_SKEW_UNIT;
}

static void shelve(const struct arrangement *o, struct shelf *s, bool whole)
{
	uint32_t at = 0;

	for (uint32_t i = 0; i < o->nr; i++) {
		uint32_t k = key_of(&o->tensors[i], whole);

		if (k < SKEWS)
			s->end[k]++;
	}
	for (uint32_t k = 0; k < SKEWS; k++) {
		s->next[k] = at;
		at += s->end[k];
		s->end[k] = s->next[k];
	}
	for (uint32_t i = 0; i < o->nr; i++) {
		uint32_t k = key_of(&o->tensors[i], whole);

		if (k < SKEWS)
			s->at[s->end[k]++] = i;
	}
}

static void place(struct arrangement *o, uint32_t i, bool in_front)
{
	o->placed[i] = true;
	o->places[in_front ? --o->front : o->back++] = i;
}

static void place_group(struct arrangement *o, uint32_t skew, bool in_front)
{
	struct shelf *s = &o->whole;

	while (s->next[skew] < s->end[skew])
		place(o, s->at[in_front ? --s->end[skew] : s->next[skew]++], in_front);
	o->left[skew] = 0;
}

/*
 * Places as few odd tensors as lie between skew `from` and one with whole tensors left, behind what has a
 * place or in front of it, and then those; returns their skew.  SKEWS: there are none.  Breadth first over skews.
 */
static uint32_t bridge(struct arrangement *o, uint32_t from, bool in_front)
{
	uint16_t came[SKEWS], by[SKEWS], queue[SKEWS], sizes[SIZES_MAX];
	uint32_t nr_sizes = 0, tail = 0;
	struct shelf *odd = &o->odd;

	for (uint16_t v = 0; v < SKEWS && nr_sizes < SIZES_MAX; v++)
		if (odd->next[v] < odd->end[v])
			sizes[nr_sizes++] = v;
	memset(came, 0xff, sizeof(came));
	came[from] = (uint16_t)from;
	queue[tail++] = (uint16_t)from;
	for (uint32_t head = 0; head < tail; head++) {
		for (uint32_t i = 0; i < nr_sizes; i++) {
			uint32_t shift = in_front ? SKEWS - sizes[i] : sizes[i];
			uint32_t to = (queue[head] + shift) % SKEWS, used = 1;

			if (came[to] != UINT16_MAX)
				continue;
			for (uint32_t p = queue[head]; p != from; p = came[p])
				used += by[p] == sizes[i];
			if (used > odd->end[sizes[i]] - odd->next[sizes[i]])
				continue;
			came[to] = queue[head];
			by[to] = sizes[i];
			queue[tail++] = (uint16_t)to;
			if (!o->left[to])
				continue;
			for (uint32_t p = to; p != from; p = came[p])
				place(o, odd->at[odd->next[by[p]]++], in_front);
			place_group(o, to, in_front);
			return to;
		}
	}
	return SKEWS;
}

/* Places the tensors in groups; *skew is where the first one begins. */
static int group(struct arrangement *o, struct rs_tensor_at *tensors, uint32_t *skew, struct sc_err *err)
{
	struct rs_tensor_at *sorted = sc_zalloc_array(o->nr, sizeof(*sorted));
	uint32_t *indexes = sc_zalloc_array(o->nr, 4 * sizeof(*indexes));
	bool *placed = sc_zalloc_array(o->nr, sizeof(*placed));
	uint32_t bridges = 0;
	int rc = sorted && indexes && placed ? 0 : sc_nomem(err);

	if (rc == 0) {
		memcpy(sorted, tensors, o->nr * sizeof(*sorted));
		o->tensors = sorted;
		o->places = indexes;
		o->front = o->back = o->nr;
		o->whole.at = indexes + 2 * (size_t)o->nr;
		o->odd.at = indexes + 3 * (size_t)o->nr;
		o->placed = placed;
		shelve(o, &o->whole, true);
		shelve(o, &o->odd, false);
		place_group(o, *skew, false);
		for (uint32_t last = *skew; bridges < BRIDGES_MAX && last < SKEWS; bridges++)
			last = bridge(o, last, false);
		for (uint32_t next; bridges < BRIDGES_MAX && (next = bridge(o, *skew, true)) < SKEWS; bridges++)
			*skew = next;
		for (uint32_t i = 0; i < o->nr; i++)
			if (!placed[i])
				place(o, i, false);
		for (uint32_t i = 0; i < o->nr; i++)
			tensors[i] = sorted[o->places[o->front + i]];
	}
	sc_sys.release(placed);
	sc_sys.release(indexes);
	sc_sys.release(sorted);
	return rc;
}

/*
 * Chooses the skew to begin with, in units.  Sums of the odd tensors' sizes are multiples of their greatest common
 * divisor, and skews that differ by such a multiple can be had in one file.  Of these groups of skews the one with most
 * bytes is taken, and in it the most common skew.
 */
static uint32_t first_skew(const struct arrangement *o, const struct rs_tensor_at *tensors)
{
	uint64_t within[SKEWS] = {0};
	uint32_t step = SKEWS, best = 0;

	for (uint32_t i = 0; i < o->nr; i++) {
		uint32_t k = key_of(&tensors[i], false), rest;

		for (; k < SKEWS && k; k = rest) {
			rest = step % k;
			step = k;
		}
	}
	for (uint32_t k = 0; k < SKEWS; k++)
		within[k % step] += o->left[k];
	for (uint32_t k = 0; k < SKEWS; k++)
		if (within[k % step] > within[best % step] ||
		    (within[k % step] == within[best % step] && o->left[k] > o->left[best]))
			best = k;
	return best;
}

int rs_arrange_tensors(struct rs_tensor_at *tensors, uint32_t nr, uint32_t *ret_skew, struct sc_err *err)
{
	struct arrangement o = {.nr = nr};
	uint32_t groups = 0, skew;
	int rc;

	for (uint32_t i = 0; i < nr; i++) {
		struct rs_tensor_at *t = &tensors[i];

		t->begin = 0;
		if (!meta_tensor_bytes(t->dtype, &t->shape, &t->end))
			return sc_fail(err, SC_E_LIMIT, "safetensors: tensor '%s': the size overflows 64 bits",
				t->name);
		if (is_whole(t) && t->end >= SC_CLONE_BYTES_MIN)
			o.left[t->skew / RS_SKEW_UNIT] += t->end;
	}
	if (nr)
		qsort(tensors, nr, sizeof(*tensors), canonical);
	for (uint32_t k = 0; k < SKEWS; k++)
		groups += o.left[k] > 0;
	skew = groups ? first_skew(&o, tensors) : nr ? tensors[0].skew / RS_SKEW_UNIT : 0;
	rc = groups > 1 ? group(&o, tensors, &skew, err) : 0;
	*ret_skew = skew * RS_SKEW_UNIT;
	return rc;
}
