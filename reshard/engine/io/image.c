/* SPDX-License-Identifier: Apache-2.0 */
#include "reshard/engine/io/image.h"

#include <assert.h>
#include <errno.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <xxhash.h>

#include "meta/base/guard.h"

/* So many clones may an open make for a file: that takes about 5 ms. */
#define CLONES_MAX 256u
#define REST_BYTES_MAX (1u << 20)
#define AHEAD_FIRST (4u << 20)
#define AHEAD_MAX (32u << 20)
#define AHEAD_GAP (1u << 20)	/* reads of one reader may come in another order */

struct rs_ahead {
	pthread_mutex_t lock;
	uint64_t at, end;		/* of the last read */
	uint64_t window;		/* asked for behind it; 0: it did not go on where one had ended */
	uint64_t until;			/* bytes below are asked for */
};

/* --- is there a blob with these contents? --- */

uint32_t rs_same_coordinates(const struct meta_view *view, uint32_t rank, const struct meta_view *stored, bool wraps)
{
	const struct meta_mesh *mesh = &stored->layout->meshes[0];
	uint32_t coords[SC_AXES_MAX], at[SC_AXES_MAX] = {0};

	meta_topology_coords(view->topo, rank, coords);
	for (int i = 0; i < mesh->nr; i++) {
		const uint8_t axis = mesh->at[i].axis;
		const uint32_t degree = stored->topo->degree[axis];
		const char *name = stored->layout->axes.name[axis];
		int k = meta_axis_find(&view->layout->axes, name, strlen(name));

		if (k >= 0 && (wraps || coords[k] < degree))
			at[axis] = coords[k] % degree;
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

/* Sums up names and shapes, in a way that does not depend on their order. */
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

/* Tells whether two ranks store equal tensors, piece for piece, under equal names.  Sorts both lists, unless they
 * obviously differ. */
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

static enum rs_near near(void *arg, const struct meta_view *stored, uint32_t rank, const char *file)
{
	const struct rs_origins *o = arg;
	uint64_t blob, bytes;
	struct rs_place place;
	struct sc_err ignored; /* what cannot be told is told when the image is opened */

	if (!o->blob_of(o->arg, stored, rank, file, &blob, &bytes))
		return RS_GONE;
	if (rs_blob_place(o->blobs, blob, bytes, 0, &place, &ignored) == 0)
		return RS_ON_NODE;
	return rs_blob_is_gone(o->blobs, blob) ? RS_GONE : RS_ELSEWHERE;
}

/* Takes, in the place of a file whose node is gone, that of a replica that can be had. */
static void take_replica(struct rs_image *im, const struct meta_view *stored, uint32_t rank, const char *file,
			 const struct meta_tensor *t, const struct rs_origins *o)
{
	const uint64_t payload = o->payload_of(o->arg, stored, rank, file, t);
	const uint32_t like = meta_view_alike(stored, rank, file);

	for (uint32_t r = 0; r < stored->topo->ranks && !im->stands_in; r++)
		im->stands_in = meta_view_alike(stored, r, file) == like &&
				o->payload_of(o->arg, stored, r, file, t) == payload &&
				near((void *)o, stored, r, file) != RS_GONE &&
				o->blob_of(o->arg, stored, r, file, &im->same_as, &im->bytes);
}

static int find_same(struct rs_image *im, const struct meta_view *view, uint32_t rank,
		     const char *file, struct meta_stored_list *list, const struct rs_origins *o,
		     struct sc_err *err)
{
	const struct meta_tensor *t = &view->state->tensors[list->at[0].entry->tensor];
	const struct meta_view *stored = o->view_of(o->arg, t);
	struct meta_stored_list theirs = {0};
	struct sc_arena arena = {0};
	uint32_t other;
	int rc;

	if (!stored) /* placed: no file of it is like one of a view */
		return 0;
	other = rs_same_coordinates(view, rank, stored, true);
	rc = meta_view_rank(stored, other, file, &arena, &theirs, err);

	if (rc == 0 && o->payload_of(o->arg, view, rank, file, t) == o->payload_of(o->arg, stored, other, file, t) &&
	    same_file(view, list, stored, &theirs))
		if (!o->blob_of(o->arg, stored, other, file, &im->same_as, &im->bytes))
			im->same_as = 0;
	if (im->same_as && !o->anywhere && o->blobs && rs_blob_is_gone(o->blobs, im->same_as))
		take_replica(im, stored, other, file, t, o);
	sc_vec_done(&theirs);
	sc_arena_done(&arena);
	return rc;
}

/* --- the description --- */

int rs_image_plan(struct rs_image *im, const struct meta_tensor *t, const struct meta_box *box, struct rs_gather *g,
		  const struct rs_origins *o, struct sc_err *err)
{
	const struct meta_view *stored = o->view_of(o->arg, t);
	const bool any = o->anywhere || !rs_blobs_may_be_away(o->blobs);
	const struct rs_nodes nodes = {.near = any ? NULL : near, .arg = (void *)o};

	return stored ? rs_plan_box(stored, t->key, box, &nodes, 0, 0, g, &im->sources, err)
		      : rs_plan_placed(o->placed_of(o->arg, t), t, box, g, &im->sources, err);
}

/* Plans a stored tensor, of all its parts. */
static int plan_stored(struct rs_image *im, const struct rs_planned *p, const struct rs_planned *end,
		       struct rs_gather *g, const struct rs_origins *o, struct sc_err *err)
{
	if (!meta_tensor_bytes(p->tensor->dtype, &p->piece.shape, &g->bytes))
		return sc_fail(err, SC_E_STATE, "'%s': the size overflows 64 bits", p->tensor->key);
	do {
		for (uint32_t i = 0; i < p->piece.nr_boxes; i++) {
			int rc = rs_image_plan(im, p->tensor, &p->piece.boxes[i], g, o, err);

			if (rc < 0)
				return rc;
		}
	} while (++p < end && p->part);
	rs_gather_finish(g);
	return 0;
}

int rs_image_describe(struct rs_image *im, const struct rs_format_ops *format, const struct rs_planned *parts,
		      uint32_t nr, const char *payload, size_t payload_bytes, const struct rs_origins *o,
		      struct sc_err *err)
{
	struct rs_wanted *wanted = sc_zalloc_array(nr + 1u, sizeof(*wanted));
	int rc = wanted ? 0 : sc_nomem(err);

	im->nr = 0;
	for (uint32_t i = 0; rc == 0 && i < nr; i++)
		if (parts[i].part == 0)
			wanted[im->nr++] = (struct rs_wanted){.name = parts[i].name, .dtype = parts[i].tensor->dtype,
							      .shape = parts[i].piece.shape,
							      .skew = o->skew_of(o->arg, parts[i].tensor)};
	if (rc == 0)
		rc = rs_format_describe(format, wanted, im->nr, payload, payload_bytes, &im->frame, err);
	sc_sys.release(wanted);
	if (rc < 0)
		return rc;
	im->bytes = im->frame.bytes;
	im->gathers = sc_arena_array(&im->frame.arena, im->nr + 1u, sizeof(*im->gathers));
	if (!im->gathers)
		return sc_nomem(err);
	for (uint32_t i = 0, at = 0; i < nr && rc == 0; i++)
		if (parts[i].part == 0)
			rc = plan_stored(im, &parts[i], parts + nr, &im->gathers[at++], o, err);
	rs_plan_done(&im->sources);
	return rc;
}

int rs_image_whole(struct rs_image *im, uint64_t bytes, const struct rs_place *place, struct sc_err *err)
{
	struct rs_source source = {.rank = RS_NO_RANK, .file = "", .name = "", .place = *place};
	struct rs_copy all = {.run = bytes, .turns = 1};

	im->bytes = im->frame.bytes = bytes;
	if (!bytes)
		return 0;
	im->frame.pieces = sc_arena_alloc(&im->frame.arena, sizeof(*im->frame.pieces));
	im->gathers = sc_arena_alloc(&im->frame.arena, sizeof(*im->gathers));
	if (!im->frame.pieces || !im->gathers)
		return sc_nomem(err);
	im->frame.pieces[0] = (struct rs_piece){.kind = RS_PIECE_TENSOR};
	im->frame.nr = im->nr = 1;
	im->gathers[0].bytes = bytes;
	if (sc_vec_push(&im->sources, source) < 0 ||
	    sc_vec_grow((void **)&im->gathers[0].copies, 0, &im->gathers[0].room, sizeof(all)) < 0)
		return sc_nomem(err);
	im->gathers[0].copies[im->gathers[0].nr++] = all;
	rs_gather_finish(&im->gathers[0]);
	return 0;
}

int rs_image_text(struct rs_image *im, const char *text, size_t bytes, struct sc_err *err)
{
	const char *copy = sc_arena_copy(&im->frame.arena, text, bytes);

	im->frame.pieces = sc_arena_alloc(&im->frame.arena, sizeof(*im->frame.pieces));
	if (!copy || !im->frame.pieces)
		return sc_nomem(err);
	im->frame.pieces[0] = (struct rs_piece){.kind = RS_PIECE_TEXT, .text = copy};
	im->frame.nr = 1;
	im->frame.bytes = im->bytes = bytes;
	return 0;
}

/* Gives the name that a tensor has in files; NULL: it is in none. */
static const char *renamed(const struct rs_origins *o, const char *name)
{
	for (const struct rs_renamed *r = o->renamed; r && r->from; r++)
		if (strcmp(r->from, name) == 0)
			return r->to;
	return name;
}

/* Lists the tensors that a rank's file is to hold, by names of its format, in the order of the list.  Everything is in
 * `arena`, which need not live long. */
static int list_parts(const struct meta_view *view, const struct meta_stored_list *list,
		      const struct rs_format_ops *other, const struct rs_origins *o, struct sc_arena *arena,
		      struct rs_planned **ret, uint32_t *ret_nr, struct sc_err *err)
{
	struct rs_planned *parts = sc_arena_array(arena, list->nr, sizeof(*parts));

	if (!parts)
		return sc_nomem(err);
	*ret_nr = 0;
	for (size_t i = 0; i < list->nr; i++) {
		const struct meta_stored *s = &list->at[i];
		const char *name = other ? rs_format_name(other, s->name, arena) : s->name;

		if (!name)
			return sc_nomem(err);
		name = renamed(o, name);
		if (name)
			parts[(*ret_nr)++] = (struct rs_planned){name, &view->state->tensors[s->entry->tensor],
								 s->piece, s->part};
	}
	*ret = parts;
	return 0;
}

static int describe(struct rs_image *im, const struct meta_view *view, uint32_t rank, const char *file,
		    struct meta_stored_list *list, const struct rs_origins *o, struct sc_err *err)
{
	const struct meta_tensor *first = &view->state->tensors[list->at[0].entry->tensor];
	const struct rs_format_ops *own = o->format_of(o->arg, o->view_of(o->arg, first));
	const struct rs_format_ops *format = o->as ? o->as : own;
	const uint64_t number = o->payload_of(o->arg, view, rank, file, first);
	const char *payload = NULL;
	size_t payload_bytes = 0;
	struct sc_arena arena = {0};
	struct rs_planned *parts = NULL;
	uint32_t nr = 0;
	int rc = list_parts(view, list, format == own ? NULL : format, o, &arena, &parts, &nr, err);

	if (rc == 0 && format == own)
		rc = o->payload(o, number, first, &arena, &payload, &payload_bytes, err);
	if (rc == 0)
		rc = rs_image_describe(im, format, parts, nr, payload, payload_bytes, o, err);
	sc_arena_done(&arena);
	return rc < 0 ? sc_wrap(err, rc, "'%s'", file) : 0;
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
		rc = describe(im, view, rank, file, &list, origins, err);
	sc_vec_done(&list);
	sc_arena_done(&arena);
	if (rc < 0)
		rs_image_free(im);
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

/* Tells whether a run of a tensor, or of its padding, of `n` bytes, can be a clone. */
static bool is_clone(const struct rs_image *im, uint64_t at, uint64_t n, uint32_t source, const unsigned char *data)
{
	return n >= SC_CLONE_BYTES_MIN &&
	       (uint64_t)(data - im->mapped.bytes[source]->map) % SC_DATA_ALIGN == at % SC_DATA_ALIGN;
}

bool rs_image_clones(const struct rs_image *im)
{
	uint64_t rest = 0;
	uint32_t clones = 0;

	for (uint32_t i = 0; i < im->frame.nr; i++) {
		const struct rs_piece *p = &im->frame.pieces[i];
		const uint64_t end = rs_piece_end(&im->frame, p);

		if (p->kind == RS_PIECE_FILL)
			rest += end - p->at;
		for (uint64_t at = p->at, n; p->kind == RS_PIECE_TENSOR && at < end; at += n) {
			const unsigned char *data = NULL;
			uint32_t source = UINT32_MAX;

			n = rs_image_run(im, at, end - at, &data, &source);
			if (n && is_clone(im, at, n, source, data)) {
				clones++;
			} else {
				/* padding, short runs: a block at a time is good enough for a guess */
				n = sc_max_u64(n, SC_DATA_ALIGN);
				rest += n;
			}
			if (clones > CLONES_MAX || rest > REST_BYTES_MAX)
				return false;
		}
	}
	return clones > 0 && rest <= REST_BYTES_MAX;
}

struct rs_image *rs_image_free(struct rs_image *im)
{
	if (!im)
		return NULL;
	rs_sources_close(&im->mapped);
	for (uint32_t i = 0; im->gathers && i < im->nr; i++)
		rs_gather_done(&im->gathers[i]);
	rs_sources_done(&im->sources);
	rs_frame_done(&im->frame);
	if (im->ahead)
		(void)pthread_mutex_destroy(&im->ahead->lock);
	sc_sys.release(im->ahead);
	sc_sys.release(im);
	return NULL;
}

/* --- bytes --- */

int rs_image_open(struct rs_image *im, const struct rs_origins *origins, struct sc_err *err)
{
	int rc;

	assert(!im->mapped.data && (!im->same_as || im->sources.nr || !im->bytes));
	rc = rs_sources_open(&im->sources, im->gathers, im->nr, origins, &im->frame.arena, &im->mapped, err);
	if (rc < 0 || !im->mapped.waits)
		return rc;
	im->ahead = sc_zalloc(sizeof(*im->ahead)); /* without memory for it nothing is read ahead */
	if (im->ahead)
		(void)pthread_mutex_init(&im->ahead->lock, NULL);
	return 0;
}

/* Finds the gather of the tensor in the piece that has byte `at`; NULL: the piece has none.  Returns where the piece or
 * the range ends. */
static uint64_t part(const struct rs_image *im, uint64_t at, uint64_t end, const struct rs_gather **ret,
		     uint64_t *ret_at)
{
	const struct rs_piece *p = rs_frame_piece(&im->frame, at);

	*ret = p->kind == RS_PIECE_TENSOR ? &im->gathers[p->tensor] : NULL;
	*ret_at = at - p->at;
	return sc_min_u64(rs_piece_end(&im->frame, p), end);
}

static void release(const struct rs_image *im, uint64_t at, uint64_t end)
{
	for (uint64_t next; at < end; at = next) {
		const struct rs_gather *g;
		uint64_t in;

		next = part(im, at, end, &g, &in);
		if (g)
			rs_sources_release(&im->mapped, g, in, next - at);
	}
}

int rs_image_need(const struct rs_image *im, uint64_t at, uint64_t bytes, struct rs_later *later, struct sc_err *err)
{
	const uint64_t first = at, end = at + bytes;
	int rc = RS_HERE;

	assert(end <= im->bytes && im->mapped.data);
	at += later ? later->bytes : 0;
	for (uint64_t next; im->mapped.waits && at < end; at = next) {
		const struct rs_gather *g;
		uint64_t in;

		next = part(im, at, end, &g, &in);
		rc = g ? rs_sources_need(&im->mapped, g, in, next - at, later, err) : RS_HERE;
		if (rc < 0)
			release(im, first, at);
		if (rc != RS_HERE)
			break;
	}
	if (later)
		later->bytes = rc == RS_LATER ? at - first : 0;
	return rc;
}

void rs_image_give_up(const struct rs_image *im, uint64_t at, uint64_t bytes, struct rs_later *later)
{
	const uint64_t here = at + later->bytes;
	const struct rs_gather *g;
	uint64_t in, next = part(im, here, at + bytes, &g, &in);

	release(im, at, here);
	if (g)
		rs_sources_give_up(&im->mapped, g, in, next - here, later);
	later->bytes = 0;
}

void rs_image_release(const struct rs_image *im, uint64_t at, uint64_t bytes)
{
	assert(at + bytes <= im->bytes && im->mapped.data);
	if (im->mapped.waits)
		release(im, at, at + bytes);
}

void rs_image_ahead(const struct rs_image *im, uint64_t at, uint64_t bytes)
{
	const uint64_t end = at + bytes;

	assert(end <= im->bytes && im->mapped.data);
	for (uint64_t next; im->mapped.waits && at < end; at = next) {
		const struct rs_gather *g;
		uint64_t in;

		next = part(im, at, end, &g, &in);
		if (g)
			rs_sources_ahead(&im->mapped, g, in, next - at);
	}
}

/* Moves the read-ahead on to a read.  Returns the end of the bytes that are to be asked for, from *ret on. */
static uint64_t move_on(struct rs_ahead *a, uint64_t at, uint64_t end, uint64_t most, uint64_t *ret)
{
	*ret = end;
	if (at == a->at && end == a->end)
		return end;
	if (!a->end || at > a->end + AHEAD_GAP || at + AHEAD_GAP < a->end)
		a->window = a->until = 0;
	else if (!a->window)
		a->window = AHEAD_FIRST;
	else if (a->until < end + a->window / 2)
		a->window = sc_min_u64(2 * a->window, AHEAD_MAX);
	a->at = at;
	a->end = end;
	if (!a->window) {
		*ret = at; /* the sources learn that they need not guess */
		return end;
	}
	if (a->until >= end + a->window / 2 || a->until == most)
		return end;
	*ret = sc_max_u64(a->until, end);
	a->until = sc_min_u64(end + a->window, most);
	return a->until;
}

void rs_image_reads(const struct rs_image *im, uint64_t at, uint64_t bytes)
{
	uint64_t from, until;

	if (!im->ahead)
		return;
	(void)pthread_mutex_lock(&im->ahead->lock);
	until = move_on(im->ahead, at, at + bytes, im->bytes, &from);
	(void)pthread_mutex_unlock(&im->ahead->lock);
	if (until > from)
		rs_image_ahead(im, from, until - from);
}

uint64_t rs_image_border(const struct rs_image *im, uint64_t at)
{
	return at < im->bytes ? rs_piece_end(&im->frame, rs_frame_piece(&im->frame, at)) : im->bytes;
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

	for (const struct rs_piece *p = bytes ? rs_frame_piece(&im->frame, at) : NULL; bytes; p++) {
		uint64_t n = sc_min_u64(rs_piece_end(&im->frame, p) - at, bytes);

		if (p->kind == RS_PIECE_TENSOR)
			rs_gather_read(&im->gathers[p->tensor], im->mapped.data, at - p->at, n, to);
		else if (p->kind == RS_PIECE_TEXT)
			memcpy(to, p->text + (at - p->at), n);
		else
			memset(to, p->fill, n);
		to += n;
		at += n;
		bytes -= n;
	}
}

int rs_image_read(const struct rs_image *im, uint64_t at, uint64_t bytes, unsigned char *to, struct sc_err *err)
{
	assert(at + bytes <= im->bytes && im->mapped.data);
	return rs_sources_guard(&im->mapped, read_image, &(struct image_read){im, at, bytes, to}, err);
}

int rs_image_fetch(const struct rs_image *im, uint64_t at, uint64_t bytes, unsigned char *to, struct sc_err *err)
{
	int rc = rs_image_need(im, at, bytes, NULL, err);

	if (rc < 0)
		return rc;
	rc = rs_image_read(im, at, bytes, to, err);
	rs_image_release(im, at, bytes);
	return rc;
}

uint64_t rs_image_run(const struct rs_image *im, uint64_t at, uint64_t bytes,
		      const unsigned char **ret_data, uint32_t *ret_source)
{
	const struct rs_piece *p = rs_frame_piece(&im->frame, at);
	uint64_t n, from;

	if (p->kind == RS_PIECE_TEXT) {
		*ret_data = (const unsigned char *)p->text + (at - p->at);
		*ret_source = UINT32_MAX;
		return sc_min_u64(rs_piece_end(&im->frame, p) - at, bytes);
	}
	if (p->kind == RS_PIECE_FILL)
		return 0;
	n = rs_gather_run(&im->gathers[p->tensor], at - p->at, bytes, ret_source, &from);
	if (n)
		*ret_data = im->mapped.data[*ret_source] + from;
	return n;
}
