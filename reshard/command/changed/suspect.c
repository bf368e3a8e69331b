/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Refuses tensors that the layout cuts though nobody cut them.  A framework may have left a tensor whole on each rank
 * (a vocabulary that is not parallelized, a buffer), or two ranks may hold one part (key heads that neighbours share,
 * replicas of HSDP, a file that was copied): joined, the copies would be a tensor of more rows, and nothing else would
 * tell.  Real parts differ, nearly always in their first bytes, so few bytes of each part are read.
 *
 *     two parts of an axis are the same bytes, and tell something                     refused
 *     all are, and tell nothing: a few bytes, or one element repeated (zeros, ones)   refused, unless something says
 *                                                                                     that the tensor is a parameter
 *     bytes of a layer: `_extra_state`, pickles, of which two in a row are none       refused
 *     not judged: empty parts, parts that are padding, parts of different shapes or orders of dimensions; parts of
 *     what an optimizer has of a tensor that is there, too, unless the files are the same: its shape is that of the
 *     tensor, which is judged, and a loss that is a sum makes rows of it equal
 *
 * That a tensor is a parameter, which the layout may cut, says a rule that has its last word (`*.weight`, not `*`), or
 * the state that an optimizer has of it.
 */
#include "reshard/command/changed/items_i.h"

#include <assert.h>
#include <inttypes.h>
#include <string.h>

#include "meta/base/xxh.h"

#define FIRST 4096u
#define CHUNK (256u << 10)
/* How often an element differs from the one before it in a part that tells something: parts of different rows that are
 * near 1 in 16 bits, as norms, agree in a few by chance. */
#define TELLING 8
#define TELLING_WIDE 3		/* of elements of 4 bytes and more, which do so more seldom */

struct along {			/* the part at an index of the axis */
	struct part part;
	XXH128_hash_t first;	/* of its first bytes */
	uint32_t like;		/* the first index that has the same bytes */
	struct along *before;	/* the last one that begins with the same bytes, NULL: none */
	bool judged;
};

struct suspicion {
	struct commit *c;
	const struct rs_set *set;
	const struct meta_entry *entry;
	struct sc_arena arena;
	unsigned char *mine, *theirs;
	unsigned element;		/* bytes */
	struct along *along;
	struct sc_map names;		/* of the version's tensors */
	struct sc_map params;		/* tensors of which an optimizer has a state, and such states: names */
	struct sc_map based;		/* such states whose tensors are there */
	bool has_params;
	const struct item *same[2];	/* two files that were compared last, and whether they are the same */
	bool are_same;
};

/* What a look at the parts has found: they differ; all are equal, and tell nothing; two are equal, and tell
 * something. */
enum look { LOOK_CUT, LOOK_WEAK, LOOK_EQUAL };

static int find_part(struct suspicion *s, const uint32_t coords[SC_AXES_MAX], struct part *ret)
{
	return rs_commit_part(s->c, s->set->view, s->entry, coords, &s->arena, ret);
}

/* Counts, up to TELLING, how often an element differs from the one before it. */
static unsigned count_changes(const struct suspicion *s, const unsigned char *bytes, uint64_t n, unsigned nr)
{
	for (uint64_t at = s->element; at < n && nr < TELLING; at += s->element)
		nr += memcmp(bytes + at, bytes + at - s->element, s->element) != 0;
	return nr;
}

/* 1: the same bytes, 0: not, or an error.  *changes: as count_changes() of the bytes that were read. */
static int is_equal(struct suspicion *s, const struct part *a, const struct part *b, unsigned *changes)
{
	const uint64_t bytes = rs_found_bytes(a->at);
	unsigned char last[16] = {0};
	uint64_t n;

	*changes = 0;
	for (uint64_t at = 0; at < bytes; at += n) {
		int rc;

		n = sc_min_u64(bytes - at, at ? CHUNK : FIRST);
		rc = rs_commit_bytes(a->item, a->at->at + at, n, s->mine, s->c->err);
		if (rc == 0)
			rc = rs_commit_bytes(b->item, b->at->at + at, n, s->theirs, s->c->err);
		if (rc < 0)
			return rc;
		if (memcmp(s->mine, s->theirs, n) != 0)
			return 0;
		if (at && *changes < TELLING)
			*changes += memcmp(s->mine, last, s->element) != 0;
		*changes = count_changes(s, s->mine, n, *changes);
		memcpy(last, s->mine + n - s->element, s->element);
	}
	return 1;
}

static bool lie_alike(const struct rs_found_tensor *a, const struct rs_found_tensor *b)
{
	return !a->stride == !b->stride && meta_shape_equal(&a->shape, &b->shape) &&
	       (!a->stride || memcmp(a->stride, b->stride, a->shape.nr * sizeof(*a->stride)) == 0);
}

/* Tells whether a rule has a literal character, or a choice of words, in the last word of its names. */
static bool is_named(const struct meta_rule *rule)
{
	bool named = false;

	for (uint16_t i = 0; i < rule->name.nr; i++) {
		const struct meta_token *t = &rule->name.tokens[i];

		named |= t->kind == META_TOKEN_CHOICE;
		for (uint32_t k = 0; t->kind == META_TOKEN_LIT && k < t->bytes; k++)
			named = t->text[k] != '.' && t->text[k] != '/';
	}
	return named;
}

/* Tells whether two indexes of an axis share a part, by `upto`. */
static bool is_shared(const struct suspicion *s, int axis, uint32_t a, uint32_t b)
{
	const struct meta_rule *r = s->entry->rule;
	const uint32_t d = s->set->view->topo->degree[axis];

	for (int i = 0; i < r->nr_cuts; i++)
		for (uint32_t k = 0; r->cuts[i].axes & 1u << axis && k < r->cuts[i].nr_sections; k++) {
			const uint64_t parts = meta_cut_parts(&r->cuts[i], k, d);

			if (a * parts / d != b * parts / d)
				return false;
		}
	return r->cut_axes & 1u << axis;
}

static int is_padding(struct suspicion *s, const uint32_t coords[SC_AXES_MAX], bool *ret)
{
	char scratch[1024] SC_SCRATCH;
	struct sc_arena arena = SC_ARENA_IN(scratch);
	struct meta_piece piece;
	uint64_t nr = 0;
	bool pads = false;
	int rc;

	*ret = false;
	for (int i = 0; i < s->entry->rule->nr_cuts; i++)
		pads |= s->entry->rule->cuts[i].pad != 0;
	if (!pads || s->entry->group)
		return 0;
	rc = meta_entry_piece(s->set->view, s->entry, coords, &arena, &piece, s->c->err);
	for (uint32_t i = 0; rc == 0 && i < piece.nr_boxes; i++)
		nr += meta_box_elements(&piece.boxes[i]);
	*ret = rc == 0 && nr == 0;
	sc_arena_done(&arena);
	return rc;
}

/* Finds the parts along an axis, at these indexes of the other ones, and reads the first bytes of each. */
static int read_along(struct suspicion *s, uint32_t coords[SC_AXES_MAX], int axis)
{
	int rc = 0;

	for (uint32_t i = 0; rc == 0 && i < s->set->view->topo->degree[axis]; i++) {
		struct along *x = &s->along[i];
		bool padding = false;
		uint64_t n;

		*x = (struct along){.like = i};
		coords[axis] = i;
		rc = find_part(s, coords, &x->part);
		n = rc == 0 && x->part.at ? sc_min_u64(rs_found_bytes(x->part.at), FIRST) : 0;
		if (n)
			rc = is_padding(s, coords, &padding);
		x->judged = rc == 0 && n && !padding;
		if (x->judged)
			rc = rs_commit_bytes(x->part.item, x->part.at->at, n, s->mine, s->c->err);
		if (x->judged && rc == 0)
			x->first = XXH3_128bits(s->mine, n);
	}
	coords[axis] = 0;
	return rc;
}

/* Notes the names of tensors of which the version has an optimizer's state, by the lines with `like`. */
static int note_params(struct suspicion *s)
{
	const struct meta_state *state = &s->c->state;
	struct sc_buf base = {0};
	int rc = 0;

	for (uint32_t i = 0; rc == 0 && i < state->nr; i++)
		rc = sc_map_put(&s->names, state->tensors[i].name, strlen(state->tensors[i].name), s);
	for (uint32_t i = 0; rc == 0 && i < state->nr; i++) {
		const struct meta_tensor *t = &state->tensors[i];
		struct meta_caps caps = {0};
		uint32_t at = 0;
		const struct meta_rule *r = meta_layout_next(s->c->layout, true, t->file, t->name, &at, &caps);
		const char *name;

		if (!r || !r->is_like)
			continue;
		sc_buf_reset(&base);
		meta_pattern_render(&r->base, &caps, &base);
		name = base.failed ? NULL : sc_arena_copy(&s->c->arena, base.text, base.bytes);
		if (name && strcmp(name, t->name) == 0)
			continue;
		if (!name || sc_map_put(&s->params, name, strlen(name), s) < 0 ||
		    sc_map_put(&s->params, t->name, strlen(t->name), s) < 0 ||
		    (sc_map_get(&s->names, name, strlen(name)) &&
		     sc_map_put(&s->based, t->name, strlen(t->name), s) < 0))
			rc = -1;
	}
	sc_buf_done(&base);
	s->has_params = true;
	return rc < 0 ? sc_nomem(s->c->err) : 0;
}

/* 1: the tensor is what an optimizer has of another one that is there; 0, or an error. */
static int is_based(struct suspicion *s)
{
	const char *name = s->set->state.tensors[s->entry->tensor].name;
	int rc = s->has_params ? 0 : note_params(s);

	return rc < 0 ? rc : sc_map_get(&s->based, name, strlen(name)) != NULL;
}

/* 1: two ranks' files are the same bytes; 0, or an error. */
static int is_copied(struct suspicion *s, const struct item *a, const struct item *b)
{
	int rc = 0;

	if (a == s->same[0] && b == s->same[1])
		return s->are_same;
	s->are_same = a->bytes == b->bytes;
	for (uint64_t at = 0, n; rc == 0 && s->are_same && at < a->bytes; at += n) {
		n = sc_min_u64(a->bytes - at, CHUNK);
		rc = rs_commit_bytes(a, at, n, s->mine, s->c->err);
		if (rc == 0)
			rc = rs_commit_bytes(b, at, n, s->theirs, s->c->err);
		s->are_same = rc == 0 && memcmp(s->mine, s->theirs, n) == 0;
	}
	s->same[0] = rc < 0 ? NULL : a;
	s->same[1] = b;
	return rc < 0 ? rc : s->are_same;
}

/* 1: that parts are equal says something; 0, or an error. */
static int is_judged(struct suspicion *s, const struct item *a, const struct item *b, unsigned changes)
{
	int rc = changes ? is_based(s) : 0;

	return rc > 0 ? is_copied(s, a, b) : rc < 0 ? rc : 1;
}

/* Finds the first part that is equal to another one, among those that begin with the same bytes. */
static int find_like(struct suspicion *s, int axis, struct along *x, unsigned *most)
{
	for (struct along *y = x->before; y; y = y->before) {
		const uint32_t i = (uint32_t)(x - s->along), k = (uint32_t)(y - s->along);
		unsigned changes;
		int rc;

		if (y->like != k || y->part.at == x->part.at || is_shared(s, axis, k, i) ||
		    !lie_alike(x->part.at, y->part.at))
			continue;
		rc = is_equal(s, &y->part, &x->part, &changes);
		if (rc > 0)
			rc = is_judged(s, y->part.item, x->part.item, changes);
		if (rc < 0)
			return rc;
		if (rc == 0)
			continue;
		x->like = k;
		if (changes > *most)
			*most = changes;
		return 0;
	}
	return 0;
}

/* Finds for each part the first one that is equal, and how much the most telling of the equal parts tells. */
static int compare_along(struct suspicion *s, int axis, unsigned *ret_most)
{
	struct sc_map by_first = {0};
	int rc = 0;

	*ret_most = 0;
	for (uint32_t i = 0; rc == 0 && i < s->set->view->topo->degree[axis]; i++) {
		struct along *x = &s->along[i];

		if (!x->judged)
			continue;
		x->before = sc_map_get(&by_first, (const char *)&x->first, sizeof(x->first));
		rc = find_like(s, axis, x, ret_most);
		if (rc == 0 && sc_map_put(&by_first, (const char *)&x->first, sizeof(x->first), x) < 0)
			rc = sc_nomem(s->c->err);
	}
	sc_map_done(&by_first);
	return rc;
}

static bool all_are_equal(const struct suspicion *s, int axis)
{
	for (uint32_t i = 0; i < s->set->view->topo->degree[axis]; i++)
		if (!s->along[i].judged || s->along[i].like)
			return false;
	return true;
}

/* 1: something but the bytes says that the tensor is one that the layout may cut; 0, or an error. */
static int is_proved(struct suspicion *s)
{
	const char *name = s->set->state.tensors[s->entry->tensor].name;
	int rc = 0;

	if (s->entry->group || is_named(s->entry->rule))
		return 1;
	if (!s->has_params)
		rc = note_params(s);
	return rc < 0 ? rc : sc_map_get(&s->params, name, strlen(name)) != NULL;
}

/* Compares the parts of a tensor along one axis; `coords` are the coordinates on all other axes.  *ret: they differ
 * (LOOK_CUT), are equal, which is suspicious (LOOK_EQUAL), or are equal and that proves little (LOOK_WEAK). */
static int look(struct suspicion *s, uint32_t coords[SC_AXES_MAX], int axis, enum look *ret)
{
	unsigned most = 0;
	int rc = read_along(s, coords, axis);

	*ret = LOOK_CUT;
	if (rc == 0)
		rc = compare_along(s, axis, &most);
	if (rc == 0 && most >= (s->element >= 4 ? TELLING_WIDE : TELLING)) {
		*ret = LOOK_EQUAL;
	} else if (rc == 0 && most) {
		rc = is_proved(s);
		*ret = rc == 0 ? LOOK_EQUAL : LOOK_CUT;
	}
	if (rc >= 0 && *ret == LOOK_CUT && all_are_equal(s, axis))
		*ret = LOOK_WEAK;
	return rc < 0 ? rc : 0;
}

/* Steps to the next indexes of some axes; false: those were the last. */
static bool step(const struct meta_topology *topo, uint32_t axes, uint32_t coords[SC_AXES_MAX])
{
	for (int i = 0; i < topo->nr_axes; i++) {
		if (!(axes & 1u << i))
			continue;
		if (++coords[i] < topo->degree[i])
			return true;
		coords[i] = 0;
	}
	return false;
}

/* Tells whether a tensor is the state of a layer that is no parameter, by the name that torch gives it: with a number
 * if there are several. */
static bool is_opaque(const struct meta_tensor *t)
{
	static const char end[] = "_extra_state";
	size_t n = strlen(t->name);

	while (n && t->name[n - 1] >= '0' && t->name[n - 1] <= '9')
		n--;
	return t->dtype == META_DTYPE_U8 && n >= sizeof(end) - 1 &&
	       memcmp(t->name + n - (sizeof(end) - 1), end, sizeof(end) - 1) == 0;
}

/* Explains what it may mean that parts are equal; that depends on which of them are. */
static const char *explain(struct suspicion *s, int axis, uint32_t i)
{
	const uint32_t d = s->set->view->topo->degree[axis];
	uint32_t nr = 0;
	bool neighbours, replicas;

	for (uint32_t k = 0; k < d; k++)
		nr += s->along[k].like == k;
	neighbours = replicas = d % nr == 0;
	for (uint32_t k = 0; k < d && (neighbours || replicas); k++) {
		neighbours = neighbours && s->along[k].like == k - k % (d / nr);
		replicas = replicas && s->along[k].like == k % nr;
	}
	if (neighbours)
		return sc_arena_printf(&s->arena, "if %" PRIu32 " neighbours share each part, as they share key heads, "
				       "write upto=%" PRIu32 " behind the cut", d / nr, nr);
	if (replicas)
		return sc_arena_printf(&s->arena, "if there are %" PRIu32 " replicas of %" PRIu32 " parts, as with "
				       "HSDP, cut by an axis that has %" PRIu32 " (of the preset fsdp2: dp_shard=%"
				       PRIu32 " in the topology)", d / nr, nr, nr, nr);
	return sc_arena_printf(&s->arena, "if rank %" PRIu32 " has a copy of the file of rank %" PRIu32 ", save it "
			       "again", s->along[i].part.rank, s->along[s->along[i].like].part.rank);
}

/* Writes lines for the layout, one for a whole tensor and one for parts. */
static const char *lines(struct suspicion *s, const char *name)
{
	struct sc_buf pattern = {0}, cuts = {0};
	bool simple = true;
	char *text = NULL;

	for (const char *at = name, *end; *at; at = end) {
		uint32_t number;

		end = at + (strcspn(at, ".") ? strcspn(at, ".") : 1);
		if (sc_number_parse(at, (size_t)(end - at), &number))
			sc_buf_add(&pattern, "*", 1);
		else
			sc_buf_add(&pattern, at, (size_t)(end - at));
	}
	for (int i = 0; i < s->entry->rule->nr_cuts; i++) {
		const struct meta_cut *cut = &s->entry->rule->cuts[i];

		simple = simple && !cut->flat && !cut->pad && !cut->size && cut->nr_sections == 1 && !cut->upto;
		if (simple)
			sc_buf_printf(&cuts, " %s=%d%s", cut->axes_text, cut->dim, cut->chunk ? " chunk" : "");
	}
	if (!pattern.failed && !cuts.failed && simple)
		text = sc_arena_printf(&s->arena, "'%s copy' if each rank has the whole tensor, or '%s%s' if these are "
				       "parts", pattern.text, pattern.text, cuts.text);
	else if (!pattern.failed)
		text = sc_arena_printf(&s->arena, "'%s copy' if each rank has the whole tensor; if these are parts, "
				       "write suspicious=accept to config", pattern.text);
	sc_buf_done(&pattern);
	sc_buf_done(&cuts);
	return text;
}

/* Refuses a tensor whose parts along an axis were just looked at. */
static int refuse(struct suspicion *s, int axis, enum look found)
{
	const struct meta_tensor *t = &s->set->state.tensors[s->entry->tensor];
	const uint32_t d = s->set->view->topo->degree[axis];
	const char *by = s->set->layout->axes.name[axis], *why;
	const struct part *first = &s->along[0].part, *last = &s->along[d - 1].part;
	char part[128], whole[128];
	uint32_t i = 0;

	while (found == LOOK_EQUAL && i + 1 < d && s->along[i].like == i)
		i++;
	if (found == LOOK_EQUAL && !all_are_equal(s, axis)) {
		first = &s->along[s->along[i].like].part;
		last = &s->along[i].part;
	}
	(void)meta_shape_text(&t->shape, whole, sizeof(whole));
	(void)meta_shape_text(&first->at->shape, part, sizeof(part));
	if (found == LOOK_WEAK) {
		why = lines(s, first->name);
		return !why ? sc_nomem(s->c->err) :
		       sc_fail(s->c->err, SC_E_STATE, "'%s:%s' is cut by %s in the layout, but ranks %u to %u wrote "
			       "equal parts %s, which tell too little to know parts from copies, and no rule names it: "
			       "write into the layout, above the line that has its rule, %s", first->file, first->name,
			       by, first->rank, last->rank, part, why);
	}
	if (all_are_equal(s, axis))
		return sc_fail(s->c->err, SC_E_STATE, "'%s:%s' is cut by %s in the layout, but ranks %u to %u wrote "
			       "equal parts %s, which would make one tensor %s: if each rank has the whole tensor, "
			       "write a rule with 'copy' for it; if these are parts, write suspicious=accept to "
			       "config", first->file, first->name, by, first->rank, last->rank, part, whole);
	why = explain(s, axis, i);
	return !why ? sc_nomem(s->c->err) :
	       sc_fail(s->c->err, SC_E_STATE, "'%s:%s' is cut by %s in the layout, but ranks %u and %u wrote equal "
		       "parts %s of one tensor %s: %s; if these are parts, write suspicious=accept to config",
		       first->file, first->name, by, first->rank, last->rank, part, whole, why);
}

static int refuse_opaque(struct suspicion *s, uint32_t coords[SC_AXES_MAX], int axis)
{
	const struct meta_topology *topo = s->set->view->topo;
	const struct meta_tensor *t = &s->set->state.tensors[s->entry->tensor];
	const char *name = s->set->layout->axes.name[axis];
	char part[128], whole[128];
	struct part first, last;
	int rc = find_part(s, coords, &first);

	if (rc < 0 || !first.at)
		return rc;
	coords[axis] = topo->degree[axis] - 1;
	rc = find_part(s, coords, &last);
	coords[axis] = 0;
	if (rc < 0)
		return rc;
	(void)meta_shape_text(&t->shape, whole, sizeof(whole));
	(void)meta_shape_text(&first.at->shape, part, sizeof(part));
	return sc_fail(s->c->err, SC_E_STATE, "'%s:%s' is bytes that only a layer can read, but the layout cuts it by "
		       "%s, so that ranks %u to %u wrote parts %s of one tensor %s: write a rule with 'copy' for it, "
		       "or with each=%s if it is not the same on each rank; if these are parts, write "
		       "suspicious=accept to config", first.file, first.name, name, first.rank, last.rank, part, whole,
		       name);
}

/* Judges the cuts of an entry by one axis. */
static int judge(struct suspicion *s, int axis, uint32_t others)
{
	const struct meta_topology *topo = s->set->view->topo;
	uint32_t coords[SC_AXES_MAX];
	enum look found;
	int rc;

	rs_commit_coords(s->set->view, s->entry, coords);
	if (is_opaque(&s->set->state.tensors[s->entry->tensor]))
		return refuse_opaque(s, coords, axis);
	do
		rc = look(s, coords, axis, &found);
	while (rc == 0 && found == LOOK_WEAK && step(topo, others, coords));
	if (rc == 0 && found == LOOK_WEAK)
		rc = is_proved(s);
	if (rc == 0 && found != LOOK_CUT)
		rc = refuse(s, axis, found);
	return rc < 0 ? rc : 0;
}

static int judge_entry(struct suspicion *s)
{
	const struct meta_topology *topo = s->set->view->topo;
	uint32_t axes = 0;
	int rc = 0;

	for (int i = 0; i < topo->nr_axes; i++)
		if (meta_entry_cut_axes(s->entry) & 1u << i && s->entry->fixed[i] == META_FREE && topo->degree[i] > 1 &&
		    !is_shared(s, i, 0, topo->degree[i] - 1))
			axes |= 1u << i;
	for (int i = 0; i < topo->nr_axes && rc == 0; i++)
		if (axes & 1u << i)
			rc = judge(s, i, axes & ~(1u << i));
	sc_arena_done(&s->arena);
	return rc;
}

int rs_commit_suspect(struct commit *c, const struct rs_set *set)
{
	struct suspicion s = {.c = c, .set = set, .mine = sc_sys.alloc(CHUNK), .theirs = sc_sys.alloc(CHUNK),
			      .along = sc_zalloc_array(set->view->topo->ranks, sizeof(*s.along))};
	int rc = s.mine && s.theirs && s.along ? 0 : sc_nomem(c->err);

	for (uint32_t i = 0; i < set->view->nr_entries && rc == 0; i++) {
		s.entry = &set->view->entries[i];
		s.element = meta_dtype_bits(set->state.tensors[s.entry->tensor].dtype) / 8;
		/* of what is joined: once; padding may be equal */
		if (s.element && !s.entry->behind && (!s.entry->group || s.entry->member == 0))
			rc = judge_entry(&s);
	}
	sc_sys.release(s.mine);
	sc_sys.release(s.theirs);
	sc_sys.release(s.along);
	sc_map_done(&s.names);
	sc_map_done(&s.params);
	sc_map_done(&s.based);
	sc_arena_done(&s.arena);
	return rc;
}
