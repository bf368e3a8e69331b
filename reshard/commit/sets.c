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

/* Sets are found by kind and file: a byte, then the name. */
static const char *set_key(struct sc_arena *arena, enum meta_set_kind kind, const char *file, size_t *ret_bytes)
{
	size_t n = strlen(file);
	char *key = sc_arena_alloc(arena, n + 1);

	if (!key)
		return NULL;
	key[0] = (char)kind;
	memcpy(key + 1, file, n);
	*ret_bytes = n + 1;
	return key;
}

/* Puts a value under the key of a set, unless there is one: 1, or 0: there was one. */
static int put_key(struct commit *c, struct sc_map *map, enum meta_set_kind kind, const char *file, void *value)
{
	size_t bytes = 0;
	const char *key = set_key(&c->arena, kind, file, &bytes);

	if (!key)
		return sc_nomem(c->err);
	if (sc_map_get(map, key, bytes))
		return 0;
	return sc_map_put(map, key, bytes, value) < 0 ? sc_nomem(c->err) : 1;
}

static int note_head_sets(struct commit *c)
{
	int rc = 0;

	for (size_t i = 0; c->head && i < c->head->version->nr_sets && rc >= 0; i++) {
		struct rs_set *set = c->head->version->sets[i];

		rc = put_key(c, &c->head_sets, set->kind, set->file, set);
	}
	return rc < 0 ? rc : 0;
}

static int head_set(struct commit *c, const char *file, enum meta_set_kind kind, const struct rs_set **ret)
{
	size_t bytes = 0;
	const char *key = set_key(&c->arena, kind, file, &bytes);

	*ret = key ? sc_map_get(&c->head_sets, key, bytes) : NULL;
	return key ? 0 : sc_nomem(c->err);
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
			const struct rs_set *old;

			rc = head_set(c, set->file, META_SET_TENSORS, &old);
			if (rc == 0)
				it->format = old->format;
			if (rc == 0)
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
	const struct rs_set *old = NULL;
	struct rs_set *set = rs_set_new(path, kind, &rs_format_plain);
	const struct item *first = NULL;
	bool equal = !shared;
	int rc = set ? set_presentation(c, set) : sc_nomem(c->err);

	if (rc == 0)
		rc = head_set(c, path, kind, &old);
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

/* Makes the set of an item, if it is the first of its set: `made` has those that are made. */
static int set_of_item(struct commit *c, const struct meta_view *whole, const struct item *it, struct sc_map *made)
{
	bool shared = it->rank == RS_SHARED;
	enum meta_set_kind kind = it->logical ? META_SET_TENSORS : shared ? META_SET_SHARED : META_SET_PLAIN;
	int rc = put_key(c, made, kind, it->logical ? it->logical : it->path, c);

	if (rc <= 0)
		return rc;
	return it->logical ? tensor_set(c, whole, it->logical) : plain_set(c, it->path, shared);
}

/* Takes over, as they are, the head's sets of which nothing was written (`touched`: of which something was). */
static int take_over(struct commit *c, struct sc_map *touched)
{
	int rc = 0;

	for (size_t i = 0; c->head && i < c->head->version->nr_sets && rc >= 0; i++) {
		struct rs_set *set = c->head->version->sets[i];

		rc = put_key(c, touched, set->kind, set->file, c);
		if (rc > 0)
			rc = rs_version_add_set(c->version, set) < 0 ? sc_nomem(c->err) : 0;
	}
	return rc < 0 ? rc : 0;
}

int rs_commit_sets(struct commit *c)
{
	struct sc_map made = {0};
	struct meta_view *whole = NULL;
	int rc = meta_view_new(c->layout, &c->topo, &c->state, &whole, c->err);

	if (rc == 0)
		rc = note_head_sets(c);
	for (size_t i = 0; i < c->items.nr && rc == 0; i++) {
		const struct item *it = &c->items.at[i];

		if (it->how == ITEM_WROTE && !(it->logical && it->gone))
			rc = set_of_item(c, whole, it, &made);
	}
	/* a file of tensors that all ranks removed has touched its set, too */
	for (size_t i = 0; i < c->items.nr && rc >= 0; i++) {
		const struct item *it = &c->items.at[i];

		if (it->how == ITEM_WROTE && it->logical && it->gone)
			rc = put_key(c, &made, META_SET_TENSORS, it->logical, c);
	}
	if (rc >= 0)
		rc = take_over(c, &made);
	sc_map_done(&made);
	sc_map_done(&c->head_sets);
	meta_view_free(whole);
	return rc;
}
