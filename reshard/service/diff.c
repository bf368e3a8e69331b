/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Tells which tensors and files of two versions differ: by the digests of logical tensors, which do not depend on
 * topology and layout, and by the blobs of plain files.  Only rows are read.
 */
#include "reshard/service/service.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "reshard/version/view/shown_i.h"

struct side {
	struct rs_view *view;
	struct sc_map tensors;		/* key -> struct one */
};

struct one {
	const struct meta_tensor *tensor;
	const uint8_t *digest;		/* NULL: not taken yet */
	uint64_t bytes;
};

struct sums {
	uint64_t same, changed, added, removed, unknown;
};

static int collect(struct side *x, struct sc_arena *arena, struct sc_err *err)
{
	const struct rs_version *v = x->view->version;

	for (size_t i = 0; i < v->nr_sets; i++)
		for (uint32_t t = 0; t < v->sets[i]->state.nr; t++) {
			const struct rs_set *set = v->sets[i];
			const uint8_t (*digests)[16] = rs_set_digests(set);
			const struct meta_tensor *tensor = &set->state.tensors[t];
			struct one *one =
			    sc_map_make(&x->tensors, tensor->key, strlen(tensor->key), arena, sizeof(*one));

			if (!one)
				return sc_nomem(err);
			one->tensor = tensor;
			one->digest = digests ? digests[t] : NULL;
			(void)meta_tensor_bytes(tensor->dtype, &tensor->shape, &one->bytes);
		}
	return 0;
}

static void line(struct sc_buf *buf, const char *state, uint64_t bytes, const char *what, uint64_t *sum)
{
	*sum += bytes;
	if (strcmp(state, "same") != 0)
		sc_buf_printf(buf, "%s\t%" PRIu64 "\t%s\n", state, bytes, what);
}

static void compare(const struct one *a, const struct one *b, struct sc_buf *buf, struct sums *sums)
{
	const char *key = b->tensor->key;

	if (a->tensor->dtype != b->tensor->dtype || !meta_shape_equal(&a->tensor->shape, &b->tensor->shape))
		line(buf, "changed", b->bytes, key, &sums->changed);
	else if (!a->digest || !b->digest)
		line(buf, "unknown", b->bytes, key, &sums->unknown);
	else if (memcmp(a->digest, b->digest, 16) != 0)
		line(buf, "changed", b->bytes, key, &sums->changed);
	else
		line(buf, "same", b->bytes, key, &sums->same);
}

static void compare_tensors(const struct side *a, const struct side *b, struct sc_buf *buf, struct sums *sums)
{
	for (size_t i = 0; i < b->tensors.room; i++) {
		const struct one *x = b->tensors.slots[i].value, *y;

		if (!x)
			continue;
		y = sc_map_get(&a->tensors, x->tensor->key, strlen(x->tensor->key));
		if (y)
			compare(y, x, buf, sums);
		else
			line(buf, "added", x->bytes, x->tensor->key, &sums->added);
	}
	for (size_t i = 0; i < a->tensors.room; i++) {
		const struct one *x = a->tensors.slots[i].value;

		if (x && !sc_map_get(&b->tensors, x->tensor->key, strlen(x->tensor->key)))
			line(buf, "removed", x->bytes, x->tensor->key, &sums->removed);
	}
}

/* --- plain files --- */

/* A path in the ranks' folders, or in the job's; each rank may have another blob there. */
struct file {
	const char *path;
	struct blobs {
		size_t nr, room;
		uint64_t *at;
	} blobs;
};

struct files {
	struct sc_map by_path;		/* after a letter that tells the job's own folder from those of ranks */
	struct sc_arena *arena;
	struct sc_err *err;
};

static int on_file(void *arg, uint32_t rank, const char *path, const struct meta_inode_row *row)
{
	struct files *f = arg;
	struct file *file;
	char *key;

	if (!row->blob)
		return 0;
	key = sc_arena_printf(f->arena, "%c%s", rank == RS_SHARED ? 'j' : 'r', path);
	file = key ? sc_map_make(&f->by_path, key, strlen(key), f->arena, sizeof(*file)) : NULL;
	if (!file)
		return sc_nomem(f->err);
	file->path = key + 1;
	for (size_t i = file->blobs.nr; i-- > 0;)
		if (file->blobs.at[i] == row->blob)
			return 0;
	return sc_vec_push(&file->blobs, row->blob) < 0 ? sc_nomem(f->err) : 0;
}

static int collect_files(struct rs_view *view, struct files *f)
{
	int rc = rs_view_each(view, RS_SHARED, on_file, f, f->err);

	for (uint32_t r = 0; rc == 0 && r < view->topo.ranks; r++)
		rc = rs_view_each(view, r, on_file, f, f->err);
	return rc;
}

static void files_done(struct files *f)
{
	for (size_t i = 0; i < f->by_path.room; i++) {
		struct file *file = f->by_path.slots[i].value;

		if (file)
			sc_vec_done(&file->blobs);
	}
	sc_map_done(&f->by_path);
}

static int by_number(const void *a, const void *b)
{
	const uint64_t *x = a, *y = b;

	return (*x > *y) - (*x < *y);
}

static bool same_blobs(struct blobs *a, struct blobs *b)
{
	if (a->nr != b->nr)
		return false;
	qsort(a->at, a->nr, sizeof(*a->at), by_number);
	qsort(b->at, b->nr, sizeof(*b->at), by_number);
	return memcmp(a->at, b->at, a->nr * sizeof(*a->at)) == 0;
}

static int file_line(struct rs_service *s, const struct file *f, const char *state, struct sc_buf *buf, uint64_t *sum,
		     struct sc_err *err)
{
	uint64_t bytes, all = 0;
	struct sc_buf shown = {0};
	int rc = 0;

	for (size_t i = 0; rc == 0 && i < f->blobs.nr; i++) {
		rc = meta_blob_bytes(s->catalog, f->blobs.at[i], &bytes, err);
		all += rc == 0 ? bytes : 0;
	}
	sc_buf_shown(&shown, f->path);
	if (rc == 0 && !shown.failed)
		line(buf, state, all, shown.text, sum);
	buf->failed |= shown.failed;
	sc_buf_done(&shown);
	return rc;
}

static int compare_paths(struct rs_service *s, const struct files *a, const struct files *b, struct sc_buf *buf,
			 struct sums *sums)
{
	int rc = 0;

	for (size_t i = 0; rc == 0 && i < b->by_path.room; i++) {
		const struct sc_map_slot *slot = &b->by_path.slots[i];
		struct file *now = slot->value, *old;

		if (!now)
			continue;
		old = sc_map_get(&a->by_path, slot->key, slot->key_bytes);
		if (!old)
			rc = file_line(s, now, "added", buf, &sums->added, b->err);
		else if (same_blobs(&old->blobs, &now->blobs))
			rc = file_line(s, now, "same", buf, &sums->same, b->err);
		else
			rc = file_line(s, now, "rewritten", buf, &sums->changed, b->err);
	}
	for (size_t i = 0; rc == 0 && i < a->by_path.room; i++) {
		const struct sc_map_slot *slot = &a->by_path.slots[i];

		if (slot->value && !sc_map_get(&b->by_path, slot->key, slot->key_bytes))
			rc = file_line(s, slot->value, "removed", buf, &sums->removed, a->err);
	}
	return rc;
}

/* Compares plain files by their blobs: a version takes an unchanged file over with its blob. */
static int compare_files(struct rs_service *s, const struct side *a, const struct side *b, struct sc_arena *arena,
			 struct sc_buf *buf, struct sums *sums, struct sc_err *err)
{
	struct files old = {.arena = arena, .err = err}, now = {.arena = arena, .err = err};
	int rc = collect_files(a->view, &old);

	if (rc == 0)
		rc = collect_files(b->view, &now);
	if (rc == 0)
		rc = compare_paths(s, &old, &now, buf, sums);
	files_done(&old);
	files_done(&now);
	return rc;
}

int rs_render_diff(struct rs_service *s, struct rs_job *job, const char *text, struct sc_buf *buf, struct sc_err *err)
{
	struct side a = {0}, b = {0};
	struct sc_arena arena = {0};
	struct sums sums = {0};
	char *copy = sc_strdup(text), *save = NULL, *old, *new = NULL;
	int rc = copy ? 0 : sc_nomem(err);

	old = rc == 0 ? strtok_r(copy, " \t\n", &save) : NULL;
	new = old ? strtok_r(NULL, " \t\n", &save) : NULL;
	if (rc == 0 && (!new || strtok_r(NULL, " \t\n", &save)))
		rc = sc_fail(err, SC_E_COMMAND, "write two versions, numbers or tags: '12 15'");
	if (rc == 0)
		rc = rs_view_named(s, job, old, &a.view, err);
	if (rc == 0)
		rc = rs_view_named(s, job, new, &b.view, err);
	if (rc == 0)
		rc = collect(&a, &arena, err);
	if (rc == 0)
		rc = collect(&b, &arena, err);
	if (rc == 0) {
		sc_buf_printf(buf, "from: %" PRIu64 "\nto: %" PRIu64 "\n", a.view->version->nr, b.view->version->nr);
		compare_tensors(&a, &b, buf, &sums);
		rc = compare_files(s, &a, &b, &arena, buf, &sums, err);
	}
	if (rc == 0) {
		sc_buf_printf(buf,
			      "bytes_same: %" PRIu64 "\nbytes_changed: %" PRIu64 "\nbytes_added: %" PRIu64
			      "\nbytes_removed: %" PRIu64 "\nbytes_unknown: %" PRIu64 "\n",
			      sums.same, sums.changed, sums.added, sums.removed, sums.unknown);
		rc = buf->failed ? sc_nomem(err) : 0;
	}
	sc_map_done(&a.tensors);
	sc_map_done(&b.tensors);
	sc_arena_done(&arena);
	rs_view_unref(s, a.view);
	rs_view_unref(s, b.view);
	sc_sys.release(copy);
	return rc;
}
