/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Verification.  Copies: every box that a rank stores is compared, byte for byte, with the same
 * region as the plan would read it (from the first holders), which also covers tied tensors that
 * are cut in another way.  Hashes: XXH3-128 of every logical tensor, row-major, so that it does not
 * depend on any topology.
 */
#include "reshard/command/command_i.h"

#include <inttypes.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>
#include <xxhash.h>

#include "reshard/engine/engine.h"

#define CHUNK (256u << 10)
#define REPORT_LINES_MAX 20

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
	struct rs_mapped mapped;
};

static int region_open(struct verify *v, const struct meta_tensor *t, const struct meta_box *box,
		       struct region *r)
{
	struct rs_origins o = rs_origins_of(v->s, &v->whole);
	struct meta_box d = dense(box);
	uint64_t n = meta_box_elements(box);
	int rc;

	*r = (struct region){.g.bytes = n * meta_dtype_bits(t->dtype) / 8};
	rc = rs_plan_box(v->set->view, t->key, &d, &one_node, 0, 0, &r->g, &r->sources, v->err);
	if (rc == 0) {
		rs_gather_finish(&r->g);
		rc = rs_sources_open(&r->sources, &r->g, 1, &o, &r->arena, &r->mapped, v->err);
	}
	return rc;
}

static void region_close(struct region *r)
{
	rs_sources_close(&r->mapped);
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

static int read_gather(struct verify *v, const struct rs_mapped *m, const struct rs_gather *g, uint64_t at,
		       uint64_t bytes, unsigned char *to)
{
	int rc = rs_sources_need(m, g, at, bytes, NULL, v->err);

	if (rc < 0)
		return rc;
	rc = rs_sources_read(m, g, at, bytes, to, v->err);
	rs_sources_release(m, g, at, bytes);
	return rc;
}

/* 1: the same bytes, 0: not, or an error. */
static int same_bytes(struct verify *v, const struct rs_mapped *a, const struct rs_gather *ga,
		      const struct rs_mapped *b, const struct rs_gather *gb)
{
	int rc = 1;

	for (uint64_t at = 0; rc == 1 && at < ga->bytes; at += CHUNK) {
		uint64_t n = sc_min_u64(ga->bytes - at, CHUNK);

		rc = read_gather(v, a, ga, at, n, v->mine);
		if (rc == 0)
			rc = read_gather(v, b, gb, at, n, v->theirs);
		if (rc == 0)
			rc = memcmp(v->mine, v->theirs, n) == 0;
		if (rc == 1 && v->tick && v->tick(v->arg, n))
			rc = sc_fail(v->err, SC_E_CANCELLED, "stopped");
	}
	return rc;
}

/* Compares what a rank stores of one box with the first holders' bytes. */
static int compare_box(struct verify *v, uint32_t rank, const struct meta_stored *s,
		       const struct meta_box *box, const struct rs_mapped *own)
{
	const struct meta_tensor *t = &v->set->state.tensors[s->entry->tensor];
	unsigned bits = meta_dtype_bits(t->dtype);
	struct meta_box d = dense(box), whole = {.nr = 1, .stride = {1}};
	struct rs_gather g = {0};
	struct region r = {0};
	bool self = true;
	int rc = region_open(v, t, box, &r), same = 1;

	for (size_t i = 0; i < r.sources.nr; i++)
		self = self && r.sources.at[i].rank == rank && strcmp(r.sources.at[i].name, s->name) == 0 &&
		       strcmp(r.sources.at[i].file, s->file) == 0;
	g.bytes = whole.ext[0] = r.g.bytes;
	/* a type smaller than a byte is whole on every rank, and compared as bytes */
	if (rc == 0 && !self &&
	    (bits % 8 ? rs_gather_add(&g, 0, &whole, &whole, 1) : rs_gather_add(&g, 0, &d, box, bits / 8)) < 0)
		rc = sc_nomem(v->err);
	if (rc == 0 && !self)
		same = same_bytes(v, own, &g, &r.mapped, &r.g);
	if (same == 0) {
		v->differ++;
		line(v, "'%s': rank %u ('%s') and rank %u ('%s') hold different bytes", t->key, rank, s->name,
		     r.sources.at[0].rank, r.sources.at[0].name);
	}
	rs_gather_done(&g);
	region_close(&r);
	return rc < 0 ? rc : same < 0 ? same : 0;
}

/* --- padding --- */

/* Rows of a stored piece with bytes in no box that are not zero: a gather of the boxes has zeros there. */
static int count_padding(struct verify *v, const struct meta_stored *s, const struct rs_mapped *own, uint64_t *ret)
{
	const struct meta_tensor *t = &v->set->state.tensors[s->entry->tensor];
	unsigned bytes = meta_dtype_bits(t->dtype) / 8;
	struct meta_box all = {.nr = 1, .stride = {1}};
	struct rs_gather boxes = {0}, whole = {0};
	uint64_t row = bytes, last_row = UINT64_MAX, n;
	int rc = 0;

	*ret = 0;
	if (!bytes || !meta_tensor_bytes(t->dtype, &s->piece.shape, &all.ext[0]))
		return 0;
	boxes.bytes = whole.bytes = all.ext[0];
	for (int k = 1; k < s->piece.shape.nr; k++)
		row *= s->piece.shape.dim[k];
	if (rs_gather_add(&whole, 0, &all, &all, 1) < 0)
		rc = sc_nomem(v->err);
	for (uint32_t i = 0; i < s->piece.nr_boxes && rc == 0; i++)
		if (rs_gather_add(&boxes, 0, &s->piece.boxes[i], &s->piece.boxes[i], bytes) < 0)
			rc = sc_nomem(v->err);
	rs_gather_finish(&boxes);
	for (uint64_t at = 0; rc == 0 && at < boxes.bytes; at += n) {
		uint32_t source;
		uint64_t from;

		n = rs_gather_run(&boxes, at, boxes.bytes - at, &source, &from);
		if (n >= CHUNK)
			continue; /* no padding for long */
		n = sc_min_u64(boxes.bytes - at, CHUNK);
		rc = read_gather(v, own, &whole, at, n, v->mine);
		if (rc == 0)
			rc = read_gather(v, own, &boxes, at, n, v->theirs);
		for (uint64_t i = 0; rc == 0 && i < n; i++)
			if (v->mine[i] != v->theirs[i] && (at + i) / row != last_row) {
				last_row = (at + i) / row;
				(*ret)++;
			}
	}
	rs_gather_done(&boxes);
	rs_gather_done(&whole);
	return rc;
}

static bool is_first_replica(const struct verify *v, const struct meta_entry *e, uint32_t rank)
{
	uint32_t coords[SC_AXES_MAX];

	meta_topology_coords(v->set->view->topo, rank, coords);
	return meta_entry_is_first(v->set->view, e, coords);
}

static bool has_padding(const struct meta_stored *s)
{
	uint64_t n = 0, all;

	if (s->entry->group) /* what is between joined tensors is of no interest: frameworks leave anything there */
		return false;
	for (uint32_t i = 0; i < s->piece.nr_boxes; i++)
		n += meta_box_elements(&s->piece.boxes[i]);
	return meta_shape_elements(&s->piece.shape, &all) && n < all;
}

/* --- a rank --- */

static int verify_stored(struct verify *v, uint32_t rank, const struct meta_stored *s, bool copies)
{
	bool pad = has_padding(s) && is_first_replica(v, s->entry, rank);
	struct rs_source one = {.view = v->set->view, .rank = rank, .file = s->file, .name = s->name};
	struct rs_origins o = rs_origins_of(v->s, &v->whole);
	struct rs_sources sources = {.nr = 1, .at = &one};
	struct rs_mapped own = {0};
	struct sc_arena arena = {0};
	uint64_t rows = 0;
	int rc;

	if (!copies && !pad)
		return 0;
	rc = rs_sources_open(&sources, NULL, 0, &o, &arena, &own, v->err);
	for (uint32_t i = 0; copies && rc == 0 && i < s->piece.nr_boxes; i++)
		rc = compare_box(v, rank, s, &s->piece.boxes[i], &own);
	if (rc == 0 && pad && !copies)
		rc = count_padding(v, s, &own, &rows);
	if (rc == 0 && rows)
		line(v, "padding: rank %u '%s:%s': %" PRIu64 " rows of padding are not zero; they are in no "
		     "logical tensor and will be lost in a reshard", rank, s->file, s->name, rows);
	rs_sources_close(&own);
	sc_arena_done(&arena);
	return rc;
}

/* A replica whose file is the blob of the rank that it is like: that rank's is compared. */
static bool is_shared(const struct verify *v, uint32_t rank, const char *file)
{
	uint32_t like = meta_view_alike(v->set->view, rank, file);
	const struct rs_set_blob *mine = like == rank ? NULL : rs_set_find(v->set, rank, file);
	const struct rs_set_blob *other = mine ? rs_set_find(v->set, like, file) : NULL;

	return other && mine->blob == other->blob;
}

static int verify_ranks(struct verify *v, bool copies)
{
	int rc = 0;

	for (uint32_t rank = 0; rc == 0 && rank < v->set->topo.ranks; rank++) {
		struct meta_stored_list list = {0};
		struct sc_arena arena = {0};

		rc = meta_view_rank(v->set->view, rank, NULL, &arena, &list, v->err);
		for (size_t i = 0; rc == 0 && i < list.nr; i++)
			if (!is_shared(v, rank, list.at[i].file))
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
		uint64_t n = sc_min_u64(r.g.bytes - at, CHUNK);

		rc = read_gather(v, &r.mapped, &r.g, at, n, v->mine);
		if (rc == 0)
			(void)XXH3_128bits_update(state, v->mine, n);
		if (rc == 0 && v->tick && v->tick(v->arg, n))
			rc = sc_fail(v->err, SC_E_CANCELLED, "stopped");
	}
	if (rc == 0) {
		XXH128_canonicalFromHash(&hash, XXH3_128bits_digest(state));
		memcpy(ret, hash.digest, 16);
	}
	region_close(&r);
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

int rs_job_verify(struct rs_service *s, struct rs_job *job, struct sc_err *err)
{
	struct rs_view *head = NULL;
	struct sc_buf report = {0};
	int rc = rs_view_head(s, job, &head, err);

	if (rc < 0)
		return rc;
	err->code = 0;
	rc = rs_verify_compare(s, head, &report, err);
	if (report.failed)
		rc = sc_nomem(err);
	if (report.text) {
		(void)pthread_mutex_lock(&job->state);
		sc_sys.release(job->verify_report);
		job->verify_report = report.text;
		(void)pthread_mutex_unlock(&job->state);
	}
	rs_view_unref(s, head);
	return rc;
}
