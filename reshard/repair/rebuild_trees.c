/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Makes plain files, folders, links and attributes of a job from the recovery records of its trees: rows of one new
 * tree, with new numbers.  A file whose bytes are lost or damaged is named, and left out.
 */
#include "reshard/repair/rebuild_i.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "reshard/engine/io/hash.h"

#define LOW (SC_RANKS_MAX - 1)

/* --- files of blobs --- */

static int by_number(const void *a, const void *b)
{
	const struct rs_rebuild_file *x = a, *y = b;

	return (x->blob > y->blob) - (x->blob < y->blob);
}

void rs_rebuild_sort_files(struct rs_rebuild *r)
{
	if (r->files.nr)
		qsort(r->files.at, r->files.nr, sizeof(*r->files.at), by_number);
}

struct rs_rebuild_file *rs_rebuild_file(const struct rs_rebuild *r, uint64_t blob)
{
	const struct rs_rebuild_file key = {.blob = blob};

	return r->files.nr ? bsearch(&key, r->files.at, r->files.nr, sizeof(key), by_number) : NULL;
}

/* --- records --- */

static int on_tree(void *arg, uint64_t tree)
{
	struct rs_rebuild *r = arg;
	struct rs_rebuild_tree t = {.id = tree};
	struct rs_tree_record record;
	struct sc_err why;
	int rc = rs_tree_record_read(r->s, tree, &record, &why);

	if (rc == 0) {
		t.job = sc_arena_copy(&r->arena, record.job, strlen(record.job));
		t.version = record.version;
		t.uid = record.uid;
		t.gid = record.gid;
		t.job_mode = record.job_mode;
		if (record.last_set > r->last_set)
			r->last_set = record.last_set;
		rs_tree_record_done(&record);
		if (!t.job)
			return sc_nomem(r->err);
	} else if (rc == SC_E_FORMAT || (rc == SC_E_SYSTEM && meta_disk_fails(why.errnum))) {
		r->bad++;
		sc_buf_printf(r->report, "BAD\t");
		sc_buf_line(r->report, "%s", why.msg);
	} else {
		*r->err = why;
		return rc;
	}
	return sc_vec_push(&r->trees, t) < 0 ? sc_nomem(r->err) : 0;
}

static int newest_first(const void *a, const void *b)
{
	const struct rs_rebuild_tree *x = a, *y = b;

	if (!x->job != !y->job)
		return x->job ? -1 : 1;
	return x->version != y->version ? (x->version < y->version ? 1 : -1) : (x->id < y->id) - (x->id > y->id);
}

int rs_rebuild_read_trees(struct rs_rebuild *r)
{
	uint64_t last = 0;
	int rc = meta_store_each_tree(&r->s->store, on_tree, r, r->err);

	for (size_t i = 0; i < r->trees.nr; i++)
		last = r->trees.at[i].id > last ? r->trees.at[i].id : last;
	if (r->trees.nr)
		qsort(r->trees.at, r->trees.nr, sizeof(*r->trees.at), newest_first);
	return rc < 0 || !last ? rc : meta_tree_reserve(r->s->catalog, last, r->err);
}

/* Tells whether a tree may be an older one of its job, as a damaged record, which may be of any job, has a larger
 * number. */
static bool may_be_older(const struct rs_rebuild *r, uint64_t tree)
{
	for (size_t i = 0; i < r->trees.nr; i++)
		if (!r->trees.at[i].job && r->trees.at[i].id > tree)
			return true;
	return false;
}

int rs_rebuild_find_tree(struct rs_rebuild *r, const char *job, size_t *at, struct rs_joined *ret, bool *ret_newest)
{
	const bool is_first = *at == 0;

	*ret_newest = true;
	while (*at < r->trees.nr) {
		const struct rs_rebuild_tree *t = &r->trees.at[(*at)++];
		struct sc_err why;
		int rc;

		if (!t->job || strcmp(t->job, job) != 0)
			continue;
		*ret_newest &= !may_be_older(r, t->id);
		rc = rs_tree_join(r->s, t->id, ret, &why);
		if (rc == 0) {
			if (!*ret_newest && is_first) {
				sc_buf_printf(r->report, "note\t");
				sc_buf_line(r->report, "job '%s' gets the files of tree %" PRIu64 ", which may not be "
					    "its newest one", job, t->id);
			}
			return 1;
		}
		if (rc != SC_E_FORMAT) {
			*r->err = why;
			return rc;
		}
		*ret_newest = false;
		r->bad++;
		sc_buf_printf(r->report, "BAD\t");
		sc_buf_line(r->report, "tree %" PRIu64 " of job '%s' cannot be used: %s", t->id, job, why.msg);
	}
	return 0;
}

/* --- bytes --- */

static int on_record(void *arg, const struct rs_record *record)
{
	(void)arg;
	(void)record;
	return 0;
}

/* Reads a blob, and checks that it has the bytes that it had when it was sealed. */
static int read_file(struct rs_rebuild *r, struct rs_rebuild_file *f, struct sc_err *why)
{
	struct sc_arena arena = {0};
	uint8_t was[16];
	int rc = rs_record_read(r->s, f->blob, &arena, was, on_record, NULL, why);

	sc_arena_done(&arena);
	f->has_hash = rc == 0;
	if (rc < 0 && rc != SC_E_NOT_FOUND && rc != SC_E_FORMAT && rc != SC_E_UNSUPPORTED)
		return rc;
	rc = rs_rebuild_hash(r, f->blob, f->hash, &f->bytes, why);
	if (rc == 0 && f->has_hash && memcmp(was, f->hash, sizeof(was)) != 0)
		rc = sc_fail(why, SC_E_DAMAGED, "it has other bytes than when it was stored");
	return rc;
}

/* Tells whether a file has its bytes: 1, 0 (`why` says why not), or an error. */
static int is_intact(struct rs_rebuild *r, const struct meta_inode_row *row, struct sc_err *why)
{
	struct rs_rebuild_file *f = rs_rebuild_file(r, row->blob);
	int rc = f ? 0 : sc_fail(why, SC_E_DAMAGED, "it is missing");

	if (f && f->state == RS_UNREAD) {
		rc = read_file(r, f, why);
		if (rc < 0 && !rs_is_damage(why)) {
			*r->err = *why;
			return rc;
		}
		f->state = rc < 0 ? RS_DAMAGED : RS_INTACT;
	}
	if (rc == 0 && f->state == RS_DAMAGED)
		rc = sc_fail(why, SC_E_DAMAGED, "it is damaged");
	if (rc == 0 && f->bytes != row->rdev)
		rc = sc_fail(why, SC_E_DAMAGED, "it has another size than when it was stored");
	return rc == 0;
}

static void say_lost(struct rs_rebuild *r, const char *job, const struct rs_joined *j, const struct rs_joined_inode *x,
		     const struct sc_err *why)
{
	for (size_t i = 0; i < j->entries.nr; i++) {
		const struct rs_joined_entry *e = &j->entries.at[i];

		if (!e->live || e->inode != x)
			continue;
		r->bad++;
		sc_buf_printf(r->report, "BAD\t");
		if (e->rank == RS_SHARED)
			sc_buf_line(r->report, "job '%s' '%s', blob %" PRIu64 ", is left out: %s", job, e->path,
				    x->row->blob, why->msg);
		else
			sc_buf_line(r->report, "job '%s' rank %u '%s', blob %" PRIu64 ", is left out: %s", job, e->rank,
				    e->path, x->row->blob, why->msg);
	}
}

static int check_files(struct rs_rebuild *r, const char *job, struct rs_joined *j)
{
	for (size_t i = 0; i < j->inodes.nr; i++) {
		struct rs_joined_inode *x = j->inodes.at[i];
		struct sc_err why = {0};
		int is;

		if (!x->live || !S_ISREG(x->row->mode) || !x->row->blob)
			continue;
		is = is_intact(r, x->row, &why);
		if (is < 0)
			return is;
		x->lost = is == 0;
		if (x->lost)
			say_lost(r, job, j, x, &why);
	}
	return 0;
}

/* --- rows with new numbers --- */

struct numbering {
	struct rs_rebuild *r;
	struct rs_job *job;
	struct rs_joined *j;
	struct meta_changes rows;
	uint64_t was_root;
};

static int number(const struct numbering *n, uint64_t was, uint64_t *ret)
{
	const struct rs_joined_inode *x;
	const char *path;
	uint64_t id;
	int rc;

	if (was < META_VIRTUAL && was >= n->was_root && was - n->was_root <= SC_RANKS_MAX) {
		*ret = n->job->root + (was - n->was_root);
		return 1;
	}
	if (was < META_VIRTUAL) {
		x = rs_joined_inode(n->j, was);
		*ret = x ? x->number : 0;
		return *ret != 0;
	}
	path = rs_joined_path(n->j, meta_virtual_path(was));
	rc = path ? rs_path_id(n->job, path, &id, n->r->err) : 0;
	if (rc == 0 && path)
		*ret = meta_virtual(n->job->id, meta_virtual_rank(was), id);
	return rc < 0 ? rc : path != NULL;
}

static int add(struct numbering *n, struct meta_change x)
{
	return sc_vec_push(&n->rows, x) < 0 ? sc_nomem(n->r->err) : 0;
}

static bool stays(const struct rs_joined_inode *x)
{
	return x->live && !x->lost;
}

static int inode_rows(struct numbering *n)
{
	for (size_t i = 0; i < n->j->inodes.nr; i++) {
		const struct rs_joined_inode *x = n->j->inodes.at[i];
		struct meta_change row = {META_PUT_INODE, .inode = *x->row};
		int is = stays(x) ? number(n, x->row->ino, &row.inode.ino) : 0;

		if (is > 0 && number(n, x->row->parent, &row.inode.parent) <= 0)
			row.inode.parent = n->job->root;
		row.inode.rdev = 0;
		if (is > 0)
			is = add(n, row);
		if (is < 0)
			return is;
	}
	return 0;
}

static int other_rows(struct numbering *n)
{
	for (size_t i = 0; i < n->j->xattrs.nr; i++) {
		struct meta_change row = {META_PUT_XATTR, .xattr = *n->j->xattrs.at[i]};
		const struct rs_joined_inode *x = rs_joined_inode(n->j, row.xattr.ino);
		int is = x && stays(x) ? number(n, row.xattr.ino, &row.xattr.ino) : 0;

		if (is > 0)
			is = add(n, row);
		if (is < 0)
			return is;
	}
	for (size_t i = 0; i < n->j->entries.nr; i++) {
		const struct rs_joined_entry *e = &n->j->entries.at[i];
		struct meta_change row = {META_PUT_ENTRY, .entry = *e->row};
		int is = e->live && (!e->inode || stays(e->inode)) ? number(n, e->row->parent, &row.entry.parent) : 0;

		if (is > 0)
			is = number(n, e->row->ino, &row.entry.ino);
		if (is > 0)
			is = add(n, row);
		if (is < 0)
			return is;
	}
	return 0;
}

/* Gives the rows new numbers, from a block of the job, inside the transaction. */
static int take_numbers(struct numbering *n)
{
	uint64_t nr = 0, first;
	int rc = 0;

	for (size_t i = 0; i < n->j->inodes.nr; i++)
		nr += n->j->inodes.at[i]->live;
	if (nr)
		rc = meta_numbers_take(n->r->s->catalog, n->job->id, nr, &first, n->r->err);
	for (size_t i = 0; rc == 0 && i < n->j->inodes.nr; i++)
		if (n->j->inodes.at[i]->live)
			n->j->inodes.at[i]->number = first++;
	return rc;
}

static int adopt_files(struct numbering *n)
{
	struct meta_catalog *c = n->r->s->catalog;
	struct sc_err *err = n->r->err;
	int rc = 0;

	for (size_t i = 0; rc == 0 && i < n->rows.nr; i++) {
		const struct meta_change *x = &n->rows.at[i];
		struct rs_rebuild_file *f = x->kind == META_PUT_INODE && x->inode.blob
						    ? rs_rebuild_file(n->r, x->inode.blob) : NULL;

		if (!f)
			continue;
		rc = meta_blob_known(c, f->blob, err);
		if (rc == 0) {
			rc = meta_blob_adopt(c, f->blob, err);
			if (rc == 0)
				rc = meta_blob_seal(c, f->blob, f->bytes, err);
			if (rc == 0 && f->has_hash)
				rc = meta_blob_checked(c, f->blob, f->hash, rs_now_s(), false, err);
		}
		rc = rc < 0 ? rc : 0;
		if (!f->user)
			f->user = n->job;
	}
	return rc;
}

/* --- the version --- */

static int make_version(struct numbering *n, uint64_t tree)
{
	struct meta_topology topo = {0};
	const struct rs_kept_layout *kept;
	struct rs_job *job = n->job;
	struct meta_catalog *c = n->r->s->catalog;
	struct sc_err *err = n->r->err;
	struct meta_version_row row = {.job = job->id, .step = n->j->chain[0].step, .note = "rebuilt",
				       .made_ns = sc_now_wall_ns(), .made_by = "commit", .layout = job->first_layout,
				       .topology = job->first_topology, .tree = tree};
	uint64_t view;
	int rc = rs_layout_by_id(n->r->s, job->first_layout, &kept, err);

	if (rc == 0)
		rc = meta_topology_parse(kept->layout, job->first_topology, &topo, err);
	if (rc == 0)
		rc = meta_version_add(c, &row, err);
	if (rc == 0)
		rc = meta_job_set_head(c, job->id, row.id, err);
	if (rc == 0)
		rc = meta_view_put(c, row.id, "", topo.ranks, &view, err);
	meta_topology_done(&topo);
	return rc;
}

static int save(struct numbering *n, uint64_t layout)
{
	const struct rs_tree_record *first = &n->j->chain[0];
	struct meta_tree_spec spec = {.job = n->job->id, .root = n->job->root, .layout = layout,
				      .topology = first->topology};
	struct meta_catalog *c = n->r->s->catalog;
	uint64_t tree;
	int rc = take_numbers(n);

	if (rc == 0)
		rc = inode_rows(n);
	if (rc == 0)
		rc = other_rows(n);
	if (rc == 0)
		rc = adopt_files(n);
	spec.rows = n->rows;
	if (rc == 0)
		rc = meta_tree_commit(c, &spec, &tree, n->r->err);
	if (rc == 0)
		rc = n->job->head ? meta_version_set_tree(c, n->job->head->version->id, tree, n->r->err)
				  : make_version(n, tree);
	return rc;
}

int rs_rebuild_tree(struct rs_rebuild *r, struct rs_job *job, struct rs_joined *tree, const char *layout_text)
{
	struct numbering n = {.r = r, .job = job, .j = tree, .was_root = tree->chain[0].root};
	const struct meta_layout *ignored;
	uint64_t layout;
	int rc = rs_layout_keep(r->s, layout_text, &layout, &ignored, r->err);

	if (rc == 0)
		rc = check_files(r, job->name, tree);
	if (rc == 0)
		rc = meta_catalog_begin(r->s->catalog, true, r->err);
	if (rc < 0)
		return rc;
	rc = meta_catalog_end(r->s->catalog, save(&n, layout), r->err);
	meta_changes_done(&n.rows);
	return rc;
}

/* Writes the record of a blob anew: it names the sets that have the blob now, or none if it is a plain file.  The next
 * rebuild tells by the sets of the new trees what was removed. */
static int keep_record(struct rs_rebuild *r, const struct rs_rebuild_file *f)
{
	struct sc_err why;
	int rc = rs_record_write(r->s, f->blob, f->hash, &why);

	if (rc < 0 && rc != SC_E_UNSUPPORTED) {
		*r->err = why;
		return rc;
	}
	if (rc < 0) {
		sc_buf_printf(r->report, "note\t");
		sc_buf_line(r->report, "%s", why.msg);
	}
	return 0;
}

int rs_rebuild_keep(struct rs_rebuild *r)
{
	int rc = 0;

	for (size_t i = 0; rc == 0 && i < r->files.nr; i++)
		if (r->files.at[i].user && r->files.at[i].has_hash)
			rc = keep_record(r, &r->files.at[i]);
	if (rc == 0)
		rc = rs_trees_keep(r->s, r->err);
	for (size_t i = 0; rc == 0 && i < r->trees.nr; i++)
		rc = meta_store_set_tree_aside(&r->s->store, r->trees.at[i].id, r->err);
	return rc;
}
