/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Shows each rank's files of tensors as torch.save() writes them.
 *
 *     model.safetensors -> model.pt      a dict of tensors by name
 *     model.pt          -> model.pt      the file itself
 *     rng.bin           -> rng.bin       bytes without a format: itself
 *
 * If another file of the rank needs the name model.pt, for itself or for a folder, model.safetensors is shown as
 * model.safetensors.pt; if a file needs that name, too, it is not shown.
 */
#include "reshard/checkpoint/export/form.h"

#include <string.h>

#define TORCH "torch"
#define SAFETENSORS ".safetensors"
#define PT ".pt"

/* A rank's files, by their stored names. */
struct stored {
	const char *file;
	bool stays;		/* it is shown as it is */
};

struct stored_files {
	const struct rs_formed *x;
	size_t nr, room;
	struct stored *at;
	struct sc_arena arena;
	struct sc_err *err;
};

static bool stays(const struct rs_formed *x, const char *logical)
{
	const struct rs_origins *o = x->origins;
	const struct meta_tensor like = {.file = logical};
	const struct rs_format_ops *own = o->format_of(o->arg, o->view_of(o->arg, &like));

	return own == rs_format_find(TORCH) || own == &rs_format_plain;
}

static int on_file(void *arg, const char *file, const char *logical)
{
	struct stored_files *all = arg;
	struct stored s = {sc_arena_copy(&all->arena, file, strlen(file)), stays(all->x, logical)};

	if (meta_file_is_hidden(file))
		return 0;
	return !s.file || sc_vec_push(all, s) < 0 ? sc_nomem(all->err) : 0;
}

static void files_done(struct stored_files *all)
{
	sc_vec_done(all);
	sc_arena_done(&all->arena);
}

/* Tells whether a name is needed by a file that is shown as it is, or for a folder above a file. */
static bool is_taken(const struct stored_files *all, const char *name)
{
	const size_t n = strlen(name);

	for (size_t i = 0; i < all->nr; i++) {
		const char *file = all->at[i].file;

		if (strncmp(file, name, n) == 0 && (file[n] == '/' || (!file[n] && all->at[i].stays)))
			return true;
	}
	return false;
}

/* Gives the name under which a stored file is shown; *ret NULL: it is not shown. */
static int shown_name(struct stored_files *all, const struct stored *s, const char **ret)
{
	const size_t n = strlen(s->file), m = sizeof(SAFETENSORS) - 1;
	const size_t stem = n > m && strcmp(s->file + n - m, SAFETENSORS) == 0 ? n - m : n;

	*ret = s->file;
	if (s->stays)
		return 0;
	*ret = sc_arena_printf(&all->arena, "%.*s%s", (int)stem, s->file, PT);
	if (*ret && stem < n && is_taken(all, *ret))
		*ret = sc_arena_printf(&all->arena, "%s%s", s->file, PT);
	if (!*ret)
		return sc_nomem(all->err);
	if (is_taken(all, *ret))
		*ret = NULL;
	return 0;
}

static int files(const struct rs_formed *x, uint32_t rank, rs_form_file_fn *each, void *arg, struct sc_err *err)
{
	struct stored_files all = {.x = x, .err = err};
	int rc = meta_view_files(x->view, rank, on_file, &all);

	if (rc == SC_E_NO_MEMORY)
		rc = sc_nomem(err);
	for (size_t i = 0; rc == 0 && i < all.nr; i++) {
		const char *name;

		rc = shown_name(&all, &all.at[i], &name);
		if (rc == 0 && name)
			rc = each(arg, name);
	}
	files_done(&all);
	return rc;
}

/* Tells whether a file can be shown under a name: both begin alike, but for what is put behind. */
static bool may_be(const char *file, const char *shown)
{
	size_t n = strlen(shown), m = sizeof(PT) - 1;

	return strcmp(file, shown) == 0 || (n > m && strncmp(file, shown, n - m) == 0);
}

static int stored(const struct rs_formed *x, uint32_t rank, const char *file, struct sc_arena *arena, const char **ret,
		  struct sc_err *err)
{
	struct stored_files all = {.x = x, .err = err};
	const char *found = NULL, *name;
	int rc = meta_view_files(x->view, rank, on_file, &all);

	if (rc == SC_E_NO_MEMORY)
		rc = sc_nomem(err);
	for (size_t i = 0; rc == 0 && !found && i < all.nr; i++) {
		rc = may_be(all.at[i].file, file) ? shown_name(&all, &all.at[i], &name) : 1;
		if (rc == 0 && name && strcmp(name, file) == 0)
			found = all.at[i].file;
		rc = rc < 0 ? rc : 0;
	}
	if (rc == 0 && !found)
		rc = sc_fail(err, SC_E_NOT_FOUND, "rank %u has no file '%s'", rank, file);
	if (rc == 0) {
		*ret = sc_arena_copy(arena, found, strlen(found));
		rc = *ret ? 0 : sc_nomem(err);
	}
	files_done(&all);
	return rc;
}

struct find {
	const struct rs_formed *x;
	const char *file;
	bool stays;
};

static int on_sought(void *arg, const char *file, const char *logical)
{
	struct find *f = arg;

	if (strcmp(file, f->file) != 0)
		return 0;
	f->stays = stays(f->x, logical);
	return 1;
}

static int image(const struct rs_formed *x, uint32_t rank, const char *file, bool as_view, struct rs_image **ret,
		 struct sc_err *err)
{
	struct rs_origins o = *x->origins;
	struct find f = {x, file, true};
	int rc = meta_view_files(x->view, rank, on_sought, &f);

	if (rc == SC_E_NO_MEMORY)
		return sc_nomem(err);
	if (!f.stays)
		o.as = rs_format_find(TORCH);
	return rs_image_new(x->view, rank, file, as_view || !f.stays, &o, ret, err);
}

const struct rs_form rs_form_pt = {
	.mark = '%', .folders = true, .tensors_alone = true, .files = files, .image = image, .stored = stored,
};
