/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Removes garbage: first rows, then files.  A crash in between leaves files without rows, which the next start finds.
 */
#include "reshard/upkeep/background/upkeep_i.h"

#include <string.h>

#include "meta/catalog/nodes.h"

struct garbage {
	struct rs_service *s;
	struct sc_err *err;
};

static int on_garbage(void *arg, uint64_t blob)
{
	const struct garbage *g = arg;

	return sc_vec_push(&g->s->upkeep->nameless, blob) < 0 ? sc_nomem(g->err) : 0;
}

static int on_unused(void *arg, uint64_t blob)
{
	const struct garbage *g = arg;

	return rs_made_holds(g->s, blob) ? 1 : on_garbage(arg, blob);
}

static int on_file(void *arg, uint64_t blob)
{
	struct garbage *g = arg;
	int known = meta_blob_known(g->s->catalog, blob, g->err), away = 0;
	uint64_t number;
	uint32_t node;

	if (known > 0) /* a copy of another node's blob, which was not all here */
		away = meta_blob_away(g->s->catalog, blob, &node, &number, g->err);
	if (known < 0 || away < 0)
		return g->err->code;
	return !known || away ? on_garbage(g, blob) : 0;
}

/* Makes flat a tree whose base no version has any more, or that lies over many trees: rows of removed files in its
 * bases become garbage. */
static int flatten_trees(struct rs_service *s, struct sc_err *err)
{
	uint64_t tree;
	int rc;

	do {
		rc = meta_catalog_begin(s->catalog, false, err);
		if (rc < 0)
			return rc;
		rc = meta_tree_to_flatten(s->catalog, &tree, err);
		if (rc == 0 && tree)
			rc = meta_tree_flatten(s->catalog, tree, err);
		rc = meta_catalog_end(s->catalog, rc, err);
	} while (rc == 0 && tree);
	return rc;
}

int rs_garbage_rows(struct rs_service *s, bool may_wait, bool *ret_more, struct sc_err *err)
{
	struct garbage g = {s, err};
	size_t before = s->upkeep->nameless.nr;
	int rc = flatten_trees(s, err);

	*ret_more = false;
	if (rc < 0)
		return rc;
	(void)pthread_mutex_lock(&s->making);
	rc = meta_catalog_begin(s->catalog, false, err);
	rs_step(RS_STEP_MATERIALIZE_GARBAGE);
	if (rc == 0) {
		rc = rs_hidden_remove(s, !may_wait, ret_more, err);
		if (rc == 0)
			rc = meta_garbage(s->catalog, on_unused, &g, err);
		rc = meta_catalog_end(s->catalog, rc, err);
	}
	(void)pthread_mutex_unlock(&s->making);
	if (rc < 0)
		s->upkeep->nameless.nr = before;
	else
		s->worker.trees_gone = true;
	return rc;
}

static bool has(const struct rs_numbers *sorted, uint64_t number)
{
	const size_t at = sc_first(sorted->nr, i, sorted->at[i] >= number);

	return at < sorted->nr && sorted->at[at] == number;
}

/*
 * Removes the files of orphan blobs.  With `may_wait` it leaves files that an open of a dropped version may still need,
 * and, some times, the rest: it takes seconds to remove gigabytes, and somebody may wait for what the worker is called
 * for.  A file that can't be removed is left to the next start.
 */
int rs_garbage_files(struct rs_service *s, bool may_wait, struct sc_err *err)
{
	struct rs_upkeep *u = s->upkeep;
	bool may_put_off = may_wait && u->put_off < RS_PUT_OFF_MAX;
	struct rs_numbers needed = {0};
	size_t left = 0, i = 0;
	int rc = may_wait ? rs_views_leaving_blobs(s, &needed, err) : 0;

	if (!may_wait)
		rs_views_left(s, true);
	while (rc == 0 && i < u->nameless.nr && !(may_put_off && rs_worker_is_called(s))) {
		uint64_t blob = u->nameless.at[i++];

		if (has(&needed, blob)) {
			u->nameless.at[left++] = blob;
			continue;
		}
		rs_blob_forget(s->blobs, blob);
		(void)meta_store_set_damaged(&s->store, blob, false, err);
		rc = rs_remove_bytes(s, blob, err);
	}
	u->put_off = i < u->nameless.nr ? u->put_off + 1 : 0;
	if (i > left)
		memmove(u->nameless.at + left, u->nameless.at + i, (u->nameless.nr - i) * sizeof(*u->nameless.at));
	u->nameless.nr -= i - left;
	sc_vec_done(&needed);
	return rc;
}

int rs_garbage_collect(struct rs_service *s, struct sc_err *err)
{
	bool gone = false, more;
	int rc;

	(void)rs_made_expire(s, true, &gone);
	rc = rs_garbage_rows(s, false, &more, err);
	return rc < 0 ? rc : rs_garbage_files(s, false, err);
}

int rs_garbage(struct rs_service *s, bool takes_over, struct sc_err *err)
{
	struct garbage g = {s, err};
	int rc = rs_garbage_rows(s, takes_over, &s->worker.garbage, err);

	if (rc == 0)
		rc = meta_store_each(&s->store, on_file, &g, err);
	if (rc < 0)
		s->upkeep->nameless.nr = 0;
	return rc < 0 ? rc : rs_garbage_files(s, false, err);
}
