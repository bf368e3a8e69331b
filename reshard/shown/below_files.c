/* SPDX-License-Identifier: Apache-2.0 */
/* What a view shows, by path: the files of its sets and datasets, one table for each rank that somebody looks at. */
#include "reshard/shown/below_i.h"

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

/*
 * Files that ranks wrote at different topologies may need one name for a file and for a folder: 'a' of rank 1, and
 * 'a/b', which is equal on all.  The one that is in an earlier set is shown.
 */
static bool is_in_the_way(const struct rs_rank_files *t, const char *path, size_t bytes)
{
	if (sc_map_get(&t->folders, path, bytes))
		return true;
	for (const char *at = strchr(path, '/'); at; at = strchr(at + 1, '/'))
		if (sc_map_get(&t->files, path, (size_t)(at - path)))
			return true;
	return false;
}

static int add_file(struct filling *f, const char *path, enum rs_origin origin, const struct rs_set *set)
{
	struct rs_rank_files *t = f->t;
	size_t n = strlen(path);
	struct rs_below_file *file;

	if (sc_map_get(&t->files, path, n) || is_in_the_way(t, path, n))
		return 0;
	file = sc_arena_alloc(&t->arena, sizeof(*file) + n + 1);
	if (!file)
		return SC_E_NO_MEMORY;
	file->origin = origin;
	file->set = set;
	memcpy(file->path, path, n);
	if (sc_map_put(&t->files, file->path, n, file) < 0)
		return SC_E_NO_MEMORY;
	return add_name(t, file->path, n, false);
}

static int on_tensors(void *arg, const char *file, const char *logical)
{
	(void)logical;
	return add_file(arg, file, RS_FROM_TENSORS, NULL);
}

static int on_data(void *arg, const char *path)
{
	return add_file(arg, path, RS_FROM_DATA, NULL);
}

static int fill(struct filling *f)
{
	const struct rs_view *view = f->b->view;
	const struct rs_version *v = view->version;
	const uint32_t rank = f->t->rank;
	int rc = 0;

	if (rank != RS_SHARED)
		rc = meta_view_files(view->model, rank, on_tensors, f);
	if (rc == 0 && rank != RS_SHARED)
		rc = rs_data_names(view, on_data, f);
	for (size_t i = 0; rc == 0 && i < v->nr_sets; i++)
		if (v->sets[i]->kind != META_SET_TENSORS && rs_set_plain(v->sets[i], v->layout, &view->topo, rank))
			rc = add_file(f, v->sets[i]->file, RS_FROM_BYTES, v->sets[i]);
	return rc == SC_E_NO_MEMORY ? sc_nomem(f->err) : rc;
}

/* Has a rank the coordinates that it had when the tree's rows were made (B2)? */
bool rs_rank_has_rows(const struct rs_below *b, uint32_t rank)
{
	const struct rs_version *v = b->view->version;
	const struct meta_topology *topo = &b->view->topo;
	uint32_t coords[SC_AXES_MAX], at[SC_AXES_MAX] = {0};
	const struct meta_mesh *mesh;

	if (!b->tree.id || b->dropped)
		return false;
	if (rank == RS_SHARED || b->same)
		return true;
	mesh = &b->rows_layout->meshes[0];
	meta_topology_coords(topo, rank, coords);
	for (int i = 0; i < mesh->nr; i++) {
		const char *name = b->rows_layout->axes.name[mesh->at[i].axis];
		int k = meta_axis_find(&v->layout->axes, name, strlen(name));
		uint32_t c = k >= 0 ? coords[k] : 0;

		if (c >= b->rows_topo.degree[mesh->at[i].axis])
			return false;
		at[mesh->at[i].axis] = c;
	}
	return meta_topology_rank(&b->rows_topo, at) == rank;
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
	t->rows = rs_rank_has_rows(b, rank);
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

const struct rs_set_blob *rs_below_plain(const struct rs_below *b, uint32_t rank, const struct rs_below_file *file)
{
	return rs_set_plain(file->set, b->view->version->layout, &b->view->topo, rank);
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
	return rs_view_owner(b->view, rank, path, &ret->owner, err);
}

static int look_data(struct rs_below *b, uint32_t rank, const char *path, struct rs_look *ret, struct sc_err *err)
{
	struct rs_service *s = b->view->job->service;
	struct rs_data_file *file;
	int rc = rs_data_open(s, b->view, rank, path, &file, err);

	if (rc < 0)
		return rc;
	ret->kind = RS_DATA;
	ret->owner.mode = 0444;
	ret->bytes = rs_data_bytes(file);
	rs_data_close(s, file);
	return 0;
}

int rs_below_look(struct rs_below *b, uint32_t rank, const char *path, struct rs_look *ret, struct sc_err *err)
{
	struct rs_view *view = b->view;
	const struct rs_rank_files *t;
	const struct rs_below_file *file;
	const struct rs_set_blob *plain;
	int rc = rs_rank_files(b, rank, &t, err);

	file = rc == 0 ? rs_rank_file(t, path) : NULL;
	if (rc < 0 || !file)
		return rc;
	rc = rs_path_id(view->job, path, &ret->path_id, err);
	ret->place = rs_view_place(view, rank == RS_SHARED ? 0 : rank);
	ret->rank = rank;
	ret->type = S_IFREG;
	ret->nlink = 1;
	ret->atime_ns = ret->mtime_ns = ret->ctime_ns = view->version->made_ns;
	if (rc < 0)
		return rc;
	if (file->origin == RS_FROM_TENSORS)
		return look_tensors(b, rank, path, ret, err);
	if (file->origin == RS_FROM_DATA)
		return look_data(b, rank, path, ret, err);
	plain = rs_below_plain(b, rank, file);
	ret->kind = RS_BLOB;
	ret->blob = plain->blob;
	ret->bytes = plain->bytes;
	rs_plain_owner(view->job, file->set, view->version->layout, &view->topo, rank, &ret->owner);
	return 0;
}

/* --- versions that were dropped --- */

static int on_version(void *arg, const struct meta_version_row *row)
{
	(void)row;
	*(bool *)arg = true;
	return 0;
}

/*
 * The rows of a version that was dropped a moment ago may be gone, while somebody who had looked its files up opens
 * them (leaving.c): then there is only what follows from its sets.  Returns rc, or 0 for such an error.
 */
int rs_below_unless_dropped(struct rs_below *b, int rc)
{
	bool is_there = false;
	struct sc_err ignored = {0};

	if (rc >= 0 || rc == SC_E_NO_MEMORY)
		return rc;
	if (__atomic_load_n(&b->dropped, __ATOMIC_RELAXED))
		return 0;
	(void)meta_version_get(b->catalog, b->view->version->id, on_version, &is_there, &ignored);
	if (is_there || (ignored.code && ignored.code != SC_E_NOT_FOUND))
		return rc;
	__atomic_store_n(&b->dropped, true, __ATOMIC_RELAXED);
	return 0;
}

/* --- begin and end --- */

static void below_done(struct rs_below *b)
{
	for (size_t i = 0; i < b->tables.room; i++)
		if (b->tables.slots[i].value)
			table_done(b->tables.slots[i].value);
	sc_map_done(&b->tables);
	sc_map_done(&b->wheres);
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

/* The folder of a rank that came with a topology is like those that ranks have made. */
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

/* Under which layout and topology the rows of the tree were made. */
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
	sc_buf_done(&topology);
	if (rc < 0)
		return rc;
	b->rows_layout = kept->layout;
	b->rows_ranks = b->rows_topo.ranks;
	b->same = b->rows_layout == b->view->version->layout &&
		  strcmp(b->rows_topo.text, b->view->topo.text) == 0;
	return note_rank_folders(b, err);
}

static int below_new(struct rs_view *view, struct rs_below **ret, struct sc_err *err)
{
	struct rs_version *v = view->version;
	struct rs_below *b = sc_zalloc(sizeof(*b));
	int rc = 0;

	if (!b)
		return sc_nomem(err);
	*b = (struct rs_below){.view = view, .catalog = view->job->service->catalog, .tree.id = v->tree,
			       .root = view->job->root, .ranks = view->topo.ranks, .floor_ns = v->floor_ns};
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
