/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The control file `data` adds, removes and refreshes datasets.  Sources are read without any lock of the job; then a
 * new version of the job uses them, or nothing has changed.
 */
#include "reshard/command/commands/data_i.h"

#include <glob.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

struct edit {
	enum { EDIT_ADD, EDIT_REMOVE, EDIT_REFRESH } kind;
	struct rs_data_spec spec;
	struct {
		size_t nr, room;
		char **at;
	} paths;
	struct rs_taking as;		/* who opens them */
	struct rs_corpus *corpus;	/* what was made of them */
	uint64_t before;		/* EDIT_REFRESH: the dataset it was made from */
};

struct change {
	struct rs_advance a;
	struct rs_taking as;		/* whoever wrote the command */
	struct {
		size_t nr, room;
		struct edit *at;
	} edits;
};

/* --- commands --- */

static int add_path(struct change *c, struct edit *e, const char *path)
{
	char *copy = sc_strdup(path);

	if (!copy || sc_vec_push(&e->paths, copy) < 0) {
		sc_sys.release(copy);
		return sc_nomem(c->as.err);
	}
	return 0;
}

/* Adds the files of a path: one file, or those that a pattern of the shell's names, in order of name. */
static int add_paths(struct change *c, struct edit *e, const char *path)
{
	glob_t found = {0};
	int rc = 0;

	if (*path != '/' || strlen(path) >= SC_COMMAND_BYTES_MAX - 8)
		return sc_fail(c->as.err, SC_E_COMMAND, "path='%s' is not an absolute path", path);
	if (!strpbrk(path, "*?["))
		return add_path(c, e, path);
	rs_become(c->as.uid, c->as.gid);
	(void)glob(path, 0, NULL, &found);
	rs_become(geteuid(), getegid());
	for (size_t i = 0; rc == 0 && i < found.gl_pathc; i++)
		rc = add_path(c, e, found.gl_pathv[i]);
	if (rc == 0 && found.gl_pathc == 0)
		rc = add_path(c, e, path); /* a name with these characters, or the sentence that it is not there */
	globfree(&found);
	return rc;
}

/* Cuts the next word off a line, `KEY=VALUE` or `KEY="VALUE"`; NULL: the line has none. */
static char *next_word(char **line)
{
	char *at = *line + strspn(*line, " \t\r"), *word = at, *to = at;
	bool quoted = false;

	if (!*at)
		return NULL;
	for (; *at && (quoted || !strchr(" \t\r", *at)); at++) {
		if (*at == '"')
			quoted = !quoted;
		else
			*to++ = *at;
	}
	*line = at + (*at != 0);
	*to = 0;
	return word;
}

/* Tells whether a source is Megatron's: NAME.bin with NAME.idx beside it. */
static bool has_index(const struct change *c, const char *path)
{
	char bin[SC_COMMAND_BYTES_MAX], idx[SC_COMMAND_BYTES_MAX];
	struct stat st;
	bool is;

	rs_megatron_paths(path, bin, idx, sizeof(bin));
	if (strcmp(path, bin) != 0)
		return false;
	rs_become(c->as.uid, c->as.gid);
	is = stat(idx, &st) == 0 && S_ISREG(st.st_mode);
	rs_become(geteuid(), getegid());
	return is;
}

static const char *const verbs[] = {"add", "remove", "refresh"};

/* Takes one KEY=VALUE into an edit; `path` may come several times. */
static int parse_word(struct change *c, struct edit *e, struct sc_keys *keys, char *word)
{
	char *eq = strchr(word, '=');
	bool is_path = e->kind == EDIT_ADD && strncmp(word, "path=", 5) == 0;
	int rc = 0;

	if (!eq)
		return sc_fail(c->as.err, SC_E_COMMAND, "'%s' is not KEY=VALUE", word);
	*eq = 0;
	if (!is_path)
		rc = sc_keys_add(keys, word, c->as.err);
	if (rc < 0)
		return rc;
	if (is_path)
		rc = add_paths(c, e, eq + 1);
	else if (e->kind != EDIT_ADD && strcmp(word, "name") != 0)
		rc = 1;
	else
		rc = rs_data_spec_word(&e->spec, word, eq + 1, c->as.err);
	if (rc <= 0)
		return rc;
	return sc_fail(c->as.err, SC_E_COMMAND, "%s: '%s=' is unknown%s", verbs[e->kind], word,
		       e->kind != EDIT_ADD ? ""
					   : "; the options are name, path, format, seed, shuffle, global_batch, "
					     "drop_last, share, uneven, unit, record, head, start, axes, suffix and "
					     "copy");
}

static int parse_line(struct change *c, char *line)
{
	struct sc_keys keys = {0};
	struct edit *e;
	char *word = next_word(&line);
	int rc = 0;

	if (!word || *word == '#')
		return 0;
	if (sc_vec_push(&c->edits, (struct edit){0}) < 0)
		return sc_nomem(c->as.err);
	e = &c->edits.at[c->edits.nr - 1];
	rs_data_spec_default(&e->spec);
	e->as = c->as;
	for (e->kind = EDIT_ADD; e->kind <= EDIT_REFRESH && strcmp(word, verbs[e->kind]) != 0;)
		e->kind++;
	if (e->kind > EDIT_REFRESH)
		return sc_fail(c->as.err, SC_E_COMMAND,
			       "'%s' is unknown; write add name=NAME path=PATH global_batch=N ..., remove "
			       "name=NAME, or refresh name=NAME",
			       word);
	while (rc == 0 && (word = next_word(&line)))
		rc = parse_word(c, e, &keys, word);
	sc_vec_done(&keys);
	if (rc == 0 && !*e->spec.name)
		return sc_fail(c->as.err, SC_E_COMMAND, "%s: name= is missing", verbs[e->kind]);
	if (rc == 0 && e->kind == EDIT_ADD && !e->paths.nr)
		return sc_fail(c->as.err, SC_E_COMMAND, "add: path= is missing");
	if (rc == 0 && e->spec.copy && rs_head_waits(c->as.s))
		return sc_fail(c->as.err, SC_E_UNSUPPORTED, "copy=yes: in a cluster each node reads its own sources; "
			       "have them under this path on all nodes");
	if (rc == 0 && e->kind == EDIT_ADD && e->spec.format == RS_DATA_UNKNOWN && has_index(c, e->paths.at[0]))
		e->spec.format = RS_DATA_MEGATRON;
	if (rc == 0 && e->kind == EDIT_ADD)
		rc = rs_data_spec_finish(&e->spec, e->paths.at[0], c->as.err);
	return rc;
}

/* Finds the last use that a version has of a dataset, by name; NULL: none. */
static const struct rs_use *use_of(const struct rs_version *v, const char *name)
{
	const struct rs_use *use = NULL;

	for (size_t i = 0; v && i < v->data.nr; i++)
		if (strcmp(v->data.at[i].corpus->spec.name, name) == 0)
			use = &v->data.at[i];
	return use;
}

static int no_such(struct change *c, const char *name)
{
	return sc_fail(c->as.err, SC_E_NOT_FOUND, "the job has no dataset '%s'", name);
}

/* Takes options and sources of a refresh from the dataset that the head uses last under this name. */
static int prepare_refresh(struct change *c, struct edit *e)
{
	struct rs_view *head = rs_job_head(c->as.job);
	const struct rs_use *use = head ? use_of(head->version, e->spec.name) : NULL;
	int rc = use ? 0 : no_such(c, e->spec.name);

	if (rc == 0) {
		e->spec = use->corpus->spec;
		e->before = use->corpus->id;
		/* what it was opened as stays: the job's data are its owner's */
		e->as.uid = use->corpus->uid;
		e->as.gid = use->corpus->gid;
	}
	for (size_t i = 0; rc == 0 && i < use->corpus->nr; i++) {
		struct rs_data_bytes *bytes;

		rc = rs_data_source_ready(use->corpus, &use->corpus->at[i], &bytes, c->as.err);
		if (rc == 0)
			rc = rs_data_source_check(use->corpus, &use->corpus->at[i], bytes, c->as.err);
		if (rc == 0)
			rc = add_path(c, e, use->corpus->at[i].info.path);
	}
	rs_view_unref(c->as.s, head);
	return rc;
}

/* --- the new version --- */

static int by_name(const void *a, const void *b)
{
	const struct rs_use *x = a, *y = b;
	int order = strcmp(x->corpus->spec.name, y->corpus->spec.name);

	return order ? order : x->from_epoch < y->from_epoch ? -1 : x->from_epoch > y->from_epoch;
}

static void drop_use(struct rs_version *v, size_t i)
{
	rs_corpus_unref(v->data.at[i].corpus);
	memmove(&v->data.at[i], &v->data.at[i + 1], (--v->data.nr - i) * sizeof(*v->data.at));
}

/* Refuses a dataset if the version has a file at the path of one of the dataset's. */
static int check_free(struct change *c, const struct rs_version *v, const struct rs_data_spec *spec)
{
	char name[2 * RS_DATA_NAME_MAX], path[sizeof(name) + 8], next[RS_DATA_NAME_MAX + 16];

	(void)snprintf(next, sizeof(next), "data/%s.next/", spec->name);
	for (int k = 0; rs_data_file_name(spec, k, name, sizeof(name)); k++) {
		(void)snprintf(path, sizeof(path), "data/%s", name);
		for (size_t i = 0; i < v->nr_sets; i++) {
			const char *file = v->sets[i]->file;

			if (strcmp(file, path) == 0 || strncmp(file, next, strlen(next)) == 0)
				return sc_fail(c->as.err, SC_E_EXISTS, "dataset '%s': ranks already have a file '%s'; "
					"choose another name",
					       spec->name, file);
		}
	}
	return 0;
}

static int do_refresh(struct change *c, struct rs_version *v, struct edit *e)
{
	const struct rs_use *use = use_of(v, e->spec.name);
	struct rs_data_at at;
	size_t first = 0, next;
	int rc;

	if (!use || use->corpus->id != e->before)
		return sc_fail(c->as.err, SC_E_BUSY, "dataset '%s' was changed meanwhile; try again", e->spec.name);
	if (e->corpus->samples == use->corpus->samples && e->corpus->at[e->corpus->nr - 1].info.bytes ==
	    use->corpus->at[use->corpus->nr - 1].info.bytes)
		return 0; /* it has not grown */
	while (strcmp(v->data.at[first].corpus->spec.name, e->spec.name) != 0)
		first++;
	rc = rs_data_at(v, first, &next, &at, c->as.err);
	if (rc < 0)
		return rc;
	/* what was to come next, and has not begun, is superseded */
	for (size_t i = first; i < next;) {
		if (v->data.at[i].from_epoch > at.epoch) {
			drop_use(v, i);
			next--;
		} else {
			i++;
		}
	}
	/* an epoch of nothing has no end: what comes is this epoch */
	if (meta_deal_length(&at.corpus->spec.deal, at.corpus->samples) == 0) {
		drop_use(v, first);
		return rs_version_use(v, e->corpus, at.epoch, at.epoch_begin, c->as.err);
	}
	return rs_version_use(v, e->corpus, at.epoch + 1,
			      at.epoch_begin + meta_deal_length(&at.corpus->spec.deal, at.corpus->samples), c->as.err);
}

/* Adds a dataset at the position of the job, which may have consumed many samples of other datasets by then. */
static int do_add(struct change *c, struct rs_version *v, struct edit *e)
{
	struct meta_at at;
	uint64_t consumed = v->samples > e->spec.start ? v->samples - e->spec.start : 0;
	struct sc_err why;

	if (meta_deal_seek(&e->spec.deal, e->corpus->samples, consumed, &at, &why) < 0)
		return sc_fail(c->as.err, SC_E_COMMAND,
			       "dataset '%s': %s; start=%" PRIu64 ", the samples that the job has consumed, begins "
			       "its first "
			       "epoch now",
			       e->spec.name, why.msg, v->samples);
	return rs_version_use(v, e->corpus, 0, e->spec.start, c->as.err);
}

static int apply(struct change *c, struct rs_version *v, struct edit *e)
{
	bool any = use_of(v, e->spec.name) != NULL;
	int rc = 0;

	switch (e->kind) {
	case EDIT_ADD:
		if (any)
			return sc_fail(c->as.err, SC_E_EXISTS, "the job has a dataset '%s' already", e->spec.name);
		rc = check_free(c, v, &e->spec);
		if (rc == 0)
			rc = do_add(c, v, e);
		break;
	case EDIT_REMOVE:
		if (!any)
			return no_such(c, e->spec.name);
		for (size_t i = v->data.nr; i-- > 0;)
			if (strcmp(v->data.at[i].corpus->spec.name, e->spec.name) == 0)
				drop_use(v, i);
		break;
	case EDIT_REFRESH:
		rc = do_refresh(c, v, e);
		break;
	}
	if (rc == 0 && v->data.nr)
		qsort(v->data.at, v->data.nr, sizeof(*v->data.at), by_name);
	return rc;
}

/* Makes the first version, without tensors, of a job that has none yet. */
static int first_version(struct change *c, struct rs_version **ret, struct meta_topology *topo)
{
	const struct rs_kept_layout *kept;
	struct rs_job *job = c->as.job;
	struct rs_version *v;
	int rc;

	if (!job->first_layout || !job->first_topology)
		return sc_fail(c->as.err, SC_E_COMMAND,
			       "the job has no %s; write .ctl/layout, then .ctl/topology, then data",
			       job->first_layout ? "topology" : "layout");
	rc = rs_layout_by_id(c->as.s, job->first_layout, &kept, c->as.err);
	if (rc == 0)
		rc = meta_topology_parse(kept->layout, job->first_topology, topo, c->as.err);
	if (rc < 0)
		return rc;
	v = rs_version_new();
	if (v) {
		v->layout = kept->layout;
		v->layout_id = kept->id;
		v->step = -1;
		v->note = sc_strdup("");
	}
	*ret = v;
	return v && v->note ? 0 : sc_nomem(c->as.err);
}

static int present_data(struct rs_advance *a, struct sc_err *err)
{
	struct change *c = (struct change *)a;
	struct meta_topology topo = {0};
	int rc = 0;

	if (!a->base) {
		rc = first_version(c, &a->draft, &topo);
		if (rc == 0)
			rc = meta_topology_copy(&topo, &a->draft->topo) < 0 ? sc_nomem(err) : 0;
		meta_topology_done(&topo);
	} else {
		a->draft = rs_version_like(a->base->version, NULL);
		rc = a->draft && meta_topology_copy(&a->base->topo, &a->draft->topo) == 0 ? 0 : sc_nomem(err);
	}
	for (size_t i = 0; rc == 0 && i < c->edits.nr; i++)
		rc = apply(c, a->draft, &c->edits.at[i]);
	if (rc == 0)
		a->draft->made_ns = sc_now_wall_ns();
	return rc;
}

static void edit_done(struct change *c, struct edit *e)
{
	rs_taken_done(c->as.s, e->corpus);
	for (size_t i = 0; i < e->paths.nr; i++)
		sc_sys.release(e->paths.at[i]);
	sc_vec_done(&e->paths);
}

int rs_job_data(const struct rs_caller *who, struct rs_job *job, const char *text, struct sc_err *err)
{
	struct rs_service *s = who->service;
	struct change c = {.a = {.job = job, .change = RS_BY_DATA, .token = who->token, .present = present_data},
			   .as = {s, job, who->uid, who->gid, who->own_device, err}};
	char *copy = sc_strdup(text), *save = NULL;
	int rc = copy ? 0 : sc_nomem(err);

	for (char *line = rc == 0 ? strtok_r(copy, "\n", &save) : NULL; rc == 0 && line;
	     line = strtok_r(NULL, "\n", &save))
		rc = parse_line(&c, line);
	if (rc == 0 && c.edits.nr == 0)
		rc = sc_fail(err, SC_E_COMMAND, "empty; write add name=NAME path=PATH global_batch=N");
	for (size_t i = 0; rc == 0 && i < c.edits.nr; i++) {
		struct edit *e = &c.edits.at[i];

		if (e->kind == EDIT_REFRESH)
			rc = prepare_refresh(&c, e);
		if (rc == 0 && e->kind != EDIT_REMOVE)
			rc = rs_take_sources(&e->as, &e->spec, e->paths.at, e->paths.nr, &e->corpus);
	}
	if (rc == 0)
		rc = rs_head_move(&c.a, err);
	for (size_t i = 0; i < c.edits.nr; i++)
		edit_done(&c, &c.edits.at[i]);
	sc_vec_done(&c.edits);
	sc_sys.release(copy);
	rs_parts_purge(&s->parts);
	rs_worker_call(s, true);
	return rc;
}

int rs_data_samples(const struct rs_version *next, const struct rs_version *head, int64_t step, uint64_t *ret,
		    struct sc_err *err)
{
	const uint64_t batch = next->data.at[0].corpus->spec.deal.batch;
	uint64_t before;

	for (size_t i = 1; i < next->data.nr; i++)
		if (next->data.at[i].corpus->spec.deal.batch != batch)
			return sc_fail(err, SC_E_COMMAND,
				       "the datasets have different global batches, so step=%" PRId64 " does not say "
				       "how many samples were consumed; write samples=N, too",
				       step);
	/* the steps before had another batch, or somebody has counted otherwise */
	if (head && head->samples && head->step > 0 && step > 0 &&
	    (!sc_mul_u64((uint64_t)head->step, batch, &before) || before != head->samples))
		return sc_fail(err, SC_E_COMMAND,
			       "step=%" PRId64 " does not say how many samples were consumed: at step %" PRId64
			       " it was %" PRIu64 ", which is not %" PRId64 " times global_batch=%" PRIu64
			       "; write samples=N, too", step, head->step, head->samples, head->step, batch);
	if (!sc_mul_u64((uint64_t)step, batch, ret))
		return sc_fail(err, SC_E_COMMAND, "step=%" PRId64 " times global_batch=%" PRIu64 " is too large", step,
			       batch);
	return 0;
}

void rs_data_prune(struct rs_version *v)
{
	for (size_t i = 0; i + 1 < v->data.nr;) {
		const struct rs_use *next = &v->data.at[i + 1];

		if (strcmp(v->data.at[i].corpus->spec.name, next->corpus->spec.name) == 0 &&
		    next->from_samples <= v->samples)
			drop_use(v, i);
		else
			i++;
	}
}
