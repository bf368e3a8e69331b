/* SPDX-License-Identifier: Apache-2.0 */
#include "reshard/engine/io/sources.h"

#include <assert.h>
#include <errno.h>
#include <string.h>

#include "meta/base/guard.h"

#define RECENT 64 /* files that sources may share without being opened again */

const struct rs_source_ops *const rs_source_kinds[] = {&rs_source_local, NULL};

/* Adds to an error which source it comes from. */
static int of_source(const struct rs_source *s, int rc, struct sc_err *err)
{
	if (s->rank == RS_NO_RANK)
		return sc_wrap(err, rc, "'%s'", s->file);
	return sc_wrap(err, rc, "rank %u '%s'", s->rank, s->file);
}

/* --- places --- */

/* Gives the order in which a tensor lies, if it is not row-major. */
static int order_of(const struct rs_found_tensor *t, struct sc_arena *arena, const struct rs_order **ret,
		    struct sc_err *err)
{
	struct rs_order *order = t->stride ? sc_arena_alloc(arena, sizeof(*order)) : NULL;

	*ret = order;
	if (!t->stride)
		return 0;
	if (!order)
		return sc_nomem(err);
	*order = (struct rs_order){.shape = t->shape, .element_bytes = meta_dtype_bits(t->dtype) / 8};
	memcpy(order->stride, t->stride, t->shape.nr * sizeof(*t->stride));
	return 0;
}

/* A file that was looked up for a source, and may have the next ones, too. */
struct near {
	const struct meta_view *view;
	uint32_t rank, next;	/* next: as rs_found_next() has it */
	const char *file;
	struct rs_blob *blob;	/* a reference; NULL: none yet */
};

static int find_near(struct near *n, const struct rs_source *s, const struct rs_origins *o, struct sc_err *err)
{
	uint64_t id, bytes;
	int rc;

	if (n->blob && n->view == s->view && n->rank == s->rank && strcmp(n->file, s->file) == 0)
		return 0;
	rs_blob_put(o->blobs, n->blob);
	*n = (struct near){s->view, s->rank, 0, s->file, NULL};
	if (!o->blob_of(o->arg, s->view, s->rank, s->file, &id, &bytes))
		return sc_fail(err, SC_E_NOT_FOUND, "rank %u: no blob of '%s'", s->rank, s->file);
	rc = rs_blob_get(o->blobs, id, o->format_of(o->arg, s->view), bytes, &n->blob, err);
	return rc < 0 ? of_source(s, rc, err) : 0;
}

/* Places a source in a blob of this store. */
static int place_here(struct rs_source *s, const struct rs_origins *o, struct near *n, struct sc_arena *arena,
		      const struct rs_order **ret_order, struct sc_err *err)
{
	const struct rs_found_tensor *t;
	int rc;

	if (s->rank == RS_NO_RANK) { /* a placed one: only the kind is missing */
		rc = rs_blob_place(o->blobs, s->place.id, s->place.bytes, s->place.at, &s->place, err);
		return rc < 0 ? rc : 0;
	}
	rc = find_near(n, s, o, err);
	if (rc < 0)
		return rc;
	t = rs_found_next(&n->blob->found, s->name, &n->next);
	if (!t)
		return sc_fail(err, SC_E_FORMAT, "rank %u: '%s' lacks tensor '%s'", s->rank, s->file, s->name);
	rc = rs_blob_place(o->blobs, n->blob->bytes.blob, n->blob->bytes.bytes, t->at, &s->place, err);
	return rc < 0 ? rc : order_of(t, arena, ret_order, err);
}

static int place_all(struct rs_sources *sources, struct rs_gather *gathers, uint32_t nr, const struct rs_origins *o,
		     struct sc_arena *arena, struct rs_mapped *m, struct sc_err *err)
{
	struct near near[RECENT] = {0};
	int rc = o->place ? o->place(o->arg, gathers, nr, sources, err) : 0;

	if (rc < 0)
		return rc;
	m->data = sc_arena_array(arena, sources->nr + 1, sizeof(*m->data));
	m->bytes = sc_arena_array(arena, sources->nr + 1, sizeof(*m->bytes));
	m->orders = sc_arena_array(arena, sources->nr + 1, sizeof(*m->orders));
	m->opened = sc_arena_array(arena, sources->nr + 1, sizeof(*m->opened));
	if (!m->data || !m->bytes || !m->orders || !m->opened)
		return sc_nomem(err);
	for (size_t i = 0; rc == 0 && i < sources->nr; i++)
		if (!sources->at[i].place.ops)
			rc = place_here(&sources->at[i], o, &near[sources->at[i].rank % RECENT], arena,
					&m->orders[i], err);
	for (size_t i = 0; i < RECENT; i++)
		rs_blob_put(o->blobs, near[i].blob);
	return rc;
}

/* --- open, close --- */

static bool same_file(const struct rs_place *a, const struct rs_place *b)
{
	return a->ops == b->ops && a->arg == b->arg && a->id == b->id;
}

int rs_sources_open(struct rs_sources *sources, struct rs_gather *gathers, uint32_t nr,
		    const struct rs_origins *origins, struct sc_arena *arena, struct rs_mapped *ret,
		    struct sc_err *err)
{
	size_t recent[RECENT] = {0}; /* which source opened a file, plus 1 */
	struct rs_mapped m = {.sources = sources};
	int rc = place_all(sources, gathers, nr, origins, arena, &m, err);

	for (size_t i = 0; i < sources->nr && rc == 0; i++) {
		const struct rs_source *s = &sources->at[i];
		size_t *at = &recent[s->place.id % RECENT];

		if (*at && same_file(&sources->at[*at - 1].place, &s->place)) {
			m.bytes[i] = m.bytes[*at - 1];
		} else {
			rc = rs_place_open(&s->place, &m.bytes[i], err);
			if (rc < 0)
				rc = of_source(s, rc, err);
			m.opened[i] = rc == 0;
			*at = i + 1;
		}
		if (rc == 0) {
			m.data[i] = m.bytes[i]->map + s->place.at;
			m.waits = m.waits || s->place.ops->need;
		}
	}
	for (uint32_t i = 0; rc == 0 && i < nr; i++)
		rs_sources_reorder(&m, &gathers[i]);
	if (rc < 0)
		rs_sources_close(&m);
	else
		*ret = m;
	return rc;
}

void rs_sources_reorder(const struct rs_mapped *m, struct rs_gather *g)
{
	rs_gather_reorder(g, m->orders);
}

void rs_sources_close(struct rs_mapped *m)
{
	for (size_t i = 0; m->opened && i < m->sources->nr; i++)
		if (m->opened[i])
			rs_place_close(&m->sources->at[i].place, m->bytes[i]);
	*m = (struct rs_mapped){0};
}

/* --- is it there? --- */

/* Releases the bytes that the first `nr` copies of a gather needed. */
static void release_copies(const struct rs_mapped *m, const struct rs_gather *g, uint32_t nr, uint64_t at,
			   uint64_t bytes)
{
	for (uint32_t i = 0; i < nr; i++) {
		const struct rs_copy *c = &g->copies[i];
		uint64_t from, n = rs_copy_span(c, at, bytes, &from);

		if (n)
			rs_bytes_release(m->bytes[c->source], m->sources->at[c->source].place.at + from, n);
	}
}

int rs_sources_need(const struct rs_mapped *m, const struct rs_gather *g, uint64_t at, uint64_t bytes,
		    struct rs_later *later, struct sc_err *err)
{
	uint32_t i = later ? later->copies : 0;
	int rc = RS_HERE;

	for (; m->waits && i < g->nr; i++) {
		const struct rs_source *s = &m->sources->at[g->copies[i].source];
		uint64_t from, n = rs_copy_span(&g->copies[i], at, bytes, &from);

		if (n)
			rc = rs_bytes_need(m->bytes[g->copies[i].source], s->place.at + from, n,
					   later ? &later->done : NULL, err);
		if (rc < 0) {
			release_copies(m, g, i, at, bytes);
			rc = of_source(s, rc, err);
		}
		if (rc != RS_HERE)
			break;
	}
	if (later)
		later->copies = rc == RS_LATER ? i : 0;
	return rc;
}

void rs_sources_give_up(const struct rs_mapped *m, const struct rs_gather *g, uint64_t at, uint64_t bytes,
			struct rs_later *later)
{
	release_copies(m, g, later->copies, at, bytes);
	later->copies = 0;
}

void rs_sources_release(const struct rs_mapped *m, const struct rs_gather *g, uint64_t at, uint64_t bytes)
{
	if (m->waits)
		release_copies(m, g, g->nr, at, bytes);
}

void rs_sources_ahead(const struct rs_mapped *m, const struct rs_gather *g, uint64_t at, uint64_t bytes)
{
	for (uint32_t i = 0; m->waits && i < g->nr; i++) {
		const struct rs_copy *c = &g->copies[i];
		uint64_t from, n = rs_copy_span(c, at, bytes, &from);

		if (n)
			rs_bytes_ahead(m->bytes[c->source], m->sources->at[c->source].place.at + from, n);
	}
}

/* --- reading --- */

int rs_sources_guard(const struct rs_mapped *m, void (*fn)(void *arg), void *arg, struct sc_err *err)
{
	const void *lost;

	if (sc_guard_run(fn, arg, &lost))
		return 0;
	for (size_t i = 0; i < m->sources->nr; i++) {
		const struct rs_source *s = &m->sources->at[i];
		const struct rs_bytes *b = m->bytes[i];
		uint64_t at = (uint64_t)((uintptr_t)lost - (uintptr_t)b->map);

		if (at < b->bytes)
			return of_source(s, rs_cannot_read(b->blob, at, EIO, err), err);
	}
	return sc_fail(err, SC_E_DAMAGED, "a blob can't be read: its file was cut, or the disk fails");
}

struct gather_read {
	const struct rs_mapped *mapped;
	const struct rs_gather *gather;
	uint64_t at, bytes;
	unsigned char *to;
};

static void read_gather(void *arg)
{
	const struct gather_read *r = arg;

	rs_gather_read(r->gather, r->mapped->data, r->at, r->bytes, r->to);
}

int rs_sources_read(const struct rs_mapped *m, const struct rs_gather *g, uint64_t at, uint64_t bytes,
		    unsigned char *to, struct sc_err *err)
{
	return rs_sources_guard(m, read_gather, &(struct gather_read){m, g, at, bytes, to}, err);
}

struct digesting {
	const struct rs_mapped *mapped;
	const struct rs_copy *copy;
	uint64_t at, bytes, base;
	struct rs_digester *digester;
};

static void digest_copy(void *arg)
{
	const struct digesting *d = arg;

	rs_digester_add_copy(d->digester, d->base, d->copy, d->at, d->bytes, d->mapped->data[d->copy->source]);
}

int rs_sources_digest(const struct rs_mapped *m, const struct rs_copy *copy, uint64_t at, uint64_t bytes, uint64_t base,
		      struct rs_digester *digester, struct sc_err *err)
{
	return rs_sources_guard(m, digest_copy, &(struct digesting){m, copy, at, bytes, base, digester}, err);
}
