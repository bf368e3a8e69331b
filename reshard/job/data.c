/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The control file `data`: datasets are added, removed and refreshed.  Sources are read without any
 * lock of the job; then a new version of the job uses them, or nothing has changed.
 */
#include "reshard/job/service_i.h"

#include <errno.h>
#include <fcntl.h>
#include <glob.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "reshard/data/index.h"

/* --- blobs that are being made --- */

bool rs_data_holds(struct rs_service *s, uint64_t blob)
{
	bool holds = false;

	(void)pthread_mutex_lock(&s->lock);
	for (size_t i = 0; i < s->held.nr; i++)
		holds |= s->held.at[i] == blob;
	(void)pthread_mutex_unlock(&s->lock);
	return holds;
}

/* A new blob that no garbage collection takes until release(). */
static int hold_new(struct rs_service *s, uint64_t *ret_blob, int *ret_fd, struct sc_err *err)
{
	int rc;

	(void)pthread_mutex_lock(&s->making);
	rc = meta_blob_add(s->catalog, ret_blob, err);
	if (rc == 0) {
		(void)pthread_mutex_lock(&s->lock);
		rc = sc_vec_push(&s->held, *ret_blob) < 0 ? sc_nomem(err) : 0;
		(void)pthread_mutex_unlock(&s->lock);
	}
	(void)pthread_mutex_unlock(&s->making);
	return rc < 0 ? rc : meta_store_create(&s->store, *ret_blob, ret_fd, err);
}

static void release(struct rs_service *s, uint64_t blob)
{
	(void)pthread_mutex_lock(&s->lock);
	for (size_t i = 0; blob && i < s->held.nr; i++)
		if (s->held.at[i] == blob) {
			s->held.at[i] = s->held.at[--s->held.nr];
			break;
		}
	(void)pthread_mutex_unlock(&s->lock);
}

/* --- taking sources in --- */

struct edit {
	enum { EDIT_ADD, EDIT_REMOVE, EDIT_REFRESH } kind;
	struct rs_data_spec spec;
	struct {
		size_t nr, room;
		char **at;
	} paths;
	struct rs_corpus *corpus;	/* what was made of them */
	uint64_t before;		/* EDIT_REFRESH: the dataset it was made from */
};

struct change {
	struct rs_service *s;
	struct rs_job *job;
	uid_t uid;
	gid_t gid;
	dev_t own;
	struct sc_err *err;
	struct {
		size_t nr, room;
		struct edit *at;
	} edits;
	struct rs_keys keys;
};

static int same_file(const struct stat *a, const struct stat *b)
{
	return a->st_size == b->st_size && a->st_mtim.tv_sec == b->st_mtim.tv_sec &&
	       a->st_mtim.tv_nsec == b->st_mtim.tv_nsec;
}

static int open_checked(struct change *c, const char *path, int *ret_fd, struct stat *st)
{
	int rc = rs_data_source_open(path, c->uid, c->gid, ret_fd, c->err);

	if (rc < 0)
		return rc;
	if (sc_sys.fstat(*ret_fd, st) < 0)
		return sc_fail_sys(c->err, errno, "'%s'", path);
	if (!S_ISREG(st->st_mode))
		return sc_fail(c->err, SC_E_COMMAND, "'%s' is no plain file", path);
	if (st->st_dev == c->own)
		return sc_fail(c->err, SC_E_COMMAND, "'%s' is in this mount: a source lies outside of it", path);
	return 0;
}

static int map_file(int fd, const struct stat *st, const char *path, const unsigned char **ret, struct sc_err *err)
{
	void *map = NULL;

	if (st->st_size) {
		map = sc_sys.mmap(NULL, (size_t)st->st_size, PROT_READ, MAP_SHARED, fd, 0);
		if (map == MAP_FAILED)
			return sc_fail_sys(err, errno, "cannot map '%s'", path);
		(void)madvise(map, (size_t)st->st_size, MADV_SEQUENTIAL);
	}
	*ret = map;
	return 0;
}

/* Copies a source into the store. */
static int copy_in(struct change *c, struct rs_data_source_info *info, int from, struct sc_err *err)
{
	sc_cleanup(sc_closep) int to = -1;
	int rc = hold_new(c->s, &info->blob, &to, err);

	if (rc == 0)
		rc = rs_copy_file(to, from, info->bytes, info->path, err);
	if (rc == 0 && rs_job_syncs(c->job) && sc_sys.fsync(to) < 0)
		rc = sc_fail_sys(err, errno, "cannot flush the copy of '%s'", info->path);
	return rc;
}

static int scan(struct change *c, struct edit *e, struct rs_index *x, const struct stat *st)
{
	sc_cleanup(sc_closep) int table = -1;
	struct rs_data_source_info *info = x->info;
	struct stat after;
	int rc = 0;

	if (e->spec.format != RS_DATA_RECORDS && e->spec.format != RS_DATA_NPY)
		rc = hold_new(c->s, &info->borders, &table, c->err);
	if (rc == 0) {
		x->table->fd = table;
		rc = rs_index_source(x, c->err);
	}
	if (rc == 0 && x->has_table && rs_job_syncs(c->job) && sc_sys.fsync(table) < 0)
		rc = sc_fail_sys(c->err, errno, "cannot flush the table of '%s'", x->path);
	info->table_bytes = x->table->bytes;
	if (rc == 0)
		rc = rs_data_source_ends(x->fd, x->bytes, info->ends, c->err);
	if (rc == 0 && e->spec.copy)
		rc = copy_in(c, info, x->fd, c->err);
	if (rc == 0 && rs_job_syncs(c->job)) {
		struct meta_store_dirs dirs = {{0}};

		if (info->borders)
			meta_store_note_dir(&dirs, info->borders);
		if (info->blob)
			meta_store_note_dir(&dirs, info->blob);
		rc = meta_store_sync_dirs(&c->s->store, &dirs, c->err);
	}
	if (rc == 0 && (sc_sys.fstat(x->fd, &after) < 0 || !same_file(st, &after)))
		rc = sc_fail(c->err, SC_E_SOURCE, "'%s' was written to while it was taken in; try again", x->path);
	return rc;
}

static int agree_on_form(struct rs_corpus *corpus, const struct rs_index *x, struct sc_err *err)
{
	const char *form = x->form.text ? x->form.text : "";

	if (!corpus->form) {
		corpus->form = sc_strdup(form);
		return corpus->form ? 0 : sc_nomem(err);
	}
	if (strcmp(corpus->form, form) == 0)
		return 0;
	return sc_fail(err, SC_E_FORMAT, "'%s' has another type than the sources before it: '%.60s', expected '%.60s'", x->path,
		       form, corpus->form);
}

/* "x.bin", "x.idx" and "x" are one dataset of Megatron's. */
static int megatron_paths(const char *path, char *bin, char *idx, size_t bytes)
{
	size_t n = strlen(path);

	if (n > 4 && (strcmp(path + n - 4, ".bin") == 0 || strcmp(path + n - 4, ".idx") == 0))
		n -= 4;
	(void)snprintf(bin, bytes, "%.*s.bin", (int)n, path);
	(void)snprintf(idx, bytes, "%.*s.idx", (int)n, path);
	return 0;
}

static int take_in(struct change *c, struct edit *e, const char *given)
{
	sc_cleanup(sc_closep) int fd = -1;
	sc_cleanup(sc_closep) int idx_fd = -1;
	char path[SC_COMMAND_BYTES_MAX], idx[SC_COMMAND_BYTES_MAX];
	struct rs_data_source_info info = {0};
	struct rs_index x = {.spec = &e->spec, .path = path, .info = &info, .keys = &c->keys,
			     .table = sc_zalloc(sizeof(*x.table))};
	struct stat st = {0}, idx_st = {0};
	int rc = x.table ? 0 : sc_nomem(c->err);

	if (e->spec.format == RS_DATA_MEGATRON)
		(void)megatron_paths(given, path, idx, sizeof(path));
	else
		(void)snprintf(path, sizeof(path), "%s", given);
	if (rc == 0)
		rc = open_checked(c, path, &fd, &st);
	if (rc == 0)
		rc = map_file(fd, &st, path, &x.map, c->err);
	if (rc == 0 && e->spec.format == RS_DATA_MEGATRON) {
		rc = open_checked(c, idx, &idx_fd, &idx_st);
		if (rc == 0)
			rc = map_file(idx_fd, &idx_st, idx, &x.idx, c->err);
	}
	if (rc == 0) {
		x.fd = fd;
		x.bytes = info.bytes = (uint64_t)st.st_size;
		x.idx_bytes = (uint64_t)idx_st.st_size;
		info.mtime_ns = (int64_t)st.st_mtim.tv_sec * 1000000000 + st.st_mtim.tv_nsec;
		info.path = sc_strdup(path);
		rc = info.path ? scan(c, e, &x, &st) : sc_nomem(c->err);
	}
	if (rc == 0)
		rc = agree_on_form(e->corpus, &x, c->err);
	if (rc == 0)
		rc = rs_corpus_add(e->corpus, &info, c->err);
	if (rc < 0) {
		release(c->s, info.blob);
		release(c->s, info.borders);
	}
	if (x.map)
		(void)sc_sys.munmap((void *)x.map, (size_t)st.st_size);
	if (x.idx)
		(void)sc_sys.munmap((void *)x.idx, (size_t)idx_st.st_size);
	sc_sys.release(info.path);
	sc_sys.release(x.table);
	sc_buf_done(&x.form);
	return rc;
}

/* All sources of an edit: a corpus that has no number yet. */
static int make_corpus(struct change *c, struct edit *e)
{
	int rc = 0;

	e->corpus = rs_corpus_new(&c->s->store);
	if (!e->corpus)
		return sc_nomem(c->err);
	e->corpus->spec = e->spec;
	e->corpus->uid = c->uid;
	e->corpus->gid = c->gid;
	c->keys.nr = 0;
	for (size_t i = 0; rc == 0 && i < e->paths.nr; i++)
		rc = take_in(c, e, e->paths.at[i]);
	if (rc == 0)
		rc = rs_keys_check(&c->keys, e->spec.name, c->err);
	if (rc == 0)
		rc = rs_corpus_finish(e->corpus, c->err);
	if (rc == 0 && e->corpus->samples && !meta_deal_length(&e->spec.deal, e->corpus->samples))
		rc = sc_fail(c->err, SC_E_COMMAND, "dataset '%s' has %" PRIu64 " samples, fewer than global_batch=%" PRIu64
			     ": with drop_last=yes none is used", e->spec.name, e->corpus->samples, e->spec.deal.batch);
	return rc;
}

/* --- commands --- */

static int add_path(struct change *c, struct edit *e, const char *path)
{
	char *copy = sc_strdup(path);

	if (!copy || sc_vec_push(&e->paths, copy) < 0) {
		sc_sys.release(copy);
		return sc_nomem(c->err);
	}
	return 0;
}

/* A file, or a pattern of the shell's: its files in order of name. */
static int add_paths(struct change *c, struct edit *e, const char *path)
{
	glob_t found = {0};
	int rc = 0;

	if (*path != '/' || strlen(path) >= SC_COMMAND_BYTES_MAX - 8)
		return sc_fail(c->err, SC_E_COMMAND, "path='%s' is not an absolute path", path);
	if (!strpbrk(path, "*?["))
		return add_path(c, e, path);
	rs_become(c->uid, c->gid);
	(void)glob(path, 0, NULL, &found);
	rs_become(geteuid(), getegid());
	for (size_t i = 0; rc == 0 && i < found.gl_pathc; i++)
		rc = add_path(c, e, found.gl_pathv[i]);
	if (rc == 0 && found.gl_pathc == 0)
		rc = add_path(c, e, path); /* a name with these characters, or the sentence that it is not there */
	globfree(&found);
	return rc;
}

/* The next word of a line, `KEY=VALUE` or `KEY="VALUE"`; NULL: there is none. */
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

static int parse_line(struct change *c, char *line)
{
	static const char *const verbs[] = {"add", "remove", "refresh"};
	struct edit *e;
	char *word = next_word(&line);
	int rc = 0;

	if (!word || *word == '#')
		return 0;
	if (sc_vec_push(&c->edits, (struct edit){0}) < 0)
		return sc_nomem(c->err);
	e = &c->edits.at[c->edits.nr - 1];
	rs_data_spec_default(&e->spec);
	for (e->kind = EDIT_ADD; e->kind <= EDIT_REFRESH && strcmp(word, verbs[e->kind]) != 0;)
		e->kind++;
	if (e->kind > EDIT_REFRESH)
		return sc_fail(c->err, SC_E_COMMAND, "'%s' is unknown; write add name=NAME path=PATH global_batch=N ..., remove "
			       "name=NAME, or refresh name=NAME", word);
	while (rc == 0 && (word = next_word(&line))) {
		char *eq = strchr(word, '=');

		if (!eq)
			return sc_fail(c->err, SC_E_COMMAND, "'%s' is not KEY=VALUE", word);
		*eq = 0;
		if (e->kind != EDIT_ADD && strcmp(word, "name") != 0)
			rc = 1;
		else if (strcmp(word, "path") == 0)
			rc = add_paths(c, e, eq + 1);
		else
			rc = rs_data_spec_word(&e->spec, word, eq + 1, c->err);
		if (rc > 0)
			rc = sc_fail(c->err, SC_E_COMMAND, "%s: '%s=' is unknown%s", verbs[e->kind], word,
				     e->kind == EDIT_ADD ? "; there are name, path, format, seed, shuffle, global_batch, drop_last, "
							   "share, uneven, unit, record, head, start, axes, suffix and copy" : "");
	}
	if (rc == 0 && !*e->spec.name)
		return sc_fail(c->err, SC_E_COMMAND, "%s: name= is missing", verbs[e->kind]);
	if (rc == 0 && e->kind == EDIT_ADD && !e->paths.nr)
		return sc_fail(c->err, SC_E_COMMAND, "add: path= is missing");
	if (rc == 0 && e->kind == EDIT_ADD)
		rc = rs_data_spec_finish(&e->spec, e->paths.at[0], c->err);
	return rc;
}

/* The last use of a name; NULL: none. */
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
	return sc_fail(c->err, SC_E_NOT_FOUND, "the job has no dataset '%s'", name);
}

/* What refresh reads anew is what the head uses last. */
static int prepare_refresh(struct change *c, struct edit *e)
{
	struct rs_view *head = rs_job_head(c->job);
	const struct rs_use *use = head ? use_of(head->version, e->spec.name) : NULL;
	int rc = use ? 0 : no_such(c, e->spec.name);

	if (rc == 0) {
		e->spec = use->corpus->spec;
		e->before = use->corpus->id;
		/* what it was opened as stays: the job's data are its owner's */
		c->uid = use->corpus->uid;
		c->gid = use->corpus->gid;
	}
	for (size_t i = 0; rc == 0 && i < use->corpus->nr; i++) {
		struct rs_data_bytes *bytes;

		rc = rs_data_source_ready(use->corpus, &use->corpus->at[i], &bytes, c->err);
		if (rc == 0)
			rc = rs_data_source_check(use->corpus, &use->corpus->at[i], bytes, c->err);
		if (rc == 0)
			rc = add_path(c, e, use->corpus->at[i].info.path);
	}
	rs_view_unref(c->s, head);
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

/* No file of the version lies where the dataset's will. */
static int check_free(struct change *c, const struct rs_version *v, const struct rs_data_spec *spec)
{
	char name[2 * RS_DATA_NAME_MAX], path[sizeof(name) + 8], next[RS_DATA_NAME_MAX + 16];

	(void)snprintf(next, sizeof(next), "data/%s.next/", spec->name);
	for (int k = 0; rs_data_file_name(spec, k, name, sizeof(name)); k++) {
		(void)snprintf(path, sizeof(path), "data/%s", name);
		for (size_t i = 0; i < v->nr_sets; i++) {
			const char *file = v->sets[i]->file;

			if (strcmp(file, path) == 0 || strncmp(file, next, strlen(next)) == 0)
				return sc_fail(c->err, SC_E_EXISTS, "dataset '%s': ranks have a file '%s' already", spec->name, file);
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
		return sc_fail(c->err, SC_E_BUSY, "dataset '%s' was changed meanwhile; try again", e->spec.name);
	if (e->corpus->samples == use->corpus->samples && e->corpus->at[e->corpus->nr - 1].info.bytes ==
	    use->corpus->at[use->corpus->nr - 1].info.bytes)
		return 0; /* it has not grown */
	while (strcmp(v->data.at[first].corpus->spec.name, e->spec.name) != 0)
		first++;
	rc = rs_data_at(v, first, &next, &at, c->err);
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
		return rs_version_use(v, e->corpus, at.epoch, at.epoch_begin, c->err);
	}
	return rs_version_use(v, e->corpus, at.epoch + 1,
			      at.epoch_begin + meta_deal_length(&at.corpus->spec.deal, at.corpus->samples), c->err);
}

/* A dataset may come when a job has consumed many samples of others. */
static int do_add(struct change *c, struct rs_version *v, struct edit *e)
{
	struct meta_at at;
	uint64_t consumed = v->samples > e->spec.start ? v->samples - e->spec.start : 0;
	struct sc_err why;

	if (meta_deal_seek(&e->spec.deal, e->corpus->samples, consumed, &at, &why) < 0)
		return sc_fail(c->err, SC_E_COMMAND, "dataset '%s': %s; start=%" PRIu64 ", what the job has consumed, begins its first "
			       "epoch now", e->spec.name, why.msg, v->samples);
	return rs_version_use(v, e->corpus, 0, e->spec.start, c->err);
}

static int apply(struct change *c, struct rs_version *v, struct edit *e)
{
	bool any = use_of(v, e->spec.name) != NULL;
	int rc = 0;

	switch (e->kind) {
	case EDIT_ADD:
		if (any)
			return sc_fail(c->err, SC_E_EXISTS, "the job has a dataset '%s' already", e->spec.name);
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

/* A job that has no version yet gets its first one, of no tensors. */
static int first_version(struct change *c, struct rs_version **ret, struct meta_topology *topo)
{
	const struct rs_kept_layout *kept;
	struct rs_job *job = c->job;
	struct rs_version *v;
	int rc;

	if (!job->first_layout || !job->first_topology)
		return sc_fail(c->err, SC_E_COMMAND, "the job has no %s; write .ctl/layout, then .ctl/topology, then data",
			       job->first_layout ? "topology" : "layout");
	rc = rs_layout_by_id(c->s, job->first_layout, &kept, c->err);
	if (rc == 0)
		rc = meta_topology_parse(kept->layout, job->first_topology, topo, c->err);
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
	return v && v->note ? 0 : sc_nomem(c->err);
}

static int change_head(struct change *c)
{
	struct meta_topology topo = {0};
	struct rs_view *head = rs_job_head(c->job);
	struct rs_version *v = NULL;
	int rc = rs_refuse_dirty(c->job, "dataset", c->err);

	if (rc == 0 && head) {
		v = rs_version_like(head->version, NULL);
		rc = v && meta_topology_copy(&head->topo, &topo) == 0 ? 0 : sc_nomem(c->err);
	} else if (rc == 0) {
		rc = first_version(c, &v, &topo);
	}
	for (size_t i = 0; rc == 0 && i < c->edits.nr; i++)
		rc = apply(c, v, &c->edits.at[i]);
	if (rc == 0) {
		v->made_ns = sc_now_wall_ns();
		rc = rs_new_head(c->s, c->job, v, &topo, head ? head->version->id : 0, "data", c->err);
		v = NULL;
	}
	rs_version_unref(v);
	meta_topology_done(&topo);
	rs_view_unref(c->s, head);
	return rc;
}

static void edit_done(struct change *c, struct edit *e)
{
	for (size_t i = 0; e->corpus && i < e->corpus->nr; i++) {
		release(c->s, e->corpus->at[i].info.blob);
		release(c->s, e->corpus->at[i].info.borders);
	}
	rs_corpus_unref(e->corpus);
	for (size_t i = 0; i < e->paths.nr; i++)
		sc_sys.release(e->paths.at[i]);
	sc_vec_done(&e->paths);
}

int rs_job_data(struct rs_service *s, struct rs_job *job, const char *text, uid_t uid, gid_t gid,
		dev_t own, struct sc_err *err)
{
	struct change c = {.s = s, .job = job, .uid = uid, .gid = gid, .own = own, .err = err};
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
			rc = make_corpus(&c, e);
		if (e->kind == EDIT_REFRESH) {
			c.uid = uid;
			c.gid = gid;
		}
	}
	if (rc == 0) {
		(void)pthread_mutex_lock(&job->command);
		(void)pthread_rwlock_wrlock(&job->tree);
		rc = change_head(&c);
		(void)pthread_rwlock_unlock(&job->tree);
		(void)pthread_mutex_unlock(&job->command);
	}
	for (size_t i = 0; i < c.edits.nr; i++)
		edit_done(&c, &c.edits.at[i]);
	sc_vec_done(&c.edits);
	sc_vec_done(&c.keys);
	sc_sys.release(copy);
	rs_parts_purge(&s->parts);
	rs_kick(s, true);
	return rc;
}

/* --- in transactions --- */

static int save_corpus(struct rs_service *s, struct rs_corpus *corpus, struct sc_err *err)
{
	struct sc_buf spec = {0};
	struct meta_dataset_row row = {.name = corpus->spec.name, .form = corpus->form ? corpus->form : "",
				       .uid = corpus->uid, .gid = corpus->gid};
	uint64_t id = 0;
	int rc;

	rs_data_spec_text(&corpus->spec, &spec);
	row.spec = spec.text;
	rc = spec.failed ? sc_nomem(err) : meta_dataset_add(s->catalog, &row, &id, err);
	sc_buf_done(&spec);
	for (size_t i = 0; rc == 0 && i < corpus->nr; i++) {
		const struct rs_data_source_info *info = &corpus->at[i].info;
		struct meta_data_source_row source = {
			.path = info->path, .blob = info->blob, .bytes = info->bytes, .mtime_ns = info->mtime_ns,
			.samples = info->samples, .sequences = info->sequences, .first = info->first,
			.bare = info->bare, .borders = info->borders};

		memcpy(source.ends, info->ends, sizeof(source.ends));
		rc = meta_dataset_add_source(s->catalog, id, i, &source, err);
		if (rc == 0 && info->borders)
			rc = meta_blob_seal(s->catalog, info->borders, info->table_bytes, NULL, err);
		if (rc == 0 && info->blob)
			rc = meta_blob_seal(s->catalog, info->blob, info->bytes, NULL, err);
	}
	if (rc == 0)
		corpus->id = id;
	return rc;
}

int rs_save_data(struct rs_service *s, struct rs_version *v, struct sc_err *err)
{
	int rc = 0;

	for (size_t i = 0; rc == 0 && i < v->data.nr; i++) {
		const struct rs_use *use = &v->data.at[i];

		if (!use->corpus->id)
			rc = save_corpus(s, use->corpus, err);
		if (rc == 0)
			rc = meta_version_add_data(s->catalog, v->id, use->corpus->id, use->from_epoch, use->from_samples,
						   err);
	}
	return rc;
}

int rs_data_samples(const struct rs_version *head, int64_t step, uint64_t *ret, struct sc_err *err)
{
	uint64_t batch = head->data.at[0].corpus->spec.deal.batch;

	for (size_t i = 1; i < head->data.nr; i++)
		if (head->data.at[i].corpus->spec.deal.batch != batch)
			return sc_fail(err, SC_E_COMMAND, "datasets have different global batches, so step=%" PRId64 " does not say "
				       "how many samples were consumed; write samples=", step);
	if (!sc_mul_u64((uint64_t)step, batch, ret))
		return sc_fail(err, SC_E_COMMAND, "step=%" PRId64 " times global_batch=%" PRIu64 " is too large", step, batch);
	return 0;
}

void rs_data_prune(struct rs_version *v)
{
	for (size_t i = 0; i + 1 < v->data.nr;) {
		const struct rs_use *next = &v->data.at[i + 1];

		if (strcmp(v->data.at[i].corpus->spec.name, next->corpus->spec.name) == 0 && next->from_samples <= v->samples)
			drop_use(v, i);
		else
			i++;
	}
}

/* --- texts --- */

static uint64_t corpus_bytes(const struct rs_corpus *corpus)
{
	uint64_t n = 0;

	for (size_t i = 0; i < corpus->nr; i++)
		n += corpus->at[i].info.bytes;
	return n;
}

int rs_render_data(struct rs_service *s, struct rs_job *job, struct sc_buf *buf, struct sc_err *err)
{
	struct rs_view *head = rs_job_head(job);

	sc_buf_printf(buf, "name\tsamples\tbytes\tepoch\tposition\tleft\tranks\tconsumed\toptions\tsources\n");
	for (size_t i = 0; head && i < head->data.nr; i++) {
		const struct rs_view_data *d = &head->data.at[i];
		const struct rs_corpus *c = d->at.corpus;

		sc_buf_printf(buf, "%s\t%" PRIu64 "\t%" PRIu64 "\t%" PRIu64 "\t%" PRIu64 "\t%" PRIu64 "\t%u\t%" PRIu64 "\t",
			      c->spec.name, c->samples, corpus_bytes(c), d->at.epoch, d->at.position,
			      meta_deal_length(&c->spec.deal, c->samples) - d->at.position, d->ranks, head->version->samples);
		rs_data_spec_text(&c->spec, buf);
		for (size_t k = 0; k < c->nr; k++)
			sc_buf_printf(buf, "%c%s", k ? ' ' : '\t', c->at[k].info.path);
		sc_buf_printf(buf, "\n");
	}
	rs_view_unref(s, head);
	return buf->failed ? sc_nomem(err) : 0;
}

void rs_render_data_status(const struct rs_view *view, struct sc_buf *buf)
{
	if (view->data.nr)
		sc_buf_printf(buf, "samples_consumed: %" PRIu64 "\n", view->version->samples);
	for (size_t i = 0; i < view->data.nr; i++) {
		const struct rs_view_data *d = &view->data.at[i];
		const struct meta_deal *deal = &d->at.corpus->spec.deal;
		uint64_t length = meta_deal_length(deal, d->at.corpus->samples);
		struct meta_share share;
		struct sc_err ignored;

		sc_buf_printf(buf, "data: '%s' epoch %" PRIu64 " position %" PRIu64 " of %" PRIu64 ", left %" PRIu64 " in %" PRIu64
				   " batches", d->at.corpus->spec.name, d->at.epoch, d->at.position, length,
			      length - d->at.position, (length - d->at.position + deal->batch - 1) / deal->batch);
		if (meta_share_init(deal, d->at.corpus->samples, d->at.position, d->ranks, 0, &share, &ignored) == 0)
			sc_buf_printf(buf, ", %u ranks take %" PRIu64 " of each %" PRIu64, d->ranks, share.per, deal->batch);
		sc_buf_printf(buf, "\n");
	}
}
