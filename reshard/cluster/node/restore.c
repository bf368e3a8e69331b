/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Rebuilds etcd's keys from a backup.
 *
 * 1. The key `meta`, without which no store is mounted, is the last one: a rebuild that was cut off is begun again.
 * 2. Each transaction expects that there is no `meta`: a cluster that somebody makes meanwhile is not written over.
 * 3. The new `meta` has an era above all that were: a store that meets it knows that etcd's revisions begin anew.
 */
#include "reshard/cluster/node/restore.h"

#include <errno.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "meta/base/xxh.h"
#include "meta/catalog/member.h"
#include "reshard/cluster/node/member_i.h"

#define BATCH_BYTES (META_VALUE_BYTES_MAX / 2)
#define ANSWER_MS 10000
#define AGAIN_MS 200
#define TTL_NS (10000 * MEMBER_MS)
#define HEAD_BYTES_MAX 512

/* --- a backup as text --- */

struct printing {
	FILE *to;
	struct sc_buf line;
	uint64_t nr;
	XXH3_state_t *sum;	/* of what was written */
};

static void print_sum(const XXH3_state_t *sum, char to[40])
{
	const XXH128_hash_t h = XXH3_128bits_digest(sum);

	(void)snprintf(to, 40, "%016" PRIx64 "%016" PRIx64 "\n", (uint64_t)h.high64, (uint64_t)h.low64);
}

/* Writes the line, and begins the next one.  Not 0: the line can't be written. */
static int print_line(struct printing *p)
{
	const size_t bytes = p->line.bytes;

	p->line.bytes = 0;
	if (p->line.failed)
		return 1;
	(void)XXH3_128bits_update(p->sum, p->line.text, bytes);
	return fwrite(p->line.text, 1, bytes, p->to) != bytes;
}

static int print_key(void *arg, const char *key, const char *value)
{
	struct printing *p = arg;

	meta_add_base64(&p->line, key, strlen(key));
	sc_buf_byte(&p->line, ' ');
	meta_add_base64(&p->line, value, strlen(value));
	sc_buf_byte(&p->line, '\n');
	p->nr++;
	return print_line(p);
}

struct stored {
	struct meta_member_row row;
	char cluster[META_CLUSTER_NAME_MAX + 1];
	bool is;
};

static int on_member(void *arg, const struct meta_member_row *row)
{
	struct stored *s = arg;

	s->is = true;
	s->row = *row;
	(void)snprintf(s->cluster, sizeof(s->cluster), "%s", row->cluster);
	return 0;
}

static int print(struct rs_service *s, struct printing *p, const struct stored *of, struct sc_err *err)
{
	uint64_t id[2];
	char sum[40];
	int rc;

	memcpy(id, of->row.id, sizeof(id));
	sc_buf_printf(&p->line, "scalai-backup 2\ncluster %s\nid %016" PRIx64 "%016" PRIx64 "\nera %" PRIu64 "\n",
		      of->cluster, id[0], id[1], of->row.backup_era);
	sc_buf_printf(&p->line, "revision %" PRIu64 "\nnode %u\n", of->row.backup, of->row.node);
	rc = print_line(p);
	if (rc == 0)
		rc = meta_backup_each(s->catalog, NULL, print_key, p, err);
	sc_buf_printf(&p->line, "end %" PRIu64 " ", p->nr);
	if (rc == 0)
		rc = print_line(p);
	print_sum(p->sum, sum);
	if (rc == 0)
		rc = fputs(sum, p->to) < 0 || fflush(p->to) != 0;
	return rc <= 0 ? rc
		       : p->line.failed ? sc_nomem(err) : sc_fail_sys(err, errno, "cannot write the backup");
}

int rs_backup_print(struct rs_service *s, FILE *to, struct sc_err *err)
{
	struct stored of = {.is = false};
	struct printing p = {.to = to};
	int rc = meta_member_get(s->catalog, on_member, &of, err);

	if (rc < 0)
		return rc;
	if (!of.is)
		return sc_fail(err, SC_E_NOT_FOUND, "this store is in no cluster");
	if (!of.row.backup)
		return sc_fail(err, SC_E_NOT_FOUND, "this store has no backup of etcd's keys yet: its node was not "
			       "mounted for long enough");
	p.sum = XXH3_createState();
	if (!p.sum)
		return sc_nomem(err);
	(void)XXH3_128bits_reset(p.sum);
	rc = print(s, &p, &of, err);
	sc_buf_done(&p.line);
	(void)XXH3_freeState(p.sum);
	return rc;
}

/* --- reading one --- */

struct job {
	uint64_t id, nr;
	char name[SC_NAME_BYTES_MAX + 1];
};
struct source {
	const char *path;
	FILE *f;
	char cluster[META_CLUSTER_NAME_MAX + 1], *line;
	size_t room;
	uint64_t id[2], era, revision, keys, nodes;
	uint32_t node, format;
	XXH3_state_t *sum;	/* of what was read; of format 2 */
	struct {
		size_t nr, room;
		struct job *at;
	} jobs;
};

static int is_none(const struct source *s, const char *why, struct sc_err *err)
{
	return sc_fail(err, SC_E_FORMAT, "'%s' is no backup that 'scalai cluster backup' has written: %s", s->path,
		       why);
}

static struct job *job_of(struct source *s, uint64_t id)
{
	for (size_t i = 0; i < s->jobs.nr; i++)
		if (s->jobs.at[i].id == id)
			return &s->jobs.at[i];
	return sc_vec_push(&s->jobs, ((struct job){.id = id})) < 0 ? NULL : &s->jobs.at[s->jobs.nr - 1];
}

/* Reads the last line, which says how many keys there are, and their sum. */
static int read_end(struct source *s, struct sc_err *err)
{
	char end[40], sum[40] = "\n";
	int bytes = snprintf(end, sizeof(end), s->format > 1 ? "end %" PRIu64 " " : "end %" PRIu64, s->keys);

	if (strncmp(s->line, end, (size_t)bytes) != 0)
		return is_none(s, "it lacks keys", err);
	if (s->format > 1) {
		(void)XXH3_128bits_update(s->sum, end, (size_t)bytes);
		print_sum(s->sum, sum);
	}
	if (strcmp(s->line + bytes, sum) != 0)
		return is_none(s, s->format > 1 ? "it has changed: its checksum is another" : "it lacks keys", err);
	return fgetc(s->f) == EOF ? 0 : is_none(s, "it goes on behind its end", err);
}

/* Reads a line "KEY VALUE": 1 and *ret, whose texts live in the arena; 0 (there are no more keys); or an error. */
static int read_key(struct source *s, struct sc_arena *arena, struct meta_op *ret, struct sc_err *err)
{
	ssize_t n = getline(&s->line, &s->room, s->f);
	char *blank;
	uint8_t *key, *value;
	size_t key_bytes, value_bytes;
	int rc;

	if (n < 0 || s->line[n - 1] != '\n')
		return is_none(s, "it ends too early", err);
	if (strncmp(s->line, "end ", 4) == 0)
		return read_end(s, err);
	(void)XXH3_128bits_update(s->sum, s->line, (size_t)n);
	blank = strchr(s->line, ' ');
	key = sc_arena_array(arena, (size_t)n + 1, 1);
	value = sc_arena_array(arena, (size_t)n + 1, 1);
	if (!key || !value)
		return sc_nomem(err);
	if (!blank || !meta_read_base64(s->line, (size_t)(blank - s->line), key, &key_bytes) ||
	    !meta_read_base64(blank + 1, (size_t)(s->line + n - 1 - blank - 1), value, &value_bytes))
		return is_none(s, "a line is no key and value", err);
	*ret = (struct meta_op){.what = META_PUT};
	rc = meta_key_parse(s->cluster, key, key_bytes, arena, &ret->key, err);
	if (rc == 0)
		rc = meta_value_parse(ret->key.kind, value, value_bytes, arena, &ret->value, err);
	s->keys++;
	return rc < 0 ? sc_wrap(err, rc, "'%s'", s->path) : 1;
}

static int note_key(struct source *s, const struct meta_op *o, struct sc_err *err)
{
	struct job *j = NULL;

	if (o->key.kind == META_KEY_BOUND)
		s->nodes++;
	if (o->key.kind != META_KEY_HEAD && o->key.kind != META_KEY_NAME)
		return 0;
	j = job_of(s, o->key.kind == META_KEY_HEAD ? o->key.job : o->value.number.nr);
	if (!j)
		return sc_nomem(err);
	if (o->key.kind == META_KEY_HEAD)
		j->nr = o->value.head.nr;
	else
		(void)snprintf(j->name, sizeof(j->name), "%s", o->key.text);
	return 0;
}

/* Opens a backup, or goes back to its first key. */
static int begin(struct source *s, struct sc_err *err)
{
	char head[HEAD_BYTES_MAX];
	int end = 0;
	size_t n;

	if (!s->f)
		s->f = fopen(s->path, "re");
	if (!s->f)
		return sc_fail_sys(err, errno, "backup '%s'", s->path);
	if (!s->sum && !(s->sum = XXH3_createState()))
		return sc_nomem(err);
	(void)XXH3_128bits_reset(s->sum);
	rewind(s->f);
	s->keys = 0;
	if (fscanf(s->f, "scalai-backup %" SCNu32 " cluster %63s id %16" SCNx64 "%16" SCNx64 " era %" SCNu64
			 " revision %" SCNu64 " node %" SCNu32 "%n",
		   &s->format, s->cluster, &s->id[0], &s->id[1], &s->era, &s->revision, &s->node, &end) != 7 || !end ||
	    (size_t)end >= sizeof(head) || s->format < 1 || s->format > 2 ||
	    fgetc(s->f) != '\n' || !meta_cluster_name_ok(s->cluster))
		return is_none(s, "its first lines are others", err);
	rewind(s->f);
	n = fread(head, 1, (size_t)end + 1, s->f);
	(void)XXH3_128bits_update(s->sum, head, n);
	return 0;
}

/* Reads all of a backup, to see that it is whole. */
static int look(struct source *s, struct sc_err *err)
{
	struct sc_arena arena = {0};
	struct meta_op o;
	bool has = false;
	int rc = begin(s, err);

	while (rc == 0 && (rc = read_key(s, &arena, &o, err)) > 0) {
		has |= o.key.kind == META_KEY_CLUSTER;
		rc = note_key(s, &o, err);
		sc_arena_done(&arena);
	}
	sc_arena_done(&arena);
	return rc == 0 && !has ? is_none(s, "it lacks the cluster's own key", err) : rc;
}

/* --- etcd --- */

struct restoring {
	const struct rs_member_options *o;
	struct meta_etcd *etcd;
	uint64_t id;		/* of the last request */
	uint64_t era;		/* of what etcd has of the cluster */
	uint64_t meta;		/* revision of its `meta`; 0: there is none */
	int64_t ttl;		/* of registrations; 0: not known */
	bool has_nodes;
};

/* Asks etcd; the answer lives until the next request. */
static int ask(struct restoring *r, const struct meta_txn *txn, const struct meta_answer **ret, struct sc_err *err)
{
	const struct meta_etcd_event *v;
	int rc = meta_etcd_txn(r->etcd, ++r->id, txn, err);

	while (rc == 0 && meta_etcd_next(r->etcd, ANSWER_MS, &v)) {
		if (v->kind != META_ETCD_ANSWER || v->id != r->id)
			continue;
		if (v->answer.outcome == META_UNKNOWN)
			return sc_fail(err, SC_E_SYSTEM, "etcd has not answered: %s; begin again", v->err.msg);
		*ret = &v->answer;
		return 0;
	}
	return rc < 0 ? rc : sc_fail(err, SC_E_SYSTEM, "etcd does not answer; begin again");
}

static int look_at_etcd(struct restoring *r, struct sc_err *err)
{
	struct meta_op ops[] = {{.what = META_GET, .key = {.kind = META_KEY_CLUSTER}},
				{.what = META_LIST, .range = META_RANGE_NODES, .keys_only = true}};
	struct meta_txn txn = {.nr_then = 2, .then = ops};
	const struct meta_answer *a;
	int rc = ask(r, &txn, &a, err);

	if (rc < 0)
		return rc;
	if (a->records[0].present) {
		r->meta = a->records[0].mod;
		r->era = a->records[0].value.cluster.era;
		r->ttl = (int64_t)a->records[0].value.cluster.ttl_ms * MEMBER_MS;
	}
	r->has_nodes = a->nr > 1;
	return 0;
}

/* Waits until no node is registered.  An older copy of etcd's data has registrations of its time, which end; an etcd
 * that was just started lets them begin anew. */
static int wait_for_nodes(struct restoring *r, struct sc_err *err)
{
	const int64_t until = sc_now_ns() + 2 * (r->ttl ? r->ttl : TTL_NS) + TTL_NS / 10;
	const struct meta_etcd_event *ignored;
	int rc = 0;

	while (rc == 0 && r->has_nodes && sc_now_ns() < until) {
		(void)meta_etcd_next(r->etcd, AGAIN_MS, &ignored);
		rc = look_at_etcd(r, err);
	}
	return rc;
}

/* Removes the keys that there are of the cluster; `meta` goes with the rest, at once. */
static int clear(struct restoring *r, struct sc_err *err)
{
	struct meta_compare same = {.what = META_MOD_IS, .key = {.kind = META_KEY_CLUSTER}, .revision = r->meta};
	struct meta_op op = {.what = META_CLEAR, .range = META_RANGE_CLUSTER};
	struct meta_txn txn = {.nr_compares = 1, .compares = &same, .nr_then = 1, .then = &op};
	const struct meta_answer *a;
	int rc = ask(r, &txn, &a, err);

	return rc == 0 && a->outcome != META_APPLIED
		       ? sc_fail(err, SC_E_BUSY, "somebody changes cluster '%s' meanwhile; nothing was changed",
				 r->o->cluster) : rc;
}

static int put(struct restoring *r, struct meta_op *ops, uint32_t nr, struct sc_err *err)
{
	struct meta_compare absent = {.what = META_CREATE_IS, .key = {.kind = META_KEY_CLUSTER}};
	struct meta_txn txn = {.nr_compares = 1, .compares = &absent, .nr_then = nr, .then = ops};
	const struct meta_answer *a;
	int rc = nr ? ask(r, &txn, &a, err) : 0;

	return rc == 0 && nr && a->outcome != META_APPLIED
		       ? sc_fail(err, SC_E_BUSY, "somebody makes cluster '%s' meanwhile: unmount all nodes of it, and "
				 "begin again with --replace", r->o->cluster) : rc;
}

/* Puts all keys of a source, in batches, `meta` last. */
static int put_all(struct restoring *r, struct source *s, struct sc_err *err)
{
	struct sc_arena arena = {0}, of_meta = {0};
	struct meta_op ops[META_TXN_OPS_MAX], meta = {.what = META_PUT}, o;
	const char *domains, *rest;
	uint32_t nr = 0;
	size_t bytes = 0;
	int rc = begin(s, err);

	while (rc == 0 && (rc = read_key(s, &arena, &o, err)) > 0) {
		rc = 0;
		if (o.key.kind == META_KEY_CLUSTER) {
			domains = o.value.cluster.domains ? o.value.cluster.domains : "";
			rest = o.value.rest ? o.value.rest : "";
			meta = o;
			meta.value.cluster.domains = sc_arena_copy(&of_meta, domains, strlen(domains));
			meta.value.rest = sc_arena_copy(&of_meta, rest, strlen(rest));
			rc = meta.value.cluster.domains && meta.value.rest ? 0 : sc_nomem(err);
			continue;
		}
		ops[nr++] = o;
		bytes += (size_t)strlen(s->line);
		if (nr < META_TXN_OPS_MAX && bytes < BATCH_BYTES)
			continue;
		rc = put(r, ops, nr, err);
		nr = 0;
		bytes = 0;
		sc_arena_done(&arena);
	}
	if (rc == 0)
		rc = put(r, ops, nr, err);
	meta.value.cluster.era = sc_max_u64(s->era, r->era) + 1;
	if (rc == 0)
		rc = put(r, &meta, 1, err);
	r->era = meta.value.cluster.era;
	sc_arena_done(&arena);
	sc_arena_done(&of_meta);
	return rc;
}

/* --- all of it --- */

static int check(const struct restoring *r, const struct source *s, const struct source *newest, bool replace,
		 struct sc_err *err)
{
	if (strcmp(s->cluster, r->o->cluster) != 0)
		return sc_fail(err, SC_E_STATE, "'%s' is of the cluster '%s', not of '%s'", s->path, s->cluster,
			       r->o->cluster);
	if (memcmp(s->id, newest->id, sizeof(s->id)) != 0)
		return sc_fail(err, SC_E_STATE, "'%s' and '%s' are of two clusters that had one name", newest->path,
			       s->path);
	if (r->meta && !replace)
		return sc_fail(err, SC_E_EXISTS, "etcd has cluster '%s': is this an older copy of its data? If so, "
			       "--replace removes what it has of the cluster, and makes it anew", r->o->cluster);
	return 0;
}

static bool is_newer(const struct source *a, const struct source *b)
{
	return a->era > b->era || (a->era == b->era && a->revision > b->revision);
}

static void add_name(const struct job *j, struct sc_buf *report)
{
	sc_buf_printf(report, "job '");
	sc_buf_quoted(report, j->name);
	sc_buf_printf(report, "': ");
}

/* Reports newer versions of a job that a backup of an earlier era has: such a backup is not taken, whatever it has. */
static void report_newer(const struct source *of, const struct job *j, struct sc_buf *report)
{
	for (size_t i = 0; i < of->jobs.nr; i++) {
		if (of->jobs.at[i].id != j->id || of->jobs.at[i].nr <= j->nr)
			continue;
		add_name(j, report);
		sc_buf_printf(report, "the backup of node %u, of era %" PRIu64 ", has version %" PRIu64 "; to go on "
			      "from that, begin again without those of later eras\n", of->node, of->era,
			      of->jobs.at[i].nr);
	}
}

/* Reports of each job how many backups knew its newest version. */
static void report_jobs(const struct source *all, size_t nr, const struct source *from, struct sc_buf *report)
{
	for (size_t i = 0; i < from->jobs.nr; i++) {
		const struct job *j = &from->jobs.at[i];
		size_t knew = 0;

		if (!*j->name) /* it was removed */
			continue;
		for (size_t k = 0; k < nr; k++)
			for (size_t l = 0; l < all[k].jobs.nr; l++)
				knew += all[k].jobs.at[l].id == j->id && all[k].jobs.at[l].nr >= j->nr;
		add_name(j, report);
		sc_buf_printf(report, "version %" PRIu64, j->nr);
		sc_buf_printf(report, 2 * knew > nr ? "\n" : ", which only %zu of %zu backups had\n", knew, nr);
		for (size_t k = 0; k < nr; k++)
			report_newer(&all[k], j, report);
	}
}

static int restore(struct restoring *r, struct source *all, size_t nr, bool replace, struct sc_buf *report,
		   struct sc_err *err)
{
	struct source *newest = all;
	int rc = 0;

	for (size_t i = 0; rc == 0 && i < nr; i++) {
		rc = look(&all[i], err);
		newest = is_newer(&all[i], newest) ? &all[i] : newest;
	}
	if (rc == 0)
		rc = look_at_etcd(r, err);
	for (size_t i = 0; rc == 0 && i < nr; i++)
		rc = check(r, &all[i], newest, replace, err);
	if (rc == 0)
		rc = wait_for_nodes(r, err);
	if (rc == 0 && r->has_nodes)
		rc = sc_fail(err, SC_E_BUSY, "a node of cluster '%s' is mounted: unmount all nodes", r->o->cluster);
	if (rc == 0 && r->meta)
		rc = clear(r, err);
	if (rc == 0)
		rc = put_all(r, newest, err);
	if (rc < 0)
		return rc;
	sc_buf_printf(report, "cluster '%s': %" PRIu64 " keys from the backup of node %u (era %" PRIu64 ", revision "
		      "%" PRIu64 "); it is era %" PRIu64 " now\n", newest->cluster, newest->keys, newest->node,
		      newest->era, newest->revision, r->era);
	for (size_t i = 0; i < nr; i++)
		if (all[i].format < 2)
			sc_buf_printf(report, "the backup of node %u was written by an older program, and has no "
				      "checksum: whether it has changed is not known\n", all[i].node);
	report_jobs(all, nr, newest, report);
	if (newest->nodes > nr)
		sc_buf_printf(report, "%" PRIu64 " nodes had a store, and %zu backups were given: a store that has "
			      "newer versions than these is not mounted any more\n", newest->nodes, nr);
	return report->failed ? sc_nomem(err) : 0;
}

int rs_backup_restore(const struct rs_member_options *o, const char *const *paths, size_t nr, bool replace,
		      struct sc_buf *report, struct sc_err *err)
{
	struct restoring r = {.o = o};
	struct source *all = sc_zalloc_array(nr, sizeof(*all));
	int rc = all ? rs_member_connect(o, false, &r.etcd, err) : sc_nomem(err);

	for (size_t i = 0; all && i < nr; i++)
		all[i].path = paths[i];
	if (rc == 0)
		rc = restore(&r, all, nr, replace, report, err);
	for (size_t i = 0; all && i < nr; i++) {
		if (all[i].f)
			(void)fclose(all[i].f);
		free(all[i].line);
		(void)XXH3_freeState(all[i].sum);
		sc_vec_done(&all[i].jobs);
	}
	sc_sys.release(all);
	meta_etcd_free(r.etcd);
	return rc;
}
