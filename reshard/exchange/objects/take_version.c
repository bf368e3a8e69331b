/* SPDX-License-Identifier: Apache-2.0 */
/* Takes a version's object as rows, and checks that the version can be shown. */
#include "reshard/exchange/objects/objects_i.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "meta/catalog/tensor_line.h"
#include "reshard/version/state/state_i.h"

/* --- can it be shown? --- */

struct whole {
	struct rs_object_take *t;
	struct meta_state state;
	char file[SC_PATH_BYTES_MAX + 1];	/* of the set before */
	bool any;
};

static int on_set(void *arg, const struct meta_set_row *row)
{
	struct whole *w = arg;
	char *text = sc_strdup(row->tensors), *save = NULL;
	int rc = text ? 0 : sc_nomem(w->t->io.err);

	if (rc == 0 && w->any && strcmp(row->file, w->file) == 0)
		rc = sc_fail(w->t->io.err, SC_E_FORMAT, "it has two sets of '%s': nothing was taken", row->file);
	w->any = true;
	(void)snprintf(w->file, sizeof(w->file), "%s", row->file);
	w->state.layers = row->layers > w->state.layers ? row->layers : w->state.layers;
	w->state.experts = row->experts > w->state.experts ? row->experts : w->state.experts;
	for (char *line = rc == 0 ? strtok_r(text, "\n", &save) : NULL; rc == 0 && line;
	     line = strtok_r(NULL, "\n", &save)) {
		struct meta_tensor_line t;

		if (!meta_tensor_line_parse(line, &t))
			rc = sc_fail(w->t->io.err, SC_E_CORRUPT, "catalog: bad line of a tensor: run 'scalai fsck'");
		else if (meta_state_add(&w->state, t.key, strlen(t.key), t.dtype, &t.shape) < 0)
			rc = sc_nomem(w->t->io.err);
	}
	sc_sys.release(text);
	return rc;
}

/* Checks all sets together at the version's topology.  No cache of the service learns of them. */
static int check_version(struct rs_object_take *t, uint64_t version, const struct meta_layout *layout,
			 const struct meta_topology *topo)
{
	struct whole w = {.t = t};
	struct meta_view *view = NULL;
	int rc = meta_version_sets(t->s->catalog, version, on_set, &w, t->io.err);

	if (rc == 0)
		rc = meta_view_new(layout, topo, &w.state, &view, t->io.err);
	meta_view_free(view);
	meta_state_done(&w.state);
	return rc;
}

/* --- rows --- */

static int add_parts(struct rs_object_take *t, uint64_t version, const struct rs_object_version *v,
		     const struct rs_object_names *sets)
{
	struct meta_catalog *c = t->s->catalog;
	uint64_t id;
	int rc = 0;

	for (size_t i = 0; rc == 0 && i < sets->nr; i++) {
		rc = rs_object_take_set(t, &sets->at[i], &id);
		if (rc == 0)
			rc = meta_version_add_set(c, version, id, t->io.err);
	}
	for (size_t i = 0; rc == 0 && i < v->data.nr; i++) {
		rc = rs_object_take_dataset(t, &v->data.at[i].dataset, &id);
		if (rc == 0)
			rc = meta_version_add_data(c, version, id, v->data.at[i].from_epoch,
						   v->data.at[i].from_samples, t->io.err);
	}
	return rc;
}

static int add_version(struct rs_object_take *t, const struct rs_object_version *v, const struct rs_object_names *sets,
		       uint64_t *ret_version)
{
	struct meta_catalog *c = t->s->catalog;
	struct meta_version_row row = {
		.job = t->job->id, .nr = v->nr, .step = v->step, .samples = v->samples, .note = v->note,
		.made_ns = v->made_ns, .made_by = v->made_by, .topology = v->topology, .request = v->request,
		.floor_ns = v->floor_ns};
	const struct meta_layout *layout;
	struct meta_topology topo = {0};
	uint64_t view;
	int rc = meta_version_find(c, t->job->id, v->parent, &row.parent, t->io.err);

	if (rc == 0)
		rc = rs_object_take_layout(t, &v->layout, &row.layout);
	if (rc == 0 && v->has_tree)
		rc = rs_object_take_tree(t, &v->tree, &row.tree);
	if (rc == 0)
		rc = meta_version_add(c, &row, t->io.err);
	if (rc == 0)
		rc = add_parts(t, row.id, v, sets);
	/* last: it is the layout that was asked for last, then */
	if (rc == 0)
		rc = rs_object_topology(t, row.layout, v->topology, &topo, &layout);
	if (rc == 0)
		rc = check_version(t, row.id, layout, &topo);
	if (rc == 0)
		rc = meta_view_put(c, row.id, "", topo.ranks, &view, t->io.err);
	meta_topology_done(&topo);
	*ret_version = row.id;
	return rc;
}

int rs_object_read_version(const struct rs_object_io *io, const uint8_t name[RS_OBJECT_NAME_BYTES],
			   struct sc_arena *arena, struct rs_object_version *ret)
{
	struct rs_object_name its;
	struct sc_buf buf = {0};
	struct rs_text text;
	int rc;

	memcpy(its.at, name, sizeof(its.at));
	rc = rs_object_read(io, &its, &buf, arena, &text);
	if (rc == 0) {
		rs_object_walk_version(&text, ret);
		rc = rs_object_parsed(io, &its, &text, "version");
	}
	sc_buf_done(&buf);
	return rc;
}

int rs_objects_has_part(const uint8_t name[RS_OBJECT_NAME_BYTES], uint32_t node,
			const uint8_t part[RS_OBJECT_NAME_BYTES], const struct rs_object_ops *ops, void *arg,
			struct sc_err *err)
{
	const struct rs_object_io io = {ops, arg, err};
	struct rs_object_version v = {0};
	struct sc_arena arena = {0};
	int rc = rs_object_read_version(&io, name, &arena, &v);
	bool has = false;

	for (size_t i = 0; rc == 0 && i < v.parts.nr; i++)
		has |= v.parts.at[i].node == node &&
		       memcmp(v.parts.at[i].part.at, part, RS_OBJECT_NAME_BYTES) == 0;
	rs_object_version_done(&v);
	sc_arena_done(&arena);
	return rc < 0 ? rc : has;
}

int rs_objects_take(struct rs_service *s, struct rs_job *job, const uint8_t name[RS_OBJECT_NAME_BYTES], uint32_t node,
		    bool seals, const struct rs_object_names *sets, const struct rs_object_ops *ops, void *arg,
		    uint64_t *ret_version, struct sc_err *err)
{
	struct rs_object_take t = {.s = s, .job = job, .node = node, .seals = seals, .io = {ops, arg, err}};
	struct rs_object_version v = {0};
	struct sc_arena arena = {0};
	int rc = rs_object_read_version(&t.io, name, &arena, &v);

	t.step = v.step;
	if (rc == 0) {
		rc = add_version(&t, &v, sets ? sets : &v.sets, ret_version);
		if (rc < 0)
			(void)sc_wrap(err, rc, "version %" PRIu64, v.nr);
	}
	rs_object_version_done(&v);
	meta_layout_free(t.last.layout);
	sc_arena_done(&t.arena);
	sc_arena_done(&arena);
	return rc;
}
