/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Keeps files of a head on a node of a cluster, for that node.  All nodes show the version as it is stored, wherever
 * that is.  The files of ranks that have their home on this node are kept here, and read here, whatever becomes of the
 * others:
 *
 *     a view                is written as a file, which has a row (table `home`), and is in job.made from then on, as
 *                           if an open had made it
 *     another node's blob   is copied (copies.c)
 *
 * 1. The row of a kept file comes after its bytes are on stable storage.
 * 2. The version's storage stays, until all nodes have said which files they keep, and these become the storage
 *    (reshard/cluster/stored/stored.c).
 */
#include "reshard/upkeep/background/pass.h"

#include <errno.h>
#include <string.h>
#include <sys/stat.h>

#include "meta/catalog/nodes.h"

#define SMALL (1u << 20)	/* every node keeps the job's own files up to this */

/* --- which ranks --- */

/* Finds the first file of a rank in a set, or the place where it would be. */
static size_t first_of(const struct rs_set *set, uint32_t rank)
{
	return sc_first(set->nr_blobs, i, set->blobs[i].rank >= rank);
}

/* Tells whether this node is the home of a rank: `home=` says so, or, without it, the head is stored in files of this
 * node for the rank. */
bool rs_home(const struct rs_view *head, uint32_t rank)
{
	const struct rs_config config = rs_config_of(head->job);
	const struct rs_version *v = head->version;
	struct sc_err ignored;
	uint64_t number;
	uint32_t node;

	if (*config.home)
		return rs_ranks_have(config.home, rank);
	for (size_t i = 0; i < v->nr_sets; i++) {
		const struct rs_set *set = v->sets[i];

		for (size_t k = first_of(set, rank); k < set->nr_blobs && set->blobs[k].rank == rank; k++)
			if (meta_blob_origin(head->origins.catalog, set->blobs[k].blob, &node, &number, &ignored) == 0)
				return true;
	}
	return false;
}

bool rs_homes_are_here(const struct rs_view *head)
{
	struct rs_job *job = head->job;
	bool are;

	(void)pthread_mutex_lock(&job->state);
	are = job->homes.view == head->id;
	(void)pthread_mutex_unlock(&job->state);
	return are;
}

struct keeping {
	struct rs_pass *p;
	uint64_t bytes;			/* of all that is kept */
	uint32_t ranks;
	struct rs_copying copying;
};

static int copy_blob(struct keeping *k, uint64_t blob, uint64_t bytes, int rank, const char *path)
{
	int rc = rs_copies_next(&k->copying);

	if (rc == 0)
		rc = rs_copy_blob(&k->copying, blob, bytes, rank);
	k->bytes += bytes;
	return rc < 0 ? sc_wrap(k->p->err, rc, "keeping '%s' here", path) : 0;
}

/* --- views --- */

/* Finds the entry of a file that an open or a pass made; NULL: there is none.  The caller holds job.state. */
static struct rs_made *made_of(struct rs_job *job, uint64_t view, uint32_t rank, const char *path)
{
	for (size_t i = 0; i < job->made.nr; i++) {
		struct rs_made *m = &job->made.at[i];

		if (m->view == view && m->rank == rank && strcmp(m->path, path) == 0)
			return m;
	}
	return NULL;
}

static bool is_kept(const struct rs_view *head, uint32_t rank, const char *path)
{
	struct rs_job *job = head->job;
	const struct rs_made *made;
	bool is;

	(void)pthread_mutex_lock(&job->state);
	made = made_of(job, head->id, rank, path);
	is = made && made->kept;
	(void)pthread_mutex_unlock(&job->state);
	return is;
}

struct listing {
	struct keeping *k;
	const char *logical;
	struct rs_set *set;		/* files that are to be written */
	uint32_t rank;
};

static int on_file(void *arg, const char *file, const char *logical)
{
	const struct listing *l = arg;
	struct rs_pass *p = l->k->p;
	struct rs_set_blob b = {.rank = rs_view_alike(p->head, l->rank, file)};
	struct rs_image *im = NULL;
	uint64_t same, bytes;
	int rc;

	if (strcmp(logical, l->logical) != 0)
		return 0;
	rc = rs_path_id(p->job, file, &b.path_id, p->err);
	if (rc == 0)
		rc = rs_path_text(p->s, b.path_id, &b.path, p->err);
	if (rc == 0)
		rc = rs_view_image(p->s, p->head, l->rank, file, false, false, &im, p->err);
	if (rc < 0)
		return rc;
	same = im->same_as;
	bytes = im->bytes;
	rs_image_unref(p->s, im);
	if (same && !rs_made_holds(p->s, same))
		return copy_blob(l->k, same, bytes, (int)l->rank, b.path);
	l->k->bytes += bytes;
	return is_kept(p->head, b.rank, b.path) ? 0 : rs_set_add_blob(l->set, b) < 0 ? sc_nomem(p->err) : 0;
}

/* Keeps files that were written: adds their rows, then puts them into the list, where opens find them. */
static int keep_files(struct rs_pass *p, const struct rs_set *set, struct sc_err *err)
{
	struct rs_job *job = p->job;
	int rc = meta_catalog_begin(p->s->catalog, rs_job_syncs(job), err);

	if (rc < 0)
		return rc;
	for (size_t i = 0; rc == 0 && i < set->nr_blobs; i++) {
		const struct rs_set_blob *b = &set->blobs[i];
		const struct meta_home_row row = {p->head->version->id, b->rank, b->path_id, b->blob, b->bytes};

		rc = meta_home_put(p->s->catalog, &row, err);
	}
	rc = meta_catalog_end(p->s->catalog, rc, err);
	(void)pthread_mutex_lock(&job->state);
	for (size_t i = 0; rc == 0 && job->head == p->head && i < set->nr_blobs; i++) {
		const struct rs_set_blob *b = &set->blobs[i];
		struct rs_made *is = made_of(job, p->head->id, b->rank, b->path);
		const struct rs_made made = {.view = p->head->id, .blob = b->blob, .bytes = b->bytes, .rank = b->rank,
					     .path = b->path, .kept = true};

		if (is)
			*is = made;
		else if (sc_vec_push(&job->made, made) < 0)
			rc = sc_nomem(err);
	}
	(void)pthread_mutex_unlock(&job->state);
	return rc;
}

/* Marks the images of these files as superseded: a lookup from now on finds the file. */
static void supersede(struct rs_pass *p, const struct rs_set *set)
{
	struct rs_image *im;
	struct sc_err ignored;

	for (size_t i = 0; i < set->nr_blobs; i++) {
		const struct rs_set_blob *b = &set->blobs[i];

		if (rs_view_image(p->s, p->head, b->rank, b->path, false, false, &im, &ignored) < 0)
			continue;
		if (im->same_as != b->blob)
			rs_image_supersede(p->s, im);
		rs_image_unref(p->s, im);
	}
}

int rs_homes_take(struct rs_pass *p, const struct rs_set *set, struct sc_err *err)
{
	int rc = keep_files(p, set, err);

	if (rc == 0)
		supersede(p, set);
	return rc;
}

/* Makes files of the views of a rank: of the files that the head presents otherwise than they are stored. */
static int keep_views(struct keeping *k, const struct rs_set *of, uint32_t rank)
{
	struct rs_pass *p = k->p;
	struct listing l = {k, of->file, rs_set_new(of->file, of->format), rank};
	int rc = l.set ? meta_view_files(p->head->model, rank, on_file, &l) : sc_nomem(p->err);

	if (rc == 0 && l.set->nr_blobs) {
		rc = rs_materialize_files(p, l.set, NULL, NULL);
		if (rc == 0)
			rc = rs_homes_take(p, l.set, p->err);
	}
	rs_set_unref(l.set);
	return rc;
}

/* --- a rank --- */

static int on_shown(void *arg, uint32_t rank, const char *path, const struct meta_inode_row *row)
{
	struct keeping *k = arg;
	uint64_t bytes;
	int rc;

	if (!S_ISREG(row->mode) || !row->blob)
		return 0;
	rc = meta_blob_bytes(k->p->s->catalog, row->blob, &bytes, k->p->err);
	if (rc < 0 || (rank == RS_SHARED && bytes > SMALL))
		return rc;
	return copy_blob(k, row->blob, bytes, rank == RS_SHARED ? -1 : (int)rank, path);
}

static int keep_rank(struct keeping *k, uint32_t rank)
{
	struct rs_view *head = k->p->head;
	const struct rs_version *v = head->version;
	int rc = 0;

	k->ranks++;
	for (size_t i = 0; rc == 0 && i < v->nr_sets; i++)
		rc = keep_views(k, v->sets[i], rank);
	return rc < 0 ? rc : rs_view_each(head, rank, on_shown, k, k->p->err);
}

int rs_homes_keep(struct rs_pass *p)
{
	struct keeping k = {.p = p, .copying = {.p = p}};
	bool *homes = sc_zalloc_array(p->head->topo.ranks, sizeof(*homes));
	struct rs_job *job = p->job;
	uint64_t again;
	int rc = 0;

	if (!homes)
		return sc_nomem(p->err);
	for (uint32_t rank = 0; rank < p->head->topo.ranks; rank++)
		homes[rank] = rs_home(p->head, rank);

	(void)pthread_mutex_lock(&job->state);
	again = job->homes.again;
	(void)pthread_mutex_unlock(&job->state);
	rs_step(RS_STEP_MATERIALIZE_CHECK);
	rs_pass_begin(p, "materializing", rs_head_bytes(p->head, homes));
	rs_step(RS_STEP_MATERIALIZE_WRITE);
	if (p->s->head && p->s->head->joint)
		rc = p->s->head->joint(p->s, p);
	for (uint32_t rank = 0; rc == 0 && rank < p->head->topo.ranks; rank++) {
		if (homes[rank])
			rc = keep_rank(&k, rank);
		rs_pass_reach(p, k.bytes);
	}
	if (rc == 0)
		rc = rs_view_each(p->head, RS_SHARED, on_shown, &k, p->err);
	rc = rs_copies_end(&k.copying, rc);
	if (rc == 0 && p->s->head && p->s->head->kept)
		rc = p->s->head->kept(p->s, p->head, p->err);
	(void)pthread_mutex_lock(&job->state);
	if (rc == 0 && job->head == p->head && job->homes.again == again) {
		job->homes.view = p->head->id;
		job->homes.bytes = k.bytes;
		job->homes.ranks = k.ranks;
	}
	(void)pthread_mutex_unlock(&job->state);
	rs_pass_end(p);
	sc_sys.release(homes);
	return rc;
}

/* --- of an earlier daemon --- */

struct loading {
	struct rs_job *job;
	struct sc_err *err;
};

static int on_row(void *arg, const struct meta_home_row *row)
{
	const struct loading *l = arg;
	struct rs_made made = {.view = l->job->head->id, .blob = row->blob, .bytes = row->bytes,
			       .rank = (uint32_t)row->rank, .kept = true};
	int rc = rs_path_text(l->job->service, row->path, &made.path, l->err);

	return rc < 0 ? rc : sc_vec_push(&l->job->made, made) < 0 ? sc_nomem(l->err) : 0;
}

int rs_homes_load(struct rs_job *job, struct sc_err *err)
{
	struct loading l = {job, err};

	return job->head ? meta_home_each(job->service->catalog, job->head->version->id, on_row, &l, err) : 0;
}
