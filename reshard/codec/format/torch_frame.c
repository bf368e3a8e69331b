/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Lays out a file that torch.load() takes: the objects of a payload, in which each tensor has its place, and a record
 * for each storage, in the order in which the objects name them.
 *
 * A rank may have other tensors than the one whose payload it is.  Those it has not are taken out: from a dict with
 * their key, from a list None stays.  Those that the payload has not are put where their name says, by name.  No two
 * tensors share a storage: where a topology cuts them differently, that would be wrong.
 */
#include "reshard/codec/format/torch_i.h"

#include <stdlib.h>
#include <string.h>
#include <xxhash.h>

#include "meta/base/limits.h"

#define PLACE 1		/* mark of a number that stands for the tensor of those wanted that it counts */
#define GONE_DEPTH 16

struct kind {
	enum meta_dtype dtype;
	const char *storage, *dtype_name;	/* one of both: the class of the storage, or a type that has none */
};

static const struct kind kinds[] = {
	{META_DTYPE_F64, "DoubleStorage", NULL}, {META_DTYPE_F32, "FloatStorage", NULL},
	{META_DTYPE_F16, "HalfStorage", NULL}, {META_DTYPE_BF16, "BFloat16Storage", NULL},
	{META_DTYPE_I64, "LongStorage", NULL}, {META_DTYPE_I32, "IntStorage", NULL},
	{META_DTYPE_I16, "ShortStorage", NULL}, {META_DTYPE_I8, "CharStorage", NULL},
	{META_DTYPE_U8, "ByteStorage", NULL}, {META_DTYPE_BOOL, "BoolStorage", NULL},
	{META_DTYPE_C64, "ComplexFloatStorage", NULL}, {META_DTYPE_U16, NULL, "uint16"},
	{META_DTYPE_U32, NULL, "uint32"}, {META_DTYPE_U64, NULL, "uint64"},
	{META_DTYPE_F8_E4M3, NULL, "float8_e4m3fn"}, {META_DTYPE_F8_E5M2, NULL, "float8_e5m2"},
	{META_DTYPE_F8_E4M3FNUZ, NULL, "float8_e4m3fnuz"}, {META_DTYPE_F8_E5M2FNUZ, NULL, "float8_e5m2fnuz"},
	{META_DTYPE_F8_E8M0, NULL, "float8_e8m0fnu"},
};

/* Where a tensor of those wanted is in the file. */
struct place {
	uint64_t record;		/* + 1; 0: not written yet */
	bool has_ref;
};

struct laying {
	const struct rs_wanted *wanted;
	uint32_t nr;
	struct rs_torch_payload payload;
	struct sc_arena arena;
	struct sc_buf text;		/* opcodes of a tensor; they are emitted before the next one's are made */
	struct rs_pickled tensor, parts[5], *order[5]; /* these, and between them words that every storage has */
	struct sc_map by_name;		/* index + 1; empty without a payload, which alone has names */
	struct place *places;
	struct sc_map folders;		/* dicts and the like, by their path */
	struct sc_map taken;		/* whatever there is, likewise; filled if a tensor has no place */
	struct {			/* in the order of the file: a tensor, or after these what is carried */
		uint64_t *at;
		size_t nr, room;
	} records;
	struct sc_err *err;
	int rc;				/* of rs_pickle_emit()'s callback, which has none */
};

static const struct kind *kind_of(enum meta_dtype dtype)
{
	for (size_t i = 0; i < sizeof(kinds) / sizeof(*kinds); i++)
		if (kinds[i].dtype == dtype)
			return &kinds[i];
	return NULL;
}

static uint64_t bytes_of(const struct rs_wanted *w)
{
	uint64_t bytes = 0;

	(void)meta_tensor_bytes(w->dtype, &w->shape, &bytes);
	return bytes;
}

static struct place *place_of(const struct laying *l, const struct rs_pickled_bytes *name)
{
	uintptr_t i = (uintptr_t)sc_map_get(&l->by_name, name->at, name->nr);

	return i ? &l->places[i - 1] : NULL;
}

static int refuse_place(struct laying *l, const char *name)
{
	return sc_fail(l->err, SC_E_UNSUPPORTED, "torch: tensor '%s' has no place among the objects of its file: "
		       "something else is there, or what should hold it is no dict", name);
}

/* --- tensors that the rank has not --- */

static bool is_missing(const struct laying *l, const struct rs_pickled *node)
{
	const struct rs_pickled *ref = rs_torch_ref_in(node);
	const struct rs_pickled_bytes *name = NULL;
	int64_t flags;

	return ref && rs_torch_ref(ref, &name, &flags) && !place_of(l, name);
}

enum { GONE = 1, STAYS };	/* marks of dicts */

/* Tells whether a node is a tensor that the rank has not, or a dict of nothing but such tensors, up to this depth,
 * which is enough. */
static bool is_gone(const struct laying *l, struct rs_pickled *node, int depth)
{
	if (node->kind != RS_PICKLED_DICT)
		return is_missing(l, node);
	if (node->mark == 0) {
		node->mark = STAYS; /* if it is in itself */
		const struct rs_pickled_cell *c = depth < GONE_DEPTH ? node->items.first : NULL;
		bool gone = c;

		for (; gone && c; c = c->next->next)
			gone = is_gone(l, c->next->node, depth + 1);
		node->mark = gone ? GONE : STAYS;
	}
	return node->mark == GONE;
}

static void drop_pairs(const struct laying *l, struct rs_pickled_items *items)
{
	struct rs_pickled_cell **at = &items->first, *last = NULL;

	while (*at) {
		struct rs_pickled_cell *value = (*at)->next;

		if (is_gone(l, value->node, 0)) {
			*at = value->next;
		} else {
			last = value;
			at = &value->next;
		}
	}
	items->last = last;
}

static bool is_object(const struct rs_pickled *n)
{
	return n->kind == RS_PICKLED_CALL || n->kind == RS_PICKLED_NEW;
}

static struct rs_pickled_items *pairs_of(struct rs_pickled *n)
{
	return n->kind == RS_PICKLED_DICT ? &n->items : is_object(n) ? &n->object->pairs : NULL;
}

/* Tells whether a node takes items by key.  An instance may, if its class is known, or if it had some. */
static bool is_mapping(const struct rs_pickled *n)
{
	const struct rs_pickled *what = is_object(n) ? n->object->what : NULL;

	return n->kind == RS_PICKLED_DICT || (what && n->object->pairs.first) ||
	       rs_pickled_is(what, "collections", "OrderedDict") || rs_pickled_is(what, "collections", "defaultdict");
}

/* Takes a node before its children: drops tensors that are not wanted, and notes the places of others, of dicts and of
 * lists. */
static int on_node(void *arg, struct rs_pickle_walk *walk, struct rs_pickled *n)
{
	struct laying *l = arg;
	const struct rs_pickled_bytes *name;
	struct rs_pickled **slot = rs_pickle_slot(walk);
	int64_t flags;
	bool may_hold;
	char *path;

	if (slot && is_gone(l, n, 0)) {
		*slot = rs_pickled_none(&l->arena);
		return *slot ? 1 : sc_nomem(l->err);
	}
	if (rs_torch_ref(n, &name, &flags)) {
		struct place *p = place_of(l, name);

		if (p)
			p->has_ref = true;
		/* else the file is one tensor, and another one is wanted */
		return p ? 1 : refuse_place(l, l->nr ? l->wanted[0].name : "");
	}
	may_hold = n->kind == RS_PICKLED_LIST || is_mapping(n);
	if (pairs_of(n))
		drop_pairs(l, pairs_of(n));
	if (!may_hold || rs_pickle_is_inside(walk))
		return 0;
	path = rs_pickle_path_in(walk, &l->arena, NULL);
	return !path || sc_map_put(&l->folders, path, strlen(path), n) < 0 ? sc_nomem(l->err) : 0;
}

/* --- tensors that the payload has not --- */

/* Makes the key for which a part of a path stands (rs_pickle_path()).  Behind the part is a slash or the path's end. */
static struct rs_pickled *key_of(struct laying *l, const char *text, size_t bytes)
{
	size_t sign = *text == '-';
	char *copy, *to;

	if (bytes > sign && strspn(text + sign, "0123456789") == bytes - sign)
		return rs_pickled_int(&l->arena, strtoll(text, NULL, 10));
	if (*text != '\'' && !memchr(text, '~', bytes))
		return rs_pickled_text(&l->arena, text, bytes);
	to = copy = sc_arena_copy(&l->arena, text, bytes);
	if (!copy)
		return NULL;
	for (const char *from = copy + (*copy == '\''); *from; from++)
		*to++ = *from == '~' && from[1] ? (*++from == '1' ? '/' : '~') : *from;
	return rs_pickled_text(&l->arena, copy, (size_t)(to - copy));
}

/* Puts a node where a path says that begins at `at` below `folder`. */
static int put_node(struct laying *l, struct rs_pickled *folder, const char *name, size_t at, struct rs_pickled *node)
{
	const size_t bytes = strlen(name + at);
	struct rs_pickled_items *pairs = pairs_of(folder);
	struct rs_pickled *key = key_of(l, name + at, bytes);
	uint64_t nr = 0;

	if (!key || !node)
		return sc_nomem(l->err);
	if (name[at] == '@' || name[at] == '#' || sc_map_get(&l->taken, name, strlen(name)))
		return refuse_place(l, name);
	if (folder->kind == RS_PICKLED_LIST) {
		for (const struct rs_pickled_cell *c = folder->items.first; c; c = c->next)
			nr++;
		if (key->kind != RS_PICKLED_INT || key->number < 0 || (uint64_t)key->number != nr)
			return refuse_place(l, name);
		return rs_pickled_add(&l->arena, &folder->items, node) ? 0 : sc_nomem(l->err);
	}
	return rs_pickled_add(&l->arena, pairs, key) && rs_pickled_add(&l->arena, pairs, node) ? 0 : sc_nomem(l->err);
}

/* Finds what holds a tensor, and makes dicts that are missing.  *ret_at: where the last part of its name begins. */
static int find_folder(struct laying *l, const char *name, struct rs_pickled **ret, size_t *ret_at)
{
	struct rs_pickled *at = sc_map_get(&l->folders, "", 0);
	size_t begin = 0;
	int rc = at ? 0 : refuse_place(l, name);

	for (const char *slash; rc == 0 && (slash = strchr(name + begin, '/')); begin = (size_t)(slash - name) + 1) {
		const size_t bytes = (size_t)(slash - name);
		struct rs_pickled *below = sc_map_get(&l->folders, name, bytes);
		char *path;

		if (!below && sc_map_get(&l->taken, name, bytes))
			return refuse_place(l, name);
		if (!below) {
			path = sc_arena_copy(&l->arena, name, bytes);
			below = rs_pickled_dict(&l->arena);
			if (!path || !below || sc_map_put(&l->folders, path, bytes, below) < 0)
				return sc_nomem(l->err);
			rc = put_node(l, at, path, begin, below);
		}
		at = below;
	}
	*ret = at;
	*ret_at = begin;
	return rc;
}

static struct rs_pickled *make_place(struct laying *l, const struct rs_wanted *w)
{
	struct rs_pickled *n = rs_pickled_int(&l->arena, w - l->wanted);

	if (n)
		n->mark = PLACE;
	return n;
}

static int by_name(const void *a, const void *b)
{
	return strcmp((*(const struct rs_wanted *const *)a)->name, (*(const struct rs_wanted *const *)b)->name);
}

/* Notes each place that a node has. */
static int on_taken(void *arg, struct rs_pickle_walk *walk, struct rs_pickled *n)
{
	struct laying *l = arg;
	char *path;

	if (rs_pickle_is_inside(walk))
		return 1;
	path = rs_pickle_path_in(walk, &l->arena, NULL);
	return !path || sc_map_put(&l->taken, path, strlen(path), n) < 0 ? sc_nomem(l->err) : 0;
}

static int add_missing(struct laying *l)
{
	const struct rs_wanted **missing = sc_arena_array(&l->arena, l->nr + 1, sizeof(*missing));
	size_t nr = 0;
	int rc = missing ? 0 : sc_nomem(l->err);

	for (uint32_t i = 0; rc == 0 && i < l->nr; i++)
		if (!l->places[i].has_ref)
			missing[nr++] = &l->wanted[i];
	if (nr) {
		qsort(missing, nr, sizeof(*missing), by_name);
		rc = rs_pickle_walk(&l->payload.pickle, on_taken, l, l->err);
	}
	for (size_t i = 0; rc == 0 && i < nr; i++) {
		const char *name = missing[i]->name;
		struct rs_pickled *folder = NULL;
		size_t at = 0;

		rc = find_folder(l, name, &folder, &at);
		if (rc == 0)
			rc = put_node(l, folder, name, at, make_place(l, missing[i]));
	}
	return rc;
}

/* --- what stands in the place of a reference --- */

/*
 * What CPython's pickler writes of a tensor: f(storage, 0, sizes, strides, grad, OrderedDict()[, dtype]), of which
 * `flags` may want the arguments alone; storage: ("storage", class, key, "cpu", elements).
 */
static struct rs_pickled *write_tensor(struct laying *l, const struct rs_wanted *w, uint64_t record, int64_t flags)
{
	const struct kind *k = kind_of(w->dtype);
	const uint64_t bytes = bytes_of(w);
	uint64_t stride[SC_DIMS_MAX], step = 1;
	struct sc_buf *t = &l->text;
	char key[21];
	size_t at;

	for (int i = w->shape.nr - 1; i >= 0; i--) {
		stride[i] = step;
		step *= w->shape.dim[i] ? w->shape.dim[i] : 1;
	}
	sc_buf_reset(t);
	if (!(flags & RS_REF_ARGS))
		rs_pickle_put_global(t, "torch._utils", k->storage ? "_rebuild_tensor_v2" : "_rebuild_tensor_v3");
	sc_buf_add(t, "((", 2);
	l->parts[0].bytes.nr = at = t->bytes;
	rs_pickle_put_global(t, k->storage ? "torch" : "torch.storage", k->storage ? k->storage : "UntypedStorage");
	rs_pickle_put_text(t, key, sc_decimal(record, key));
	l->parts[2].bytes.nr = t->bytes - at;
	at = t->bytes;
	rs_pickle_put_int(t, (int64_t)(k->storage ? bytes / (meta_dtype_bits(w->dtype) / 8) : bytes));
	sc_buf_add(t, "tQ", 2);
	rs_pickle_put_int(t, 0);
	rs_pickle_put_sizes(t, w->shape.nr, w->shape.dim);
	rs_pickle_put_sizes(t, w->shape.nr, stride);
	sc_buf_byte(t, flags & RS_REF_GRAD ? '\x88' : '\x89');
	rs_pickle_put_global(t, "collections", "OrderedDict");
	sc_buf_add(t, ")R", 2);
	if (!k->storage)
		rs_pickle_put_global(t, "torch", k->dtype_name);
	sc_buf_add(t, "tR", flags & RS_REF_ARGS ? 1 : 2);
	l->parts[4].bytes.nr = t->bytes - at;
	l->parts[0].bytes.at = t->text; /* which has moved while it grew */
	l->parts[2].bytes.at = l->parts[0].bytes.at + l->parts[0].bytes.nr;
	l->parts[4].bytes.at = l->parts[2].bytes.at + l->parts[2].bytes.nr;
	return t->failed ? NULL : &l->tensor;
}

static int add_record(struct laying *l, uint64_t what, uint64_t *ret)
{
	*ret = l->records.nr;
	return sc_vec_push(&l->records, what) < 0 ? sc_nomem(l->err) : 0;
}

static struct rs_pickled *place_tensor(struct laying *l, struct place *p, int64_t flags)
{
	const uint32_t i = (uint32_t)(p - l->places);

	if (!p->record) {
		l->rc = add_record(l, i, &p->record);
		p->record++;
	}
	return l->rc == 0 ? write_tensor(l, &l->wanted[i], p->record - 1, flags) : NULL;
}

/* Places a storage of the payload: its key is its number there, and becomes its number in the file. */
static struct rs_pickled *place_storage(struct laying *l, struct rs_pickled *n)
{
	struct rs_torch_carried *c;
	uint64_t record;

	l->rc = rs_torch_carried_of(&l->payload, n, &c, l->err);
	if (l->rc == 0 && !c->record) {
		l->rc = add_record(l, l->nr + (uint64_t)(c - l->payload.carried), &record);
		c->record = record + 1;
	}
	return l->rc < 0 ? NULL : rs_torch_number(&l->arena, n->id, c->record - 1);
}

/* Is called for a node when all before it is written. */
static struct rs_pickled *replace(void *arg, struct rs_pickled *n)
{
	struct laying *l = arg;
	const struct rs_pickled_bytes *name;
	struct rs_pickled *made;
	struct place *p = NULL;
	int64_t flags = 0;

	if (n->kind == RS_PICKLED_INT && n->mark == PLACE)
		p = &l->places[n->number];
	if (l->rc < 0 || (!p && n->kind != RS_PICKLED_PERSIST))
		return n;
	if (!p && rs_torch_ref(n, &name, &flags))
		p = place_of(l, name);
	made = p ? place_tensor(l, p, flags) : place_storage(l, n);
	if (!made && l->rc == 0)
		l->rc = sc_nomem(l->err);
	return made ? made : n;
}

/* --- the file --- */

static void add_id(struct rs_zip_frame *z, const struct sc_buf *pickle)
{
	XXH128_hash_t hash = XXH3_128bits(pickle->text, pickle->bytes);
	unsigned __int128 x = (unsigned __int128)hash.high64 << 64 | hash.low64;
	char id[40];

	for (int i = sizeof(id) - 1; i >= 0; i--, x /= 10)
		id[i] = (char)('0' + (int)(x % 10));
	rs_zip_frame_record(z, ".data/serialization_id", id, sizeof(id));
}

void rs_torch_begin(struct rs_zip_frame *z, const struct sc_buf *pickle)
{
	rs_zip_frame_record(z, "data.pkl", pickle->text, pickle->bytes);
	rs_zip_frame_record(z, "byteorder", "little", 6);
	rs_zip_frame_record(z, "version", "3\n", 2);
	add_id(z, pickle);
}

#define NAME_BYTES (sizeof("data/") + 20)
/* Names the record of a storage. */
static void name_record(uint64_t number, char ret[NAME_BYTES])
{
	memcpy(ret, "data/", 5);
	(void)sc_decimal(number, ret + 5);
}

void rs_torch_record(struct rs_zip_frame *z, uint64_t number, const char *data, uint64_t bytes)
{
	char name[NAME_BYTES];

	name_record(number, name);
	rs_zip_frame_record(z, name, data, bytes);
}

static int make_frame(struct laying *l, struct rs_frame *ret)
{
	struct rs_zip_frame z = {0};
	struct sc_buf pickle = {0};
	int rc = rs_pickle_emit(l->payload.pickle.root, replace, l, &pickle, l->err);

	if (l->rc < 0)
		rc = l->rc;
	if (rc < 0) {
		sc_buf_done(&pickle);
		return rc;
	}
	rs_torch_begin(&z, &pickle);
	for (size_t i = 0; i < l->records.nr; i++) {
		const uint64_t what = l->records.at[i];
		const struct rs_torch_carried *c = what < l->nr ? NULL : &l->payload.carried[what - l->nr];
		char name[NAME_BYTES];

		if (c) {
			rs_torch_record(&z, i, c->data, c->bytes);
			continue;
		}
		name_record(i, name);
		rs_zip_frame_tensor(&z, name, (uint32_t)what, bytes_of(&l->wanted[what]), l->wanted[what].skew);
	}
	sc_buf_done(&pickle);
	return rs_zip_frame_end(&z, ret, l->err);
}

static void make_parts(struct laying *l)
{
	for (int i = 0; i < 5; i++) {
		l->parts[i].kind = i % 2 ? RS_PICKLED_TEXT : RS_PICKLED_WRITTEN;
		l->order[i] = &l->parts[i];
	}
	l->parts[1].bytes = (struct rs_pickled_bytes){"storage", 7};
	l->parts[3].bytes = (struct rs_pickled_bytes){"cpu", 3};
	l->tensor.kind = RS_PICKLED_ROW;
	l->tensor.tuple.at = l->order;
	l->tensor.tuple.nr = 5;
	l->tensor.is_single = true;
}

static int note_wanted(struct laying *l, bool by_name)
{
	l->places = sc_arena_array(&l->arena, l->nr + 1, sizeof(*l->places));
	make_parts(l);
	if (!l->places || (by_name && sc_map_reserve(&l->by_name, l->nr) < 0))
		return sc_nomem(l->err);
	for (uint32_t i = 0; i < l->nr; i++) {
		const struct rs_wanted *w = &l->wanted[i];

		if (!kind_of(w->dtype))
			return sc_fail(l->err, SC_E_UNSUPPORTED, "torch has no type %s, which tensor '%s' has",
				       meta_dtype_name(w->dtype), w->name);
		if (by_name && sc_map_put(&l->by_name, w->name, strlen(w->name), (void *)(uintptr_t)(i + 1)) < 0)
			return sc_nomem(l->err);
	}
	return 0;
}

/* Lays out a file, of tensors and of what the file is without them: a payload, a dict, or (`bare`) nothing, as the file
 * is one tensor. */
static int lay_out(const struct rs_wanted *wanted, uint32_t nr, const char *payload, size_t payload_bytes, bool bare,
		   struct rs_frame *ret, struct sc_err *err)
{
	struct laying l = {.wanted = wanted, .nr = nr, .err = err};
	int rc = note_wanted(&l, payload);

	if (rc == 0 && payload) {
		rc = rs_torch_payload_read(payload, payload_bytes, &l.arena, &l.payload, err);
	} else if (rc == 0) {
		l.payload.pickle.root = bare ? make_place(&l, wanted) : rs_pickled_dict(&l.arena);
		rc = l.payload.pickle.root ? 0 : sc_nomem(err);
	}
	if (rc == 0)
		rc = rs_pickle_walk(&l.payload.pickle, on_node, &l, err);
	if (rc == 0 && !bare)
		rc = add_missing(&l);
	if (rc == 0)
		rc = make_frame(&l, ret);
	sc_map_done(&l.by_name);
	sc_map_done(&l.folders);
	sc_map_done(&l.taken);
	sc_vec_done(&l.records);
	if (payload)
		rs_pickle_done(&l.payload.pickle);
	sc_buf_done(&l.text);
	sc_arena_done(&l.arena);
	return rc;
}

int rs_torch_describe(const struct rs_wanted *wanted, uint32_t nr, const char *payload, size_t payload_bytes,
		      struct rs_frame *ret, struct sc_err *err)
{
	return lay_out(wanted, nr, payload, payload_bytes, false, ret, err);
}

int rs_torch_describe_one(const struct rs_wanted *wanted, struct rs_frame *ret, struct sc_err *err)
{
	return lay_out(wanted, 1, NULL, 0, true, ret, err);
}
