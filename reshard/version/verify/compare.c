/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Verifies sets.  A rank's box of a logical tensor has a digest (io/digest.h) that depends on nothing but the box
 * and its bytes, so:
 *
 *  1. Boxes of one region have equal digests, or copies differ.
 *  2. The digests of the boxes that a plan would read add up to the tensor's, which depends on no topology.
 *  3. A box that no plan reads (tied tensors are cut in different ways) has the digest of its region as a plan reads
 *     it.
 *
 * Each stored byte is read once, but for those of (3), which are read once more.
 */
#include "reshard/version/verify/verify_i.h"

#include <inttypes.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include "reshard/engine/io/digest.h"
#include "reshard/engine/io/engine.h"

#define DIGEST_CHUNK (1u << 20)		/* of a target: stays in a core's cache for the second CRC */
#define SHORT_RUN_BYTES 64		/* shorter ones are put together first */
#define REPORT_LINES_MAX 20

static const struct rs_nodes one_node = {0};

void rs_verify_begin(struct verify *v)
{
	v->sets[0] = v->set;
	v->whole = (struct rs_version){.refs = 1, .nr_sets = 1, .sets = v->sets};
	v->last = &v->first;
}

void rs_verify_end(struct verify *v)
{
	sc_sys.release(v->mine);
	sc_sys.release(v->theirs);
	sc_sys.release(v->digester);
	sc_sys.release(v->chunk);
	sc_sys.release(v->suspects);
	sc_sys.release(v->blobs);
	sc_map_done(&v->by_key);
	sc_arena_done(&v->arena);
	sc_buf_done(&v->report);
}

void rs_verify_line(struct verify *v, const char *fmt, ...)
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

/* --- digests of boxes --- */

/* Gives type and shape of a logical tensor as they are cut.  If its elements are smaller than a byte, each rank has it
 * whole, and it counts as its bytes. */
static unsigned cut_as(const struct meta_tensor *t, struct meta_shape *ret)
{
	unsigned bits = meta_dtype_bits(t->dtype);

	*ret = t->shape;
	if (bits % 8 == 0)
		return bits / 8;
	*ret = (struct meta_shape){.nr = 1};
	(void)meta_tensor_bytes(t->dtype, &t->shape, &ret->dim[0]);
	return 1;
}

/* Makes the region of a box a box of the whole tensor; *ret_base: where that begins in the tensor, in elements. */
static struct meta_box in_whole(const struct meta_shape *shape, const struct meta_box *box, uint64_t *ret_base)
{
	struct meta_box w = *box;
	uint64_t stride = 1;

	w.at = *ret_base = 0;
	for (int k = shape->nr - 1; k >= 0; k--) {
		w.stride[k] = stride;
		*ret_base += w.off[k] * stride;
		stride *= shape->dim[k];
	}
	return w;
}

/* Digests the bytes [at, at + bytes) that one copy puts into its target, which begins at byte `base` of the tensor. */
static int digest_chunk(struct verify *v, const struct rs_mapped *m, const struct rs_gather *one, uint64_t at,
			uint64_t bytes, uint64_t base)
{
	const struct rs_copy *c = one->copies;
	struct rs_copy laid;
	int rc;

	if (c->run >= SHORT_RUN_BYTES || !c->nr)
		return rs_sources_digest(m, c, at, bytes, base, v->digester, v->err);
	rc = rs_sources_read(m, one, at, bytes, v->chunk, v->err);
	if (rc < 0)
		return rc;
	laid = rs_copy_laid(c);
	/* the byte that the target's first one would be at: none of those before `at` is read */
	rs_digester_add_copy(v->digester, base, &laid, at, bytes, (const unsigned char *)((uintptr_t)v->chunk - at));
	return 0;
}

/* Digests the bytes that a gather of a region collects; the region begins at byte `base` of the tensor. */
static int digest_gather(struct verify *v, const struct rs_mapped *m, const struct rs_gather *g, uint64_t base,
			 uint64_t tensor_bytes, struct rs_digest *ret)
{
	struct rs_digester *d = v->digester;
	int rc = 0;

	for (uint32_t i = 0; rc == 0 && i < g->nr; i++) {
		struct rs_copy *c = &g->copies[i];
		const struct rs_gather one = {.bytes = g->bytes, .nr = 1, .copies = c};
		const uint64_t end = rs_copy_end(c);
		struct rs_digest part;

		rs_digester_begin(d);
		for (uint64_t at = c->to, n; rc == 0 && at < end; at += n) {
			const uint64_t before = d->added;

			n = sc_min_u64(end - at, DIGEST_CHUNK);
			rc = rs_sources_need(m, &one, at, n, NULL, v->err);
			if (rc < 0)
				break;
			rc = digest_chunk(v, m, &one, at, n, base);
			rs_sources_release(m, &one, at, n);
			if (rc == 0 && v->tick && v->tick(v->arg, d->added - before))
				rc = sc_fail(v->err, SC_E_CANCELLED, "stopped");
		}
		part = rs_digester_end(d, tensor_bytes);
		rs_digest_add(ret, &part);
	}
	return rc;
}

/* Digests a region as a plan reads it; *ret_sources, which the caller frees, says from which ranks. */
static int digest_planned(struct verify *v, const struct meta_tensor *t, const struct meta_box *box,
			  struct rs_digest *ret, struct rs_sources *ret_sources)
{
	struct rs_origins o = rs_origins_of(v->s, &v->whole);
	struct meta_shape shape;
	unsigned bytes = cut_as(t, &shape);
	struct rs_gather g = {0};
	struct rs_mapped mapped = {0};
	struct sc_arena arena = {0};
	struct meta_box w;
	uint64_t base, all;
	int rc;

	w = in_whole(&shape, box, &base);
	(void)meta_tensor_bytes(t->dtype, &t->shape, &all);
	g.bytes = all - base * bytes;
	rc = rs_plan_box(v->set->view, t->key, &w, &one_node, 0, 0, &g, ret_sources, v->err);
	if (rc == 0)
		rc = rs_sources_open(ret_sources, &g, 1, &o, &arena, &mapped, v->err);
	if (rc == 0)
		rc = digest_gather(v, &mapped, &g, base * bytes, all, ret);
	rs_sources_close(&mapped);
	rs_gather_done(&g);
	sc_arena_done(&arena);
	return rc;
}

/* --- copies --- */

/* Writes the key that tells a piece from other pieces; returns its bytes. */
static size_t key_of(const struct verify *v, const struct meta_tensor *t, const struct meta_box *box,
		     uint64_t ret[1 + 2 * SC_DIMS_MAX])
{
	ret[0] = (uint64_t)(t - v->set->state.tensors);
	memcpy(ret + 1, box->off, box->nr * sizeof(*ret));
	memcpy(ret + 1 + box->nr, box->ext, box->nr * sizeof(*ret));
	return (1 + 2u * box->nr) * sizeof(*ret);
}

static void say_differ(struct verify *v, const struct part *p, uint32_t rank, const char *name, uint32_t other_rank,
		       const char *other_name)
{
	v->differ++;
	v->suspects[p->key[0]] = true;
	rs_verify_line(v, "'%s': rank %u ('%s') and rank %u ('%s') hold different bytes",
	     v->set->state.tensors[p->key[0]].key, rank, name, other_rank, other_name);
}

/* Gives the name under which the rank of a part stores it. */
static int name_of(struct verify *v, const struct part *p, const char **ret)
{
	uint32_t coords[SC_AXES_MAX];
	const char *file;

	meta_topology_coords(v->set->view->topo, p->rank, coords);
	return meta_entry_stored(v->set->view, p->entry, coords, &v->arena, &file, ret) < 0 ? sc_nomem(v->err) : 0;
}

/* Takes the digest of a box of a rank: the first rank makes a part, the digests of other ranks are compared with it. */
static int meet_part(struct verify *v, uint32_t rank, const struct meta_stored *s, const struct meta_box *box,
		     const struct rs_digest *digest)
{
	uint64_t key[1 + 2 * SC_DIMS_MAX];
	size_t bytes = key_of(v, &v->set->state.tensors[s->entry->tensor], box, key);
	struct part *p = sc_map_get(&v->by_key, (const char *)key, bytes);
	const char *name;

	if (p && rs_digest_equal(&p->digest, digest))
		return 0;
	if (p) {
		if (name_of(v, p, &name) < 0)
			return SC_E_NO_MEMORY;
		say_differ(v, p, rank, s->name, p->rank, name);
		return 0;
	}
	p = sc_arena_alloc(&v->arena, sizeof(*p) + bytes);
	if (!p)
		return sc_nomem(v->err);
	p->entry = s->entry;
	p->rank = rank;
	p->digest = *digest;
	memcpy(p->key, key, bytes);
	if (sc_map_put(&v->by_key, (const char *)p->key, bytes, p) < 0)
		return sc_nomem(v->err);
	*v->last = p;
	v->last = &p->next;
	return 0;
}

/* Digests the bytes that a rank stores of one box. */
static int read_box(struct verify *v, uint32_t rank, const struct meta_stored *s, const struct meta_box *box,
		    const struct rs_mapped *own)
{
	const struct meta_tensor *t = &v->set->state.tensors[s->entry->tensor];
	struct meta_box bytes = {.nr = 1, .stride = {1}}, w;
	struct meta_shape shape;
	unsigned element_bytes = cut_as(t, &shape);
	struct rs_digest digest = {{0}};
	struct rs_gather g = {0};
	uint64_t base;
	int rc;

	(void)meta_tensor_bytes(t->dtype, &t->shape, &g.bytes);
	bytes.ext[0] = g.bytes;
	w = in_whole(&shape, meta_dtype_bits(t->dtype) % 8 ? &bytes : box, &base);
	if (rs_gather_add(&g, 0, &w, meta_dtype_bits(t->dtype) % 8 ? &bytes : box, element_bytes) < 0)
		return sc_nomem(v->err);
	rs_sources_reorder(own, &g);
	rc = digest_gather(v, own, &g, base * element_bytes, g.bytes, &digest);
	rs_gather_done(&g);
	return rc < 0 ? rc : meet_part(v, rank, s, box, &digest);
}

int rs_verify_open_own(struct verify *v, uint32_t rank, const struct meta_stored *s, struct own *own)
{
	struct rs_origins o = rs_origins_of(v->s, &v->whole);

	own->source = (struct rs_source){.view = v->set->view, .rank = rank, .file = s->file, .name = s->name};
	own->sources = (struct rs_sources){.nr = 1, .at = &own->source};
	return rs_sources_open(&own->sources, NULL, 0, &o, &own->arena, &own->mapped, v->err);
}

void rs_verify_close_own(struct own *own)
{
	rs_sources_close(&own->mapped);
	sc_arena_done(&own->arena);
}

static int read_stored(struct verify *v, uint32_t rank, const struct meta_stored *s)
{
	struct own own = {0};
	int rc = rs_verify_open_own(v, rank, s, &own);

	for (uint32_t i = 0; rc == 0 && i < s->piece.nr_boxes; i++)
		if (meta_box_elements(&s->piece.boxes[i]))
			rc = read_box(v, rank, s, &s->piece.boxes[i], &own.mapped);
	rs_verify_close_own(&own);
	return rc;
}

/* --- a set --- */

int rs_verify_each(struct verify *v, rs_verify_fn *each)
{
	int rc = 0;

	for (uint32_t rank = 0; rc == 0 && rank < v->set->topo.ranks; rank++) {
		struct meta_stored_list list = {0};
		struct sc_arena arena = {0};

		rc = meta_view_rank(v->set->view, rank, NULL, &arena, &list, v->err);
		for (size_t i = 0; rc == 0 && i < list.nr; i++)
			if (!rs_verify_is_shared(v->set, rank, list.at[i].file))
				rc = each(v, rank, &list.at[i]);
		sc_vec_done(&list);
		sc_arena_done(&arena);
	}
	return rc;
}

struct cover {
	struct verify *v;
	const struct meta_tensor *tensor;
	struct rs_digest sum;
	uint64_t elements;
};

static int on_read(void *arg, const struct meta_entry *e, const uint32_t coords[SC_AXES_MAX],
		   const struct meta_box *box)
{
	struct cover *c = arg;
	uint64_t key[1 + 2 * SC_DIMS_MAX];
	size_t bytes = key_of(c->v, c->tensor, box, key);
	struct part *p = sc_map_get(&c->v->by_key, (const char *)key, bytes);

	(void)e, (void)coords;
	if (!p)
		return 0;
	p->is_read = true;
	rs_digest_add(&c->sum, &p->digest);
	c->elements += meta_box_elements(box);
	return 0;
}

/* Adds up the digests of the parts that a plan of the whole tensor reads. */
static int add_up(struct verify *v, const struct meta_tensor *t, uint8_t ret[16])
{
	struct cover c = {.v = v, .tensor = t};
	struct meta_box all = {.nr = t->shape.nr};
	const struct meta_entry *e = &v->set->view->entries[v->set->view->first[t - v->set->state.tensors]];
	int rc = 0;

	memcpy(all.ext, t->shape.dim, sizeof(all.ext));
	if (meta_dtype_bits(t->dtype) % 8)
		rc = on_read(&c, e, NULL, &all);
	else if (meta_box_elements(&all))
		rc = meta_view_sources(v->set->view, e, all.off, all.ext, on_read, &c, v->err);
	if (rc == 0 && c.elements != meta_box_elements(&all))
		rc = sc_fail(v->err, SC_E_STATE, "'%s': ranks hold %" PRIu64 " of its %" PRIu64 " elements", t->key,
			     c.elements, meta_box_elements(&all));
	rs_digest_bytes(&c.sum, ret);
	return rc;
}

/* Compares a part that no plan reads with the bytes that a plan reads of its region. */
static int compare_part(struct verify *v, const struct part *p)
{
	const struct meta_tensor *t = &v->set->state.tensors[p->key[0]];
	struct meta_box box = {.nr = t->shape.nr};
	struct rs_sources sources = {0};
	struct rs_digest digest = {{0}};
	const char *name;
	int rc;

	memcpy(box.off, p->key + 1, box.nr * sizeof(*box.off));
	memcpy(box.ext, p->key + 1 + box.nr, box.nr * sizeof(*box.ext));
	rc = digest_planned(v, t, &box, &digest, &sources);
	if (rc == 0 && !rs_digest_equal(&digest, &p->digest)) {
		rc = name_of(v, p, &name);
		if (rc == 0)
			say_differ(v, p, p->rank, name, sources.at[0].rank, sources.at[0].name);
	}
	rs_sources_done(&sources);
	return rc;
}

static int note_blob(struct verify *v, uint32_t rank, const struct meta_stored *s)
{
	const struct rs_set_blob *blob = v->suspects[s->entry->tensor] ? rs_set_find(v->set, rank, s->file) : NULL;

	if (blob)
		v->blobs[blob - v->set->blobs] = true;
	return 0;
}

/* Looks at the blobs of tensors whose digests are not those of the first verification. */
static int look_at_suspects(struct verify *v)
{
	int rc;

	v->blobs = sc_zalloc_array(v->set->nr_blobs + 1, sizeof(*v->blobs));
	rc = v->blobs ? rs_verify_each(v, note_blob) : sc_nomem(v->err);
	for (size_t i = 0; rc >= 0 && i < v->set->nr_blobs; i++)
		if (v->blobs[i])
			rc = rs_verify_suspect(v->s, v->set->blobs[i].blob, v->tick, v->arg, v->err);
	return rc < 0 ? rc : 0;
}

/* Counts no progress: these bytes are read once more for their digests, and counted then. */
static int on_hashed(void *arg, uint64_t bytes)
{
	const struct verify *v = arg;

	(void)bytes;
	return v->tick ? v->tick(v->arg, 0) : 0;
}

static int verify_set(struct verify *v, uint8_t (*digests)[16])
{
	const uint8_t (*kept)[16] = rs_set_digests(v->set);
	bool any = false;
	int rc;

	v->digester = sc_sys.alloc(sizeof(*v->digester));
	v->chunk = sc_sys.alloc(DIGEST_CHUNK);
	v->suspects = sc_zalloc_array(v->set->state.nr + 1, sizeof(*v->suspects));
	if (!v->digester || !v->chunk || !v->suspects)
		return sc_nomem(v->err);
	rs_digester_init(v->digester);
	/* files of an earlier set, which ranks did not write again, may have changed: then they get no digests */
	rc = kept ? 0 : rs_verify_files(v->s, v->set, on_hashed, v, v->err);
	if (rc == 0)
		rc = rs_verify_each(v, read_stored);
	for (uint32_t t = 0; rc == 0 && t < v->set->state.nr; t++) {
		rc = add_up(v, &v->set->state.tensors[t], digests[t]);
		if (rc == 0 && kept && memcmp(kept[t], digests[t], sizeof(kept[t])) != 0)
			any = v->suspects[t] = true;
	}
	for (struct part *p = v->first; rc == 0 && p; p = p->next)
		if (!p->is_read)
			rc = compare_part(v, p);
	/* not yet verified: copies that differ are what ranks wrote */
	return rc == 0 && kept && (any || v->differ) ? look_at_suspects(v) : rc;
}

int rs_verify_set(struct rs_service *s, struct rs_set *set, rs_tick_fn *tick, void *arg,
		  uint8_t (**ret_digests)[16], char **ret_report, struct sc_err *err)
{
	struct verify v = {.s = s, .set = set, .tick = tick, .arg = arg, .err = err};
	uint8_t (*digests)[16] = sc_zalloc_array(set->state.nr ? set->state.nr : 1, sizeof(*digests));
	char *report = NULL;
	int rc;

	rs_verify_begin(&v);
	rc = digests ? verify_set(&v, digests) : sc_nomem(err);
	if (rc == 0) {
		report = sc_strdup(v.report.text ? v.report.text : "");
		rc = report ? 0 : sc_nomem(err);
	}
	if (rc == 0 && v.differ)
		rc = sc_fail(err, SC_E_COPIES, "%.*s", (int)strcspn(report, "\n"), report);
	rs_verify_end(&v);
	if (rc == 0)
		*ret_digests = sc_steal(&digests);
	if (rc == 0 || rc == SC_E_COPIES)
		*ret_report = sc_steal(&report);
	sc_sys.release(digests);
	sc_sys.release(report);
	return rc;
}
