/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Gives a job without a version its first layout or topology, and with them the folders of its ranks, so that ranks can
 * save without making any.
 *
 *  F1  From when both are known until the first version, the layer below the working tree has the folders 0 to N-1,
 *      as a version has those of its ranks (job.nothing, requests/begin.c).  Nothing is stored of one until something
 *      is in it.  Mode and owner follow from the job, as it is now (rs_owner_of_folder()).
 *  F2  An upper row of such a folder comes with the first thing that is made in it, and has no upper name.  So with
 *      another N, a folder that is in no layer below any more gets a name if anything is in it, and else its row goes.
 *      Folders that programs have made have names, and stay.
 *  F3  Such a folder may be removed, since `rm -r` has to remove a job without a version.  It is back with the next
 *      layout or topology.
 *  F4  The link count of the job's folder is counted anew if the layer below does not tell it: an upper row does, and
 *      there is one if any of these folders has a name.
 *  F5  Rows, layout and topology change in one transaction, and in memory in one instant, with the gate closed.
 *
 * A folder that nobody has put anything into has no row, so it is not uncommitted, and no node of a cluster sends it.
 * Since a first version takes the rows of the upper layer alone, those of ranks get their names then (rebase/rows.c).
 */
#include "reshard/worktree/rebase/turn_i.h"

#include <inttypes.h>
#include <stdio.h>
#include <sys/stat.h>

#include "meta/base/limits.h"
#include "meta/base/text.h"

struct rs_first {
	struct rs_job *job;
	uint64_t layout;
	char *topology;
	uint32_t ranks;
	struct meta_changes rows;
	struct rs_ready *ready;
	struct sc_map named;		/* ranks whose folders have upper names: number -> anything */
	uint32_t shown, stay;		/* folders of ranks: that there are, that stay beyond `ranks` */
	struct sc_arena texts;
	struct sc_err *err;
};

#define KEY(number) (const char *)&(number), sizeof(number)

static int put(struct rs_first *f, struct meta_change change)
{
	return sc_vec_push(&f->rows, change) < 0 ? sc_nomem(f->err) : 0;
}

static int drop_row(struct rs_first *f, uint64_t ino)
{
	return put(f, (struct meta_change){META_DROP_INODE, .inode.ino = ino});
}

static bool is_rank(struct meta_bytes name, uint32_t *ret)
{
	return sc_number_parse(name.at, name.nr, ret) && *ret < SC_RANKS_MAX;
}

/* Brings a removed folder back, and notes one that has a name. */
static int on_name(void *arg, struct meta_bytes name, uint64_t ino)
{
	struct rs_first *f = arg;
	uint64_t *kept;
	uint32_t rank;

	if (!is_rank(name, &rank))
		return 0;
	if (!ino)
		return put(f, (struct meta_change){META_DROP_ENTRY, .entry = {f->job->root, name, 0}});
	f->stay += rank >= f->ranks;
	kept = sc_arena_alloc(&f->texts, sizeof(*kept));
	if (!kept)
		return sc_nomem(f->err);
	*kept = ino;
	return sc_map_put(&f->named, KEY(*kept), kept) < 0 ? sc_nomem(f->err) : 0;
}

static int one_child(void *arg, struct meta_bytes name, uint64_t ino)
{
	(void)arg;
	(void)name;
	(void)ino;
	return 1;
}

static int on_row(void *arg, const struct meta_inode_row *row)
{
	struct rs_first *f = arg;
	const uint64_t root = f->job->root, ino = row->ino;
	char name[16];
	int rc, n;

	if (ino <= root || ino - root > SC_RANKS_MAX)
		return 0;
	if (!row->nlink)
		return drop_row(f, ino);
	if (ino - root <= f->ranks || sc_map_get(&f->named, KEY(ino)))
		return 0;
	rc = rs_overlay_children(f->job->overlay, ino, one_child, NULL, f->err);
	if (rc <= 0)
		return rc < 0 ? rc : drop_row(f, ino);
	f->stay++;
	n = snprintf(name, sizeof(name), "%" PRIu64, ino - root - 1);
	return put(f, (struct meta_change){META_PUT_ENTRY, .entry = {root, {sc_arena_copy(&f->texts, name, (size_t)n),
								     (size_t)n}, ino}});
}

static int count_shown(void *arg, struct meta_bytes name, uint64_t ino)
{
	struct rs_first *f = arg;
	uint32_t rank;

	(void)ino;
	f->shown += is_rank(name, &rank);
	return 0;
}

static int count_links(struct rs_first *f)
{
	struct meta_change x = {META_PUT_INODE};
	const struct rs_overlay *o = f->job->overlay;
	const bool has_row = rs_overlay_has(o, f->job->root);
	int rc = has_row || f->stay ? rs_overlay_inode(o, f->job->root, &f->texts, &x.inode, f->err) : 0;

	if (rc > 0)
		rc = rs_overlay_children(o, f->job->root, count_shown, f, f->err) < 0 ? f->err->code : 1;
	if (rc <= 0 || (has_row && f->shown == f->ranks + f->stay))
		return rc < 0 ? rc : 0;
	x.inode.nlink += f->ranks + f->stay - f->shown;
	x.inode.mtime_ns = x.inode.ctime_ns = sc_now_wall_ns();
	return put(f, x);
}

static int plan(struct rs_first *f)
{
	struct rs_overlay *o = f->job->overlay;
	int rc = rs_overlay_entries(o, f->job->root, on_name, f);

	if (rc == 0)
		rc = rs_overlay_each(o, on_row, f);
	if (rc == 0)
		rc = count_links(f);
	return rc < 0 ? rc : rs_overlay_ready(o, &f->rows, &f->ready, f->err);
}

int rs_first_plan(struct rs_job *job, uint64_t layout, const char *topology, struct rs_first **ret, struct sc_err *err)
{
	struct rs_first *f = sc_zalloc(sizeof(*f));
	int rc = f ? rs_log_drain(job->service, err) : sc_nomem(err);

	if (!f)
		return rc;
	*f = (struct rs_first){.job = job, .layout = layout, .topology = topology ? sc_strdup(topology) : NULL,
			       .err = err};
	if (rc == 0 && topology && !f->topology)
		rc = sc_nomem(err);
	if (rc == 0)
		rc = rs_first_ranks(job->service, layout, topology, &f->ranks, err);
	(void)pthread_rwlock_rdlock(&job->names);
	if (rc == 0)
		rc = plan(f);
	(void)pthread_rwlock_unlock(&job->names);
	if (rc < 0) {
		rs_first_done(f);
		return rc;
	}
	*ret = f;
	return 0;
}

const struct meta_changes *rs_first_rows(const struct rs_first *f)
{
	return &f->rows;
}

void rs_first_show(struct rs_first *f)
{
	struct rs_job *job = f->job;
	struct rs_lower lower;

	(void)pthread_rwlock_wrlock(&job->names);
	(void)pthread_mutex_lock(&job->state);
	job->first_layout = f->layout;
	sc_sys.release(job->first_topology);
	job->first_topology = f->topology;
	f->topology = NULL;
	job->nothing.ranks = f->ranks;
	lower = rs_committed_lower(&job->nothing);
	rs_overlay_put_ready(job->overlay, &lower, f->ready);
	(void)pthread_mutex_unlock(&job->state);
	rs_count_nameless(job);
	(void)pthread_rwlock_unlock(&job->names);
	job->service->events.names_changed(job->service->events.arg);
	rs_job_tell(job);
}

void rs_first_done(struct rs_first *f)
{
	if (!f)
		return;
	rs_overlay_ready_done(f->ready);
	meta_changes_done(&f->rows);
	sc_map_done(&f->named);
	sc_arena_done(&f->texts);
	sc_sys.release(f->topology);
	sc_sys.release(f);
}
