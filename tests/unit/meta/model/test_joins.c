/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Joined, shared and stacked tensors hold, element by element, what tests/support/make_joins.py makes of arrays, as
 * DeepSpeed, Megatron, FSDP1 and vLLM do; and what ranks store is inferred back.
 */
#include "meta/model/infer.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
/* cmocka wants the four above first */
#include <cmocka.h>

#include "tests/support/sample_file.h"

struct example {
	const char *layout, *topology;
	char *stored;		/* lines: rank, file:name, shape, elements */
	struct meta_state state;
	unsigned nr;
};

static void parse_shape(char *text, struct meta_shape *ret)
{
	*ret = (struct meta_shape){0};
	for (char *save = NULL, *d = strtok_r(text, ",", &save); d; d = strtok_r(NULL, ",", &save))
		ret->dim[ret->nr++] = strtoull(d, NULL, 10);
}

/* Adds the elements of a part to those of its stored tensor. */
static void add_part(const struct meta_state *state, const struct meta_stored *s, uint64_t *to)
{
	const struct meta_tensor *t = &state->tensors[s->entry->tensor];

	for (uint32_t k = 0; k < s->piece.nr_boxes; k++) {
		const struct meta_box *b = &s->piece.boxes[k];

		for (uint64_t i = 0; i < meta_box_elements(b); i++) {
			uint64_t left = i, x = 0, at = b->at, c[SC_DIMS_MAX];

			for (int d = b->nr - 1; d >= 0; d--) {
				c[d] = left % b->ext[d];
				left /= b->ext[d];
				at += c[d] * b->stride[d];
			}
			for (int d = 0; d < b->nr; d++)
				x = x * t->shape.dim[d] + b->off[d] + c[d];
			assert_int_equal(0, to[at]);
			to[at] = 1000ull * s->entry->tensor + x + 1;
		}
	}
}

static void print(struct sc_buf *out, uint32_t rank, const struct meta_stored *s, const uint64_t *at, uint64_t nr)
{
	sc_buf_printf(out, "%u\t%s:%s\t", rank, s->file, s->name);
	for (int d = 0; d < s->piece.shape.nr; d++)
		sc_buf_printf(out, "%s%llu", d ? "," : "", (unsigned long long)s->piece.shape.dim[d]);
	sc_buf_printf(out, "\t");
	for (uint64_t i = 0; i < nr; i++)
		sc_buf_printf(out, "%s%llu", i ? " " : "", (unsigned long long)at[i]);
	sc_buf_printf(out, "\n");
}

static int by_line(const void *a, const void *b)
{
	return strcmp(*(char *const *)a, *(char *const *)b);
}

/* Lines in order, as text. */
static char *sorted(char *text)
{
	char *lines[512], *all = calloc(1, strlen(text) + 2);
	size_t nr = 0;

	for (char *save = NULL, *l = strtok_r(text, "\n", &save); l; l = strtok_r(NULL, "\n", &save)) {
		assert_true(nr < 512);
		lines[nr++] = l;
	}
	qsort(lines, nr, sizeof(*lines), by_line);
	for (size_t i = 0; i < nr; i++)
		strcat(strcat(all, lines[i]), "\n");
	return all;
}

struct written {
	size_t nr, room;
	struct meta_written *at;
};

static void print_view(const struct meta_view *v, struct sc_arena *arena, struct sc_buf *out, struct written *w)
{
	struct sc_err err;

	for (uint32_t rank = 0; rank < v->topo->ranks; rank++) {
		struct meta_stored_list list = {0};

		assert_int_equal(0, meta_view_rank(v, rank, NULL, arena, &list, &err));
		for (size_t i = 0; i < list.nr;) {
			const struct meta_stored *s = &list.at[i];
			uint64_t nr, *at;

			assert_true(meta_shape_elements(&s->piece.shape, &nr));
			at = calloc(nr + 1, sizeof(*at));
			do
				add_part(v->state, &list.at[i++], at);
			while (i < list.nr && list.at[i].part);
			print(out, rank, s, at, nr);
			free(at);
			assert_int_equal(0, sc_vec_push(w, (struct meta_written){rank, sc_arena_copy(arena, s->file, strlen(s->file)),
										 sc_arena_copy(arena, s->name, strlen(s->name)),
										 META_DTYPE_F32, s->piece.shape, 0}));
		}
		sc_vec_done(&list);
	}
}

static void run(const struct example *x)
{
	struct meta_layout *l = NULL, *again = NULL;
	struct meta_state back = {0};
	struct meta_topology topo = {0};
	struct meta_view *v = NULL;
	struct sc_arena arena = {0};
	struct written w = {0};
	struct sc_buf out = {0};
	struct sc_err err;
	char *mine, *want;

	if (meta_layout_parse(x->layout, NULL, NULL, &l, &err) < 0 || meta_layout_parse(l->flat, NULL, NULL, &again, &err) < 0 ||
	    meta_topology_parse(l, x->topology, &topo, &err) < 0 || meta_view_new(l, &topo, &x->state, &v, &err) < 0)
		fail_msg("%s\n%s\n%s", err.msg, x->topology, x->layout);
	assert_string_equal(l->flat, again->flat);
	print_view(v, &arena, &out, &w);
	mine = sorted(out.text);
	want = sorted(x->stored);
	if (strcmp(mine, want) != 0)
		fail_msg("example %u:\n%s\n%s\nmine:\n%s\nwant:\n%s", x->nr, x->layout, x->topology, mine, want);
	if (meta_infer(l, &topo, w.at, w.nr, &x->state, &back, &err) < 0)
		fail_msg("example %u is not inferred back: %s", x->nr, err.msg);
	assert_int_equal(x->state.nr, back.nr);
	free(mine);
	free(want);
	sc_vec_done(&w);
	sc_buf_done(&out);
	meta_state_done(&back);
	meta_view_free(v);
	meta_topology_done(&topo);
	meta_layout_free(l);
	meta_layout_free(again);
	sc_arena_done(&arena);
}

static void all_examples_equal_the_arrays(void **unused)
{
	size_t bytes;
	char *text = load_sample("joins.txt", &bytes), *at = text;
	unsigned nr = 0;

	(void)unused;
	for (char *end; (end = strstr(at, "\n\n")); at = end + 2) {
		struct example x = {.layout = at + strlen("case\n"), .nr = nr++};
		char *topology = strstr(at, "\n.\n"), *line;

		*end = 0;
		*topology = 0;
		x.topology = topology + 3;
		for (line = strchr(topology + 3, '\n'); line; line = x.stored ? NULL : strchr(line, '\n')) {
			*line++ = 0;
			if (*line >= '0' && *line <= '9') {
				x.stored = line;
			} else {
				char *shape = strstr(line, "\tF32\t");
				struct meta_shape s;
				size_t n = strcspn(shape + 5, "\n");
				char copy[100] = {0};

				memcpy(copy, shape + 5, n);
				parse_shape(copy, &s);
				assert_int_equal(0, meta_state_add(&x.state, line, (size_t)(shape - line), META_DTYPE_F32, &s));
				line = shape + 5;
			}
		}
		run(&x);
		meta_state_done(&x.state);
	}
	free(text);
	printf("# %u examples\n", nr);
	assert_true(nr > 80);
}

/* a is F32 [4, 4], b BF16 [4], c F32 [2, 3], x.0 and x.1 are F32 [5]. */
static void what_cannot_be_joined_is_refused(void **unused)
{
	static const struct {
		const char *rules, *topology, *why;
	} of[] = {
		{"z join=a,b\na copy\nb copy\nc copy\nx.* copy", "tp=2", "'z' joins tensors of types F32 and BF16 ('m:b')"},
		{"z join=a,c over=0\na copy\nb copy\nc copy\nx.* copy", "tp=2", "'z' joins pieces of different shapes: 'm:c' is [2, 3]"},
		{"z join=a,c over=2\na copy\nb copy\nc copy\nx.* copy", "tp=2", "joined over dimension 2, but 'm:a' has 2"},
		{"z join=a tp=0\na tp=0\nb copy\nc copy\nx.* copy", "tp=2", "'z' is cut by an axis that cuts 'a' already"},
		{"z join=a,c tp=0\na copy\nb copy\nc copy\nx.* copy", "tp=4", "'z': 'm:a' (flat): 22 does not divide by tp=4"},
		{"z join=a over=0\na flat\nb copy\nc copy\nx.* copy", "tp=2", "is flat, so it is joined over no dimension"},
		{"z join=a,x.*\na dp=0\nb copy\nc copy\nx.{X} copy", "tp=2 dp=2 ep=2", "'z' joins tensors of different meshes"},
		{"b join=c\nb copy\na copy\nc copy\nx.* copy", "tp=2", "no rule places 'm:b'"},
		{"b copy\nb join=c\na copy\nc copy\nx.* copy", "tp=2", "but the first rule of that name is '*:b copy'"},
		{"s stack={G} name=x.{G} tp=0\na copy\nb copy\nc copy", "tp=3", "'m:x.0' dimension 0: 5 does not divide by tp=3"},
		{"a tp=0 upto=3\nb copy\nc copy\nx.* copy", "tp=4", "'m:a' dimension 0: tp=4 does not divide by upto=3"},
		{"c tp=1 upto=2\nb copy\na copy\nx.* copy", "tp=4", "'m:c' dimension 1: 3 does not divide by tp=2 (upto)"},
	};
	static const struct {
		const char *key;
		enum meta_dtype dtype;
		struct meta_shape shape;
	} tensors[] = {{"m:a", META_DTYPE_F32, {2, {4, 4}}}, {"m:b", META_DTYPE_BF16, {1, {4}}}, {"m:c", META_DTYPE_F32, {2, {2, 3}}},
		       {"m:x.0", META_DTYPE_F32, {1, {5}}}, {"m:x.1", META_DTYPE_F32, {1, {5}}}};
	struct meta_state state = {0};

	(void)unused;
	for (size_t i = 0; i < sizeof(tensors) / sizeof(*tensors); i++)
		assert_int_equal(0, meta_state_add(&state, tensors[i].key, 3 + (i > 2) * 2, tensors[i].dtype, &tensors[i].shape));
	for (size_t i = 0; i < sizeof(of) / sizeof(*of); i++) {
		struct meta_layout *l = NULL;
		struct meta_topology topo = {0};
		struct meta_view *v = NULL;
		struct sc_err err;
		char text[300];

		(void)snprintf(text, sizeof(text), "mesh tp dp pp\nmesh etp=tp ep edp=* pp\n%s", of[i].rules);
		if (meta_layout_parse(text, NULL, NULL, &l, &err) < 0 || meta_topology_parse(l, of[i].topology, &topo, &err) < 0)
			fail_msg("%s", err.msg);
		if (meta_view_new(l, &topo, &state, &v, &err) == 0)
			fail_msg("taken: %s", of[i].rules);
		if (!strstr(err.msg, of[i].why))
			fail_msg("says '%s', want '%s'", err.msg, of[i].why);
		meta_topology_done(&topo);
		meta_layout_free(l);
	}
	meta_state_done(&state);
}

/* What is joined is in one file; a copy of it in another file, or of the same part, may be there, too. */
static void what_is_joined_is_in_one_file(void **unused)
{
	static const struct {
		const char *a[3], *b[3], *why;
	} of[] = {
		{{"q", "k"}, {"v"}, "'qkv' joins 'q', which is in 'a', and 'v', which is in 'b': they must be in one file"},
		{{"q"}, {"k", "v"}, "'qkv' joins 'q', which is in 'a'"},
		{{"q", "k", "v"}, {"q", "k", "v"}, NULL},
		{{"q", "k", "v"}, {"q"}, NULL},
		{{"q"}, {"q"}, NULL},
		{{"q", "k", "v"}, {NULL}, NULL},
	};
	const struct meta_shape shape = {2, {4, 4}};
	struct meta_layout *l = NULL;
	struct meta_topology topo = {0};
	struct sc_err err;

	(void)unused;
	assert_int_equal(0, meta_layout_parse("mesh tp\nqkv join=q,k,v order=listed over=0\n* tp=0", NULL, NULL, &l, &err));
	assert_int_equal(0, meta_topology_parse(l, "tp=2", &topo, &err));
	for (size_t i = 0; i < sizeof(of) / sizeof(*of); i++) {
		struct meta_state state = {0};
		struct meta_view *v = NULL;
		char key[8];
		int rc;

		for (int k = 0; k < 6; k++) {
			const char *name = k < 3 ? of[i].a[k] : of[i].b[k - 3];

			if (!name)
				continue;
			(void)snprintf(key, sizeof(key), "%c:%s", k < 3 ? 'a' : 'b', name);
			assert_int_equal(0, meta_state_add(&state, key, 3, META_DTYPE_F32, &shape));
		}
		rc = meta_view_new(l, &topo, &state, &v, &err);
		if ((rc == 0) != !of[i].why || (rc < 0 && !strstr(err.msg, of[i].why)))
			fail_msg("case %zu: %s, want %s", i, rc ? err.msg : "taken", of[i].why ? of[i].why : "taken");
		meta_view_free(v);
		meta_state_done(&state);
	}
	meta_topology_done(&topo);
	meta_layout_free(l);
}

int main(void)
{
	const struct CMUnitTest tests[] = {cmocka_unit_test(all_examples_equal_the_arrays),
					   cmocka_unit_test(what_cannot_be_joined_is_refused),
					   cmocka_unit_test(what_is_joined_is_in_one_file)};

	return cmocka_run_group_tests_name("joins", tests, NULL, NULL);
}
