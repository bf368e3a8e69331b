/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Properties of datasets:
 *   - an order is a permutation of the samples, for every length, shuffle, seed and epoch;
 *   - the numbers of the keyed permutation are what they always were, and look random;
 *   - the sequence of global batches is the same for every history of data-parallel degrees, and an
 *     epoch has each sample exactly once;
 *   - the partitions of a real job, read at random offsets, are those samples, byte for byte.
 * Prints the case when one fails; SEED=n repeats it.
 */
#include "reshard/service/service.h"

#include <inttypes.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
/* cmocka wants the four above first */
#include <cmocka.h>

#include "meta/model/deal.h"
#include "meta/model/order.h"
#include "tests/prop/pick.h"

static unsigned long seed = 1;

/* --- orders --- */

static void check_permutation(const struct meta_order *o)
{
	unsigned char *seen = calloc(o->nr + 1, 1);

	for (uint64_t i = 0; i < o->nr; i++) {
		uint64_t s = meta_order_at(o, i);

		assert_true(s < o->nr);
		assert_int_equal(seen[s], 0);
		seen[s] = 1;
	}
	free(seen);
}

static void orders_are_permutations(void **state)
{
	struct meta_order o;

	(void)state;
	for (uint64_t n = 0; n < 700; n++)
		for (int shuffle = 0; shuffle < 3; shuffle++) {
			meta_order_init(&o, n, (enum meta_shuffle)shuffle, 1 + pick(40), pick(1000), pick(5));
			check_permutation(&o);
		}
	for (int i = 0; i < 40; i++) {
		meta_order_init(&o, 1 + pick(300000), (enum meta_shuffle)pick(3), 1 + pick(5000), pick(1u << 30), pick(100));
		check_permutation(&o);
	}
}

/* Running jobs depend on these: never change them. */
static void orders_are_pinned(void **state)
{
	static const struct {
		uint64_t nr, block, seed, epoch, at, sample;
	} pinned[] = {
		{1, 0, 0, 0, 0, 0},
		{10, 0, 0, 0, 3, 3},
		{1000, 0, 1, 0, 0, 330},
		{1000, 0, 1, 1, 0, 662},
		{1000000000, 0, 42, 3, 123456789, 400247657},
		{1000000007, 0, 42, 3, 999999999, 85579702},
		{1000, 64, 7, 2, 500, 638},
		{1000, 64, 7, 2, 999, 434},
	};
	struct meta_order o;

	(void)state;
	for (size_t i = 0; i < sizeof(pinned) / sizeof(*pinned); i++) {
		meta_order_init(&o, pinned[i].nr, pinned[i].block ? META_SHUFFLE_BLOCK : META_SHUFFLE_GLOBAL, pinned[i].block,
				pinned[i].seed, pinned[i].epoch);
		if (getenv("PIN"))
			print_message("{%" PRIu64 ", %" PRIu64 ", %" PRIu64 ", %" PRIu64 ", %" PRIu64 ", %" PRIu64 "},\n", pinned[i].nr,
				      pinned[i].block, pinned[i].seed, pinned[i].epoch, pinned[i].at,
				      meta_order_at(&o, pinned[i].at));
		else
			assert_int_equal(meta_order_at(&o, pinned[i].at), pinned[i].sample);
	}
}

/* Chi-squared of `cells` equally likely ones; 6 sigma of its distribution. */
static void check_uniform(const unsigned *count, unsigned cells, unsigned total)
{
	double want = (double)total / cells, chi = 0, free_cells = cells - 1;

	for (unsigned i = 0; i < cells; i++)
		chi += (count[i] - want) * (count[i] - want) / want;
	if ((chi - free_cells) * (chi - free_cells) > 36 * 2 * free_cells)
		fail_msg("chi-squared %.1f of %u cells", chi, cells);
}

/* Where sample 0 goes, and how far apart neighbours land, over many seeds. */
static void orders_look_random(void **state)
{
	static const uint64_t sizes[] = {3, 5, 7, 16, 50, 100, 257};

	(void)state;
	for (size_t k = 0; k < sizeof(sizes) / sizeof(*sizes); k++) {
		unsigned first[300] = {0}, apart[300] = {0}, n = (unsigned)sizes[k];

		for (unsigned s = 0; s < 20000; s++) {
			struct meta_order o;

			meta_order_init(&o, n, META_SHUFFLE_GLOBAL, 0, s, 0);
			first[meta_order_at(&o, 0)]++;
			apart[(meta_order_at(&o, 1) + n - meta_order_at(&o, 0)) % n]++;
		}
		check_uniform(first, n, 20000);
		check_uniform(apart + 1, n - 1, 20000);
	}
}

/* --- deals --- */

/* The samples of global batch b by all ranks together, sorted, against those of the order. */
static void check_batch(const struct meta_deal *deal, const struct meta_order *o, uint64_t length, uint64_t at,
			uint32_t ranks, unsigned char *seen)
{
	uint64_t size = length - at < deal->batch ? length - at : deal->batch, found = 0, dealt = 0;
	unsigned char *in_batch = calloc(size, 1);

	for (uint32_t r = 0; r < ranks; r++) {
		struct meta_share s;
		struct sc_err err;
		uint64_t per, run;

		assert_int_equal(meta_share_init(deal, o->nr, at, ranks, r, &s, &err), 0);
		per = s.full ? s.per : s.tail_per;
		for (uint64_t i = 0; i < per; i++, dealt++) {
			uint64_t p = meta_share_at(&s, i, &run);

			assert_true(run >= 1 && p >= at && p < at + size);
			if (i > 0 && deal->uneven != META_UNEVEN_PAD) { /* runs say what follows */
				uint64_t before_run, before = meta_share_at(&s, i - 1, &before_run);

				assert_true(before_run == 1 || p == before + 1);
			}
			if (!in_batch[p - at]++)
				found++;
			else
				assert_int_equal(deal->uneven, META_UNEVEN_PAD);
			seen[meta_order_at(o, p)] |= 1;
		}
	}
	if (deal->uneven == META_UNEVEN_DROP)
		assert_int_equal(found, size - size % ranks);
	else
		assert_int_equal(found, size);
	if (deal->uneven == META_UNEVEN_PAD)
		assert_int_equal(dealt, (size + ranks - 1) / ranks * ranks);
	free(in_batch);
}

static void one_history(void)
{
	struct meta_deal deal = {.drop_last = pick(2), .strided = pick(2), .uneven = (enum meta_uneven)pick(3)};
	uint32_t degrees[] = {1, 2, 3, 4, 6, 8, 12};
	uint64_t nr, length, at = 0, kept = 0;
	struct meta_order o;
	unsigned char *seen;

	deal.batch = deal.uneven == META_UNEVEN_REFUSE ? 24u * (1 + pick(3)) : 1 + pick(50);
	nr = deal.batch * pick(8) + pick((unsigned)deal.batch);
	length = meta_deal_length(&deal, nr);
	seen = calloc(nr + 1, 1);
	meta_order_init(&o, nr, (enum meta_shuffle)pick(3), 1 + pick(20), pick(99), pick(9));
	while (at < length) { /* a batch, then maybe another number of ranks */
		check_batch(&deal, &o, length, at, degrees[pick(7)], seen);
		at += deal.batch;
	}
	for (uint64_t i = 0; i < nr; i++)
		kept += seen[i];
	if (deal.uneven != META_UNEVEN_DROP)
		assert_int_equal(kept, length);
	free(seen);
}

static void deals_do_not_depend_on_history(void **state)
{
	(void)state;
	for (int i = 0; i < 4000; i++)
		one_history();
}

static void positions_are_ends_of_batches(void **state)
{
	struct meta_deal deal = {.batch = 8};
	struct sc_err err;
	struct meta_at at;

	(void)state;
	assert_int_equal(meta_deal_seek(&deal, 20, 16, &at, &err), 0);
	assert_int_equal(at.position, 16);
	assert_int_equal(meta_deal_seek(&deal, 20, 48, &at, &err), 0); /* 20 a epoch: 8, 8, 4 */
	assert_int_equal(at.epoch, 2);
	assert_int_equal(at.position, 8);
	assert_int_equal(meta_deal_seek(&deal, 20, 24, &at, &err), SC_E_COMMAND);
	assert_non_null(strstr(err.msg, "inside global batch 0"));
	deal.drop_last = true;
	assert_int_equal(meta_deal_seek(&deal, 20, 24, &at, &err), 0);
	assert_int_equal(at.epoch, 1);
	assert_int_equal(at.position, 8);
}

/* --- a real job --- */

#define SAMPLES_MAX 400

struct source {
	char path[2][300];
	int nr_files, nr;		/* samples of all files */
	char *sample[SAMPLES_MAX];	/* as a partition has it */
	size_t bytes[SAMPLES_MAX];
};

/* Lines of any length, none too; sometimes the last one lacks its newline. */
static void make_lines(struct source *s, const char *folder, bool records, size_t record)
{
	s->nr_files = 1 + (int)pick(2);
	s->nr = 0;
	for (int f = 0; f < s->nr_files; f++) {
		int n = (int)pick(SAMPLES_MAX / 2 - 2);
		FILE *out;

		(void)snprintf(s->path[f], sizeof(s->path[f]), "%s/source%d", folder, f);
		out = fopen(s->path[f], "w");
		for (int i = 0; i < n; i++, s->nr++) {
			size_t bytes = records ? record : 1 + pick(pick(20) ? 60 : 3000);
			char *p = s->sample[s->nr] = malloc(bytes);

			for (size_t k = 0; k < bytes; k++)
				p[k] = (char)(records ? pick(256) : 'a' + pick(26));
			s->bytes[s->nr] = bytes;
			if (!records)
				p[bytes - 1] = '\n';
			(void)fwrite(p, 1, bytes - (!records && i == n - 1 && bytes > 1 && pick(2)), out);
		}
		(void)fclose(out);
	}
}

static void source_done(struct source *s)
{
	for (int i = 0; i < s->nr; i++)
		free(s->sample[i]);
}

static char *read_whole(struct rs_data_file *f, uint64_t *ret_bytes)
{
	struct sc_err err = {0};
	char *text = malloc(rs_data_bytes(f) + 1);

	*ret_bytes = rs_data_bytes(f);
	for (uint64_t at = 0; at < *ret_bytes;) {
		uint64_t n = 1 + pick(5000);

		n = n < *ret_bytes - at ? n : *ret_bytes - at;
		if (rs_data_read(f, at, n, (unsigned char *)text + at, &err) < 0)
			fail_msg("%s", err.msg);
		at += n;
	}
	/* and anywhere */
	for (int i = 0; i < 20 && *ret_bytes; i++) {
		uint64_t at = pick((unsigned)*ret_bytes), n = 1 + pick(2000);
		unsigned char buf[2000];

		n = n < *ret_bytes - at ? n : *ret_bytes - at;
		assert_int_equal(rs_data_read(f, at, n, buf, &err), 0);
		assert_memory_equal(buf, text + at, n);
	}
	return text;
}

struct setting {
	struct meta_deal deal;
	struct meta_order order;
	uint64_t consumed, length;
};

/* What rank `rank` of `dp` must have, made sample by sample. */
static char *expected(const struct source *s, const struct setting *x, uint32_t dp, uint32_t rank, uint64_t *ret_bytes)
{
	struct meta_share share;
	struct sc_err err;
	uint64_t run, n = 0;
	char *text = malloc(1 << 20);

	assert_int_equal(meta_share_init(&x->deal, (uint64_t)s->nr, x->consumed % x->length, dp, rank, &share, &err), 0);
	for (uint64_t i = 0; i < meta_share_count(&share); i++) {
		uint64_t sample = meta_order_at(&x->order, meta_share_at(&share, i, &run));

		memcpy(text + n, s->sample[sample], s->bytes[sample]);
		n += s->bytes[sample];
	}
	*ret_bytes = n;
	return text;
}

static void check_ranks(struct rs_service *s, struct rs_job *job, const struct source *source, const struct setting *x,
			uint32_t tp, uint32_t dp, const char *path)
{
	struct rs_view *view = NULL;
	struct sc_err err = {0};

	assert_int_equal(rs_view_head(s, job, &view, &err), 0);
	for (uint32_t r = 0; r < tp * dp; r++) {
		struct rs_data_file *f = NULL;
		uint64_t bytes, want_bytes;
		char *text, *want;

		if (rs_data_open(s, view, r, path, &f, &err) < 0)
			fail_msg("%s", err.msg);
		text = read_whole(f, &bytes);
		want = expected(source, x, dp, r / tp, &want_bytes); /* ranks of one tp group have the same */
		assert_int_equal(bytes, want_bytes);
		assert_memory_equal(text, want, bytes);
		free(text);
		free(want);
		rs_data_close(s, f);
	}
	rs_view_unref(s, view);
}

static void must(int rc, const struct sc_err *err)
{
	if (rc < 0)
		fail_msg("%s", err->msg);
}

static void one_job(struct rs_service *s, const char *folder, int nr)
{
	static const char *const shuffles[] = {"none", "global", "block=7"};
	static const uint32_t degrees[] = {1, 2, 3, 4, 6};
	bool records = pick(2);
	size_t record = 1 + pick(50);
	int shuffle = (int)pick(3);
	unsigned start_seed = pick(1000);
	struct setting x = {.deal = {.batch = 12 * (1 + pick(2)), .strided = pick(2), .drop_last = pick(2)}};
	struct source source;
	struct rs_job *job;
	struct sc_err err = {0};
	char text[2000], name[40];

	make_lines(&source, folder, records, record);
	x.length = meta_deal_length(&x.deal, (uint64_t)source.nr);
	if (x.length == 0) {
		source_done(&source);
		return;
	}
	meta_order_init(&x.order, (uint64_t)source.nr, (enum meta_shuffle)shuffle, 7, start_seed, 0);
	(void)snprintf(name, sizeof(name), "job%d", nr);
	must(rs_job_make(s, name, 0755, 0, 0, &job, &err), &err);
	must(rs_job_layout(RS_CALLER(s), job, "use replicated\n", &err), &err);
	must(rs_job_topology(RS_CALLER(s), job, "tp=2 dp=2", &err), &err);
	(void)snprintf(text, sizeof(text), "add name=d path=%s%s%s format=%s global_batch=%" PRIu64 " shuffle=%s seed=%u share=%s "
		       "drop_last=%s suffix=txt", source.path[0], source.nr_files > 1 ? " path=" : "",
		       source.nr_files > 1 ? source.path[1] : "", records ? "records" : "lines", x.deal.batch, shuffles[shuffle],
		       start_seed, x.deal.strided ? "strided" : "contiguous", x.deal.drop_last ? "yes" : "no");
	if (records)
		(void)snprintf(text + strlen(text), sizeof(text) - strlen(text), " record=%zu", record);
	must(rs_job_data(&(struct rs_caller){s, geteuid(), getegid()}, job, text, &err), &err);
	check_ranks(s, job, &source, &x, 2, 2, "data/d.txt");
	while (x.consumed + x.deal.batch <= x.length) {
		uint32_t tp = 1 + pick(2), dp = degrees[pick(5)];

		(void)snprintf(text, sizeof(text), "tp=%u dp=%u", tp, dp);
		must(rs_job_topology(RS_CALLER(s), job, text, &err), &err);
		check_ranks(s, job, &source, &x, tp, dp, "data/d.txt");
		x.consumed += x.deal.batch * (1 + pick(3));
		if (x.consumed >= x.length)
			break;
		(void)snprintf(text, sizeof(text), "samples=%" PRIu64, x.consumed);
		must(rs_job_commit(RS_CALLER(s), job, text, &err), &err);
		check_ranks(s, job, &source, &x, tp, dp, "data/d.txt");
	}
	/* the next epoch, whatever is left of this one */
	must(rs_job_topology(RS_CALLER(s), job, "dp=3", &err), &err);
	x.consumed = 0;
	meta_order_init(&x.order, (uint64_t)source.nr, (enum meta_shuffle)shuffle, 7, start_seed, 1);
	check_ranks(s, job, &source, &x, 1, 3, "data/d.next/d.txt");
	must(rs_job_config(RS_CALLER(s), job, "remove=yes", &err), &err);
	must(rs_job_remove(s, job, &err), &err);
	source_done(&source);
}

static void partitions_are_the_samples(void **state)
{
	char folder[] = "/tmp/scalai-data.XXXXXX", store[100], text[200];
	struct rs_options options = {.quiet_worker = true};
	struct rs_service *s = NULL;
	struct sc_err err = {0};

	(void)state;
	assert_non_null(mkdtemp(folder));
	(void)snprintf(store, sizeof(store), "%s/store", folder);
	(void)mkdir(store, 0700);
	options.store = store;
	must(rs_service_new(&options, &s, &err), &err);
	for (int i = 0; i < 120; i++)
		one_job(s, folder, i);
	rs_service_free(s);
	(void)snprintf(text, sizeof(text), "rm -rf %s", folder);
	assert_int_equal(system(text), 0);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(orders_are_permutations), cmocka_unit_test(orders_are_pinned),
		cmocka_unit_test(orders_look_random), cmocka_unit_test(deals_do_not_depend_on_history),
		cmocka_unit_test(positions_are_ends_of_batches), cmocka_unit_test(partitions_are_the_samples)};

	if (getenv("SEED"))
		seed = strtoul(getenv("SEED"), NULL, 10);
	random_state = seed;
	return cmocka_run_group_tests(tests, NULL, NULL);
}
