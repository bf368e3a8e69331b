/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Properties of models that lie in several files, over random layouts, topologies and distributions of tensors over
 * files, in a service without a mount: whatever was done (commits of all files and of some, of more layers and of fewer
 * files, topologies, materialization, rollback, a restart, a lost catalog, keep=1), each rank file of the head, of older versions and of
 * other topologies is listed and has, bit for bit, what cutting the whole tensors gives.
 * The files are safetensors, or of the kind of format that is linked (tests/support/kinds).
 * Prints the seed and the history when one fails; SEED=n repeats it, ROUNDS=n makes more.
 */
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/xattr.h>
#include <unistd.h>
/* cmocka wants some of the above first */
#include <cmocka.h>

#include "meta/base/log.h"
#include "reshard/repair/repair.h"
#include "tests/prop/files.h"
#include "tests/prop/pick.h"
#include "tests/support/every.h"
#include "tests/support/rank_files.h"

#define LAYERS_MAX 12
#define STEPS 8

/* --- layouts and topologies --- */

static void add(struct world *w, int layer, const char *file, const char *name, int nr, uint64_t a, uint64_t b)
{
	struct tensor *t = &w->of[w->nr];

	t->like = w->nr++;
	assert_true(w->nr <= TENSORS_MAX);
	(void)snprintf(t->key, sizeof(t->key), "%s%s:%s", file, rank_files->suffix, name);
	t->file = strndup(t->key, strcspn(t->key, ":"));
	t->shape = (struct meta_shape){(uint8_t)nr, {a, b}};
	t->layer = layer;
}

static void add_layer(struct world *w, const char *optimizer, unsigned g, int style, unsigned shard)
{
	char file[50], name[60];

	for (int i = 0; i < 3; i++) {
		static const char *const names[] = {"col", "row", "norm"};

		if (style == 1)
			(void)snprintf(file, sizeof(file), "%sl%u-v", *optimizer ? "o" : "", g);
		else
			(void)snprintf(file, sizeof(file), "%s%u", *optimizer ? "o" : "s", pick(4) ? shard : pick(3));
		if (style == 1)
			(void)snprintf(name, sizeof(name), "%s%s", optimizer, names[i]);
		else
			(void)snprintf(name, sizeof(name), "%sm.%u.%s", optimizer, g, names[i]);
		add(w, (int)g, file, name, i == 2 ? 1 : 2, i == 1 ? 3 : 8, i == 1 ? 4 : 2);
	}
	for (unsigned x = 0; x < w->experts; x++) {
		if (style == 2)
			(void)snprintf(file, sizeof(file), "%sx%u", *optimizer ? "o" : "", x);
		if (style == 1)
			(void)snprintf(name, sizeof(name), "%sx.%u.up", optimizer, x);
		else if (style == 2)
			(void)snprintf(name, sizeof(name), "%sm.%u.up", optimizer, g);
		else
			(void)snprintf(name, sizeof(name), "%sm.%u.x.%u.up", optimizer, g, x);
		add(w, (int)g, file, name, 2, 4, 2);
	}
}

static void random_layout(struct world *w, int style)
{
	const char *layer = w->local ? "{L}" : "{G}", *expert = pick(2) ? "{E}" : "{X}";
	struct sc_buf buf = {0};

	sc_buf_printf(&buf, "mesh tp dp pp\nmesh etp=tp ep edp=* pp\n");
	for (int o = 0; o < 2; o++) {
		const char *f = o ? "o" : "", *p = o ? "opt." : "";

		if (style == 1)
			sc_buf_printf(&buf, "file %sl%s-v{V}%s\n%scol tp=0\n%srow tp=1\n%snorm copy\n%sx.%s.up etp=0\n",
				      f, layer, rank_files->suffix, p, p, p, p, expert);
		if (style == 2)
			sc_buf_printf(&buf, "%sx%s%s:%sm{V}.%s.up etp=0\n", f, expert, rank_files->suffix, p, layer);
	}
	sc_buf_printf(&buf, "file *\n");
	if (style != 1)
		sc_buf_printf(&buf, "opt.{P} like={P}\nm{V}.%s.col tp=0\nm{V}.%s.row tp=1\nm{V}.%s.norm copy\n"
			      "m{V}.%s.x.%s.up etp=0\n", layer, layer, layer, layer, expert);
	sc_buf_printf(&buf, "emb stage=first tp=0 pad=1 size=13\nend stage=last copy\ntwin stage=last copy\n"
			    "none stage=last copy\n");
	(void)snprintf(w->layout_text, sizeof(w->layout_text), "%s", buf.text);
	sc_buf_done(&buf);
}

static void random_topology(const struct world *w, char text[200])
{
	unsigned pp = 1u << pick(3), vp = pick(3) ? 1 : 2, left = w->layers;
	struct sc_buf buf = {0};

	sc_buf_printf(&buf, "tp=%u dp=%u pp=%u ep=%u vp=%u", 1u << pick(2), 1 + pick(2), pp, 1 + pick(2), vp);
	for (unsigned c = pick(3) ? pp * vp : 0; c < pp * vp; c++) {
		unsigned some = c + 1 == pp * vp ? left : pick(left + 1);

		sc_buf_printf(&buf, "%s%u", c ? "+" : " stages=", some);
		left -= some;
	}
	(void)snprintf(text, 200, "%s", buf.text);
	sc_buf_done(&buf);
}

/* The head, an older version, and the head at another topology and whole. */
static void expect_all(struct world *w)
{
	char topology[200], word[30];
	struct rs_view *view;
	struct sc_err err;
	struct shown x;

	good(rs_view_head(w->s, w->job, &view, &err), err);
	expect_view(w, view, true, &w->now, w->now.topology);
	good(rs_view_as(w->s, w->job, "tp=1", &rs_form_ranks, &view, &err), err);
	expect_view(w, view, false, &w->now, "tp=1");
	random_topology(w, topology);
	if (show(w, &w->now, topology, &x)) {
		shown_done(&x);
		good(rs_view_as(w->s, w->job, topology, &rs_form_ranks, &view, &err), err);
		expect_view(w, view, false, &w->now, topology);
	}
	if (w->nr_old) {
		const struct version *v = &w->old[pick((unsigned)w->nr_old)];

		(void)snprintf(word, sizeof(word), "%" PRIu64, v->nr);
		if (rs_view_archived(w->s, w->job, word, &view, &err) == 0)
			expect_view(w, view, false, v, v->topology);
	}
}

/* --- what is done --- */

static int on_nr(void *arg, uint64_t nr)
{
	*(uint64_t *)arg = nr;
	return 0;
}

static void keep_version(struct world *w)
{
	struct sc_err err;

	good(rs_versions_each(w->s, w->job, on_nr, &w->now.nr, &err), err);
	assert_true(w->nr_old < VERSIONS_MAX);
	w->old[w->nr_old++] = w->now;
}

static void commit(struct world *w, const char *what, const char *words, const struct version *next, const struct names *touched)
{
	struct sc_err err;

	note("commit of %s:", what);
	for (size_t i = 0; i < touched->nr; i++)
		note(" %s", touched->at[i]);
	note("\n");
	good(rs_job_commit(RS_CALLER(w->s), w->job, words, &err), err);
	w->now = *next;
	keep_version(w);
}

static void write_all(struct world *w)
{
	struct names all = {0};
	struct shown x;

	w->salts++;
	for (size_t t = 0; t < w->nr; t++)
		if (w->of[t].layer < (int)w->layers) {
			w->now.salt[t] = w->salts;
			put_name(&all, w->of[t].file);
		}
	do
		random_topology(w, w->now.topology);
	while (!show(w, &w->now, w->now.topology, &x));
	note("%s%u layers, %u experts, topology %s\n", w->layout_text, w->layers, w->experts, w->now.topology);
	struct sc_err err;

	good(rs_job_layout(RS_CALLER(w->s), w->job, w->layout_text, &err), err);
	good(rs_job_topology(RS_CALLER(w->s), w->job, w->now.topology, &err), err);
	(void)write_ranks(w, &w->now, &x, &all, pick(2) ? ALL_RANKS : ONE_OF_EACH, false);
	shown_done(&x);
	commit(w, "all", "", &w->now, &all);
}

static void write_some(struct world *w)
{
	struct version next = w->now;
	struct names some = {0};
	struct shown x;

	w->salts++;
	for (size_t t = 0; t < w->nr; t++)
		if (next.salt[t] && pick(8) == 0)
			put_name(&some, w->of[t].file);
	for (size_t t = 0; t < w->nr; t++)
		if (next.salt[t] && has_name(&some, w->of[t].file))
			next.salt[t] = w->salts;
	if (!some.nr)
		return;
	assert_true(show(w, &next, next.topology, &x));
	(void)write_ranks(w, &next, &x, &some, pick(2) ? ALL_RANKS : ONE_OF_EACH, false);
	shown_done(&x);
	commit(w, "some", "", &next, &some);
}

/* Is there a rank of which neither it nor a replica wrote a file of a logical file that others wrote? */
static bool keeps_parts(struct world *w, const struct shown *x)
{
	struct {
		struct names wrote, not;	/* logical files */
	} ranks = {0};
	struct sc_err err;

	for (uint32_t rank = 0; rank < x->topo.ranks; rank++) {
		struct meta_stored_list list = {0};
		struct sc_arena arena = {0};

		good(meta_view_rank(x->view, rank, NULL, &arena, &list, &err), err);
		for (size_t i = 0; i < list.nr; i++) {
			const char *file = list.at[i].file;
			struct rs_look look;
			bool any = false;

			for (uint32_t r = 0; !any && r < x->topo.ranks; r++) {
				if (meta_view_alike(x->view, r, file) != meta_view_alike(x->view, rank, file))
					continue;
				good(rs_look(w->s, w->job, NULL, r, file, &look, &err), err);
				any = look.kind == RS_WORK;
			}
			put_name(any ? &ranks.wrote : &ranks.not, x->state.tensors[list.at[i].entry->tensor].file);
		}
		sc_vec_done(&list);
		sc_arena_done(&arena);
	}
	for (size_t i = 0; i < ranks.wrote.nr; i++)
		if (has_name(&ranks.not, ranks.wrote.at[i]))
			return true;
	return false;
}

/* Any ranks save again what they have; of their logical files, the other ranks keep theirs, which the commit must say. */
static void write_again(struct world *w)
{
	struct names some = {0};
	struct sc_err err;
	struct shown x;

	for (size_t t = 0; t < w->nr; t++)
		if (w->now.salt[t] && pick(6) == 0)
			put_name(&some, w->of[t].file);
	if (!some.nr)
		return;
	assert_true(show(w, &w->now, w->now.topology, &x));
	if (write_ranks(w, &w->now, &x, &some, SOME_RANKS, false)) {
		bool parts = keeps_parts(w, &x);

		if (parts && (rs_job_commit(RS_CALLER(w->s), w->job, "", &err) != SC_E_STATE ||
			      !strstr(err.msg, "parts of two steps")))
			broken("a commit without parts of some ranks was taken, or refused otherwise: %s", err.msg);
		commit(w, parts ? "some again, and the others'" : "some again", parts ? "kept=yes" : "", &w->now, &some);
	}
	shown_done(&x);
}

/* More layers, in new files or with those that have some of their tensors. */
static void write_more(struct world *w)
{
	unsigned more = 1 + pick(4);
	struct version next = w->now;
	struct names some = {0};
	struct sc_err err;
	struct shown x;
	bool rest = false;

	if (w->layers + more > LAYERS_MAX)
		return;
	w->salts++;
	for (size_t t = 0; t < w->nr; t++)
		if (w->of[t].layer >= (int)w->layers && w->of[t].layer < (int)(w->layers + more))
			put_name(&some, w->of[t].file);
	for (size_t t = 0; t < w->nr; t++)
		if (has_name(&some, w->of[t].file) && w->of[t].layer < (int)(w->layers + more))
			next.salt[t] = w->salts;
		else
			rest |= next.salt[t] && w->of[t].layer >= 0;
	if (!show(w, &next, next.topology, &x))
		return;
	(void)write_ranks(w, &next, &x, &some, pick(2) ? ALL_RANKS : ONE_OF_EACH, false);
	if (w->local && rest && x.topo.chunks > 1) {
		/* what the others call layer 0 of the second stage would be another layer now */
		if (rs_job_commit(RS_CALLER(w->s), w->job, "", &err) == 0)
			broken("%u more layers, and not all files were written: taken", more);
		good(rs_job_discard(w->s, w->job, &err), err);
	} else {
		w->layers += more;
		commit(w, "more layers", "", &next, &some);
	}
	shown_done(&x);
}

static void remove_file(struct world *w)
{
	struct version next = w->now;
	struct names gone = {0};
	struct shown x, then;

	put_name(&gone, w->of[pick((unsigned)w->nr)].file);
	for (size_t t = 0; t < w->nr; t++)
		if (has_name(&gone, w->of[t].file))
			next.salt[t] = 0;
	if (memcmp(next.salt, w->now.salt, sizeof(next.salt)) == 0 || !show(w, &next, next.topology, &then))
		return;
	if (then.state.nr) {
		assert_true(show(w, &w->now, w->now.topology, &x));
		(void)write_ranks(w, &w->now, &x, &gone, pick(2) ? ALL_RANKS : ONE_OF_EACH, true);
		shown_done(&x);
		commit(w, "removal", "", &next, &gone);
	}
	shown_done(&then);
}

static void reshard(struct world *w)
{
	char topology[200];
	struct sc_err err;
	struct shown x;

	random_topology(w, topology);
	if (!show(w, &w->now, topology, &x)) {
		if (rs_job_topology(RS_CALLER(w->s), w->job, topology, &err) == 0)
			broken("topology %s was taken", topology);
		return;
	}
	note("topology %s\n", topology);
	good(rs_job_topology(RS_CALLER(w->s), w->job, topology, &err), err);
	if (strcmp(topology, w->now.topology) != 0) {
		(void)snprintf(w->now.topology, sizeof(w->now.topology), "%s", topology);
		keep_version(w);
	}
	shown_done(&x);
}

static void rollback(struct world *w)
{
	const struct version *v = &w->old[pick((unsigned)w->nr_old)];
	struct sc_err err;
	char word[30];

	(void)snprintf(word, sizeof(word), "%" PRIu64, v->nr);
	if (rs_job_rollback(RS_CALLER(w->s), w->job, word, &err) < 0)
		return; /* it is not kept any more */
	note("rollback %s\n", word);
	w->now = *v;
	w->layers = 0;
	for (size_t t = 0; t < w->nr; t++)
		if (w->now.salt[t] && w->of[t].layer >= (int)w->layers)
			w->layers = (unsigned)w->of[t].layer + 1;
	keep_version(w);
}

/* Materialized: each rank file is a real one. */
static void expect_real(struct world *w)
{
	struct shown x;

	assert_true(show(w, &w->now, w->now.topology, &x));
	for (uint32_t rank = 0; rank < x.topo.ranks; rank++) {
		struct names files = {0};
		struct rs_look look;
		struct sc_err err;

		good(rs_list(w->s, w->job, NULL, rank, "", on_name, &files, &err), err);
		for (size_t i = 0; i < files.nr; i++) {
			good(rs_look(w->s, w->job, NULL, rank, files.at[i], &look, &err), err);
			if (look.kind != RS_BLOB)
				broken("rank %u '%s' is said to be real, and is a view", rank, files.at[i]);
		}
	}
	shown_done(&x);
}

static void work(struct world *w)
{
	struct sc_buf status = {0};
	struct sc_err err;

	note("work\n");
	good(rs_service_work(w->s, &err), err);
	good(rs_render_status(w->s, w->job, &status, &err), err);
	if (!w->never && !strstr(status.text, "\nstate: materialized\n"))
		broken("not materialized:\n%s", status.text);
	if (strstr(status.text, "\nstate: materialized\n"))
		expect_real(w);
	sc_buf_done(&status);
}

static void open_service(struct world *w)
{
	struct rs_options options = {.store = w->dir, .quiet_worker = true};
	struct sc_err err;

	good(rs_service_new(&options, &w->s, &err), err);
	w->job = rs_job_by_name(w->s, "j");
}

static void restart(struct world *w)
{
	note("restart\n");
	rs_service_free(w->s);
	open_service(w);
}

static void configure(struct world *w)
{
	char text[100];
	struct sc_err err;

	(void)snprintf(text, sizeof(text), "sync=off keep=%u materialize=%s", w->keep, w->never ? "never" : "eager");
	good(rs_job_config(RS_CALLER(w->s), w->job, text, &err), err);
}

static void move(const struct world *w, const char *from, const char *to)
{
	static const char *const ends[] = {"", "-wal", "-shm"};
	char a[120], b[120];

	for (int i = 0; i < 3; i++) {
		(void)snprintf(a, sizeof(a), "%s/scalai.db%s%s", w->dir, from, ends[i]);
		(void)snprintf(b, sizeof(b), "%s/scalai.db%s%s", w->dir, to, ends[i]);
		(void)rename(a, b);
	}
}

/* The catalog is lost, and made again from the blobs; attributes are needed for that. */
static void rebuild(struct world *w)
{
	struct rs_options options = {.store = w->dir, .quiet_worker = true, .keep_garbage = true, .rebuild = true};
	struct sc_buf text = {0};
	struct sc_err err;
	uint64_t bad = 1;

	if (setxattr(w->dir, "user.test", "", 0, 0) < 0)
		return;
	work(w);
	note("rebuild\n");
	rs_service_free(w->s);
	move(w, "", ".lost");
	good(rs_service_new(&options, &w->s, &err), err);
	good(rs_rebuild(w->s, &bad, &text, &err), err);
	if (bad)
		broken("%s", text.text);
	sc_buf_reset(&text);
	rs_service_free(w->s);
	move(w, ".new", "");
	open_service(w);
	configure(w);
	good(rs_render_topology(w->s, w->job, &text, &err), err);
	(void)snprintf(w->now.topology, sizeof(w->now.topology), "%.*s", (int)strcspn(text.text, "\n"), text.text);
	note("it has topology %s\n", w->now.topology);
	sc_buf_done(&text);
	w->nr_old = 0;
	keep_version(w);
}

static void check_store(struct world *w)
{
	struct sc_buf report = {0};
	struct sc_err err;
	uint64_t bad = 1;

	good(rs_fsck(w->s, false, &bad, &report, &err), err);
	if (bad)
		broken("%s", report.text);
	sc_buf_done(&report);
	good(rs_job_verify(w->s, w->job, &err), err);
}

static void one_world(unsigned long number)
{
	struct world *w = calloc(1, sizeof(*w));
	int style = (int)(number % 3);
	char clean[100];
	struct sc_err err;

	random_state = number * 1000003u;
	*history = 0;
	w->local = pick(2);
	w->layers = 1 + pick(8);
	w->experts = pick(2) * 2;
	for (unsigned g = 0; g < LAYERS_MAX; g++) {
		/* later ones, if ever written, in files of their own */
		unsigned shard = g < w->layers ? pick(4) : 10 + g;

		add_layer(w, "", g, style, shard);
		add_layer(w, "opt.", g, style, pick(2) ? shard : g < w->layers ? 0 : shard);
	}
	add(w, -1, "s0", "emb", 2, 13, 3);
	add(w, -1, "s1", "end", 1, 7, 0);
	add(w, -1, "s1", "twin", 1, 7, 0);
	w->of[w->nr - 1].like = w->nr - 2;
	add(w, -1, "s1", "none", 1, 0, 0);
	random_layout(w, style);
	assert_int_equal(0, meta_layout_parse(w->layout_text, NULL, NULL, &w->layout, &err));
	/* nothing here is about disks, and a catalog's flushes take time */
	(void)strcpy(w->dir, access("/dev/shm", W_OK) == 0 ? "/dev/shm/scalai-files.XXXXXX" : "/tmp/scalai-files.XXXXXX");
	assert_non_null(mkdtemp(w->dir));
	open_service(w);
	good(rs_job_make(w->s, "j", 0755, geteuid(), getegid(), &w->job, &err), err);
	w->never = pick(4) == 0;
	w->keep = pick(2) ? 1 : 3;
	configure(w);
	write_all(w);
	expect_all(w);
	for (int step = 0; step < STEPS; step++) {
		static void (*const all[])(struct world *) = {reshard, reshard, work, work, write_some, write_again, write_again,
							      write_more, write_more, remove_file, rollback, restart, rebuild, rebuild};

		all[pick(sizeof(all) / sizeof(*all))](w);
		expect_all(w);
	}
	work(w);
	expect_all(w);
	check_store(w);
	rs_service_free(w->s);
	meta_layout_free(w->layout);
	for (size_t t = 0; t < w->nr; t++)
		free((char *)w->of[t].file);
	(void)snprintf(clean, sizeof(clean), "rm -rf %s", w->dir);
	assert_int_equal(0, system(clean));
	free(w);
}

static void files_are_what_they_should_be(void **unused)
{
	unsigned long rounds = getenv("ROUNDS") ? strtoul(getenv("ROUNDS"), NULL, 10) : some_of(24);
	unsigned long first = seed;

	(void)unused;
	sc_log_level(SC_LOG_ERROR);
	for (; seed < first + rounds; seed++)
		one_world(seed);
	printf("# seeds %lu to %lu: %u rank files read\n", first, seed - 1, files_read);
}

int main(void)
{
	const struct CMUnitTest tests[] = {cmocka_unit_test(files_are_what_they_should_be)};

	if (getenv("SEED"))
		seed = strtoul(getenv("SEED"), NULL, 10);
	return cmocka_run_group_tests_name("files", tests, NULL, NULL);
}
