/* SPDX-License-Identifier: Apache-2.0 */
#include <inttypes.h>
#include <string.h>

#include "meta/base/limits.h"
#include "reshard/codec/torch/pickle.h"

#define STEPS_MIN 100000	/* of a walk; sharing is rare in files that were not made to exhaust their readers */
#define STEPS_A_BYTE 8

enum part { PART_PAIRS, PART_ITEMS, PART_ARGS, PART_STATE, PART_END }; /* of what is in a node, in this order */

/* A node into which the walk has gone, and the place in it at which the walk is. */
struct level {
	struct rs_pickled *node;
	enum part part;
	struct rs_pickled_cell *cell;		/* PAIRS, ITEMS: the next one */
	uint64_t i;				/* the next place; of a pair, that of its key in the order of pairs */
	/* what led to the child that the walk is in */
	enum part of;
	const struct rs_pickled *key;		/* of PAIRS */
	uint64_t place;
	struct rs_pickled **slot;		/* where it hangs */
};

struct rs_pickle_walk {
	struct level levels[SC_PICKLE_DEPTH_MAX + 2];
	unsigned nr;
	uint64_t left;
	struct sc_err *err;
};

static bool is_object(const struct rs_pickled *n)
{
	return n->kind == RS_PICKLED_CALL || n->kind == RS_PICKLED_NEW;
}

static const struct rs_pickled_items *items_of(const struct rs_pickled *n, enum part part)
{
	static const struct rs_pickled_items none;

	if (is_object(n))
		return part == PART_PAIRS ? &n->object->pairs : &n->object->items;
	if (n->kind == (part == PART_PAIRS ? RS_PICKLED_DICT : RS_PICKLED_LIST))
		return &n->items;
	return &none;
}

static void begin(struct level *l, enum part part)
{
	l->part = part;
	l->i = 0;
	l->cell = part == PART_PAIRS || part == PART_ITEMS ? items_of(l->node, part)->first : NULL;
}

/* Moves l->slot to the next child; false: there is none. */
static bool next(struct level *l)
{
	struct rs_pickled *n = l->node, *args = is_object(n) ? n->object->args : NULL;

	for (;; begin(l, l->part + 1)) {
		struct rs_pickled_cell *cell = l->cell;

		l->of = l->part;
		l->place = l->i++;
		l->slot = NULL;
		if (l->part == PART_PAIRS && cell) {
			l->key = cell->node;
			l->cell = cell->next->next;
			l->slot = &cell->next->node;
		} else if (l->part == PART_ITEMS && cell) {
			l->cell = cell->next;
			l->slot = &cell->node;
		} else if (l->part == PART_ITEMS && n->kind == RS_PICKLED_TUPLE && l->place < n->tuple.nr) {
			l->slot = &n->tuple.at[l->place];
		} else if (l->part == PART_ARGS && args && l->place < args->tuple.nr &&
			   !rs_pickled_is(n->object->what, "collections", "OrderedDict")) {
			l->slot = &args->tuple.at[l->place];
		} else if (l->part == PART_STATE && is_object(n) && l->place == 0 && n->object->state) {
			l->slot = &n->object->state;
		}
		if (l->slot || l->part == PART_END)
			return l->slot;
	}
}

static bool has_children(struct rs_pickled *n)
{
	struct level l = {.node = n};

	begin(&l, PART_PAIRS);
	return next(&l);
}

/* --- paths --- */

static bool is_number(const struct rs_pickled_bytes *text)
{
	uint64_t i = 0;

	while (i < text->nr && text->at[i] == '-')
		i++;
	if (i == text->nr)
		return text->nr == 0;
	while (i < text->nr && text->at[i] >= '0' && text->at[i] <= '9')
		i++;
	return i == text->nr;
}

void rs_pickle_key(const struct rs_pickled_bytes *text, struct sc_buf *ret)
{
	if (is_number(text) || memchr("'@#", text->at[0], 3))
		sc_buf_add(ret, "'", 1);
	for (uint64_t i = 0, n; i < text->nr; i += n + 1) {
		for (n = 0; i + n < text->nr && text->at[i + n] != '~' && text->at[i + n] != '/';)
			n++;
		sc_buf_add(ret, text->at + i, n);
		if (i + n < text->nr)
			sc_buf_add(ret, text->at[i + n] == '~' ? "~0" : "~1", 2);
	}
}

static bool is_named(const struct level *l)
{
	return l->of == PART_ITEMS ||
	       (l->of == PART_PAIRS && (l->key->kind == RS_PICKLED_TEXT || l->key->kind == RS_PICKLED_INT));
}

void rs_pickle_path(const struct rs_pickle_walk *walk, struct sc_buf *ret)
{
	for (unsigned i = 0; i < walk->nr; i++) {
		const struct level *l = &walk->levels[i];

		if (i)
			sc_buf_add(ret, "/", 1);
		if (l->of == PART_STATE)
			sc_buf_printf(ret, "@state");
		else if (!is_named(l))
			sc_buf_printf(ret, "%c%" PRIu64, l->of == PART_ARGS ? '@' : '#', l->place);
		else if (l->of == PART_ITEMS)
			sc_buf_number(ret, l->place);
		else if (l->key->kind == RS_PICKLED_INT)
			sc_buf_printf(ret, "%" PRId64, l->key->number);
		else
			rs_pickle_key(&l->key->bytes, ret);
	}
}

char *rs_pickle_path_in(const struct rs_pickle_walk *walk, struct sc_arena *arena, size_t *ret_bytes)
{
	struct sc_buf text = {0};
	char *path;

	rs_pickle_path(walk, &text);
	path = text.failed ? NULL : sc_arena_copy(arena, text.text ? text.text : "", text.bytes);
	if (ret_bytes)
		*ret_bytes = text.bytes;
	sc_buf_done(&text);
	return path;
}

struct rs_pickled **rs_pickle_slot(const struct rs_pickle_walk *walk)
{
	return walk->nr ? walk->levels[walk->nr - 1].slot : NULL;
}

bool rs_pickle_is_inside(const struct rs_pickle_walk *walk)
{
	for (unsigned i = 0; i < walk->nr; i++)
		if (!is_named(&walk->levels[i]))
			return true;
	return false;
}

/* --- the walk --- */

static int refuse(const struct rs_pickle_walk *w, const char *what)
{
	struct sc_buf path = {0};

	rs_pickle_path(w, &path);
	(void)sc_fail(w->err, SC_E_FORMAT, "pickle: '%.80s' %s", path.text ? path.text : "", what);
	sc_buf_done(&path);
	return w->err->code;
}

/* Visits a node; w->levels are the nodes above it. */
static int visit(struct rs_pickle_walk *w, struct rs_pickled *n, rs_pickled_fn *fn, void *arg)
{
	int rc;

	if (w->left-- == 0)
		return sc_fail(w->err, SC_E_FORMAT, "pickle: too many paths lead to its objects: a file that was made "
			       "to exhaust its readers");
	if (w->nr > SC_PICKLE_DEPTH_MAX)
		return refuse(w, "is too deep in other objects");
	rc = fn(arg, w, n);
	if (rc || !has_children(n))
		return rc < 0 ? rc : 0;
	if (n->is_open)
		return refuse(w, "holds itself");
	n->is_open = true;
	w->levels[w->nr] = (struct level){.node = n};
	begin(&w->levels[w->nr++], PART_PAIRS);
	return 0;
}

int rs_pickle_walk(const struct rs_pickle *pickle, rs_pickled_fn *fn, void *arg, struct sc_err *err)
{
	struct rs_pickle_walk *w = sc_zalloc(sizeof(*w));
	int rc;

	if (!w)
		return sc_nomem(err);
	w->left = STEPS_MIN + STEPS_A_BYTE * pickle->bytes;
	w->err = err;
	rc = visit(w, pickle->root, fn, arg);
	while (rc == 0 && w->nr) {
		struct level *l = &w->levels[w->nr - 1];

		if (next(l)) {
			rc = visit(w, *l->slot, fn, arg);
		} else {
			l->node->is_open = false;
			w->nr--;
		}
	}
	for (unsigned i = 0; i < w->nr; i++)
		w->levels[i].node->is_open = false;
	sc_sys.release(w);
	return rc;
}

/* --- single nodes --- */

static bool is_text(const struct rs_pickled_bytes *bytes, const char *text)
{
	return bytes->nr == strlen(text) && memcmp(bytes->at, text, bytes->nr) == 0;
}

bool rs_pickled_is(const struct rs_pickled *node, const char *module, const char *name)
{
	const struct rs_pickled_bytes *is;

	if (!node || node->kind != RS_PICKLED_GLOBAL || !is_text(&node->global.name, name))
		return false;
	is = &node->global.module;
	return is_text(is, module) || (is_text(is, "__builtin__") && strcmp(module, "builtins") == 0) ||
	       (is_text(is, "copy_reg") && strcmp(module, "copyreg") == 0);
}

bool rs_pickled_is_text(const struct rs_pickled *node, const char *text)
{
	return node && node->kind == RS_PICKLED_TEXT && is_text(&node->bytes, text);
}

struct rs_pickled *rs_pickled_get(const struct rs_pickled *node, const char *key)
{
	struct rs_pickled *found = NULL;

	if (!node || node->kind != RS_PICKLED_DICT)
		return NULL;
	for (const struct rs_pickled_cell *c = node->items.first; c; c = c->next->next)
		if (rs_pickled_is_text(c->node, key))
			found = c->next->node;
	return found;
}

struct rs_pickled *rs_pickled_arg(const struct rs_pickled *node, uint64_t i)
{
	const struct rs_pickled *args = is_object(node) ? node->object->args : NULL;

	return args && i < args->tuple.nr ? args->tuple.at[i] : NULL;
}
