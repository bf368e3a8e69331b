/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Finds the blobs of the head's files that a new set has: files that it keeps, because ranks wrote only others of the
 * same logical file, and files that were moved.  Both versions share these blobs.  A file that is still a view is made
 * real, as a set has the files of all ranks under one topology.
 */
#include "reshard/command/changed/items_i.h"

#include <string.h>

#include "reshard/engine/io/engine.h"
#include "reshard/version/verify/verify.h"

/* Compares the files of which a view is made with their hashes: a real file that is made of changed bytes would get a
 * hash of its own.  `logical`: the logical file of the set, or NULL for all sets. */
static int compare_sources(struct commit *c, const char *logical)
{
	const struct rs_version *v = c->a.base->version;
	int rc = 0;

	for (size_t i = 0; rc == 0 && i < v->nr_sets; i++) {
		const uint64_t bit = i < 64 ? UINT64_C(1) << i : 0;

		if ((logical && strcmp(logical, v->sets[i]->file) != 0) || (c->compared & bit))
			continue;
		rc = rs_verify_files(c->s, v->sets[i], NULL, NULL, c->err);
		if (rc == 0)
			c->compared |= bit;
	}
	return rc;
}

static int write_image(struct commit *c, struct item *it, const struct rs_image *im, struct sc_err *err)
{
	const struct rs_write_options how = {.will_flush = rs_job_syncs(c->job)};
	sc_cleanup(sc_closep) int fd = -1;
	struct rs_engine *engine = NULL;
	struct rs_written written;
	const char *why_not;
	int rc = rs_pin_new(c->s, &it->blob, &fd, err);

	it->pinned = rc == 0;
	if (rc == 0)
		rc = rs_engine_open(rs_engine_choose(NULL, &why_not), &c->s->store, rs_config_of(c->job).buffer_bytes,
				    &engine, err);
	if (rc == 0)
		rc = rs_engine_write(engine, &(struct rs_target){im, fd}, 1, &how, &written, err);
	rs_engine_close(engine);
	return rc;
}

/* Finds the item of a replica of lower rank that is kept, too, and whose file was just made: both have one file.  NULL:
 * there is none. */
static const struct item *twin_of(const struct commit *c, const struct item *it)
{
	uint32_t like = rs_view_alike(c->head, it->rank, it->path);
	const struct item *twin = like == it->rank ? NULL : rs_commit_item(c, like, it->path);

	return twin && twin->how == ITEM_KEPT && twin->pinned ? twin : NULL;
}

/* Finds the blob that the head has for a rank and a path, or makes the file. */
static int find_blob(struct commit *c, struct item *it, uint32_t rank, const char *path)
{
	struct rs_image *im = NULL;
	int rc = rs_view_image(c->s, c->a.base, rank, path, false, true, &im, c->err);

	if (rc < 0)
		return rc;
	it->bytes = im->bytes;
	it->blob = im->same_as;
	if (!im->same_as)
		rc = compare_sources(c, it->how == ITEM_KEPT ? it->logical : NULL);
	if (rc == 0 && !im->same_as)
		rc = write_image(c, it, im, c->err);
	if (im->same_as && rs_made_holds(c->s, im->same_as))
		it->made = true; /* by an open: nobody has flushed it */
	it->made |= it->pinned;
	rs_image_unref(c->s, im);
	return rc;
}

int rs_commit_find_moved(struct commit *c, struct item *it)
{
	struct rs_below *below;
	const char *path;
	uint64_t path_id;
	uint32_t rank;
	int rc = 0;

	if (it->blob) /* of a plain file */
		return meta_blob_bytes(c->s->catalog, it->blob, &it->bytes, c->err);
	rc = rs_view_below(c->a.base, &below, c->err);
	if (rc == 0)
		rc = rs_below_file(below, it->ino, &rank, &path_id, &path, c->err);
	if (rc == 0)
		return sc_fail(c->err, SC_E_NOT_FOUND, "the version below has no file that was moved here");
	if (rc > 0)
		rc = find_blob(c, it, rank, path);
	return rc;
}

/* Refuses to keep a file of a node that is no member now: the node may have a newer file, of which this commit does not
 * know. */
static int refuse_absent(struct commit *c, const struct item *it)
{
	uint32_t node;
	int rc = rs_blob_is_there(c->s->blobs, it->blob, &node, c->err);

	return rc ? (rc < 0 ? rc : 0)
		  : sc_fail(c->err, SC_E_BUSY, "node %u is no member of the cluster now, and may have a newer one: "
			    "wait for it, write the file on another node, or give the node up by drain", node);
}

int64_t rs_commit_step_below(const struct commit *c, uint32_t rank, const char *path)
{
	const struct rs_version *v = c->head->version;

	for (size_t i = 0; i < v->nr_sets; i++) {
		const struct rs_set *set = v->sets[i];
		const bool is_own = strcmp(set->topo.text, c->head->topo.text) == 0;
		const struct rs_set_blob *b = is_own && set->view ? rs_set_find(set, rank, path) : NULL;

		if (b)
			return b->step;
		if (!is_own && strcmp(set->file, path) == 0) /* a view of several files */
			return rs_set_oldest(set);
	}
	return META_STEP_UNKNOWN;
}

int rs_commit_keep(struct commit *c, struct item *it)
{
	const struct item *twin = twin_of(c, it);
	int rc = 0;

	if (twin) {
		it->blob = twin->blob;
		it->bytes = twin->bytes;
	} else {
		rc = find_blob(c, it, it->rank, it->path);
		if (rc == 0)
			rc = refuse_absent(c, it);
	}
	it->step = rs_commit_step_below(c, it->rank, it->path);
	if (rc == 0)
		rc = rs_view_owner(c->head, it->rank, it->path, &it->owner, c->err);
	if (rc == 0)
		rc = rs_commit_parse(c, it);
	return rc < 0 ? sc_wrap(c->err, rc, "rank %u: '%s', which is kept", it->rank, it->path) : 0;
}
