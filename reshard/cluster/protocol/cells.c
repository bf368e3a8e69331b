/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Keeps what is known of all/, key by key, with the revision of each.
 *
 * 1. Older news never replaces newer: an answer can arrive after a change that it does not know of. [reads_ordered]
 * 2. `position` moves with the watch only, so a node that is at a revision knows all changes up to there.  Answers to
 *    this node's own transactions, which are ahead of the watch, are taken for proposal, head and storage; never for
 *    the list of members, which would tell that this node is a member before it knows the head.
 */
#include "reshard/cluster/protocol/core_i.h"

#include <string.h>

static bool take_cell(struct cell *cell, const struct meta_record *r)
{
	if (RULE(reads_ordered) && r->mod <= cell->mod)
		return false;
	*cell = (struct cell){r->present, r->present ? r->create : 0, r->mod};
	return true;
}

static void take_members(struct rs_core *c, const struct meta_record *r)
{
	if (!take_cell(&c->members_cell, r))
		return;
	c->members.nr = 0;
	for (uint32_t i = 0; r->present && i < r->value.members.nr; i++)
		c->failed |= sc_vec_push(&c->members, r->value.members.at[i]) < 0;
}

struct store_cell *rs_store_of(const struct job *j, uint64_t nr)
{
	for (size_t i = 0; i < j->stores.nr; i++)
		if (j->stores.at[i].nr == nr && j->stores.at[i].cell.present)
			return &j->stores.at[i];
	return NULL;
}

static bool names(const struct sets *v, const struct meta_hash *set)
{
	for (uint32_t i = 0; i < v->nr; i++)
		if (memcmp(&v->at[i].set, set, sizeof(*set)) == 0)
			return true;
	return false;
}

bool rs_set_named(const struct job *j, const struct meta_hash *set)
{
	const uint64_t nr = rs_version_of(set, j->id);

	if (nr)
		return rs_store_of(j, nr) != NULL;
	for (size_t i = 0; i < j->stores.nr; i++)
		if (j->stores.at[i].cell.present && names(&j->stores.at[i].sets, set))
			return true;
	return false;
}

const struct store_cell *rs_store_in(const struct job *j, uint32_t nr, const struct meta_set_name *sets)
{
	const struct store_cell *found = NULL;

	for (size_t i = 0; i < j->stores.nr; i++) {
		const struct store_cell *s = &j->stores.at[i];
		bool all = s->cell.present && s->sets.nr == nr;

		for (uint32_t k = 0; all && k < nr; k++)
			all = names(&s->sets, &sets[k].set);
		if (all && (!found || s->nr > found->nr))
			found = s;
	}
	return found;
}

bool rs_set_made(const struct job *j, uint64_t token)
{
	for (size_t i = 0; i < j->stores.nr; i++)
		for (uint32_t k = 0; j->stores.at[i].cell.present && k < j->stores.at[i].sets.nr; k++)
			if (j->stores.at[i].sets.at[k].token == token)
				return true;
	return false;
}

static void die(struct rs_core *c, struct job *j, const struct meta_hash *set, uint64_t revision)
{
	struct rs_act *a = rs_core_act(c, RS_ACT_DIED, j);

	a->nr = rs_version_of(set, j->id);
	a->revision = revision;
	a->base = c->snapshot ? c->snapshot : revision;
	j->died = sc_max_u64(j->died, revision);
	c->last_death = sc_max_u64(c->last_death, revision);
}

/* Notes that a set died at this revision, unless something names it still. */
static void bury(struct rs_core *c, struct job *j, const struct meta_hash *set, uint64_t revision)
{
	struct set_fact *f = rs_facts_find(&j->have, set);

	if (RULE(drop_counts_versions) && rs_set_named(j, set))
		return;
	die(c, j, set, revision);
	if (f && !f->died)
		f->died = revision;
}

/* Tells whether a set may be dead.  A version can be only if it is older than the head: else etcd has lost it. */
static bool may_be_dead(const struct job *j, const struct meta_hash *set)
{
	const uint64_t nr = rs_version_of(set, j->id);

	return !nr || (j->head_cell.present && nr < j->head.nr);
}

void rs_sets_sweep(struct rs_core *c, struct job *j)
{
	const struct store_cell *head = rs_store_of(j, j->known);

	for (size_t i = 0; c->position && i < j->have.nr; i++) {
		struct set_fact *f = &j->have.at[i];
		bool in_the_making = j->placed == j->known && head && !head->settled && names(&j->future, &f->set);

		if (f->died || in_the_making || rs_set_named(j, &f->set) || !may_be_dead(j, &f->set))
			continue;
		/* not later than that: members who know of it all need not say so again */
		f->died = sc_max_u64(c->whole, j->stored);
		die(c, j, &f->set, f->died);
	}
}

void rs_store_tell(struct rs_core *c, struct job *j)
{
	const struct store_cell *s = rs_store_of(j, j->known);
	struct meta_set_name *at;
	struct rs_act *a;

	if (!s)
		return;
	at = sc_arena_array(&c->arena, s->sets.nr ? s->sets.nr : 1, sizeof(*at));
	c->failed |= !at;
	for (uint32_t i = 0; at && i < s->sets.nr; i++)
		at[i] =
		    (struct meta_set_name){s->sets.at[i].set, s->sets.at[i].token, rs_core_text(c, s->sets.at[i].file)};
	a = rs_core_act(c, RS_ACT_STORED, j);
	a->nr = s->nr;
	a->nr_sets = s->sets.nr;
	a->sets = at;
}

static void take_store(struct rs_core *c, struct job *j, const struct meta_record *r)
{
	struct store_cell *s = NULL;
	struct sets was;

	j->stored = sc_max_u64(j->stored, r->mod);
	for (size_t i = 0; i < j->stores.nr; i++)
		if (j->stores.at[i].nr == r->key.nr)
			s = &j->stores.at[i];
	if (!s && !r->present)
		return;
	if (!s && sc_vec_push(&j->stores, (struct store_cell){.nr = r->key.nr}) < 0) {
		c->failed = true;
		return;
	}
	s = s ? s : &j->stores.at[j->stores.nr - 1];
	if (!take_cell(&s->cell, r))
		return;
	was = sc_steal(&s->sets);
	s->settled = r->present && r->value.store.settled;
	if (r->present)
		rs_sets_copy(c, &s->sets, r->value.store.nr, r->value.store.at);
	for (uint32_t i = 0; i < was.nr; i++)
		bury(c, j, &was.at[i].set, r->mod);
	sc_sys.release(was.at);
	if (r->key.nr == j->known && r->present)
		rs_store_tell(c, j);
	if (!r->present) { /* numbers of versions are never used again */
		struct meta_hash version = rs_version_life(j->id, r->key.nr);

		bury(c, j, &version, r->mod);
		for (size_t i = (size_t)(s - j->stores.at); i + 1 < j->stores.nr; i++)
			j->stores.at[i] = j->stores.at[i + 1];
		j->stores.nr--;
	}
}

static void take_tag(struct rs_core *c, struct job *j, const struct meta_record *r)
{
	struct tag_cell *tag = NULL;

	for (size_t i = 0; i < j->tags.nr && !tag; i++)
		if (strcmp(j->tags.at[i].name, r->key.text) == 0)
			tag = &j->tags.at[i];
	if (!tag && !r->present)
		return;
	if (!tag) {
		struct tag_cell made = {.name = sc_strdup(r->key.text)};

		if (!made.name || sc_vec_push(&j->tags, made) < 0) {
			sc_sys.release(made.name);
			c->failed = true;
			return;
		}
		tag = &j->tags.at[j->tags.nr - 1];
	}
	if (take_cell(&tag->cell, r))
		tag->nr = r->present ? r->value.number.nr : 0;
}

void rs_cells_take(struct rs_core *c, const struct meta_record *r)
{
	struct job *j;

	if (r->key.kind == META_KEY_TICK)
		c->tick_mod = sc_max_u64(c->tick_mod, r->mod);
	if (r->key.kind == META_KEY_MEMBERS) {
		take_members(c, r);
		return;
	}
	if (r->key.kind == META_KEY_SWEEP) {
		(void)take_cell(&c->sweep_cell, r);
		return;
	}
	if (r->key.kind != META_KEY_HEAD && r->key.kind != META_KEY_SHOWN && r->key.kind != META_KEY_PROPOSAL &&
	    r->key.kind != META_KEY_STORE && r->key.kind != META_KEY_TAG)
		return;
	j = rs_core_job(c, r->key.job);
	if (!j)
		return;
	switch (r->key.kind) {
	case META_KEY_HEAD:
		if (take_cell(&j->head_cell, r))
			j->head = r->present ? r->value.head : (struct meta_head_value){0};
		break;
	case META_KEY_SHOWN:
		if (take_cell(&j->shown_cell, r))
			j->shown = r->present ? r->value.number.nr : 0;
		break;
	case META_KEY_PROPOSAL:
		if (take_cell(&j->proposal_cell, r))
			j->proposal = r->present ? r->value.proposal : (struct meta_proposal_value){0};
		break;
	case META_KEY_TAG:
		take_tag(c, j, r);
		break;
	default:
		take_store(c, j, r);
	}
}

static bool has(const struct rs_event *e, enum meta_key_kind kind, uint64_t job, uint64_t nr)
{
	for (uint32_t i = 0; i < e->nr_records; i++)
		if (e->records[i].key.kind == kind && e->records[i].key.job == job && e->records[i].key.nr == nr)
			return true;
	return false;
}

static void take_absent_tag(struct rs_core *c, const struct rs_event *e, const struct job *j, const char *name)
{
	struct meta_record r = {.key = {.kind = META_KEY_TAG, .job = j->id, .text = name}, .mod = e->revision};

	for (uint32_t i = 0; i < e->nr_records; i++)
		if (e->records[i].key.kind == META_KEY_TAG && e->records[i].key.job == j->id &&
		    strcmp(e->records[i].key.text, name) == 0)
			return;
	rs_cells_take(c, &r);
}

static void take_absent(struct rs_core *c, const struct rs_event *e, enum meta_key_kind kind, uint64_t job, uint64_t nr)
{
	struct meta_record r = {.key = {.kind = kind, .job = job, .nr = nr}, .mod = e->revision};

	if (!has(e, kind, job, nr))
		rs_cells_take(c, &r);
}

void rs_cells_snapshot(struct rs_core *c, const struct rs_event *e)
{
	if (e->revision < c->position) { /* of a server that lags: asked again */
		rs_core_request(c, NULL, SLOT_SNAPSHOT)->again = c->now + c->config.times.resend;
		return;
	}
	c->snapshot = c->position + 1; /* what is absent may have died at any revision since then */
	for (uint32_t i = 0; i < e->nr_records; i++)
		rs_cells_take(c, &e->records[i]);
	take_absent(c, e, META_KEY_MEMBERS, 0, 0);
	take_absent(c, e, META_KEY_SWEEP, 0, 0);
	for (size_t i = 0; i < c->jobs.nr; i++) {
		struct job *j = c->jobs.at[i];

		take_absent(c, e, META_KEY_HEAD, j->id, 0);
		take_absent(c, e, META_KEY_SHOWN, j->id, 0);
		take_absent(c, e, META_KEY_PROPOSAL, j->id, 0);
		for (size_t k = 0; k < j->tags.nr; k++)
			take_absent_tag(c, e, j, j->tags.at[k].name);
		for (size_t k = j->stores.nr; k-- > 0;)
			take_absent(c, e, META_KEY_STORE, j->id, j->stores.at[k].nr);
	}
	c->position = c->whole = e->revision;
	c->watching = true;
	for (size_t i = 0; i < c->jobs.nr; i++)
		rs_sets_sweep(c, c->jobs.at[i]);
	c->snapshot = 0;
}
