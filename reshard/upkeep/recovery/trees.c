/* SPDX-License-Identifier: Apache-2.0 */
#include "reshard/upkeep/recovery/trees.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <xxhash.h>

#include "reshard/upkeep/recovery/record.h"

SC_METRIC(trees_owed, SC_GAUGE, "scalai_trees_owed", "Trees whose recovery records are still to be written.");

#define BEGIN "scalai tree 2\n"
#define HASH_BYTES 16

static void hash_of(const char *at, size_t bytes, XXH128_canonical_t *ret)
{
	XXH128_canonicalFromHash(ret, XXH3_128bits(at, bytes));
}

/* --- writing --- */

struct unkept {
	size_t nr, room;
	struct meta_tree_record *at;
	struct sc_arena arena;
	struct sc_err *err;
};

static const char *copy(struct unkept *u, const char *text)
{
	return sc_arena_copy(&u->arena, text, strlen(text));
}

static int on_unkept(void *arg, const struct meta_tree_record *row)
{
	struct unkept *u = arg;
	struct meta_tree_record r = *row;

	r.job = copy(u, row->job);
	r.topology = copy(u, row->topology);
	r.head_topology = copy(u, row->head_topology);
	if (!r.job || !r.topology || !r.head_topology || sc_vec_push(u, r) < 0)
		return sc_nomem(u->err);
	return 0;
}

static int on_path(void *arg, uint64_t id, const char *text, const char *more)
{
	struct sc_buf *buf = arg;

	(void)more;
	sc_buf_printf(buf, "path %" PRIu64 " ", id);
	sc_buf_quoted(buf, text);
	sc_buf_printf(buf, "\n");
	return 0;
}

static int on_set(void *arg, uint64_t id, const char *text, const char *more)
{
	struct sc_buf *buf = arg;

	(void)more;
	sc_buf_printf(buf, "set %" PRIu64 " ", id);
	sc_buf_quoted(buf, text);
	sc_buf_printf(buf, "\n");
	return 0;
}

static int on_row(void *arg, const struct meta_change *row)
{
	struct meta_change one = *row;

	meta_changes_encode(&(struct meta_changes){&one, 1, 1}, arg);
	return 0;
}

static int print(struct rs_service *s, const struct meta_tree_record *r, struct sc_buf *buf, struct sc_err *err)
{
	char layout[RS_LAYOUT_NAME_BYTES], head[RS_LAYOUT_NAME_BYTES];
	struct sc_buf rows = {0};
	XXH128_canonical_t hash;
	int rc = rs_record_layout(s, r->layout, layout, err);

	if (rc == 0)
		rc = rs_record_layout(s, r->head_layout, head, err);
	if (rc < 0)
		return rc;
	sc_buf_printf(buf, BEGIN "job ");
	sc_buf_quoted(buf, r->job);
	sc_buf_printf(buf, "\nowner %" PRIu64 " %" PRIu64 " %" PRIo64 "\ntree %" PRIu64 " %" PRIu64 " %" PRIu64
		      "\nlayout %s\ntopology %s\nhead-layout %s\nhead-topology %s\nversion %" PRIu64 "\nstep %" PRId64
		      "\nlast-set %" PRIu64 "\n", r->uid, r->gid, r->job_mode, r->id, r->base, r->root, layout,
		      r->topology, head, r->head_topology, r->version, r->step, r->last_set);
	rc = meta_tree_path_texts(s->catalog, r->id, on_path, buf, err);
	if (rc == 0)
		rc = meta_version_files(s->catalog, r->version, on_set, buf, err);
	if (rc == 0)
		rc = meta_tree_rows(s->catalog, r->id, on_row, &rows, err);
	sc_buf_printf(buf, "rows %zu\n", rows.bytes);
	if (rows.bytes)
		sc_buf_add(buf, rows.text, rows.bytes);
	buf->failed |= rows.failed;
	sc_buf_done(&rows);
	if (rc == 0 && !buf->failed) {
		hash_of(buf->text, buf->bytes, &hash);
		sc_buf_add(buf, hash.digest, HASH_BYTES);
	}
	return rc < 0 ? rc : buf->failed ? sc_nomem(err) : 0;
}

static int keep(struct rs_service *s, const struct meta_tree_record *r, struct sc_err *err)
{
	struct rs_job *job = rs_job_by_id(s, r->job_id);
	struct sc_buf buf = {0};
	int rc = print(s, r, &buf, err);

	if (rc == 0)
		rc = meta_number_flush(s->catalog, META_NUMBERED_TREE, r->id, err); /* newer.c */
	if (rc == 0)
		rc = meta_store_keep_tree(&s->store, r->id, buf.text, buf.bytes, job && rs_job_syncs(job), err);
	if (rc == 0)
		rc = meta_tree_set_kept(s->catalog, r, err);
	sc_buf_done(&buf);
	return rc < 0 ? sc_wrap(err, rc, "the recovery record of tree %" PRIu64 " of job '%s'", r->id, r->job) : 0;
}

struct tidying {
	struct rs_service *s;
	struct sc_err *err;
};

static int on_kept(void *arg, uint64_t tree)
{
	const struct tidying *t = arg;
	int known = meta_tree_known(t->s->catalog, tree, t->err);

	return known ? (known < 0 ? known : 0) : meta_store_remove_tree(&t->s->store, tree, t->err);
}

int rs_trees_keep(struct rs_service *s, struct sc_err *err)
{
	struct unkept u = {.err = err};
	struct tidying t = {s, err};
	int rc = meta_tree_unkept(s->catalog, on_unkept, &u, err);
	bool tidy = s->worker.trees_gone;

	for (size_t i = 0; rc == 0 && i < u.nr; i++) {
		sc_metric_set(&trees_owed, u.nr - i);
		rc = keep(s, &u.at[i], err);
	}
	if (rc == 0)
		sc_metric_set(&trees_owed, 0);
	sc_vec_done(&u);
	sc_arena_done(&u.arena);
	/* a tree that was made flat does not need those below it, once its record says so */
	if (rc == 0 && tidy)
		rc = meta_store_each_tree(&s->store, on_kept, &t, err);
	if (rc == 0 && tidy)
		s->worker.trees_gone = false;
	return rc;
}

/* --- reading --- */

static int read_path(struct rs_tree_record *r, char *value)
{
	struct rs_tree_path p = {0};
	int at = 0;

	if (sscanf(value, "%" SCNu64 " %n", &p.id, &at) != 1 || !at)
		return SC_E_FORMAT;
	p.text = value + at;
	return sc_vec_push(&r->paths, p) < 0 ? SC_E_NO_MEMORY : 0;
}

static int read_set(struct rs_tree_record *r, char *value)
{
	struct rs_tree_set set = {0};
	int at = 0;

	if (sscanf(value, "%" SCNu64 " %n", &set.id, &at) != 1 || !at)
		return SC_E_FORMAT;
	set.file = value + at;
	return sc_vec_push(&r->sets, set) < 0 ? SC_E_NO_MEMORY : 0;
}

/* Reads a line of a record: 0, SC_E_FORMAT or SC_E_NO_MEMORY. */
static int read_line(struct rs_tree_record *r, const char *key, char *value)
{
	const struct {
		const char *key, **to;
	} texts[] = {{"job", &r->job}, {"layout", &r->layout}, {"topology", &r->topology},
		     {"head-layout", &r->head_layout}, {"head-topology", &r->head_topology}};

	sc_unquote(value);
	for (size_t i = 0; i < sizeof(texts) / sizeof(*texts); i++)
		if (strcmp(key, texts[i].key) == 0) {
			*texts[i].to = value;
			return 0;
		}
	if (strcmp(key, "path") == 0)
		return read_path(r, value);
	if (strcmp(key, "set") == 0)
		return read_set(r, value);
	if (strcmp(key, "owner") == 0)
		return sscanf(value, "%" SCNu64 " %" SCNu64 " %" SCNo64, &r->uid, &r->gid, &r->job_mode) == 3
			       ? 0 : SC_E_FORMAT;
	if (strcmp(key, "tree") == 0)
		return sscanf(value, "%" SCNu64 " %" SCNu64 " %" SCNu64, &r->id, &r->base, &r->root) == 3
			       ? 0 : SC_E_FORMAT;
	if (strcmp(key, "version") == 0)
		return sscanf(value, "%" SCNu64, &r->version) == 1 ? 0 : SC_E_FORMAT;
	if (strcmp(key, "last-set") == 0)
		return sscanf(value, "%" SCNu64, &r->last_set) == 1 ? 0 : SC_E_FORMAT;
	if (strcmp(key, "step") == 0)
		return sscanf(value, "%" SCNd64, &r->step) == 1 ? 0 : SC_E_FORMAT;
	return SC_E_FORMAT;
}

/* Reads lines, up to the one that tells the bytes of the rows behind it. */
static int read_lines(struct rs_tree_record *r, char **text, const char *end, size_t *ret_rows)
{
	while (*text < end) {
		char *key = *text, *value = strchr(key, ' '), *last = strchr(key, '\n');
		int rc;

		if (!value || !last || value > last)
			return SC_E_FORMAT;
		*value++ = 0;
		*last++ = 0;
		*text = last;
		if (strcmp(key, "rows") == 0) {
			*ret_rows = strtoull(value, NULL, 10);
			return r->job && r->layout && r->topology && r->head_layout && r->head_topology && r->root
				       ? 0 : SC_E_FORMAT;
		}
		rc = read_line(r, key, value);
		if (rc < 0)
			return rc;
	}
	return SC_E_FORMAT;
}

static int parse(struct rs_tree_record *r, size_t bytes, uint64_t tree, struct sc_err *err)
{
	const size_t begin = strlen(BEGIN);
	XXH128_canonical_t hash;
	char *at, *end;
	size_t rows;
	int rc = SC_E_FORMAT;

	if (bytes < begin + HASH_BYTES)
		return SC_E_FORMAT;
	at = r->text + begin;
	end = r->text + bytes - HASH_BYTES;
	hash_of(r->text, bytes - HASH_BYTES, &hash);
	if (memcmp(end, hash.digest, HASH_BYTES) == 0 && memcmp(r->text, BEGIN, begin) == 0)
		rc = read_lines(r, &at, end, &rows);
	if (rc == 0 && (rows != (size_t)(end - at) || r->id != tree))
		rc = SC_E_FORMAT;
	return rc < 0 ? rc : meta_changes_decode(at, rows, &r->rows, err);
}

int rs_tree_record_read(struct rs_service *s, uint64_t tree, struct rs_tree_record *ret, struct sc_err *err)
{
	struct rs_tree_record r = {.step = -1};
	size_t bytes;
	int rc = meta_store_kept_tree(&s->store, tree, &r.text, &bytes, err);

	if (rc < 0)
		return rc;
	rc = parse(&r, bytes, tree, err);
	if (rc == 0) {
		*ret = r;
		return 0;
	}
	rs_tree_record_done(&r);
	if (rc == SC_E_NO_MEMORY)
		return sc_nomem(err);
	return sc_fail(err, SC_E_FORMAT, "the recovery record of tree %" PRIu64 " is damaged", tree);
}

void rs_tree_record_done(struct rs_tree_record *record)
{
	meta_changes_done(&record->rows);
	sc_vec_done(&record->paths);
	sc_vec_done(&record->sets);
	sc_sys.release(record->text);
	*record = (struct rs_tree_record){0};
}
