/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The commands topology, layout and rollback, which make a new head without new bytes; and discard.
 * A reshard is a new version with a new presentation and the same storage: steps 11 to 13 of steps.h.
 */
#include "reshard/command/commands/command_i.h"

#include <string.h>

SC_METRIC(reshards_made, SC_COUNTER, "scalai_reshards_total", "Versions made by topology, layout or rollback.");
SC_HISTOGRAM(topologies, "scalai_topology_seconds", "", "Time that a topology took that was not refused.");

struct reshard {
	struct rs_advance a;
	const char *text;	/* of the command */
	enum { BY_CONFIG, DROP, REFUSE } plain;	/* files without a place: as the command says, else as `config` does */
};

static int move(struct reshard *r, struct sc_err *err)
{
	struct rs_service *s = r->a.job->service;
	int rc;

	rc = rs_head_move(&r->a, err);
	if (rc < 0)
		return rc;
	if (rc == 0)
		sc_metric_add(&reshards_made, 1);
	rs_worker_call(s, true);
	return 0;
}

int rs_job_first(struct rs_job *job, uint64_t layout, const char *topology, bool is_followed, struct sc_err *err)
{
	struct rs_amend amend = {.kind = RS_AMEND_FIRST, .is_followed = is_followed, .layout = layout,
				 .topology = topology};
	struct rs_first *first = NULL;
	int rc = rs_first_plan(job, layout, topology, &first, err);

	if (rc < 0)
		return rc;
	amend.rows = rs_first_rows(first);
	rc = rs_head_amend(job->service, job, &amend, err);
	if (rc == 0)
		rs_first_show(first);
	rs_first_done(first);
	return rc < 0 ? rc : 0;
}

/* Takes the topology of a job that has no version yet. */
static int first_topology(struct rs_job *job, const char *text, struct sc_err *err)
{
	const struct rs_kept_layout *kept;
	struct meta_topology topo = {0};
	int rc;

	if (!job->first_layout)
		return sc_fail(err, SC_E_COMMAND, "the job has no layout, which says what axes there are; write one to "
			       ".ctl/layout first, for example 'use replicated'");
	rc = rs_layout_by_id(job->service, job->first_layout, &kept, err);
	if (rc == 0)
		rc = meta_topology_parse(kept->layout, text, &topo, err);
	if (rc < 0)
		return rc;
	rc = rs_job_first(job, job->first_layout, topo.text, false, err);
	meta_topology_done(&topo);
	return rc < 0 ? rc : 1;
}

/* Makes the draft of a version with the storage of another version; it is as old as this call. */
static int draft_like(struct rs_advance *a, const struct rs_version *from, const struct meta_topology *topo,
		      struct sc_err *err)
{
	a->draft = rs_version_like(from, NULL);
	if (!a->draft || meta_topology_copy(topo, &a->draft->topo) < 0)
		return sc_nomem(err);
	a->draft->made_ns = sc_now_wall_ns();
	return 0;
}

/* --- plain files that the new ranks would not have --- */

#define UNPLACED_SHOWN 4

struct unplaced {
	struct sc_buf files;	/* the first ones */
	size_t nr;
};

static int on_lost(void *arg, uint32_t rank, const char *path, const struct meta_inode_row *row)
{
	struct unplaced *u = arg;

	(void)row;
	if (u->nr++ < UNPLACED_SHOWN)
		sc_buf_printf(&u->files, "%srank %u: '%s'", u->files.bytes ? ", " : "", rank, path);
	return 0;
}

/* Refuses a new presentation that hides plain files, which no rule can cut, unless it may drop them. */
static int refuse_unplaced(const struct rs_advance *a, struct sc_err *err)
{
	const struct reshard *r = (const struct reshard *)a;
	struct unplaced u = {0};
	int rc = 0;

	if (r->plain == DROP || (r->plain == BY_CONFIG && rs_config_of(a->job).drop_plain))
		return 0;
	rc = rs_view_each_lost(a->base, a->draft->layout, &a->draft->topo, on_lost, &u, err);
	if (rc == 0 && u.files.failed)
		rc = sc_nomem(err);
	if (rc == 0 && u.nr)
		rc = sc_fail(err, SC_E_STATE, "%zu file%s without tensors would have no place among the ranks of '%s' "
			     "(%s%s); copy or remove %s, or add plain=drop, which hides %s while no rank has the same "
			     "coordinates",
			     u.nr, u.nr == 1 ? "" : "s", a->draft->topo.text, u.files.text,
			     u.nr > UNPLACED_SHOWN ? ", ..." : "", u.nr == 1 ? "it" : "them",
			     u.nr == 1 ? "it" : "them");
	sc_buf_done(&u.files);
	return rc;
}

/* Takes the word plain=drop or plain=refuse out of the text. */
static int take_plain(struct reshard *r, char *text, struct sc_err *err)
{
	for (char *p = text, *end; *p; p = end) {
		size_t n;

		p += strspn(p, " \t,\r\n");
		n = strcspn(p, " \t,\r\n");
		end = p + n;
		if (n < 6 || memcmp(p, "plain=", 6) != 0)
			continue;
		if (r->plain != BY_CONFIG)
			return sc_fail(err, SC_E_COMMAND, "plain= is given twice");
		if (n == 10 && memcmp(p, "plain=drop", n) == 0)
			r->plain = DROP;
		else if (n == 12 && memcmp(p, "plain=refuse", n) == 0)
			r->plain = REFUSE;
		else
			return sc_fail(err, SC_E_COMMAND, "'%.*s': plain= is drop or refuse", (int)n, p);
		memset(p, ' ', n);
	}
	return 0;
}

static int present_topology(struct rs_advance *a, struct sc_err *err)
{
	const char *text = ((struct reshard *)a)->text;
	struct meta_topology topo = {0};
	int rc;

	if (!a->base)
		return first_topology(a->job, text, err);
	rc = meta_topology_parse(a->base->version->layout, text, &topo, err);
	if (rc == 0 && strcmp(topo.text, a->base->topo.text) == 0)
		rc = 1; /* it has this topology */
	if (rc == 0)
		rc = rs_version_refuse_bad(a->base->version, err);
	if (rc == 0)
		rc = draft_like(a, a->base->version, &topo, err);
	if (rc == 0)
		rc = refuse_unplaced(a, err);
	if (rc == 0)
		rc = rs_refuse_formless(a, err);
	meta_topology_done(&topo);
	return rc;
}

/* Carries out a command whose text is a topology or a version. */
static int move_to(struct reshard *r, const char *text, struct sc_err *err)
{
	char *copy = sc_strdup(text);
	int rc = copy ? 0 : sc_nomem(err);

	if (rc == 0 && r->a.change == RS_BY_TOPOLOGY)
		rc = take_plain(r, copy, err);
	if (rc == 0) {
		r->text = sc_trim(copy);
		rc = move(r, err);
	}
	sc_sys.release(copy);
	return rc;
}

int rs_job_topology(const struct rs_caller *who, struct rs_job *job, const char *text, struct sc_err *err)
{
	struct reshard r = {.a = {.job = job, .change = RS_BY_TOPOLOGY, .token = who->token,
				  .present = present_topology}};
	const int64_t began_ns = sc_now_ns();
	int rc = move_to(&r, text, err);

	if (rc == 0)
		sc_metric_since(&topologies, began_ns);
	return rc;
}

/* Takes the layout of a job that has no version yet; refuses it if the topology that was written before does not
 * fit. */
static int first_layout(struct rs_job *job, const char *text, struct sc_err *err)
{
	const struct meta_layout *layout;
	struct meta_topology topo = {0};
	struct sc_err ignored;
	uint64_t id;
	bool fits;
	int rc = rs_layout_keep(job->service, text, &id, &layout, err);

	if (rc < 0)
		return rc;
	fits = job->first_topology && meta_topology_parse(layout, job->first_topology, &topo, &ignored) == 0;
	if (job->first_topology && !fits)
		return sc_fail(err, SC_E_LAYOUT, "the layout does not fit the topology '%s' that was written before: "
			"%s",
			       job->first_topology, ignored.msg);
	meta_topology_done(&topo);
	rc = rs_job_first(job, id, job->first_topology, false, err);
	return rc < 0 ? rc : 1;
}

static int present_layout(struct rs_advance *a, struct sc_err *err)
{
	const char *text = ((struct reshard *)a)->text;
	const struct meta_layout *layout;
	struct meta_topology topo = {0};
	uint64_t id;
	int rc;

	if (!a->base)
		return first_layout(a->job, text, err);
	rc = rs_version_refuse_bad(a->base->version, err);
	if (rc == 0)
		rc = rs_layout_keep(a->job->service, text, &id, &layout, err);
	if (rc == 0 && id == a->base->version->layout_id)
		return 1;
	if (rc == 0)
		rc = meta_topology_parse(layout, a->base->topo.text, &topo, err);
	if (rc == 0)
		rc = draft_like(a, a->base->version, &topo, err);
	if (rc == 0) {
		a->draft->layout = layout;
		a->draft->layout_id = id;
		a->keeps = !a->job->service->shared && meta_layout_same_but_logs(a->base->version->layout, layout);
		rc = refuse_unplaced(a, err);
		if (rc == 0)
			rc = rs_refuse_formless(a, err);
	}
	meta_topology_done(&topo);
	return rc;
}

int rs_job_layout(const struct rs_caller *who, struct rs_job *job, const char *text, struct sc_err *err)
{
	struct reshard r = {.a = {.job = job, .change = RS_BY_LAYOUT, .token = who->token,
				  .present = present_layout}, .text = text};

	return move(&r, err);
}

static int present_old(struct rs_advance *a, struct sc_err *err)
{
	struct rs_service *s = a->job->service;
	struct rs_view *old = NULL;
	int rc = rs_view_named(s, a->job, ((struct reshard *)a)->text, &old, err);

	if (rc == 0)
		rc = rs_version_refuse_bad(old->version, err);
	if (rc == 0)
		rc = draft_like(a, old->version, &old->topo, err);
	if (rc == 0)
		a->draft->floor_ns = a->draft->made_ns; /* programs see that files came back */
	rs_view_unref(s, old);
	return rc;
}

int rs_job_rollback(const struct rs_caller *who, struct rs_job *job, const char *text, struct sc_err *err)
{
	struct reshard r = {.a = {.job = job, .change = RS_BY_ROLLBACK, .token = who->token, .present = present_old}};

	return move_to(&r, text, err);
}

/* Saves a discard.  The version stays, but its files have change times from now on of this moment at least, since
 * programs saw other files in their places. */
static int save_discard(struct rs_service *s, struct rs_turn *turn, const struct rs_view *head, struct sc_err *err)
{
	int rc = rs_turn_save(turn, err);

	return rc < 0 || !head ? rc
			       : meta_version_set_floor(s->catalog, head->version->id, head->version->floor_ns, err);
}

int rs_job_discard(struct rs_service *s, struct rs_job *job, struct sc_err *err)
{
	struct rs_turn *turn = NULL;
	struct rs_view *head;
	int rc = rs_command_lock(job, err);

	if (rc < 0)
		return rc;
	(void)rs_tree_close(job, false, err);
	head = rs_job_head(job);
	rc = rs_turn_plan(job, head, RS_TURN_BACK, NULL, NULL, &turn, err);
	if (rc == 0)
		rc = meta_catalog_begin(s->catalog, false, err);
	if (rc == 0)
		rc = meta_catalog_end(s->catalog, save_discard(s, turn, head, err), err);
	if (rc == 0) {
		rs_turn_show(turn, job, head);
		head = NULL;
		rs_worker_call(s, true);
	}
	rs_turn_done(turn);
	rs_view_unref(s, head);
	rs_tree_open(job);
	(void)pthread_mutex_unlock(&job->command);
	return rc;
}
