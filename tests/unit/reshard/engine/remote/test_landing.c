/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Two stores: one has a job's blobs, the other none of them.  Images of all ranks at several topologies, whose sources are placed as
 * landings in the other store (rs_origins.place) and pulled from the first, have every byte of those that are made of the
 * blobs.
 */
#include "reshard/engine/remote/landing.h"

#include <assert.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
/* cmocka wants some of the above first */
#include <cmocka.h>

#include "meta/base/log.h"
#include "reshard/engine/io/image.h"
#include "reshard/version/state/state_i.h"
#include "tests/support/paths.h"
#include "tests/support/puller.h"
#include "tests/support/sample.h"

#define NODE 7
#define LAYOUT "use megatron-gpt vocab=300 tied=embedding.word_embeddings.weight"

static char dirs[2][40] = {"/tmp/scalai-landing.XXXXXX", "/tmp/scalai-landing.XXXXXX"};
static struct rs_service *s;
static struct rs_landings *set;
static struct rs_origins here;	/* what a view of the first store has */
static uint64_t pulled;

static void must(int rc, const struct sc_err *err)
{
	if (rc < 0)
		fail_msg("%s", err->msg);
}

/* The other node answers: its blobs are the first store's. */
static int serve(const struct rs_away *what, uint64_t at, uint64_t bytes, void *to, struct sc_err *err)
{
	struct rs_blob *blob;
	int rc = rs_blob_get(s->blobs, what->blob, NULL, what->bytes, &blob, err);

	assert(what->node == NODE);
	if (rc < 0)
		return rc;
	rc = rs_bytes_read(&blob->bytes, at, bytes, to, err);
	rs_blob_put(s->blobs, blob);
	(void)__atomic_add_fetch(&pulled, bytes, __ATOMIC_RELAXED);
	return rc;
}

/* Where a tensor lies in its blob would come with the blob's record. */
static int place(void *arg, struct rs_gather *gathers, uint32_t nr, struct rs_sources *sources, struct sc_err *err)
{
	(void)gathers;
	(void)nr;
	for (size_t i = 0; i < sources->nr; i++) {
		struct rs_source *x = &sources->at[i];
		struct rs_away what = {.node = NODE};
		struct rs_blob *blob;
		int rc;

		assert_true(here.blob_of(arg, x->view, x->rank, x->file, &what.blob, &what.bytes));
		must(rs_blob_get(s->blobs, what.blob, here.format_of(arg, x->view), what.bytes, &blob, err), err);
		rc = rs_landing_place(set, &what, rs_found_tensor(&blob->found, x->name)->at, &x->place, err);
		rs_blob_put(s->blobs, blob);
		if (rc < 0)
			return rc;
	}
	return 0;
}

static uint64_t compare(struct rs_view *view, uint32_t rank, const char *file)
{
	struct rs_image *want, *got;
	struct rs_origins away;
	unsigned char *a, *b;
	struct sc_err err;
	uint64_t bytes;

	must(rs_view_image(s, view, rank, file, true, true, &want, &err), &err);
	here = away = view->origins;
	away.place = place;
	must(rs_image_new(view->model, rank, file, true, &away, &got, &err), &err);
	must(rs_image_open(got, &away, &err), &err);
	assert_true(got->mapped.waits);
	bytes = want->bytes;
	assert_int_equal(bytes, got->bytes);
	a = malloc(bytes);
	b = malloc(bytes);
	must(rs_image_fetch(want, 0, bytes, a, &err), &err);
	must(rs_image_fetch(got, 0, bytes, b, &err), &err);
	assert_memory_equal(a, b, bytes);
	memset(b, 0, bytes);
	for (uint64_t at = 0, n; at < bytes; at += n) { /* and piece by piece */
		n = sc_min_u64(7777, bytes - at);
		must(rs_image_fetch(got, at, n, b + at, &err), &err);
	}
	assert_memory_equal(a, b, bytes);
	free(a);
	free(b);
	(void)rs_image_free(got);
	rs_image_unref(s, want);
	return bytes;
}

static void ranks_have_the_bytes_of_the_other_store(void **unused)
{
	static const struct {
		const char *topology;
		uint32_t ranks;
	} at[] = {{"tp=2 pp=2", 4}, {"tp=1", 1}, {"tp=4", 4}, {"tp=2 pp=4", 8}, {"tp=8 pp=2", 16}, {"tp=2 dp=2", 4}};
	static const char *const files[] = {"model.safetensors", "optimizer.safetensors"};
	struct rs_options options = {.store = dirs[0], .quiet_worker = true};
	struct fake_puller *p = fake_puller_new(serve, 2, 0, 0);
	struct rs_landing_config config = {.puller = fake_puller_of(p), .bytes_max = 2 << 20, .pulls_max = 4};
	struct meta_store other;
	struct rs_job *job;
	struct sc_err err;
	uint64_t bytes = 0;

	(void)unused;
	must(rs_service_new(&options, &s, &err), &err);
	must(meta_store_open(dirs[1], 0, &other, &err), &err);
	config.store = &other;
	must(rs_landings_new(&config, &set, &err), &err);
	must(rs_job_make(s, "j", 0755, geteuid(), getegid(), &job, &err), &err);
	must(rs_job_layout(RS_CALLER(s), job, LAYOUT, &err), &err);
	must(rs_job_topology(RS_CALLER(s), job, "tp=2 pp=2", &err), &err);
	for (uint32_t rank = 0; rank < 4; rank++)
		for (int i = 0; i < 2; i++) {
			char from[60];

			(void)snprintf(from, sizeof(from), "%u/%s", rank, files[i]);
			put_sample(s, job, from, rank, files[i]);
		}
	must(rs_job_commit(RS_CALLER(s), job, "", &err), &err);
	for (size_t i = 0; i < sizeof(at) / sizeof(*at); i++) {
		struct rs_view *view;

		must(rs_view_as(s, job, at[i].topology, &rs_form_ranks, &view, &err), &err);
		for (uint32_t rank = 0; rank < at[i].ranks; rank++)
			for (int f = 0; f < 2; f++)
				bytes += compare(view, rank, files[f]);
		rs_view_unref(s, view);
	}
	print_message("# %lu bytes of files, %lu pulled\n", bytes, pulled);
	assert_true(pulled > 0);
	rs_landings_stop(set);
	(void)rs_landings_free(set);
	(void)fake_puller_free(p);
	meta_store_close(&other);
	rs_service_free(s);
}

int main(void)
{
	const struct CMUnitTest tests[] = {cmocka_unit_test(ranks_have_the_bytes_of_the_other_store)};
	char clean[120];
	int rc;

	sc_log_level(SC_LOG_ERROR);
	if (!mkdtemp(dirs[0]) || !mkdtemp(dirs[1]))
		return 1;
	rc = cmocka_run_group_tests_name("landing", tests, NULL, NULL);
	(void)snprintf(clean, sizeof(clean), "rm -rf %s %s", dirs[0], dirs[1]);
	return rc || system(clean);
}
