/* SPDX-License-Identifier: Apache-2.0 */
#include "reshard/checkpoint/export/form.h"

#include <assert.h>

static const struct rs_form *const forms[] = {&rs_form_ranks, &rs_form_pt, &rs_form_dcp, &rs_form_hf, &rs_form_vllm,
					      &rs_form_gpu};

const struct rs_form *rs_form_of(char mark)
{
	for (size_t i = 0; i < sizeof(forms) / sizeof(*forms); i++)
		if (forms[i]->mark == mark)
			return forms[i];
	return NULL;
}

int rs_form_files(const struct rs_form *form, const struct rs_formed *x, uint32_t rank, rs_form_file_fn *each,
		  void *arg, struct sc_err *err)
{
	if (rank >= (form->one_folder ? 1 : x->view->topo->ranks))
		return 0;
	return form->files(x, rank, each, arg, err);
}

int rs_form_stored(const struct rs_form *form, const struct rs_formed *x, uint32_t rank, const char *file,
		   struct sc_arena *arena, const char **ret, struct sc_err *err)
{
	*ret = file;
	return form->stored ? form->stored(x, rank, file, arena, ret, err) : 0;
}

int rs_form_image(const struct rs_form *form, const struct rs_formed *x, uint32_t rank, const char *file, bool as_view,
		  struct rs_image **ret, struct sc_err *err)
{
	struct rs_image *image = NULL;
	int rc = form->image(x, rank, file, as_view, &image, err);

	assert((rc == 0) == (image != NULL) && (rc == 0 || err->code == rc));
	if (rc == 0)
		*ret = image;
	return rc;
}

bool rs_form_version(const struct rs_form *form, const struct rs_formed *x, const char *path, uint32_t *ret)
{
	return form->version_of && form->version_of(x, path, ret);
}

bool rs_form_is_of(const struct rs_form *form, const struct rs_formed *x, const char *file, const char *logical)
{
	return !form->is_of || form->is_of(x, file, logical);
}

/* --- ranks' files as they are --- */

struct each_file {
	rs_form_file_fn *each;
	void *arg;
	struct sc_err *err;
};

static int on_file(void *arg, const char *file, const char *logical)
{
	const struct each_file *e = arg;

	(void)logical;
	return meta_file_is_hidden(file) ? 0 : e->each(e->arg, file);
}

static int files(const struct rs_formed *x, uint32_t rank, rs_form_file_fn *each, void *arg, struct sc_err *err)
{
	struct each_file e = {each, arg, err};
	int rc = meta_view_files(x->view, rank, on_file, &e);

	return rc == SC_E_NO_MEMORY ? sc_nomem(err) : rc;
}

static int image(const struct rs_formed *x, uint32_t rank, const char *file, bool as_view, struct rs_image **ret,
		 struct sc_err *err)
{
	return rs_image_new(x->view, rank, file, as_view, x->origins, ret, err);
}

const struct rs_form rs_form_ranks = {.folders = true, .files = files, .image = image};
const struct rs_form rs_form_gpu = {.mark = '$', .folders = true, .files = files, .image = image};
