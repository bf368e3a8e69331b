/* SPDX-License-Identifier: Apache-2.0 */
/* Factors of a weight's rows and columns (`rows=`, `columns=` of a like line). */
#include "meta/model/infer.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
/* cmocka wants the four above first */
#include <cmocka.h>

/* Factors of rows and columns are cut as their weight is, in the dimensions that they have; the ranks' parts are inferred. */
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

		(void)snprintf(text, sizeof(text), "mesh tp\no.{K}.{P} like={P} rows=r|r1:1 columns=c|c1:1\nw %s\n", cases[i].cut);
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

int main(void)
{
	const struct CMUnitTest tests[] = {cmocka_unit_test(factors)};

	return cmocka_run_group_tests_name("factors", tests, NULL, NULL);
}
