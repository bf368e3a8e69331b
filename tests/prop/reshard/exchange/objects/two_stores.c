/* SPDX-License-Identifier: Apache-2.0 */
#include "tests/prop/reshard/exchange/objects/two_stores.h"

#include <errno.h>
#include <inttypes.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include <xxhash.h>
/* cmocka wants some of the above first */
#include <cmocka.h>

#include "meta/catalog/nodes.h"
#include "reshard/engine/io/image.h"
#include "reshard/worktree/rebase/turn_i.h"
#include "tests/prop/files.h"
#include "tests/prop/pick.h"

struct node nodes[NODES];

/* --- stores --- */

static void make_catalog(struct node *n, uint64_t root)
{
	struct meta_job_row job = {.name = "j", .mode = 0755, .uid = geteuid(), .gid = getegid(), .made_ns = 12345,
				   .root = root};
	struct meta_catalog *c;
	struct sc_err err;
	char path[100];

	(void)snprintf(path, sizeof(path), "%s/scalai.db", n->dir);
	good(meta_catalog_open(path, true, &c, &err), err);
	good(meta_numbers_of_node(c, n->number, &err), err);
	good(meta_job_add(c, &job, &err), err);
	meta_catalog_close(c);
}

static void start(struct node *n)
{
	struct rs_options options = {.store = n->dir, .quiet_worker = true};
	struct sc_err err;

	good(rs_service_new(&options, &n->s, &err), err);
	n->job = rs_job_by_name(n->s, "j");
	assert_non_null(n->job);
}

void open_node(struct node *n, uint64_t root)
{
	n->number = (uint32_t)(n - nodes) + 1;
	(void)snprintf(n->dir, sizeof(n->dir), "%s/scalai-node.XXXXXX", access("/dev/shm", W_OK) == 0 ? "/dev/shm" : "/tmp");
	assert_non_null(mkdtemp(n->dir));
	make_catalog(n, root);
	start(n);
}

void restart_node(struct node *n)
{
	rs_service_free(n->s);
	start(n);
}

void close_node(struct node *n)
{
	char clean[100];

	rs_service_free(n->s);
	(void)snprintf(clean, sizeof(clean), "rm -rf %s", n->dir);
	assert_int_equal(0, system(clean));
}

/* --- objects --- */

static struct {
	struct sc_map by_name;
	struct sc_arena arena;
} store;
unsigned objects_put, objects_got;
void (*spoil)(struct sc_buf *object);
bool any_name;
static uint8_t asked[RS_OBJECT_NAME_BYTES];

/* No SHA-256, but as long. */
static int name_of(void *arg, const void *at, size_t bytes, uint8_t ret[RS_OBJECT_NAME_BYTES], struct sc_err *err)
{
	XXH128_canonical_t half;

	(void)arg;
	(void)err;
	for (int i = 0; i < 2; i++) {
		XXH128_canonicalFromHash(&half, XXH3_128bits_withSeed(at, bytes, (XXH64_hash_t)i));
		memcpy(ret + 16 * i, half.digest, 16);
	}
	if (any_name)
		memcpy(ret, asked, RS_OBJECT_NAME_BYTES);
	return 0;
}

static int put(void *arg, const uint8_t name[RS_OBJECT_NAME_BYTES], const void *at, size_t bytes, struct sc_err *err)
{
	struct meta_bytes *is = sc_map_get(&store.by_name, (const char *)name, RS_OBJECT_NAME_BYTES);

	(void)arg;
	(void)err;
	assert_in_range(bytes, 1, RS_OBJECT_BYTES_MAX);
	objects_put++;
	if (is && is->nr) {
		assert_int_equal(is->nr, bytes);
		assert_memory_equal(is->at, at, bytes);
		return 0;
	}
	is = sc_arena_alloc(&store.arena, sizeof(*is));
	*is = (struct meta_bytes){sc_arena_copy(&store.arena, at, bytes), bytes};
	return sc_map_put(&store.by_name, sc_arena_copy(&store.arena, (const char *)name, RS_OBJECT_NAME_BYTES),
			  RS_OBJECT_NAME_BYTES, is);
}

static int get(void *arg, const uint8_t name[RS_OBJECT_NAME_BYTES], struct sc_buf *to, struct sc_err *err)
{
	const struct meta_bytes *is = sc_map_get(&store.by_name, (const char *)name, RS_OBJECT_NAME_BYTES);
	struct sc_buf object = {0};

	(void)arg;
	objects_got++;
	if (!is || !is->nr)
		return sc_fail(err, SC_E_NOT_FOUND, "there is no such object");
	memcpy(asked, name, sizeof(asked));
	sc_buf_add(&object, is->at, is->nr);
	if (spoil)
		spoil(&object);
	sc_buf_add(to, object.text, object.bytes);
	sc_buf_done(&object);
	return 0;
}

const struct rs_object_ops in_memory = {.name = name_of, .put = put, .get = get};

static void remove_object(const struct rs_object_name *name)
{
	struct meta_bytes *is = sc_map_get(&store.by_name, (const char *)name->at, RS_OBJECT_NAME_BYTES);

	assert_non_null(is);
	is->nr = 0;
}

void forget_objects(void)
{
	sc_map_done(&store.by_name);
	sc_arena_done(&store.arena);
}

static int on_nr(void *arg, const struct meta_version_row *row)
{
	*(uint64_t *)arg = row->id;
	return 0;
}

static struct meta_catalog *catalog(struct node *n)
{
	return n->s->catalog;
}

void put_head(struct node *n, struct rs_object_name *ret)
{
	struct rs_object_names sets = {0};
	struct sc_err err;
	uint64_t id = 0;
	int rc;

	good(meta_version_each(catalog(n), rs_job_id(n->job), on_nr, &id, &err), err);
	good(meta_catalog_begin(catalog(n), false, &err), err);
	rc = rs_objects_put(n->s, id, n->number, NULL, &in_memory, NULL, ret->at, &sets, &err);
	good(meta_catalog_end(catalog(n), rc, &err), err);
	for (size_t i = 0; i < sets.nr; i++) {
		struct meta_object o;

		assert_int_equal(1, meta_object_named(catalog(n), META_OBJECT_SET, sets.at[i].at, &o, &err));
	}
	sc_vec_done(&sets);
}

static int take_id(struct node *n, const struct rs_object_name *name, uint64_t *ret_id, struct sc_err *err)
{
	int rc = meta_catalog_begin(catalog(n), false, err);

	assert_int_equal(0, rc);
	rc = rs_objects_take(n->s, n->job, name->at, n->number, false, NULL, &in_memory, NULL, ret_id, err);
	if (rc == 0)
		rc = meta_job_set_head(catalog(n), rs_job_id(n->job), *ret_id, err);
	return meta_catalog_end(catalog(n), rc, err);
}

static int on_complaint(void *arg, uint64_t id, const char *text, const char *extra)
{
	(void)arg;
	(void)id;
	(void)extra;
	broken("an object was taken, and now: %s", text);
	return 0;
}

int try_take(struct node *n, const struct rs_object_name *name, struct sc_err *err)
{
	struct sc_err undone;
	uint64_t id;
	int rc;

	good(meta_catalog_begin(catalog(n), false, err), *err);
	rc = rs_objects_take(n->s, n->job, name->at, n->number, false, NULL, &in_memory, NULL, &id, err);
	assert_true(rc == 0 || rc == err->code);
	if (rc == 0)
		good(meta_catalog_check(catalog(n), on_complaint, NULL, &undone), undone);
	assert_int_equal(SC_E_CANCELLED, meta_catalog_end(catalog(n), SC_E_CANCELLED, &undone));
	return rc;
}

int take(struct node *n, const struct rs_object_name *name, struct sc_err *err)
{
	struct rs_version *v;
	struct rs_view *view;
	struct rs_below *below;
	uint64_t id, number;
	int rc = take_id(n, name, &id, err);

	if (rc < 0)
		return rc;
	good(rs_version_load(n->s, id, &v, err), *err);
	good(meta_view_own(catalog(n), id, &number, err), *err);
	good(rs_view_new(n->job, v, number, &v->topo, &view, err), *err);
	good(rs_view_below(view, &below, err), *err);
	view->own = true;
	rs_tree_show(n->job, view);
	return 0;
}

/* --- bytes --- */

static struct node *reading;	/* the node of which a view is read, or that carries out a command */

/* The node that has a blob, and its number there. */
static struct node *where(struct node *n, uint64_t blob, uint64_t *ret_number)
{
	uint32_t number;
	struct sc_err err;
	int away = meta_blob_away(catalog(n), blob, &number, ret_number, &err);

	good(away, err);
	if (away) {
		assert_in_range(number, 1, NODES);
		return &nodes[number - 1];
	}
	*ret_number = blob;
	return n;
}

/* Sources are in the blobs of the nodes that have them. */
static int place(void *arg, struct rs_gather *gathers, uint32_t nr, struct rs_sources *sources, struct sc_err *err)
{
	struct rs_origins o = rs_origins_of(reading->s, arg);

	(void)gathers;
	(void)nr;
	for (size_t i = 0; i < sources->nr; i++) {
		struct rs_source *s = &sources->at[i];
		const struct rs_found_tensor *t;
		uint64_t blob, bytes, number;
		struct rs_blob *b;
		struct node *at;

		assert_true(s->rank != RS_NO_RANK && o.blob_of(arg, s->view, s->rank, s->file, &blob, &bytes));
		at = where(reading, blob, &number);
		good(rs_blob_get(at->s->blobs, number, o.format_of(arg, s->view), bytes, &b, err), *err);
		t = rs_found_tensor(&b->found, s->name);
		assert_non_null(t);
		s->place = (struct rs_place){&rs_source_local, at->s->blobs, number, bytes, t->at};
		rs_blob_put(at->s->blobs, b);
	}
	return 0;
}

static uint64_t hash_blob(struct node *n, uint64_t blob, uint64_t bytes)
{
	uint64_t number;
	struct node *at = where(n, blob, &number);
	char *to = calloc(1, bytes + 1);
	uint64_t hash;
	struct sc_err err;
	int fd;

	good(meta_store_open_blob(rs_service_store(at->s), number, bytes, &fd, &err), err);
	assert_int_equal(bytes, pread(fd, to, bytes, 0));
	(void)close(fd);
	hash = XXH3_64bits(to, bytes);
	free(to);
	return hash;
}

void read_on(struct node *n)
{
	reading = n;
}

static uint64_t hash_image(struct node *n, struct rs_view *view, const struct rs_look *look, const char *path)
{
	unsigned char *to = calloc(1, look->bytes + 1);
	struct rs_image *im;
	uint64_t hash;
	struct sc_err err;

	read_on(n);
	view->origins.place = place;
	good(rs_view_image(n->s, view, look->rank, path, false, true, &im, &err), err);
	assert_int_equal(look->bytes, im->bytes);
	if (!im->same_as)
		good(rs_image_fetch(im, 0, im->bytes, to, &err), err);
	hash = im->same_as ? hash_blob(n, im->same_as, im->bytes) : XXH3_64bits(to, im->bytes);
	rs_image_unref(n->s, im);
	files_read++;
	free(to);
	return hash;
}

/* --- a view as text --- */

struct telling {
	struct node *n;
	struct rs_view *view, *of;	/* of: its files are this view's */
	uint32_t rank;
	const char *folder;
	struct sc_buf text;
	char names[64][256];
	size_t nr;
};

static int on_name_of(void *arg, const char *name, mode_t type)
{
	struct telling *t = arg;

	(void)type;
	assert_true(t->nr < 64);
	(void)snprintf(t->names[t->nr++], sizeof(t->names[0]), "%s", name);
	return 0;
}

static int by_name(const void *a, const void *b)
{
	return strcmp(a, b);
}

static void tell_xattrs(struct telling *t, const char *path)
{
	struct sc_buf names = {0};
	struct sc_err err;

	good(rs_view_xattrs(t->of, t->rank, path, &names, &err), err);
	for (const char *name = names.text; name && name < names.text + names.bytes; name += strlen(name) + 1) {
		struct sc_buf value = {0};

		good(rs_view_xattr(t->of, t->rank, path, (struct meta_bytes){name, strlen(name)}, &value, &err), err);
		sc_buf_printf(&t->text, " %s=%s", name, value.text ? value.text : "");
		sc_buf_done(&value);
	}
	sc_buf_done(&names);
}

static void tell_path(struct telling *t, const char *path, int depth)
{
	struct telling below = {.n = t->n, .view = t->view, .of = t->of, .rank = t->rank};
	struct rs_look look;
	struct sc_err err;

	good(rs_look(t->n->s, t->n->job, t->view, t->rank, path, &look, &err), err);
	sc_buf_printf(&t->text, "%d '%s' kind %d type %o mode %o %u:%u links %u bytes %" PRIu64 " times %" PRId64 " %" PRId64
		      " %" PRId64, (int)t->rank, path, look.kind, look.type, look.owner.mode, look.owner.uid, look.owner.gid,
		      look.nlink, look.bytes, look.atime_ns, look.mtime_ns, look.ctime_ns);
	/* real ones are the same on all nodes */
	if (!t->view)
		sc_buf_printf(&t->text, " number %" PRIu64, look.ino < META_VIRTUAL ? look.ino : META_VIRTUAL);
	if (look.kind == RS_BLOB)
		sc_buf_printf(&t->text, " hash %" PRIx64, hash_blob(t->n, look.blob, look.bytes));
	if (look.kind == RS_VIEW)
		sc_buf_printf(&t->text, " hash %" PRIx64, hash_image(t->n, t->of, &look, path));
	if (look.kind == RS_LINK && t->view) {
		sc_buf_printf(&t->text, " -> ");
		good(rs_view_link(t->n->s, t->view, t->rank, path, &t->text, &err), err);
	}
	if (t->view && look.kind != RS_NONE)
		tell_xattrs(t, path);
	sc_buf_printf(&t->text, "\n");
	if (look.kind != RS_DIR || depth == 4)
		return;
	good(rs_list(t->n->s, t->n->job, t->view, t->rank, path, on_name_of, &below, &err), err);
	qsort(below.names, below.nr, sizeof(below.names[0]), by_name);
	for (size_t i = 0; i < below.nr; i++) {
		char more[600];

		/* ranks are in the job's folder */
		if (t->rank == RS_SHARED && !*path && strspn(below.names[i], "0123456789") == strlen(below.names[i]))
			continue;
		(void)snprintf(more, sizeof(more), "%s%s%s", path, *path ? "/" : "", below.names[i]);
		tell_path(&below, more, depth + 1);
	}
	sc_buf_add(&t->text, below.text.text, below.text.bytes);
	sc_buf_done(&below.text);
}

char *text_of(struct node *n, struct rs_view *view)
{
	struct telling *t = calloc(1, sizeof(*t));
	struct rs_view *of = view;
	struct sc_err err;
	char *text;

	if (!view)
		good(rs_view_head(n->s, n->job, &of, &err), err);
	*t = (struct telling){.n = n, .view = view, .of = of};
	sc_buf_printf(&t->text, "topology %s\n", of->topo.text);
	for (t->rank = 0; t->rank < of->topo.ranks; t->rank++)
		tell_path(t, "", 0);
	t->rank = RS_SHARED;
	tell_path(t, "", 0);
	if (!view)
		rs_view_unref(n->s, of);
	text = t->text.text;
	free(t);
	/* they read blobs of other nodes */
	rs_images_forget(n->s, NULL);
	return text;
}

/* --- versions that are dropped --- */

static int get_noting(void *names, const uint8_t name[RS_OBJECT_NAME_BYTES], struct sc_buf *to, struct sc_err *err)
{
	struct rs_object_name x;

	memcpy(x.at, name, sizeof(x.at));
	assert_int_equal(0, sc_vec_push((struct rs_object_names *)names, x));
	return in_memory.get(NULL, name, to, err);
}

/* Appends the names of all that a version is made of, but for what stays. */
static void names_of(const struct rs_object_name *version, const struct rs_object_names *stay, struct rs_object_names *ret)
{
	const struct rs_object_ops ops = {.name = in_memory.name, .put = in_memory.put, .get = get_noting};
	struct rs_object_parts parts = {0};
	struct rs_object_links found = {0};
	struct sc_err err;

	assert_int_equal(0, sc_vec_push(&found, ((struct rs_object_link){*version, RS_OBJECT_VERSION})));
	while (found.nr) {
		const struct rs_object_link link = found.at[--found.nr];

		if (!stay->nr || !bsearch(&link.name, stay->at, stay->nr, sizeof(link.name), rs_object_name_order))
			good(rs_objects_named_by(&link, &ops, ret, &found, &parts, &err), err);
	}
	sc_vec_done(&parts);
	sc_vec_done(&found);
}

void remove_versions(const struct rs_object_names *versions, struct node *from, struct node *n)
{
	const struct rs_object_names none = {0};
	struct rs_object_names stay = {0}, go = {0}, stays = {0};
	struct sc_err err;

	for (size_t i = 0; i < versions->nr; i++)
		if (pick(2) || i + 1 == versions->nr) {
			assert_int_equal(0, sc_vec_push(&stays, versions->at[i]));
			names_of(&versions->at[i], &none, &stay);
		}
	qsort(stay.at, stay.nr, sizeof(*stay.at), rs_object_name_order);
	for (size_t i = 0; i < versions->nr; i++)
		if (!bsearch(&versions->at[i], stay.at, stay.nr, sizeof(*stay.at), rs_object_name_order))
			names_of(&versions->at[i], &stay, &go);
	for (size_t i = 0; i < go.nr; i++)
		remove_object(&go.at[i]);
	note("%zu of %zu versions are left, %zu objects are removed\n", stays.nr, versions->nr, go.nr);
	for (size_t i = 0; i < stays.nr; i += 1 + pick(4)) {
		open_node(n, from->job->root);
		good(try_take(n, &stays.at[i], &err), err);
		close_node(n);
	}
	sc_vec_done(&stay);
	sc_vec_done(&stays);
	sc_vec_done(&go);
}

bool lacks_padding(struct node *n)
{
	struct rs_view *view;
	bool lacks = false;
	struct sc_err err;
	uint64_t number;

	good(rs_view_head(n->s, n->job, &view, &err), err);
	for (size_t i = 0; i < view->version->nr_sets; i++)
		for (size_t k = 0; k < view->version->sets[i]->nr_blobs; k++) {
			const struct rs_set_blob *b = &view->version->sets[i]->blobs[k];

			lacks |= meta_file_is_hidden(b->path) && where(n, b->blob, &number) != n;
		}
	rs_view_unref(n->s, view);
	return lacks;
}
