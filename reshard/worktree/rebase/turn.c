/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Puts another version below a working tree: in the catalog, in the transaction that makes the version; then in memory,
 * in one instant, which cannot fail.  The gate is closed meanwhile: nobody changes the working tree.
 */
#include "reshard/worktree/rebase/rows.h"

#include <stdlib.h>
#include <sys/stat.h>

#include "meta/base/limits.h"
#include "meta/catalog/trees.h"

/* --- what stays in the upper layer --- */

struct keeping {
	struct rs_turn *t;
	const struct meta_inode_row *row;
	bool all;			/* entries of what has no name */
};

static int keep_xattr(void *arg, struct meta_bytes name, struct meta_bytes value)
{
	const struct keeping *k = arg;

	return rs_turn_put(k->t, &k->t->upper,
			   (struct meta_change){META_PUT_XATTR, .xattr = {k->row->ino, name, value}});
}

static int keep_entry(void *arg, struct meta_bytes name, uint64_t ino)
{
	const struct keeping *k = arg;
	struct meta_inode_row row = {0};
	int rc = ino && !k->all ? rs_overlay_inode(k->t->job->overlay, ino, &k->t->texts, &row, k->t->err) : 1;

	if (rc < 0 || (!k->all && (!ino || !rs_is_special(row.mode))))
		return rc < 0 ? rc : 0;
	return rs_turn_put(k->t, &k->t->upper, (struct meta_change){META_PUT_ENTRY, .entry = {k->row->ino, name, ino}});
}

/* Gives an object that somebody holds another number in the upper layer: its number is made of a path, and the next
 * version may show another object there. */
static int keep_apart(struct rs_turn *t, const struct meta_inode_row *row)
{
	size_t from = t->apart.nr;
	int rc = 0;

	if (row->data != META_LOWER_DATA) /* who reads a committed file has its version's node */
		rc = rs_overlay_plan_apart(t->job->overlay, t->now_ns, row, &t->texts, &t->apart, t->err);
	for (size_t i = from; rc == 0 && i < t->apart.nr; i++)
		rc = rs_turn_put(t, &t->upper, t->apart.at[i]);
	/* at last: its blob has another row then */
	return rc < 0 ? rc : rs_turn_put(t, &t->apart, (struct meta_change){META_DROP_INODE, .inode.ino = row->ino});
}

/* Tells whether a removed folder is one of a rank that the next version has: it follows from that one's topology. */
static bool is_back(const struct rs_turn *t, const struct meta_inode_row *row)
{
	const uint64_t root = t->job->root;

	return row->nlink == 0 && t->next && row->ino > root && row->ino - root <= t->next->topo.ranks;
}

/* Keeps the row of a FIFO, socket or device whose folder is still there, and of an object that has no name. */
static int keep_row(void *arg, const struct meta_inode_row *row)
{
	struct rs_turn *t = arg;
	struct keeping k = {t, row, row->nlink == 0};
	struct meta_inode_row below;
	int rc = 0;

	if (row->data == META_FORGOTTEN || is_back(t, row))
		return 0;
	if (row->nlink == 0 && row->ino & META_VIRTUAL)
		return keep_apart(t, row);
	if (rs_turn_is_log(t, row->ino))
		rc = rs_turn_keep_log(t, row);
	t->moves |= row->nlink && !rs_is_special(row->mode);
	/* what a topology hides and shows again was never removed: that it was held does not count any more */
	if (rc == 0 && row->nlink == 0 && t->by == RS_TURN_STAY)
		rc = t->lower.inode(t->lower.arg, row->ino, &t->texts, &below, t->err);
	if (rc)
		return rc < 0 ? rc : 0;
	if (row->nlink == 0 || rs_is_special(row->mode)) {
		rc = rs_turn_put(t, &t->upper, (struct meta_change){META_PUT_INODE, .inode = *row});
		if (rc == 0)
			rc = rs_overlay_xattrs(t->job->overlay, row->ino, keep_xattr, &k, t->err);
	}
	return rc;
}

static int keep_names(void *arg, const struct meta_inode_row *row)
{
	struct rs_turn *t = arg;
	struct keeping k = {t, row, row->nlink == 0};

	if (!row->nlink && row->ino & META_VIRTUAL)
		return 0;
	return S_ISDIR(row->mode) ? rs_overlay_entries(t->job->overlay, row->ino, keep_entry, &k) : 0;
}

/* Collects the rows that stay in the upper layer.  A folder may have entries there without a row of its own, so all
 * folders that have entries are asked. */
static int keep_upper(struct rs_turn *t)
{
	const struct rs_overlay *o = t->job->overlay;
	int rc = rs_overlay_each_again(o, &t->upper, t->err);

	if (rc == 0)
		rc = rs_overlay_each(o, keep_row, t);
	return rc == 0 ? rs_overlay_each_folder(o, keep_names, t) : rc;
}

/* Drops special files whose folder the next version has not. */
static int drop_lost(struct rs_turn *t)
{
	struct meta_changes kept = {0};
	int rc = 0;

	for (size_t i = 0; rc == 0 && i < t->upper.nr; i++) {
		const struct meta_change *x = &t->upper.at[i];
		struct meta_inode_row row;

		if (x->kind == META_PUT_ENTRY) {
			rc = t->lower.inode(t->lower.arg, x->entry.parent, &t->texts, &row, t->err);
			if (rc == 0)
				continue;
		}
		rc = rc < 0 ? rc : rs_turn_put(t, &kept, *x);
	}
	/* a special file without any name left stays as one that has none */
	for (size_t i = 0; rc == 0 && i < kept.nr; i++) {
		struct meta_inode_row *row = &kept.at[i].inode;
		uint32_t names = 0;

		if (kept.at[i].kind != META_PUT_INODE || !rs_is_special(row->mode))
			continue;
		for (size_t k = 0; k < kept.nr; k++)
			names += kept.at[k].kind == META_PUT_ENTRY && kept.at[k].entry.ino == row->ino;
		row->nlink = names;
	}
	meta_changes_done(&t->upper);
	t->upper = kept;
	return rc;
}

/* --- a commit --- */

static int plan_commit(struct rs_turn *t, const struct meta_changes *rows, const struct rs_leaves *leaves)
{
	const struct rs_version *v = t->next->version;
	struct rs_view *base = t->job->head;
	int rc = rs_turn_find_others(t);

	if (rc == 0)
		rc = keep_upper(t);
	t->spec.job = t->job->id;
	t->spec.base = base ? base->version->tree : 0;
	t->spec.root = t->job->root;
	t->spec.layout = v->layout_id;
	t->spec.topology = v->topo.text;
	if (rc == 0)
		rc = rs_turn_put_others(t);
	if (rc == 0)
		rc = rs_turn_rows(t, rows, leaves);
	if (rc == 0)
		rc = rs_turn_renumber(t);
	return rc < 0 ? rc : rs_turn_put_logs(t);
}

/* --- without a commit --- */

static int by_number(const void *a, const void *b)
{
	uint64_t x = *(const uint64_t *)a, y = *(const uint64_t *)b;

	return (x > y) - (x < y);
}

static int add_held(void *arg, uint64_t ino)
{
	struct rs_turn *t = arg;

	return sc_vec_push(&t->held, ino) < 0 ? sc_nomem(t->err) : 0;
}

/* Finds the numbers that programs hold: of open files, as programs see them, and of folders and links that the kernel
 * knows, in which programs may be. */
static int find_held(struct rs_turn *t)
{
	const struct rs_events *events = &t->job->service->events;
	const uint64_t root = t->job->root;
	struct rs_view *head = t->job->head;
	struct meta_tree tree = {.id = head ? head->version->tree : 0};
	size_t nr = 0;
	int rc = events->each_open ? events->each_open(events->arg, t->job, add_held, t) : 0;

	t->opened = t->held.nr;
	if (rc == 0 && events->is_known && tree.id && (!t->next || t->next->version->tree != tree.id))
		rc = meta_tree_folders(t->job->service->catalog, &tree, add_held, t, t->err);
	nr = t->opened;
	for (size_t i = nr; rc == 0 && i < t->held.nr; i++) {
		uint64_t ino = t->held.at[i];

		/* folders of ranks come and go with topologies */
		if ((ino < root || ino - root > SC_RANKS_MAX) && !(ino & META_VIRTUAL) &&
		    events->is_known(events->arg, t->job, ino))
			t->held.at[nr++] = ino;
	}
	t->held.nr = nr;
	return rc;
}

static int keep_log(void *arg, const struct meta_inode_row *row)
{
	struct rs_turn *t = arg;

	return rs_turn_is_log(t, row->ino) ? rs_turn_keep_log(t, row) : 0;
}

/* Plans a rollback or discard.  The caller holds job.names. */
static int plan_back(struct rs_turn *t)
{
	struct rs_overlay *o = t->job->overlay;
	struct rs_held what;
	size_t nr = 0;
	int rc = 0;

	for (size_t i = 0; i < t->opened; i++)
		t->held.at[i] = rs_overlay_of_shown(o, t->held.at[i]);
	for (size_t i = 0; rc == 0 && i < t->job->by_blob.room; i++) {
		const struct rs_own *own = t->job->by_blob.slots[i].value;

		if (own && rs_work_is_open(t->job->service, own->blob) && !rs_turn_is_log(t, own->ino))
			rc = add_held(t, own->ino);
	}
	if (t->held.nr)
		qsort(t->held.at, t->held.nr, sizeof(*t->held.at), by_number);
	for (size_t i = 0; i < t->held.nr; i++)
		if ((!nr || t->held.at[i] != t->held.at[nr - 1]) && !rs_turn_is_log(t, t->held.at[i]))
			t->held.at[nr++] = t->held.at[i];
	what = (struct rs_held){t->held.at, nr};
	if (rc == 0)
		rc = rs_overlay_plan_back(o, t->now_ns, &t->lower, &what, &t->texts, &t->upper, t->err);
	return rc < 0 ? rc : rs_overlay_each(o, keep_log, t);
}

/* --- the turn --- */

int rs_turn_plan(struct rs_job *job, struct rs_view *next, enum rs_turn_by by, const struct meta_changes *rows,
		 const struct rs_leaves *leaves, struct rs_turn **ret, struct sc_err *err)
{
	struct rs_turn *t = sc_zalloc(sizeof(*t));
	int rc = t ? rs_log_drain(job->service, err) : sc_nomem(err);

	if (!t)
		return rc;
	*t = (struct rs_turn){.job = job, .next = next, .by = by, .now_ns = sc_now_wall_ns(), .err = err};
	if (rc == 0)
		rc = rs_turn_find_logs(t);
	if (rc == 0 && by == RS_TURN_BACK)
		rc = find_held(t);
	(void)pthread_rwlock_rdlock(&job->names);
	if (rc == 0 && by != RS_TURN_COMMIT)
		rc = rs_tree_lower(job, next, &t->lower, err);
	if (rc == 0 && by == RS_TURN_COMMIT)
		rc = plan_commit(t, rows, leaves);
	else if (rc == 0 && by == RS_TURN_BACK)
		rc = plan_back(t);
	else if (rc == 0 && by != RS_TURN_KEEP)
		rc = keep_upper(t);
	if (rc == 0 && (by == RS_TURN_STAY || by == RS_TURN_TAKEN))
		rc = drop_lost(t);
	if (rc == 0 && by != RS_TURN_KEEP)
		rc = rs_overlay_layer(&t->upper, &t->layer, err);
	if (rc == 0)
		rc = rs_own_of_rows(&t->upper, &t->own, err);
	(void)pthread_rwlock_unlock(&job->names);
	if (rc < 0) {
		rs_turn_done(t);
		return rc;
	}
	*ret = t;
	return 0;
}

static int save_commit(struct rs_turn *t, struct sc_err *err)
{
	struct rs_version *v = t->next->version;
	struct rs_view *base = t->job->head;
	int rc = 0;

	/* only a position in datasets has moved: the tree is the same */
	if (base && !t->moves)
		v->tree = base->version->tree;
	else
		rc = meta_tree_commit(t->job->service->catalog, &t->spec, &v->tree, err);
	if (rc == 0)
		rc = meta_upper_apply(t->job->service->catalog, &t->apart, err);
	v->floor_ns = base ? base->version->floor_ns : 0;
	/* it is read here, where it can still fail */
	return rc < 0 ? rc : rs_tree_lower(t->job, t->next, &t->lower, err);
}

int rs_turn_save(struct rs_turn *t, struct sc_err *err)
{
	struct meta_catalog *c = t->job->service->catalog;
	int rc;

	if (t->by == RS_TURN_KEEP)
		return 0;
	if (t->by == RS_TURN_COMMIT)
		return save_commit(t, err);
	if (t->by == RS_TURN_BACK && t->next)
		t->next->version->floor_ns = t->now_ns;
	rc = meta_upper_remove(c, t->job->id, err);
	return rc < 0 ? rc : meta_upper_apply(c, &t->upper, err);
}

/* Removes the files whose rows the turn has dropped. */
static void remove_files(struct rs_service *s, const struct sc_map *old, const struct sc_map *now)
{
	struct sc_err ignored;

	for (size_t i = 0; i < old->room; i++) {
		const struct rs_own *own = old->slots[i].value;

		if (own && !rs_own_find(now, own->blob))
			(void)rs_remove_bytes(s, own->blob, &ignored); /* else: at the next start */
	}
}

static void show(struct rs_job *job, const struct rs_lower *lower, struct rs_layer *layer, struct rs_view *head)
{
	struct rs_view *old;

	(void)pthread_mutex_lock(&job->state);
	rs_overlay_put(job->overlay, lower, layer);
	old = rs_job_set_head(job, head);
	(void)pthread_mutex_unlock(&job->state);
	rs_count_nameless(job);
	(void)pthread_rwlock_unlock(&job->names);
	rs_job_head_was_set(job, head, old);
}

void rs_turn_show(struct rs_turn *t, struct rs_job *job, struct rs_view *head)
{
	const bool commits = t->by == RS_TURN_COMMIT || t->by == RS_TURN_TAKEN;
	struct sc_map old;

	(void)pthread_rwlock_wrlock(&job->names);
	if (t->by == RS_TURN_KEEP) {
		show(job, &t->lower, NULL, head);
		return;
	}
	if (t->by == RS_TURN_COMMIT)
		rs_turn_renumber_own(t, job);
	if (commits)
		rs_own_sealed(job, &t->own);
	old = job->by_blob;
	job->by_blob = t->own;
	t->own = (struct sc_map){0};
	show(job, &t->lower, t->layer, head);
	t->layer = NULL;
	if (t->by == RS_TURN_BACK && t->next)
		rs_below_note_floor(t->next);
	if (!commits)
		remove_files(job->service, &old, &job->by_blob);
	sc_map_release(&old);
}

void rs_turn_done(struct rs_turn *t)
{
	if (!t)
		return;
	meta_changes_done(&t->spec.rows);
	meta_changes_done(&t->upper);
	meta_changes_done(&t->apart);
	sc_vec_done(&t->held);
	sc_map_release(&t->own);
	sc_map_done(&t->logs);
	sc_map_done(&t->others);
	rs_overlay_layer_done(t->layer);
	sc_arena_done(&t->texts);
	sc_sys.release(t);
}

void rs_tree_show(struct rs_job *job, struct rs_view *head)
{
	struct rs_lower lower = rs_committed_lower(&job->nothing);
	struct sc_err ignored;

	if (head)
		(void)rs_tree_lower(job, head, &lower, &ignored); /* it is there */
	(void)pthread_rwlock_wrlock(&job->names);
	if (!head)
		job->nothing.ranks = 0; /* it ends */
	show(job, &lower, NULL, head);
}
