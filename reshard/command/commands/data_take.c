/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Takes in the sources of a dataset: reads each once, checks it, makes its table of borders (and its copy, copy=yes),
 * without any lock of the job.  The blobs that are made for it are no garbage until rs_taken_done().
 */
#include "reshard/command/commands/data_i.h"

#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>

#include "reshard/data/index.h"
#include "reshard/engine/io/copy.h"

struct taking {
	const struct rs_taking *as;
	struct rs_corpus *corpus;	/* what becomes of them */
	struct rs_keys keys;		/* of all of them: tar */
};

static int same_file(const struct stat *a, const struct stat *b)
{
	return a->st_size == b->st_size && a->st_mtim.tv_sec == b->st_mtim.tv_sec &&
	       a->st_mtim.tv_nsec == b->st_mtim.tv_nsec;
}

static int open_checked(struct taking *c, const char *path, int *ret_fd, struct stat *st)
{
	int rc = rs_data_source_open(path, c->as->uid, c->as->gid, ret_fd, c->as->err);

	if (rc < 0)
		return rc;
	if (sc_sys.fstat(*ret_fd, st) < 0)
		return sc_fail_sys(c->as->err, errno, "'%s'", path);
	if (!S_ISREG(st->st_mode))
		return sc_fail(c->as->err, SC_E_COMMAND, "'%s' is not a regular file", path);
	if (st->st_dev == c->as->own)
		return sc_fail(c->as->err, SC_E_COMMAND, "'%s' is inside this mount; dataset sources must be elsewhere",
			path);
	return 0;
}

static int map_file(int fd, const struct stat *st, const char *path, const unsigned char **ret, struct sc_err *err)
{
	void *map = NULL;

	if (st->st_size) {
		map = sc_sys.mmap(NULL, (size_t)st->st_size, PROT_READ, MAP_SHARED, fd, 0);
		if (map == MAP_FAILED)
			return sc_fail_sys(err, errno, "cannot map the source '%s'", path);
		(void)madvise(map, (size_t)st->st_size, MADV_SEQUENTIAL);
	}
	*ret = map;
	return 0;
}

/* Copies a source into the store. */
static int copy_in(struct taking *c, struct rs_data_source_info *info, int from, struct sc_err *err)
{
	sc_cleanup(sc_closep) int to = -1;
	int rc = rs_pin_new(c->as->s, &info->blob, &to, err);

	if (rc == 0)
		rc = rs_copy_file(to, from, 0, info->bytes, info->path, err);
	if (rc == 0 && rs_job_syncs(c->as->job) && sc_sys.fsync(to) < 0)
		rc = sc_fail_sys(err, errno, "cannot flush the copy of '%s'", info->path);
	return rc;
}

static int scan(struct taking *c, struct rs_index *x, const struct stat *st)
{
	sc_cleanup(sc_closep) int table = -1;
	struct rs_data_source_info *info = x->info;
	struct stat after;
	int rc = 0;

	if (c->corpus->spec.format != RS_DATA_RECORDS && c->corpus->spec.format != RS_DATA_NPY)
		rc = rs_pin_new(c->as->s, &info->borders, &table, c->as->err);
	if (rc == 0) {
		x->table->fd = table;
		rc = rs_index_source(x, c->as->err);
	}
	if (rc == 0 && x->has_table && rs_job_syncs(c->as->job) && sc_sys.fsync(table) < 0)
		rc = sc_fail_sys(c->as->err, errno, "cannot flush the table of '%s'", x->path);
	info->table_bytes = x->table->bytes;
	if (rc == 0)
		rc = rs_data_source_ends(x->fd, x->bytes, info->ends, c->as->err);
	if (rc == 0 && c->corpus->spec.copy)
		rc = copy_in(c, info, x->fd, c->as->err);
	if (rc == 0 && rs_job_syncs(c->as->job)) {
		struct meta_store_dirs dirs = {{0}};

		if (info->borders)
			meta_store_note_dir(&dirs, info->borders);
		if (info->blob)
			meta_store_note_dir(&dirs, info->blob);
		rc = meta_store_sync_dirs(&c->as->s->store, &dirs, c->as->err);
	}
	if (rc == 0 && (sc_sys.fstat(x->fd, &after) < 0 || !same_file(st, &after)))
		rc = sc_fail(c->as->err, SC_E_SOURCE, "the source '%s' was written to while it was scanned; try again",
			x->path);
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
	return sc_fail(err, SC_E_FORMAT, "the source '%s' has another type than the sources before it: '%.60s', "
		"expected '%.60s'",
		       x->path, form, corpus->form);
}

void rs_megatron_paths(const char *path, char *bin, char *idx, size_t bytes)
{
	size_t n = strlen(path);

	if (n > 4 && (strcmp(path + n - 4, ".bin") == 0 || strcmp(path + n - 4, ".idx") == 0))
		n -= 4;
	(void)snprintf(bin, bytes, "%.*s.bin", (int)n, path);
	(void)snprintf(idx, bytes, "%.*s.idx", (int)n, path);
}

static int take_in(struct taking *c, const char *given)
{
	sc_cleanup(sc_closep) int fd = -1;
	sc_cleanup(sc_closep) int idx_fd = -1;
	char path[SC_COMMAND_BYTES_MAX], idx[SC_COMMAND_BYTES_MAX];
	struct rs_data_source_info info = {0};
	struct rs_index x = {.spec = &c->corpus->spec, .path = path, .info = &info, .keys = &c->keys,
			     .table = sc_zalloc(sizeof(*x.table))};
	struct stat st = {0}, idx_st = {0};
	int rc = x.table ? 0 : sc_nomem(c->as->err);

	if (c->corpus->spec.format == RS_DATA_MEGATRON)
		rs_megatron_paths(given, path, idx, sizeof(path));
	else
		(void)snprintf(path, sizeof(path), "%s", given);
	if (rc == 0)
		rc = open_checked(c, path, &fd, &st);
	if (rc == 0)
		rc = map_file(fd, &st, path, &x.map, c->as->err);
	if (rc == 0 && c->corpus->spec.format == RS_DATA_MEGATRON) {
		rc = open_checked(c, idx, &idx_fd, &idx_st);
		if (rc == 0)
			rc = map_file(idx_fd, &idx_st, idx, &x.idx, c->as->err);
	}
	if (rc == 0) {
		x.fd = fd;
		x.bytes = info.bytes = (uint64_t)st.st_size;
		x.idx_bytes = (uint64_t)idx_st.st_size;
		info.mtime_ns = (int64_t)st.st_mtim.tv_sec * 1000000000 + st.st_mtim.tv_nsec;
		info.path = sc_strdup(path);
		rc = info.path ? scan(c, &x, &st) : sc_nomem(c->as->err);
	}
	if (rc == 0)
		rc = agree_on_form(c->corpus, &x, c->as->err);
	if (rc == 0)
		rc = rs_corpus_add(c->corpus, &info, c->as->err);
	if (rc < 0) {
		rs_unpin(c->as->s, info.blob);
		rs_unpin(c->as->s, info.borders);
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

/* Tells whether a path names the second file of NAME.bin and NAME.idx after the first one, as a shell's NAME.* does.
 * The same path twice is no such pair: somebody wants the file twice. */
static bool is_other_of_pair(char *const *paths, size_t i)
{
	char bin[SC_COMMAND_BYTES_MAX], before[SC_COMMAND_BYTES_MAX], idx[SC_COMMAND_BYTES_MAX];

	rs_megatron_paths(paths[i], bin, idx, sizeof(bin));
	for (size_t k = 0; k < i; k++) {
		rs_megatron_paths(paths[k], before, idx, sizeof(before));
		if (strcmp(before, bin) == 0 && strcmp(paths[k], paths[i]) != 0)
			return true;
	}
	return false;
}

/* Refuses two samples of WebDataset with one key, and names them; it reads the sources again. */
static int check_keys(struct taking *c, char *const *paths, size_t nr)
{
	const struct rs_data_spec *spec = &c->corpus->spec;
	struct rs_table *table;
	struct sc_buf named = {0};
	int rc = 0;

	if (!rs_keys_meet(&c->keys))
		return 0;
	table = sc_zalloc(sizeof(*table));
	if (!table)
		return sc_nomem(c->as->err);
	c->keys.named = &named;
	for (size_t i = 0; rc == 0 && i < nr; i++) {
		sc_cleanup(sc_closep) int fd = -1;
		struct rs_data_source_info info = {0};
		struct rs_index x = {.spec = spec, .path = paths[i], .info = &info, .keys = &c->keys, .table = table};
		struct stat st;

		rc = open_checked(c, paths[i], &fd, &st);
		x.fd = fd;
		x.bytes = rc == 0 ? (uint64_t)st.st_size : 0;
		table->nr = 0;
		table->fd = -1; /* nothing is kept of it */
		if (rc == 0)
			rc = rs_index_tar(&x, c->as->err);
	}
	if (rc == 0)
		rc = named.failed ? sc_nomem(c->as->err)
		     : sc_fail(c->as->err, SC_E_FORMAT,
			       "dataset '%s': two of its %zu samples have the same key (path up to the first dot), and "
			       "side by side they would be read as one: %.600s; give each a key of its own",
			       spec->name, c->keys.nr, named.text ? named.text : "");
	sc_buf_done(&named);
	sc_sys.release(table);
	return rc;
}

static int take_all(struct taking *c, char *const *paths, size_t nr)
{
	const struct rs_data_spec *spec = &c->corpus->spec;
	int rc = 0;

	for (size_t i = 0; rc == 0 && i < nr; i++)
		if (spec->format != RS_DATA_MEGATRON || !is_other_of_pair(paths, i))
			rc = take_in(c, paths[i]);
	if (rc == 0)
		rc = check_keys(c, paths, nr);
	if (rc == 0)
		rc = rs_corpus_finish(c->corpus, c->as->err);
	if (rc == 0 && c->corpus->samples && !meta_deal_length(&spec->deal, c->corpus->samples))
		rc = sc_fail(c->as->err, SC_E_COMMAND,
			     "dataset '%s' has %" PRIu64 " samples, fewer than global_batch=%" PRIu64
			     ": drop_last=yes would leave none; add it with drop_last=no",
			     spec->name, c->corpus->samples, spec->deal.batch);
	return rc;
}

int rs_take_sources(const struct rs_taking *as, const struct rs_data_spec *spec, char *const *paths, size_t nr,
		    struct rs_corpus **ret)
{
	struct taking c = {.as = as};
	int rc;

	c.corpus = *ret = rs_corpus_new(&as->s->store, as->s->blobs);
	if (!c.corpus)
		return sc_nomem(as->err);
	c.corpus->spec = *spec;
	c.corpus->uid = as->uid;
	c.corpus->gid = as->gid;
	rc = take_all(&c, paths, nr);
	sc_vec_done(&c.keys);
	return rc;
}

void rs_taken_done(struct rs_service *s, struct rs_corpus *corpus)
{
	for (size_t i = 0; corpus && i < corpus->nr; i++) {
		rs_unpin(s, corpus->at[i].info.blob);
		rs_unpin(s, corpus->at[i].info.borders);
	}
	rs_corpus_unref(corpus);
}
