/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Takes rows of tensors while they fit, then lays out what was taken: extents into windows, and boxes between them.
 *
 * Invariants, which tests/prop/reshard/engine/rounds/test_rounds.c checks of each round:
 *   1. extents, parts and boxes are inside of their windows, and no window is used beyond window_bytes;
 *   2. each byte of `out` is in one box, or `zero` is set and it is in none;
 *   3. `out` of all rounds, and the rest, have every byte of every image once;
 *   4. the bytes that a peer sends to another are those that the other receives from it.
 */
#include "reshard/engine/rounds/rounds.h"

#include <assert.h>
#include <string.h>

#include "reshard/engine/rounds/bundles.h"
#include "reshard/engine/rounds/spans.h"

#define ALIGN 16u
/* Bytes that a packed box may take beyond its own: it begins at any byte of 16, and the next part at a multiple of
 * 16. */
#define PACK_EXTRA (3u * ALIGN)
#define DONE_MERGE_MIN 4096u	/* spans that were written are merged when there are so many more */

/* A copy that is cut to the rows of a round; its `from` and `to` are places in files. */
struct cut {
	struct rs_copy copy;
	uint32_t source, target, reader, writer;
	uint64_t packed;	/* its place in the part for its writer; if it is another than the reader */
};

struct taken {
	const struct rs_bundle *of;
	uint64_t row, end;
};

/* Bytes in a peer's windows, and entries in its tables. */
struct size {
	uint64_t in, out, send, recv;
	uint64_t copies, packs, unpacks;
};

struct rs_rounds {
	struct rs_rounds_options options;
	uint32_t nr_images;
	const struct rs_image *const *images;
	struct rs_bundles bundles;
	size_t next;			/* the tensor to go on with */
	uint64_t row;			/* from this row on */
	/* of the round that is made */
	struct {
		size_t nr, room;
		struct taken *at;
	} taken;
	struct {
		size_t nr, room;
		struct cut *at;
	} cuts;
	struct rs_spans in, out;
	struct rs_extent *ins, *outs;	/* of each of these spans */
	struct size *sizes, *more;	/* of each peer: of what was taken, of what may be */
	uint64_t *pairs;		/* bytes of each peer for each */
	struct sc_arena arena;
	struct rs_round round;
	/* of all rounds so far */
	struct rs_spans done;
	size_t done_merged;		/* spans when they were merged last */
	struct {
		size_t nr, room;
		struct rs_extent *at;
	} rest;
};

/* --- cutting --- */

/* Adds the copies of a tensor's rows [row, end), and the extents that they read and write. */
static int cut(struct rs_rounds *r, const struct rs_bundle *of, uint64_t row, uint64_t end)
{
	for (size_t i = 0; i < of->nr && of->copies[i].copy->row < end; i++) {
		const struct rs_bundle_copy *b = &of->copies[i];
		struct cut c = {.source = b->source, .target = b->target};
		const struct rs_copy *p = &c.copy;

		if (!rs_copy_rows(b->copy, row, end - row, &c.copy))
			continue;
		c.copy.from += b->from;
		c.copy.to += b->to;
		c.reader = r->bundles.files[b->source].reader;
		c.writer = r->options.writers ? r->options.writers[b->target] : 0;
		assert(c.writer < r->options.peers);
		if (sc_vec_push(&r->cuts, c) < 0 ||
		    sc_vec_push(&r->in, (struct rs_span){c.reader, b->source, p->from,
				p->from + rs_bundle_reach(p, p->from_stride), 0}) < 0 ||
		    sc_vec_push(&r->out, (struct rs_span){c.writer, b->target, p->to,
				p->to + rs_bundle_reach(p, p->to_stride), rs_copy_bytes(p)}) < 0)
			return -1;
	}
	return 0;
}

static void cut_nothing(struct rs_rounds *r)
{
	r->cuts.nr = r->in.nr = r->out.nr = 0;
}

/* Measures how much of each peer's windows and tables the rows [row, end) take at most. */
static int measure(struct rs_rounds *r, const struct rs_bundle *of, uint64_t row, uint64_t end)
{
	memset(r->more, 0, r->options.peers * sizeof(*r->more));
	cut_nothing(r);
	if (cut(r, of, row, end) < 0)
		return -1;
	rs_spans_merge(&r->in);
	rs_spans_merge(&r->out);
	for (size_t i = 0; i < r->in.nr; i++)
		r->more[r->in.at[i].peer].in += r->in.at[i].hi - r->in.at[i].lo + ALIGN - 1;
	for (size_t i = 0; i < r->out.nr; i++)
		r->more[r->out.at[i].peer].out += r->out.at[i].hi - r->out.at[i].lo + ALIGN - 1;
	for (size_t i = 0; i < r->cuts.nr; i++) {
		const struct cut *c = &r->cuts.at[i];
		const uint64_t bytes = rs_copy_bytes(&c->copy) + PACK_EXTRA;

		if (c->reader == c->writer) {
			r->more[c->reader].copies++;
			continue;
		}
		r->more[c->reader].packs++;
		r->more[c->reader].send += bytes;
		r->more[c->writer].unpacks++;
		r->more[c->writer].recv += bytes;
	}
	return 0;
}

/* Tells whether the rows that were measured last fit beside those that were taken. */
static bool fits(const struct rs_rounds *r)
{
	const uint64_t bytes = r->options.window_bytes, boxes = r->options.boxes_max;

	for (uint32_t p = 0; p < r->options.peers; p++) {
		const struct size *a = &r->sizes[p], *b = &r->more[p];

		if (a->in + b->in > bytes || a->out + b->out > bytes || a->send + b->send > bytes ||
		    a->recv + b->recv > bytes || a->copies + b->copies > boxes || a->packs + b->packs > boxes ||
		    a->unpacks + b->unpacks > boxes)
			return false;
	}
	return true;
}

/* --- taking --- */

/* Takes the rows that were measured last into the round. */
static int take(struct rs_rounds *r, const struct rs_bundle *of, uint64_t row, uint64_t end)
{
	for (uint32_t p = 0; p < r->options.peers; p++) {
		struct size *a = &r->sizes[p];
		const struct size *b = &r->more[p];

		*a = (struct size){a->in + b->in, a->out + b->out, a->send + b->send, a->recv + b->recv,
				   a->copies + b->copies, a->packs + b->packs, a->unpacks + b->unpacks};
	}
	return sc_vec_push(&r->taken, (struct taken){of, row, end});
}

/* Takes as many rows from r->row on as fit an empty round, but not all.  *ret is how many; 0: not even one row fits. */
static int take_some(struct rs_rounds *r, const struct rs_bundle *of, uint64_t *ret)
{
	uint64_t fit = 0, too_many = of->end - r->row;

	while (fit + 1 < too_many) {
		uint64_t rows = fit + (too_many - fit) / 2;

		if (measure(r, of, r->row, r->row + rows) < 0)
			return -1;
		if (fits(r))
			fit = rows;
		else
			too_many = rows;
	}
	*ret = fit;
	if (!fit)
		return 0;
	return measure(r, of, r->row, r->row + fit) < 0 ? -1 : take(r, of, r->row, r->row + fit);
}

static void go_on(struct rs_rounds *r, uint64_t row)
{
	r->row = row;
	while (r->next < r->bundles.nr && r->row >= r->bundles.at[r->next].end)
		if (++r->next < r->bundles.nr)
			r->row = r->bundles.at[r->next].row;
}

/* Takes tensors while they fit; if the first does not, takes some rows of it.  Passes over a row that is too long. */
static int take_round(struct rs_rounds *r)
{
	bool full = false;
	int rc = 0;

	memset(r->sizes, 0, r->options.peers * sizeof(*r->sizes));
	r->taken.nr = 0;
	while (rc == 0 && !full && r->next < r->bundles.nr) {
		const struct rs_bundle *of = &r->bundles.at[r->next];
		uint64_t rows = of->end - r->row;

		rc = measure(r, of, r->row, of->end);
		if (rc == 0 && fits(r)) {
			rc = take(r, of, r->row, of->end);
		} else if (r->taken.nr) {
			break;
		} else if (rc == 0) {
			rc = take_some(r, of, &rows);
			full = rows != 0;
			rows = rows ? rows : 1;
		}
		go_on(r, r->row + rows);
	}
	return rc;
}

/* --- laying out --- */

/* Places bytes behind the `*used` ones, at a place that has the same remainder by 16 as `like`. */
static uint64_t put(uint64_t *used, uint64_t like, uint64_t bytes)
{
	const uint64_t at = *used + ((like - *used) & (ALIGN - 1));

	*used = at + bytes;
	return at;
}

/* Makes the extents of spans; NULL: out of memory. */
static struct rs_extent *put_extents(struct rs_rounds *r, const struct rs_spans *spans, bool out)
{
	struct rs_extent *all = sc_arena_array(&r->arena, spans->nr + 1, sizeof(*all));

	for (size_t i = 0; all && i < spans->nr; i++) {
		const struct rs_span *s = &spans->at[i];
		struct rs_share *of = &r->round.shares[s->peer];
		uint32_t *nr = out ? &of->nr_out : &of->nr_in;

		if ((*nr)++ == 0)
			*(out ? &of->out : &of->in) = &all[i];
		all[i] = (struct rs_extent){.file = s->file, .at = s->lo, .bytes = s->hi - s->lo};
		all[i].zero = out && s->held < all[i].bytes;
		all[i].window = put(out ? &of->out_bytes : &of->in_bytes, s->lo, all[i].bytes);
	}
	return all;
}

/* Turns the places of a copy in files into places in windows. */
static void into_windows(struct rs_rounds *r, struct cut *c)
{
	const struct rs_span *in = rs_spans_find(&r->in, c->reader, c->source, c->copy.from);
	const struct rs_span *out = rs_spans_find(&r->out, c->writer, c->target, c->copy.to);
	const struct rs_extent *from = &r->ins[in - r->in.at], *to = &r->outs[out - r->out.at];

	c->copy.from += from->window - from->at;
	c->copy.to += to->window - to->at;
}

/* Places the boxes that go to other peers in their parts, and counts the boxes of each table. */
static void count(struct rs_rounds *r)
{
	const uint32_t peers = r->options.peers;

	memset(r->pairs, 0, sizeof(*r->pairs) * peers * peers);
	for (size_t i = 0; i < r->cuts.nr; i++) {
		struct cut *c = &r->cuts.at[i];
		struct rs_share *from = &r->round.shares[c->reader], *to = &r->round.shares[c->writer];

		into_windows(r, c);
		if (from == to) {
			from->nr_copies++;
			continue;
		}
		from->nr_packs++;
		to->nr_unpacks++;
		c->packed = put(&r->pairs[c->reader * peers + c->writer], c->copy.to, rs_copy_bytes(&c->copy));
	}
}

/* Places the parts of each peer one behind the other, each at a multiple of 16. */
static int put_parts(struct rs_rounds *r)
{
	const uint32_t peers = r->options.peers;

	for (uint32_t p = 0; p < peers; p++) {
		struct rs_share *s = &r->round.shares[p];

		s->sends = sc_arena_array(&r->arena, peers, sizeof(*s->sends));
		s->recvs = sc_arena_array(&r->arena, peers, sizeof(*s->recvs));
		s->copies = sc_arena_array(&r->arena, s->nr_copies + 1, sizeof(*s->copies));
		s->packs = sc_arena_array(&r->arena, s->nr_packs + 1, sizeof(*s->packs));
		s->unpacks = sc_arena_array(&r->arena, s->nr_unpacks + 1, sizeof(*s->unpacks));
		if (!s->sends || !s->recvs || !s->copies || !s->packs || !s->unpacks)
			return -1;
		s->nr_copies = s->nr_packs = s->nr_unpacks = 0;
		for (uint32_t q = 0; q < peers; q++) {
			const uint64_t send = r->pairs[p * peers + q], recv = r->pairs[q * peers + p];

			s->sends[q] = (struct rs_part){send ? put(&s->send_bytes, 0, send) : 0, send};
			s->recvs[q] = (struct rs_part){recv ? put(&s->recv_bytes, 0, recv) : 0, recv};
		}
	}
	return 0;
}

/* Gives the strides of a box as it travels: dense, row-major. */
static void pack(const struct rs_copy *c, uint64_t *stride)
{
	uint64_t bytes = c->run;

	for (int k = c->nr - 1; k >= 0; k--) {
		stride[k] = bytes;
		bytes *= c->ext[k];
	}
}

static void put_boxes(struct rs_rounds *r)
{
	for (size_t i = 0; i < r->cuts.nr; i++) {
		const struct cut *c = &r->cuts.at[i];
		struct rs_share *from = &r->round.shares[c->reader], *to = &r->round.shares[c->writer];
		struct rs_copy *p, *u;

		if (from == to) {
			from->copies[from->nr_copies++] = c->copy;
			continue;
		}
		p = &from->packs[from->nr_packs++];
		u = &to->unpacks[to->nr_unpacks++];
		*p = *u = c->copy;
		p->to = from->sends[c->writer].at + c->packed;
		u->from = to->recvs[c->reader].at + c->packed;
		pack(p, p->to_stride);
		pack(u, u->from_stride);
	}
}

static int lay_out(struct rs_rounds *r)
{
	sc_arena_done(&r->arena);
	r->round = (struct rs_round){r->options.peers, NULL};
	r->round.shares = sc_arena_array(&r->arena, r->options.peers, sizeof(*r->round.shares));
	if (!r->round.shares)
		return -1;
	cut_nothing(r);
	for (size_t i = 0; i < r->taken.nr; i++)
		if (cut(r, r->taken.at[i].of, r->taken.at[i].row, r->taken.at[i].end) < 0)
			return -1;
	rs_spans_merge(&r->in);
	rs_spans_merge(&r->out);
	r->ins = put_extents(r, &r->in, false);
	r->outs = put_extents(r, &r->out, true);
	if (!r->ins || !r->outs)
		return -1;
	count(r);
	if (put_parts(r) < 0)
		return -1;
	put_boxes(r);
	for (uint32_t p = 0; p < r->round.nr; p++) {
		const struct rs_share *s = &r->round.shares[p];

		assert(s->in_bytes <= r->sizes[p].in && s->out_bytes <= r->sizes[p].out);
		assert(s->send_bytes <= r->sizes[p].send && s->recv_bytes <= r->sizes[p].recv);
	}
	return 0;
}

/* --- what was written --- */

static int remember(struct rs_rounds *r)
{
	for (size_t i = 0; i < r->out.nr; i++) {
		struct rs_span s = r->out.at[i];

		s.peer = 0;
		if (sc_vec_push(&r->done, s) < 0)
			return -1;
	}
	if (r->done.nr > 2 * r->done_merged + DONE_MERGE_MIN) {
		rs_spans_merge(&r->done);
		r->done_merged = r->done.nr;
	}
	return 0;
}

static int add_rest(struct rs_rounds *r, uint32_t image, uint64_t at, uint64_t end)
{
	struct rs_extent e = {.file = image, .at = at, .bytes = end - at};

	return at == end ? 0 : sc_vec_push(&r->rest, e);
}

int rs_rounds_rest(struct rs_rounds *r, const struct rs_extent **ret, uint32_t *ret_nr, struct sc_err *err)
{
	size_t i = 0;

	assert(r->next == r->bundles.nr);
	r->rest.nr = 0;
	rs_spans_merge(&r->done);
	for (uint32_t image = 0; image < r->nr_images; image++) {
		uint64_t at = 0;

		for (; i < r->done.nr && r->done.at[i].file == image; i++) {
			if (add_rest(r, image, at, r->done.at[i].lo) < 0)
				return sc_nomem(err);
			at = r->done.at[i].hi;
		}
		if (add_rest(r, image, at, r->images[image]->bytes) < 0)
			return sc_nomem(err);
	}
	*ret = r->rest.at;
	*ret_nr = (uint32_t)r->rest.nr;
	return 0;
}

/* --- life --- */

int rs_rounds_new(const struct rs_image *const *images, uint32_t nr, const struct rs_rounds_options *options,
		  struct rs_rounds **ret, struct sc_err *err)
{
	const uint32_t peers = options->peers;
	struct rs_rounds *r = sc_zalloc(sizeof(*r));
	int rc;

	assert(peers >= 1);
	if (!r)
		return sc_nomem(err);
	r->options = *options;
	r->images = images;
	r->nr_images = nr;
	r->sizes = sc_zalloc_array(peers, sizeof(*r->sizes));
	r->more = sc_zalloc_array(peers, sizeof(*r->more));
	r->pairs = sc_zalloc_array((size_t)peers * peers, sizeof(*r->pairs));
	rc = r->sizes && r->more && r->pairs ? 0 : sc_nomem(err);
	if (rc == 0)
		rc = rs_bundles_make(images, nr, &r->options, &r->bundles, err);
	if (rc < 0) {
		rs_rounds_free(r);
		return rc;
	}
	r->row = r->bundles.nr ? r->bundles.at[0].row : 0;
	*ret = r;
	return 0;
}

struct rs_rounds *rs_rounds_free(struct rs_rounds *r)
{
	if (!r)
		return NULL;
	rs_bundles_done(&r->bundles);
	sc_arena_done(&r->arena);
	sc_vec_done(&r->taken);
	sc_vec_done(&r->cuts);
	sc_vec_done(&r->in);
	sc_vec_done(&r->out);
	sc_vec_done(&r->done);
	sc_vec_done(&r->rest);
	sc_sys.release(r->sizes);
	sc_sys.release(r->more);
	sc_sys.release(r->pairs);
	sc_sys.release(r);
	return NULL;
}

const struct rs_rounds_file *rs_rounds_files(const struct rs_rounds *r, uint32_t *ret_nr)
{
	*ret_nr = r->bundles.nr_files;
	return r->bundles.files;
}

int rs_rounds_next(struct rs_rounds *r, const struct rs_round **ret, struct sc_err *err)
{
	if (take_round(r) < 0)
		return sc_nomem(err);
	*ret = NULL;
	if (!r->taken.nr)
		return 0;
	if (lay_out(r) < 0 || remember(r) < 0)
		return sc_nomem(err);
	*ret = &r->round;
	return 0;
}
