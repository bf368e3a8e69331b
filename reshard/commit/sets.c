/* SPDX-License-Identifier: Apache-2.0 */
/* The blob sets of a new version: one for each logical file that was written, and the others as they are. */
#include "reshard/commit/commit_i.h"

#include <string.h>

static int set_presentation(struct commit *c, struct rs_set *set)
{
	set->layout_id = c->layout_id;
	set->layout = c->layout;
	return meta_topology_copy(&c->topo, &set->topo) < 0 ? sc_nomem(c->err) : 0;
}

static int item_to_blob(struct commit *c, struct rs_set *set, const struct item *it, uint64_t blob)
{
	struct rs_set_blob b = {.rank = it->rank, .path_id = it->path_id, .path = it->path, .blob = blob,
				.bytes = it->bytes, .owner = it->owner};

	return rs_set_add_blob(set, b) < 0 ? sc_nomem(c->err) : 0;
}

/* One file more of the set. */
static int merge_payload(struct commit *c, struct rs_set *set, const char *payload, bool first, bool *differ)
{
	char *both = NULL;
	bool d = false;
	int rc;

	if (first) {
		set->payload = payload ? sc_strdup(payload) : NULL;
		return payload && !set->payload ? sc_nomem(c->err) : 0;
	}
	rc = rs_format_agree(set->format, set->payload, payload, &both, &d, c->err);
	if (rc < 0)
		return rc;
	sc_sys.release(set->payload);
	set->payload = both;
	*differ |= d;
	return 0;
}

/* Where in a block each tensor begins on one of the ranks that wrote it: on most it is the same byte. */
static int note_skews(struct commit *c, struct rs_set *set)
{
	const struct meta_view *v = set->view;
	struct sc_arena arena = {0};
	int rc = 0;

	set->skews = sc_zalloc_array(set->state.nr + 1, sizeof(*set->skews));
	if (!set->skews)
		return sc_nomem(c->err);
	for (uint32_t t = 0; t < set->state.nr && rc == 0; t++) {
		const struct meta_entry *e = &v->entries[v->first[t]];
		uint32_t coords[SC_AXES_MAX] = {0};
		const char *file = NULL, *name = NULL;
		const struct rs_found_tensor *at = NULL;
		const struct item *it = NULL;

		for (int i = 0; i < v->topo->nr_axes; i++)
			coords[i] = e->fixed[i] == META_FREE ? 0 : e->fixed[i];
		rc = meta_entry_stored(v, e, coords, &arena, &file, &name) < 0 ? sc_nomem(c->err) : 0;
		if (rc == 0)
			it = rs_commit_item(c, meta_topology_rank(v->topo, coords), file);
		if (it && it->parsed)
			at = rs_found_tensor(&it->parsed->found, name);
		if (at)
			set->skews[t] = (uint16_t)(at->at % SC_DATA_ALIGN);
	}
	sc_arena_done(&arena);
	return rc;
}

static const struct rs_set *head_set(const struct commit *c, const char *file, enum meta_set_kind kind)
{
	for (size_t i = 0; c->head && i < c->head->version->nr_sets; i++)
		if (c->head->version->sets[i]->kind == kind &&
		    strcmp(c->head->version->sets[i]->file, file) == 0)
			return c->head->version->sets[i];
	return NULL;
}

/* All ranks' files of one logical file. */
static int add_items(struct commit *c, struct rs_set *set, bool *ret_differ)
{
	const struct item *first = NULL;
	int rc = 0;

	for (size_t i = 0; i < c->items.nr && rc == 0; i++) {
		struct item *it = &c->items.at[i];

		if (!it->logical || strcmp(it->logical, set->file) != 0 || it->gone)
			continue;
		if (it->how == ITEM_KEPT) {
			it->format = head_set(c, set->file, META_SET_TENSORS)->format;
			rc = rs_commit_keep(c, it);
			if (rc < 0)
				return rc;
		}
		if (first && it->format != first->format)
			return sc_fail(c->err, SC_E_STATE,
				       "rank %u: '%s' has format '%s', but rank %u: '%s' has format '%s'; the files of "
				       "all ranks of '%s' need one format",
				       it->rank, it->path, it->format->name, first->rank, first->path,
				       first->format->name, set->file);
		set->format = it->format;
		rc = item_to_blob(c, set, it, it->blob);
		if (rc == 0)
			rc = merge_payload(c, set, it->parsed->found.payload, !first, ret_differ);
		first = it;
	}
	return rc;
}

static int tensor_set(struct commit *c, const struct meta_view *whole, const char *logical)
{
	struct rs_set *set = rs_set_new(logical, META_SET_TENSORS, &rs_format_plain);
	bool differ = false;
	int rc = set ? set_presentation(c, set) : sc_nomem(c->err);

	if (rc == 0)
		rc = add_items(c, set, &differ);
	if (rc == 0)
		rc = meta_view_part(whole, logical, &set->state, c->err);
	if (rc == 0)
		rc = rs_set_finish(set, c->err);
	if (rc == 0)
		rc = note_skews(c, set);
	if (rc == 0 && differ) {
		sc_sys.release(set->report);
		set->report = sc_strdup("metadata: ranks' files differ in __metadata__; only what all agree on is "
			"kept\n");
		rc = set->report ? 0 : sc_nomem(c->err);
	}
	if (rc == 0 && rs_version_add_set(c->version, set) < 0)
		rc = sc_nomem(c->err);
	rs_set_unref(set);
	return rc;
}

/*
 * Equal on all ranks: one blob for all, and all ranks of any topology have it.  What was committed before keeps its
 * blob, which other names of the file may have.
 */
static void share_equal(struct commit *c, struct rs_set *set, const struct item *first)
{
	for (size_t i = 0; i < set->nr_blobs; i++) {
		struct rs_set_blob *b = &set->blobs[i];
		struct item *mine = (struct item *)rs_commit_item(c, b->rank, b->path);

		if (first && !mine->sealed)
			b->blob = first->blob;
		if (mine)
			mine->stored = b->blob;
	}
}

/* A plain file as all ranks now see it: what was written, else what the head has. */
static int plain_set(struct commit *c, const char *path, bool shared)
{
	enum meta_set_kind kind = shared ? META_SET_SHARED : META_SET_PLAIN;
	const struct rs_set *old = head_set(c, path, kind);
	struct rs_set *set = rs_set_new(path, kind, &rs_format_plain);
	const struct item *first = NULL;
	bool equal = !shared;
	int rc = set ? set_presentation(c, set) : sc_nomem(c->err);

	for (uint32_t r = 0; rc == 0 && r < (shared ? 1 : c->topo.ranks); r++) {
		uint32_t rank = shared ? RS_SHARED : r;
		const struct rs_set_blob *b = NULL;
		const struct item *mine = rs_commit_item(c, rank, path);

		if (mine && mine->nr_rows) { /* here it is a file of tensors */
			equal = false;
			continue;
		}
		if (mine && !mine->gone) {
			first = first ? first : mine;
			equal = equal && mine->bytes == first->bytes && memcmp(mine->hash, first->hash, 16) == 0;
			rc = item_to_blob(c, set, mine, mine->blob);
			continue;
		}
		equal = false;
		b = !mine && old ? rs_set_plain(old, c->layout, &c->topo, rank) : NULL;
		if (b) {
			struct rs_set_blob copy = *b;

			copy.rank = rank;
			rs_plain_owner(c->job, old, c->layout, &c->topo, rank, &copy.owner);
			rc = rs_set_add_blob(set, copy) < 0 ? sc_nomem(c->err) : 0;
		}
	}
	if (rc == 0)
		share_equal(c, set, equal ? first : NULL);
	set->verified = META_EQUAL;
	if (rc == 0)
		rc = rs_set_finish(set, c->err);
	if (rc == 0 && set->nr_blobs && rs_version_add_set(c->version, set) < 0)
		rc = sc_nomem(c->err);
	rs_set_unref(set);
	return rc;
}

static bool had_before(const struct commit *c, size_t i)
{
	const struct item *it = &c->items.at[i];

	for (size_t k = 0; k < i; k++) {
		const struct item *x = &c->items.at[k];

		if (x->how != ITEM_WROTE)
			continue;
		if (it->logical && !x->gone ? x->logical && strcmp(x->logical, it->logical) == 0
							       : !x->logical && x->path_id == it->path_id &&
								     (x->rank == RS_SHARED) == (it->rank == RS_SHARED))
			return true;
	}
	return false;
}

static bool is_touched(const struct commit *c, const struct rs_set *set)
{
	for (size_t i = 0; i < c->items.nr; i++) {
		const struct item *it = &c->items.at[i];

		if (it->how != ITEM_WROTE)
			continue;
		if (set->kind == META_SET_TENSORS ? it->logical && strcmp(it->logical, set->file) == 0
						  : !it->logical && strcmp(it->path, set->file) == 0 &&
							    (it->rank == RS_SHARED) == (set->kind == META_SET_SHARED))
			return true;
	}
	return false;
}

int rs_commit_sets(struct commit *c)
{
	struct meta_view *whole = NULL;
	int rc = meta_view_new(c->layout, &c->topo, &c->state, &whole, c->err);

	for (size_t i = 0; i < c->items.nr && rc == 0; i++) {
		const struct item *it = &c->items.at[i];

		if (it->how != ITEM_WROTE || had_before(c, i) || (it->logical && it->gone))
			continue;
		rc = it->logical ? tensor_set(c, whole, it->logical)
				 : plain_set(c, it->path, it->rank == RS_SHARED);
	}
	/* what was not written is taken over as it is */
	for (size_t i = 0; c->head && i < c->head->version->nr_sets && rc == 0; i++)
		if (!is_touched(c, c->head->version->sets[i]) &&
		    rs_version_add_set(c->version, c->head->version->sets[i]) < 0)
			rc = sc_nomem(c->err);
	meta_view_free(whole);
	return rc;
}
