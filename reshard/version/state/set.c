/* SPDX-License-Identifier: Apache-2.0 */
/* Blob sets: all ranks' blobs of one logical file of tensors. */
#include "reshard/version/state/state_i.h"

#include <assert.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "meta/catalog/tensor_line.h"

const struct rs_set *rs_set_given(const struct rs_set *set)
{
	return set->given ? set->given : set;
}

struct rs_set *rs_set_new(const char *file, const struct rs_format_ops *format)
{
	struct rs_set *set = sc_zalloc(sizeof(*set));

	if (!set)
		return NULL;
	set->refs = 1;
	set->format = format;
	set->file = sc_strdup(file);
	set->report = sc_strdup("");
	(void)pthread_mutex_init(&set->report_lock, NULL);
	if (set->file && set->report)
		return set;
	rs_set_unref(set);
	return NULL;
}

const struct rs_set *rs_version_set(const struct rs_version *v, const char *logical_file)
{
	for (size_t i = 0; i < v->nr_sets; i++)
		if (strcmp(v->sets[i]->file, logical_file) == 0)
			return v->sets[i];
	assert(!"every tensor of a version is in one of its sets");
	return NULL;
}

struct rs_set *rs_set_ref(struct rs_set *set)
{
	(void)__atomic_add_fetch(&set->refs, 1, __ATOMIC_RELAXED);
	return set;
}

void rs_set_unref(struct rs_set *set)
{
	if (!set || __atomic_sub_fetch(&set->refs, 1, __ATOMIC_ACQ_REL))
		return;
	rs_set_unref(set->given);
	rs_folder_unref(set->folder);
	meta_view_free(set->view);
	meta_state_done(&set->state);
	meta_topology_done(&set->topo);
	(void)pthread_mutex_destroy(&set->report_lock);
	sc_sys.release(set->file);
	sc_sys.release(set->payload);
	sc_sys.release(set->report);
	sc_sys.release(set->digests);
	sc_sys.release(set->skews);
	sc_sys.release(set->blobs);
	sc_sys.release(set);
}

int rs_set_begin_given(struct rs_service *s, struct rs_set *set, const struct meta_set_row *row, struct sc_err *err)
{
	struct rs_set *given = set->given = rs_set_new(set->file, set->format);
	const struct rs_kept_layout *kept;
	int rc = given ? rs_layout_by_id(s, row->given_layout, &kept, err) : sc_nomem(err);

	if (rc < 0)
		return rc;
	given->layout_id = row->given_layout;
	given->layout = kept->layout;
	given->state.layers = row->given_layers;
	given->state.experts = row->given_experts;
	rc = meta_topology_parse(given->layout, row->given_topology, &given->topo, err);
	return rc < 0 ? rc : meta_state_add_all(&given->state, &set->state) < 0 ? sc_nomem(err) : 0;
}

int rs_set_add_blob(struct rs_set *set, struct rs_set_blob blob)
{
	if (sc_vec_grow((void **)&set->blobs, set->nr_blobs, &set->room_blobs, sizeof(blob)) < 0)
		return -1;
	set->blobs[set->nr_blobs++] = blob;
	return 0;
}

static int by_rank(const void *a, const void *b)
{
	const struct rs_set_blob *x = a, *y = b;

	if (x->rank != y->rank)
		return x->rank < y->rank ? -1 : 1;
	return strcmp(x->path, y->path);
}

int rs_set_finish(struct rs_set *set, struct sc_err *err)
{
	if (set->nr_blobs)
		qsort(set->blobs, set->nr_blobs, sizeof(*set->blobs), by_rank);
	set->one_owner = set->nr_blobs > 0;
	for (size_t i = 0; i < set->nr_blobs; i++)
		set->has_payloads |= set->blobs[i].payload || (set->blobs[i].found && set->blobs[i].found->payload);
	for (size_t i = 1; i < set->nr_blobs; i++)
		set->one_owner = set->one_owner && rs_owner_equal(&set->blobs[i].owner, &set->blobs[0].owner);
	return meta_view_new(set->layout, &set->topo, &set->state, &set->view, err);
}

const struct rs_set_blob *rs_set_find(const struct rs_set *set, uint32_t rank, const char *path)
{
	struct rs_set_blob key = {.rank = rank, .path = path};

	return set->nr_blobs ? bsearch(&key, set->blobs, set->nr_blobs, sizeof(key), by_rank) : NULL;
}

void rs_set_tensors_text(const struct rs_set *set, struct sc_buf *buf)
{
	for (uint32_t i = 0; i < set->state.nr; i++) {
		const struct meta_tensor *t = &set->state.tensors[i];
		struct meta_tensor_line line = {.key = t->key, .dtype = t->dtype, .shape = t->shape,
						.skew = set->skews[i], .has_digest = set->digests != NULL};

		if (set->digests)
			memcpy(line.digest, set->digests[i], sizeof(line.digest));
		meta_tensor_line_add(buf, &line);
	}
}

int rs_set_parse_tensor(struct rs_set *set, char *text, struct sc_err *err)
{
	const size_t n = strlen(set->file); /* KEY is FILE:NAME */
	struct meta_tensor_line t;
	uint16_t *skews;

	if (!meta_tensor_line_parse(text, &t) || strncmp(t.key, set->file, n) != 0 || t.key[n] != ':')
		return sc_fail(err, SC_E_CORRUPT, "catalog: set %" PRIu64 ": bad line of tensor '%s'", set->id,
			       t.key ? t.key : text);
	skews = sc_sys.resize(set->skews, (set->state.nr + 1) * sizeof(*skews));
	if (!skews)
		return sc_nomem(err);
	set->skews = skews;
	skews[set->state.nr] = t.skew;
	if (t.has_digest) {
		uint8_t (*more)[16] = sc_sys.resize(set->digests, (set->state.nr + 1) * sizeof(*more));

		if (!more)
			return sc_nomem(err);
		set->digests = more;
		memcpy(more[set->state.nr], t.digest, sizeof(t.digest));
	}
	return meta_state_add(&set->state, t.key, strlen(t.key), t.dtype, &t.shape) < 0 ? sc_nomem(err) : 0;
}

int64_t rs_set_oldest(const struct rs_set *set)
{
	int64_t oldest = set->nr_blobs ? INT64_MAX : META_STEP_UNKNOWN;

	for (size_t i = 0; i < set->nr_blobs; i++)
		oldest = set->blobs[i].step < oldest ? set->blobs[i].step : oldest;
	return oldest;
}

uint64_t rs_set_bytes(const struct rs_set *set)
{
	uint64_t n = 0;

	for (size_t i = 0; i < set->nr_blobs; i++)
		n += set->blobs[i].bytes;
	return n;
}
