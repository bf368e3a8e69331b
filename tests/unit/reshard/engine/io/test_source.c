/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Sources: what a gather needs of them has all that it reads; a kind may place them elsewhere, pack and split them; bytes
 * that are asked for with a `done` come later, without a wait, and stay until they are released.
 */
#include "reshard/service/service.h"

#include <fcntl.h>
#include <inttypes.h>
#include <pthread.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
/* cmocka wants some of the above first */
#include <cmocka.h>

#include "meta/base/log.h"
#include "tests/prop/pick.h"
#include "tests/support/paths.h"

static void must(int rc, const struct sc_err *err)
{
	if (rc < 0)
		fail_msg("%s", err->msg);
}

/* --- spans of copies --- */

struct byte {
	uint64_t to, from;
};

/* Each byte of a copy, the slow way. */
static size_t list_bytes(const struct rs_copy *c, struct byte *ret)
{
	uint64_t runs = 1;
	size_t nr = 0;

	for (int k = 0; k < c->nr; k++)
		runs *= c->ext[k];
	for (uint64_t r = 0; r < runs; r++) {
		uint64_t left = r, to = c->to, from = c->from;

		for (int k = c->nr - 1; k >= 0; k--) {
			to += left % c->ext[k] * c->to_stride[k];
			from += left % c->ext[k] * c->from_stride[k];
			left /= c->ext[k];
		}
		for (uint64_t i = 0; i < c->run; i++)
			ret[nr++] = (struct byte){to + i, from + i};
	}
	return nr;
}

/* Inner strides first, each with a gap or none on either side; two of the source's may change places. */
static void random_copy(struct rs_copy *c)
{
	uint64_t to, from;

	*c = (struct rs_copy){.nr = (uint8_t)pick(4), .to = pick(20), .from = pick(20), .run = 1 + pick(6)};
	to = from = c->run;
	for (int k = c->nr - 1; k >= 0; k--) {
		c->ext[k] = 1 + pick(4);
		c->to_stride[k] = to + pick(2) * pick(9);
		c->from_stride[k] = from + pick(2) * pick(9);
		to = c->to_stride[k] * c->ext[k];
		from = c->from_stride[k] * c->ext[k];
	}
	if (c->nr > 1) { /* the source lies in another order */
		unsigned k = pick(c->nr);

		from = c->from_stride[0];
		c->from_stride[0] = c->from_stride[k];
		c->from_stride[k] = from;
	}
}

static void a_span_has_all_that_a_copy_reads(void **unused)
{
	struct byte bytes[4 * 4 * 4 * 6];

	(void)unused;
	for (int round = 0; round < 20000; round++) {
		uint64_t at = pick(150), n = pick(3) ? pick(60) : 1, from = 0, last = 0, first = UINT64_MAX, span;
		struct rs_copy c;
		size_t nr, met = 0;

		random_copy(&c);
		nr = list_bytes(&c, bytes);
		span = rs_copy_span(&c, at, n, &from);
		for (size_t i = 0; i < nr; i++) {
			if (bytes[i].to < at || bytes[i].to >= at + n)
				continue;
			met++;
			first = bytes[i].from < first ? bytes[i].from : first;
			last = bytes[i].from > last ? bytes[i].from : last;
		}
		assert_int_equal(met > 0, span > 0);
		if (!met)
			continue;
		assert_true(from <= first && last < from + span);
		assert_true(from >= bytes[0].from && from + span <= bytes[nr - 1].from + 1);
		if (c.nr > 1)
			continue;
		/* one run: its part; several: these and no other */
		if (c.nr && (first - c.from) / c.from_stride[0] != (last - c.from) / c.from_stride[0]) {
			first -= (first - c.from) % c.from_stride[0];
			last += c.run - 1 - (last - c.from) % c.from_stride[0];
		}
		assert_int_equal(first, from);
		assert_int_equal(last - first + 1, span);
	}
}

/* --- a kind that places them elsewhere --- */

static unsigned char pieces[2][600];	/* the two files of the kind */
static int is_open[2];

static int piece_open(void *arg, uint64_t id, uint64_t bytes_expected, struct rs_bytes **ret, struct sc_err *err);

static void piece_close(void *arg, struct rs_bytes *b)
{
	is_open[b->map == pieces[1]]--;
	assert_ptr_equal(is_open, arg);
	free(b);
}

static const struct rs_source_ops piece_ops = {.name = "pieces", .open = piece_open, .close = piece_close};

static int piece_open(void *arg, uint64_t id, uint64_t bytes_expected, struct rs_bytes **ret, struct sc_err *err)
{
	if (id > 1)
		return sc_fail(err, SC_E_DAMAGED, "piece %" PRIu64 " is gone", id);
	assert_ptr_equal(is_open, arg);
	*ret = malloc(sizeof(**ret));
	**ret = (struct rs_bytes){.ops = &piece_ops, .map = pieces[id], .bytes = bytes_expected};
	is_open[id]++;
	return 0;
}

static uint64_t bad_piece;

/* The one source, of 20 rows of 30 bytes, is in two files: columns 0 to 9, and the others, each packed. */
static int place(void *arg, struct rs_gather *gathers, uint32_t nr, struct rs_sources *sources, struct sc_err *err)
{
	const struct meta_box whole = {.nr = 2, .ext = {20, 30}, .stride = {30, 1}};
	struct rs_source *at = sc_sys.resize(sources->at, 2 * sizeof(*at));

	(void)arg;
	(void)err;
	assert_int_equal(1, nr);
	assert_int_equal(1, sources->nr);
	at[1] = at[0];
	sources->at = at;
	sources->nr = sources->room = 2;
	gathers[0].nr = 0;
	for (uint32_t i = 0; i < 2; i++) {
		uint64_t columns = i ? 20 : 10;
		const struct meta_box part = {.nr = 2, .off = {0, i * 10}, .ext = {20, columns}, .stride = {columns, 1}};

		at[i].place = (struct rs_place){&piece_ops, is_open, i ? bad_piece : 0, 20 * columns + i, i};
		assert_int_equal(0, rs_gather_add(&gathers[0], i, &whole, &part, 1));
	}
	rs_gather_finish(&gathers[0]);
	return 0;
}

static void places_may_split_a_source(void **unused)
{
	const struct meta_box whole = {.nr = 2, .ext = {20, 30}, .stride = {30, 1}};
	const struct rs_origins origins = {.place = place};

	(void)unused;
	for (unsigned i = 0; i < 600; i++)
		pieces[i % 30 >= 10][i % 30 < 10 ? i / 30 * 10 + i % 30 : 1 + i / 30 * 20 + i % 30 - 10] = (unsigned char)(i * 7);
	for (bad_piece = 1; bad_piece < 3; bad_piece++) {
		struct rs_sources sources = {.nr = 1, .room = 1, .at = sc_zalloc(sizeof(struct rs_source))};
		struct rs_gather g = {.bytes = 600};
		struct rs_mapped m = {0};
		struct sc_arena arena = {0};
		unsigned char got[600];
		struct sc_err err;

		sources.at[0] = (struct rs_source){.rank = 3, .file = "f", .name = "t"};
		assert_int_equal(0, rs_gather_add(&g, 0, &whole, &whole, 1));
		rs_gather_finish(&g);
		if (bad_piece == 1) {
			must(rs_sources_open(&sources, &g, 1, &origins, &arena, &m, &err), &err);
			must(rs_sources_need(&m, &g, 0, 600, NULL, &err), &err);
			must(rs_sources_read(&m, &g, 0, 600, got, &err), &err);
			rs_sources_release(&m, &g, 0, 600);
			for (unsigned i = 0; i < 600; i++)
				assert_int_equal((unsigned char)(i * 7), got[i]);
			assert_int_equal(2, is_open[0] + is_open[1]);
		} else {
			assert_int_equal(SC_E_DAMAGED, rs_sources_open(&sources, &g, 1, &origins, &arena, &m, &err));
			assert_string_equal("rank 3 'f': piece 2 is gone", err.msg);
		}
		rs_sources_close(&m);
		assert_int_equal(0, is_open[0] + is_open[1]);
		rs_gather_done(&g);
		rs_sources_done(&sources);
		sc_arena_done(&arena);
	}
}

/* --- later; the store's files are of the kind `late` --- */

struct waiting {
	struct rs_later later;
	pthread_mutex_t lock;
	pthread_cond_t called;
	int calls;
};

static void on_done(struct rs_done *done, const struct sc_err *err)
{
	struct waiting *w = (struct waiting *)done;

	assert_null(err);
	(void)pthread_mutex_lock(&w->lock);
	w->calls++;
	(void)pthread_cond_signal(&w->called);
	(void)pthread_mutex_unlock(&w->lock);
}

/* Asks until the bytes are there; -> how often it was told to ask again. */
static int need_later(const struct rs_image *im, uint64_t at, uint64_t bytes)
{
	struct waiting w = {{{on_done}}, PTHREAD_MUTEX_INITIALIZER, PTHREAD_COND_INITIALIZER, 0};
	struct sc_err err;
	int rc, later = 0;

	while ((rc = rs_image_need(im, at, bytes, &w.later, &err)) == RS_LATER) {
		(void)pthread_mutex_lock(&w.lock);
		while (w.calls == later)
			(void)pthread_cond_wait(&w.called, &w.lock);
		assert_int_equal(++later, w.calls);
		(void)pthread_mutex_unlock(&w.lock);
	}
	must(rc, &err);
	return later;
}

static struct rs_image *open_view(struct rs_service *s, struct rs_job *job)
{
	static const char header[] = "{\"v\":{\"dtype\":\"U8\",\"shape\":[20000],\"data_offsets\":[0,20000]},"
				     "\"w\":{\"dtype\":\"U8\",\"shape\":[30000],\"data_offsets\":[20000,50000]}}";
	struct rs_owner owner = {geteuid(), getegid(), 0644};
	unsigned char data[50000];
	struct rs_image *im;
	struct rs_view *view;
	struct sc_err err;

	for (uint32_t rank = 0; rank < 2; rank++) {
		uint64_t blob, bytes = sizeof(header) - 1;
		int fd;

		for (unsigned i = 0; i < sizeof(data); i++) /* parts, so they differ */
			data[i] = (unsigned char)(i * 13 + i / 256 + rank);
		must(work_create(s, job, rank, "a.safetensors", &owner, &blob, &fd, &err), &err);
		assert_int_equal(0, sc_pwrite_all(fd, &bytes, 8, 0));
		assert_int_equal(0, sc_pwrite_all(fd, header, bytes, 8));
		assert_int_equal(0, sc_pwrite_all(fd, data, sizeof(data), 8 + bytes));
		(void)close(fd);
	}
	must(rs_job_commit(RS_CALLER(s), job, "", &err), &err);
	must(rs_view_as(s, job, "tp=1", &rs_form_ranks, &view, &err), &err);
	must(rs_view_image(s, view, 0, "a.safetensors", true, true, &im, &err), &err);
	rs_view_unref(s, view);
	return im;
}

static void bytes_come_later_and_stay_until_released(void **unused)
{
	char dir[] = "/tmp/scalai-source.XXXXXX", clean[80];
	struct rs_options options = {.store = dir, .quiet_worker = true};
	unsigned char *want, *got;
	struct rs_service *s;
	struct rs_image *im;
	struct rs_job *job;
	struct sc_err err;
	int later = 0;

	(void)unused;
	sc_log_level(SC_LOG_ERROR);
	assert_non_null(mkdtemp(dir));
	must(rs_service_new(&options, &s, &err), &err);
	must(rs_job_make(s, "j", 0755, geteuid(), getegid(), &job, &err), &err);
	must(rs_job_layout(RS_CALLER(s), job, "mesh tp\n* tp=0", &err), &err);
	must(rs_job_topology(RS_CALLER(s), job, "tp=2", &err), &err);
	im = open_view(s, job);
	want = malloc(im->bytes);
	got = malloc(im->bytes);
	must(rs_image_fetch(im, 0, im->bytes, want, &err), &err);
	for (int round = 0; round < 300; round++) {
		uint64_t at = pick((unsigned)im->bytes), n = 1 + pick((unsigned)(im->bytes - at));
		uint64_t at2 = pick((unsigned)im->bytes), n2 = 1 + pick((unsigned)(im->bytes - at2));

		/* two at once, which may overlap: the second release must not take what the first one has */
		later += need_later(im, at, n);
		later += need_later(im, at2, n2);
		rs_image_release(im, at, n);
		must(rs_image_read(im, at2, n2, got, &err), &err);
		assert_memory_equal(want + at2, got, n2);
		rs_image_release(im, at2, n2);
	}
	assert_true(later > 0);
	must(rs_image_read(im, im->bytes - 20000, 20000, got, &err), &err);
	assert_memory_not_equal(want + im->bytes - 20000, got, 20000);
	free(want);
	free(got);
	rs_image_unref(s, im);
	rs_service_free(s);
	(void)snprintf(clean, sizeof(clean), "rm -rf %s", dir);
	assert_int_equal(0, system(clean));
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(a_span_has_all_that_a_copy_reads),
		cmocka_unit_test(places_may_split_a_source),
		cmocka_unit_test(bytes_come_later_and_stay_until_released),
	};

	return cmocka_run_group_tests_name("source", tests, NULL, NULL);
}
