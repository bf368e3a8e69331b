/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Shows the model of a version as a folder that Hugging Face's from_pretrained() takes: whole tensors, without padding,
 * and plain files that say what the model is.
 *
 *     model.safetensors                       if it has no more bytes than a shard may have; else
 *     model-v12-00001-of-00003.safetensors    its shards; 12 is the version's number, which a version's own folder
 *                                             (.v/12/.hf) leaves out: who has read one index gets no bytes of another
 *                                             version, though the path of the folder is the head's, which moves
 *     model.safetensors.index.json            in which of them each tensor is
 *     config.json, ...                        files of the job's folder, and of rank 0's (form_plain.c)
 *
 * Options, a word: BYTES-OF-A-SHARD,GLOB-OF-THE-FILES (empty: found by their names).
 */
#include "reshard/checkpoint/export/form.h"

#include <fnmatch.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "meta/base/text.h"
#include "reshard/checkpoint/export/shards.h"

#define ONE "model.safetensors"
#define INDEX "model.safetensors.index.json"
#define FORMAT "safetensors"
#define METADATA "{\"format\":\"pt\"}" /* transformers asks for it */
#define NAME_BYTES 80

/* --- which tensors, in which shards --- */

struct part {
	const struct meta_tensor *tensor;
	const char *name;
	uint32_t shard;
};

struct model {
	const struct rs_formed *x;
	size_t nr, room;
	struct part *at;
	uint32_t shards;
	uint64_t bytes;
	struct sc_map names;
	struct sc_arena arena;
	struct sc_err *err;
};

static void model_done(struct model *m)
{
	sc_vec_done(m);
	sc_map_done(&m->names);
	sc_arena_done(&m->arena);
}

static int add_tensor(struct model *m, const struct meta_tensor *t, uint64_t most, uint64_t *filled)
{
	struct part p = {.tensor = t, .name = rs_form_flat_name(&m->arena, m->x->origins, t)};
	uint64_t bytes;

	if (!p.name)
		return sc_nomem(m->err);
	if (!meta_tensor_bytes(t->dtype, &t->shape, &bytes))
		return sc_fail(m->err, SC_E_STATE, "'%s': the size overflows 64 bits", t->key);
	if (sc_map_get(&m->names, p.name, strlen(p.name)))
		return sc_fail(m->err, SC_E_UNSUPPORTED, "two tensors would have the name '%s'; say in config which "
			       "file is the model: hf=FILE", p.name);
	if (*filled && bytes > most - *filled) {
		m->shards++;
		*filled = 0;
	}
	p.shard = m->shards;
	*filled = bytes > most - *filled ? most : *filled + bytes;
	m->bytes += bytes;
	return sc_map_put(&m->names, p.name, strlen(p.name), m) < 0 || sc_vec_push(m, p) < 0 ? sc_nomem(m->err) : 0;
}

/* Deals the tensors out to shards, in their order; a shard has at least one. */
static int deal(const struct rs_formed *x, struct model *m, struct sc_err *err)
{
	const uint64_t most = strtoull(x->options, NULL, 10);
	const struct meta_state *state = x->view->state;
	uint64_t filled = 0;
	const char *glob;
	int rc = rs_form_model_files(x, &glob, err);

	*m = (struct model){.x = x, .err = err};
	for (uint32_t i = 0; rc == 0 && i < state->nr; i++)
		if (!meta_tensor_padding(state->tensors[i].name, NULL) &&
		    fnmatch(glob, state->tensors[i].file, 0) == 0)
			rc = add_tensor(m, &state->tensors[i], most, &filled);
	m->shards++;
	return rc;
}

static void name_of(const struct model *m, uint32_t shard, char ret[NAME_BYTES])
{
	char version[24] = "";

	if (!m->x->archived)
		(void)snprintf(version, sizeof(version), "v%" PRIu64 "-", m->x->version);
	if (m->shards == 1)
		(void)snprintf(ret, NAME_BYTES, "%s", ONE);
	else
		(void)snprintf(ret, NAME_BYTES, "model-%s%05u-of-%05u.safetensors", version, shard + 1, m->shards);
}

/* Reads the version from the name of a shard, which says it in the head's folder. */
static bool version_of(const struct rs_formed *x, const char *name, uint32_t *ret)
{
	static const char front[] = "model-v";
	const size_t n = sizeof(front) - 1;

	(void)x;
	return strncmp(name, front, n) == 0 && sc_number_parse(name + n, strcspn(name + n, "-"), ret);
}

static int files(const struct rs_formed *x, uint32_t rank, rs_form_file_fn *each, void *arg, struct sc_err *err)
{
	char name[NAME_BYTES];
	struct model m;
	int rc = deal(x, &m, err);

	(void)rank;
	for (uint32_t i = 0; rc == 0 && i < m.shards; i++) {
		name_of(&m, i, name);
		rc = each(arg, name);
	}
	if (rc == 0 && m.shards > 1)
		rc = each(arg, INDEX);
	for (size_t i = 0; rc == 0 && i < x->plain->nr; i++)
		rc = each(arg, x->plain->at[i].name);
	model_done(&m);
	return rc;
}

/* --- their images --- */

/* Makes the box that is all of a tensor.  Returns how many boxes the tensor has: none, if it has no elements. */
static uint32_t whole(const struct meta_shape *shape, struct meta_box *ret)
{
	uint64_t stride = 1;

	*ret = (struct meta_box){.nr = shape->nr};
	for (int k = shape->nr - 1; k >= 0; k--) {
		ret->ext[k] = shape->dim[k];
		ret->stride[k] = stride;
		stride *= shape->dim[k];
	}
	return stride > 0;
}

static int describe_shard(struct rs_image *im, const struct model *m, uint32_t shard)
{
	struct rs_planned *parts = sc_zalloc_array(m->nr + 1, sizeof(*parts));
	struct meta_box *boxes = sc_zalloc_array(m->nr + 1, sizeof(*boxes));
	uint32_t nr = 0;
	int rc = parts && boxes ? 0 : sc_nomem(m->err);

	for (size_t i = 0; rc == 0 && i < m->nr; i++) {
		const struct meta_tensor *t = m->at[i].tensor;

		if (m->at[i].shard != shard)
			continue;
		parts[nr] = (struct rs_planned){m->at[i].name, t, {.shape = t->shape, .boxes = &boxes[nr]}};
		parts[nr].piece.nr_boxes = whole(&t->shape, &boxes[nr]);
		nr++;
	}
	if (rc == 0)
		rc = rs_image_describe(im, rs_format_find(FORMAT), parts, nr, METADATA, sizeof(METADATA) - 1,
				       m->x->origins, m->err);
	sc_sys.release(parts);
	sc_sys.release(boxes);
	return rc;
}

static int describe_index(struct rs_image *im, const struct model *m)
{
	struct rs_sharded *map = sc_zalloc_array(m->nr + 1, sizeof(*map));
	struct sc_arena arena = {0};
	struct sc_buf text = {0};
	char name[NAME_BYTES];
	int rc = map ? 0 : sc_nomem(m->err);

	for (size_t i = 0; rc == 0 && i < m->nr; i++) {
		name_of(m, m->at[i].shard, name);
		map[i] = (struct rs_sharded){m->at[i].name, sc_arena_copy(&arena, name, strlen(name))};
		rc = map[i].file ? 0 : sc_nomem(m->err);
	}
	if (rc == 0)
		rc = rs_shards_index(map, m->nr, m->bytes, &text, m->err);
	if (rc == 0)
		rc = rs_image_text(im, text.text, text.bytes, m->err);
	sc_buf_done(&text);
	sc_arena_done(&arena);
	sc_sys.release(map);
	return rc;
}

/* Finds the shard of a name; -1: there is none. */
static int64_t shard_of(const struct model *m, const char *file)
{
	char name[NAME_BYTES];

	for (uint32_t i = 0; i < m->shards; i++) {
		name_of(m, i, name);
		if (strcmp(name, file) == 0)
			return i;
	}
	return -1;
}

static int describe(struct rs_image *im, const struct rs_formed *x, const char *file, struct sc_err *err)
{
	struct model m;
	int rc = deal(x, &m, err);
	int64_t shard = rc == 0 ? shard_of(&m, file) : -1;

	if (rc == 0 && shard >= 0)
		rc = describe_shard(im, &m, (uint32_t)shard);
	else if (rc == 0 && m.shards > 1 && strcmp(file, INDEX) == 0)
		rc = describe_index(im, &m);
	else if (rc == 0)
		rc = sc_fail(err, SC_E_NOT_FOUND, "there is no file '%s'", file);
	model_done(&m);
	return rc;
}

static int image(const struct rs_formed *x, uint32_t rank, const char *file, bool as_view, struct rs_image **ret,
		 struct sc_err *err)
{
	const struct rs_plain *plain = rs_form_plain(x, file);
	struct rs_image *im;
	int rc;

	(void)rank;
	(void)as_view;
	if (plain)
		return rs_image_same(plain->blob, plain->bytes, ret, err);
	im = sc_zalloc(sizeof(*im));
	rc = im ? describe(im, x, file, err) : sc_nomem(err);
	if (rc < 0)
		rs_image_free(im);
	else
		*ret = im;
	return rc < 0 ? sc_wrap(err, rc, "'%s'", file) : 0;
}

const struct rs_form rs_form_hf = {
	.mark = '@', .folders = true, .tensors_alone = true, .one_folder = true, .whole = true, .plain = true,
	.has_options = true, .files = files, .image = image, .version_of = version_of,
};
