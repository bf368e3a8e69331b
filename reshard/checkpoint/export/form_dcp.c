/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Shows a whole state as a folder that torch.distributed.checkpoint.load() takes: describes the images of its files.
 *
 *     .metadata           what is where
 *     12/__R_0.distcp     what rank R holds, each box of a tensor an item; of replicas the first one has it
 *
 * 12 is the version's number: who has read one .metadata gets no bytes of another version, though the path of the
 * folder is the head's, which moves.
 *
 * A tensor has the name that it has in its file, with the keys of a torch file's path joined by dots, as DCP flattens
 * them; if two files have one of that name, `FILE:NAME`.  So have objects: those of rank 0's files, as dcp.save()
 * stores those of the coordinator alone.  They are in rank 0's file, behind its tensors.
 *
 * A checkpoint folder of the job is a folder of its own, with its names, and its objects as they lie there:
 *
 *     ckpt-200/.metadata, ckpt-200/12/__R_0.distcp
 */
#include "reshard/checkpoint/export/form_dcp_i.h"

#include <string.h>

#include "meta/base/text.h"
#include "reshard/codec/format/dcp_frame.h"

#define METADATA ".metadata"

/* Reads the rank from the name of a file in its folder; -1: it is no such name. */
static int64_t rank_of(const struct meta_view *view, uint64_t version, const char *file)
{
	const char *slash = strrchr(file, '/'), *number = slash ? slash + 3 : "";
	char name[RS_FORM_DCP_NAME_BYTES];
	uint32_t rank;

	if (!slash || strncmp(slash, "/__", 3) != 0 || !sc_number_parse(number, strcspn(number, "_"), &rank) ||
	    rank >= view->topo->ranks)
		return -1;
	rs_form_dcp_file(version, rank, name);
	return strcmp(name, file) == 0 ? rank : -1;
}

struct listing {
	rs_form_file_fn *each;
	void *arg;
	struct sc_err *err;
};

static int list_file(const struct listing *l, const struct rs_form_folder *f, const char *name)
{
	struct sc_arena arena = {0};
	const char *path = sc_arena_printf(&arena, "%.*s%s%s", (int)(f->bytes ? f->bytes - 1 : 0), f->path,
					   f->bytes ? "/" : "", name);
	int rc = path ? l->each(l->arg, path) : sc_nomem(l->err);

	sc_arena_done(&arena);
	return rc;
}

static int list_folder(void *arg, const struct rs_form_folder *f)
{
	const struct listing *l = arg;
	int rc = list_file(l, f, METADATA);

	for (uint32_t rank = 0; rc == 0 && rank < f->x->view->topo->ranks; rank++) {
		struct rs_form_chunks chunks = {0};
		struct rs_form_objects objects = {0};
		char name[RS_FORM_DCP_NAME_BYTES];

		rs_form_dcp_file(f->x->version, rank, name);
		rc = rs_form_chunks_of(f, rank, &chunks, l->err);
		if (rc == 0 && !chunks.nr)
			rc = rs_form_objects_of(f, rank, &objects, l->err);
		if (rc == 0 && (chunks.nr || objects.nr))
			rc = list_file(l, f, name);
		sc_vec_done(&chunks);
		rs_form_objects_done(&objects);
	}
	return rc;
}

static int files(const struct rs_formed *x, uint32_t zero, rs_form_file_fn *each, void *arg, struct sc_err *err)
{
	struct listing l = {each, arg, err};

	(void)zero;
	return rs_form_each_folder(x, list_folder, &l);
}

/* Finds folder and rank of a file, -1: of .metadata; false: there is none of this path. */
static bool parse(const struct rs_formed *x, const char *file, struct rs_form_folder *ret, int64_t *ret_rank)
{
	const char *slash = strrchr(file, '/'), *name = slash ? slash + 1 : file;

	*ret_rank = -1;
	if (strcmp(name, METADATA) != 0) {
		name = slash ? slash : file;
		while (name > file && name[-1] != '/')
			name--;
		*ret_rank = rank_of(x->view, x->version, name);
		if (*ret_rank < 0)
			return false;
	}
	return rs_form_folder_at(x, file, name > file ? (size_t)(name - file) - 1 : 0, ret);
}

/* Reads the version that a path names: the name of the folder in which a folder's data is. */
static bool version_of(const struct rs_formed *x, const char *path, uint32_t *ret)
{
	const char *slash = strrchr(path, '/'), *name = slash ? slash + 1 : path;
	const size_t bytes = strlen(path);
	struct rs_form_folder above;

	if (!sc_number_parse(name, strlen(name), ret) ||
	    !rs_form_folder_at(x, path, slash ? (size_t)(slash - path) : 0, &above))
		return false;
	for (uint32_t i = 0; slash && i < x->view->state->nr; i++) {
		const struct meta_tensor *t = &x->view->state->tensors[i];

		if (strncmp(t->file, path, bytes) == 0 && rs_form_is_placed(x, t) &&
		    (t->file[bytes] == '/' || strcmp(t->file + bytes, RS_FORM_FOLDER_SUFFIX) == 0))
			return false; /* a checkpoint of this name, or the folder of one */
	}
	return true;
}

static bool is_of(const struct rs_formed *x, const char *file, const char *logical)
{
	struct rs_form_folder f;
	int64_t rank;

	return parse(x, file, &f, &rank) && rs_form_folder_has(&f, &(struct meta_tensor){.file = logical});
}

/* --- a rank's file --- */

/* Plans the bytes of an object, as they lie in the checkpoint folder. */
static int plan_object(struct rs_image *im, const struct rs_placed_object *o, struct rs_gather *g, struct sc_err *err)
{
	struct rs_placed_box bytes = o->bytes;
	const struct meta_tensor as = {.name = o->name, .dtype = META_DTYPE_U8, .shape = {1, {bytes.box.ext[0]}}};
	int rc = rs_plan_placed(&(struct rs_placed_tensor){1, &bytes}, &as, &bytes.box, g, &im->sources, err);

	g->bytes = bytes.box.ext[0];
	rs_gather_finish(g);
	return rc;
}

static int describe_rank(struct rs_image *im, const struct meta_view *view, const struct rs_form_chunks *chunks,
			 const struct rs_form_objects *objects, const struct rs_origins *o, struct sc_err *err)
{
	const size_t nr = chunks->nr + (objects->placed ? objects->nr : 0);
	struct rs_wanted *wanted = sc_zalloc_array(chunks->nr + 1, sizeof(*wanted));
	int rc = wanted ? 0 : sc_nomem(err);

	for (size_t i = 0; rc == 0 && i < chunks->nr; i++)
		wanted[i] = rs_form_wanted_of(view, &chunks->at[i]);
	if (rc == 0)
		rc = rs_dcp_describe(wanted, (uint32_t)chunks->nr, objects->at, objects->nr, &im->frame, err);
	sc_sys.release(wanted);
	if (rc < 0)
		return rc;
	im->bytes = im->frame.bytes;
	im->nr = (uint32_t)nr;
	im->gathers = sc_arena_array(&im->frame.arena, nr + 1, sizeof(*im->gathers));
	if (!im->gathers)
		return sc_nomem(err);
	for (size_t i = 0; rc == 0 && i < chunks->nr; i++) {
		const struct meta_tensor *t = &view->state->tensors[chunks->at[i].tensor];
		struct rs_gather *g = &im->gathers[i];

		g->bytes = meta_box_elements(&chunks->at[i].box) * (meta_dtype_bits(t->dtype) / 8);
		rc = rs_image_plan(im, t, &chunks->at[i].box, g, o, err);
		rs_gather_finish(g);
	}
	for (size_t i = chunks->nr; rc == 0 && i < nr; i++)
		rc = plan_object(im, &objects->placed[i - chunks->nr], &im->gathers[i], err);
	rs_plan_done(&im->sources);
	return rc;
}

static int image(const struct rs_formed *x, uint32_t zero, const char *file, bool as_view, struct rs_image **ret,
		 struct sc_err *err)
{
	struct rs_image *im = sc_zalloc(sizeof(*im));
	struct rs_form_objects objects = {0};
	struct rs_form_chunks chunks = {0};
	struct rs_form_folder folder;
	int64_t rank = 0;
	const bool is = parse(x, file, &folder, &rank);
	int rc = im ? 0 : sc_nomem(err);

	(void)zero;
	(void)as_view;
	if (rc == 0 && rank < 0 && is) {
		rc = rs_form_dcp_metadata(im, &folder, err);
	} else if (rc == 0) {
		rc = is ? rs_form_chunks_of(&folder, (uint32_t)rank, &chunks, err) : 0;
		if (rc == 0 && is)
			rc = rs_form_objects_of(&folder, (uint32_t)rank, &objects, err);
		if (rc == 0 && !chunks.nr && !objects.nr)
			rc = sc_fail(err, SC_E_NOT_FOUND, "there is no file '%s'", file);
		if (rc == 0)
			rc = describe_rank(im, x->view, &chunks, &objects, x->origins, err);
	}
	sc_vec_done(&chunks);
	rs_form_objects_done(&objects);
	if (rc < 0)
		rs_image_free(im);
	else
		*ret = im;
	return rc < 0 ? sc_wrap(err, rc, "'%s'", file) : 0;
}

const struct rs_form rs_form_dcp = {
	.mark = '!', .folders = true, .tensors_alone = true, .one_folder = true, .small_reads = true,
	.files = files, .image = image, .version_of = version_of, .is_of = is_of,
};
