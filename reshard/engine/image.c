/* SPDX-License-Identifier: Apache-2.0 */
#include "reshard/engine/image.h"

#include <assert.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <xxhash.h>

#include "meta/base/guard.h"

/* What an open may take to make a file of clones: about 5 ms. */
#define CLONES_MAX 256u
#define REST_BYTES_MAX (1u << 20)

static const struct rs_nodes one_node = {0};

/* --- is there a blob with these contents? --- */

/* The rank of a stored view at the same coordinates, by name; beyond the old degree: modulo. */
static uint32_t same_place(const struct meta_view *view, uint32_t rank, const struct meta_view *stored)
{
	const struct meta_mesh *mesh = &stored->layout->meshes[0];
	uint32_t coords[SC_AXES_MAX], at[SC_AXES_MAX] = {0};

	meta_topology_coords(view->topo, rank, coords);
	for (int i = 0; i < mesh->nr; i++) {
		const char *name = stored->layout->axes.name[mesh->at[i].axis];
		int k = meta_axis_find(&view->layout->axes, name, strlen(name));

		if (k >= 0)
			at[mesh->at[i].axis] = coords[k] % stored->topo->degree[mesh->at[i].axis];
	}
	return meta_topology_rank(stored->topo, at);
}

static bool same_piece(const struct meta_piece *a, const struct meta_piece *b)
{
	if (!meta_shape_equal(&a->shape, &b->shape) || a->nr_boxes != b->nr_boxes)
		return false;
	for (uint32_t i = 0; i < a->nr_boxes; i++)
		if (!meta_box_equal(&a->boxes[i], &b->boxes[i]))
			return false;
	return true;
}

static int by_name(const void *a, const void *b)
{
	return strcmp(((const struct meta_stored *)a)->name, ((const struct meta_stored *)b)->name);
}

/* Of names and shapes, in any order. */
static uint64_t digest(const struct meta_stored_list *list)
{
	uint64_t sum = 0;

	for (size_t i = 0; i < list->nr; i++) {
		const struct meta_stored *s = &list->at[i];
		uint64_t shape = XXH3_64bits(s->piece.shape.dim, s->piece.shape.nr * sizeof(*s->piece.shape.dim));

		sum += XXH3_64bits_withSeed(s->name, strlen(s->name), shape);
	}
	return sum;
}

/* Do two ranks store the same tensors, piece for piece, under the same names? Sorts both, unless they
 * obviously do not. */
static bool same_file(const struct meta_view *va, struct meta_stored_list *a,
		      const struct meta_view *vb, struct meta_stored_list *b)
{
	if (a->nr != b->nr || digest(a) != digest(b))
		return false;
	qsort(a->at, a->nr, sizeof(*a->at), by_name);
	qsort(b->at, b->nr, sizeof(*b->at), by_name);
	for (size_t i = 0; i < a->nr; i++) {
		const struct meta_stored *x = &a->at[i], *y = &b->at[i];

		if (strcmp(x->name, y->name) != 0 ||
		    strcmp(va->state->tensors[x->entry->tensor].key,
			   vb->state->tensors[y->entry->tensor].key) != 0 ||
		    !same_piece(&x->piece, &y->piece))
			return false;
	}
	return true;
}

static int find_same(struct rs_image *im, const struct meta_view *view, uint32_t rank,
		     const char *file, struct meta_stored_list *list, const struct rs_origins *o,
		     struct sc_err *err)
{
	const struct meta_tensor *t = &view->state->tensors[list->at[0].entry->tensor];
	const struct meta_view *stored = o->view_of(o->arg, t);
	uint32_t other = same_place(view, rank, stored);
	struct meta_stored_list theirs = {0};
	struct sc_arena arena = {0};
	int rc = meta_view_rank(stored, other, file, &arena, &theirs, err);

	if (rc == 0 && same_file(view, list, stored, &theirs))
		if (!o->blob_of(o->arg, stored, other, file, &im->same_as, &im->bytes))
			im->same_as = 0;
	sc_vec_done(&theirs);
	sc_arena_done(&arena);
	return rc;
}

/* --- the description --- */

static int plan_tensor(struct rs_image *im, const struct meta_view *view,
		       const struct meta_stored *s, struct rs_gather *g, const struct rs_origins *o,
		       struct sc_err *err)
{
	const struct meta_tensor *t = &view->state->tensors[s->entry->tensor];
	const struct meta_view *stored = o->view_of(o->arg, t);

	if (!meta_tensor_bytes(t->dtype, &s->piece.shape, &g->bytes))
		return sc_fail(err, SC_E_STATE, "'%s': size overflows", t->key);
	for (uint32_t i = 0; i < s->piece.nr_boxes; i++) {
		int rc = rs_plan_box(stored, t->key, &s->piece.boxes[i], &one_node, 0, 0, g, &im->sources, err);

		if (rc < 0)
			return rc;
	}
	rs_gather_finish(g);
	return 0;
}

/* A file without a format is its one tensor's bytes. */
static int place_bytes(struct rs_image *im, const char *file, struct sc_err *err)
{
	if (im->nr != 1)
		return sc_fail(err, SC_E_UNSUPPORTED, "'%s' is no safetensors file and would hold %u tensors", file,
			       im->nr);
	im->tensors[0].begin = 0;
	if (!meta_tensor_bytes(im->tensors[0].dtype, &im->tensors[0].shape, &im->tensors[0].end))
		return sc_fail(err, SC_E_STATE, "'%s': size overflows", file);
	return 0;
}

static int describe(struct rs_image *im, const struct meta_view *view, const char *file,
		    struct meta_stored_list *list, const struct rs_origins *o, struct sc_err *err)
{
	const char *logical = view->state->tensors[list->at[0].entry->tensor].file;
	struct sc_map by = {0};
	struct sc_buf header = {0};
	int rc = 0;

	im->nr = (uint32_t)list->nr;
	im->tensors = sc_arena_array(&im->arena, list->nr, sizeof(*im->tensors));
	im->gathers = sc_arena_array(&im->arena, list->nr, sizeof(*im->gathers));
	if (!im->tensors || !im->gathers)
		return sc_nomem(err);
	for (size_t i = 0; i < list->nr && rc == 0; i++) {
		const struct meta_stored *s = &list->at[i];
		const struct meta_tensor *t = &view->state->tensors[s->entry->tensor];

		im->tensors[i] = (struct rs_tensor_at){
			.name = sc_arena_copy(&im->arena, s->name, strlen(s->name)),
			.dtype = t->dtype, .shape = s->piece.shape, .skew = o->skew_of(o->arg, t)};
		if (!im->tensors[i].name || sc_map_put(&by, s->name, strlen(s->name), (void *)s) < 0)
			rc = sc_nomem(err);
	}
	if (rc == 0 && rs_safetensors_is(file))
		rc = rs_safetensors_header(im->tensors, im->nr, o->metadata_of(o->arg, logical), &header, err);
	else if (rc == 0)
		rc = place_bytes(im, file, err);
	im->header = header.text;
	im->header_bytes = header.bytes;
	for (uint32_t i = 0; i < im->nr && rc == 0; i++) {
		const char *name = im->tensors[i].name;

		rc = plan_tensor(im, view, sc_map_get(&by, name, strlen(name)), &im->gathers[i], o, err);
	}
	im->bytes = im->nr ? im->tensors[im->nr - 1].end : im->header_bytes;
	sc_map_done(&by);
	return rc;
}

int rs_image_new(const struct meta_view *view, uint32_t rank, const char *file, bool as_view,
		 const struct rs_origins *origins, struct rs_image **ret, struct sc_err *err)
{
	struct rs_image *im = sc_zalloc(sizeof(*im));
	struct meta_stored_list list = {0};
	struct sc_arena arena = {0};
	int rc;

	if (!im)
		return sc_nomem(err);
	rc = meta_view_rank(view, rank, file, &arena, &list, err);
	if (rc == 0 && list.nr == 0)
		rc = sc_fail(err, SC_E_NOT_FOUND, "rank %u has no file '%s'", rank, file);
	if (rc == 0 && !as_view)
		rc = find_same(im, view, rank, file, &list, origins, err);
	if (rc == 0 && !im->same_as)
		rc = describe(im, view, file, &list, origins, err);
	sc_vec_done(&list);
	sc_arena_done(&arena);
	if (rc < 0)
		rs_image_free(im, NULL);
	else
		*ret = im;
	return rc;
}

int rs_image_same(uint64_t blob, uint64_t bytes, struct rs_image **ret, struct sc_err *err)
{
	struct rs_image *im = sc_zalloc(sizeof(*im));

	if (!im)
		return sc_nomem(err);
	im->same_as = blob;
	im->bytes = bytes;
	*ret = im;
	return 0;
}

bool rs_image_clones(const struct rs_image *im)
{
	uint64_t rest = 0;
	uint32_t clones = 0;

	for (uint64_t at = im->header_bytes, n; at < im->bytes; at += n) {
		const unsigned char *data = NULL;
		uint32_t source = UINT32_MAX;
		bool aligned;

		n = rs_image_run(im, at, im->bytes - at, &data, &source);
		aligned = n && (uint64_t)(data - im->mapped.blobs[source]->map) % SC_DATA_ALIGN == at % SC_DATA_ALIGN;
		if (n == 0)
			n = SC_DATA_ALIGN; /* padding: a block at a time is good enough for a guess */
		if (aligned && n >= SC_CLONE_BYTES_MIN)
			clones++;
		else
			rest += n;
		if (clones > CLONES_MAX || rest > REST_BYTES_MAX)
			return false;
	}
	return clones > 0;
}

struct rs_image *rs_image_free(struct rs_image *im, struct rs_blobs *blobs)
{
	if (!im)
		return NULL;
	rs_sources_close(&im->mapped, blobs);
	for (uint32_t i = 0; im->gathers && i < im->nr; i++)
		rs_gather_done(&im->gathers[i]);
	rs_sources_done(&im->sources);
	sc_sys.release(im->header);
	sc_arena_done(&im->arena);
	sc_sys.release(im);
	return NULL;
}

/* --- bytes --- */

static int open_source(const struct rs_source *s, struct rs_blobs *blobs,
		       const struct rs_origins *o, struct rs_blob **ret, uint64_t *ret_at,
		       struct sc_err *err)
{
	bool tensors = rs_safetensors_is(s->file);
	const struct rs_tensor_at *t;
	uint64_t id, bytes;
	int rc;

	if (!o->blob_of(o->arg, s->view, s->rank, s->file, &id, &bytes))
		return sc_fail(err, SC_E_NOT_FOUND, "rank %u: no blob of '%s'", s->rank, s->file);
	rc = rs_blob_get(blobs, id, tensors, bytes, ret, err);
	if (rc < 0)
		return sc_wrap(err, rc, "rank %u '%s'", s->rank, s->file);
	*ret_at = 0;
	if (!tensors)
		return 0;
	t = rs_safetensors_find(&(*ret)->st, s->name);
	if (!t)
		return sc_fail(err, SC_E_FORMAT, "rank %u: '%s' lacks tensor '%s'", s->rank, s->file, s->name);
	*ret_at = t->begin;
	return 0;
}

int rs_sources_open(const struct rs_sources *sources, struct rs_blobs *blobs, const struct rs_origins *origins,
		    struct sc_arena *arena, struct rs_mapped *ret, struct sc_err *err)
{
	struct rs_mapped m = {sources, sc_arena_array(arena, sources->nr + 1, sizeof(*m.data)),
			      sc_arena_array(arena, sources->nr + 1, sizeof(*m.blobs))};
	int rc = m.data && m.blobs ? 0 : sc_nomem(err);

	for (size_t i = 0; i < sources->nr && rc == 0; i++) {
		uint64_t at = 0;

		rc = open_source(&sources->at[i], blobs, origins, &m.blobs[i], &at, err);
		if (rc == 0)
			m.data[i] = m.blobs[i]->map + at;
	}
	if (rc < 0)
		rs_sources_close(&m, blobs);
	else
		*ret = m;
	return rc;
}

void rs_sources_close(struct rs_mapped *m, struct rs_blobs *blobs)
{
	for (size_t i = 0; m->blobs && i < m->sources->nr; i++)
		rs_blob_put(blobs, m->blobs[i]);
	*m = (struct rs_mapped){0};
}

int rs_image_open(struct rs_image *im, struct rs_blobs *blobs, const struct rs_origins *origins,
		  struct sc_err *err)
{
	assert(!im->mapped.data && !im->same_as);
	return rs_sources_open(&im->sources, blobs, origins, &im->arena, &im->mapped, err);
}

/* Reads under the guard, and says which source could not be read. */
static int read_guarded(const struct rs_mapped *m, void (*fn)(void *arg), void *arg, struct sc_err *err)
{
	const void *lost;

	if (sc_guard_run(fn, arg, &lost))
		return 0;
	for (size_t i = 0; i < m->sources->nr; i++) {
		const struct rs_source *s = &m->sources->at[i];
		uint64_t at = (uint64_t)((uintptr_t)lost - (uintptr_t)m->blobs[i]->map);

		if (at < m->blobs[i]->bytes)
			return sc_wrap(err, rs_cannot_read(m->blobs[i]->id, at, EIO, err), "rank %u '%s'", s->rank,
				       s->file);
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
	return read_guarded(m, read_gather, &(struct gather_read){m, g, at, bytes, to}, err);
}

/* The tensor that has byte `at`, or the next after it; nr: none.  Empty ones have no byte. */
static uint32_t tensor_at(const struct rs_image *im, uint64_t at)
{
	uint32_t lo = 0, hi = im->nr;

	while (lo < hi) {
		uint32_t mid = lo + (hi - lo) / 2;

		if (im->tensors[mid].end <= at)
			lo = mid + 1;
		else
			hi = mid;
	}
	return lo;
}

uint64_t rs_image_border(const struct rs_image *im, uint64_t at)
{
	uint32_t i = tensor_at(im, at);

	if (i == im->nr)
		return im->bytes;
	return at < im->tensors[i].begin ? im->tensors[i].begin : im->tensors[i].end;
}

struct image_read {
	const struct rs_image *image;
	uint64_t at, bytes;
	unsigned char *to;
};

static void read_image(void *arg)
{
	const struct image_read *r = arg;
	const struct rs_image *im = r->image;
	uint64_t at = r->at, bytes = r->bytes;
	unsigned char *to = r->to;

	if (bytes && at < im->header_bytes) {
		uint64_t n = im->header_bytes - at < bytes ? im->header_bytes - at : bytes;

		memcpy(to, im->header + at, n);
		to += n;
		at += n;
		bytes -= n;
	}
	for (uint32_t i = tensor_at(im, at); bytes; i++) {
		const struct rs_tensor_at *t = &im->tensors[i];
		uint64_t n = t->end - at < bytes ? t->end - at : bytes;

		rs_gather_read(&im->gathers[i], im->mapped.data, at - t->begin, n, to);
		to += n;
		at += n;
		bytes -= n;
	}
}

int rs_image_read(const struct rs_image *im, uint64_t at, uint64_t bytes, unsigned char *to, struct sc_err *err)
{
	assert(at + bytes <= im->bytes && im->mapped.data);
	return read_guarded(&im->mapped, read_image, &(struct image_read){im, at, bytes, to}, err);
}

uint64_t rs_image_run(const struct rs_image *im, uint64_t at, uint64_t bytes,
		      const unsigned char **ret_data, uint32_t *ret_source)
{
	uint64_t n, from;
	uint32_t i;

	if (at < im->header_bytes) {
		*ret_data = (const unsigned char *)im->header + at;
		*ret_source = UINT32_MAX;
		return im->header_bytes - at < bytes ? im->header_bytes - at : bytes;
	}
	i = tensor_at(im, at);
	n = rs_gather_run(&im->gathers[i], at - im->tensors[i].begin, bytes, ret_source, &from);
	if (n)
		*ret_data = im->mapped.data[*ret_source] + from;
	return n;
}
