/* SPDX-License-Identifier: Apache-2.0 */
/* Makes the blob sets of a new version: a new one for each logical file of tensors that was written; the others stay as
 * they are. */
#include "reshard/command/changed/items_i.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

static int set_presentation(struct commit *c, struct rs_set *set)
{
	set->layout_id = c->layout_id;
	set->layout = c->layout;
	return meta_topology_copy(&c->topo, &set->topo) < 0 ? sc_nomem(c->err) : 0;
}

/* Tells whether the bytes of an item are those of the version below.  A rank that only opened the file, or gave it
 * another name, mode or owner, has not written them. */
static bool is_older(const struct item *it)
{
	return it->how == ITEM_KEPT || it->moved || it->opened;
}

static int item_to_blob(struct commit *c, struct rs_set *set, const struct item *it, uint64_t blob)
{
	struct rs_set_blob b = {.rank = it->rank, .path_id = it->path_id, .path = it->path, .blob = blob,
				.bytes = it->bytes, .owner = it->owner,
				.found = it->format->agree ? NULL : it->found,
				.step = is_older(it) ? it->step : c->step};

	if (rs_config_of(c->job).steps_unknown)
		b.step = META_STEP_UNKNOWN;
	return rs_set_add_blob(set, b) < 0 ? sc_nomem(c->err) : 0;
}

/* Merges the payload of one more file into that of the set. */
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

/* Notes the block offset of each tensor, from one of the ranks that wrote it: on most ranks it is the same. */
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
		uint32_t coords[SC_AXES_MAX];
		struct part part;

		rs_commit_coords(v, e, coords);
		rc = rs_commit_part(c, v, e, coords, &arena, &part);
		if (rc == 0 && part.at)
			set->skews[t] = (uint16_t)(part.at->at % SC_DATA_ALIGN);
	}
	sc_arena_done(&arena);
	return rc;
}

/* Puts a value under the file of a set, unless there is one: 1, or 0: there was one. */
static int put_key(struct commit *c, struct sc_map *map, const char *file, void *value)
{
	if (sc_map_get(map, file, strlen(file)))
		return 0;
	return sc_map_put(map, file, strlen(file), value) < 0 ? sc_nomem(c->err) : 1;
}

static int note_head_sets(struct commit *c)
{
	int rc = 0;

	for (size_t i = 0; c->head && i < c->head->version->nr_sets && rc >= 0; i++) {
		struct rs_set *set = c->head->version->sets[i];

		rc = put_key(c, &c->head_sets, set->file, set);
	}
	return rc < 0 ? rc : 0;
}

/* --- parts of two steps --- */

/* Tells whether an item is a part of the logical file that a rank can write: rows of padding that no rank is shown are
 * none. */
static bool is_part(const struct item *it, const char *file)
{
	return it->logical && !it->lost && !it->gone && strcmp(it->logical, file) == 0 &&
	       !meta_file_is_hidden(it->path);
}

#define OLDER_SHOWN 4

/* Refuses a logical file if some ranks wrote their part of it, and the parts of other ranks are still those of the
 * version below: each tensor would be of two steps.  kept=yes says that this is meant. */
static int refuse_older(struct commit *c, const char *file)
{
	const struct rs_version *head = c->head ? c->head->version : NULL;
	const struct item *wrote = NULL;
	struct sc_buf ranks = {0};
	char step[32] = "";
	size_t nr = 0;
	int rc = 0;

	for (size_t i = 0; head && !c->takes_kept && i < c->items.nr; i++) {
		const struct item *it = &c->items.at[i];

		if (!is_part(it, file))
			continue;
		if (!is_older(it))
			wrote = !wrote || wrote->how == ITEM_LIKE ? it : wrote;
		else if (nr++ < OLDER_SHOWN)
			sc_buf_printf(&ranks, "%srank %u: '%s'", ranks.bytes ? ", " : "", it->rank, it->path);
	}
	if (wrote && nr) {
		if (head->step >= 0)
			(void)snprintf(step, sizeof(step), ", step %" PRId64, head->step);
		rc = ranks.failed ? sc_nomem(c->err)
				  : sc_fail(c->err, SC_E_STATE, "'%s' would hold parts of two steps: rank %u wrote "
					    "'%s', but %zu file%s still that of version %" PRIu64 "%s (%s%s); write "
					    "%s, discard what was written, or commit with kept=yes if this is meant",
					    file, wrote->rank, wrote->path, nr, nr == 1 ? " is" : "s are", head->nr,
					    step, ranks.text, nr > OLDER_SHOWN ? ", ..." : "",
					    nr == 1 ? "it" : "them");
	}
	sc_buf_done(&ranks);
	return rc;
}

/* Adds the files of all ranks of one logical file to its set. */
static int add_items(struct commit *c, struct rs_set *set, bool *ret_differ)
{
	const struct item *first = NULL;
	int rc = 0;

	for (size_t i = 0; i < c->items.nr && rc == 0; i++) {
		struct item *it = &c->items.at[i];

		if (!it->logical || strcmp(it->logical, set->file) != 0 || it->lost)
			continue;
		if (it->how == ITEM_KEPT) {
			const struct rs_set *old = sc_map_get(&c->head_sets, set->file, strlen(set->file));

			if (rs_verify_is_other(old)) /* nobody knows which of its files; it would get new digests */
				return sc_fail(c->err, SC_E_COPIES, "rank %u: '%s' would be kept, and a tensor of "
					       "'%s' is not what was committed: write it on all ranks, or remove it",
					       it->rank, it->path, set->file);
			it->format = old->format;
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
		if (rc == 0 && it->format->agree)
			rc = merge_payload(c, set, it->found->payload, !first, ret_differ);
		first = it;
	}
	return rc;
}

static int tensor_set(struct commit *c, const struct meta_view *whole, const char *logical)
{
	struct rs_set *set = rs_set_new(logical, &rs_format_plain);
	bool differ = false;
	int rc = set ? set_presentation(c, set) : sc_nomem(c->err);

	if (rc == 0)
		rc = refuse_older(c, logical);
	if (rc == 0)
		rc = add_items(c, set, &differ);
	if (rc == 0)
		rc = meta_view_part(whole, logical, &set->state, c->err);
	if (rc == 0)
		rc = rs_set_finish(set, c->err);
	if (rc == 0)
		rc = note_skews(c, set);
	if (rc == 0 && !rs_config_of(c->job).accept_suspicious)
		rc = rs_commit_pairs(c, set);
	if (rc == 0 && !rs_config_of(c->job).accept_suspicious)
		rc = rs_commit_suspect(c, set);
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

/* Takes over the head's sets of which nothing was written; `touched` has the logical files of which something was. */
static int take_over(struct commit *c, struct sc_map *touched)
{
	int rc = 0;

	for (size_t i = 0; c->head && i < c->head->version->nr_sets && rc >= 0; i++) {
		struct rs_set *set = c->head->version->sets[i];

		rc = put_key(c, touched, set->file, c);
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

	if (rc == 0 && !rs_config_of(c->job).accept_suspicious)
		rc = meta_view_check_blocks(whole, NULL, c->err);
	if (rc == 0)
		rc = note_head_sets(c);
	for (size_t i = 0; i < c->items.nr && rc == 0; i++) {
		const struct item *it = &c->items.at[i];

		if (it->how != ITEM_WROTE || !it->logical || it->lost)
			continue;
		rc = put_key(c, &made, it->logical, c);
		rc = rc > 0 ? tensor_set(c, whole, it->logical) : rc;
	}
	/* a file of tensors that all ranks removed, or made plain, has touched its set, too */
	for (size_t i = 0; i < c->items.nr && rc >= 0; i++) {
		const struct item *it = &c->items.at[i];

		if (it->how == ITEM_WROTE && it->lost)
			rc = put_key(c, &made, it->logical, c);
	}
	if (rc >= 0)
		rc = take_over(c, &made);
	sc_map_done(&made);
	sc_map_done(&c->head_sets);
	meta_view_free(whole);
	return rc;
}
