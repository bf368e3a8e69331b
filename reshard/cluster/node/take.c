/* SPDX-License-Identifier: Apache-2.0 */
/* Takes what other nodes made, on the worker: jobs, their first layouts, versions. */
#include "reshard/cluster/node/member_i.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "reshard/cluster/protocol/rules.h"
#include "reshard/service/service.h"

/* --- jobs --- */

/* Gives a job a name that no job of the cluster has. */
static int put_aside(struct rs_member *m, struct rs_job *job, struct sc_err *err)
{
	struct rs_job_attr a;
	char was[SC_NAME_BYTES_MAX + 1], name[SC_NAME_BYTES_MAX + 1];
	struct meta_job_row row = {.name = name};

	(void)rs_job_name(job, was, sizeof(was));
	for (unsigned i = 1; i == 1 || rs_job_by_name(m->s, name); i++)
		(void)snprintf(name, sizeof(name), "%.200s.removed-%u", was, i);
	rs_job_attr(job, &a);
	row.mode = a.mode;
	row.uid = a.uid;
	row.gid = a.gid;
	return rs_job_follow(m->s, job, &row, err);
}

/* Makes a name free for a job: another job that has it is only kept here, or its row, with its new name, is still to
 * come. */
static int make_room(struct rs_member *m, const struct meta_job_row *row, const struct rs_job *job, struct sc_err *err)
{
	struct rs_job *other = rs_job_by_name(m->s, row->name);

	return other && other != job && other->root != row->root ? put_aside(m, other, err) : 0;
}

/* Finds a job that this node makes: it is in etcd before it is in memory, for which this waits.  By then other nodes
 * may have given it another name: it is known by its number in the cluster. */
static int find_made(struct rs_member *m, struct rs_shared *j, struct sc_err *err)
{
	struct rs_job *job = NULL;
	uint64_t id = 0;
	int rc = 0;

	if (j->job)
		return 0;
	(void)pthread_mutex_lock(&m->s->jobs.naming);
	rc = meta_shared_job_find(m->s->catalog, j->id, &id, err);
	if (rc == 0 && id)
		job = rs_job_by_id(m->s, id);
	(void)pthread_mutex_unlock(&m->s->jobs.naming);
	(void)pthread_mutex_lock(&m->lock);
	j->job = job;
	(void)pthread_cond_broadcast(&m->changed);
	(void)pthread_mutex_unlock(&m->lock);
	return rc;
}

static int make_or_follow(struct rs_member *m, struct rs_shared *j, struct meta_job_row *row, struct sc_err *err)
{
	int rc = find_made(m, j, err);
	struct rs_job *job = j->job;

	if (rc == 0)
		rc = make_room(m, row, job, err);
	if (rc == 0 && job && !rs_job_is_removed(job))
		return rs_job_follow(m->s, job, row, err);
	if (rc == 0)
		rc = rs_job_make_shared(m->s, row, &job, err);
	if (rc == 0)
		rc = meta_shared_job_add(m->s->catalog, job->id, j->id, err);
	if (rc < 0)
		return rc;
	(void)pthread_mutex_lock(&m->lock);
	j->job = job;
	j->gone = false;
	(void)pthread_cond_broadcast(&m->changed);
	(void)pthread_mutex_unlock(&m->lock);
	return 0;
}

int rs_take_job(struct rs_member *m, struct rs_shared *j, const char *text, uint64_t mod, struct sc_err *err)
{
	struct meta_job_row row = {0};
	char *copy = sc_strdup(text);
	bool is_old;
	int rc = copy ? rs_job_row_read(copy, &row, err) : sc_nomem(err);

	(void)pthread_mutex_lock(&m->lock);
	is_old = mod < j->row_mod;
	(void)pthread_mutex_unlock(&m->lock);
	if (rc == 0 && !is_old)
		rc = make_or_follow(m, j, &row, err);
	sc_sys.release(copy);
	if (rc < 0 || is_old)
		return rc;
	(void)pthread_mutex_lock(&m->lock);
	j->row_mod = mod > j->row_mod ? mod : j->row_mod;
	(void)pthread_mutex_unlock(&m->lock);
	m->s->events.names_changed(m->s->events.arg);
	return 0;
}

/* Keeps a removed job on this node alone, for its files that are not committed, which are in no other place. */
static int keep(struct rs_member *m, struct rs_shared *j, struct sc_err *err)
{
	int rc = meta_catalog_begin(m->s->catalog, true, err);
	char name[SC_NAME_BYTES_MAX + 1];

	if (rc == 0)
		rc = meta_catalog_end(m->s->catalog, meta_shared_job_lose(m->s->catalog, j->job->id, err), err);
	if (rc < 0)
		return rc;
	(void)pthread_mutex_lock(&m->lock);
	j->gone = j->kept = true;
	(void)pthread_cond_broadcast(&m->changed);
	(void)pthread_mutex_unlock(&m->lock);
	rc = put_aside(m, j->job, err);
	sc_log(SC_LOG_WARN, "job '%s' was removed by another node, and has files that are not committed: it is kept",
	       rs_job_name(j->job, name, sizeof(name)));
	return rc;
}

/* Ends a job here, or keeps it; its gate is closed. */
static int end_job(struct rs_member *m, struct rs_shared *j, struct sc_err *err)
{
	struct rs_dirt dirt = {0};
	bool is_mine;
	int rc = rs_tree_dirt(j->job, &dirt, NULL, err);

	(void)pthread_mutex_lock(&m->lock);
	is_mine = j->gate && j->move && j->move->token == j->gate; /* who removes it here wants all of it removed */
	(void)pthread_mutex_unlock(&m->lock);
	if (rc == 0 && dirt.nr && !is_mine)
		return keep(m, j, err);
	if (rc == 0)
		rc = rs_job_drop(m->s, j->job, err);
	if (rc < 0)
		return rc;
	(void)pthread_mutex_lock(&m->lock);
	j->gone = true;
	(void)pthread_cond_broadcast(&m->changed);
	(void)pthread_mutex_unlock(&m->lock);
	return 0;
}

/* Close and open the gate of a job, unless the worker holds it for a command. */
static void close_gate(struct rs_shared *j)
{
	struct sc_err ignored;

	if (j->gate)
		return;
	(void)pthread_mutex_lock(&j->job->command);
	(void)rs_tree_close(j->job, false, &ignored); /* only `quiet` can fail */
}

static void open_gate(struct rs_shared *j)
{
	if (j->gate)
		return;
	rs_tree_open(j->job);
	(void)pthread_mutex_unlock(&j->job->command);
}

int rs_take_end(struct rs_member *m, struct rs_shared *j, uint64_t mod, struct sc_err *err)
{
	bool is_old;
	int rc = find_made(m, j, err);

	(void)pthread_mutex_lock(&m->lock);
	is_old = mod < j->row_mod; /* it was made, or changed, since */
	(void)pthread_mutex_unlock(&m->lock);
	if (rc < 0 || is_old || !j->job || j->gone)
		return rc;
	close_gate(j);
	rc = end_job(m, j, err);
	open_gate(j);
	m->s->events.names_changed(m->s->events.arg);
	return rc;
}

int rs_take_config(struct rs_member *m, struct rs_shared *j, char *text, uint64_t mod, struct sc_err *err)
{
	bool is_old;
	int rc;

	if (!j->job || j->gone)
		return 0;
	if (!j->gate)
		(void)pthread_mutex_lock(&j->job->command);
	(void)pthread_mutex_lock(&m->lock);
	is_old = mod < j->config_mod; /* the same: all of it, also what other nodes set before */
	(void)pthread_mutex_unlock(&m->lock);
	rc = is_old ? 0 : rs_job_config_follow(j->job, text, err);
	if (!j->gate)
		(void)pthread_mutex_unlock(&j->job->command);
	if (rc < 0 || is_old)
		return rc;
	(void)pthread_mutex_lock(&m->lock);
	j->config_mod = mod;
	(void)pthread_mutex_unlock(&m->lock);
	m->s->events.names_changed(m->s->events.arg); /* show= */
	rs_job_tell(j->job);
	rs_worker_call(m->s, false);
	return 0;
}

int rs_take_tags(struct rs_member *m, struct rs_shared *j, struct sc_err *err)
{
	int rc;

	if (!j->job || j->gone)
		return 0;
	if (!j->gate)
		(void)pthread_mutex_lock(&j->job->command);
	rc = rs_member_follow_tags(m, j, err);
	if (!j->gate)
		(void)pthread_mutex_unlock(&j->job->command);
	if (rc == 0)
		rs_job_tell(j->job);
	return rc;
}

/* Takes both, unless the job has them: what users did since with the folders of its ranks stays.  The gate is
 * closed. */
static int take_first(struct rs_member *m, struct rs_shared *j, uint64_t layout, const char *topology, uint64_t mod,
		      struct sc_err *err)
{
	struct rs_job *job = j->job;
	bool has;
	int rc;

	(void)pthread_mutex_lock(&job->state);
	has = job->head || (job->first_layout == layout && !job->first_topology == !topology &&
			    (!topology || strcmp(job->first_topology, topology) == 0));
	(void)pthread_mutex_unlock(&job->state);
	(void)pthread_mutex_lock(&m->lock);
	has |= mod < j->first_mod; /* this node has put others since */
	(void)pthread_mutex_unlock(&m->lock);
	rc = has ? 0 : rs_job_first(job, layout, topology, true, err);
	if (rc < 0 || has)
		return rc;
	(void)pthread_mutex_lock(&m->lock);
	j->first_mod = mod;
	(void)pthread_mutex_unlock(&m->lock);
	return 0;
}

int rs_take_first(struct rs_member *m, struct rs_shared *j, const struct meta_hash *layout, const char *topology,
		  uint64_t mod, struct sc_err *err)
{
	const struct meta_layout *kept;
	struct rs_bag bag = {.lacking = false};
	struct rs_view *head;
	uint64_t id;
	int rc;

	if (!j->job)
		return sc_fail(err, SC_E_STATE, "a layout of a job that is not here");
	head = rs_job_head(j->job);
	rs_view_unref(m->s, head);
	if (head || j->gone) /* it was only of use before the first version */
		return 0;
	memcpy(bag.lacks, layout->at, sizeof(bag.lacks));
	rc = rs_bag_get(m, &bag, err);
	if (rc == 0)
		rc = rs_layout_keep(m->s, bag.all.at[0].bytes.text, &id, &kept, err);
	rs_bag_done(&bag);
	if (rc < 0)
		return rc;
	close_gate(j);
	rc = take_first(m, j, id, *topology ? topology : NULL, mod, err);
	open_gate(j);
	return rc;
}

/* --- versions --- */

struct record {
	uint8_t object[32];
	uint64_t token;
	bool found;
};

static void on_version(void *arg, const struct meta_answer *answer)
{
	struct record *r = arg;

	r->found = answer->nr && answer->records[0].present;
	if (!r->found)
		return;
	memcpy(r->object, answer->records[0].value.version.placement.at, 32);
	r->token = answer->records[0].value.version.token;
}

static int find_record(struct rs_member *m, uint64_t id, uint64_t nr, struct record *ret, struct sc_err *err)
{
	struct meta_op get = {.what = META_GET, .key = {.kind = META_KEY_VERSION, .job = id, .nr = nr}};
	struct meta_txn txn = {.nr_then = 1, .then = &get};

	*ret = (struct record){.found = false};
	if (rs_member_ask(m, &txn, on_version, ret) != META_APPLIED)
		return sc_fail(err, SC_E_SYSTEM, "etcd has not answered when it was asked for version %" PRIu64, nr);
	return 0;
}

int rs_version_token(struct rs_member *m, uint64_t id, uint64_t nr, uint64_t *ret, struct sc_err *err)
{
	struct record r;
	int rc = find_record(m, id, nr, &r, err);

	*ret = r.token;
	return rc;
}

/* Takes the rows of a version, as it is stored now, unless they are there. */
static int take_rows(struct rs_member *m, struct rs_shared *j, const uint8_t name[32], uint64_t nr, bool seals,
		     uint64_t *ret_id, struct sc_err *err)
{
	struct meta_catalog *c = m->s->catalog;
	struct rs_object_names sets = {0};
	struct rs_bag bag = {.lacking = false};
	bool anew = false;
	int rc = meta_version_find(c, j->job->id, nr, ret_id, err);

	if (rc == 0 && !*ret_id) {
		rc = rs_storage_ask(m, j->id, nr, &sets, err);
		anew = rc > 0;
		rc = rc < 0 ? rc : 0;
	}
	while (rc == 0 && !*ret_id) {
		rc = meta_catalog_begin(c, true, err);
		if (rc == 0)
			rc = meta_catalog_end(c, rs_objects_take(m->s, j->job, name, m->node, seals,
								 anew ? &sets : NULL, &rs_bag_ops, &bag,
								 ret_id, err), err);
		if (rc < 0)
			*ret_id = 0;
		if (rc < 0 && bag.lacking) /* nothing waits for etcd inside a transaction */
			rc = rs_bag_get(m, &bag, err);
	}
	rs_bag_done(&bag);
	sc_vec_done(&sets);
	return rc;
}

static int save_head(struct rs_member *m, struct rs_view *view, struct rs_turn *turn, struct sc_err *err)
{
	struct meta_catalog *c = m->s->catalog;
	int rc = meta_catalog_begin(c, true, err);

	if (rc < 0)
		return rc;
	rc = rs_turn_save(turn, err);
	if (rc == 0)
		rc = meta_version_set_floor(c, view->version->id, view->version->floor_ns, err);
	if (rc == 0)
		rc = meta_job_set_head(c, view->job->id, view->version->id, err);
	return meta_catalog_end(c, rc, err);
}

int rs_take_note(struct rs_member *m, const struct rs_shared *j, uint64_t token, uint64_t base, struct sc_err *err)
{
	int rc = meta_catalog_begin(m->s->catalog, true, err);

	if (rc < 0)
		return rc;
	rc = meta_shared_job_prepare(m->s->catalog, j->job->id, token, base, err);
	return meta_catalog_end(m->s->catalog, rc, err);
}

void rs_take_forget(struct rs_member *m, struct rs_shared *j)
{
	struct sc_err err;

	j->row = 0;
	rs_part_drop(m, j);
	if (j->job && rs_take_note(m, j, 0, 0, &err) < 0) /* the next start asks etcd again */
		sc_log(SC_LOG_WARN, "commit: %s, continuing", err.msg);
}

/* Makes a version whose rows are here the head; the gate is closed.  `is_mine`: the uncommitted files are those that
 * this node had prepared for this version. */
static int show_rows(struct rs_member *m, struct rs_job *job, uint64_t id, bool is_mine, struct sc_err *err)
{
	struct rs_version *v = NULL;
	struct rs_view *view = NULL;
	struct rs_turn *turn = NULL;
	uint64_t place = 0;
	/* others went on without it: it cannot be committed any more */
	int rc = is_mine ? 0 : rs_local_advise_dirty(job, "other nodes have made a version without them: discard them "
						     "here (echo yes > .ctl/discard)", err);

	if (rc == 0)
		rc = rs_version_load(m->s, id, &v, err);
	if (rc == 0)
		rc = meta_view_put(m->s->catalog, id, "", v->topo.ranks, &place, err);
	if (rc == 0)
		rc = rs_view_new(job, v, place, &v->topo, &view, err);
	else
		rs_version_unref(v);
	if (rc == 0)
		rc = rs_turn_plan(job, view, is_mine ? RS_TURN_TAKEN : RS_TURN_STAY, NULL, NULL, &turn, err);
	if (rc == 0)
		rc = save_head(m, view, turn, err);
	if (rc == 0) {
		view->own = true;
		rs_turn_show(turn, job, view);
		view = NULL;
		rs_worker_call(m->s, true);
	}
	rs_turn_done(turn);
	rs_view_unref(m->s, view);
	return rc;
}

int rs_take_version(struct rs_member *m, struct rs_shared *j, uint64_t nr, uint64_t token, struct sc_err *err)
{
	const bool closes = !j->gate;
	bool is_mine = false;
	struct record record;
	uint64_t id;
	int rc;

	if (!j->job)
		return sc_fail(err, SC_E_STATE, "this node has not made the job yet");
	rc = find_record(m, j->id, nr, &record, err);
	if (rc == 0 && !record.found)
		return sc_fail(err, SC_E_NOT_FOUND, "etcd has no record of version %" PRIu64, nr);
	if (rc == 0 && j->row && j->row == token) {
		rc = rs_part_is_in(m, j, record.object, err);
		is_mine = rc > 0;
		if (rc == 0 && RULE(left_out_ends)) /* what is prepared here is prepared for nothing now */
			rs_take_forget(m, j);
	}
	if (rc >= 0)
		rc = take_rows(m, j, record.object, nr, is_mine, &id, err);
	if (rc < 0)
		return rc;
	if (closes) {
		(void)pthread_mutex_lock(&j->job->command);
		rc = rs_tree_close(j->job, false, err);
	}
	if (rc == 0) {
		rc = show_rows(m, j->job, id, is_mine, err);
		if (closes)
			rs_tree_open(j->job);
	}
	if (closes)
		(void)pthread_mutex_unlock(&j->job->command);
	return rc;
}

/* --- versions that others made while this node was away, or before it came --- */

struct missed {
	size_t nr, room;
	uint64_t *at;		/* numbers, 0: it is here */
	bool failed;
};

static void on_listed(void *arg, const struct meta_answer *answer)
{
	struct missed *x = arg;

	for (uint32_t i = 0; i < answer->nr; i++)
		if (answer->records[i].present && answer->records[i].key.kind == META_KEY_STORE)
			x->failed |= sc_vec_push(x, answer->records[i].key.nr) < 0;
}

static int on_here(void *arg, const struct meta_version_row *row)
{
	struct missed *x = arg;

	for (size_t i = 0; i < x->nr; i++)
		if (x->at[i] == row->nr)
			x->at[i] = 0;
	return 0;
}

static int list_missed(struct rs_member *m, struct rs_shared *j, struct missed *ret, struct sc_err *err)
{
	struct meta_op list = {.what = META_LIST, .key = {.job = j->id}, .range = META_RANGE_STORES,
			       .keys_only = true};
	struct meta_txn txn = {.nr_then = 1, .then = &list};

	if (rs_member_ask(m, &txn, on_listed, ret) != META_APPLIED)
		return sc_fail(err, SC_E_SYSTEM, "etcd has not answered when it was asked for versions");
	return ret->failed ? sc_nomem(err) : meta_version_each(m->s->catalog, j->job->id, on_here, ret, err);
}

/* Gives the newest of the missed versions before the head, and takes it off the list; 0: there are no more. */
static uint64_t next_missed(struct missed *x, uint64_t head)
{
	uint64_t *newest = NULL, nr;

	for (size_t i = 0; i < x->nr; i++)
		if (x->at[i] < head && x->at[i] && (!newest || x->at[i] > *newest))
			newest = &x->at[i];
	nr = newest ? *newest : 0;
	if (newest)
		*newest = 0;
	return nr;
}

/* Takes the rows of a missed version.  If it dies meanwhile, the core says so to this thread afterwards, as the version
 * was in etcd when it was listed. */
static int take_missed(struct rs_member *m, struct rs_shared *j, uint64_t nr, struct sc_err *err)
{
	struct record record;
	uint64_t id;
	int rc = find_record(m, j->id, nr, &record, err);

	if (rc < 0 || !record.found)
		return rc;
	rc = take_rows(m, j, record.object, nr, false, &id, err);
	if (rc == 0)
		rs_gone_taken(m, j, nr);
	return rc;
}

int rs_take_missed(struct rs_member *m, struct rs_shared *j, bool *ret_more, struct sc_err *err)
{
	struct rs_view *head = j->job && !j->gone ? rs_job_head(j->job) : NULL;
	struct missed x = {.failed = false};
	uint64_t nr, before = head ? head->version->nr : 0;
	size_t taken = 0;
	int rc = head ? list_missed(m, j, &x, err) : 0;

	rs_view_unref(m->s, head);
	*ret_more = false;
	while (rc == 0 && !*ret_more && (nr = next_missed(&x, before)) != 0) {
		rc = take_missed(m, j, nr, err);
		taken += rc == 0;
		if (rc < 0 && rc != SC_E_SYSTEM && rc != SC_E_NO_MEMORY) {
			sc_log(SC_LOG_WARN, "an older version is not shown here: %s, continuing", err->msg);
			rc = 0; /* it would be so the next time, too: the next one, whoever calls */
			continue;
		}
		*ret_more = rs_member_is_called(m);
	}
	sc_vec_done(&x);
	rs_copies_wait(m, j, rc < 0 || *ret_more);
	if (taken) {
		m->s->events.names_changed(m->s->events.arg); /* .v */
		rs_job_tell(j->job);
		rs_worker_call(m->s, true); /* their trees may be over those of dropped versions: files of nobody */
	}
	return rc;
}
