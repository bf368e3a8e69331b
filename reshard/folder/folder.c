/* SPDX-License-Identifier: Apache-2.0 */
/* Reads a folder by its kind. */
#include <pthread.h>
#include <string.h>

#include "meta/base/limits.h"
#include "reshard/folder/folder_i.h"

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
	sc_sys.release(folder);
}
