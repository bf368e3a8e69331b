/* SPDX-License-Identifier: Apache-2.0 */
/* Prints what a reader of `status` may not expect of a version: files that are older than the version, and files of
 * tensors that no topology cuts. */
#include "reshard/service/service.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>

#include "reshard/upkeep/background/upkeep_i.h"

#define SHOWN 8			/* lines of a kind; a count says how many there are */

/* Tells whether all files are of one step. Rows of padding that no rank is shown are not asked: nobody can
 * write them. */
static bool is_of_one_step(const struct rs_set *set)
{
	const struct rs_set_blob *first = NULL;

	for (size_t i = 0; i < set->nr_blobs; i++) {
		const struct rs_set_blob *b = &set->blobs[i];

		if (meta_file_is_hidden(b->path))
			continue;
		if (first && b->step != first->step)
			return false;
		first = b;
	}
	return true;
}

struct older {
	const struct rs_view *view;
	struct sc_buf lines;
	size_t nr;
};

/* Adds a file that is older than the version: of one rank, or of all. */
static void add_older(struct older *o, const struct rs_set *set, const struct rs_set_blob *b, bool all)
{
	char step[40] = "a commit without step=";

	if (b->step == o->view->version->step || b->step == META_STEP_UNKNOWN || o->nr++ >= SHOWN)
		return;
	if (b->step >= 0)
		(void)snprintf(step, sizeof(step), "step %" PRId64, b->step);
	if (all)
		sc_buf_line(&o->lines, "older: '%s' has tensors of %s", set->file, step);
	else if (strcmp(set->topo.text, o->view->topo.text) == 0)
		sc_buf_line(&o->lines, "older: rank %u: '%s' has tensors of %s", b->rank, b->path, step);
	else
		sc_buf_line(&o->lines, "older: rank %u of '%s': '%s' has tensors of %s", b->rank, set->topo.text,
			    b->path, step);
}

void rs_render_older(const struct rs_view *view, struct sc_buf *buf)
{
	struct older o = {.view = view};

	for (size_t i = 0; i < view->version->nr_sets; i++) {
		const struct rs_set *set = view->version->sets[i];
		const bool all = is_of_one_step(set);

		for (size_t k = 0; k < set->nr_blobs; k++) {
			if (meta_file_is_hidden(set->blobs[k].path))
				continue;
			add_older(&o, set, &set->blobs[k], all);
			if (all)
				break;
		}
	}
	if (o.nr)
		sc_buf_printf(buf, "older_files: %zu\n", o.nr);
	if (o.lines.text)
		sc_buf_add(buf, o.lines.text, o.lines.bytes);
	buf->failed |= o.lines.failed;
	sc_buf_done(&o.lines);
}

/* --- in the job's folder --- */

struct uncut {
	const struct meta_layout *layout;
	struct sc_buf folders;		/* checkpoints, each with a slash and a zero behind it */
	struct sc_buf lines;
	size_t nr;
};

static int on_folder(void *arg, struct rs_folder *folder)
{
	struct uncut *u = arg;

	sc_buf_printf(&u->folders, "%s/", folder->path);
	sc_buf_byte(&u->folders, 0);
	return 0;
}

static bool is_in_checkpoint(const struct uncut *u, const char *path)
{
	for (size_t at = 0; at < u->folders.bytes; at += strlen(u->folders.text + at) + 1)
		if (strncmp(path, u->folders.text + at, strlen(u->folders.text + at)) == 0)
			return true;
	return false;
}

/* Tells whether a path has a name as files of tensors have; the file is not read. */
static bool has_tensors_name(const char *path)
{
	static const char *const ends[] = {".safetensors", ".pt", ".pth", ".ckpt", ".bin"};
	const char *end = strrchr(path, '.');

	for (size_t i = 0; end && i < sizeof(ends) / sizeof(*ends); i++)
		if (strcmp(end, ends[i]) == 0)
			return true;
	return false;
}

static int on_shared(void *arg, uint32_t rank, const char *path, const struct meta_inode_row *row)
{
	struct uncut *u = arg;

	(void)rank;
	if (S_ISREG(row->mode) && has_tensors_name(path) && !meta_layout_is_plain(u->layout, path) &&
	    !is_in_checkpoint(u, path) && u->nr++ < SHOWN)
		sc_buf_line(&u->lines, "uncut: '%s' is in the job's folder, where no topology cuts tensors", path);
	return 0;
}

static int find_uncut(struct rs_view *view, struct sc_buf *ret, struct sc_err *err)
{
	struct uncut u = {.layout = view->version->layout};
	int rc = rs_folders_each(view->job->service->folders, view->version->tree, on_folder, &u, err);

	if (rc >= 0 && u.folders.failed)
		rc = sc_nomem(err);
	if (rc >= 0)
		rc = rs_view_each(view, RS_SHARED, on_shared, &u, err);
	if (rc >= 0 && u.nr)
		sc_buf_printf(ret, "uncut_files: %zu\n", u.nr);
	if (rc >= 0 && u.lines.text)
		sc_buf_add(ret, u.lines.text, u.lines.bytes);
	ret->failed |= u.lines.failed;
	sc_buf_done(&u.folders);
	sc_buf_done(&u.lines);
	return rc < 0 ? rc : 0;
}

/* Looks for such files once for a version's tree, which may have many files. */
int rs_render_uncut(struct rs_view *view, struct sc_buf *buf, struct sc_err *err)
{
	const struct rs_version *v = view->version;
	struct rs_job *job = view->job;
	struct sc_buf found = {0};
	bool known;
	int rc;

	(void)pthread_mutex_lock(&job->state);
	known = job->uncut.text && job->uncut.tree == v->tree && job->uncut.layout == v->layout_id;
	if (known)
		sc_buf_printf(buf, "%s", job->uncut.text);
	(void)pthread_mutex_unlock(&job->state);
	if (known || !v->tree)
		return 0;
	rc = find_uncut(view, &found, err);
	if (rc == 0 && found.failed)
		rc = sc_nomem(err);
	if (rc == 0) {
		(void)pthread_mutex_lock(&job->state);
		sc_sys.release(job->uncut.text);
		job->uncut.text = sc_strdup(found.text ? found.text : "");
		job->uncut.tree = v->tree;
		job->uncut.layout = v->layout_id;
		(void)pthread_mutex_unlock(&job->state);
		sc_buf_add(buf, found.text ? found.text : "", found.bytes);
	}
	sc_buf_done(&found);
	return rc;
}
