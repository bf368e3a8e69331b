/* SPDX-License-Identifier: Apache-2.0 */
/* Opens files and adds tensors, for the readers of all kinds of folders. */
#include <string.h>

#include "meta/base/limits.h"
#include "meta/base/text.h"
#include "reshard/checkpoint/folders/folder_i.h"

/* --- files --- */

int rs_folder_open(struct rs_folder_reading *r, const char *path, struct rs_folder_open **ret)
{
	struct rs_folder_open *f = sc_map_get(&r->files, path, strlen(path));
	struct rs_folder_file info;
	int rc;

	*ret = f;
	if (f)
		return 1;
	rc = r->find(r->arg, path, &info, r->err);
	if (rc <= 0)
		return rc;
	info.path = sc_arena_copy(&r->to->arena, path, strlen(path));
	f = info.path ? sc_arena_alloc(&r->arena, sizeof(*f)) : NULL;
	if (!f)
		return sc_nomem(r->err);
	f->info = info;
	rc = rs_blob_place(r->blobs, info.blob, info.bytes, 0, &f->place, r->err);
	if (rc >= 0)
		rc = rs_place_open(&f->place, &f->bytes, r->err);
	if (rc < 0)
		return sc_wrap(r->err, rc, "'%s'", path);
	if (sc_map_put(&r->files, info.path, strlen(path), f) < 0) {
		rs_place_close(&f->place, f->bytes);
		return sc_nomem(r->err);
	}
	*ret = f;
	return sc_vec_push(&r->to->files, info) < 0 ? sc_nomem(r->err) : 1;
}

static int read_file(void *arg, uint64_t at, uint64_t bytes, void *to, struct sc_err *err)
{
	const struct rs_folder_open *f = arg;

	return rs_bytes_read(f->bytes, at, bytes, to, err);
}

struct rs_window rs_folder_window(struct rs_folder_open *file, uint64_t at, uint64_t bytes)
{
	return (struct rs_window){.base = at, .bytes = bytes, .arg = file, .read = read_file};
}

void rs_folder_close(struct rs_folder_reading *r)
{
	for (size_t i = 0; i < r->files.room; i++) {
		const struct rs_folder_open *f = r->files.slots[i].value;

		if (f)
			rs_place_close(&f->place, f->bytes);
	}
	sc_map_done(&r->files);
}

/* --- tensors --- */

int rs_folder_add(struct rs_folder_reading *r, const char *name, enum meta_dtype dtype, const struct meta_shape *shape,
		  struct rs_placed_tensor placed)
{
	char *key = sc_arena_printf(&r->arena, "%s:%s", r->to->file, name);

	if (!sc_is_utf8(name, strlen(name), false) || strcmp(name, "__metadata__") == 0)
		return sc_fail(r->err, SC_E_UNSUPPORTED, "safetensors cannot hold a tensor of the name '%s'", name);
	if (r->to->state.nr == SC_TENSORS_MAX)
		return sc_fail(r->err, SC_E_LIMIT, "it has more than %u tensors", SC_TENSORS_MAX);
	if (!key || meta_state_add(&r->to->state, key, strlen(key), dtype, shape) < 0)
		return sc_nomem(r->err);
	if (r->to->state.nr == r->to->tensors.nr)
		return sc_fail(r->err, SC_E_FORMAT, "'%s' is there twice", name);
	if (rs_placed_check(&placed, &r->to->state.tensors[r->to->state.nr - 1], &r->budget, r->err) < 0)
		return r->err->code;
	return sc_vec_push(&r->to->tensors, placed) < 0 ? sc_nomem(r->err) : 0;
}

int rs_folder_add_boxes(struct rs_folder_reading *r, const char *name, enum meta_dtype dtype,
			const struct meta_shape *shape, struct rs_placed_tensor placed, int rc)
{
	struct rs_placed_box *kept = NULL;

	r->to->chunks += placed.nr;
	if (rc == 0)
		kept = sc_arena_array(&r->to->arena, placed.nr + 1, sizeof(*kept));
	if (rc == 0 && !kept)
		rc = sc_nomem(r->err);
	if (rc == 0 && placed.nr)
		memcpy(kept, placed.boxes, placed.nr * sizeof(*kept));
	sc_sys.release(placed.boxes);
	placed.boxes = kept;
	return rc < 0 ? rc : rs_folder_add(r, name, dtype, shape, placed);
}
