/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Shows partitions of datasets as files of ranks: their names and their bytes.  All ranks with one data-parallel
 * coordinate share a partition, and it is kept for a while after its last use.
 */
#include "reshard/version/partitions/parts_i.h"

#include <stdio.h>
#include <string.h>

#include "reshard/data/part.h"

#define IDLE_PARTS_MAX 256
#define IDLE_PARTS_BYTES_MAX (64u << 20)

/* --- names --- */

struct file {
	const struct rs_view_data *data;
	bool next;
	int nr;
};

static bool path_of(const struct file *f, char *buf, size_t bytes)
{
	const struct rs_data_spec *spec = &f->data->at.corpus->spec;
	char name[2 * RS_DATA_NAME_MAX];

	if (!rs_data_file_name(spec, f->nr, name, sizeof(name)))
		return false;
	if (f->next)
		(void)snprintf(buf, bytes, "data/%s.next/%s", spec->name, name);
	else
		(void)snprintf(buf, bytes, "data/%s", name);
	return true;
}

static int each(const struct rs_view *view, int (*fn)(void *arg, const struct file *f, const char *path),
		void *arg)
{
	char path[SC_PATH_BYTES_MAX];
	int rc = 0;

	for (size_t i = 0; rc == 0 && i < view->data.nr; i++)
		for (int k = 0; rc == 0 && k < 4; k++) {
			struct file f = {&view->data.at[i], k >= 2, k % 2};

			if (path_of(&f, path, sizeof(path)))
				rc = fn(arg, &f, path);
		}
	return rc;
}

struct names {
	int (*each)(void *arg, const char *path);
	void *arg;
};

static int on_name(void *arg, const struct file *f, const char *path)
{
	const struct names *n = arg;

	(void)f;
	return n->each(n->arg, path);
}

int rs_data_names(const struct rs_view *view, int (*fn)(void *arg, const char *path), void *arg)
{
	struct names n = {fn, arg};

	return each(view, on_name, &n);
}

struct find {
	const char *path;
	struct file found;
};

static int on_find(void *arg, const struct file *f, const char *path)
{
	struct find *x = arg;

	if (strcmp(path, x->path) != 0)
		return 0;
	x->found = *f;
	return 1;
}

bool rs_view_has_data(const struct rs_view *view, const char *path)
{
	struct find x = {.path = path};

	return each(view, on_find, &x) == 1;
}

static int on_find_in(void *arg, const struct file *f, const char *path)
{
	const char *folder = arg;
	const size_t n = strlen(folder);

	(void)f;
	return !n || (strncmp(path, folder, n) == 0 && path[n] == '/');
}

bool rs_view_has_data_in(const struct rs_view *view, const char *folder)
{
	return each(view, on_find_in, (void *)folder) == 1;
}

/* --- partitions --- */

struct rs_kept_part {
	struct rs_part *part;
	struct rs_corpus *corpus;
	uint64_t epoch, begin;
	uint32_t ranks, rank, refs;
	struct rs_kept_part *before, *after;	/* most recently used first */
};

static void part_unlink(struct rs_parts *p, struct rs_kept_part *k)
{
	*(k->before ? &k->before->after : &p->first) = k->after;
	*(k->after ? &k->after->before : &p->last) = k->before;
}

static void part_front(struct rs_parts *p, struct rs_kept_part *k)
{
	k->before = NULL;
	k->after = p->first;
	*(p->first ? &p->first->before : &p->last) = k;
	p->first = k;
}

static void part_drop(struct rs_parts *p, struct rs_kept_part *k)
{
	part_unlink(p, k);
	p->nr--;
	p->bytes -= k->part->table_bytes;
	rs_part_free(k->part);
	rs_corpus_unref(k->corpus);
	sc_sys.release(k);
}

static struct rs_kept_part *part_find(struct rs_parts *p, const struct rs_kept_part *like)
{
	for (struct rs_kept_part *k = p->first; k; k = k->after)
		if (k->corpus == like->corpus && k->epoch == like->epoch && k->begin == like->begin &&
		    k->ranks == like->ranks && k->rank == like->rank) {
			part_unlink(p, k);
			part_front(p, k);
			k->refs++;
			return k;
		}
	return NULL;
}

static void part_put(struct rs_parts *p, struct rs_kept_part *k)
{
	(void)pthread_mutex_lock(&p->lock);
	k->refs--;
	for (struct rs_kept_part *at = p->last, *next;
	     at && (p->nr > IDLE_PARTS_MAX || p->bytes > IDLE_PARTS_BYTES_MAX); at = next) {
		next = at->before;
		if (!at->refs)
			part_drop(p, at);
	}
	(void)pthread_mutex_unlock(&p->lock);
}

/* Makes a partition, without the lock; a second thread may make it, too, and one of both stays. */
static int part_make(struct rs_parts *p, const struct rs_kept_part *like, struct rs_kept_part **ret,
		     struct sc_err *err)
{
	struct rs_kept_part *k = sc_zalloc(sizeof(*k)), *other;
	int rc = k ? rs_part_new(like->corpus, like->epoch, like->begin, like->ranks, like->rank, &k->part, err)
		   : sc_nomem(err);

	if (rc < 0) {
		sc_sys.release(k);
		return rc;
	}
	(void)pthread_mutex_lock(&p->lock);
	other = part_find(p, like);
	if (!other) {
		struct rs_part *part = k->part;

		*k = *like;
		k->part = part;
		k->refs = 1;
		(void)rs_corpus_ref(k->corpus);
		part_front(p, k);
		p->nr++;
		p->bytes += part->table_bytes;
	}
	(void)pthread_mutex_unlock(&p->lock);
	if (other) {
		rs_part_free(k->part);
		sc_sys.release(k);
	}
	*ret = other ? other : k;
	return 0;
}

void rs_parts_purge(struct rs_parts *p)
{
	(void)pthread_mutex_lock(&p->lock);
	for (struct rs_kept_part *k = p->first, *next; k; k = next) {
		next = k->after;
		if (!k->refs)
			part_drop(p, k);
	}
	(void)pthread_mutex_unlock(&p->lock);
}

void rs_parts_done(struct rs_parts *p)
{
	while (p->first)
		part_drop(p, p->first);
}

struct rs_data_file {
	struct rs_kept_part *part;
	struct rs_job *job;
	int nr;
};

int rs_data_open(struct rs_service *s, struct rs_view *view, uint32_t rank, const char *path,
		 struct rs_data_file **ret, struct sc_err *err)
{
	struct rs_data_file *file = sc_zalloc(sizeof(*file));
	struct find x = {.path = path};
	struct rs_kept_part like = {0};
	uint32_t coords[SC_AXES_MAX];
	int rc = file ? 0 : sc_nomem(err);

	if (rc == 0 && (each(view, on_find, &x) != 1 || rank >= view->topo.ranks))
		rc = sc_fail(err, SC_E_NOT_FOUND, "rank %u has no '%s'", rank, path);
	if (rc == 0) {
		const struct rs_view_data *d = x.found.data;

		meta_topology_coords(&view->topo, rank, coords);
		like = (struct rs_kept_part){
			.corpus = x.found.next ? d->at.next : d->at.corpus,
			.epoch = d->at.epoch + x.found.next, .begin = x.found.next ? 0 : d->at.position,
			.ranks = d->ranks, .rank = meta_topology_index(&view->topo, d->axes, coords)};
		file->job = view->job;
		file->nr = x.found.nr;
		(void)pthread_mutex_lock(&s->parts.lock);
		file->part = part_find(&s->parts, &like);
		(void)pthread_mutex_unlock(&s->parts.lock);
		if (!file->part)
			rc = part_make(&s->parts, &like, &file->part, err);
	}
	if (rc < 0)
		sc_sys.release(file);
	else
		*ret = file;
	return rc;
}

void rs_data_close(struct rs_service *s, struct rs_data_file *file)
{
	if (file)
		part_put(&s->parts, file->part);
	sc_sys.release(file);
}

uint64_t rs_data_bytes(const struct rs_data_file *file)
{
	return rs_part_bytes(file->part->part, file->nr);
}

int rs_data_pieces(struct rs_data_file *file, uint64_t at, uint64_t bytes, struct iovec *iov, int room,
		   struct sc_err *err)
{
	return rs_part_pieces(file->part->part, file->nr, at, bytes, iov, room, err);
}

int rs_data_read(struct rs_data_file *file, uint64_t at, uint64_t bytes, unsigned char *to, struct sc_err *err)
{
	return rs_part_read(file->part->part, file->nr, at, bytes, to, err);
}

bool rs_view_is_for_gpus(const struct rs_view *view)
{
	return view->form == &rs_form_gpu;
}
