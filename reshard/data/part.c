/* SPDX-License-Identifier: Apache-2.0 */
#include "reshard/data/part.h"

#include <string.h>

#include "meta/base/guard.h"
#include "reshard/data/index.h"

#define STRIDE 32		/* a read walks at most so many samples to its first: 2 us */
#define TAR_END 1024		/* two blocks of zeros end an archive */
#define TOUCHED_MAX 64		/* sources remembered in a read; then they are checked at once */

static uint64_t sample_at(const struct rs_part *p, uint64_t i, uint64_t *ret_run)
{
	uint64_t position = meta_share_at(&p->share, i, ret_run);

	if (p->order.shuffle != META_SHUFFLE_NONE)
		*ret_run = 1;
	*ret_run = sc_min_u64(*ret_run, p->nr - i);
	return meta_order_at(&p->order, position);
}

/* Arguments of a function that reads tables or samples: it runs under the guard. */
struct guarded {
	struct rs_part *part;
	int (*fn)(struct rs_part *part, void *arg, struct sc_err *err);
	void *arg;
	struct sc_err *err;
	int rc;
};

static void run(void *arg)
{
	struct guarded *g = arg;

	g->rc = g->fn(g->part, g->arg, g->err);
}

static int run_guarded(struct rs_part *p, int (*fn)(struct rs_part *part, void *arg, struct sc_err *err), void *arg,
		       struct sc_err *err)
{
	struct guarded g = {p, fn, arg, err, 0};
	const void *lost;

	return sc_guard_run(run, &g, &lost) ? g.rc : rs_corpus_lost(p->corpus, lost, err);
}

/* Finds the extent of sample i and of up to *nr that follow it. */
static int extent_at(struct rs_part *p, uint64_t i, uint64_t *nr, struct rs_data_extent *ret, struct sc_err *err)
{
	uint64_t run, sample = sample_at(p, i, &run);

	*nr = sc_min_u64(*nr, run);
	return rs_corpus_extent(p->corpus, sample, nr, ret, err);
}

static uint64_t extent_bytes(const struct rs_data_extent *e)
{
	return e->end - e->begin + e->bare;
}

/* --- making --- */

/* Adds up the sizes of a whole stride; prefetches its places in the table before the first is needed. */
static int measure_stride(struct rs_part *p, uint64_t i, uint64_t nr, struct sc_err *err)
{
	uint64_t samples[STRIDE], run;
	int rc = 0;

	for (uint64_t k = 0; k < nr; k++) {
		samples[k] = sample_at(p, i + k, &run);
		rs_corpus_prefetch(p->corpus, samples[k]);
	}
	for (uint64_t k = 0; rc == 0 && k < nr; k++) {
		uint64_t one = 1, first, sequences = 1;
		struct rs_data_source *source;
		struct rs_data_extent e;

		rc = rs_corpus_extent(p->corpus, samples[k], &one, &e, err);
		if (rc == 0 && p->firsts)
			rc = rs_corpus_sequences(p->corpus, samples[k], &source, &first, &sequences, err);
		p->body += extent_bytes(&e);
		p->sequences += sequences;
	}
	return rc;
}

/* Adds up the sizes of neighbouring samples, all at once. */
static int measure_runs(struct rs_part *p, uint64_t i, uint64_t left, struct sc_err *err)
{
	struct rs_data_extent e;
	int rc = 0;

	p->sequences += left;
	for (uint64_t nr; rc == 0 && left; left -= nr, i += nr) {
		nr = left;
		rc = extent_at(p, i, &nr, &e, err);
		p->body += extent_bytes(&e);
	}
	return rc;
}

/* Finds where every STRIDE-th sample begins, in one pass over all samples. */
static int measure(struct rs_part *p, void *unused, struct sc_err *err)
{
	uint64_t marks = p->nr / STRIDE + 1;
	bool documents;
	int rc = rs_corpus_tables(p->corpus, &documents, err);

	(void)unused;
	if (rc < 0)
		return rc;
	p->offsets = sc_zalloc_array(marks, sizeof(*p->offsets));
	p->firsts = documents ? sc_zalloc_array(marks, sizeof(*p->firsts)) : NULL;
	p->table_bytes = marks * sizeof(*p->offsets) * (documents ? 2 : 1);
	if (!p->offsets || (documents && !p->firsts))
		return sc_nomem(err);
	for (uint64_t i = 0; rc == 0 && i < p->nr; i += STRIDE) {
		uint64_t nr = sc_min_u64(STRIDE, p->nr - i);

		p->offsets[i / STRIDE] = p->body;
		if (documents)
			p->firsts[i / STRIDE] = p->sequences;
		rc = p->order.shuffle != META_SHUFFLE_NONE || documents ? measure_stride(p, i, nr, err)
								       : measure_runs(p, i, nr, err);
	}
	return rc;
}

static int make_head(struct rs_part *p, struct sc_err *err)
{
	const struct rs_corpus *c = p->corpus;

	if (c->spec.format == RS_DATA_NPY)
		rs_npy_head(c->form, p->nr, &p->head);
	for (const char *hex = c->form; c->spec.format == RS_DATA_RECORDS && hex[0] && hex[1]; hex += 2) {
		unsigned char byte = (unsigned char)((hex[0] - (hex[0] > '9' ? 'a' - 10 : '0')) << 4 |
						     (hex[1] - (hex[1] > '9' ? 'a' - 10 : '0')));

		sc_buf_add(&p->head, &byte, 1);
	}
	p->tail = c->spec.format == RS_DATA_TAR ? TAR_END : 0;
	return p->head.failed ? sc_nomem(err) : 0;
}

int rs_part_new(struct rs_corpus *c, uint64_t epoch, uint64_t begin, uint32_t ranks, uint32_t rank,
		struct rs_part **ret, struct sc_err *err)
{
	struct rs_part *p = sc_zalloc(sizeof(*p));
	int rc;

	if (!p)
		return sc_nomem(err);
	p->corpus = c;
	p->epoch = epoch;
	rc = meta_share_init(&c->spec.deal, c->samples, begin, ranks, rank, &p->share, err);
	if (rc == 0) {
		p->nr = meta_share_count(&p->share);
		meta_order_init(&p->order, c->samples, c->spec.shuffle, c->spec.block, c->spec.seed, epoch);
		rc = make_head(p, err);
	}
	if (rc == 0 && c->record) {
		p->body = p->nr * c->record;
		p->sequences = p->nr;
	} else if (rc == 0) {
		rc = run_guarded(p, measure, NULL, err);
	}
	if (rc < 0)
		rs_part_free(p);
	else
		*ret = p;
	return rc;
}

struct rs_part *rs_part_free(struct rs_part *p)
{
	if (p) {
		sc_buf_done(&p->head);
		sc_sys.release(p->offsets);
		sc_sys.release(p->firsts);
		sc_sys.release(p);
	}
	return NULL;
}

uint64_t rs_part_bytes(const struct rs_part *p, int file)
{
	if (file)
		return RS_MEGATRON_HEAD + 12 * p->sequences + 8 * (p->nr + 1);
	return p->head.bytes + p->body + p->tail;
}

/* --- reading samples --- */

struct reading {
	struct rs_part *part;
	uint64_t at, bytes;		/* of the body */
	unsigned char *to;		/* they are copied here; NULL: */
	struct iovec *iov;		/* pieces of memory that have them */
	int nr_iov, room_iov;
	struct sc_err *err;
	int rc;				/* 1: the pieces are too many */
	struct touched {
		struct rs_data_source *source;
		struct rs_data_bytes *bytes;
	} touched[TOUCHED_MAX];
	int nr_touched;
};

/* Finds the last mark at or before a value. */
static uint64_t mark_before(const uint64_t *marks, uint64_t nr, uint64_t value)
{
	return sc_first(nr - 1, i, marks[i + 1] > value);
}

/* Finds the sample that byte `at` of the body is in; it begins at *ret_offset. */
static int locate(struct rs_part *p, uint64_t at, uint64_t *ret_offset, uint64_t *ret_i, struct sc_err *err)
{
	uint64_t i, offset, nr = 1;
	struct rs_data_extent e;
	int rc = 0;

	if (!p->offsets) {
		*ret_i = at / p->corpus->record;
		*ret_offset = *ret_i * p->corpus->record;
		return 0;
	}
	i = mark_before(p->offsets, (p->nr - 1) / STRIDE + 1, at);
	offset = p->offsets[i];
	for (i *= STRIDE; rc == 0; i++, nr = 1) {
		rc = extent_at(p, i, &nr, &e, err);
		if (rc < 0 || at < offset + extent_bytes(&e))
			break;
		offset += extent_bytes(&e);
	}
	*ret_i = i;
	*ret_offset = offset;
	return rc;
}

static void check_touched(struct reading *r)
{
	while (r->rc == 0 && r->nr_touched) {
		const struct touched *t = &r->touched[--r->nr_touched];

		r->rc = rs_data_source_check(r->part->corpus, t->source, t->bytes, r->err);
	}
}

/* Returns the bytes of a source, and remembers it: sources are checked after their bytes were copied. */
static const unsigned char *touch(struct reading *r, struct rs_data_source *s)
{
	struct touched *t;

	for (int i = r->nr_touched; i-- > 0;)
		if (r->touched[i].source == s)
			return r->touched[i].bytes->map;
	if (r->nr_touched == TOUCHED_MAX)
		check_touched(r);
	t = &r->touched[r->nr_touched];
	if (r->rc == 0)
		r->rc = rs_data_source_ready(r->part->corpus, s, &t->bytes, r->err);
	if (r->rc < 0)
		return NULL;
	t->source = s;
	r->nr_touched++;
	return t->bytes->map;
}

static void give(struct reading *r, const void *data, uint64_t n)
{
	if (r->to) {
		memcpy(r->to, data, n);
		r->to += n;
	} else if (r->nr_iov < r->room_iov) {
		r->iov[r->nr_iov++] = (struct iovec){(void *)data, n};
	} else {
		r->rc = 1;
	}
	r->at += n;
	r->bytes -= n;
}

static int walk(struct rs_part *p, void *arg, struct sc_err *err)
{
	struct reading *r = arg;
	uint64_t offset = 0, i = 0;

	r->rc = locate(p, r->at, &offset, &i, err);
	while (r->rc == 0 && r->bytes) {
		uint64_t nr = p->nr - i, skip = r->at - offset, n;
		const unsigned char *map;
		struct rs_data_extent e;

		if (p->corpus->record)
			nr = sc_min_u64(nr, (skip + r->bytes) / p->corpus->record + 1);
		r->rc = extent_at(p, i, &nr, &e, err);
		if (r->rc < 0)
			break;
		map = touch(r, e.source);
		if (r->rc < 0)
			break;
		n = sc_min_u64(e.end - e.begin - sc_min_u64(skip, e.end - e.begin), r->bytes);
		if (n)
			give(r, map + e.begin + skip, n);
		if (r->bytes && e.bare)
			give(r, "\n", 1);
		offset += extent_bytes(&e);
		i += nr;
	}
	return r->rc;
}

/* Walks over samples, then checks all sources that were used. */
static int run_walk(struct reading *r)
{
	int rc = run_guarded(r->part, walk, r, r->err);

	if (rc < 0)
		return rc;
	check_touched(r);
	return r->rc;
}

static int read_body(struct rs_part *p, uint64_t at, uint64_t bytes, unsigned char *to, struct sc_err *err)
{
	struct reading r = {.part = p, .at = at, .bytes = bytes, .to = to, .err = err};

	return run_walk(&r);
}

int rs_part_pieces(struct rs_part *p, int file, uint64_t at, uint64_t bytes, struct iovec *iov, int room,
		   struct sc_err *err)
{
	struct reading r = {
	    .part = p, .at = at - p->head.bytes, .bytes = bytes, .iov = iov, .room_iov = room, .err = err};
	int rc;

	if (file || at < p->head.bytes || at + bytes > p->head.bytes + p->body)
		return 0;
	/* small samples in random order: that they are too many need not be counted */
	if (p->order.shuffle != META_SHUFFLE_NONE && bytes / (uint64_t)room > p->body / p->nr)
		return 0;
	rc = run_walk(&r);
	return rc < 0 ? rc : rc > 0 ? 0 : r.nr_iov;
}

/* --- the .idx, made as it is read --- */

struct idx {
	struct rs_part *part;
	uint64_t at, end;	/* what is wanted of the file */
	unsigned char *to;
};

/* Copies what is wanted of an entry: `value`, of `bytes` bytes at offset `at` of the file. */
static void put(const struct idx *x, uint64_t at, const void *value, uint64_t bytes)
{
	uint64_t lo = sc_max_u64(at, x->at), hi = sc_min_u64(at + bytes, x->end);

	if (lo < hi)
		memcpy(x->to + (lo - x->at), (const char *)value + (lo - at), hi - lo);
}

/*
 * Make what is wanted of an array: of sequences' lengths or pointers, of documents.  Each walks once over
 * samples, from the last mark before the first entry that is wanted.
 */
static int idx_sequences(struct idx *x, uint64_t base, uint64_t width, bool lengths, struct sc_err *err)
{
	struct rs_part *p = x->part;
	uint64_t from = x->at > base ? (x->at - base) / width : 0, i = 0, sequence = 0, offset = 0;
	int rc = 0;

	if (x->end <= base || from >= p->sequences)
		return 0;
	i = p->firsts ? mark_before(p->firsts, (p->nr - 1) / STRIDE + 1, from) : from / STRIDE;
	sequence = p->firsts ? p->firsts[i] : i * STRIDE;
	offset = p->offsets[i];
	i *= STRIDE;
	for (; rc == 0 && i < p->nr && base + sequence * width < x->end; i++) {
		uint64_t run, first, nr;
		struct rs_data_source *s;

		rc = rs_corpus_sequences(p->corpus, sample_at(p, i, &run), &s, &first, &nr, err);
		for (uint64_t k = 0; rc == 0 && k < nr; k++, sequence++) {
			uint64_t bytes = s->borders[first + k + 1] - s->borders[first + k];
			uint32_t length = (uint32_t)(bytes / p->corpus->token);

			put(x, base + sequence * width, lengths ? (void *)&length : (void *)&offset, width);
			offset += bytes;
		}
	}
	return rc;
}

static int idx_documents(struct idx *x, uint64_t base, struct sc_err *err)
{
	struct rs_part *p = x->part;
	uint64_t from = x->at > base ? (x->at - base) / 8 : 0, sequence = 0, i;
	int rc = 0;

	if (x->end <= base)
		return 0;
	i = from / STRIDE * STRIDE;
	if (i > p->nr)
		i = p->nr;
	sequence = p->firsts && i < p->nr ? p->firsts[i / STRIDE] : p->firsts ? p->sequences : i;
	for (; rc == 0 && i <= p->nr && base + i * 8 < x->end; i++) {
		uint64_t run, first, nr = 1;
		struct rs_data_source *s;

		put(x, base + i * 8, &sequence, 8);
		if (i < p->nr && p->firsts)
			rc = rs_corpus_sequences(p->corpus, sample_at(p, i, &run), &s, &first, &nr, err);
		sequence += nr;
	}
	return rc;
}

static int read_idx(struct rs_part *p, void *arg, struct sc_err *err)
{
	struct idx *x = arg;
	uint64_t version = 1, documents = p->nr + 1, pointers = RS_MEGATRON_HEAD + 4 * p->sequences;
	int rc;

	put(x, 0, "MMIDIDX\0", 9);
	put(x, 9, &version, 8);
	put(x, 17, &p->corpus->code, 1);
	put(x, 18, &p->sequences, 8);
	put(x, 26, &documents, 8);
	rc = idx_sequences(x, RS_MEGATRON_HEAD, 4, true, err);
	if (rc == 0)
		rc = idx_sequences(x, pointers, 8, false, err);
	return rc < 0 ? rc : idx_documents(x, pointers + 8 * p->sequences, err);
}

int rs_part_read(struct rs_part *p, int file, uint64_t at, uint64_t bytes, unsigned char *to,
		 struct sc_err *err)
{
	uint64_t n;
	int rc = 0;

	if (file)
		return run_guarded(p, read_idx, &(struct idx){p, at, at + bytes, to}, err);
	if (at < p->head.bytes) {
		n = sc_min_u64(bytes, p->head.bytes - at);
		memcpy(to, p->head.text + at, n);
		at += n;
		to += n;
		bytes -= n;
	}
	n = at - p->head.bytes < p->body ? sc_min_u64(bytes, p->head.bytes + p->body - at) : 0;
	if (bytes && n)
		rc = read_body(p, at - p->head.bytes, n, to, err);
	memset(to + n, 0, bytes - n);
	return rc;
}
