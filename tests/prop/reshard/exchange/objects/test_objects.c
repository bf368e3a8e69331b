/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Versions as objects, between two stores: whatever is committed, and whichever topology is written, on either node,
 * the other one takes it by its object, and shows the same: names, attributes, links, numbers, and bytes, which are read
 * from the blobs where they are.  Nothing is put twice.  A third node takes the last version alone, and shows the same.
 * Objects of which a bit was changed, and others that no catalog makes, are refused and leave nothing.
 * Prints the seed and the history when one fails; SEED=n repeats it, ROUNDS=n makes more.
 */
#include <errno.h>
#include <inttypes.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
/* cmocka wants some of the above first */
#include <cmocka.h>

#include "meta/base/log.h"
#include "reshard/repair/repair.h"
#include "reshard/version/state/state_i.h"
#include "reshard/upkeep/background/upkeep.h"
#include "tests/prop/files.h"
#include "tests/prop/pick.h"
#include "tests/prop/reshard/exchange/objects/requests.h"
#include "tests/prop/reshard/exchange/objects/two_stores.h"
#include "tests/support/every.h"
#include "tests/support/paths.h"
#include "tests/support/rank_files.h"

#define STEPS 10
#define SPOILT 60u

static const char *const layout_text = "mesh tp dp pp\n"
				       "plain notes*\n"
				       "m.{G}.col tp=0\nm.{G}.row tp=1\nm.{G}.norm copy\nemb stage=first tp=0 pad=1 size=13\n"
				       "end stage=last copy\nw copy\n";

/* --- what is there to write --- */

static void add(struct world *w, const char *file, const char *name, uint64_t a, uint64_t b)
{
	struct tensor *t = &w->of[w->nr];

	t->like = w->nr++;
	(void)snprintf(t->key, sizeof(t->key), "%s%s:%s", file, rank_files->suffix, name);
	t->file = strndup(t->key, strcspn(t->key, ":"));
	t->shape = (struct meta_shape){b ? 2 : 1, {a, b}};
}

static void make_world(struct world *w)
{
	char name[30];
	struct sc_err err;

	for (unsigned g = 0; g < 4; g++) {
		(void)snprintf(name, sizeof(name), "m.%u.col", g);
		add(w, g < 2 ? "a" : "b", name, 8, 2);
		(void)snprintf(name, sizeof(name), "m.%u.row", g);
		add(w, g < 2 ? "a" : "b", name, 3, 4);
		(void)snprintf(name, sizeof(name), "m.%u.norm", g);
		add(w, "a", name, 5, 0);
	}
	add(w, "a", "emb", 13, 3);
	add(w, "b", "end", 7, 0);
	assert_int_equal(0, meta_layout_parse(layout_text, NULL, NULL, &w->layout, &err));
}

static void random_topology(char text[200])
{
	(void)snprintf(text, 200, "tp=%u dp=%u pp=%u", 1u << pick(2), 1 + pick(2), 1u << pick(2));
}

/* --- commands --- */

static struct world *w;
static struct rs_object_name last;	/* the newest version */
static struct rs_object_names versions;	/* all of them */
static uint64_t nr_versions;

static void command_on(struct node *n)
{
	w->s = n->s;
	w->job = n->job;
	read_on(n);
}

/* Both nodes show the same. */
static void expect_same(struct node *a, struct rs_view *va, struct node *b, struct rs_view *vb, const char *what)
{
	char *x = text_of(a, va), *y = text_of(b, vb);

	if (strcmp(x, y) != 0) {
		size_t i = 0, begin = 0;

		for (; x[i] == y[i]; i++)
			begin = x[i] == '\n' ? i + 1 : begin;
		broken("%s: node %u shows\n%.*s\nand node %u\n%.*s\n", what, a->number,
		       (int)strcspn(x + begin, "\n"), x + begin, b->number, (int)strcspn(y + begin, "\n"), y + begin);
	}
	free(x);
	free(y);
	rs_view_unref(a->s, va);
	rs_view_unref(b->s, vb);
}

static void expect_all(struct node *a, struct node *b)
{
	struct rs_view *va, *vb;
	char text[200];
	struct sc_err err;
	struct shown x;

	expect_same(a, NULL, b, NULL, "head");
	good(rs_view_as(a->s, a->job, "tp=1", &rs_form_ranks, &va, &err), err);
	good(rs_view_as(b->s, b->job, "tp=1", &rs_form_ranks, &vb, &err), err);
	expect_same(a, va, b, vb, "tp=1");
	random_topology(text);
	if (show(w, &w->now, text, &x)) {
		shown_done(&x);
		good(rs_view_as(a->s, a->job, text, &rs_form_ranks, &va, &err), err);
		good(rs_view_as(b->s, b->job, text, &rs_form_ranks, &vb, &err), err);
		expect_same(a, va, b, vb, text);
	}
	(void)snprintf(text, sizeof(text), "%u", 1 + pick((unsigned)nr_versions));
	if (rs_view_version(a->s, a->job, strtoull(text, NULL, 10), &va, &err) == 0 &&
	    rs_view_version(b->s, b->job, strtoull(text, NULL, 10), &vb, &err) == 0)
		expect_same(a, va, b, vb, text);
}

/* What one node made, the other one takes; and says the same of it. */
static void hand_over(struct node *from, struct node *to)
{
	struct rs_object_name again;
	unsigned before;
	struct sc_err err;

	put_head(from, &last);
	before = objects_put;
	put_head(from, &again);
	assert_memory_equal(&last, &again, sizeof(last));
	if (objects_put - before != 1)
		broken("%u objects were put again", objects_put - before);
	assert_int_equal(0, sc_vec_push(&versions, last));
	good(take(to, &last, &err), err);
	put_head(to, &again);
	if (memcmp(&last, &again, sizeof(last)) != 0 || objects_put - before != 2)
		broken("node %u says something else of what it took", to->number);
	if (take(to, &last, &err) != SC_E_EXISTS)
		broken("version taken twice: %s", err.msg);
	expect_all(from, to);
}

static void write_model(struct node *n, const struct version *v, const struct shown *x, unsigned share)
{
	struct names files = {0};

	for (size_t t = 0; t < w->nr; t++)
		put_name(&files, w->of[t].file);
	if (share && pick(2))
		files.nr = 1;
	command_on(n);
	(void)write_ranks(w, v, x, &files, ALL_RANKS, false);
}

static void commit(struct node *n, struct node *other)
{
	struct sc_err err;
	uint64_t before = nr_versions;
	struct rs_view *view;
	int rc;

	command_on(n);
	rc = rs_job_commit(RS_CALLER(n->s), n->job, pick(2) ? "step=7" : "", &err);
	if (rc < 0)
		broken("commit on node %u: %s", n->number, err.msg);
	good(rs_view_head(n->s, n->job, &view, &err), err);
	nr_versions = view->version->nr;
	rs_view_unref(n->s, view);
	if (nr_versions == before)
		return;
	note("version %" PRIu64 " by a commit on node %u\n", nr_versions, n->number);
	hand_over(n, other);
}

static void first_version(struct node *n, struct node *other)
{
	struct sc_err err;
	struct shown x;

	w->salts++;
	for (size_t t = 0; t < w->nr; t++)
		w->now.salt[t] = w->salts;
	random_topology(w->now.topology);
	note("topology %s\n", w->now.topology);
	assert_true(show(w, &w->now, w->now.topology, &x));
	good(rs_job_layout(RS_CALLER(n->s), n->job, layout_text, &err), err);
	good(rs_job_topology(RS_CALLER(n->s), n->job, w->now.topology, &err), err);
	write_model(n, &w->now, &x, 0);
	for (uint32_t rank = 0; rank < x.topo.ranks; rank++)
		write_torch(n, rank, rank + 1);
	for (int i = 0; i < 30; i++)
		change_tree(n, &x);
	commit(n, other);
	shown_done(&x);
}

static void more(struct node *n, struct node *other)
{
	struct sc_err err;
	struct shown x;
	unsigned what = pick(4);

	assert_true(show(w, &w->now, w->now.topology, &x));
	w->salts++;
	if (what == 0 && !lacks_padding(n)) {
		for (size_t t = 0; t < w->nr; t++)
			w->now.salt[t] = w->salts;
		write_model(n, &w->now, &x, 0);
	}
	if (what == 1)
		for (uint32_t rank = 0; rank < x.topo.ranks; rank++)
			write_torch(n, rank, pick(50));
	for (int i = pick(12); i >= 0; i--)
		change_tree(n, &x);
	/* not only times of folders, which are no commit, and would stay this node's own */
	(void)work_unlink(n->s, n->job, RS_SHARED, "each", &err);
	write_plain(n, RS_SHARED, "each");
	commit(n, other);
	shown_done(&x);
}

static void reshard(struct node *n, struct node *other)
{
	char topology[200], command[220];
	struct sc_err err;
	struct shown x;

	random_topology(topology);
	if (strcmp(topology, w->now.topology) == 0 || !show(w, &w->now, topology, &x))
		return;
	shown_done(&x);
	note("topology %s on node %u\n", topology, n->number);
	(void)snprintf(command, sizeof(command), "%s plain=drop", topology);
	good(rs_job_topology(RS_CALLER(n->s), n->job, command, &err), err);
	(void)snprintf(w->now.topology, sizeof(w->now.topology), "%s", topology);
	nr_versions++;
	hand_over(n, other);
}

/* --- whole stores --- */

static void configure(struct node *n, const char *text)
{
	struct sc_err err;

	good(rs_job_config(RS_CALLER(n->s), n->job, text, &err), err);
}

static void check_store(struct node *n)
{
	struct sc_buf report = {0};
	struct sc_err err;
	uint64_t bad = 1;

	good(rs_fsck(n->s, false, &bad, &report, &err), err);
	if (bad)
		broken("node %u: %s", n->number, report.text);
	sc_buf_done(&report);
}

/* What a worker does: it reads only what is here. */
static void work(struct node *n)
{
	struct sc_err err;

	note("work on node %u\n", n->number);
	good(rs_service_work(n->s, &err), err);
}

/* --- objects that are no good --- */

static unsigned bit;	/* of the object that is got next but `spoil_in` */
static unsigned spoil_in;

static void flip(struct sc_buf *object)
{
	if (spoil_in-- == 0)
		object->text[bit / 8 % object->bytes] ^= (char)(1 << bit % 8);
}

/* Bytes that are changed, cut out, or put twice, as no catalog makes them, under the right name. */
static void damage(struct sc_buf *object)
{
	size_t at = pick((unsigned)object->bytes), nr = 1 + pick(20);

	if (spoil_in-- != 0)
		return;
	nr = nr < object->bytes - at ? nr : object->bytes - at;
	switch (pick(4)) {
	case 0:
		object->text[at] = (char)pick(256);
		return;
	case 1:
		object->text[at] = "0123456789abcdef -\\\n"[pick(20)];
		return;
	case 2:
		memmove(object->text + at, object->text + at + nr, object->bytes - at - nr);
		object->bytes -= nr;
		return;
	default:
		memmove(object->text + at, object->text + (at > nr ? at - nr : 0), nr);
	}
}

static int on_version_nr(void *arg, uint64_t nr)
{
	(void)nr;
	(*(unsigned *)arg)++;
	return 0;
}

static unsigned versions_of(struct node *n)
{
	unsigned nr = 0;
	struct sc_err err;

	good(rs_versions_each(n->s, n->job, on_version_nr, &nr, &err), err);
	return nr;
}

/* A node that has nothing takes the last version, which needs so many objects. */
static void expect_refused(struct node *n, unsigned objects)
{
	unsigned refused = 0;
	struct sc_err err;

	for (int i = 0; i < 6; i++) {
		spoil = flip;
		bit = (unsigned)draw();
		spoil_in = pick(objects);
		if (try_take(n, &last, &err) != SC_E_FORMAT || !strstr(err.msg, "other bytes than its name says"))
			broken("a flipped bit: %s", err.msg);
	}
	any_name = true;
	for (int i = 0; i < SPOILT; i++) {
		spoil = damage;
		spoil_in = pick(objects);
		refused += try_take(n, &last, &err) < 0;
	}
	any_name = false;
	spoil = NULL;
	/* others say something else that could be */
	if (refused < SPOILT / 4)
		broken("%u of %u objects were refused", refused, SPOILT);
	if (versions_of(n))
		broken("a version stayed");
	check_store(n);
	good(try_take(n, &last, &err), err);
}

static void third_node(struct node *from, struct node *n)
{
	struct sc_err err;
	unsigned objects;

	open_node(n, from->job->root);
	objects_got = 0;
	good(take(n, &last, &err), err);
	objects = objects_got;
	expect_same(from, NULL, n, NULL, "third node");
	check_store(n);
	close_node(n);
	open_node(n, from->job->root);
	expect_refused(n, objects);
	close_node(n);
}

/* --- worlds --- */

/* A node that keeps one version drops what it took; files that it has not are nobody's garbage. */
static void drop_old(struct node *n, struct node *other)
{
	configure(n, "keep=1");
	for (int i = 0; i < 8; i++)
		reshard(n, other);
	work(n);
	if (versions_of(n) > 2 && versions_of(n) == nr_versions)
		broken("node %u has all %" PRIu64 " versions still", n->number, nr_versions);
	check_store(n);
	restart_node(n);
	check_store(n);
	expect_same(n, NULL, other, NULL, "with keep=1");
}

static void begin_world(unsigned long number)
{
	struct node *a = &nodes[0], *b = &nodes[1];

	random_state = number * 1000003u;
	*history = 0;
	nr_versions = 0;
	w = calloc(1, sizeof(*w));
	make_world(w);
	open_node(a, 0);
	open_node(b, a->job->root);
	configure(a, "sync=off keep=0 materialize=never");
	configure(b, "sync=off keep=0 materialize=never");
	first_version(a, b);
}

static void end_world(void)
{
	close_node(&nodes[0]);
	close_node(&nodes[1]);
	forget_objects();
	sc_vec_done(&versions);
	meta_layout_free(w->layout);
	for (size_t t = 0; t < w->nr; t++)
		free((char *)w->of[t].file);
	free(w);
}

static void one_world(unsigned long number)
{
	struct node *a = &nodes[0], *b = &nodes[1];
	unsigned steps = STEPS;

	begin_world(number);
	while (steps--) {
		struct node *n = pick(2) ? a : b, *other = n == a ? b : a;

		if (pick(4) == 0)
			restart_node(pick(2) ? a : b);
		else if (pick(4) == 0)
			work(n);
		else if (pick(2))
			reshard(n, other);
		else
			more(n, other);
	}
	check_store(a);
	check_store(b);
	remove_versions(&versions, a, &nodes[2]);
	third_node(a, &nodes[2]);
	drop_old(b, a);
	end_world();
}

static void other_nodes_show_the_same(void **unused)
{
	unsigned long rounds = getenv("ROUNDS") ? strtoul(getenv("ROUNDS"), NULL, 10) : some_of(12);
	unsigned long first = seed;

	(void)unused;
	sc_log_level(SC_LOG_ERROR);
	for (; seed < first + rounds; seed++)
		one_world(seed);
	printf("# seeds %lu to %lu: %u objects put, %u files read from blobs elsewhere\n", first, seed - 1, objects_put, files_read);
}

/* --- what random worlds do not have --- */

static int on_blob(void *arg, const struct meta_blob_row *row)
{
	*(unsigned *)arg += row->away;
	return 0;
}

static unsigned nr_away(struct node *n)
{
	unsigned nr = 0;
	struct sc_err err;

	good(meta_blob_each(n->s->catalog, on_blob, &nr, &err), err);
	return nr;
}

/* A tree of more than RS_OBJECT_BYTES_MAX. */
static void what_is_large_goes_in_parts(void **unused)
{
	struct node *a = &nodes[0];
	char value[60001], name[20];
	struct sc_err err;
	unsigned before;

	(void)unused;
	begin_world(1);
	write_plain(a, 0, "large");
	for (int i = 0; i < 16; i++) {
		memset(value, 'a' + i, sizeof(value) - 1);
		value[sizeof(value) - 1] = 0;
		(void)snprintf(name, sizeof(name), "user.%d", i);
		good(work_set_xattr(a->s, a->job, 0, "large", name, value, &err), err);
	}
	before = objects_put;
	commit(a, &nodes[1]);
	/* two parts, their list, and the version three times */
	assert_true(objects_put - before >= 3 + 3);
	third_node(a, &nodes[2]);
	end_world();
}

/* Who takes the last of many versions takes a bounded number of objects. */
static void a_long_history_is_made_flat(void **unused)
{
	struct node *a = &nodes[0], *b = &nodes[1];
	struct rs_object_name name;
	struct sc_err err;
	char path[20];
	unsigned most = 0;

	(void)unused;
	begin_world(2);
	for (int i = 0; i < 45; i++) {
		(void)snprintf(path, sizeof(path), "e%d", i % 20);
		(void)work_unlink(a->s, a->job, 1, path, &err);
		write_plain(a, 1, path);
		good(rs_job_commit(RS_CALLER(a->s), a->job, "", &err), err);
		put_head(a, &name);
		good(take(b, &name, &err), err);
		if (pick(5) == 0)
			work(pick(2) ? a : b);
		objects_got = 0;
		open_node(&nodes[2], a->job->root);
		good(try_take(&nodes[2], &name, &err), err);
		close_node(&nodes[2]);
		most = objects_got > most ? objects_got : most;
	}
	/* trees, most of them twice; a version, a layout, sets of three files, objects of ranks */
	assert_in_range(most, 16, 2 * 16 + 2 + 3 + 8);
	last = name;
	nr_versions += 45;
	expect_all(a, b);
	check_store(b);
	third_node(a, &nodes[2]);
	end_world();
}

static void datasets_are_taken_with_their_blobs(void **unused)
{
	struct node *a = &nodes[0], *b = &nodes[1];
	struct sc_buf x = {0}, y = {0};
	char source[120], command[400];
	struct sc_err err;
	unsigned before;
	FILE *f;

	(void)unused;
	begin_world(3);
	(void)snprintf(source, sizeof(source), "%s.jsonl", a->dir);
	f = fopen(source, "w");
	for (int i = 0; i < 3000; i++)
		assert_true(fprintf(f, "{\"sample\": %d}\n", i * i) > 0);
	assert_int_equal(0, fclose(f));
	(void)snprintf(command, sizeof(command), "add name=l path=%s global_batch=12\nadd name=c path=%s global_batch=24 copy=yes\n",
		       source, source);
	good(rs_job_data(RS_CALLER(a->s), a->job, command, &err), err);
	nr_versions++;
	put_head(a, &last);
	before = nr_away(b);
	good(take(b, &last, &err), err);
	good(rs_render_data(a->s, a->job, &x, &err), err);
	good(rs_render_data(b->s, b->job, &y, &err), err);
	assert_string_equal(x.text, y.text);
	assert_int_equal(before + 3, nr_away(b)); /* borders of both, a copy */
	check_store(b);
	/* and back: what comes from there has the same */
	good(rs_job_topology(RS_CALLER(b->s), b->job, "tp=1 dp=1 pp=1 plain=drop", &err), err);
	put_head(b, &last);
	good(take(a, &last, &err), err);
	assert_int_equal(0, nr_away(a));
	work(b);
	open_node(&nodes[2], a->job->root);
	objects_got = 0;
	good(try_take(&nodes[2], &last, &err), err);
	expect_refused(&nodes[2], objects_got);
	close_node(&nodes[2]);
	sc_buf_done(&x);
	sc_buf_done(&y);
	assert_int_equal(0, unlink(source));
	end_world();
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(what_is_large_goes_in_parts), cmocka_unit_test(a_long_history_is_made_flat),
		cmocka_unit_test(datasets_are_taken_with_their_blobs), cmocka_unit_test(other_nodes_show_the_same),
	};

	if (getenv("SEED"))
		seed = strtoul(getenv("SEED"), NULL, 10);
	return cmocka_run_group_tests_name("objects", tests, NULL, NULL);
}
