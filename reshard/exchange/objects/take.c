/* SPDX-License-Identifier: Apache-2.0 */
/* Takes objects as rows of the catalog: layouts, sets, payloads, datasets. */
#include "reshard/exchange/objects/objects_i.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <string.h>
#include <sys/stat.h>

#include "reshard/data/spec.h"
#include "reshard/version/state/state_i.h"

/* --- names --- */

/* Finds the row that has the name of an object here: 1, 0 (none), or an error. */
static int known(struct rs_object_take *t, enum meta_object_kind kind, const struct rs_object_name *name,
		 uint64_t *ret_id)
{
	struct meta_object o;
	int rc = meta_object_named(t->s->catalog, kind, name->at, &o, t->io.err);

	if (rc > 0)
		*ret_id = o.id;
	return rc;
}

int rs_object_name_it(struct rs_object_take *t, enum meta_object_kind kind, uint64_t id,
		      const struct rs_object_name *name, uint32_t depth)
{
	struct meta_object o = {.kind = kind, .id = id, .depth = depth}, is;
	int rc = meta_object_of(t->s->catalog, kind, id, &is, t->io.err);

	if (rc > 0)
		return memcmp(is.name, name->at, sizeof(is.name)) == 0
			       ? 0 : rs_object_bad(&t->io, name, "says what an object of another name says");
	memcpy(o.name, name->at, sizeof(o.name));
	return rc < 0 ? rc : meta_object_put(t->s->catalog, &o, t->io.err);
}

/* Reads the text of an object, and makes rows of it: *ret_id is that with the object's name. */
typedef int taker_fn(struct rs_object_take *t, const struct rs_object_name *name, struct rs_text *text,
		     uint64_t *ret_id);

/* Finds the row that has the name of an object, or fetches the object and makes one.  t->arena is of this object. */
static int take(struct rs_object_take *t, enum meta_object_kind kind, const struct rs_object_name *name,
		taker_fn *taker, uint64_t *ret_id)
{
	const struct sc_arena outer = t->arena;
	struct sc_buf buf = {0};
	struct rs_text text;
	int rc = known(t, kind, name, ret_id);

	if (rc)
		return rc < 0 ? rc : 0;
	t->arena = (struct sc_arena){0};
	rc = rs_object_read(&t->io, name, &buf, &t->arena, &text);
	if (rc == 0)
		rc = taker(t, name, &text, ret_id);
	if (rc == 0)
		rc = rs_object_name_it(t, kind, *ret_id, name, 1);
	sc_arena_done(&t->arena);
	t->arena = outer;
	sc_buf_done(&buf);
	return rc;
}

/* --- blobs, layouts --- */

/* Seals a file of this node that was written for the version; the gate is closed since then. */
static int seal(struct rs_object_take *t, const struct rs_object_blob *blob, uint64_t *ret_bytes)
{
	sc_cleanup(sc_closep) int fd = -1;
	struct stat st;
	int rc = meta_store_open_work(&t->s->store, blob->number, O_RDONLY, &fd, t->io.err);

	if (rc < 0)
		return rc;
	if (sc_sys.fstat(fd, &st) < 0)
		return sc_fail_sys(t->io.err, errno, "cannot stat blob %" PRIu64, blob->number);
	*ret_bytes = (uint64_t)st.st_size;
	return *ret_bytes == blob->bytes ? meta_blob_seal(t->s->catalog, blob->number, blob->bytes, t->io.err) : 0;
}

int rs_object_take_blob(struct rs_object_take *t, const struct rs_object_blob *blob, uint64_t *ret_id)
{
	struct sc_err why;
	uint64_t bytes = 0, number;
	uint32_t node;
	int rc;

	*ret_id = 0;
	if (!blob->node)
		return 0;
	if (blob->node != t->node)
		return meta_blob_put_away(t->s->catalog, blob->node, blob->number, blob->bytes, ret_id, t->io.err);
	rc = meta_blob_bytes(t->s->catalog, blob->number, &bytes, &why);
	if (rc == 0)
		rc = meta_blob_origin(t->s->catalog, blob->number, &node, &number, &why);
	if (rc < 0 && rc != SC_E_NOT_FOUND) {
		*t->io.err = why;
		return rc;
	}
	if (rc == 0 && t->seals && bytes != blob->bytes) {
		rc = seal(t, blob, &bytes);
		if (rc < 0)
			return rc;
	}
	/* lost: this store is an older copy of the one that it was.  Numbers are given once
	 * (reshard/cluster/peers/bound.c), so it is no other one; who has a copy gives its bytes */
	if (rc || bytes != blob->bytes)
		return meta_blob_put_away(t->s->catalog, t->node, blob->number, blob->bytes, ret_id, t->io.err);
	*ret_id = blob->number;
	return 0;
}

static int on_flat(void *arg, uint64_t id, const char *source, const char *flat)
{
	struct rs_object_take *t = arg;

	(void)source;
	t->last.id = id;
	return meta_layout_parse(flat, NULL, NULL, &t->last.layout, t->io.err);
}

int rs_object_topology(struct rs_object_take *t, uint64_t layout, const char *text, struct meta_topology *ret,
		       const struct meta_layout **ret_layout)
{
	int rc = 0;

	/* not the service's: a number that is rolled back may be another layout's later */
	if (t->last.id != layout || !t->last.layout) {
		t->last.layout = meta_layout_free(t->last.layout);
		rc = meta_layout_get(t->s->catalog, layout, on_flat, t, t->io.err);
	}
	if (rc == 0)
		rc = meta_topology_parse(t->last.layout, text, ret, t->io.err);
	*ret_layout = t->last.layout;
	return rc;
}

static int add_layout(struct rs_object_take *t, const struct rs_object_name *name, struct rs_text *text,
		      uint64_t *ret_id)
{
	struct meta_layout *layout = NULL;
	struct rs_object_layout l = {0};
	int rc;

	rs_object_walk_layout(text, &l);
	rc = rs_object_parsed(&t->io, name, text, "layout");
	if (rc == 0)
		rc = meta_layout_parse(l.flat, NULL, NULL, &layout, t->io.err);
	if (rc == 0 && strcmp(layout->flat, l.flat) != 0)
		rc = rs_object_bad(&t->io, name, "is a layout of which the flat text is not flat");
	if (rc == 0)
		rc = meta_layout_put(t->s->catalog, l.source, l.flat, ret_id, t->io.err);
	meta_layout_free(layout);
	return rc;
}

int rs_object_take_layout(struct rs_object_take *t, const struct rs_object_name *name, uint64_t *ret_id)
{
	return take(t, META_OBJECT_LAYOUT, name, add_layout, ret_id);
}

/* --- sets --- */

static int add_payload(struct rs_object_take *t, const struct rs_object_name *name, struct rs_text *text,
		       uint64_t *ret_id)
{
	struct meta_bytes payload = {0};
	int rc;

	rs_object_walk_payload(text, &payload);
	rc = rs_object_parsed(&t->io, name, text, "payload");
	return rc < 0 ? rc : meta_payload_put(t->s->catalog, payload.at, payload.nr, ret_id, t->io.err);
}

/* Parses the tensors of a set into its state: 0, or an error. */
static int parse_tensors(struct rs_object_take *t, struct rs_set *set, const struct meta_bytes *lines)
{
	char *copy = sc_arena_copy(&t->arena, lines->at, lines->nr), *save = NULL;
	struct sc_buf again = {0};
	int rc = copy ? 0 : sc_nomem(t->io.err);

	for (char *line = rc == 0 ? strtok_r(copy, "\n", &save) : NULL; rc == 0 && line;
	     line = strtok_r(NULL, "\n", &save)) {
		rc = set->state.nr < SC_TENSORS_MAX ? rs_set_parse_tensor(set, line, t->io.err)
						    : sc_fail(t->io.err, SC_E_FORMAT, "a set of too many tensors");
		if (rc == SC_E_CORRUPT)
			rc = sc_fail(t->io.err, SC_E_FORMAT, "a line of a tensor that is none");
	}
	if (rc == 0)
		rs_set_tensors_text(set, &again);
	if (rc == 0 && again.failed)
		rc = sc_nomem(t->io.err);
	if (rc == 0 && (set->digests || again.bytes != lines->nr ||
			(lines->nr && memcmp(again.text, lines->at, lines->nr) != 0)))
		rc = sc_fail(t->io.err, SC_E_FORMAT, "a line of a tensor that is written otherwise");
	sc_buf_done(&again);
	return rc;
}

/* Checks that a set can be shown.  No cache of the service learns of it. */
static int check_set(struct rs_object_take *t, const struct rs_object_set *x, const struct meta_set_row *row)
{
	const struct rs_format_ops *format = rs_format_find(x->format);
	struct meta_topology given = {0};
	const struct meta_layout *ignored;
	struct rs_set *set;
	int rc;

	if (!format)
		return sc_fail(t->io.err, SC_E_UNSUPPORTED, "'%s' is stored in the format '%s', which this program "
			       "does not have; use the Scalai that committed it", x->file, x->format);
	set = rs_set_new(x->file, format);
	rc = set ? parse_tensors(t, set, &x->tensors) : sc_nomem(t->io.err);
	if (rc == 0 && row->given_topology)
		rc = rs_object_topology(t, row->given_layout, row->given_topology, &given, &ignored);
	for (size_t i = 0; rc == 0 && i < x->given.nr; i++)
		if (x->given.at[i].rank >= given.ranks)
			rc = sc_fail(t->io.err, SC_E_FORMAT, "an object names a file of rank %" PRIu32 ", but its "
				     "topology has %" PRIu32 " ranks", x->given.at[i].rank, given.ranks);
	if (rc == 0)
		rc = rs_object_topology(t, row->layout, row->topology, &set->topo, &set->layout);
	if (rc == 0) {
		set->state.layers = row->layers;
		set->state.experts = row->experts;
		rc = rs_set_finish(set, t->io.err);
	}
	for (size_t i = 0; rc == 0 && i < x->files.nr; i++)
		if (x->files.at[i].rank >= set->topo.ranks)
			rc = sc_fail(t->io.err, SC_E_FORMAT, "an object names a file of rank %" PRIu32 ", but its "
				     "topology has %" PRIu32 " ranks", x->files.at[i].rank, set->topo.ranks);
	meta_topology_done(&given);
	rs_set_unref(set);
	return rc;
}

static int add_files(struct rs_object_take *t, uint64_t set, const struct rs_object_files *files, bool given)
{
	struct meta_catalog *c = t->s->catalog;
	int rc = 0;

	for (size_t i = 0; rc == 0 && i < files->nr; i++) {
		const struct rs_object_file *f = &files->at[i];
		struct meta_set_blob_row row = {.rank = f->rank, .mode = f->mode, .uid = f->uid, .gid = f->gid,
						.step = t->step, .taken = true};

		if (given && f->blob.node)
			rc = sc_fail(t->io.err, SC_E_FORMAT, "a blob of attributes that have none");
		if (rc == 0)
			rc = meta_path_put(c, f->path, &row.path, t->io.err);
		if (rc == 0 && f->has_payload)
			rc = take(t, META_OBJECT_PAYLOAD, &f->payload, add_payload, &row.payload);
		if (rc == 0)
			rc = rs_object_take_blob(t, &f->blob, &row.blob);
		if (rc == 0)
			rc = given ? meta_set_add_given(c, set, &row, t->io.err)
				   : meta_set_add_blob(c, set, &row, t->io.err);
	}
	return rc;
}

static int add_rows_of_set(struct rs_object_take *t, const struct rs_object_set *x, uint64_t *ret_id)
{
	struct meta_catalog *c = t->s->catalog;
	struct meta_set_row row = {
		.file = x->file, .format = x->format, .topology = x->place.topology, .layers = x->place.layers,
		.experts = x->place.experts, .payload = x->has_payload ? x->payload : NULL, .report = "",
		.tensors = sc_arena_copy(&t->arena, x->tensors.at, x->tensors.nr),
		.given_topology = x->is_given ? x->given_place.topology : NULL, .given_layers = x->given_place.layers,
		.given_experts = x->given_place.experts};
	int rc = row.tensors ? rs_object_take_layout(t, &x->place.layout, &row.layout) : sc_nomem(t->io.err);

	if (rc == 0 && x->is_given)
		rc = rs_object_take_layout(t, &x->given_place.layout, &row.given_layout);
	if (rc == 0)
		rc = check_set(t, x, &row);
	if (rc == 0)
		rc = meta_set_add(c, &row, ret_id, t->io.err);
	if (rc == 0)
		rc = add_files(t, *ret_id, &x->files, false);
	if (rc == 0 && x->is_given)
		rc = add_files(t, *ret_id, &x->given, true);
	return rc < 0 ? rc : meta_stale_note_set(c, *ret_id, t->io.err);
}

static int add_set(struct rs_object_take *t, const struct rs_object_name *name, struct rs_text *text, uint64_t *ret_id)
{
	struct rs_object_set x = {0};
	int rc;

	rs_object_walk_set(text, &x);
	rc = rs_object_parsed(&t->io, name, text, "set");
	if (rc == 0) {
		rc = add_rows_of_set(t, &x, ret_id);
		if (rc < 0)
			(void)sc_wrap(t->io.err, rc, "set '%s'", x.file);
	}
	rs_object_set_done(&x);
	return rc;
}

int rs_object_take_set(struct rs_object_take *t, const struct rs_object_name *name, uint64_t *ret_id)
{
	return take(t, META_OBJECT_SET, name, add_set, ret_id);
}

int rs_objects_take_set(struct rs_service *s, struct rs_job *job, const struct rs_object_name *name, uint32_t node,
			const struct rs_object_ops *ops, void *arg, uint64_t *ret_set, struct sc_err *err)
{
	struct rs_object_take t = {.s = s, .job = job, .node = node, .io = {ops, arg, err}};
	int rc = rs_object_take_set(&t, name, ret_set);

	meta_layout_free(t.last.layout);
	sc_arena_done(&t.arena);
	return rc;
}

/* --- datasets --- */

static int add_rows_of_dataset(struct rs_object_take *t, const struct rs_object_dataset *d, uint64_t *ret_id)
{
	struct meta_dataset_row row = {.name = d->name, .spec = d->spec, .form = d->form, .uid = d->uid, .gid = d->gid};
	struct rs_data_spec spec;
	int rc = rs_data_spec_parse(d->name, d->spec, &spec, t->io.err);

	if (rc == 0)
		rc = meta_dataset_add(t->s->catalog, &row, ret_id, t->io.err);
	for (size_t i = 0; rc == 0 && i < d->sources.nr; i++) {
		const struct rs_object_source *s = &d->sources.at[i];
		struct meta_data_source_row source = {
			.path = s->path, .bytes = s->bytes, .samples = s->samples, .sequences = s->sequences,
			.first = s->first, .bare = s->bare != 0}; /* its time here is not known yet */

		memcpy(source.ends, s->ends, sizeof(source.ends));
		rc = rs_object_take_blob(t, &s->copy, &source.blob);
		if (rc == 0)
			rc = rs_object_take_blob(t, &s->borders, &source.borders);
		if (rc == 0)
			rc = meta_dataset_add_source(t->s->catalog, *ret_id, i, &source, t->io.err);
	}
	return rc;
}

static int add_dataset(struct rs_object_take *t, const struct rs_object_name *name, struct rs_text *text,
		       uint64_t *ret_id)
{
	struct rs_object_dataset d = {0};
	int rc;

	rs_object_walk_dataset(text, &d);
	rc = rs_object_parsed(&t->io, name, text, "dataset");
	if (rc == 0) {
		rc = add_rows_of_dataset(t, &d, ret_id);
		if (rc < 0)
			(void)sc_wrap(t->io.err, rc, "dataset '%s'", d.name);
	}
	rs_object_dataset_done(&d);
	return rc;
}

int rs_object_take_dataset(struct rs_object_take *t, const struct rs_object_name *name, uint64_t *ret_id)
{
	return take(t, META_OBJECT_DATASET, name, add_dataset, ret_id);
}
