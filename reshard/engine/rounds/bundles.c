/* SPDX-License-Identifier: Apache-2.0 */
#include "reshard/engine/rounds/bundles.h"

#include <assert.h>
#include <stdlib.h>
#include <string.h>

#include "reshard/engine/rounds/spans.h"

/* A tensor of a file that images read.  Joined sources form a tree, whose root lies before the others. */
struct source {
	struct source *up;		/* NULL: not known yet; a root: itself */
	uint32_t file;
	uint64_t at;
};

struct bundling {
	const struct rs_rounds_options *options;
	struct rs_bundles *set;
	struct sc_map files, sources;	/* by struct place */
	struct {
		size_t nr, room;
		struct rs_rounds_file *at;
	} seen;
	struct {
		size_t nr, room;
		struct bundle_copy {
			struct source *of;
			struct rs_bundle_copy c;
		} *at;
	} copies;
	struct rs_spans spans;
};

struct place {			/* no padding: a key */
	const void *ops, *arg;
	uint64_t id, at;
};

/* --- sources --- */

static struct source *root_of(struct source *s)
{
	while (s->up != s) {
		s->up = s->up->up;
		s = s->up;
	}
	return s;
}

static void join(struct source *a, struct source *b)
{
	a = root_of(a);
	b = root_of(b);
	if (a->file < b->file || (a->file == b->file && a->at < b->at))
		b->up = a;
	else
		a->up = b;
}

/* Gives the number of a file, in the order in which files are met; -1: out of memory. */
static int64_t file_of(struct bundling *b, const struct place *key, const struct rs_place *place,
		       struct rs_bytes *bytes)
{
	const size_t key_bytes = offsetof(struct place, at);
	uintptr_t nr = (uintptr_t)sc_map_get(&b->files, (const char *)key, key_bytes);
	struct rs_rounds_file f = {place, bytes, 0};

	if (nr)
		return (int64_t)nr - 1;
	if (b->options->reader)
		f.reader = b->options->reader(b->options->arg, place);
	assert(f.reader < b->options->peers);
	if (sc_vec_push(&b->seen, f) < 0 ||
	    sc_map_put(&b->files, (const char *)key, key_bytes, (void *)(uintptr_t)b->seen.nr) < 0)
		return -1;
	return (int64_t)b->seen.nr - 1;
}

static struct source *source_of(struct bundling *b, const struct rs_image *im, uint32_t i)
{
	const struct rs_place *p = &im->sources.at[i].place;
	struct place *key = sc_arena_alloc(&b->set->arena, sizeof(*key));
	struct source *s;
	int64_t file;

	if (!key)
		return NULL;
	*key = (struct place){p->ops, p->arg, p->id, p->at};
	s = sc_map_make(&b->sources, (const char *)key, sizeof(*key), &b->set->arena, sizeof(*s));
	if (!s || s->up)
		return s;
	file = file_of(b, key, p, im->mapped.bytes[i]);
	if (file < 0)
		return NULL;
	*s = (struct source){s, (uint32_t)file, p->at};
	return s;
}

/* --- copies --- */

static int add_gather(struct bundling *b, const struct rs_gather *g, struct source *const *sources, uint32_t image,
		      uint64_t at)
{
	for (uint32_t i = 0; i < g->nr; i++) {
		struct source *s = sources[g->copies[i].source];
		struct rs_bundle_copy c = {&g->copies[i], s->file, image, s->at, at};

		join(s, sources[g->copies[0].source]);
		if (sc_vec_push(&b->copies, (struct bundle_copy){s, c}) < 0)
			return -1;
	}
	return 0;
}

static int add_image(struct bundling *b, const struct rs_image *im, uint32_t image)
{
	struct source **sources = sc_zalloc_array(im->sources.nr + 1, sizeof(*sources));
	int rc = sources ? 0 : -1;

	assert(!im->same_as && im->mapped.data);
	for (uint32_t i = 0; rc == 0 && i < im->sources.nr; i++) {
		sources[i] = source_of(b, im, i);
		rc = sources[i] ? 0 : -1;
	}
	for (uint32_t i = 0; rc == 0 && i < im->frame.nr; i++) {
		const struct rs_piece *p = &im->frame.pieces[i];

		if (p->kind == RS_PIECE_TENSOR)
			rc = add_gather(b, &im->gathers[p->tensor], sources, image, p->at);
	}
	sc_sys.release(sources);
	return rc;
}

static int by_tensor(const void *a, const void *b)
{
	const struct bundle_copy *x = a, *y = b;

	if (x->of != y->of) {
		if (x->of->file != y->of->file)
			return x->of->file < y->of->file ? -1 : 1;
		return x->of->at < y->of->at ? -1 : 1;
	}
	if (x->c.copy->row != y->c.copy->row)
		return x->c.copy->row < y->c.copy->row ? -1 : 1;
	if (x->c.target != y->c.target)
		return x->c.target < y->c.target ? -1 : 1;
	return x->c.to + x->c.copy->to < y->c.to + y->c.copy->to ? -1 : 1;
}

/* --- is it fit for rounds? --- */

uint64_t rs_bundle_reach(const struct rs_copy *c, const uint64_t *stride)
{
	uint64_t n = c->run;

	for (int k = 0; k < c->nr; k++)
		n += (c->ext[k] - 1) * stride[k];
	return n;
}

/* Tells whether a copy's rows are known, and lie one behind the other in its source and in its target. */
static bool has_rows(const struct rs_copy *c)
{
	struct rs_copy inner = *c;

	if (!c->rows)
		return false;
	if (!c->nr)
		return true;
	inner.ext[0] = 1;
	return c->to_stride[0] >= rs_bundle_reach(&inner, inner.to_stride) &&
	       c->from_stride[0] >= rs_bundle_reach(&inner, inner.from_stride);
}

/* Orders copies by what they read. */
static int by_source(const void *a, const void *b)
{
	const struct rs_bundle_copy *x = a, *y = b;
	const size_t n = x->copy->nr * sizeof(x->copy->ext[0]);
	int c;

	if (x->source != y->source)
		return x->source < y->source ? -1 : 1;
	if (x->from + x->copy->from != y->from + y->copy->from)
		return x->from + x->copy->from < y->from + y->copy->from ? -1 : 1;
	if (x->copy->run != y->copy->run)
		return x->copy->run < y->copy->run ? -1 : 1;
	if (x->copy->nr != y->copy->nr)
		return x->copy->nr < y->copy->nr ? -1 : 1;
	c = memcmp(x->copy->ext, y->copy->ext, n);
	return c ? c : memcmp(x->copy->from_stride, y->copy->from_stride, n);
}

/* Tells whether reads of whole extents are at most twice the bytes that copies need of them; bytes that several need
 * count once.  Sorts the copies. */
static int is_dense(struct bundling *b, struct rs_bundle_copy *copies, size_t nr, bool *ret)
{
	uint64_t needed = 0, read = 0;

	qsort(copies, nr, sizeof(*copies), by_source);
	b->spans.nr = 0;
	for (size_t i = 0; i < nr; i++) {
		const struct rs_bundle_copy *c = &copies[i];
		const uint64_t lo = c->from + c->copy->from;

		if (i && by_source(&copies[i - 1], c) == 0)
			continue;
		needed += rs_copy_bytes(c->copy);
		if (sc_vec_push(&b->spans, (struct rs_span){.file = c->source, .lo = lo,
				.hi = lo + rs_bundle_reach(c->copy, c->copy->from_stride)}) < 0)
			return -1;
	}
	rs_spans_merge(&b->spans);
	for (size_t i = 0; i < b->spans.nr; i++)
		read += b->spans.at[i].hi - b->spans.at[i].lo;
	*ret = read <= 2 * needed;
	return 0;
}

/* Tells whether copies are fit for rounds: 1, 0, or -1 (out of memory).  Sorts the copies. */
static int is_fit(struct bundling *b, struct rs_bundle_copy *copies, size_t nr)
{
	uint64_t bytes = 0;
	bool runs = b->options->run_bytes != 0, dense = false;

	for (size_t i = 0; i < nr; i++) {
		if (!has_rows(copies[i].copy))
			return 0;
		runs = runs && !copies[i].copy->nr;
		bytes += rs_copy_bytes(copies[i].copy);
	}
	if (runs && bytes / nr >= b->options->run_bytes)
		return 0;
	return is_dense(b, copies, nr, &dense) < 0 ? -1 : dense;
}

/* --- all of it --- */

/* Adds copies [first, end), which are all of one logical tensor, as a bundle, if they are fit for rounds. */
static int add_bundle(struct bundling *b, size_t first, size_t end)
{
	struct rs_bundles *set = b->set;
	struct rs_bundle *to = &set->at[set->nr];
	const size_t nr = end - first;
	int fit;

	*to = (struct rs_bundle){.row = UINT64_MAX, .nr = nr, .copies = set->copies + set->nr_copies};
	for (size_t i = 0; i < nr; i++)
		to->copies[i] = b->copies.at[first + i].c;
	fit = is_fit(b, to->copies, nr);
	if (fit <= 0)
		return fit;
	for (size_t i = 0; i < nr; i++) {
		const struct rs_copy *c;

		to->copies[i] = b->copies.at[first + i].c; /* by row again */
		c = to->copies[i].copy;
		to->row = sc_min_u64(to->row, c->row);
		to->end = sc_max_u64(to->end, c->row + c->rows);
	}
	set->nr_copies += nr;
	set->nr++;
	return 0;
}

static int group(struct bundling *b)
{
	struct rs_bundles *set = b->set;
	size_t nr = b->copies.nr, tensors = 0;
	int rc = 0;

	for (size_t i = 0; i < nr; i++)
		b->copies.at[i].of = root_of(b->copies.at[i].of);
	if (nr)
		qsort(b->copies.at, nr, sizeof(*b->copies.at), by_tensor);
	for (size_t i = 0; i < nr; i++)
		tensors += i == 0 || b->copies.at[i].of != b->copies.at[i - 1].of;
	set->at = sc_arena_array(&set->arena, tensors + 1, sizeof(*set->at));
	set->copies = sc_zalloc_array(nr + 1, sizeof(*set->copies));
	if (!set->at || !set->copies)
		return -1;
	for (size_t i = 0, next; rc == 0 && i < nr; i = next) {
		for (next = i + 1; next < nr && b->copies.at[next].of == b->copies.at[i].of; next++)
			;
		rc = add_bundle(b, i, next);
	}
	return rc;
}

int rs_bundles_make(const struct rs_image *const *images, uint32_t nr, const struct rs_rounds_options *options,
		   struct rs_bundles *ret, struct sc_err *err)
{
	struct bundling b = {.options = options, .set = ret};
	int rc = 0;

	for (uint32_t i = 0; rc == 0 && i < nr; i++)
		rc = add_image(&b, images[i], i);
	if (rc == 0)
		rc = group(&b);
	ret->files = b.seen.at;
	ret->nr_files = (uint32_t)b.seen.nr;
	sc_vec_done(&b.copies);
	sc_vec_done(&b.spans);
	sc_map_done(&b.files);
	sc_map_done(&b.sources);
	return rc < 0 ? sc_nomem(err) : 0;
}

void rs_bundles_done(struct rs_bundles *set)
{
	sc_sys.release(set->files);
	sc_sys.release(set->copies);
	sc_arena_done(&set->arena);
	*set = (struct rs_bundles){0};
}
