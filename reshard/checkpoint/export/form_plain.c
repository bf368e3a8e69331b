/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Finds the plain files that a form shows beside a model: files in the job's own folder and in rank 0's, in no folder
 * below, whose names say that they may be a part of the model (configuration, tokenizer, templates, code).  Of two
 * files with one name the job's own is shown.  The index of a model in several files is left out: the form makes its
 * own.
 */
#include "reshard/checkpoint/export/form.h"

#include <string.h>
#include <sys/stat.h>

#include "meta/catalog/trees.h"

static const char *const endings[] = {".json", ".txt", ".model", ".jinja", ".py", ".tiktoken"};

static bool ends_with(const char *name, size_t bytes, const char *ending)
{
	size_t n = strlen(ending);

	return bytes > n && memcmp(name + bytes - n, ending, n) == 0;
}

struct walk {
	struct meta_catalog *catalog;
	struct meta_tree tree;
	struct rs_plain_files *files;
	struct {
		size_t nr, room;
		struct name {
			const char *name;
			uint64_t ino;
		} *at;
	} names;
	struct sc_err *err;
};

static int on_name(void *arg, const struct meta_entry_row *row)
{
	struct walk *w = arg;
	struct name n = {.ino = row->ino};
	bool is = false;

	for (size_t i = 0; i < sizeof(endings) / sizeof(*endings); i++)
		is |= ends_with(row->name.at, row->name.nr, endings[i]);
	if (!is || !row->ino || ends_with(row->name.at, row->name.nr, ".index.json"))
		return 0;
	n.name = sc_arena_copy(&w->files->arena, row->name.at, row->name.nr);
	return !n.name || sc_vec_push(&w->names, n) < 0 ? sc_nomem(w->err) : 0;
}

static const struct rs_plain *find(const struct rs_plain_files *files, const char *name)
{
	for (size_t i = 0; i < files->nr; i++)
		if (strcmp(files->at[i].name, name) == 0)
			return &files->at[i];
	return NULL;
}

/* Adds a file of a folder; `above` NULL: everybody who may enter the job may reach it. */
static int add_file(struct walk *w, const struct name *n, const struct meta_inode_row *above)
{
	struct meta_inode_row row;
	struct rs_plain p = {.name = n->name};
	int rc = meta_tree_inode(w->catalog, &w->tree, n->ino, &row, NULL, w->err);

	if (rc <= 0 || !S_ISREG(row.mode) || !row.blob || find(w->files, n->name))
		return rc < 0 ? rc : 0;
	p.blob = row.blob;
	p.uid = row.uid;
	p.gid = row.gid;
	p.mode = row.mode & 07777;
	if (above)
		p.mode = meta_mode_below(p.mode, p.gid, above);
	rc = meta_blob_bytes(w->catalog, p.blob, &p.bytes, w->err);
	if (rc == 0)
		rc = sc_vec_push(w->files, p) < 0 ? sc_nomem(w->err) : 0;
	return rc;
}

static int add_folder(struct walk *w, uint64_t folder, bool limits)
{
	struct meta_inode_row row;
	int rc = limits ? meta_tree_inode(w->catalog, &w->tree, folder, &row, NULL, w->err) : 0;
	const bool has_row = rc > 0;

	w->names.nr = 0;
	if (rc >= 0)
		rc = meta_tree_children(w->catalog, &w->tree, folder, on_name, w, w->err);
	for (size_t i = 0; rc >= 0 && i < w->names.nr; i++)
		rc = add_file(w, &w->names.at[i], has_row ? &row : NULL);
	return rc < 0 ? rc : 0;
}

int rs_form_plain_files(struct meta_catalog *catalog, uint64_t tree, uint64_t root, struct rs_plain_files *ret,
			struct sc_err *err)
{
	struct walk w = {.catalog = catalog, .tree.id = tree, .files = ret, .err = err};
	int rc = tree ? add_folder(&w, root, false) : 0;

	if (rc == 0 && tree)
		rc = add_folder(&w, root + 1, true);
	sc_vec_done(&w.names);
	return rc;
}

void rs_form_plain_done(struct rs_plain_files *files)
{
	sc_vec_done(files);
	sc_arena_done(&files->arena);
}

const struct rs_plain *rs_form_plain(const struct rs_formed *x, const char *name)
{
	return x->plain ? find(x->plain, name) : NULL;
}
