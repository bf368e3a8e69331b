/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Logs, which the layout's `log` lines name, stay in the working tree while another version comes below it, as a
 * program may write to a log at any time.  After a commit the upper layer has the row of each log that was open: its
 * number, blob and attributes.  It does not have the names of the log, which the new version has.  So a later turn lets
 * the row stay wherever the next version has the log's number, whoever has the file open: nothing that a program
 * appends is lost.
 */
#include "reshard/worktree/rebase/rows.h"

#define KEY(number) (const char *)&(number), sizeof(number)

/* --- which they are --- */

struct log {
	uint64_t ino;
	uint32_t names, below;	/* that it has, that the version has of it still */
	bool is;		/* all are names of logs */
};

struct finding {
	struct rs_job *job;
	const struct meta_layout *layout;
	struct sc_map by_ino;	/* -> struct log */
	struct sc_arena *arena;
	struct sc_err *err;
};

static int on_change(void *arg, const struct rs_change_row *row)
{
	struct finding *f = arg;
	struct log *log;

	if (row->how != RS_CHANGE_WROTE)
		return 0;
	log = sc_map_make(&f->by_ino, KEY(row->ino), f->arena, sizeof(*log));
	if (!log)
		return sc_nomem(f->err);
	log->is = (log->is || !log->names) && meta_layout_is_log(f->layout, row->path);
	log->names++;
	log->ino = row->ino;
	return 0;
}

struct counting {
	struct finding *f;
	struct log *log;
};

static int on_name(void *arg, const struct meta_entry_row *row)
{
	struct counting *n = arg;
	int rc = rs_overlay_still_names(n->f->job->overlay, row, n->f->err);

	n->log->below += rc > 0;
	return rc < 0 ? rc : 0;
}

static int find_below(struct finding *f, struct sc_map *ret)
{
	struct rs_below *below;
	int rc = rs_view_below(f->job->head, &below, f->err);

	for (size_t i = 0; rc == 0 && i < f->by_ino.room; i++) {
		struct log *log = f->by_ino.slots[i].value;
		struct counting n = {f, log};

		if (!log || !log->is)
			continue;
		rc = rs_below_names(below, log->ino, on_name, &n, f->err);
		if (rc == 0 && log->below == log->names && sc_map_put(ret, KEY(log->ino), log) < 0)
			rc = sc_nomem(f->err);
	}
	return rc;
}

/* Finds the logs that the version has under the same names: their numbers are the keys of *ret.  Texts live in
 * `arena`. */
static int find_logs(struct rs_job *job, struct sc_map *ret, struct sc_arena *arena, struct sc_err *err)
{
	struct finding f = {.job = job, .arena = arena, .err = err};
	int rc = job->head ? rs_tree_log_layout(job, &f.layout, err) : 0;

	if (rc < 0 || !f.layout)
		return rc;
	rc = rs_tree_changes(job, on_change, &f, err);
	(void)pthread_rwlock_rdlock(&job->names);
	if (rc == 0)
		rc = find_below(&f, ret);
	(void)pthread_rwlock_unlock(&job->names);
	sc_map_done(&f.by_ino);
	return rc;
}

int rs_tree_dirt_but_logs(struct rs_job *job, struct rs_dirt *ret, struct sc_buf *names, struct sc_err *err)
{
	struct sc_arena texts = {0};
	struct sc_map logs = {0};
	int rc = find_logs(job, &logs, &texts, err);

	if (rc == 0)
		rc = rs_tree_dirt_but(job, &logs, ret, names, err);
	sc_map_done(&logs);
	sc_arena_done(&texts);
	return rc;
}

/* --- that they stay --- */

/* Finds the logs that stay in the upper layer after a commit: those that programs had open. */
static int find_open(struct rs_turn *t)
{
	struct rs_job *job = t->job;
	int rc = 0;

	(void)pthread_rwlock_rdlock(&job->names);
	for (size_t i = 0; rc == 0 && i < job->logs.nr; i++) {
		struct rs_own *own = sc_map_get(&job->by_blob, KEY(job->logs.at[i]));

		if (own && sc_map_put(&t->logs, KEY(own->ino), own) < 0)
			rc = sc_nomem(t->err);
	}
	(void)pthread_rwlock_unlock(&job->names);
	return rc;
}

/* Takes the logs that nobody writes to out of t->logs: a discard brings back their committed bytes. */
static int leave_closed(struct rs_turn *t)
{
	struct rs_job *job = t->job;
	struct sc_map all = t->logs;
	int rc = 0;

	t->logs = (struct sc_map){0};
	(void)pthread_rwlock_rdlock(&job->names);
	for (size_t i = 0; rc == 0 && i < job->by_blob.room; i++) {
		struct rs_own *own = job->by_blob.slots[i].value;

		if (!own || !sc_map_get(&all, KEY(own->ino)))
			continue;
		rc = rs_tree_is_written(job, own->blob, t->err);
		if (rc > 0)
			rc = sc_map_put(&t->logs, KEY(own->ino), own) < 0 ? sc_nomem(t->err) : 0;
	}
	(void)pthread_rwlock_unlock(&job->names);
	sc_map_done(&all);
	return rc;
}

int rs_turn_find_logs(struct rs_turn *t)
{
	int rc;

	if (t->by == RS_TURN_COMMIT)
		return find_open(t);
	if (t->by != RS_TURN_STAY && t->by != RS_TURN_BACK)
		return 0;
	rc = find_logs(t->job, &t->logs, &t->texts, t->err);
	if (rc == 0 && t->next == t->job->head && t->logs.nr)
		rc = leave_closed(t);
	return rc;
}

static int put_xattr(void *arg, struct meta_bytes name, struct meta_bytes value)
{
	struct rs_turn *t = arg;
	const uint64_t ino = t->upper.at[t->upper.nr - 1].kind == META_PUT_INODE
				     ? t->upper.at[t->upper.nr - 1].inode.ino
				     : t->upper.at[t->upper.nr - 1].xattr.ino;

	return rs_turn_put(t, &t->upper, (struct meta_change){META_PUT_XATTR, .xattr = {ino, name, value}});
}

static int refuse(struct rs_turn *t, uint64_t ino)
{
	struct sc_buf name = {0};
	int rc = rs_tree_name(t->job, ino, "", &name, t->err);

	if (rc == 0)
		rc = sc_fail(t->err, SC_E_BUSY, "%s is a log that was written since the last version, and the next one "
			     "has no such file: close it, then commit or discard it first",
			     name.text ? name.text : "a file");
	sc_buf_done(&name);
	return rc;
}

int rs_turn_keep_log(struct rs_turn *t, const struct meta_inode_row *row)
{
	struct meta_inode_row below = {0};
	int rc = t->by == RS_TURN_COMMIT ? 1 : t->lower.inode(t->lower.arg, row->ino, &t->texts, &below, t->err);

	if (rc == 0 || (t->by != RS_TURN_COMMIT && rc > 0 && (!S_ISREG(below.mode) || below.nlink != row->nlink)))
		return refuse(t, row->ino);
	if (rc > 0)
		rc = rs_turn_put(t, &t->upper, (struct meta_change){META_PUT_INODE, .inode = *row});
	return rc < 0 ? rc : rs_overlay_xattrs(t->job->overlay, row->ino, put_xattr, t, t->err);
}

int rs_turn_put_logs(struct rs_turn *t)
{
	uint64_t ino = 0;
	int rc = 0;

	for (size_t i = 0; rc == 0 && t->logs.nr && i < t->upper.nr; i++) {
		const struct meta_change *x = &t->upper.at[i];

		if (x->kind == META_PUT_INODE)
			ino = x->inode.nlink && x->inode.data == META_OWN_DATA ? x->inode.ino : 0;
		if (ino && (x->kind == META_PUT_INODE || (x->kind == META_PUT_XATTR && x->xattr.ino == ino)))
			rc = rs_turn_put(t, &t->apart, *x);
	}
	return rc;
}
