/* SPDX-License-Identifier: Apache-2.0 */
/* Reads a DCP folder: .metadata, then the two ends of each item, which say which bytes of the item are the tensor's. */
#include <inttypes.h>
#include <string.h>

#include "meta/base/limits.h"
#include "reshard/codec/dcp/dcp.h"
#include "reshard/checkpoint/folders/folder_i.h"

static int is_as_said(struct rs_folder_reading *r, const struct rs_dcp_tensor *t, const struct rs_dcp_chunk *c,
		      const struct rs_torch *item)
{
	const struct rs_torch_tensor *x = item->tensors.nr == 1 ? &item->tensors.at[0] : NULL;
	bool same = x && !*x->path && x->dtype == (int)t->dtype && x->dims == t->dims;

	for (uint32_t i = 0; same && i < t->dims; i++)
		same = x->shape[i] == c->ext[i];
	if (item->tensors.nr == 0)
		return sc_fail(r->err, SC_E_UNSUPPORTED, "'%s': its item at byte %" PRIu64 " of '%s' is no plain "
			       "tensor (conjugated, a subclass, sparse?)", t->name, c->at, c->file);
	return same ? 0
		    : sc_fail(r->err, SC_E_FORMAT, "'%s': its item at byte %" PRIu64 " of '%s' is no tensor of the "
			      "type and shape that .metadata says", t->name, c->at, c->file);
}

/* Opens the file of an item, and checks that the item is inside of it. */
static int open_item(struct rs_folder_reading *r, const char *name, const char *file, uint64_t at, uint64_t bytes,
		     struct rs_folder_open **ret)
{
	uint64_t end;
	int rc = rs_folder_open(r, file, ret);

	if (rc == 0)
		return sc_fail(r->err, SC_E_FORMAT, "its .metadata names the file '%s', which is not there", file);
	if (rc < 0)
		return rc;
	if (!sc_add_u64(at, bytes, &end) || end > (*ret)->info.bytes)
		return sc_fail(r->err, SC_E_FORMAT, "'%s': its item ends at byte %" PRIu64 " of '%s', which has %"
			       PRIu64 ": the file is cut, or of another save", name, end, file, (*ret)->info.bytes);
	return 0;
}

static int place_chunk(struct rs_folder_reading *r, const struct rs_dcp_tensor *t, const struct rs_dcp_chunk *c,
		       struct rs_placed_box *ret)
{
	struct rs_window window;
	struct rs_torch item;
	struct rs_folder_open *f;
	int rc = open_item(r, t->name, c->file, c->at, c->bytes, &f);

	if (rc < 0)
		return rc;
	window = rs_folder_window(f, c->at, c->bytes);
	rc = rs_torch_read(&window, &item, r->err);
	if (rc < 0)
		return sc_wrap(r->err, rc, "'%s': its item at byte %" PRIu64 " of '%s'", t->name, c->at, c->file);
	rc = is_as_said(r, t, c, &item);
	*ret = (struct rs_placed_box){.box.nr = (uint8_t)t->dims, .file = f->info.path,
				      .place = {.id = f->info.blob, .bytes = f->info.bytes}};
	for (uint32_t k = 0; rc == 0 && k < t->dims; k++) {
		ret->box.off[k] = c->off[k];
		ret->box.ext[k] = c->ext[k];
		ret->box.stride[k] = item.tensors.at[0].stride[k];
	}
	if (rc == 0)
		ret->place.at = c->at + item.tensors.at[0].at;
	rs_torch_done(&item);
	return rc;
}

static bool has_elements(const uint64_t *ext, uint32_t dims)
{
	for (uint32_t i = 0; i < dims; i++)
		if (!ext[i])
			return false;
	return true;
}

static int place_tensor(struct rs_folder_reading *r, const struct rs_dcp_tensor *t, struct rs_placed_tensor *ret)
{
	struct rs_placed_tensor placed = {.boxes = sc_arena_array(&r->to->arena, t->nr ? t->nr : 1,
								  sizeof(*placed.boxes))};
	int rc = placed.boxes ? 0 : sc_nomem(r->err);

	for (uint64_t i = 0; rc == 0 && i < t->nr; i++)
		if (has_elements(t->chunks[i].ext, t->dims))
			rc = place_chunk(r, t, &t->chunks[i], &placed.boxes[placed.nr++]);
	*ret = placed;
	return rc;
}

static int add_tensor(struct rs_folder_reading *r, const struct rs_dcp_tensor *t, struct rs_placed_tensor placed)
{
	struct meta_shape shape = {.nr = (uint8_t)t->dims};

	if (t->dims)
		memcpy(shape.dim, t->shape, t->dims * sizeof(*t->shape));
	r->to->chunks += t->nr;
	return rs_folder_add(r, t->name, t->dtype, &shape, placed);
}

/* Adds all tensors; a bucket as the parameters in it, or, where these cannot be told, as it is. */
static int add_tensors(struct rs_folder_reading *r, const struct rs_dcp *dcp)
{
	struct rs_placed_tensor *placed = sc_arena_array(&r->arena, dcp->tensors.nr + 1, sizeof(*placed));
	bool has_buckets = false;
	int rc = placed ? 0 : sc_nomem(r->err);

	for (size_t i = 0; rc == 0 && i < dcp->tensors.nr; i++) {
		const struct rs_dcp_tensor *t = &dcp->tensors.at[i];

		rc = place_tensor(r, t, &placed[i]);
		if (rs_folder_is_bucket(t->name))
			has_buckets = true;
		else if (rc == 0)
			rc = add_tensor(r, t, placed[i]);
	}
	if (rc == 0 && has_buckets)
		rc = rs_folder_add_buckets(r, dcp, placed);
	for (size_t i = 0; rc == 0 && has_buckets && i < dcp->tensors.nr; i++)
		if (rs_folder_is_bucket(dcp->tensors.at[i].name))
			rc = add_tensor(r, &dcp->tensors.at[i], placed[i]);
	return rc < 0 ? rc : 0;
}

static int add_objects(struct rs_folder_reading *r, const struct rs_dcp *dcp)
{
	int rc = 0;

	for (size_t i = 0; rc == 0 && i < dcp->objects.nr; i++) {
		const struct rs_dcp_object *o = &dcp->objects.at[i];
		struct rs_placed_object object = {.bytes.box = {.nr = 1, .ext = {o->bytes}, .stride = {1}}};
		struct rs_folder_open *f;

		rc = open_item(r, o->name, o->file, o->at, o->bytes, &f);
		if (rc < 0)
			return rc;
		object.name = sc_arena_copy(&r->to->arena, o->name, strlen(o->name));
		object.bytes.file = f->info.path;
		object.bytes.place = (struct rs_place){.id = f->info.blob, .bytes = f->info.bytes, .at = o->at};
		if (!object.name || sc_vec_push(&r->to->objects, object) < 0)
			rc = sc_nomem(r->err);
	}
	return rc;
}

static int read_metadata(struct rs_folder_reading *r, struct rs_dcp *ret)
{
	struct rs_folder_open *f;
	char *text;
	int rc = rs_folder_open(r, RS_FOLDER_METADATA, &f);

	if (rc <= 0)
		return rc;
	if (f->info.bytes > SC_PICKLE_BYTES_MAX)
		return sc_fail(r->err, SC_E_UNSUPPORTED, "'" RS_FOLDER_METADATA "' has %" PRIu64 " bytes, at most %u",
			       f->info.bytes, SC_PICKLE_BYTES_MAX);
	text = sc_zalloc(f->info.bytes + 1);
	if (!text)
		return sc_nomem(r->err);
	rc = rs_bytes_read(f->bytes, 0, f->info.bytes, text, r->err);
	if (rc == 0)
		rc = rs_dcp_read(text, f->info.bytes, ret, r->err);
	sc_sys.release(text);
	return rc < 0 ? sc_wrap(r->err, rc, "'" RS_FOLDER_METADATA "'") : rc;
}

int rs_folder_read_dcp(struct rs_folder_reading *r)
{
	struct rs_dcp dcp;
	int rc = read_metadata(r, &dcp);

	if (rc <= 0)
		return rc;
	rc = add_tensors(r, &dcp);
	if (rc == 0)
		rc = add_objects(r, &dcp);
	rs_dcp_done(&dcp);
	return rc < 0 ? rc : 1;
}
