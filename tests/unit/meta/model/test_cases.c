/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The recorded cases of the reference model (tests/support/make_cases.py): of thousands of random
 * layouts and topologies, every rank stores the same boxes as the model says, and what it stores
 * is inferred back to the same state.
 *
 *     test_cases [FILE]          all cases of a file (default: cases.txt beside this source)
 *     test_cases --dump K [FILE] the text of one case
 */
#include "meta/model/infer.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
/* cmocka wants the four above first */
#include <cmocka.h>

static const char *cases_file = CASES_FILE;
static long dump_case = -1;

static uint64_t fnv(const char *text, size_t bytes)
{
	uint64_t h = 0xcbf29ce484222325u;

	for (size_t i = 0; i < bytes; i++)
		h = (h ^ (unsigned char)text[i]) * 0x100000001b3u;
	return h;
}

static void print_numbers(struct sc_buf *buf, const uint64_t *at, int nr)
{
	for (int i = 0; i < nr; i++)
		sc_buf_printf(buf, "%s%llu", i ? "," : "", (unsigned long long)at[i]);
}

static int by_key(const void *a, const void *b)
{
	const struct meta_stored *x = a, *y = b;
	int files = strcmp(x->file, y->file);

	return files ? files : strcmp(x->name, y->name);
}

static void print_rank(struct sc_buf *buf, const struct meta_view *v, uint32_t rank,
		       const struct meta_stored_list *list)
{
	for (size_t i = 0; i < list->nr; i++) {
		const struct meta_stored *s = &list->at[i];
		const struct meta_tensor *t = &v->state->tensors[s->entry->tensor];

		sc_buf_printf(buf, "%u\t%s:%s\t%s\t", rank, s->file, s->name, meta_dtype_name(t->dtype));
		print_numbers(buf, s->piece.shape.dim, s->piece.shape.nr);
		sc_buf_add(buf, "\n", 1);
		for (uint32_t k = 0; k < s->piece.nr_boxes; k++) {
			const struct meta_box *b = &s->piece.boxes[k];

			sc_buf_printf(buf, "\t%s\t", t->key);
			print_numbers(buf, b->off, b->nr);
			sc_buf_add(buf, "\t", 1);
			print_numbers(buf, b->ext, b->nr);
			sc_buf_printf(buf, "\t%llu\t", (unsigned long long)b->at);
			print_numbers(buf, b->stride, b->nr);
			sc_buf_add(buf, "\n", 1);
		}
	}
}

struct written {
	size_t nr, room;
	struct meta_written *at;
};

static int dump(const struct meta_layout *l, const struct meta_topology *topo,
		const struct meta_state *state, struct sc_arena *arena, struct sc_buf *buf,
		struct written *ret, struct sc_err *err)
{
	struct meta_view *v = NULL;
	int rc = meta_view_new(l, topo, state, &v, err);

	for (uint32_t rank = 0; rc == 0 && rank < topo->ranks; rank++) {
		struct meta_stored_list list = {0};

		rc = meta_view_rank(v, rank, NULL, arena, &list, err);
		if (list.nr)
			qsort(list.at, list.nr, sizeof(*list.at), by_key);
		print_rank(buf, v, rank, &list);
		for (size_t i = 0; i < list.nr; i++)
			assert_int_equal(0, sc_vec_push(ret, (struct meta_written){
				rank, list.at[i].file, list.at[i].name,
				state->tensors[list.at[i].entry->tensor].dtype, list.at[i].piece.shape}));
		sc_vec_done(&list);
	}
	for (size_t i = 0; rc == 0 && i < ret->nr; i++) {
		/* names of entries live in the view: keep copies */
		ret->at[i].file = sc_arena_copy(arena, ret->at[i].file, strlen(ret->at[i].file));
		ret->at[i].name = sc_arena_copy(arena, ret->at[i].name, strlen(ret->at[i].name));
	}
	meta_view_free(v);
	return rc;
}

static void check_infer(long nr, const struct meta_layout *l, const struct meta_topology *topo,
			const struct meta_state *state, const struct written *w)
{
	struct meta_state back = {0};
	struct sc_err err = {0};
	uint32_t padding = 0;
	int rc;

	/* tensors that are there once for each coordinate are as many as the topology has */
	for (uint32_t i = 0; i < state->nr; i++)
		if (meta_tensor_each(state->tensors[i].name))
			return;
	rc = meta_infer(l, topo, w->at, w->nr, state, &back, &err);

	if (rc < 0)
		fail_msg("case %ld: not inferred back: %s", nr, err.msg);
	for (uint32_t i = 0; i < back.nr; i++) /* the model does not know that it is state */
		padding += meta_tensor_padding(back.tensors[i].name, NULL) != NULL;
	assert_int_equal(back.nr - padding, state->nr);
	for (uint32_t i = 0; i < state->nr; i++) {
		const struct meta_tensor *t = meta_state_find(&back, state->tensors[i].key);

		assert_non_null(t);
		assert_true(meta_shape_equal(&t->shape, &state->tensors[i].shape));
	}
	meta_state_done(&back);
}

static void run_case(long nr, const char *layout, const char *topology,
		     const struct meta_state *state, const char *expect)
{
	struct meta_layout *l = NULL, *again = NULL;
	struct meta_topology topo = {0};
	struct sc_arena arena = {0};
	struct sc_err err = {0};
	struct sc_buf buf = {0};
	struct written written = {0};
	int rc = meta_layout_parse(layout, NULL, NULL, &l, &err);

	/* the flat text means the same as the source */
	if (rc == 0 && meta_layout_parse(l->flat, NULL, NULL, &again, &err) == 0) {
		assert_string_equal(l->flat, again->flat);
		assert_int_equal(l->nr_rules, again->nr_rules);
		meta_layout_free(l);
		l = again;
	}
	if (rc == 0)
		rc = meta_topology_parse(l, topology, &topo, &err);
	if (rc == 0)
		rc = dump(l, &topo, state, &arena, &buf, &written, &err);
	if (dump_case >= 0) {
		printf("%s\n", rc < 0 ? err.msg : buf.text ? buf.text : "");
	} else if (strcmp(expect, "refused") == 0) {
		if (rc == 0)
			fail_msg("case %ld: the model refuses it, we do not", nr);
	} else {
		char mine[64];

		if (rc < 0)
			fail_msg("case %ld: refused: %s", nr, err.msg);
		(void)snprintf(mine, sizeof(mine), "expect %016llx %zu",
			       (unsigned long long)fnv(buf.text ? buf.text : "", buf.bytes), buf.bytes);
		if (strcmp(mine, expect) != 0)
			fail_msg("case %ld: boxes differ: %s, want %s", nr, mine, expect);
		check_infer(nr, l, &topo, state, &written);
	}
	sc_vec_done(&written);
	sc_buf_done(&buf);
	sc_arena_done(&arena);
	meta_topology_done(&topo);
	meta_layout_free(l);
}

static void add_tensor(struct meta_state *state, char *line)
{
	char *dtype = strchr(line, '\t'), *shape;
	struct meta_shape s = {0};

	assert_non_null(dtype);
	*dtype++ = 0;
	shape = strchr(dtype, '\t');
	assert_non_null(shape);
	*shape++ = 0;
	for (char *save = NULL, *d = strtok_r(shape, ",", &save); d; d = strtok_r(NULL, ",", &save))
		s.dim[s.nr++] = strtoull(d, NULL, 10);
	assert_int_equal(0, meta_state_add(state, line, strlen(line),
					   (enum meta_dtype)meta_dtype_find(dtype, strlen(dtype)), &s));
}

static void all_cases_equal_the_model(void **unused)
{
	FILE *f = fopen(cases_file, "r");
	char *line = NULL;
	size_t room = 0;
	long nr = -1, done = 0;
	struct sc_buf layout = {0}, topology = {0};
	struct meta_state state = {0};
	enum { CASE, LAYOUT, TOPOLOGY, TENSORS } where = CASE;

	(void)unused;
	if (!f)
		fail_msg("no %s", cases_file);
	while (getline(&line, &room, f) > 0) {
		line[strcspn(line, "\n")] = 0;
		if (where == CASE && sscanf(line, "case %ld", &nr) == 1) {
			sc_buf_reset(&layout);
			sc_buf_reset(&topology);
			where = LAYOUT;
		} else if (where == LAYOUT && strcmp(line, ".") == 0) {
			where = TOPOLOGY;
		} else if (where == LAYOUT) {
			sc_buf_printf(&layout, "%s\n", line);
		} else if (where == TOPOLOGY) {
			sc_buf_printf(&topology, "%s", line);
			where = TENSORS;
		} else if (where == TENSORS && strchr(line, '\t')) {
			add_tensor(&state, line);
		} else if (where == TENSORS) {
			if (dump_case < 0 || dump_case == nr)
				run_case(nr, layout.text, topology.text, &state, line);
			meta_state_done(&state);
			done++;
			where = CASE;
		}
	}
	printf("# %ld cases\n", done);
	assert_true(done >= 1000 || strcmp(cases_file, CASES_FILE) != 0);
	free(line);
	sc_buf_done(&layout);
	sc_buf_done(&topology);
	(void)fclose(f);
}

int main(int argc, char **argv)
{
	const struct CMUnitTest tests[] = {cmocka_unit_test(all_cases_equal_the_model)};

	if (argc > 2 && strcmp(argv[1], "--dump") == 0) {
		dump_case = strtol(argv[2], NULL, 10);
		argc -= 2;
		argv += 2;
	}
	if (argc > 1)
		cases_file = argv[1];
	return cmocka_run_group_tests_name("cases", tests, NULL, NULL);
}
