/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Rows of padding over random reshards and commits, of random vocabularies, against a table of all rows that there ever
 * were: a topology has the first ones, repeats the last one if it has more, and those that it does not have are there
 * again later; also where the ranks' parts are flattened and cut once more, each or joined with others.  Prints the seed
 * when one fails; SEED=n repeats it.
 */
#include "tests/prop/held.h"
#include "tests/support/every.h"

#define ROUNDS some_of(300)

static unsigned long seed = 1;

#define TABLE_ROWS 800

/* A vocabulary, as somebody would keep it who knows each row that there ever was. */
struct table {
	uint64_t vocab, known;		/* rows; those of padding */
	uint32_t rows[TABLE_ROWS];	/* all elements of a row are this */
	int dim;			/* which is padded: of [rows, 3], or of [3, rows] */
	bool flat;			/* behind that, by dp */
	uint64_t before;		/* elements in front of it in a joined tensor; 0: it is not joined */
};

static uint64_t padded_to(const struct table *t, uint64_t multiple)
{
	return (t->vocab + multiple - 1) / multiple * multiple;
}

/* The element of row r, in another column c. */
static uint32_t in_table(const struct table *t, uint64_t r, uint64_t c)
{
	const uint64_t last = t->vocab + t->known - 1;

	return r >= t->vocab && !t->known ? 0 : t->rows[r < last ? r : last] + (uint32_t)c;
}

/* Calls what is stored by its place: row r of all ranks, column c, where tp is of degree `tp`, and dp of the rest. */
static uint32_t *at_rank(const struct job *j, const struct table *t, uint64_t r, uint64_t c, uint64_t per, unsigned tp)
{
	const uint64_t dp = j->topo.ranks / tp, at = t->before + (t->dim ? c * per + r % per : r % per * 3 + c);
	const uint64_t part = t->flat ? (t->before + 3 * per + dp - 1) / dp : 3 * per; /* the end is filled up */

	for (size_t i = 0; i < j->held.nr; i++)
		if (j->held.at[i].rank == r / per + at / part * tp && !meta_file_is_hidden(j->held.at[i].file))
			return &j->held.at[i].data[at % part];
	fail_msg("row %lu is on no rank", (unsigned long)r);
	return NULL;
}

/* One topology more; `last` NULL: the first one.  Then, or now and then, all ranks write. */
static void turn_table(const struct meta_layout *l, struct table *t, unsigned pad, const struct job *last, struct meta_state *known,
		       struct job *ret)
{
	struct meta_shape shape = {2, {3, 3}}, other = {1, {t->before}};
	struct meta_state back = {0};
	struct sc_err err;
	const unsigned tp = 1 + pick(9);
	uint64_t per;
	char text[40];
	size_t hidden = 0;

	shape.dim[t->dim] = t->vocab;
	if (!last)
		assert_int_equal(0, meta_state_add(known, "m:w", 3, META_DTYPE_U32, &shape));
	if (!last && t->before)
		assert_int_equal(0, meta_state_add(known, "m:b", 3, META_DTYPE_U32, &other));
	(void)snprintf(text, sizeof(text), "tp=%u dp=%u", tp, t->flat ? 1 + pick(4) : 1);
	assert_int_equal(0, meta_topology_parse(l, text, &ret->topo, &err));
	if (meta_view_new(l, &ret->topo, known, &ret->view, &err) < 0)
		fail_msg("%s", err.msg);
	hold(ret);
	if (last)
		reshard(last, ret);
	per = padded_to(t, (uint64_t)pad * tp) / tp;
	for (uint64_t r = 0; last && r < per * tp; r++)
		for (uint64_t c = 0; c < 3; c++)
			assert_int_equal(in_table(t, r, c), *at_rank(ret, t, r, c, per, tp));
	for (size_t i = 0; i < ret->held.nr; i++)
		hidden += meta_file_is_hidden(ret->held.at[i].file);
	assert_int_equal(t->known > per * tp - t->vocab, hidden);
	if (last && pick(3))
		return;
	for (uint64_t r = 0; r < per * tp; r++) {
		t->rows[r] = 1 + pick(1u << 20);
		for (uint64_t c = 0; c < 3; c++)
			*at_rank(ret, t, r, c, per, tp) = t->rows[r] + (uint32_t)c;
	}
	t->known = per * tp - t->vocab > t->known ? per * tp - t->vocab : t->known;
	if (infer(ret, l, known, &back, &err) < 0)
		fail_msg("%s", err.msg);
	assert_int_equal(1 + (t->known > 0) + (t->before > 0), back.nr);
	if (t->known)
		assert_int_equal(t->known, meta_state_padding(&back, "m:w", t->dim)->shape.dim[t->dim]);
	/* what the ranks have is a set of its own from now on */
	ret->view = meta_view_free(ret->view);
	meta_state_done(known);
	assert_int_equal(0, meta_state_add_all(known, &back));
	meta_state_done(&back);
	assert_int_equal(0, meta_view_new(l, &ret->topo, known, &ret->view, &err));
}

static void padding_of_random_vocabularies(void **unused)
{
	unsigned turns = 0;

	(void)unused;
	for (unsigned round = 0; round < ROUNDS; round++) {
		struct table t = {.dim = round % 2, .flat = round % 6 > 1, .before = round % 6 > 3 ? 1 + pick(7) : 0};
		struct meta_layout *l = NULL;
		struct meta_state states[2] = {{.nr = 0}};
		struct job jobs[2] = {{.view = NULL}};
		const unsigned nr = 2 + pick(8);
		struct sc_err err;
		char text[100];
		unsigned pad;

		random_state = seed * 2000003u + round;
		t.vocab = 1 + pick(300);
		pad = 1 + pick(48);
		(void)snprintf(text, sizeof(text), "mesh tp dp\nb copy\nw tp=%d pad=%u size=%lu%s\n", t.dim, pad,
			       (unsigned long)t.vocab, t.before ? "\nz join=b,w dp=0 pad=1" : t.flat ? " flat dp=0 pad=1" : "");
		assert_int_equal(0, meta_layout_parse(text, NULL, NULL, &l, &err));
		for (unsigned i = 0; i < nr; i++, turns++) {
			struct meta_state *mine = &states[i % 2];

			job_done(&jobs[i % 2]);
			jobs[i % 2] = (struct job){0};
			meta_state_done(mine);
			if (i)
				assert_int_equal(0, meta_state_add_all(mine, &states[1 - i % 2]));
			turn_table(l, &t, pad, i ? &jobs[1 - i % 2] : NULL, mine, &jobs[i % 2]);
		}
		for (int i = 0; i < 2; i++) {
			job_done(&jobs[i]);
			meta_state_done(&states[i]);
		}
		meta_layout_free(l);
	}
	printf("# seed %lu: %u topologies of padded tables\n", seed, turns);
}

int main(void)
{
	const struct CMUnitTest tests[] = {cmocka_unit_test(padding_of_random_vocabularies)};

	if (getenv("SEED"))
		seed = strtoul(getenv("SEED"), NULL, 10);
	return cmocka_run_group_tests_name("padding", tests, NULL, NULL);
}
