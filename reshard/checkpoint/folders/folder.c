/* SPDX-License-Identifier: Apache-2.0 */
/* Reads a folder by its kind. */
#include <pthread.h>
#include <string.h>

#include "meta/base/limits.h"
#include "reshard/checkpoint/folders/folder_i.h"

#define COMPARISONS_MAX (UINT64_C(1) << 28) /* of pieces with each other: a second */

static const struct kind {
	const char *marker;
	int (*read)(struct rs_folder_reading *r);
} kinds[] = {
	{RS_FOLDER_METADATA, rs_folder_read_dcp},
	{RS_FOLDER_ZERO12, rs_folder_read_zero},
	{RS_FOLDER_ZERO3, rs_folder_read_zero},
};

const char *rs_folder_marker(size_t i)
{
	return i < sizeof(kinds) / sizeof(*kinds) ? kinds[i].marker : NULL;
}

/* Lets one thread at a time read a pickle, which may take a GiB of memory. */
static pthread_mutex_t one_at_a_time = PTHREAD_MUTEX_INITIALIZER;

/* Checks that the folder can be shown under its name. */
static int check_name(const struct rs_folder_reading *r)
{
	const char *slash = strrchr(r->to->file, '/'), *name = slash ? slash + 1 : r->to->file;

	if (strchr(r->to->path, ':'))
		return sc_fail(r->err, SC_E_UNSUPPORTED, "the name of a file of tensors has no colon, which is between "
			       "it and a tensor's name; rename the folder");
	if (strlen(name) > SC_NAME_BYTES_MAX)
		return sc_fail(r->err, SC_E_UNSUPPORTED, "with '.safetensors' its name has more than %d bytes; rename "
			       "the folder", SC_NAME_BYTES_MAX);
	if (!r->to->state.nr)
		return sc_fail(r->err, SC_E_UNSUPPORTED, "it holds no tensors");
	return 1;
}

int rs_folder_read(struct rs_blobs *blobs, const char *path, rs_folder_find_fn *find, void *arg,
		   struct rs_folder **ret, struct sc_err *err)
{
	struct rs_folder_reading r = {.blobs = blobs, .find = find, .arg = arg, .budget = COMPARISONS_MAX, .err = err,
				      .to = sc_zalloc(sizeof(*r.to))};
	int rc = 0;

	*ret = NULL;
	if (!r.to)
		return sc_nomem(err);
	r.to->refs = 1;
	r.to->path = sc_arena_copy(&r.to->arena, path, strlen(path));
	r.to->file = sc_arena_printf(&r.to->arena, "%s.safetensors", path);
	if (!r.to->path || !r.to->file)
		rc = sc_nomem(err);
	(void)pthread_mutex_lock(&one_at_a_time);
	for (size_t i = 0; rc == 0 && i < sizeof(kinds) / sizeof(*kinds); i++)
		if (i == 0 || kinds[i].read != kinds[i - 1].read)
			rc = kinds[i].read(&r);
	(void)pthread_mutex_unlock(&one_at_a_time);
	if (rc > 0)
		rc = check_name(&r);
	if (rc > 0)
		*ret = rs_folder_ref(r.to);
	rs_folder_close(&r);
	sc_arena_done(&r.arena);
	rs_folder_unref(r.to);
	return rc < 0 ? sc_wrap(err, rc, "checkpoint folder '%s'", path) : 0;
}

/* Returns how many of a tensor's rows are padding under a layout, and in which dimension. */
static uint64_t padding_of(const struct meta_layout *layout, const struct meta_tensor *t, int *ret_dim)
{
	const struct meta_rule *r;
	struct meta_caps caps;
	uint32_t at = 0;

	do
		r = meta_layout_next(layout, true, t->file, t->name, &at, &caps);
	while (r && r->tied);
	return r && !r->is_stack ? meta_cuts_padding(NULL, r->cuts, r->nr_cuts, &t->shape, ret_dim) : 0;
}

/* Adds the boxes that a tensor has from row `size` of a dimension on, as those of its padding. */
static int add_padding(struct rs_folder *to, const struct rs_placed_tensor *of, int dim, uint64_t size)
{
	struct rs_placed_tensor placed = {0};

	placed.boxes = sc_arena_array(&to->arena, of->nr + 1, sizeof(*placed.boxes));
	for (uint64_t i = 0; placed.boxes && i < of->nr; i++) {
		struct rs_placed_box b = of->boxes[i];
		const uint64_t before = b.box.off[dim] < size ? size - b.box.off[dim] : 0;

		if (b.box.ext[dim] <= before)
			continue;
		b.box.off[dim] += before - size;
		b.box.ext[dim] -= before;
		b.box.at += before * b.box.stride[dim];
		placed.boxes[placed.nr++] = b;
	}
	return placed.boxes && sc_vec_push(&to->tensors, placed) == 0 ? 0 : -1;
}

static int fill_under(struct rs_folder *to, const struct rs_folder *folder, const struct meta_layout *layout)
{
	for (uint32_t i = 0; i < folder->state.nr; i++) {
		const struct meta_tensor *t = &folder->state.tensors[i];
		struct meta_tensor like = *t;
		int dim = 0;
		const uint64_t rows = padding_of(layout, t, &dim);

		if (rows)
			like.shape.dim[dim] -= rows;
		if (meta_state_add(&to->state, t->key, strlen(t->key), t->dtype, &like.shape) < 0 ||
		    sc_vec_push(&to->tensors, folder->tensors.at[i]) < 0)
			return -1;
		if (rows && (meta_state_add_padding(&to->state, &like, dim, rows) < 0 ||
			     add_padding(to, &folder->tensors.at[i], dim, like.shape.dim[dim]) < 0))
			return -1;
	}
	for (size_t i = 0; i < folder->files.nr; i++)
		if (sc_vec_push(&to->files, folder->files.at[i]) < 0)
			return -1;
	for (size_t i = 0; i < folder->objects.nr; i++)
		if (sc_vec_push(&to->objects, folder->objects.at[i]) < 0)
			return -1;
	return 0;
}

int rs_folder_under(struct rs_folder *folder, const struct meta_layout *layout, struct rs_folder **ret,
		    struct sc_err *err)
{
	struct rs_folder *to;
	uint32_t i = 0;
	int dim;

	while (i < folder->state.nr && !padding_of(layout, &folder->state.tensors[i], &dim))
		i++;
	if (i == folder->state.nr) {
		*ret = rs_folder_ref(folder);
		return 0;
	}
	to = sc_zalloc(sizeof(*to));
	if (!to)
		return sc_nomem(err);
	to->refs = 1;
	to->path = folder->path;
	to->file = folder->file;
	to->chunks = folder->chunks;
	to->of = rs_folder_ref(folder);
	if (fill_under(to, folder, layout) < 0) {
		rs_folder_unref(to);
		return sc_nomem(err);
	}
	*ret = to;
	return 0;
}

struct rs_folder *rs_folder_ref(struct rs_folder *folder)
{
	(void)__atomic_add_fetch(&folder->refs, 1, __ATOMIC_RELAXED);
	return folder;
}

void rs_folder_unref(struct rs_folder *folder)
{
	if (!folder || __atomic_sub_fetch(&folder->refs, 1, __ATOMIC_ACQ_REL))
		return;
	meta_state_done(&folder->state);
	sc_vec_done(&folder->tensors);
	sc_vec_done(&folder->files);
	sc_vec_done(&folder->objects);
	sc_arena_done(&folder->arena);
	rs_folder_unref(folder->of);
	sc_sys.release(folder);
}
