/* SPDX-License-Identifier: Apache-2.0 */
/* Factors of a weight's rows and columns, and numbers of its blocks (`rows=`, `columns=`, `blocks=` of a like line). */
#include "meta/model/infer.h"
#include "meta/model/view.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
/* cmocka wants the four above first */
#include <cmocka.h>

/* Factors of rows and columns are cut as their weight is, in the dimensions that they have; the ranks' parts are inferred.  A rule of
 * objects has no copy among the rules of the like line, which would match every name. */
static void factors(void **unused)
{
	static const struct {
		const char *cut, *name;
		struct meta_shape of, weight, whole;	/* of: a rank's, of the factor */
		const char *why;			/* NULL: it is taken */
	} cases[] = {
		{"tp=0", "r", {1, {4}}, {2, {4, 3}}, {1, {8}}, NULL}, {"tp=0", "c", {1, {3}}, {2, {4, 3}}, {1, {3}}, NULL},
		{"tp=1", "r", {1, {4}}, {2, {4, 3}}, {1, {4}}, NULL}, {"tp=1", "c", {1, {3}}, {2, {4, 3}}, {1, {6}}, NULL},
		{"tp=-2", "r", {1, {4}}, {2, {4, 3}}, {1, {8}}, NULL}, {"tp=-1", "r", {1, {4}}, {2, {4, 3}}, {1, {4}}, NULL},
		{"tp=-1 sections=2:1", "c", {1, {3}}, {2, {4, 3}}, {1, {6}}, NULL},
		{"tp=0", "r1", {2, {4, 1}}, {2, {4, 3}}, {2, {8, 1}}, NULL}, {"tp=0", "c1", {2, {1, 3}}, {2, {4, 3}}, {2, {1, 3}}, NULL},
		{"tp=1", "r1", {2, {4, 1}}, {2, {4, 3}}, {2, {4, 1}}, NULL}, {"tp=1", "c1", {2, {1, 3}}, {2, {4, 3}}, {2, {1, 6}}, NULL},
		{"tp=0", "r", {2, {2, 4}}, {3, {2, 4, 3}}, {2, {4, 4}}, NULL}, {"tp=0", "c", {2, {2, 3}}, {3, {2, 4, 3}}, {2, {4, 3}}, NULL},
		{"tp=1", "r", {2, {2, 4}}, {3, {2, 4, 3}}, {2, {2, 8}}, NULL}, {"tp=1", "c", {2, {2, 3}}, {3, {2, 4, 3}}, {2, {2, 3}}, NULL},
		{"tp=2", "c", {2, {2, 3}}, {3, {2, 4, 3}}, {2, {2, 6}}, NULL}, {"tp=2", "r", {2, {2, 4}}, {3, {2, 4, 3}}, {2, {2, 4}}, NULL},
		{"tp=0", "r", {1, {8}}, {2, {4, 3}}, {0, {0}}, "which it is the factor of rows"},
		{"tp=1", "c", {1, {6}}, {2, {4, 3}}, {0, {0}}, "which it is the factor of columns"},
		{"tp=0", "c1", {1, {3}}, {2, {4, 3}}, {0, {0}}, "all but the one before the last"},
		{"tp=0", "r", {1, {4}}, {1, {4}}, {0, {0}}, "all dimensions but the last"},
		{"flat tp=0 pad=1", "r", {1, {4}}, {2, {4, 3}}, {0, {0}}, "makes a factor of rows flat"},
	};

	(void)unused;
	for (size_t i = 0; i < sizeof(cases) / sizeof(*cases); i++) {
		struct meta_written w[4];
		char text[128], name[16];
		struct meta_topology topo = {0};
		struct meta_layout *l = NULL;
		struct meta_state state = {0};
		struct sc_err err = {0};
		int rc;

		(void)snprintf(text, sizeof(text), "mesh tp\n*rng*:* object\no.{K}.{P} like={P} rows=r|r1:1 columns=c|c1:1\nw %s\n", cases[i].cut);
		(void)snprintf(name, sizeof(name), "o.%s.w", cases[i].name);
		for (uint32_t k = 0; k < 4; k++)
			w[k] = (struct meta_written){k / 2, "m.safetensors", k % 2 ? name : "w", META_DTYPE_F32,
						     k % 2 ? cases[i].of : cases[i].weight, 0};
		assert_int_equal(0, meta_layout_parse(text, NULL, NULL, &l, &err));
		assert_int_equal(0, meta_topology_parse(l, "tp=2", &topo, &err));
		rc = meta_infer(l, &topo, w, 4, NULL, &state, &err);
		if ((rc == 0) != !cases[i].why || (rc < 0 && !strstr(err.msg, cases[i].why)))
			fail_msg("%s %s: %s", cases[i].cut, cases[i].name, rc < 0 ? err.msg : "taken");
		if (rc == 0) {
			const struct meta_tensor *t = NULL;

			for (uint32_t k = 0; k < state.nr; k++)
				t = strcmp(state.tensors[k].name, name) == 0 ? &state.tensors[k] : t;
			assert_non_null(t);
			assert_true(meta_shape_equal(&t->shape, &cases[i].whole));
		}
		meta_state_done(&state);
		meta_topology_done(&topo);
		meta_layout_free(l);
	}
}

/* Finds the numbers of blocks that a rank has, as one box; false: it has none. */
static bool numbers_of(const struct meta_view *v, uint32_t rank, struct sc_arena *arena, uint64_t ret[2])
{
	struct meta_stored_list list = {0};
	struct sc_err err = {0};
	bool found = false;

	assert_int_equal(0, meta_view_rank(v, rank, NULL, arena, &list, &err));
	for (size_t i = 0; i < list.nr; i++)
		if (strcmp(list.at[i].name, "o.b.w") == 0 && list.at[i].piece.nr_boxes) {
			assert_int_equal(1, list.at[i].piece.nr_boxes);
			ret[0] = list.at[i].piece.boxes[0].off[0];
			ret[1] = list.at[i].piece.boxes[0].ext[0];
			assert_int_equal(ret[1], list.at[i].piece.shape.dim[0]);
			found = true;
		}
	sc_vec_done(&list);
	return found;
}

/* Numbers of blocks of a flattened tensor, written by two ranks, and read by others: those of whole blocks, or refused. */
static void blocks(void **unused)
{
	static const struct {
		const char *cut;
		struct meta_shape of[2];	/* what each rank has of the tensor */
		uint64_t nr[2];			/* how many numbers */
		const char *why;		/* NULL: it is taken */
		const char *then;		/* another topology */
		uint32_t rank;
		uint64_t off, ext;		/* of the numbers of its rank; 0, 0: it is refused there */
	} cases[] = {
		{"tp=0", {{2, {4, 16}}, {2, {4, 16}}}, {4, 4}, NULL, "tp=4", 3, 6, 2},
		{"tp=0", {{2, {4, 16}}, {2, {4, 16}}}, {4, 4}, NULL, "tp=8", 5, 5, 1},
		{"tp=0", {{2, {4, 16}}, {2, {4, 16}}}, {8, 8}, NULL, "tp=1", 0, 0, 16},
		{"tp=0", {{2, {4, 16}}, {2, {4, 16}}}, {2, 2}, NULL, "tp=4", 1, 1, 1},
		{"tp=0", {{2, {4, 16}}, {2, {4, 16}}}, {2, 2}, NULL, "tp=8", 0, 0, 0},
		{"tp=0", {{1, {32}}, {1, {32}}}, {4, 4}, NULL, "tp=4", 2, 4, 2},
		{"tp=0 chunk", {{2, {3, 16}}, {2, {2, 16}}}, {6, 4}, NULL, "tp=3", 1, 4, 4},
		{"tp=0 chunk", {{2, {3, 16}}, {2, {2, 16}}}, {6, 4}, NULL, "tp=4", 2, 8, 2},
		{"tp=0 chunk", {{2, {3, 8}}, {2, {2, 8}}}, {2, 1}, "no run of whole blocks", NULL, 0, 0, 0},
		{"tp=0 chunk", {{2, {4, 8}}, {2, {3, 8}}}, {2, 2}, NULL, "tp=4", 3, 3, 1},
		{"tp=0 chunk", {{2, {4, 8}}, {2, {3, 8}}}, {2, 2}, NULL, "tp=3", 0, 0, 0},
		{"tp=0 chunk", {{2, {3, 16}}, {2, {2, 16}}}, {5, 5}, "but the rules make it F32 [6]", NULL, 0, 0, 0},
		{"tp=0 upto=2", {{2, {4, 16}}, {2, {4, 16}}}, {4, 4}, NULL, "tp=8", 5, 4, 4},
		{"flat tp=0", {{1, {32}}, {1, {32}}}, {4, 4}, NULL, "tp=4", 1, 2, 2},
		{"tp=0 pad=4", {{2, {4, 16}}, {2, {4, 16}}}, {4, 4}, NULL, "tp=4", 1, 0, 0},
		{"tp=1", {{2, {8, 8}}, {2, {8, 8}}}, {4, 4}, "block of 16 elements of 'm.safetensors:o.s.w' [8, 16], one behind the other, but at 'tp=2'", NULL, 0, 0, 0},
		{"tp=0 sections=1:1", {{2, {4, 16}}, {2, {4, 16}}}, {4, 4}, "no run of whole blocks", NULL, 0, 0, 0},
		{"tp=0", {{2, {4, 16}}, {2, {4, 16}}}, {5, 5}, "blocks of no size", NULL, 0, 0, 0},
		{"tp=0", {{2, {4, 16}}, {2, {4, 16}}}, {1, 1}, "has one number on each rank", NULL, 0, 0, 0},
		{"tp=0", {{2, {4, 16}}, {2, {4, 16}}}, {0, 0}, "blocks of no size", NULL, 0, 0, 0},
	};

	(void)unused;
	for (size_t i = 0; i < sizeof(cases) / sizeof(*cases); i++) {
		struct meta_written w[8];
		struct meta_topology topo = {0}, then = {0};
		struct meta_layout *l = NULL;
		struct meta_state state = {0};
		struct meta_view *v = NULL;
		struct sc_arena arena = {0};
		struct sc_err err = {0};
		uint64_t found[2] = {0, 0};
		const bool flat = strncmp(cases[i].cut, "flat", 4) == 0;
		char text[128];
		int rc;

		(void)snprintf(text, sizeof(text), "mesh tp\no.{K}.{P} like={P} blocks=b:s whole=q %s\nw %s\n", flat ? cases[i].cut : "",
			       flat ? "copy" : cases[i].cut);
		for (uint32_t k = 0; k < 8; k++) {
			static const char *const names[] = {"w", "o.s.w", "o.b.w", "o.q.w"};
			const struct meta_shape shapes[] = {flat ? (struct meta_shape){2, {4, 16}} : cases[i].of[k / 4], cases[i].of[k / 4],
							    {1, {cases[i].nr[k / 4]}}, {1, {7}}};

			w[k] = (struct meta_written){k / 4, "m.safetensors", names[k % 4], k % 4 == 1 ? META_DTYPE_U8 : META_DTYPE_F32,
						     shapes[k % 4], 0};
		}
		assert_int_equal(0, meta_layout_parse(text, NULL, NULL, &l, &err));
		assert_int_equal(0, meta_topology_parse(l, "tp=2", &topo, &err));
		rc = meta_infer(l, &topo, w, 8, NULL, &state, &err);
		if ((rc == 0) != !cases[i].why || (rc < 0 && !strstr(err.msg, cases[i].why)))
			fail_msg("%zu: %s: %s", i, cases[i].cut, rc < 0 ? err.msg : "taken");
		if (rc == 0) {
			assert_int_equal(0, meta_topology_parse(l, cases[i].then, &then, &err));
			rc = meta_view_new(l, &then, &state, &v, &err);
			if (rc == 0)
				(void)numbers_of(v, cases[i].rank, &arena, found);
			if ((rc == 0) != (cases[i].ext > 0) || found[0] != cases[i].off || found[1] != cases[i].ext)
				fail_msg("%zu: %s %s: %s", i, cases[i].cut, cases[i].then, rc < 0 ? err.msg : "taken");
			assert_true(rc == 0 || strstr(err.msg, "no run of whole blocks") || strstr(err.msg, "does not divide"));
			if (rc == 0)
				meta_view_free(v);
			meta_topology_done(&then);
		}
		sc_arena_done(&arena);
		meta_state_done(&state);
		meta_topology_done(&topo);
		meta_layout_free(l);
	}
}

/* Bytes without the numbers of their blocks, and numbers of two sizes. */
static void incomplete(void **unused)
{
	static const struct {
		const char *names[4];
		uint64_t nr[4];		/* 0: it is a U8 of [8, 16] */
		const char *why;
	} cases[] = {
		{{"o.s.w", "o.b.w", "o.s.v", "o.b.v"}, {0, 8, 0, 8}, NULL},
		{{"o.s.w", "o.b.w", "o.s.v", "o.c.v"}, {0, 8, 0, 8}, "o.b.v', the numbers of its blocks"},
		{{"o.s.w", "o.b.w", "o.t.v", "o.b.v"}, {0, 8, 0, 8}, "tells how 'o.s.v' is read"},
		{{"o.s.w", "o.b.w", "o.s.v", "o.b.v"}, {0, 8, 0, 4}, "has a number for each block of 32 elements"},
		{{"o.s.w", "o.b.w", "o.s.v", "o.b.v"}, {0, 8, 0, 1}, NULL},
	};

	(void)unused;
	for (size_t i = 0; i < sizeof(cases) / sizeof(*cases); i++) {
		struct meta_written w[4];
		struct meta_topology topo = {0};
		struct meta_layout *l = NULL;
		struct meta_state state = {0};
		struct meta_view *v = NULL;
		struct sc_err err = {0};
		int rc;

		for (uint32_t k = 0; k < 4; k++)
			w[k] = (struct meta_written){0, "m.safetensors", cases[i].names[k], cases[i].nr[k] ? META_DTYPE_F32 : META_DTYPE_U8,
						     cases[i].nr[k] ? (struct meta_shape){1, {cases[i].nr[k]}} : (struct meta_shape){2, {8, 16}}, 0};
		assert_int_equal(0, meta_layout_parse("mesh tp\no.{K}.{P} like={P} blocks=b:s\n{w|v} tp=0\n", NULL, NULL, &l, &err));
		assert_int_equal(0, meta_topology_parse(l, "tp=1", &topo, &err));
		rc = meta_infer(l, &topo, w, 4, NULL, &state, &err);
		if (rc == 0)
			rc = meta_view_new(l, &topo, &state, &v, &err);
		if (rc == 0)
			rc = meta_view_check_blocks(v, NULL, &err);
		if ((rc == 0) != !cases[i].why || (rc < 0 && !strstr(err.msg, cases[i].why)))
			fail_msg("%zu: %s", i, rc < 0 ? err.msg : "taken");
		if (v)
			meta_view_free(v);
		meta_state_done(&state);
		meta_topology_done(&topo);
		meta_layout_free(l);
	}
}

int main(void)
{
	const struct CMUnitTest tests[] = {cmocka_unit_test(factors), cmocka_unit_test(blocks), cmocka_unit_test(incomplete)};

	return cmocka_run_group_tests_name("factors", tests, NULL, NULL);
}
