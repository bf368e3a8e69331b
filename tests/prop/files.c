/* SPDX-License-Identifier: Apache-2.0 */
#include <inttypes.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>
/* cmocka wants some of the above first */
#include <cmocka.h>

#include "tests/prop/files.h"
#include "tests/prop/pick.h"
#include "tests/support/paths.h"
#include "tests/support/rank_files.h"

unsigned long seed = 1;
char history[8000];
unsigned files_read;

void note(const char *fmt, ...)
{
	size_t n = strlen(history);
	va_list ap;

	va_start(ap, fmt);
	(void)vsnprintf(history + n, sizeof(history) - n, fmt, ap);
	va_end(ap);
}

/* --- the model: what a version has --- */

static uint32_t element(size_t t, uint32_t salt, uint64_t x)
{
	return (uint32_t)(t + 1) * 1000003u + salt * 7919u + (uint32_t)x;
}

/* What a version has, and where each of its tensors is in the world. */
static void state_of(const struct world *w, const struct version *v, struct meta_state *ret, size_t *where)
{
	for (size_t t = 0; t < w->nr; t++)
		if (v->salt[t]) {
			where[ret->nr] = t;
			assert_int_equal(0, meta_state_add(ret, w->of[t].key, strlen(w->of[t].key), META_DTYPE_U32,
							   &w->of[t].shape));
		}
}

void shown_done(struct shown *x)
{
	meta_view_free(x->view);
	meta_topology_done(&x->topo);
	meta_state_done(&x->state);
}

bool show(const struct world *w, const struct version *v, const char *topology, struct shown *ret)
{
	struct sc_err err;

	*ret = (struct shown){0};
	state_of(w, v, &ret->state, ret->where);
	if (meta_topology_parse(w->layout, topology, &ret->topo, &err) == 0 &&
	    meta_view_new(w->layout, &ret->topo, &ret->state, &ret->view, &err) == 0)
		return true;
	shown_done(ret);
	return false;
}

/* --- rank files --- */

/* The slow, obvious way: element by element from the whole. */
static void cut(const struct world *w, const struct version *v, const struct shown *x, const struct meta_stored *s, uint32_t *to)
{
	const struct meta_tensor *t = &x->state.tensors[s->entry->tensor];
	size_t where = x->where[s->entry->tensor];

	for (uint32_t k = 0; k < s->piece.nr_boxes; k++) {
		const struct meta_box *b = &s->piece.boxes[k];

		for (uint64_t i = 0; i < meta_box_elements(b); i++) {
			uint64_t left = i, at = b->at, from = 0, c[SC_DIMS_MAX];

			for (int d = b->nr - 1; d >= 0; d--) {
				c[d] = left % b->ext[d];
				left /= b->ext[d];
				at += c[d] * b->stride[d];
			}
			for (int d = 0; d < b->nr; d++)
				from = from * t->shape.dim[d] + b->off[d] + c[d];
			to[at] = element(w->of[where].like, v->salt[where], from);
		}
	}
}

static uint64_t elements(const struct meta_stored *s)
{
	uint64_t n;

	assert_true(meta_shape_elements(&s->piece.shape, &n));
	return n;
}

bool has_name(const struct names *names, const char *name)
{
	for (size_t i = 0; i < names->nr; i++)
		if (strcmp(names->at[i], name) == 0)
			return true;
	return false;
}

void put_name(struct names *names, const char *name)
{
	if (has_name(names, name))
		return;
	assert_true(names->nr < 64);
	(void)snprintf(names->at[names->nr++], sizeof(names->at[0]), "%s", name);
}

static void write_file(struct world *w, const struct version *v, const struct shown *x, uint32_t rank, const char *file,
		       const struct meta_stored_list *list)
{
	struct rs_owner owner = {geteuid(), getegid(), 0644};
	struct rank_tensor *tensors = calloc(list->nr, sizeof(*tensors));
	struct sc_buf bytes = {0};
	uint32_t salt = 0;
	struct sc_err err;
	size_t nr = 0;
	uint64_t blob;
	int fd;

	for (size_t i = 0; i < list->nr; i++) {
		const struct meta_stored *s = &list->at[i];
		uint32_t *piece;

		if (strcmp(s->file, file) != 0)
			continue;
		piece = calloc(elements(s) + 1, sizeof(*piece));
		cut(w, v, x, s, piece);
		salt = v->salt[x->where[s->entry->tensor]];
		tensors[nr++] = (struct rank_tensor){s->name, &s->piece.shape, piece, elements(s) * 4};
	}
	rank_files->make(tensors, nr, salt, rank, &bytes);
	good(work_create(w->s, w->job, rank, file, &owner, &blob, &fd, &err), err);
	assert_int_equal(bytes.bytes, write(fd, bytes.text, bytes.bytes));
	(void)close(fd);
	while (nr)
		free((void *)tensors[--nr].data);
	free(tensors);
	sc_buf_done(&bytes);
}

/* Of a class of replicas the rank of a random number writes, and each other one by chance. */
static bool writes(const struct shown *x, uint32_t rank, const char *file, uint32_t salt, enum who who)
{
	uint32_t like = meta_view_alike(x->view, rank, file), nr = 0, mine = 0;

	if (who != ONE_OF_EACH)
		return who == ALL_RANKS || pick(3) == 0;
	for (uint32_t r = 0; r < x->topo.ranks; r++)
		if (meta_view_alike(x->view, r, file) == like) {
			mine = r == rank ? nr : mine;
			nr++;
		}
	return salt % nr == mine || pick(4) == 0;
}

/* What ranks write of the logical files that `touched` names, or what they remove. */
size_t write_ranks(struct world *w, const struct version *v, const struct shown *x, const struct names *touched,
		   enum who who, bool removed)
{
	size_t nr = 0;

	for (uint32_t rank = 0; rank < x->topo.ranks; rank++) {
		struct meta_stored_list list = {0};
		struct names files = {0};
		struct sc_arena arena = {0};
		struct sc_err err;

		good(meta_view_rank(x->view, rank, NULL, &arena, &list, &err), err);
		for (size_t i = 0; i < list.nr; i++)
			if (has_name(touched, x->state.tensors[list.at[i].entry->tensor].file))
				put_name(&files, list.at[i].file);
		for (size_t i = 0; i < files.nr; i++) {
			if (!writes(x, rank, files.at[i], w->salts, who))
				continue;
			nr++;
			if (removed)
				good(work_unlink(w->s, w->job, rank, files.at[i], &err), err);
			else
				write_file(w, v, x, rank, files.at[i], &list);
		}
		sc_vec_done(&list);
		sc_arena_done(&arena);
	}
	return nr;
}

/* --- what is shown is what should be --- */

/* Its text and fill are those of its frame.  -> the end of the piece that has byte `at` */
static uint64_t expect_frame(const struct rs_image *im, const unsigned char *whole, uint64_t at)
{
	uint64_t border = im->bytes;

	for (uint32_t i = im->frame.nr; i-- > 0;) {
		const struct rs_piece *p = &im->frame.pieces[i];
		uint64_t end = i + 1 < im->frame.nr ? p[1].at : im->bytes;

		if (p->at <= at && at < end)
			border = end;
		if (p->kind == RS_PIECE_TEXT && memcmp(whole + p->at, p->text, end - p->at) != 0)
			broken("another text at byte %" PRIu64, p->at);
		for (uint64_t k = p->at; p->kind == RS_PIECE_FILL && k < end; k++)
			if (whole[k] != p->fill)
				broken("byte %" PRIu64 " is no fill", k);
	}
	return border;
}

/* Any part of an image is read as it is in the whole; runs and borders are inside of it, and have its bytes. */
static void expect_parts(const struct rs_image *im, const unsigned char *whole)
{
	unsigned char *part = malloc(im->bytes + 1);

	random_state = seed * 1000003u + im->bytes;
	(void)rs_image_clones(im);
	for (int i = 0; i < 8 && im->bytes; i++) {
		uint64_t at = pick((unsigned)im->bytes), n = 1 + pick((unsigned)(im->bytes - at)), run, end;
		const unsigned char *data;
		uint32_t source = 0;
		struct sc_err err;

		good(rs_image_need(im, at, n, NULL, &err), err);
		good(rs_image_read(im, at, n, part, &err), err);
		if (memcmp(part, whole + at, n) != 0)
			broken("bytes %" PRIu64 " to %" PRIu64 " differ, read alone", at, at + n);
		run = rs_image_run(im, at, n, &data, &source);
		end = rs_image_border(im, at);
		if (run > n || (run && memcmp(data, whole + at, run) != 0) || at + run > end ||
		    end != expect_frame(im, whole, at))
			broken("at byte %" PRIu64 " a run of %" PRIu64 ", a border at %" PRIu64, at, run, end);
		rs_image_release(im, at, n);
	}
	free(part);
}

static unsigned char *read_file(struct world *w, struct rs_view *view, bool head, uint32_t rank, const char *file, uint64_t *ret)
{
	struct rs_look look;
	struct sc_err err;
	unsigned char *bytes;

	good(rs_look(w->s, w->job, head ? NULL : view, rank, file, &look, &err), err);
	if (look.kind != RS_BLOB && look.kind != RS_VIEW)
		broken("rank %u '%s' is listed and not there", rank, file);
	bytes = calloc(1, look.bytes + 1);
	*ret = look.bytes;
	if (look.kind == RS_BLOB) {
		int fd;

		good(meta_store_open_blob(rs_service_store(w->s), look.blob, look.bytes, &fd, &err), err);
		assert_int_equal(look.bytes, pread(fd, bytes, look.bytes, 0));
		(void)close(fd);
	} else {
		struct rs_image *im;

		good(rs_view_image(w->s, view, rank, file, false, true, &im, &err), err);
		assert_int_equal(look.bytes, im->bytes);
		good(rs_image_fetch(im, 0, im->bytes, bytes, &err), err);
		expect_parts(im, bytes);
		rs_image_unref(w->s, im);
	}
	files_read++;
	return bytes;
}

static void expect_tensor(const struct world *w, const struct version *v, const struct shown *x, const struct meta_stored *s,
			  uint32_t rank, const unsigned char *bytes, uint64_t nr)
{
	uint64_t n = elements(s) * 4;
	uint32_t *want = calloc(n + 1, 1), *got = calloc(n + 1, 1);

	if (!rank_files->get(bytes, nr, s->name, got, n))
		broken("rank %u '%s' lacks '%s'", rank, s->file, s->name);
	cut(w, v, x, s, want);
	if (memcmp(got, want, n) != 0)
		broken("topology '%s' rank %u '%s:%s' has other bytes", x->topo.text, rank, s->file, s->name);
	if (!rank_files->has_salt(bytes, nr, v->salt[x->where[s->entry->tensor]]))
		broken("topology '%s' rank %u '%s' has another payload", x->topo.text, rank, s->file);
	free(want);
	free(got);
}

int on_name(void *arg, const char *name, mode_t type)
{
	assert_true(S_ISREG(type));
	put_name(arg, name);
	return 0;
}

static void expect_rank(struct world *w, struct rs_view *view, bool head, const struct version *v, const struct shown *x,
			uint32_t rank)
{
	struct meta_stored_list list = {0};
	struct names want = {0}, listed = {0};
	struct sc_arena arena = {0};
	struct sc_err err;

	good(meta_view_rank(x->view, rank, NULL, &arena, &list, &err), err);
	for (size_t i = 0; i < list.nr; i++)
		put_name(&want, list.at[i].file);
	good(rs_list(w->s, w->job, head ? NULL : view, rank, "", on_name, &listed, &err), err);
	if (listed.nr != want.nr)
		broken("topology '%s' rank %u lists %zu files, want %zu", x->topo.text, rank, listed.nr, want.nr);
	for (size_t k = 0; k < want.nr; k++) {
		uint64_t nr;
		unsigned char *bytes;

		if (!has_name(&listed, want.at[k]))
			broken("topology '%s' rank %u does not list '%s'", x->topo.text, rank, want.at[k]);
		bytes = read_file(w, view, head, rank, want.at[k], &nr);
		for (size_t i = 0; i < list.nr; i++)
			if (strcmp(list.at[i].file, want.at[k]) == 0)
				expect_tensor(w, v, x, &list.at[i], rank, bytes, nr);
		free(bytes);
	}
	sc_vec_done(&list);
	sc_arena_done(&arena);
}

void expect_view(struct world *w, struct rs_view *view, bool head, const struct version *v, const char *topology)
{
	struct shown x;

	if (!show(w, v, topology, &x))
		broken("'%s' can't be shown", topology);
	for (uint32_t rank = 0; rank < x.topo.ranks; rank++)
		expect_rank(w, view, head, v, &x, rank);
	shown_done(&x);
	rs_view_unref(w->s, view);
}
