/* SPDX-License-Identifier: Apache-2.0 */
/* Objects as text, a walk over the fields of each kind: see text.h. */
#include "reshard/exchange/objects/objects_i.h"

#include <string.h>

static void flag(struct rs_text *t, uint8_t *is)
{
	RS_TEXT_NUMBER(t, *is);
	t->bad |= *is > 1;
}

static void name(struct rs_text *t, struct rs_object_name *n)
{
	rs_text_hex(t, n->at, sizeof(n->at));
}

/* Walks over a name that may be missing. */
static void maybe(struct rs_text *t, uint8_t *has, struct rs_object_name *n)
{
	flag(t, has);
	if (*has)
		name(t, n);
}

static void blob(struct rs_text *t, struct rs_object_blob *b)
{
	RS_TEXT_NUMBER(t, b->node);
	if (!b->node)
		return;
	RS_TEXT_NUMBER(t, b->number);
	RS_TEXT_NUMBER(t, b->bytes);
	t->bad |= b->node >> META_NODE_BITS || !b->number || b->number >= SC_BLOBS_MAX || b->bytes > INT64_MAX;
}

static void line(struct rs_text *t, const char *key, const char **text)
{
	rs_text_key(t, key);
	rs_text_rest(t, text);
	rs_text_end(t);
}

/* --- versions --- */

static void one_set(struct rs_text *t, struct rs_object_name *n)
{
	rs_text_key(t, "set");
	name(t, n);
	rs_text_end(t);
}

static void one_use(struct rs_text *t, struct rs_object_use *u)
{
	rs_text_key(t, "dataset");
	name(t, &u->dataset);
	RS_TEXT_NUMBER(t, u->from_epoch);
	RS_TEXT_NUMBER(t, u->from_samples);
	rs_text_end(t);
}

static void one_part(struct rs_text *t, struct rs_object_from *p)
{
	rs_text_key(t, "from");
	RS_TEXT_NUMBER(t, p->node);
	name(t, &p->part);
	rs_text_end(t);
}

void rs_object_walk_version(struct rs_text *t, struct rs_object_version *v)
{
	rs_text_key(t, "scalai version 2\nnumbers");
	RS_TEXT_NUMBER(t, v->nr);
	RS_TEXT_NUMBER(t, v->parent);
	rs_text_signed(t, &v->step);
	RS_TEXT_NUMBER(t, v->samples);
	rs_text_end(t);
	rs_text_key(t, "made");
	rs_text_signed(t, &v->made_ns);
	rs_text_signed(t, &v->floor_ns);
	RS_TEXT_NUMBER(t, v->request);
	rs_text_rest(t, &v->made_by);
	rs_text_end(t);
	line(t, "note", &v->note);
	rs_text_key(t, "layout");
	name(t, &v->layout);
	rs_text_rest(t, &v->topology);
	rs_text_end(t);
	rs_text_key(t, "tree");
	maybe(t, &v->has_tree, &v->tree);
	rs_text_end(t);
	RS_TEXT_LIST(t, "parts", &v->parts, one_part);
	RS_TEXT_LIST(t, "sets", &v->sets, one_set);
	RS_TEXT_LIST(t, "datasets", &v->data, one_use);
	t->bad |= !v->nr || v->nr > INT64_MAX || v->parent >= v->nr || v->step < -1 || v->samples > INT64_MAX;
}

void rs_object_version_done(struct rs_object_version *v)
{
	sc_vec_done(&v->parts);
	sc_vec_done(&v->sets);
	sc_vec_done(&v->data);
}

/* --- layouts, payloads --- */

void rs_object_walk_layout(struct rs_text *t, struct rs_object_layout *l)
{
	rs_text_key(t, "scalai layout 1\n");
	line(t, "source", &l->source);
	line(t, "flat", &l->flat);
}

void rs_object_walk_payload(struct rs_text *t, struct meta_bytes *payload)
{
	rs_text_key(t, "scalai payload 1\n");
	rs_text_bytes(t, "bytes", payload);
	t->bad |= payload->nr > SC_PAYLOAD_BYTES_MAX;
}

/* --- sets --- */

static void one_given(struct rs_text *t, struct rs_object_file *f)
{
	rs_text_key(t, "file");
	RS_TEXT_NUMBER(t, f->rank);
	RS_TEXT_NUMBER(t, f->mode);
	RS_TEXT_NUMBER(t, f->uid);
	RS_TEXT_NUMBER(t, f->gid);
	maybe(t, &f->has_payload, &f->payload);
	blob(t, &f->blob);
	rs_text_rest(t, &f->path);
	rs_text_end(t);
	t->bad |= f->rank >= SC_RANKS_MAX || f->mode > 07777 || !*f->path || strlen(f->path) > SC_PATH_BYTES_MAX;
}

static void one_file(struct rs_text *t, struct rs_object_file *f)
{
	one_given(t, f);
	t->bad |= !f->blob.node;
}

static void place(struct rs_text *t, struct rs_object_place *p)
{
	name(t, &p->layout);
	RS_TEXT_NUMBER(t, p->layers);
	RS_TEXT_NUMBER(t, p->experts);
	rs_text_rest(t, &p->topology);
	rs_text_end(t);
}

void rs_object_walk_set(struct rs_text *t, struct rs_object_set *s)
{
	rs_text_key(t, "scalai set 1\n");
	line(t, "file", &s->file);
	line(t, "format", &s->format);
	rs_text_key(t, "layout");
	place(t, &s->place);
	rs_text_key(t, "payload");
	flag(t, &s->has_payload);
	if (s->has_payload)
		rs_text_rest(t, &s->payload);
	rs_text_end(t);
	rs_text_bytes(t, "tensors", &s->tensors);
	RS_TEXT_LIST(t, "files", &s->files, one_file);
	rs_text_key(t, "given");
	flag(t, &s->is_given);
	if (!s->is_given) {
		rs_text_end(t);
		return;
	}
	place(t, &s->given_place);
	RS_TEXT_LIST(t, "files", &s->given, one_given);
}

void rs_object_set_done(struct rs_object_set *s)
{
	sc_vec_done(&s->files);
	sc_vec_done(&s->given);
}

/* --- trees --- */

static void one_block(struct rs_text *t, struct rs_object_numbers *n)
{
	rs_text_key(t, "numbers");
	RS_TEXT_NUMBER(t, n->first);
	RS_TEXT_NUMBER(t, n->nr);
	rs_text_end(t);
}

static void one_path(struct rs_text *t, struct rs_object_path *p)
{
	rs_text_key(t, "path");
	RS_TEXT_NUMBER(t, p->id);
	rs_text_rest(t, &p->text);
	rs_text_end(t);
	t->bad |= p->id >= SC_PATHS_MAX || strlen(p->text) > SC_PATH_BYTES_MAX;
}

static void blocks_and_paths(struct rs_text *t, struct rs_object_blocks *blocks, struct rs_object_paths *paths)
{
	RS_TEXT_LIST(t, "blocks", blocks, one_block);
	RS_TEXT_LIST(t, "paths", paths, one_path);
	for (size_t i = 1; i < paths->nr; i++)
		t->bad |= paths->at[i - 1].id >= paths->at[i].id;
}

void rs_object_walk_tree(struct rs_text *t, struct rs_object_tree *x)
{
	rs_text_key(t, "scalai tree 1\nbase");
	maybe(t, &x->has_base, &x->base);
	rs_text_end(t);
	rs_text_key(t, "root");
	RS_TEXT_NUMBER(t, x->root);
	rs_text_end(t);
	rs_text_key(t, "layout");
	name(t, &x->layout);
	rs_text_rest(t, &x->topology);
	rs_text_end(t);
	blocks_and_paths(t, &x->numbers, &x->paths);
	rs_text_bytes(t, "rows", &x->rows);
}

void rs_object_walk_part(struct rs_text *t, struct rs_object_part *x)
{
	rs_text_key(t, "scalai part 1\nnode");
	RS_TEXT_NUMBER(t, x->node);
	rs_text_end(t);
	rs_text_key(t, "root");
	RS_TEXT_NUMBER(t, x->root);
	RS_TEXT_NUMBER(t, x->base);
	rs_text_end(t);
	blocks_and_paths(t, &x->numbers, &x->paths);
	rs_text_bytes(t, "rows", &x->rows);
}

void rs_object_tree_done(struct rs_object_tree *x)
{
	sc_vec_done(&x->numbers);
	sc_vec_done(&x->paths);
}

void rs_object_part_done(struct rs_object_part *x)
{
	sc_vec_done(&x->numbers);
	sc_vec_done(&x->paths);
}

/* --- datasets --- */

static void one_source(struct rs_text *t, struct rs_object_source *s)
{
	rs_text_key(t, "source");
	RS_TEXT_NUMBER(t, s->bytes);
	RS_TEXT_NUMBER(t, s->samples);
	RS_TEXT_NUMBER(t, s->sequences);
	RS_TEXT_NUMBER(t, s->first);
	flag(t, &s->bare);
	rs_text_signed(t, &s->mtime_ns);
	rs_text_hex(t, s->ends, sizeof(s->ends));
	blob(t, &s->copy);
	blob(t, &s->borders);
	rs_text_rest(t, &s->path);
	rs_text_end(t);
	t->bad |= (s->bytes | s->samples | s->sequences | s->first) > INT64_MAX || !*s->path;
}

void rs_object_walk_dataset(struct rs_text *t, struct rs_object_dataset *d)
{
	rs_text_key(t, "scalai dataset 1\n");
	line(t, "name", &d->name);
	line(t, "spec", &d->spec);
	line(t, "form", &d->form);
	rs_text_key(t, "owner");
	RS_TEXT_NUMBER(t, d->uid);
	RS_TEXT_NUMBER(t, d->gid);
	rs_text_end(t);
	RS_TEXT_LIST(t, "sources", &d->sources, one_source);
}

void rs_object_dataset_done(struct rs_object_dataset *d)
{
	sc_vec_done(&d->sources);
}
