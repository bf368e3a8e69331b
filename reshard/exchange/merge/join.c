/* SPDX-License-Identifier: Apache-2.0 */
#include "reshard/exchange/merge/join.h"

#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "meta/base/limits.h"

#define KEY(number) (const char *)&(number), sizeof(number)
#define ABOVE_MAX 65536		/* folders above one another; more are a circle */

struct same {			/* a folder of the part that is one with another */
	uint64_t from, to;
};

struct twice {			/* a folder in which two folders have become one */
	uint64_t ino;
	uint32_t nr;
};

struct work {
	struct rs_joining *j;
	uint32_t node;
	const struct meta_changes *part;
	size_t xattrs, entries;		/* where they begin in the part */
	struct sc_map same, twice;
	struct {
		size_t nr, room;
		struct same *at;
	} folders;			/* whose names are still to be joined */
	struct meta_changes rows, attributes, names;
	struct sc_err *err;
};

/* --- the part --- */

static int by_ino(const void *key, const void *row)
{
	const uint64_t ino = *(const uint64_t *)key, is = ((const struct meta_change *)row)->inode.ino;

	return (ino > is) - (ino < is);
}

static const struct meta_inode_row *row_of(const struct work *w, uint64_t ino)
{
	const struct meta_change *x = bsearch(&ino, w->part->at, w->xattrs, sizeof(*x), by_ino);

	return x ? &x->inode : NULL;
}

static uint64_t number_of(const struct meta_change *x)
{
	return x->kind == META_PUT_XATTR ? x->xattr.ino : x->entry.parent;
}

/* Finds the first change, from `from` to `end`, at or behind a number. */
static size_t first_of(const struct work *w, size_t from, size_t end, uint64_t ino)
{
	return from + sc_first(end - from, i, number_of(&w->part->at[from + i]) >= ino);
}

static uint64_t joined(const struct work *w, uint64_t ino)
{
	const struct same *s = sc_map_get(&w->same, KEY(ino));

	return s ? s->to : ino;
}

/* --- what there is --- */

static int below(struct work *w, uint64_t ino, struct meta_inode_row *ret)
{
	return w->j->lower->inode(w->j->lower->arg, ino, &w->j->texts, ret, w->err);
}

static int now(struct work *w, uint64_t ino, struct meta_inode_row *ret)
{
	return rs_overlay_inode(w->j->o, ino, &w->j->texts, ret, w->err);
}

/* Tells whether a row is of a folder that the version below has not: 1, 0 or an error. */
static int is_new_folder(struct work *w, uint64_t ino, const struct meta_inode_row *row)
{
	struct meta_inode_row was;
	int rc = row && S_ISDIR(row->mode) ? below(w, ino, &was) : 1;

	return rc < 0 ? rc : rc == 0;
}

/* --- refusals --- */

static const void *name_key(struct work *w, uint64_t folder, struct meta_bytes name, size_t *ret_bytes)
{
	char *key = sc_arena_alloc(&w->j->texts, sizeof(folder) + name.nr);

	if (key) {
		memcpy(key, &folder, sizeof(folder));
		memcpy(key + sizeof(folder), name.at, name.nr);
	}
	*ret_bytes = sizeof(folder) + name.nr;
	return key;
}

/* Notes that the part's node has changed something, which the key names. */
static int note(struct work *w, const void *key, size_t bytes)
{
	uint32_t *by = key ? sc_map_make(&w->j->by, key, bytes, &w->j->texts, sizeof(*by)) : NULL;

	if (!by)
		return sc_nomem(w->err);
	*by = w->node;
	return 0;
}

static uint32_t whose(const struct work *w, const void *key, size_t bytes)
{
	const uint32_t *by = sc_map_get(&w->j->by, key, bytes);

	return by ? *by : w->j->node;
}

static int refuse(struct work *w, uint32_t other, uint64_t ino, const char *more, const char *what)
{
	struct sc_buf name = {0};
	int rc = w->j->name(w->j->arg, ino, more, &name, w->err);

	if (rc == 0 && !name.bytes)
		sc_buf_printf(&name, "a file");
	if (rc == 0)
		rc = name.failed ? sc_nomem(w->err)
				 : sc_fail(w->err, SC_E_BUSY, "%s %s on node %u and on node %u: nothing was committed; "
					   "remove or rename it on one of them", name.text, what, other, w->node);
	sc_buf_done(&name);
	return rc;
}

static int refuse_name(struct work *w, uint64_t folder, struct meta_bytes name)
{
	char *text = sc_arena_copy(&w->j->texts, name.at, name.nr);
	size_t bytes;
	const void *key = name_key(w, folder, name, &bytes);

	if (!text || !key)
		return sc_nomem(w->err);
	return refuse(w, whose(w, key, bytes), folder, text, "was written or removed");
}

static int refuse_object(struct work *w, uint64_t ino, const char *what)
{
	return refuse(w, whose(w, KEY(ino)), ino, "", what);
}

/* --- names --- */

static int put(struct work *w, struct meta_changes *to, struct meta_change x)
{
	return sc_vec_push(to, x) < 0 ? sc_nomem(w->err) : 0;
}

static int put_name(struct work *w, uint64_t folder, struct meta_bytes name, uint64_t ino)
{
	size_t bytes;
	const void *key = name_key(w, folder, name, &bytes);
	int rc = note(w, key, bytes);

	return rc < 0 ? rc : put(w, &w->names, (struct meta_change){META_PUT_ENTRY, .entry = {folder, name, ino}});
}

/* Makes two new folders of one name one folder. */
static int put_same(struct work *w, uint64_t folder, uint64_t from, uint64_t to)
{
	struct same *s = sc_arena_alloc(&w->j->texts, sizeof(*s));
	struct twice *t;

	if (!s)
		return sc_nomem(w->err);
	*s = (struct same){from, to};
	t = sc_map_get(&w->twice, KEY(folder));
	if (!t) {
		t = sc_arena_alloc(&w->j->texts, sizeof(*t));
		if (!t)
			return sc_nomem(w->err);
		*t = (struct twice){.ino = folder};
		if (sc_map_put(&w->twice, KEY(t->ino), t) < 0)
			return sc_nomem(w->err);
	}
	t->nr++;
	return sc_map_put(&w->same, KEY(s->from), s) < 0 || sc_vec_push(&w->folders, *s) < 0 ? sc_nomem(w->err) : 0;
}

static int join_name(struct work *w, uint64_t folder, const struct meta_entry_row *e)
{
	struct meta_inode_row mine;
	uint64_t is, was = 0;
	int rc = w->j->lower->child(w->j->lower->arg, folder, e->name, &was, w->err), is_new = 0;

	if (rc == 0)
		rc = rs_overlay_child(w->j->o, folder, e->name, &is, w->err);
	if (rc < 0 || e->ino == was)
		return rc;
	if (e->ino)
		is_new = rc = is_new_folder(w, e->ino, row_of(w, e->ino));
	if (rc >= 0 && is == was) {
		rc = put_name(w, folder, e->name, e->ino);
		if (rc == 0 && is_new && sc_vec_push(&w->folders, (struct same){e->ino, e->ino}) < 0)
			rc = sc_nomem(w->err);
		return rc;
	}
	if (rc >= 0 && is && is_new) {
		rc = now(w, is, &mine);
		rc = rc > 0 ? is_new_folder(w, is, &mine) : rc;
		if (rc > 0)
			return put_same(w, folder, e->ino, is);
	}
	return rc < 0 ? rc : refuse_name(w, folder, e->name);
}

/* Joins names, from folders of the version below, and of those that have a place already, to the folders in them. */
static int join_names(struct work *w)
{
	uint64_t last = 0;
	int rc = 0;

	for (size_t i = w->entries; rc >= 0 && i < w->part->nr; i++) {
		const uint64_t parent = w->part->at[i].entry.parent;

		if (parent == last)
			continue;
		last = parent;
		rc = is_new_folder(w, parent, row_of(w, parent));
		if (rc == 0 && sc_vec_push(&w->folders, (struct same){parent, parent}) < 0)
			rc = sc_nomem(w->err);
	}
	while (rc >= 0 && w->folders.nr) {
		const struct same f = w->folders.at[--w->folders.nr];

		rc = 0;
		for (size_t i = first_of(w, w->entries, w->part->nr, f.from);
		     rc == 0 && i < w->part->nr && w->part->at[i].entry.parent == f.from; i++)
			rc = join_name(w, f.to, &w->part->at[i].entry);
	}
	return rc < 0 ? rc : 0;
}

/* --- attributes --- */

struct attributes {
	struct work *w;
	struct sc_map at;		/* name -> struct meta_bytes */
};

static int add_attribute(void *arg, struct meta_bytes name, struct meta_bytes value)
{
	struct attributes *a = arg;
	struct sc_arena *texts = &a->w->j->texts;
	struct meta_bytes *copy = sc_arena_alloc(texts, sizeof(*copy));
	char *key = sc_arena_copy(texts, name.at, name.nr);

	if (!copy || !key)
		return sc_nomem(a->w->err);
	*copy = (struct meta_bytes){sc_arena_copy(texts, value.at, value.nr), value.nr};
	return !copy->at || sc_map_put(&a->at, key, name.nr, copy) < 0 ? sc_nomem(a->w->err) : 0;
}

static bool has_same(const struct attributes *a, const char *name, size_t bytes, const struct meta_bytes *value)
{
	const struct meta_bytes *is = sc_map_get(&a->at, name, bytes);

	return is && is->nr == value->nr && memcmp(is->at, value->at, is->nr) == 0;
}

static bool are_same(const struct attributes *a, const struct attributes *b)
{
	if (a->at.nr != b->at.nr)
		return false;
	for (size_t i = 0; i < a->at.room; i++) {
		const struct sc_map_slot *s = &a->at.slots[i];

		if (s->value && !has_same(b, s->key, s->key_bytes, s->value))
			return false;
	}
	return true;
}

/* Puts extended attributes in place of those that an object has. */
static int put_attributes(struct work *w, uint64_t ino, const struct attributes *had, const struct attributes *gets)
{
	int rc = 0;

	for (size_t i = 0; rc == 0 && had && i < had->at.room; i++)
		if (had->at.slots[i].value && !sc_map_get(&gets->at, had->at.slots[i].key, had->at.slots[i].key_bytes))
			rc = put(w, &w->attributes, (struct meta_change){META_DROP_XATTR, .xattr = {
				.ino = ino, .name = {had->at.slots[i].key, had->at.slots[i].key_bytes}}});
	for (size_t i = 0; rc == 0 && i < gets->at.room; i++)
		if (gets->at.slots[i].value)
			rc = put(w, &w->attributes, (struct meta_change){META_PUT_XATTR, .xattr = {
				ino, {gets->at.slots[i].key, gets->at.slots[i].key_bytes},
				*(const struct meta_bytes *)gets->at.slots[i].value}});
	return rc;
}

static int of_part(struct work *w, uint64_t ino, struct attributes *ret)
{
	int rc = 0;

	for (size_t i = first_of(w, w->xattrs, w->entries, ino);
	     rc == 0 && i < w->entries && w->part->at[i].xattr.ino == ino; i++)
		rc = add_attribute(ret, w->part->at[i].xattr.name, w->part->at[i].xattr.value);
	return rc;
}

/* Joins the extended attributes of an object; `from` is its number in the part, `has_row`: both have upper rows of
 * it. */
static int join_attributes(struct work *w, uint64_t from, uint64_t ino, bool has_row)
{
	struct attributes was = {w, {0}}, is = {w, {0}}, theirs = {w, {0}};
	int rc = of_part(w, from, &theirs);

	if (rc == 0 && has_row)
		rc = w->j->lower->xattrs(w->j->lower->arg, ino, add_attribute, &was, w->err);
	if (rc == 0 && has_row)
		rc = rs_overlay_xattrs(w->j->o, ino, add_attribute, &is, w->err);
	if (rc == 0 && !has_row)
		rc = put_attributes(w, ino, NULL, &theirs);
	else if (rc == 0 && !are_same(&theirs, &was) && !are_same(&theirs, &is))
		rc = are_same(&is, &was) ? put_attributes(w, ino, &is, &theirs)
					 : refuse_object(w, ino, "got other extended attributes");
	sc_map_done(&was.at);
	sc_map_done(&is.at);
	sc_map_done(&theirs.at);
	return rc;
}

/* --- rows --- */

static int put_row(struct work *w, const struct meta_inode_row *row)
{
	char *key = sc_arena_copy(&w->j->texts, KEY(row->ino));
	int rc = note(w, key, sizeof(row->ino));

	return rc < 0 ? rc : put(w, &w->rows, (struct meta_change){META_PUT_INODE, .inode = *row});
}

static int note_gone(struct work *w, uint64_t ino)
{
	char *key = sc_arena_copy(&w->j->texts, KEY(ino));
	int rc = note(w, key, sizeof(ino));

	return rc < 0 ? rc : sc_map_put(&w->j->gone, key, sizeof(ino), key) < 0 ? sc_nomem(w->err) : 0;
}

static int64_t newer(int64_t a, int64_t b)
{
	return a > b ? a : b;
}

static void join_times(struct meta_inode_row *is, const struct meta_inode_row *theirs)
{
	is->atime_ns = newer(is->atime_ns, theirs->atime_ns);
	is->mtime_ns = newer(is->mtime_ns, theirs->mtime_ns);
	is->ctime_ns = newer(is->ctime_ns, theirs->ctime_ns);
}

static uint32_t counted_twice(const struct work *w, uint64_t folder)
{
	const struct twice *t = sc_map_get(&w->twice, KEY(folder));

	return t ? t->nr : 0;
}

/* Joins the row of a folder of the part that is one with a folder that is there. */
static int join_same(struct work *w, const struct meta_inode_row *theirs, uint64_t to)
{
	struct meta_inode_row is;
	int rc = now(w, to, &is);

	if (rc < 0)
		return rc;
	if (is.mode != theirs->mode || is.uid != theirs->uid || is.gid != theirs->gid)
		return refuse_object(w, to, "is a new folder with another mode or owner");
	join_times(&is, theirs);
	is.nlink += theirs->nlink - 2 - counted_twice(w, to);
	rc = join_attributes(w, theirs->ino, to, true); /* first: the row is this node's from then on */
	return rc < 0 ? rc : put_row(w, &is);
}

static bool has_other_owner(const struct meta_inode_row *a, const struct meta_inode_row *b)
{
	return a->mode != b->mode || a->uid != b->uid || a->gid != b->gid;
}

/* Joins the rows of an object that both have, and the version below, too. */
static int join_rows(struct work *w, const struct meta_inode_row *was, const struct meta_inode_row *theirs)
{
	struct meta_inode_row is;
	const bool moved = theirs->parent != was->parent;
	int rc = now(w, theirs->ino, &is);

	if (rc < 0)
		return rc;
	if (rc == 0 || !is.nlink)
		return refuse_object(w, theirs->ino, "was removed or changed");
	if ((theirs->data == META_OWN_DATA && (is.data == META_OWN_DATA || has_other_owner(&is, was))) ||
	    (is.data == META_OWN_DATA && has_other_owner(theirs, was)))
		return refuse_object(w, theirs->ino, "was written or got another mode or owner");
	if (has_other_owner(theirs, was) && has_other_owner(&is, was) && has_other_owner(&is, theirs))
		return refuse_object(w, theirs->ino, "got another mode or owner");
	if (moved && is.parent != was->parent && is.parent != joined(w, theirs->parent))
		return refuse_object(w, theirs->ino, "was moved");
	if (theirs->data == META_OWN_DATA || has_other_owner(theirs, was)) {
		is.mode = theirs->mode;
		is.uid = theirs->uid;
		is.gid = theirs->gid;
	}
	if (theirs->data == META_OWN_DATA) {
		is.data = META_OWN_DATA;
		is.blob = theirs->blob;
	}
	if (moved)
		is.parent = joined(w, theirs->parent);
	join_times(&is, theirs);
	is.nlink += theirs->nlink - was->nlink - counted_twice(w, is.ino);
	rc = join_attributes(w, is.ino, is.ino, true);
	return rc < 0 ? rc : put_row(w, &is);
}

static int join_row(struct work *w, const struct meta_inode_row *theirs)
{
	const struct same *same = sc_map_get(&w->same, KEY(theirs->ino));
	struct meta_inode_row was, row = *theirs;
	int rc;

	if (same)
		return join_same(w, theirs, same->to);
	if (sc_map_get(&w->j->gone, KEY(theirs->ino)) || (!theirs->nlink && rs_overlay_has(w->j->o, theirs->ino)))
		return refuse_object(w, theirs->ino, "was removed or changed");
	if (!theirs->nlink)
		return note_gone(w, theirs->ino);
	if (rs_overlay_has(w->j->o, theirs->ino)) {
		rc = below(w, theirs->ino, &was);
		return rc > 0 ? join_rows(w, &was, theirs)
			      : rc < 0 ? rc : refuse_object(w, theirs->ino, "was made");
	}
	row.parent = joined(w, row.parent);
	rc = put_row(w, &row);
	return rc < 0 ? rc : join_attributes(w, row.ino, row.ino, false);
}

/* --- circles --- */

static bool is_top(const struct work *w, uint64_t ino)
{
	return ino >= w->j->root && ino - w->j->root <= SC_RANKS_MAX;
}

/* Refuses two moves, each possible alone, that put two folders into one another. */
static int refuse_circle(struct work *w, const struct meta_inode_row *folder)
{
	struct meta_inode_row row = *folder;
	int rc = 1;

	for (unsigned i = 0; rc > 0 && !is_top(w, row.ino); i++) {
		if (i == ABOVE_MAX)
			return sc_fail(w->err, SC_E_BUSY, "two folders were moved into one another, one of them on "
				       "node %u: nothing was committed; move it back", w->node);
		rc = now(w, row.parent, &row);
	}
	return rc < 0 ? rc : 0;
}

static int refuse_circles(struct work *w)
{
	struct meta_inode_row was;
	int rc = 0;

	for (size_t i = 0; rc >= 0 && i < w->rows.nr; i++) {
		const struct meta_inode_row *row = &w->rows.at[i].inode;

		if (!S_ISDIR(row->mode) || is_top(w, row->ino))
			continue;
		rc = below(w, row->ino, &was);
		if (rc > 0 && was.parent != row->parent)
			rc = refuse_circle(w, row);
	}
	return rc < 0 ? rc : 0;
}

/* --- a part --- */

static int append(struct work *w, struct meta_changes *to, const struct meta_changes *from)
{
	int rc = 0;

	for (size_t i = 0; rc == 0 && i < from->nr; i++)
		rc = put(w, to, from->at[i]);
	return rc;
}

static int take(struct work *w, struct meta_changes *ret)
{
	const size_t before = ret->nr;
	struct meta_changes these;
	int rc = append(w, ret, &w->rows);

	if (rc == 0)
		rc = append(w, ret, &w->attributes);
	if (rc == 0)
		rc = append(w, ret, &w->names);
	these = (struct meta_changes){ret->at + before, ret->nr - before, 0};
	if (rc == 0)
		rc = rs_overlay_load(w->j->o, &these, w->err);
	return rc < 0 ? rc : refuse_circles(w);
}

int rs_join(struct rs_joining *j, uint32_t node, const struct meta_changes *part, struct meta_changes *ret,
	    struct sc_err *err)
{
	struct work w = {.j = j, .node = node, .part = part, .err = err};
	int rc;

	while (w.xattrs < part->nr && part->at[w.xattrs].kind == META_PUT_INODE)
		w.xattrs++;
	for (w.entries = w.xattrs; w.entries < part->nr && part->at[w.entries].kind == META_PUT_XATTR;)
		w.entries++;
	rc = join_names(&w);
	for (size_t i = 0; rc == 0 && i < w.xattrs; i++)
		rc = join_row(&w, &part->at[i].inode);
	if (rc == 0)
		rc = take(&w, ret);
	meta_changes_done(&w.rows);
	meta_changes_done(&w.attributes);
	meta_changes_done(&w.names);
	sc_map_done(&w.same);
	sc_map_done(&w.twice);
	sc_vec_done(&w.folders);
	return rc;
}

void rs_joining_done(struct rs_joining *j)
{
	sc_map_done(&j->by);
	sc_map_done(&j->gone);
	sc_arena_done(&j->texts);
}
