/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Completes the files that ranks wrote: finds for each rank of a logical file which file it has.
 *
 *	wrote	the file that the rank wrote
 *	like	the rank wrote nothing, but a replica of it did: the rank has the replica's file.  If the replica
 *		removed its file, the rank has none, too
 *	kept	no replica of the rank wrote or removed anything, but other ranks wrote their files of the logical file:
 *		the rank has the head's file, which it still sees
 *
 * So a logical file of which some rank wrote a part is complete again, as all ranks see it.  Files are kept only if the
 * written ones are not complete without them: a model may have more layers now, and a rank none of a file's tensors any
 * more.  If two replicas wrote, their files are compared later.  A logical file of which no rank wrote anything stays
 * as it is in the head.
 */
#include "reshard/command/changed/items_i.h"
#include "meta/model/classes.h"

#include <stdlib.h>
#include <string.h>

struct class {			/* the ranks whose file of a path is the same */
	size_t wrote, removed;	/* an item of each, plus 1; 0: none */
};

struct path {
	const char *name;
	uint32_t axes;		/* that its contents depend on */
	bool written;
	struct sc_map classes;	/* struct meta_class -> struct class */
	struct path *next;
};

struct completion {
	struct commit *c;
	const struct meta_view *head;	/* NULL: there is none */
	struct sc_map paths, names, touched;
	struct path *first;
	struct sc_arena arena;
};

static struct path *make_path(struct completion *m, const char *name)
{
	struct path *p = sc_map_make(&m->paths, name, strlen(name), &m->arena, sizeof(*p));

	if (p && !p->name) {
		p->name = name;
		p->next = m->first;
		m->first = p;
	}
	return p;
}

/* Adds the axes on which a written file depends, by the names of its tensors; each name is looked up once. */
static int add_names(struct completion *m, struct path *p, const struct item *it)
{
	struct sc_buf key = {0};
	int rc = 0;

	for (uint32_t i = 0; rc == 0 && i < it->nr_rows; i++) {
		const char *name = it->found->tensors[i].name, *copy;

		sc_buf_reset(&key);
		sc_buf_printf(&key, "%s:%s", p->name, name);
		if (!key.failed && sc_map_get(&m->names, key.text, key.bytes))
			continue;
		copy = key.failed ? NULL : sc_arena_copy(&m->arena, key.text, key.bytes);
		if (!copy || sc_map_put(&m->names, copy, key.bytes, m) < 0)
			rc = sc_nomem(m->c->err);
		p->axes |= meta_name_axes(m->c->layout, &m->c->topo, p->name, name);
	}
	sc_buf_done(&key);
	return rc;
}

/* Tells whether an item is a file of tensors, or was one in the head. */
static bool is_shard(const struct item *it)
{
	return it->lost || it->nr_rows > 0;
}

static int add_paths(struct completion *m)
{
	int rc = 0;

	for (size_t i = 0; rc == 0 && i < m->c->items.nr; i++) {
		const struct item *it = &m->c->items.at[i];
		struct path *p = is_shard(it) ? make_path(m, it->path) : NULL;

		if (is_shard(it) && !p)
			rc = sc_nomem(m->c->err);
		if (rc == 0 && p && !it->lost && it->how == ITEM_WROTE) {
			p->written = true;
			rc = add_names(m, p, it);
		}
	}
	return rc;
}

static int touch(struct completion *m, struct path *p, const struct meta_entry *e)
{
	const char *logical = m->head->state->tensors[e->tensor].file;

	p->axes |= meta_entry_axes(m->head, e);
	if (e->varies)
		p->axes |= meta_name_axes(m->c->layout, &m->c->topo, p->name, e->name);
	return p->written && sc_map_put(&m->touched, logical, strlen(logical), p) < 0 ? sc_nomem(m->c->err) : 0;
}

/* Adds the axes on which the head's files of these names depend, and notes their logical files, on any rank. */
static int add_head(struct completion *m)
{
	int rc = 0;

	for (uint32_t i = 0; rc == 0 && m->head && i < m->head->nr_entries; i++) {
		const struct meta_entry *e = &m->head->entries[i];
		struct path *p = e->varies ? m->first : sc_map_get(&m->paths, e->file, strlen(e->file));
		struct meta_caps caps = {0};

		for (; rc == 0 && p; p = e->varies ? p->next : NULL, caps.nr = 0)
			if (!e->varies || meta_pattern_match(&e->rule->file, p->name, strlen(p->name), &caps))
				rc = touch(m, p, e);
	}
	return rc;
}

static struct class *class_of(struct completion *m, struct path *p, uint32_t rank)
{
	const struct meta_class key = meta_class_of(&m->c->topo, p->axes, rank);
	struct class *class = sc_map_get(&p->classes, (const char *)key.at, sizeof(key.at));
	struct {
		struct class class;
		struct meta_class key;
	} *both = class ? NULL : sc_arena_alloc(&m->arena, sizeof(*both));

	if (!both)
		return class;
	both->key = key;
	class = &both->class;
	return sc_map_put(&p->classes, (const char *)both->key.at, sizeof(key.at), class) < 0 ? NULL : class;
}

static int add_classes(struct completion *m)
{
	for (size_t i = 0; i < m->c->items.nr; i++) {
		const struct item *it = &m->c->items.at[i], *other;
		struct class *class;

		if (!is_shard(it))
			continue;
		class = class_of(m, sc_map_get(&m->paths, it->path, strlen(it->path)), it->rank);
		if (!class)
			return sc_nomem(m->c->err);
		if (it->lost)
			class->removed = class->removed ? class->removed : i + 1;
		else
			class->wrote = class->wrote ? class->wrote : i + 1;
		if (!class->wrote || !class->removed)
			continue;
		it = &m->c->items.at[class->wrote - 1];
		other = &m->c->items.at[class->removed - 1];
		return sc_fail(m->c->err, SC_E_STATE, "rank %u %s '%s', but rank %u, which holds the same part, wrote "
			       "it; do the same on both, or only on one", other->rank,
			       other->gone ? "removed" : "has no tensors any more in", it->path, it->rank);
	}
	return 0;
}

/* Adds items for ranks that did nothing with a path: they do what a replica of theirs did. */
static int add_like(struct completion *m, struct path *p, size_t nr)
{
	struct commit *c = m->c;

	for (uint32_t rank = 0; rank < c->topo.ranks; rank++) {
		const struct item *mine = rs_commit_find(c, nr, rank, p->name);
		const struct class *class = mine ? NULL : class_of(m, p, rank);
		size_t from = class ? class->wrote | class->removed : 0;
		struct item it;

		if (!mine && !class)
			return sc_nomem(c->err);
		if (!from)
			continue;
		it = c->items.at[from - 1];
		it.how = ITEM_LIKE;
		it.gone = it.lost;
		it.like = it.rank;
		it.rank = rank;
		if (rs_owner_limit(c->tree, rank, p->name, &it.owner, c->err) < 0)
			return c->err->code;
		if (sc_vec_push(&c->items, it) < 0)
			return sc_nomem(c->err);
	}
	return 0;
}

struct keeping {
	struct completion *m;
	size_t nr;
	uint32_t rank;
	bool hidden;		/* only files that are hidden */
};

static int on_file(void *arg, const char *file, const char *logical)
{
	const struct keeping *k = arg;
	struct commit *c = k->m->c;
	struct item it = {.how = ITEM_KEPT, .rank = k->rank};
	int rc;

	if ((k->hidden && !meta_file_is_hidden(file)) || !sc_map_get(&k->m->touched, logical, strlen(logical)) ||
	    rs_commit_find(c, k->nr, k->rank, file))
		return 0;
	if (k->hidden) /* it tells no tensors, so it is named here */
		it.logical = sc_arena_copy(&c->arena, logical, strlen(logical));
	if (k->hidden && !it.logical)
		return sc_nomem(c->err);
	rc = rs_path_id(c->job, file, &it.path_id, c->err);
	if (rc == 0)
		rc = rs_path_text(c->s, it.path_id, &it.path, c->err);
	return rc < 0 ? rc : sc_vec_push(&c->items, it) < 0 ? sc_nomem(c->err) : 0;
}

static int add_kept(struct completion *m, bool hidden)
{
	struct keeping k = {.m = m, .nr = m->c->items.nr, .hidden = hidden};
	int rc = 0;

	for (; rc == 0 && m->head && m->touched.nr && k.rank < m->c->topo.ranks; k.rank++)
		rc = meta_view_files(m->head, k.rank, on_file, &k);
	return rc == SC_E_NO_MEMORY ? sc_nomem(m->c->err) : rc;
}

static int begin(struct completion *m, struct commit *c)
{
	int rc;

	*m = (struct completion){.c = c, .head = c->head ? c->head->model : NULL};
	rc = add_paths(m);
	return rc < 0 ? rc : add_head(m);
}

static void end(struct completion *m)
{
	for (struct path *p = m->first; p; p = p->next)
		sc_map_done(&p->classes);
	sc_map_done(&m->paths);
	sc_map_done(&m->names);
	sc_map_done(&m->touched);
	sc_arena_done(&m->arena);
}

int rs_commit_complete(struct commit *c)
{
	struct completion m;
	size_t nr = c->items.nr;
	int rc = begin(&m, c);

	if (rc == 0)
		rc = add_classes(&m);
	for (struct path *p = m.first; rc == 0 && p; p = p->next)
		rc = add_like(&m, p, nr);
	rs_commit_sort(c);
	end(&m);
	return rc;
}

static int keep_files(struct commit *c, bool hidden)
{
	struct completion m;
	size_t nr = c->items.nr;
	int rc = begin(&m, c);

	if (rc == 0)
		rc = add_kept(&m, hidden);
	rs_commit_sort(c);
	end(&m);
	return rc < 0 ? rc : c->items.nr > nr;
}

int rs_commit_add_kept(struct commit *c)
{
	return keep_files(c, false);
}

int rs_commit_add_hidden(struct commit *c)
{
	int rc = c->head && c->head->model->has_hidden ? keep_files(c, true) : 0;

	return rc < 0 ? rc : 0;
}

/* --- who is missing --- */

#define MISSING_SHOWN 4

/* Finds the first class of ranks that has no file of this path, and names its ranks, as "2 or 3".  False: each class
 * has one. */
static bool missing_class(struct completion *m, struct path *p, struct sc_buf *ranks, bool *ret_nothing)
{
	const struct commit *c = m->c;
	struct meta_class key = {{0}};
	uint32_t nr = 0;

	for (uint32_t rank = 0; rank < c->topo.ranks; rank++) {
		struct class *class = class_of(m, p, rank);
		struct meta_class mine = meta_class_of(&c->topo, p->axes, rank);

		if (!class || class->wrote || (nr && memcmp(&mine, &key, sizeof(key)) != 0))
			continue;
		if (!nr)
			*ret_nothing = !rs_commit_has_rows(c, rank);
		key = mine;
		if (nr++ < MISSING_SHOWN)
			sc_buf_printf(ranks, "%s%u", ranks->bytes ? " or " : "", rank);
	}
	if (nr > MISSING_SHOWN)
		sc_buf_printf(ranks, " or %u more", nr - MISSING_SHOWN);
	return nr;
}

/* Notes for each class the file that it has of a path, be it written or kept. */
static int note_files(struct completion *m)
{
	for (size_t i = 0; i < m->c->items.nr; i++) {
		const struct item *it = &m->c->items.at[i];
		struct path *p = sc_map_get(&m->paths, it->path, strlen(it->path));
		const bool is = p && !it->gone && !it->lost;
		struct class *class = is ? class_of(m, p, it->rank) : NULL;

		if (class)
			class->wrote = i + 1;
		else if (is)
			return -1;
	}
	return 0;
}

int rs_commit_refuse_missing(struct commit *c, int rc)
{
	struct completion m;
	const struct sc_err why = *c->err;
	struct sc_buf ranks = {0};
	bool nothing = false;

	if (begin(&m, c) == 0 && note_files(&m) == 0)
		for (struct path *p = m.first; p; p = p->next) {
			if (!p->written || !missing_class(&m, p, &ranks, &nothing))
				continue;
			rc = sc_fail(c->err, rc, "%s%srank %s must write '%s', of which nobody has ever written this "
				     "part", nothing ? "" : why.msg, nothing ? "" : "; maybe ", ranks.text, p->name);
			break;
		}
	if (c->err->code != rc || !ranks.bytes)
		*c->err = why;
	sc_buf_done(&ranks);
	end(&m);
	return c->err->code;
}
