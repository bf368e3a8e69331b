/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Verification.  Copies: every box that a rank stores is compared, byte for byte, with the same
 * region as the plan would read it (from the first holders), which also covers tied tensors that
 * are cut in another way.  Hashes: XXH3-128 of every logical tensor, row-major, so that it does not
 * depend on any topology.
 */
#include "reshard/job/service_i.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <xxhash.h>

#define CHUNK (256u << 10)
#define REPORT_LINES_MAX 20
#define GAP_RUNS_MAX (1u << 22)

static const struct rs_nodes one_node = {0};

struct verify {
	struct rs_service *s;
	struct rs_set *set;
	struct rs_version whole;	/* a version of this set alone: origins for plans */
	struct rs_set *sets[1];
	rs_tick_fn *tick;
	void *arg;
	unsigned char *mine, *theirs;
	struct sc_buf report;
	unsigned lines, differ;
	struct sc_err *err;
};

static int begin(struct verify *v)
{
	v->sets[0] = v->set;
	v->whole = (struct rs_version){.refs = 1, .nr_sets = 1, .sets = v->sets};
	v->mine = sc_sys.alloc(CHUNK);
	v->theirs = sc_sys.alloc(CHUNK);
	return v->mine && v->theirs ? 0 : sc_nomem(v->err);
}

static void end(struct verify *v)
{
	sc_sys.release(v->mine);
	sc_sys.release(v->theirs);
	sc_buf_done(&v->report);
}

/* A box of its own region: dense, row-major. */
static struct meta_box dense(const struct meta_box *box)
{
	struct meta_box d = *box;
	uint64_t stride = 1;

	d.at = 0;
	for (int k = d.nr - 1; k >= 0; k--) {
		d.stride[k] = stride;
		stride *= d.ext[k];
	}
	return d;
}

/* A gather of a region from its first holders, with the sources mapped. */
struct region {
	struct rs_gather g;
	struct rs_sources sources;
	struct sc_arena arena;
	const unsigned char **data;
	struct rs_blob **blobs;
	uint64_t *at;
	bool open;
};

static int region_open(struct verify *v, const struct meta_tensor *t, const struct meta_box *box,
		       struct region *r)
{
	struct rs_origins o = rs_origins_of(&v->whole);
	struct meta_box d = dense(box);
	uint64_t n = meta_box_elements(box);
	int rc;

	*r = (struct region){.g.bytes = n * meta_dtype_bits(t->dtype) / 8};
	rc = rs_plan_box(v->set->view, t->key, &d, &one_node, 0, 0, &r->g, &r->sources, v->err);
	if (rc == 0) {
		rs_gather_finish(&r->g);
		rc = rs_sources_open(&r->sources, v->s->blobs, &o, &r->arena, &r->data, &r->blobs, &r->at, v->err);
		r->open = rc == 0;
	}
	return rc;
}

static void region_close(struct verify *v, struct region *r)
{
	for (size_t i = 0; r->open && i < r->sources.nr; i++)
		rs_blob_put(v->s->blobs, r->blobs[i]);
	rs_gather_done(&r->g);
	rs_sources_done(&r->sources);
	sc_arena_done(&r->arena);
}

static void line(struct verify *v, const char *fmt, ...) __attribute__((format(printf, 2, 3)));
static void line(struct verify *v, const char *fmt, ...)
{
	char text[2048];
	va_list ap;

	if (++v->lines > REPORT_LINES_MAX)
		return;
	va_start(ap, fmt);
	(void)vsnprintf(text, sizeof(text), fmt, ap);
	va_end(ap);
	sc_buf_printf(&v->report, "%s\n", text);
}

/* Compares what a rank stores of one box with the first holders' bytes. */
static int compare_box(struct verify *v, uint32_t rank, const struct meta_stored *s,
		       const struct meta_box *box, const unsigned char *own)
{
	const struct meta_tensor *t = &v->set->state.tensors[s->entry->tensor];
	struct meta_box d = dense(box);
	struct rs_gather g = {0};
	struct region r = {0};
	bool self = true;
	int rc = region_open(v, t, box, &r);

	for (size_t i = 0; i < r.sources.nr; i++)
		self = self && r.sources.at[i].rank == rank && strcmp(r.sources.at[i].name, s->name) == 0 &&
		       strcmp(r.sources.at[i].file, s->file) == 0;
	g.bytes = r.g.bytes;
	if (rc == 0 && !self && rs_gather_add(&g, 0, &d, box, meta_dtype_bits(t->dtype) / 8) < 0)
		rc = sc_nomem(v->err);
	for (uint64_t at = 0; rc == 0 && !self && at < g.bytes; at += CHUNK) {
		uint64_t n = g.bytes - at < CHUNK ? g.bytes - at : CHUNK;

		rs_gather_read(&g, &own, at, n, v->mine);
		rs_gather_read(&r.g, r.data, at, n, v->theirs);
		if (memcmp(v->mine, v->theirs, n) != 0) {
			v->differ++;
			line(v, "'%s': rank %u ('%s') and rank %u ('%s') hold different bytes", t->key, rank,
			     s->name, r.sources.at[0].rank, r.sources.at[0].name);
			break;
		}
		if (v->tick && v->tick(v->arg, n))
			rc = sc_fail(v->err, SC_E_CANCELLED, "stopped");
	}
	rs_gather_done(&g);
	region_close(v, &r);
	return rc;
}

static int open_own(struct verify *v, uint32_t rank, const struct meta_stored *s,
		    struct rs_blob **ret, const unsigned char **ret_data)
{
	const struct rs_set_blob *b = rs_set_find(v->set, rank, s->file);
	bool tensors = rs_safetensors_is(s->file);
	const struct rs_tensor_at *t;
	int rc;

	if (!b)
		return sc_fail(v->err, SC_E_NOT_FOUND, "rank %u has no '%s'", rank, s->file);
	rc = rs_blob_get(v->s->blobs, b->blob, tensors, b->bytes, ret, v->err);
	if (rc < 0)
		return sc_wrap(v->err, rc, "rank %u '%s'", rank, s->file);
	t = tensors ? rs_safetensors_find(&(*ret)->st, s->name) : NULL;
	if (tensors && !t)
		return sc_fail(v->err, SC_E_FORMAT, "rank %u: '%s' lacks '%s'", rank, s->file, s->name);
	*ret_data = (*ret)->map + (t ? t->begin : 0);
	return 0;
}

/* --- padding --- */

static int by_start(const void *a, const void *b)
{
	const uint64_t *x = a, *y = b;

	return x[0] < y[0] ? -1 : x[0] > y[0];
}

struct runs {
	size_t nr, room;
	struct run {
		uint64_t at, end;
	} *at;
};

static int add_runs(struct runs *runs, const struct rs_copy *c, int k, uint64_t to)
{
	if (k == c->nr)
		return runs->nr >= GAP_RUNS_MAX ? -1 : sc_vec_push(runs, (struct run){to, to + c->run});
	for (uint64_t i = 0; i < c->ext[k]; i++)
		if (add_runs(runs, c, k + 1, to + i * c->to_stride[k]) < 0)
			return -1;
	return 0;
}

/* Rows of a stored piece with bytes in no box that are not zero. */
static int count_padding(struct verify *v, const struct meta_stored *s, const unsigned char *own,
			 uint64_t *ret)
{
	const struct meta_tensor *t = &v->set->state.tensors[s->entry->tensor];
	unsigned bytes = meta_dtype_bits(t->dtype) / 8;
	struct rs_gather g = {0};
	struct runs runs = {0};
	uint64_t row = bytes, at = 0, last_row = UINT64_MAX, total;
	int rc = 0;

	*ret = 0;
	if (!bytes || !meta_tensor_bytes(t->dtype, &s->piece.shape, &total))
		return 0;
	for (int k = 1; k < s->piece.shape.nr; k++)
		row *= s->piece.shape.dim[k];
	for (uint32_t i = 0; i < s->piece.nr_boxes && rc == 0; i++)
		rc = rs_gather_add(&g, 0, &s->piece.boxes[i], &s->piece.boxes[i], bytes);
	for (uint32_t i = 0; i < g.nr && rc == 0; i++)
		rc = add_runs(&runs, &g.copies[i], 0, g.copies[i].to);
	if (rc == 0 && runs.nr)
		qsort(runs.at, runs.nr, sizeof(*runs.at), by_start);
	for (size_t i = 0; rc == 0 && i <= runs.nr; i++) {
		uint64_t gap = i < runs.nr ? runs.at[i].at : total;

		for (; at < gap; at++)
			if (own[at] && at / row != last_row) {
				last_row = at / row;
				(*ret)++;
				at = (last_row + 1) * row - 1;
			}
		at = i < runs.nr && runs.at[i].end > at ? runs.at[i].end : at;
	}
	sc_vec_done(&runs);
	rs_gather_done(&g);
	return rc < 0 ? sc_nomem(v->err) : 0;
}

static bool is_first_replica(const struct verify *v, const struct meta_entry *e, uint32_t rank)
{
	uint32_t coords[SC_AXES_MAX];

	meta_topology_coords(v->set->view->topo, rank, coords);
	return meta_topology_index(v->set->view->topo, meta_entry_replica_axes(v->set->view, e), coords) == 0;
}

static bool has_padding(const struct meta_stored *s)
{
	uint64_t n = 0, all;

	for (uint32_t i = 0; i < s->piece.nr_boxes; i++)
		n += meta_box_elements(&s->piece.boxes[i]);
	return meta_shape_elements(&s->piece.shape, &all) && n < all;
}

/* --- a rank --- */

static int verify_stored(struct verify *v, uint32_t rank, const struct meta_stored *s, bool copies)
{
	const struct meta_tensor *t = &v->set->state.tensors[s->entry->tensor];
	bool pad = has_padding(s) && is_first_replica(v, s->entry, rank);
	const unsigned char *own = NULL;
	struct rs_blob *blob = NULL;
	uint64_t rows;
	int rc;

	if (!copies && !pad)
		return 0;
	rc = open_own(v, rank, s, &blob, &own);
	for (uint32_t i = 0; copies && rc == 0 && i < s->piece.nr_boxes; i++) {
		if (meta_dtype_bits(t->dtype) % 8) {
			/* smaller than a byte: whole on every rank, compared as bytes */
			struct meta_box bytes = {.nr = 1, .stride = {1}};
			struct region r = {0};

			(void)meta_tensor_bytes(t->dtype, &t->shape, &bytes.ext[0]);
			rc = region_open(v, t, &s->piece.boxes[i], &r);
			if (rc == 0 && memcmp(own, r.data[0] + r.g.copies[0].from, bytes.ext[0]) != 0) {
				v->differ++;
				line(v, "'%s': rank %u and rank %u hold different bytes", t->key, rank,
				     r.sources.at[0].rank);
			}
			region_close(v, &r);
			break;
		}
		rc = compare_box(v, rank, s, &s->piece.boxes[i], own);
	}
	if (rc == 0 && pad && !copies) {
		rc = count_padding(v, s, own, &rows);
		if (rc == 0 && rows)
			line(v, "padding: rank %u '%s:%s': %" PRIu64 " rows of padding are not zero; they are in no "
			     "logical tensor and will be lost in a reshard", rank, s->file, s->name, rows);
	}
	rs_blob_put(v->s->blobs, blob);
	return rc;
}

static int verify_ranks(struct verify *v, bool copies)
{
	int rc = 0;

	for (uint32_t rank = 0; rc == 0 && rank < v->set->topo.ranks; rank++) {
		struct meta_stored_list list = {0};
		struct sc_arena arena = {0};

		rc = meta_view_rank(v->set->view, rank, NULL, &arena, &list, v->err);
		for (size_t i = 0; rc == 0 && i < list.nr; i++)
			rc = verify_stored(v, rank, &list.at[i], copies);
		sc_vec_done(&list);
		sc_arena_done(&arena);
	}
	return rc;
}

static int hash_tensor(struct verify *v, const struct meta_tensor *t, uint8_t ret[16])
{
	struct meta_box all = {.nr = t->shape.nr};
	XXH3_state_t *state = XXH3_createState();
	XXH128_canonical_t hash;
	struct region r = {0};
	int rc = state ? 0 : sc_nomem(v->err);

	for (int k = 0; k < t->shape.nr; k++)
		all.ext[k] = t->shape.dim[k];
	if (rc == 0 && meta_box_elements(&all))
		rc = region_open(v, t, &all, &r);
	if (rc == 0)
		(void)XXH3_128bits_reset(state);
	for (uint64_t at = 0; rc == 0 && at < r.g.bytes; at += CHUNK) {
		uint64_t n = r.g.bytes - at < CHUNK ? r.g.bytes - at : CHUNK;

		rs_gather_read(&r.g, r.data, at, n, v->mine);
		(void)XXH3_128bits_update(state, v->mine, n);
		if (v->tick && v->tick(v->arg, n))
			rc = sc_fail(v->err, SC_E_CANCELLED, "stopped");
	}
	if (rc == 0) {
		XXH128_canonicalFromHash(&hash, XXH3_128bits_digest(state));
		memcpy(ret, hash.digest, 16);
	}
	region_close(v, &r);
	(void)XXH3_freeState(state);
	return rc;
}

int rs_verify_padding(struct rs_service *s, struct rs_set *set, char **ret_report,
		      struct sc_err *err)
{
	struct verify v = {.s = s, .set = set, .err = err};
	int rc = begin(&v);

	if (rc == 0)
		rc = verify_ranks(&v, false);
	*ret_report = rc == 0 ? sc_strdup(v.report.text ? v.report.text : "") : NULL;
	end(&v);
	return rc == 0 && !*ret_report ? sc_nomem(err) : rc;
}

int rs_verify_set(struct rs_service *s, struct rs_set *set, rs_tick_fn *tick, void *arg,
		  uint8_t (**ret_hashes)[16], char **ret_report, struct sc_err *err)
{
	struct verify v = {.s = s, .set = set, .tick = tick, .arg = arg, .err = err};
	uint8_t (*hashes)[16] = sc_zalloc_array(set->state.nr ? set->state.nr : 1, sizeof(*hashes));
	char *report = NULL;
	int rc = hashes ? begin(&v) : sc_nomem(err);

	if (rc == 0)
		rc = verify_ranks(&v, true);
	for (uint32_t t = 0; rc == 0 && !v.differ && t < set->state.nr; t++)
		rc = hash_tensor(&v, &set->state.tensors[t], hashes[t]);
	if (rc == 0) {
		report = sc_strdup(v.report.text ? v.report.text : "");
		rc = report ? 0 : sc_nomem(err);
	}
	if (rc == 0 && v.differ)
		rc = sc_fail(err, SC_E_COPIES, "%.*s", (int)strcspn(report, "\n"), report);
	end(&v);
	if (rc == 0)
		*ret_hashes = sc_steal(&hashes);
	if (rc == 0 || rc == SC_E_COPIES)
		*ret_report = sc_steal(&report);
	sc_sys.release(hashes);
	sc_sys.release(report);
	return rc;
}

uint64_t rs_set_bytes(const struct rs_set *set)
{
	uint64_t n = 0;

	for (size_t i = 0; i < set->nr_blobs; i++)
		n += set->blobs[i].bytes;
	return n;
}

/* Hashes every logical tensor of a view through its present storage and compares with what was
 * recorded when it was committed; one line a tensor. */
int rs_verify_compare(struct rs_service *s, struct rs_view *view, struct sc_buf *report,
		      struct sc_err *err)
{
	int rc = 0;

	for (size_t i = 0; rc == 0 && i < view->version->nr_sets; i++) {
		struct rs_set *set = view->version->sets[i];
		const uint8_t (*kept)[16] = rs_set_hashes(set);
		uint8_t (*hashes)[16] = NULL;
		char *text = NULL;

		if (set->kind != META_SET_TENSORS)
			continue;
		rc = rs_verify_set(s, set, NULL, NULL, &hashes, &text, err);
		for (uint32_t t = 0; rc == 0 && t < set->state.nr; t++) {
			bool known = kept != NULL;
			bool same = known && memcmp(kept[t], hashes[t], 16) == 0;

			sc_buf_printf(report, "%s\t", known ? (same ? "equal" : "DIFFERENT") : "new");
			for (int k = 0; k < 16; k++)
				sc_buf_printf(report, "%02x", hashes[t][k]);
			sc_buf_printf(report, "\t%s\n", set->state.tensors[t].key);
			if (known && !same && err->code == 0)
				(void)sc_fail(err, SC_E_COPIES, "'%s' is not what was committed",
					      set->state.tensors[t].key);
		}
		sc_sys.release(hashes);
		sc_sys.release(text);
	}
	return rc < 0 ? rc : err->code;
}
