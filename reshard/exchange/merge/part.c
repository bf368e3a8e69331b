/* SPDX-License-Identifier: Apache-2.0 */
#include "reshard/exchange/merge/part.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "meta/base/limits.h"
#include "reshard/engine/io/flush.h"
#include "reshard/exchange/objects/objects_i.h"

struct inos {
	size_t nr, room;
	uint64_t *at;
};

static int by_number(const void *a, const void *b)
{
	const uint64_t x = *(const uint64_t *)a, y = *(const uint64_t *)b;

	return (x > y) - (x < y);
}

static bool has_number(const struct inos *all, uint64_t ino)
{
	return all->nr && bsearch(&ino, all->at, all->nr, sizeof(*all->at), by_number);
}

static int by_blob(const void *a, const void *b)
{
	const uint64_t x = ((const struct rs_away_file *)a)->blob, y = ((const struct rs_away_file *)b)->blob;

	return (x > y) - (x < y);
}

const struct rs_away_file *rs_away_find(const struct rs_aways *aways, uint64_t blob)
{
	const struct rs_away_file key = {.blob = blob};

	return aways && aways->nr ? bsearch(&key, aways->at, aways->nr, sizeof(*aways->at), by_blob) : NULL;
}

/* --- making --- */

struct making {
	struct rs_job *job;
	struct rs_lower lower;
	struct rs_object_part part;
	struct inos named, special;	/* in the part; of which no version has any: by number */
	struct inos numbers, paths;	/* that rows speak of */
	struct sc_arena texts;
	struct sc_buf rows;
	struct sc_err *err;
};

static int add(struct making *m, struct inos *to, uint64_t ino)
{
	return sc_vec_push(to, ino) < 0 ? sc_nomem(m->err) : 0;
}

/* Gives an object a number that is the same on all nodes. */
static int give(struct making *m, uint64_t *ino)
{
	const bool is_virtual = *ino >= META_VIRTUAL;
	int rc = !*ino ? 0 : add(m, is_virtual ? &m->paths : &m->numbers, is_virtual ? meta_virtual_path(*ino) : *ino);

	*ino = rs_object_number(*ino);
	return rc;
}

static int put(struct making *m, const struct meta_change *x)
{
	meta_changes_encode(&(struct meta_changes){(struct meta_change *)x, 1, 1}, &m->rows);
	return m->rows.failed ? sc_nomem(m->err) : 0;
}

/* Takes the attributes of a written file from its blob's file, but not its times of access and change, which become
 * others while it is read and sealed: the row says when requests have changed the file, and the time of its bytes when
 * these were written last. */
static int stat_file(struct making *m, struct meta_inode_row *row)
{
	sc_cleanup(sc_closep) int fd = -1;
	struct stat st;
	int rc = meta_store_open_work(&m->job->service->store, row->blob, O_RDONLY, &fd, m->err);

	if (rc < 0)
		return rc;
	if (sc_sys.fstat(fd, &st) < 0)
		return sc_fail_sys(m->err, errno, "cannot stat a file of the working tree");
	row->mode = S_IFREG | (st.st_mode & 07777);
	row->uid = st.st_uid;
	row->gid = st.st_gid;
	row->mtime_ns = row->atime_ns = (int64_t)st.st_mtim.tv_sec * 1000000000 + st.st_mtim.tv_nsec;
	row->ctime_ns = row->mtime_ns > row->ctime_ns ? row->mtime_ns : row->ctime_ns;
	row->job = m->part.node;
	row->rdev = (uint64_t)st.st_size;
	return 0;
}

/* Names the blob that the version below has for a committed file which was moved or has other attributes. */
static int name_blob(struct making *m, struct meta_inode_row *row)
{
	struct meta_catalog *c = m->job->service->catalog;
	uint32_t node = m->part.node;
	int rc = row->blob ? meta_blob_bytes(c, row->blob, &row->rdev, m->err) : 0;

	if (rc == 0 && row->blob)
		rc = meta_blob_origin(c, row->blob, &node, &row->blob, m->err);
	row->job = row->blob ? node : 0;
	return rc < 0 ? rc : 0;
}

static int put_inode(struct making *m, const struct meta_inode_row *is)
{
	struct meta_change x = {META_PUT_INODE, .inode = *is};
	struct meta_inode_row *row = &x.inode, below;
	const bool gone = !row->nlink || row->data == META_FORGOTTEN;
	int rc = 0;

	if (!S_ISREG(row->mode) && !S_ISDIR(row->mode) && !S_ISLNK(row->mode))
		return add(m, &m->special, row->ino);
	if (gone) {
		rc = m->lower.inode(m->lower.arg, row->ino, &m->texts, &below, m->err);
		if (rc <= 0)
			return rc;
		row->nlink = 0;
		row->data = S_ISREG(row->mode) ? META_LOWER_DATA : META_NO_DATA;
		row->blob = 0;
	}
	row->job = row->rdev = 0;
	rc = gone ? 0 : add(m, &m->named, row->ino);
	if (rc == 0 && row->data == META_OWN_DATA)
		rc = stat_file(m, row);
	else if (rc == 0 && row->data == META_LOWER_DATA)
		rc = name_blob(m, row);
	if (rc == 0)
		rc = give(m, &row->ino);
	if (rc == 0)
		rc = give(m, &row->parent);
	return rc < 0 ? rc : put(m, &x);
}

static int put_name(struct making *m, const struct meta_entry_row *is)
{
	struct meta_change x = {META_PUT_ENTRY, .entry = *is};
	int rc = 0;

	if (!has_number(&m->named, is->parent))
		return 0;
	if (has_number(&m->special, is->ino)) { /* in place of a name that the version below has, or of none */
		rc = m->lower.child(m->lower.arg, is->parent, is->name, &x.entry.ino, m->err);
		if (rc < 0 || !x.entry.ino)
			return rc;
		x.entry.ino = 0;
	}
	rc = give(m, &x.entry.parent);
	if (rc == 0)
		rc = give(m, &x.entry.ino);
	return rc < 0 ? rc : put(m, &x);
}

static int on_row(void *arg, const struct meta_change *is)
{
	struct making *m = arg;
	struct meta_change x = *is;
	int rc = 0;

	switch (is->kind) {
	case META_PUT_INODE:
		return put_inode(m, &is->inode);
	case META_PUT_ENTRY:
		return put_name(m, &is->entry);
	case META_PUT_XATTR:
		if (has_number(&m->named, is->xattr.ino))
			rc = give(m, &x.xattr.ino);
		return rc < 0 || !has_number(&m->named, is->xattr.ino) ? rc : put(m, &x);
	default:
		return 0;
	}
}

static void sort(struct inos *all)
{
	size_t nr = 0;

	if (all->nr)
		qsort(all->at, all->nr, sizeof(*all->at), by_number);
	for (size_t i = 0; i < all->nr; i++)
		if (!nr || all->at[nr - 1] != all->at[i])
			all->at[nr++] = all->at[i];
	all->nr = nr;
}

static int on_block(void *arg, uint64_t first, uint64_t nr, uint64_t job)
{
	struct making *m = arg;
	size_t at;

	if (job != m->job->id || first == m->job->root)
		return 0;
	at = sc_first(m->numbers.nr, i, m->numbers.at[i] >= first);
	if (at == m->numbers.nr || m->numbers.at[at] - first >= nr)
		return 0;
	return sc_vec_push(&m->part.numbers, ((struct rs_object_numbers){first, nr})) < 0 ? sc_nomem(m->err) : 0;
}

static int add_paths(struct making *m)
{
	int rc = 0;

	for (size_t i = 0; rc == 0 && i < m->paths.nr; i++) {
		struct rs_object_path path = {.id = m->paths.at[i]};

		rc = rs_path_text(m->job->service, path.id, &path.text, m->err);
		if (rc == 0 && sc_vec_push(&m->part.paths, path) < 0)
			rc = sc_nomem(m->err);
	}
	return rc;
}

static int make(struct making *m, struct sc_buf *ret)
{
	struct meta_catalog *c = m->job->service->catalog;
	int rc = meta_upper_each(c, m->job->id, on_row, m, m->err);

	if (rc < 0 || !m->rows.bytes)
		return rc;
	sort(&m->numbers);
	sort(&m->paths);
	rc = meta_numbers_each(c, on_block, m, m->err);
	if (rc == 0)
		rc = add_paths(m);
	m->part.rows = (struct meta_bytes){m->rows.text, m->rows.bytes};
	if (rc == 0)
		rs_object_walk_part(&(struct rs_text){.to = ret}, &m->part);
	if (rc == 0 && ret->failed)
		rc = sc_nomem(m->err);
	if (rc == 0 && ret->bytes > RS_PART_BYTES_MAX)
		rc = sc_fail(m->err, SC_E_LIMIT, "more is uncommitted on this node than another one can commit: %zu "
			     "bytes of rows; commit it here", ret->bytes);
	return rc;
}

int rs_part_make(struct rs_job *job, uint32_t node, struct sc_buf *ret, struct sc_err *err)
{
	struct rs_view *head = rs_job_head(job);
	struct making m = {.job = job, .err = err,
			   .part = {.node = node, .root = job->root, .base = head ? head->version->nr : 0}};
	int rc = rs_log_drain(job->service, err);

	sc_buf_reset(ret);
	(void)pthread_rwlock_rdlock(&job->names);
	if (rc == 0)
		rc = rs_tree_lower(job, head, &m.lower, err);
	if (rc == 0)
		rc = make(&m, ret);
	(void)pthread_rwlock_unlock(&job->names);
	rs_view_unref(job->service, head);
	rs_object_part_done(&m.part);
	sc_vec_done(&m.named);
	sc_vec_done(&m.special);
	sc_vec_done(&m.numbers);
	sc_vec_done(&m.paths);
	sc_arena_done(&m.texts);
	sc_buf_done(&m.rows);
	return rc;
}

/* --- flushing --- */

static int on_written(void *arg, const struct meta_inode_row *row)
{
	struct inos *blobs = arg;

	return row->data == META_OWN_DATA && row->nlink && sc_vec_push(blobs, row->blob) < 0 ? SC_E_NO_MEMORY : 0;
}

int rs_part_flush(struct rs_job *job, struct sc_err *err)
{
	const struct meta_store *store = &job->service->store;
	struct meta_store_dirs dirs = {{0}};
	struct rs_flush flush = {0};
	struct inos blobs = {0};
	int rc = 0;

	if (!rs_job_syncs(job))
		return 0;
	(void)pthread_rwlock_rdlock(&job->names);
	if (rs_overlay_each(job->overlay, on_written, &blobs) < 0)
		rc = sc_nomem(err);
	(void)pthread_rwlock_unlock(&job->names);
	for (size_t i = 0; rc == 0 && i < blobs.nr; i++) {
		int fd;

		rc = meta_store_open_work(store, blobs.at[i], O_RDWR, &fd, err);
		if (rc == 0)
			rc = rs_flush_add(&flush, fd, -1, "a file of the working tree", err);
		meta_store_note_dir(&dirs, blobs.at[i]);
	}
	if (rc == 0)
		rc = rs_flush_add_dirs(&flush, store, &dirs, err);
	sc_vec_done(&blobs);
	return rs_flush_end(&flush, rc, err);
}

/* --- taking --- */

struct taking {
	struct rs_object_take t;
	uint32_t from;
	struct rs_object_part part;
	struct rs_object_renumbering numbers;
	struct meta_changes rows;
	struct rs_aways *aways;
};

static int take_inode(struct taking *x, struct meta_inode_row *row)
{
	const struct rs_object_blob blob = {(uint32_t)row->job, row->blob, row->rdev};
	struct rs_away_file away = {.node = x->from, .number = row->blob, .bytes = row->rdev};
	int rc;

	if (!rs_object_renumber(&x->numbers, &row->ino) ||
	    (row->parent && !rs_object_renumber(&x->numbers, &row->parent)))
		return 1;
	row->rdev = 0;
	if (row->data != META_OWN_DATA) {
		row->job = x->t.job->id;
		return rs_object_take_blob(&x->t, &blob, &row->blob);
	}
	if (!S_ISREG(row->mode) || row->job != x->from || x->from == x->t.node || !row->nlink)
		return 1;
	row->job = x->t.job->id;
	rc = meta_blob_take(x->t.s->catalog, &away.blob, x->t.io.err);
	if (rc == 0 && sc_vec_push(x->aways, away) < 0)
		rc = sc_nomem(x->t.io.err);
	row->blob = away.blob;
	return rc;
}

/* Takes a row of a part.  1: a part cannot have such a row. */
static int take_row(struct taking *x, struct meta_change *row)
{
	switch (row->kind) {
	case META_PUT_INODE:
		return take_inode(x, &row->inode);
	case META_PUT_XATTR:
		return !rs_object_renumber(&x->numbers, &row->xattr.ino);
	case META_PUT_ENTRY:
		return !rs_object_renumber(&x->numbers, &row->entry.parent) ||
		       (row->entry.ino && !rs_object_renumber(&x->numbers, &row->entry.ino));
	default:
		return 1;
	}
}

static int step_of(const struct meta_change *x)
{
	return x->kind == META_PUT_INODE ? 0 : x->kind == META_PUT_XATTR ? 1 : 2;
}

static uint64_t key_of(const struct meta_change *x, struct meta_bytes *ret_name)
{
	*ret_name = (struct meta_bytes){NULL, 0};
	if (x->kind == META_PUT_INODE)
		return x->inode.ino;
	*ret_name = x->kind == META_PUT_XATTR ? x->xattr.name : x->entry.name;
	return x->kind == META_PUT_XATTR ? x->xattr.ino : x->entry.parent;
}

/* Orders rows by key once more: virtual numbers are others here than on the other node. */
static int by_key(const void *a, const void *b)
{
	const int steps = step_of(a) - step_of(b);
	struct meta_bytes p, q;
	const uint64_t x = key_of(a, &p), y = key_of(b, &q);
	int c;

	if (steps || x != y)
		return steps ? steps : x < y ? -1 : 1;
	c = p.nr && q.nr ? memcmp(p.at, q.at, p.nr < q.nr ? p.nr : q.nr) : 0;
	return c ? c : (p.nr > q.nr) - (p.nr < q.nr);
}

static int take_rows(struct taking *x)
{
	struct meta_catalog *c = x->t.s->catalog;
	int rc = meta_changes_decode(x->part.rows.at, x->part.rows.nr, &x->rows, x->t.io.err), begun;

	if (rc < 0)
		return rc == SC_E_CORRUPT ? 1 : rc;
	begun = rc = meta_catalog_begin(c, true, x->t.io.err);
	if (rc == 0)
		rc = rs_object_renumber_begin(&x->t, &x->part.numbers, &x->part.paths, &x->numbers);
	for (size_t i = 0; rc == 0 && i < x->rows.nr; i++)
		rc = take_row(x, &x->rows.at[i]);
	if (begun == 0 && rc > 0)
		(void)meta_catalog_end(c, SC_E_FORMAT, &(struct sc_err){0});
	else if (begun == 0)
		rc = meta_catalog_end(c, rc, x->t.io.err);
	if (rc == 0 && x->rows.nr)
		qsort(x->rows.at, x->rows.nr, sizeof(*x->rows.at), by_key);
	return rc;
}

int rs_part_take(struct rs_job *job, uint32_t node, uint32_t from, const struct meta_bytes *text,
		 struct sc_arena *arena, struct meta_changes *ret, struct rs_aways *aways, struct sc_err *err)
{
	struct taking x = {.t = {.s = job->service, .job = job, .node = node, .io.err = err}, .from = from,
			   .aways = aways};
	struct rs_text t = {.at = text->at, .end = text->at + text->nr, .arena = arena};
	struct rs_view *head = rs_job_head(job);
	const uint64_t base = head ? head->version->nr : 0;
	int rc = 0;

	rs_view_unref(job->service, head);
	rs_object_walk_part(&t, &x.part);
	if (t.failed)
		rc = sc_nomem(err);
	else if (t.bad || t.at != t.end || x.part.node != from || x.part.root != job->root)
		rc = 1;
	else if (x.part.base != base)
		rc = sc_fail(err, SC_E_BUSY, "node %u has version %" PRIu64 ", this one version %" PRIu64 "; try again",
			     from, x.part.base, base);
	if (rc == 0)
		rc = take_rows(&x);
	for (size_t i = 0; rc == 0 && i < x.rows.nr; i++)
		rc = sc_vec_push(ret, x.rows.at[i]) < 0 ? sc_nomem(err) : 0;
	if (rc > 0)
		rc = sc_fail(err, SC_E_FORMAT, "what node %u has uncommitted cannot be read: nothing was committed",
			     from);
	meta_changes_done(&x.rows);
	rs_object_part_done(&x.part);
	rs_object_renumber_done(&x.numbers);
	return rc;
}
