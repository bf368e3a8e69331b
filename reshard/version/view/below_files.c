/* SPDX-License-Identifier: Apache-2.0 */
/* Finds by path what a view shows: the files of its sets and datasets, in a table for each rank that somebody looks
 * at. */
#include "reshard/version/view/below_i.h"

#include <inttypes.h>
#include <string.h>
#include <sys/stat.h>

#include "meta/base/text.h"

#define KEY(number) (const char *)&(number), sizeof(number)

/* --- the table of a rank --- */

struct filling {
	struct rs_below *b;
	struct rs_rank_files *t;
	struct sc_err *err;
};

static struct rs_below_folder *folder_of(struct rs_rank_files *t, const char *path, size_t bytes, bool *ret_new)
{
	struct rs_below_folder *f = sc_map_get(&t->folders, path, bytes);

	*ret_new = !f;
	if (f)
		return f;
	f = sc_arena_alloc(&t->arena, sizeof(*f) + bytes + 1);
	if (!f)
		return NULL;
	memcpy(f->path, path, bytes);
	return sc_map_put(&t->folders, f->path, bytes, f) < 0 ? NULL : f;
}

/* Puts the last component of a path (of so many bytes) into its folder, and that one into its own. */
static int add_name(struct rs_rank_files *t, const char *path, size_t bytes, bool is_folder)
{
	for (;;) {
		const char *slash = memrchr(path, '/', bytes);
		size_t above = slash ? (size_t)(slash - path) : 0, at = slash ? above + 1 : 0;
		bool is_new;
		struct rs_below_folder *f = folder_of(t, path, above, &is_new);

		if (!f || sc_vec_push(f, (struct meta_bytes){path + at, bytes - at}) < 0)
			return SC_E_NO_MEMORY;
		f->folders += is_folder;
		if (!is_new || !above)
			return 0;
		bytes = above;
		is_folder = true;
	}
}

/* Tells whether no file can be at a path: it is a folder on the way to another file, or lies below a file.  Files of
 * tensors come before those of datasets, so they are the ones that are shown. */
static bool is_in_the_way(const struct rs_rank_files *t, const char *path, size_t bytes)
{
	if (sc_map_get(&t->folders, path, bytes))
		return true;
	for (const char *at = strchr(path, '/'); at; at = strchr(at + 1, '/'))
		if (sc_map_get(&t->files, path, (size_t)(at - path)))
			return true;
	return false;
}

static int add_file(struct filling *f, const char *path, bool data)
{
	struct rs_rank_files *t = f->t;
	size_t n = strlen(path);
	struct rs_below_file *file;

	if (sc_map_get(&t->files, path, n) || is_in_the_way(t, path, n))
		return 0;
	file = sc_arena_alloc(&t->arena, sizeof(*file) + n + 1);
	if (!file)
		return SC_E_NO_MEMORY;
	file->data = data;
	memcpy(file->path, path, n);
	if (sc_map_put(&t->files, file->path, n, file) < 0)
		return SC_E_NO_MEMORY;
	return add_name(t, file->path, n, false);
}

static int on_tensors(void *arg, const char *file)
{
	struct filling *f = arg;

	return add_file(f, file, false) < 0 ? sc_nomem(f->err) : 0;
}

static int on_data(void *arg, const char *path)
{
	return add_file(arg, path, true);
}

static int fill(struct filling *f)
{
	struct rs_view *view = f->b->view;
	const struct rs_formed x = rs_view_formed(view);
	int rc;

	if (f->t->rank == RS_SHARED)
		return 0;
	rc = rs_form_files(view->form, &x, f->t->rank, on_tensors, f, f->err);
	if (rc == 0 && !view->form->tensors_alone)
		rc = rs_data_names(view, on_data, f) < 0 ? sc_nomem(f->err) : 0;
	return rc;
}

static void table_done(struct rs_rank_files *t)
{
	for (size_t i = 0; i < t->folders.room; i++) {
		struct rs_below_folder *f = t->folders.slots[i].value;

		if (f)
			sc_vec_done(f);
	}
	sc_map_done(&t->files);
	sc_map_done(&t->folders);
	sc_arena_done(&t->arena);
	sc_sys.release(t);
}

int rs_rank_files(struct rs_below *b, uint32_t rank, const struct rs_rank_files **ret, struct sc_err *err)
{
	struct rs_rank_files *t, *other;
	int rc;

	(void)pthread_mutex_lock(&b->lock);
	t = sc_map_get(&b->tables, KEY(rank));
	(void)pthread_mutex_unlock(&b->lock);
	*ret = t;
	if (t)
		return 0;
	t = sc_zalloc(sizeof(*t));
	if (!t)
		return sc_nomem(err);
	t->rank = rank;
	t->rows = rs_below_source(b, b->view->version->layout, &b->view->topo, rank, &t->source);
	rc = fill(&(struct filling){b, t, err});
	(void)pthread_mutex_lock(&b->lock);
	other = sc_map_get(&b->tables, KEY(rank));
	if (rc == 0 && !other)
		rc = sc_map_put(&b->tables, KEY(t->rank), t) < 0 ? sc_nomem(err) : 0;
	(void)pthread_mutex_unlock(&b->lock);
	*ret = other ? other : t;
	if (rc < 0 || other)
		table_done(t);
	return rc;
}

const struct rs_below_file *rs_rank_file(const struct rs_rank_files *t, const char *path)
{
	return sc_map_get(&t->files, path, strlen(path));
}

const struct rs_below_folder *rs_rank_folder(const struct rs_rank_files *t, const char *path)
{
	return sc_map_get(&t->folders, path, strlen(path));
}

int rs_below_shards(struct rs_below *b, uint32_t rank, int (*each)(void *arg, const char *path), void *arg,
		    struct sc_err *err)
{
	const struct rs_rank_files *t;
	int rc = rank == RS_SHARED || rank < b->ranks ? rs_rank_files(b, rank, &t, err) : 1;

	for (size_t i = 0; rc == 0 && i < t->files.room; i++) {
		const struct rs_below_file *file = t->files.slots[i].value;

		if (file && !file->data)
			rc = each(arg, file->path);
	}
	return rc < 0 ? rc : 0;
}

/* --- one file --- */

static int look_tensors(struct rs_below *b, uint32_t rank, const char *path, struct rs_look *ret, struct sc_err *err)
{
	struct rs_service *s = b->view->job->service;
	struct rs_image *im = NULL;
	int rc = rs_view_image(s, b->view, rank, path, false, false, &im, err);

	if (rc < 0)
		return rc;
	ret->kind = im->same_as ? RS_BLOB : RS_VIEW;
	ret->blob = im->same_as;
	ret->bytes = im->bytes;
	rs_image_unref(s, im);
	return 0;
}

static int look_data(struct rs_below *b, uint32_t rank, const char *path, struct rs_look *ret, struct sc_err *err)
{
	struct rs_service *s = b->view->job->service;
	struct rs_data_file *file;
	int rc = rs_data_open(s, b->view, rank, path, &file, err);

	if (rc < 0)
		return rc;
	ret->kind = RS_DATA;
	ret->bytes = rs_data_bytes(file);
	rs_data_close(s, file);
	return 0;
}

int rs_below_described(struct rs_below *b, uint32_t rank, const char *path, const struct rs_below_file *file,
		       struct rs_look *ret, struct sc_err *err)
{
	return file->data ? look_data(b, rank, path, ret, err) : look_tensors(b, rank, path, ret, err);
}

/* --- begin and end --- */

static void below_done(struct rs_below *b)
{
	for (size_t i = 0; i < b->tables.room; i++)
		if (b->tables.slots[i].value)
			table_done(b->tables.slots[i].value);
	sc_map_done(&b->tables);
	sc_map_done(&b->wheres);
	sc_map_done(&b->links);
	sc_arena_done(&b->arena);
	meta_topology_done(&b->rows_topo);
	(void)pthread_mutex_destroy(&b->lock);
	sc_sys.release(b);
}

struct made_ranks {		/* folders of ranks that somebody made */
	struct rs_below *b;
	struct {
		size_t nr, room;
		uint64_t *at;
	} inos;
	struct sc_err *err;
};

static int on_made(void *arg, const struct meta_entry_row *row)
{
	struct made_ranks *m = arg;
	uint32_t rank;

	if (!sc_number_parse(row->name.at, row->name.nr, &rank) || rank >= SC_RANKS_MAX || !row->ino)
		return 0;
	return sc_vec_push(&m->inos, row->ino) < 0 ? sc_nomem(m->err) : 0;
}

/* Notes mode and owner for the folders of ranks that came with a topology: those of the folders that ranks have
 * made. */
static int note_rank_folders(struct rs_below *b, struct sc_err *err)
{
	struct made_ranks m = {.b = b, .err = err};
	struct rs_owner all = {0}, implied;
	bool any = false;
	int rc = meta_tree_children(b->catalog, &b->tree, b->root, on_made, &m, err);

	rs_owner_of_folder(b->view->job, &implied);
	for (size_t i = 0; rc >= 0 && i < m.inos.nr; i++) {
		struct meta_inode_row row;

		rc = meta_tree_inode(b->catalog, &b->tree, m.inos.at[i], &row, NULL, err);
		if (rc <= 0)
			continue;
		if (!any)
			all = (struct rs_owner){row.uid, row.gid, row.mode & 07777};
		any = true;
		all.mode &= row.mode;
		if (all.uid != row.uid)
			all.uid = implied.uid;
		if (all.gid != row.gid) {
			all.gid = implied.gid;
			all.mode &= 0700;
		}
	}
	sc_vec_done(&m.inos);
	b->rank_folder = all;
	b->has_rank_folder = any;
	return rc < 0 ? rc : 0;
}

/* Notes the layout and the topology under which the rows of the tree were made. */
static int note_tree(struct rs_below *b, struct sc_err *err)
{
	const struct rs_kept_layout *kept;
	struct meta_tree_row row;
	struct sc_buf topology = {0};
	int rc = meta_tree_about(b->catalog, b->tree.id, &row, &topology, err);

	if (rc == 0)
		rc = rs_layout_by_id(b->view->job->service, row.layout, &kept, err);
	if (rc == 0)
		rc = meta_topology_parse(kept->layout, row.topology, &b->rows_topo, err);
	if (rc == 0)
		rc = meta_tree_any_xattr(b->catalog, &b->tree, &b->has_xattrs, err);
	sc_buf_done(&topology);
	if (rc < 0)
		return rc;
	b->rows_layout = kept->layout;
	b->rows_ranks = b->rows_topo.ranks;
	b->same = b->rows_layout == b->view->version->layout &&
		  strcmp(b->rows_topo.text, b->view->topo.text) == 0;
	return note_rank_folders(b, err);
}

static uint64_t last_serial;

static int below_new(struct rs_view *view, struct rs_below **ret, struct sc_err *err)
{
	struct rs_version *v = view->version;
	struct rs_below *b = sc_zalloc(sizeof(*b));
	int rc = 0;

	if (!b)
		return sc_nomem(err);
	b->view = view;
	b->serial = __atomic_add_fetch(&last_serial, 1, __ATOMIC_RELAXED);
	b->catalog = view->job->service->catalog;
	b->tree.id = view->form->tensors_alone ? 0 : v->tree;
	b->root = view->job->root;
	b->ranks = view->form->one_folder ? 1 : view->topo.ranks;
	b->floor_ns = v->floor_ns;
	(void)pthread_mutex_init(&b->lock, NULL);
	b->folder = (struct meta_inode_row){
		.job = view->job->id, .atime_ns = v->made_ns, .mtime_ns = v->made_ns, .ctime_ns = v->made_ns};
	if (b->tree.id)
		rc = rs_below_unless_dropped(b, note_tree(b, err));
	if (rc < 0) {
		below_done(b);
		return rc;
	}
	*ret = b;
	return 0;
}

int rs_view_below(struct rs_view *view, struct rs_below **ret, struct sc_err *err)
{
	struct rs_below *b = __atomic_load_n(&view->below, __ATOMIC_ACQUIRE), *none = NULL;
	int rc;

	*ret = b;
	if (b)
		return 0;
	rc = below_new(view, &b, err);
	if (rc < 0)
		return rc;
	view->below_done = below_done;
	if (!__atomic_compare_exchange_n(&view->below, &none, b, false, __ATOMIC_ACQ_REL, __ATOMIC_ACQUIRE)) {
		below_done(b);
		b = none;
	}
	*ret = b;
	return 0;
}
