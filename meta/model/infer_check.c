/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Checks that the inferred state, presented at the same topology, is what was written.  This finds
 * missing and extra tensors, wrong coordinates, wrong padding and rules of wrong shape.
 */
#include "meta/model/infer_i.h"

#include <string.h>

struct check {
	const struct meta_written *written;
	size_t nr;
	struct sc_err *err;
};

static int check_stored(struct check *n, const struct meta_written *w, const struct meta_stored *s,
			const struct meta_state *state)
{
	const struct meta_tensor *t = &state->tensors[s->entry->tensor];
	char a[200], b[200];

	if (w->tensor != s->entry->tensor && !s->entry->group)
		return sc_fail(n->err, SC_E_STATE, "rank %u: '%s:%s' is tensor '%s' by its place, but '%s' by the "
			"rules",
			       w->rank, w->file, w->name, state->tensors[w->tensor].key, t->key);
	if (w->dtype == t->dtype && meta_shape_equal(&w->shape, &s->piece.shape))
		return 0;
	return sc_fail(n->err, SC_E_STATE, "rank %u: '%s:%s' is %s %s, but the rules make it %s %s by what other "
		       "ranks, or the version before, have (is it to have another shape from now on? Remove the file "
		       "on all ranks, commit, and write it again)", w->rank, w->file, w->name,
		       meta_dtype_name(w->dtype), meta_shape_text(&w->shape, a, sizeof(a)),
		       meta_dtype_name(t->dtype), meta_shape_text(&s->piece.shape, b, sizeof(b)));
}

static int check_rank(struct check *n, const struct meta_view *view, uint32_t rank, size_t *at,
		      const struct sc_map *files)
{
	struct meta_stored_list want = {0};
	struct sc_arena arena = {0};
	struct sc_map have = {0};
	size_t end = *at, found = 0;
	int rc = 0;

	for (; end < n->nr && n->written[end].rank == rank; end++) {
		const struct meta_written *w = &n->written[end];
		char *key = sc_arena_join(&arena, w->file, ':', w->name);

		if (!key || sc_map_put(&have, key, strlen(key), (void *)w) < 0)
			rc = sc_nomem(n->err);
	}
	if (rc == 0)
		rc = meta_view_rank(view, rank, NULL, &arena, &want, n->err);
	for (size_t i = 0; rc == 0 && i < want.nr; i++) {
		const struct meta_stored *s = &want.at[i];
		char *key = sc_arena_join(&arena, s->file, ':', s->name);
		const struct meta_tensor *t = &view->state->tensors[s->entry->tensor];
		const struct meta_written *w = key ? sc_map_get(&have, key, strlen(key)) : NULL;

		if (!key)
			rc = sc_nomem(n->err);
		else if (s->part || s->entry->hidden)
			continue;
		else if (w)
			rc = check_stored(n, w, s, view->state);
		else if (sc_map_get(files, t->file, strlen(t->file)))
			rc = sc_fail(n->err, SC_E_STATE, "rank %u lacks '%s', which it must have by the rules and the "
				     "other ranks", rank, key);
		found += w != NULL;
		if (w)
			(void)sc_map_put(&have, key, strlen(key), NULL);
	}
	for (size_t i = *at; rc == 0 && found < end - *at && i < end; i++) {
		const struct meta_written *w = &n->written[i];
		char *key = sc_arena_join(&arena, w->file, ':', w->name);

		if (!key)
			rc = sc_nomem(n->err);
		else if (sc_map_get(&have, key, strlen(key)))
			rc = sc_fail(n->err, SC_E_STATE, "rank %u has '%s', which the rules do not place on this rank",
				     rank, key);
	}
	*at = end;
	sc_vec_done(&want);
	sc_map_done(&have);
	sc_arena_done(&arena);
	return rc;
}

int meta_infer_check(const struct meta_layout *layout, const struct meta_topology *topo,
		     const struct meta_written *written, size_t nr, const struct meta_state *state,
		     struct sc_err *err)
{
	struct check n = {.written = written, .nr = nr, .err = err};
	struct meta_view *view = NULL;
	struct sc_map files = {0};
	size_t at = 0;
	int rc = 0;

	for (size_t i = 0; i < nr && rc == 0; i++) {
		const char *file = state->tensors[written[i].tensor].file;

		if (sc_map_put(&files, file, strlen(file), &n) < 0)
			rc = sc_nomem(err);
	}
	if (rc == 0)
		rc = meta_view_new(layout, topo, state, &view, err);
	for (uint32_t rank = 0; rc == 0 && rank < topo->ranks; rank++)
		rc = check_rank(&n, view, rank, &at, &files);
	meta_view_free(view);
	sc_map_done(&files);
	return rc;
}
