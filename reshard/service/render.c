/* SPDX-License-Identifier: Apache-2.0 */
/* Prints what programs read in control files: lines `key: value` or a plain table, for grep and awk. */
#include "reshard/service/service.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>
#include <time.h>

#include "reshard/engine/io/engine.h"
#include "reshard/engine/gpu/remote.h"
#include "reshard/service/move_plan.h"
#include "reshard/upkeep/background/upkeep_i.h"

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

		sc_buf_printf(buf, "%s\t%" PRIu64 "\t%" PRIu64 "\t%" PRIu64 "\t", c->spec.name, c->samples,
			      corpus_bytes(c), d->at.epoch);
		sc_buf_printf(buf, "%" PRIu64 "\t%" PRIu64 "\t%u\t%" PRIu64 "\t", d->at.position,
			      meta_deal_length(&c->spec.deal, c->samples) - d->at.position, d->ranks,
			      head->version->samples);
		rs_data_spec_text(&c->spec, buf);
		for (size_t k = 0; k < c->nr; k++)
			sc_buf_printf(buf, "%c%s", k ? ' ' : '\t', c->at[k].info.path);
		sc_buf_printf(buf, "\n");
	}
	rs_view_unref(s, head);
	return buf->failed ? sc_nomem(err) : 0;
}

static void status_data(const struct rs_view *view, struct sc_buf *buf)
{
	if (view->data.nr)
		sc_buf_printf(buf, "samples_consumed: %" PRIu64 "\n", view->version->samples);
	for (size_t i = 0; i < view->data.nr; i++) {
		const struct rs_view_data *d = &view->data.at[i];
		const struct meta_deal *deal = &d->at.corpus->spec.deal;
		uint64_t length = meta_deal_length(deal, d->at.corpus->samples);
		struct meta_share share;
		struct sc_err ignored;

		sc_buf_printf(buf,
			      "data: '%s' epoch %" PRIu64 " position %" PRIu64 " of %" PRIu64 ", left %" PRIu64
			      " in %" PRIu64 " batches",
			      d->at.corpus->spec.name, d->at.epoch, d->at.position, length, length - d->at.position,
			      (length - d->at.position + deal->batch - 1) / deal->batch);
		if (meta_share_init(deal, d->at.corpus->samples, d->at.position, d->ranks, 0, &share, &ignored) == 0)
			sc_buf_printf(buf, ", %u ranks take %" PRIu64 " of each %" PRIu64, d->ranks, share.per,
				      deal->batch);
		sc_buf_printf(buf, "\n");
	}
}

static int done(const struct sc_buf *buf, struct sc_err *err)
{
	return buf->failed ? sc_nomem(err) : 0;
}

int rs_render_topology(struct rs_service *s, struct rs_job *job, struct sc_buf *buf,
		       struct sc_err *err)
{
	struct rs_view *head = rs_job_head(job);

	if (head) {
		sc_buf_printf(buf, "%s\n", head->topo.text);
	} else {
		(void)pthread_mutex_lock(&job->state);
		if (job->first_topology)
			sc_buf_printf(buf, "%s\n", job->first_topology);
		(void)pthread_mutex_unlock(&job->state);
	}
	rs_view_unref(s, head);
	return done(buf, err);
}

int rs_render_layout(struct rs_service *s, struct rs_job *job, struct sc_buf *buf,
		     struct sc_err *err)
{
	struct rs_view *head = rs_job_head(job);
	const struct rs_kept_layout *kept;
	uint64_t id;
	int rc = 0;

	(void)pthread_mutex_lock(&job->state);
	id = head ? head->version->layout_id : job->first_layout;
	(void)pthread_mutex_unlock(&job->state);
	rs_view_unref(s, head);
	if (id) {
		rc = rs_layout_by_id(s, id, &kept, err);
		if (rc == 0)
			sc_buf_printf(buf, "%s%s", kept->source,
				      *kept->source && kept->source[strlen(kept->source) - 1] == '\n' ? "" : "\n");
	}
	return rc < 0 ? rc : done(buf, err);
}

uint64_t rs_version_bytes(const struct rs_version *v)
{
	uint64_t n = 0;

	for (size_t i = 0; i < v->nr_sets; i++)
		n += rs_set_bytes(v->sets[i]);
	return n;
}

const char *rs_state_text(const struct rs_view *own)
{
	if (rs_version_verified(own->version) == META_DIFFER)
		return "copies-differ";
	return rs_view_is_materialized(own) ? "materialized" : "view";
}

static void time_text(int64_t ns, char buf[40])
{
	time_t seconds = (time_t)(ns / 1000000000);
	struct tm tm;

	(void)gmtime_r(&seconds, &tm);
	(void)strftime(buf, 40, "%Y-%m-%dT%H:%M:%SZ", &tm);
}

struct rows {
	struct {
		size_t nr, room;
		struct row {
			uint64_t nr;
			char *tag;
		} *at;
	} v;
	struct sc_err *err;
};

static int on_row(void *arg, const struct meta_version_row *row)
{
	struct rows *r = arg;
	struct row one = {row->nr, row->tag ? sc_strdup(row->tag) : NULL};

	if ((row->tag && !one.tag) || sc_vec_push(&r->v, one) < 0) {
		sc_sys.release(one.tag);
		return sc_nomem(r->err);
	}
	return 0;
}

static void version_line(const struct rs_view *view, bool is_head, const char *tag, struct sc_buf *buf)
{
	const struct rs_version *v = view->version;
	char when[40], step[24] = "-", topology[SC_COMMAND_BYTES_MAX];

	time_text(v->made_ns, when);
	if (v->step >= 0)
		(void)snprintf(step, sizeof(step), "%" PRId64, v->step);
	(void)snprintf(topology, sizeof(topology), "%s", v->topo.text);
	for (char *p = topology; *p; p++)
		if (*p == ' ')
			*p = ',';
	sc_buf_printf(buf, "%" PRIu64 "%s\t%s\t%s\t%" PRIu64 "\t%s\t%s\t%s\t%s\t", v->nr, is_head ? "*" : "", step,
		      topology, rs_version_bytes(v), rs_state_text(view), v->made_by, when, tag ? tag : "-");
	sc_buf_shown(buf, v->note);
	sc_buf_printf(buf, "\n");
}

int rs_render_versions(struct rs_service *s, struct rs_job *job, struct sc_buf *buf,
		       struct sc_err *err)
{
	struct rs_view *head = rs_job_head(job);
	struct rows rows = {.err = err};
	int rc = meta_version_each(s->catalog, job->id, on_row, &rows, err);

	sc_buf_printf(buf, "version\tstep\ttopology\tbytes\tstate\tmade_by\tmade\ttag\tnote\n");
	for (size_t i = 0; i < rows.v.nr; i++) {
		struct rs_view *v = NULL;

		/* one that went meanwhile is left out */
		if (rc == 0 && rs_view_version(s, job, rows.v.at[i].nr, &v, err) == 0) {
			version_line(v, head && v->version->nr == head->version->nr, rows.v.at[i].tag, buf);
			rs_view_unref(s, v);
		}
		sc_sys.release(rows.v.at[i].tag);
	}
	sc_vec_done(&rows.v);
	rs_view_unref(s, head);
	return rc < 0 ? rc : done(buf, err);
}

struct dirty_lines {
	struct sc_buf lines;
	size_t nr;
};

#define DIRTY_SHOWN 100

static int on_dirty(void *arg, const struct rs_change_row *row)
{
	struct dirty_lines *d = arg;
	const char *slash = strrchr(row->path, '/');

	if (row->how == RS_CHANGE_MOVED && row->blob) /* a plain one: its name alone has changed */
		return 0;
	if (d->nr++ >= DIRTY_SHOWN)
		return 0;
	sc_buf_printf(&d->lines, "dirty: ");
	if (row->rank != RS_SHARED)
		sc_buf_printf(&d->lines, "%u/", row->rank);
	sc_buf_shown(&d->lines, row->path);
	sc_buf_printf(&d->lines, "%s%s\n", row->how == RS_CHANGE_GONE ? " (removed)" : "",
		      strncmp(slash ? slash + 1 : row->path, ".tmp", 4) == 0 ? " (temporary: refuses the commit)" : "");
	return 0;
}

/* Prints uncommitted files one by one, and counts folders, links and attributes. */
static int status_files(struct rs_job *job, struct sc_buf *buf, struct sc_err *err)
{
	struct dirty_lines d = {.nr = 0};
	struct sc_buf specials = {0};
	struct rs_dirt dirt;
	int rc = rs_tree_dirt(job, &dirt, NULL, err);

	if (rc == 0)
		rc = rs_tree_changes(job, on_dirty, &d, err);
	if (rc == 0) {
		/* removed names of files without tensors are neither: they are told where there is nothing else */
		const size_t others = dirt.others || d.nr ? dirt.others : dirt.nr;

		sc_buf_printf(buf, "dirty_files: %zu\n", d.nr);
		if (others)
			sc_buf_printf(buf, "dirty_others: %zu\n", others);
		if (d.lines.text)
			sc_buf_add(buf, d.lines.text, d.lines.bytes);
	}
	if (rc == 0 && dirt.special)
		rc = rs_tree_specials(job, &specials, err);
	if (rc == 0 && specials.text)
		sc_buf_line(buf, "left out: %s", specials.text);
	buf->failed |= d.lines.failed || specials.failed;
	sc_buf_done(&d.lines);
	sc_buf_done(&specials);
	return rc;
}

/* Tells whether the head is materialized; on a node of a cluster, whether the node has what it keeps of it. */
static bool is_done(const struct rs_job *job, const struct rs_view *head)
{
	return head && (job->service->shared ? rs_homes_are_here(head) : rs_view_is_materialized(head));
}

void rs_render_progress(const struct rs_progress *p, const char *prefix, struct sc_buf *buf)
{
	const uint64_t done = sc_min_u64(p->done, p->total);
	const double seconds = (double)(sc_now_ns() - p->began_ns) / 1e9;
	const double rate = seconds > 0 ? (double)p->done / seconds : 0;

	sc_buf_printf(buf, "%sbytes_done: %" PRIu64 "\n%sbytes_total: %" PRIu64 "\n%sbytes_per_second: %.0f\n", prefix,
		      done, prefix, p->total, prefix, rate);
	if (rate > 0)
		sc_buf_printf(buf, "%seta_seconds: %.1f\n", prefix, (double)(p->total - done) / rate);
}

static void status_progress(struct rs_job *job, const struct rs_view *head, struct sc_buf *buf)
{
	struct rs_progress p, verify;
	uint64_t bytes, ranks;

	(void)pthread_mutex_lock(&job->state);
	p = job->progress;
	verify = job->verify;
	ranks = job->homes.ranks;
	bytes = job->homes.bytes;
	if (job->stopped)
		sc_buf_line(buf, "stopped: %s; trying again", job->stopped);
	(void)pthread_mutex_unlock(&job->state);
	if (head && job->service->shared && rs_homes_are_here(head))
		sc_buf_printf(buf, "home: %" PRIu64 " ranks, %" PRIu64 " bytes are here\n", ranks, bytes);
	if (head && job->service->copies)
		job->service->copies->describe(job->service->member, job, buf);
	if (verify.version) {
		sc_buf_printf(buf, "verify: version %" PRIu64 "\n", verify.version);
		rs_render_progress(&verify, "verify_", buf);
	}
	if (!p.version) {
		sc_buf_printf(buf, "progress: %s\n", is_done(job, head) ? "done" : "idle");
		return;
	}
	sc_buf_printf(buf, "progress: %s version %" PRIu64 "\n", p.what, p.version);
	rs_render_progress(&p, "", buf);
}

/* Prints which engine writes the files of topologies, and why it is not the one that was asked for. */
static void status_engine(struct rs_job *job, struct sc_buf *buf)
{
	const struct rs_config config = rs_config_of(job);
	struct rs_gpu_state gpu;
	const char *why_not;

	if (config.engine == RS_ENGINE_AUTO)
		sc_buf_printf(buf, "engine: host (auto: from files to files a GPU is no faster)\n");
	else if (config.engine == RS_ENGINE_HOST)
		sc_buf_printf(buf, "engine: host\n");
	else if (rs_engine_choose(rs_config_engine(&config), &why_not) == rs_engines[0])
		sc_buf_line(buf, "engine: host (gpu: %s)", why_not);
	else {
		rs_gpu_state(&gpu);
		sc_buf_line(buf, "engine: gpu (%s%s%s)", *gpu.device ? gpu.device : "not used yet",
			    *gpu.why ? "; the host has written the last files: " : "", gpu.why);
	}
}

struct unplaced {
	const char *topology;
	struct sc_buf *buf;
};

static int on_unplaced(void *arg, uint32_t rank, const char *path, const struct meta_inode_row *row)
{
	const struct unplaced *u = arg;

	(void)row;
	sc_buf_line(u->buf, "no_place: '%s' of rank %u of topology '%s'", path, rank, u->topology);
	return 0;
}

/* Prints the files and links of ranks that have no place in this topology. */
static int status_unplaced(struct rs_view *view, struct sc_buf *buf, struct sc_err *err)
{
	struct unplaced u = {rs_view_rows_topology(view), buf};

	return rs_view_each_unplaced(view, on_unplaced, &u, err);
}

struct folder_lines {
	const struct rs_view *head;
	struct sc_buf *buf;
};

static int on_folder(void *arg, struct rs_folder *folder)
{
	const struct folder_lines *l = arg;
	struct sc_err why;

	const bool shown = rs_folder_has_place(l->head->version, &l->head->topo, folder, &why);

	sc_buf_line(l->buf, "checkpoint: '%s' has %u tensors in %" PRIu64 " chunks; .as/%s %s %s", folder->path,
		    folder->state.nr, folder->chunks, l->head->topo.text, shown ? "shows it as" : "does not show it:",
		    shown ? folder->file : why.msg);
	return 0;
}

/* Prints the checkpoints that are folders of the job. */
static int status_folders(const struct rs_view *head, struct sc_buf *buf, struct sc_err *err)
{
	struct folder_lines l = {head, buf};
	int rc = rs_folders_any(head->job->service->folders, head->version->tree, err);

	return rc <= 0 ? rc : rs_folders_each(head->job->service->folders, head->version->tree, on_folder, &l, err);
}

static int status_version(struct rs_view *head, struct sc_buf *buf, struct sc_err *err)
{
	static const char *const verified[] = {"pending", "equal", "DIFFER"};
	const struct rs_version *v = head->version;
	uint32_t nr;
	const uint64_t logical = rs_tensors_bytes(v->tensors, &nr);
	int rc;

	sc_buf_printf(buf, "version: %" PRIu64 "\n", v->nr);
	if (v->step >= 0)
		sc_buf_printf(buf, "step: %" PRId64 "\n", v->step);
	sc_buf_printf(buf, "topology: %s\nranks: %u\ntensors: %u\nlogical_bytes: %" PRIu64 "\nstored_bytes: %" PRIu64
			   "\nstate: %s\ncopies: %s\n", head->topo.text, head->topo.ranks, nr, logical,
		      rs_version_bytes(v), rs_state_text(head), verified[rs_version_verified(v)]);
	for (size_t i = 0; i < v->nr_sets; i++) {
		struct rs_set *set = v->sets[i];

		sc_buf_line(buf, "set: '%s' tensors under '%s'", set->file, set->topo.text);
		if (rs_set_given(set)->has_payloads && strcmp(rs_set_given(set)->topo.text, head->topo.text) != 0)
			sc_buf_line(buf, "objects: '%s' as saved under '%s': each rank has those of its coordinates, "
				    "of 0 on an axis that had fewer", set->file, rs_set_given(set)->topo.text);
		(void)pthread_mutex_lock(&set->report_lock);
		for (const char *p = set->report; *p;) {
			size_t n = strcspn(p, "\n");

			sc_buf_line(buf, "note: %.*s", (int)n, p);
			p += n + (p[n] == '\n');
		}
		(void)pthread_mutex_unlock(&set->report_lock);
	}
	rs_render_older(head, buf);
	rs_render_replicas(head->model, buf);
	rc = status_folders(head, buf, err);
	if (rc == 0)
		rc = rs_render_uncut(head, buf, err);
	if (rc == 0)
		rc = status_unplaced(head, buf, err);
	status_data(head, buf);
	return rc;
}

struct damaged {
	const char *job;
	uint64_t blob;
	struct sc_buf *buf;
};

static int on_use(void *arg, const struct meta_blob_use *use)
{
	const struct damaged *d = arg;

	if (strcmp(use->job, d->job) != 0)
		return 0;
	sc_buf_printf(d->buf, "damaged: version %" PRIu64 " topology '%s' ", use->version, use->topology);
	rs_use_text(use, d->buf);
	sc_buf_printf(d->buf, " (blob %" PRIu64 ")\n", d->blob);
	return 0;
}

/* Prints the files of any version that scrubbing found damaged and could not mend, or whose damage a read has met. */
static int status_damaged(struct rs_service *s, struct rs_job *job, struct sc_buf *buf, struct sc_err *err)
{
	char name[SC_NAME_BYTES_MAX + 1];
	struct damaged d = {rs_job_name(job, name, sizeof(name)), 0, buf};
	uint64_t *marked, met[RS_MET_MAX];
	size_t nr_met = rs_met_copy(s, met), nr;
	int rc = meta_store_damaged(&s->store, &marked, &nr, err);

	for (size_t i = 0; rc == 0 && i < nr + nr_met; i++) {
		d.blob = i < nr ? marked[i] : met[i - nr];
		rc = meta_blob_uses(s->catalog, d.blob, on_use, &d, err);
	}
	sc_sys.release(marked);
	return rc;
}

int rs_render_status(struct rs_service *s, struct rs_job *job, struct sc_buf *buf,
		     struct sc_err *err)
{
	struct rs_view *head = rs_job_head(job);
	struct sc_err why;
	int rc = 0;

	(void)pthread_mutex_lock(&job->state);
	sc_buf_printf(buf, "job: %s\n", job->name);
	(void)pthread_mutex_unlock(&job->state);
	if (rs_head_known(job, &why) < 0)
		sc_buf_printf(buf, "current: no: %s\n", why.msg);
	if (head) {
		rc = status_version(head, buf, err);
	} else {
		(void)pthread_mutex_lock(&job->state);
		sc_buf_printf(buf, "version: none\ntopology: %s\nlayout: %s\n",
			      job->first_topology ? job->first_topology : "not written yet",
			      job->first_layout ? "written" : "not written yet");
		(void)pthread_mutex_unlock(&job->state);
	}
	if (rc == 0)
		rc = status_files(job, buf, err);
	status_engine(job, buf);
	status_progress(job, head, buf);
	rs_view_unref(s, head);
	if (rc == 0)
		rc = status_damaged(s, job, buf, err);
	return rc < 0 ? rc : done(buf, err);
}

int rs_render_plan(struct rs_service *s, struct rs_job *job, const char *topology,
		   struct sc_buf *buf, struct sc_err *err)
{
	struct rs_move_plan p;
	const struct rs_cost *cost = &p.cost;
	int rc = rs_move_plan_make(s, job, topology, &p, err);

	if (rc == 0) {
		sc_buf_printf(buf, "from: %s\nto: %s\nranks_per_node: %u\nsource_nodes: %u\ntarget_nodes: %u\n",
			      p.head->topo.text, p.target->topo.text, p.nodes.ranks_per_node, cost->source_nodes,
			      cost->target_nodes);
		sc_buf_printf(buf, "bytes_needed: %" PRIu64 "\nbytes_local: %" PRIu64 "\nbytes_moved: %" PRIu64
				   "\nlower_bound: %" PRIu64 "\npieces_moved: %" PRIu64 "\nplan_seconds: %.6f\n",
			      cost->bytes, cost->local, cost->moved, cost->bound, cost->pieces, p.seconds);
		status_data(p.target, buf);
		rs_render_replicas(p.target->model, buf);
		rc = status_unplaced(p.target, buf, err);
		sc_buf_printf(buf, "from_node\tto_node\tbytes\n");
		for (size_t i = 0; i < cost->nr_pairs; i++)
			sc_buf_printf(buf, "%u\t%u\t%" PRIu64 "\n", cost->pairs[i].from, cost->pairs[i].to,
				      cost->pairs[i].bytes);
		rc = rc < 0 ? rc : done(buf, err);
	}
	rs_move_plan_done(s, &p);
	return rc;
}

int rs_render_verify(struct rs_service *s, struct rs_job *job, struct sc_buf *buf,
		     struct sc_err *err)
{
	(void)s;
	(void)pthread_mutex_lock(&job->state);
	if (job->verify_report)
		sc_buf_printf(buf, "%s", job->verify_report);
	(void)pthread_mutex_unlock(&job->state);
	return done(buf, err);
}

void rs_render_error(struct rs_job *job, struct sc_buf *buf)
{
	(void)pthread_mutex_lock(&job->state);
	if (job->error)
		sc_buf_printf(buf, "%s", job->error);
	(void)pthread_mutex_unlock(&job->state);
}
