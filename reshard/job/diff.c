/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Which tensors and files of two versions differ: by the hashes of logical tensors, which do not
 * depend on topology and layout, and those of blobs for other files.  Nothing is read but rows.
 */
#include "reshard/job/service.h"

#include <inttypes.h>
#include <string.h>

#include "reshard/state/state_i.h"

struct side {
	struct rs_view *view;
	struct sc_map tensors;		/* key -> struct one */
};

struct one {
	const struct meta_tensor *tensor;
	const uint8_t *hash;		/* NULL: not taken yet */
	uint64_t bytes;
};

struct sums {
	uint64_t same, changed, added, removed, unknown;
};

static int collect(struct side *x, struct sc_arena *arena, struct sc_err *err)
{
	const struct rs_version *v = x->view->version;

	for (size_t i = 0; i < v->nr_sets; i++)
		for (uint32_t t = 0; v->sets[i]->kind == META_SET_TENSORS && t < v->sets[i]->state.nr; t++) {
			const struct rs_set *set = v->sets[i];
			const uint8_t (*hashes)[16] = rs_set_hashes(set);
			const struct meta_tensor *tensor = &set->state.tensors[t];
			struct one *one =
			    sc_map_make(&x->tensors, tensor->key, strlen(tensor->key), arena, sizeof(*one));

			if (!one)
				return sc_nomem(err);
			one->tensor = tensor;
			one->hash = hashes ? hashes[t] : NULL;
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
	else if (!a->hash || !b->hash)
		line(buf, "unknown", b->bytes, key, &sums->unknown);
	else if (memcmp(a->hash, b->hash, 16) != 0)
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

static const struct rs_set *plain_set(const struct rs_version *v, const struct rs_set *like)
{
	for (size_t i = 0; i < v->nr_sets; i++)
		if (v->sets[i]->kind == like->kind && strcmp(v->sets[i]->file, like->file) == 0)
			return v->sets[i];
	return NULL;
}

static bool same_blobs(const struct rs_set *a, const struct rs_set *b)
{
	bool same = a->nr_blobs == b->nr_blobs;

	for (size_t i = 0; same && i < a->nr_blobs; i++)
		same = a->blobs[i].blob == b->blobs[i].blob;
	return same;
}

/* Files that are no tensors: taken over from version to version as they are, so their blobs tell. */
static void compare_files(const struct side *a, const struct side *b, struct sc_buf *buf, struct sums *sums)
{
	const struct rs_version *v = a->view->version, *w = b->view->version;

	for (size_t i = 0; i < w->nr_sets; i++) {
		const struct rs_set *old = w->sets[i]->kind == META_SET_TENSORS ? NULL : plain_set(v, w->sets[i]);
		uint64_t bytes = rs_set_bytes(w->sets[i]);

		if (w->sets[i]->kind == META_SET_TENSORS)
			continue;
		if (!old)
			line(buf, "added", bytes, w->sets[i]->file, &sums->added);
		else if (old == w->sets[i] || same_blobs(old, w->sets[i]))
			line(buf, "same", bytes, w->sets[i]->file, &sums->same);
		else
			line(buf, "rewritten", bytes, w->sets[i]->file, &sums->changed);
	}
	for (size_t i = 0; i < v->nr_sets; i++)
		if (v->sets[i]->kind != META_SET_TENSORS && !plain_set(w, v->sets[i]))
			line(buf, "removed", rs_set_bytes(v->sets[i]), v->sets[i]->file, &sums->removed);
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
		compare_files(&a, &b, buf, &sums);
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
