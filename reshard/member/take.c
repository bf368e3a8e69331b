/* SPDX-License-Identifier: Apache-2.0 */
/* What other nodes made: jobs, their first layouts, versions.  The worker. */
#include "reshard/member/member_i.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "meta/base/text.h"
#include "reshard/job/service.h"

/* --- jobs --- */

void rs_job_row_text(const struct meta_job_row *row, struct sc_buf *to)
{
	sc_buf_printf(to, "owner %u %u %o\nmade %" PRId64 "\nroot %" PRIu64 "\nname ", row->uid, row->gid, row->mode,
		      row->made_ns, row->root);
	sc_buf_quoted(to, row->name);
	sc_buf_printf(to, "\n");
}

static int read_row(char *text, struct meta_job_row *ret, struct sc_err *err)
{
	char *name = strstr(text, "\nname ");
	unsigned uid, gid, mode;

	if (!name || sscanf(text, "owner %u %u %o\nmade %" SCNd64 "\nroot %" SCNu64 "\n", &uid, &gid, &mode,
			    &ret->made_ns, &ret->root) != 5 || !ret->root)
		return sc_fail(err, SC_E_FORMAT, "the row of a job in etcd cannot be read");
	ret->uid = uid;
	ret->gid = gid;
	ret->mode = mode;
	name += 6;
	name[strcspn(name, "\n")] = 0;
	sc_unquote(name);
	ret->name = name;
	return 0;
}

int rs_take_job(struct rs_member *m, uint64_t id, char *text, struct sc_err *err)
{
	struct meta_job_row row = {0};
	struct rs_job *job = NULL;
	struct rs_shared *j;
	int rc;

	(void)pthread_mutex_lock(&m->lock);
	j = rs_shared_of(m, id);
	job = j ? j->job : NULL;
	(void)pthread_mutex_unlock(&m->lock);
	if (!j)
		return sc_nomem(err);
	if (job)
		return 0;
	rc = read_row(text, &row, err);
	if (rc == 0)
		rc = rs_job_make_shared(m->s, &row, &job, err);
	if (rc == 0)
		rc = meta_shared_job_add(m->s->catalog, job->id, id, err);
	if (rc < 0)
		return rc;
	(void)pthread_mutex_lock(&m->lock);
	j->job = job;
	(void)pthread_cond_broadcast(&m->changed);
	(void)pthread_mutex_unlock(&m->lock);
	m->s->events.names_changed(m->s->events.arg);
	return 0;
}

int rs_take_first(struct rs_member *m, const struct rs_todo *todo, struct sc_err *err)
{
	struct rs_amend first = {.kind = RS_AMEND_FIRST, .topology = *todo->text ? todo->text : NULL};
	const struct meta_layout *layout;
	struct rs_bag bag = {.lacking = false};
	struct rs_shared *j;
	struct rs_view *head;
	char *topology;
	int rc;

	(void)pthread_mutex_lock(&m->lock);
	j = rs_shared_of(m, todo->act.job);
	(void)pthread_mutex_unlock(&m->lock);
	if (!j || !j->job)
		return sc_fail(err, SC_E_STATE, "a layout of a job that is not here");
	head = rs_job_head(j->job);
	rs_view_unref(m->s, head);
	if (head) /* it was only of use before the first version */
		return 0;
	memcpy(bag.lacks, todo->layout.at, sizeof(bag.lacks));
	rc = rs_bag_get(m, &bag, err);
	if (rc == 0)
		rc = rs_layout_keep(m->s, bag.all.at[0].bytes.text, &first.layout, &layout, err);
	rs_bag_done(&bag);
	if (rc == 0)
		rc = rs_head_local.amend(m->s, j->job, &first, err);
	if (rc < 0)
		return rc;
	topology = first.topology ? sc_strdup(first.topology) : NULL;
	if (first.topology && !topology)
		return sc_nomem(err);
	(void)pthread_mutex_lock(&j->job->state);
	j->job->first_layout = first.layout;
	sc_sys.release(j->job->first_topology);
	j->job->first_topology = topology;
	(void)pthread_mutex_unlock(&j->job->state);
	rs_job_tell(j->job);
	return 0;
}

/* --- versions --- */

struct record {
	uint8_t object[32];
	bool found;
};

static void on_version(void *arg, const struct meta_answer *answer)
{
	struct record *r = arg;

	r->found = answer->nr && answer->records[0].present;
	if (r->found)
		memcpy(r->object, answer->records[0].value.version.placement.at, 32);
}

static int find_object(struct rs_member *m, uint64_t id, uint64_t nr, uint8_t ret[32], struct sc_err *err)
{
	struct meta_op get = {.what = META_GET, .key = {.kind = META_KEY_VERSION, .job = id, .nr = nr}};
	struct meta_txn txn = {.nr_then = 1, .then = &get};
	struct record r = {.found = false};

	if (rs_member_ask(m, &txn, on_version, &r) != META_APPLIED)
		return sc_fail(err, SC_E_SYSTEM, "etcd has not answered when it was asked for version %" PRIu64, nr);
	if (!r.found)
		return sc_fail(err, SC_E_NOT_FOUND, "etcd has no record of version %" PRIu64, nr);
	memcpy(ret, r.object, 32);
	return 0;
}

struct numbered {
	uint64_t nr, id;
};

static int on_row(void *arg, const struct meta_version_row *row)
{
	struct numbered *n = arg;

	if (row->nr == n->nr)
		n->id = row->id;
	return 0;
}

/* The rows of a version, unless they are there. */
static int take_rows(struct rs_member *m, struct rs_job *job, const uint8_t name[32], uint64_t nr, bool seals,
		     uint64_t *ret_id, struct sc_err *err)
{
	struct meta_catalog *c = m->s->catalog;
	struct rs_bag bag = {.lacking = false};
	struct numbered n = {.nr = nr};
	int rc = meta_version_each(c, job->id, on_row, &n, err);

	while (rc == 0 && !n.id) {
		rc = meta_catalog_begin(c, true, err);
		if (rc == 0)
			rc = meta_catalog_end(c, rs_objects_take(m->s, job, name, m->node, seals, &rs_bag_ops,
								 &bag, &n.id, err), err);
		if (rc < 0)
			n.id = 0;
		if (rc < 0 && bag.lacking) /* nothing waits for etcd inside a transaction */
			rc = rs_bag_get(m, &bag, err);
	}
	rs_bag_done(&bag);
	*ret_id = n.id;
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

/* The gate is closed.  `is_mine`: what is uncommitted is what this node had prepared for this version. */
static int show_rows(struct rs_member *m, struct rs_job *job, uint64_t id, bool is_mine, struct sc_err *err)
{
	struct rs_version *v = NULL;
	struct rs_view *view = NULL;
	struct rs_turn *turn = NULL;
	uint64_t place = 0;
	int rc = is_mine ? 0 : rs_local_refuse_dirty(job, "version that another node made", err);

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
		rs_kick(m->s, true);
	}
	rs_turn_done(turn);
	rs_view_unref(m->s, view);
	return rc;
}

int rs_take_version(struct rs_member *m, struct rs_shared *j, uint64_t nr, struct sc_err *err)
{
	const bool closes = !j->gate;
	bool is_mine = false;
	uint8_t name[32];
	uint64_t id;
	int rc;

	if (!j->job)
		return sc_fail(err, SC_E_STATE, "this node has not made the job yet");
	rc = find_object(m, j->id, nr, name, err);
	if (rc == 0 && j->row && j->row == j->token) {
		rc = rs_part_is_in(m, j, name, err);
		is_mine = rc > 0;
	}
	if (rc >= 0)
		rc = take_rows(m, j->job, name, nr, is_mine, &id, err);
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
