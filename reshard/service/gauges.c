/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Metrics of what the service is at the moment: its store, and each of its jobs.  What it has done since it began is
 * counted where it is done (meta/base/metric.h).
 *
 * A program may ask for them each second, of a thousand jobs, while commands run: so nothing here waits for a job's
 * locks but for job.state, and the catalog is asked only for a job whose head has changed by something else than a
 * commit.
 */
#include "reshard/service/service.h"

#include <string.h>

#include "reshard/upkeep/background/upkeep_i.h"

static const char *const states[] = {"none", "view", "materialized", "copies-differ"};

#define NR_STATES (sizeof(states) / sizeof(*states))

/* A job, as it is said of it. */
struct sample {
	size_t name, name_bytes;	/* in `names`: its label */
	bool has_head, has_step, is_stopped;
	size_t state;			/* of `states` */
	uint64_t version, step, ranks, logical, stored, dirty, backlog;
	int64_t committed_ns;
};

struct samples {
	struct {
		size_t nr, room;
		struct sample *at;
	} v;
	struct sc_buf names;
};

/* --- what is so --- */

struct last_commit {
	int64_t oldest_ns, committed_ns;
	uint64_t head;			/* later versions do not count */
};

static int on_version(void *arg, const struct meta_version_row *row)
{
	struct last_commit *last = arg;

	if (!last->oldest_ns)
		last->oldest_ns = row->made_ns;
	if (row->nr <= last->head && strcmp(row->made_by, "commit") == 0)
		last->committed_ns = row->made_ns;
	return 0;
}

/* Returns when the last commit was.  One whose version was dropped is as old as the oldest version that is left. */
static int64_t committed_ns(struct rs_job *job, const struct rs_version *head)
{
	struct last_commit last = {.head = head->nr};
	struct sc_err ignored;

	if (job->shown.version == head->id)
		return job->shown.committed_ns;
	if (strcmp(head->made_by, "commit") == 0)
		last.committed_ns = head->made_ns;
	else if (meta_version_each(job->service->catalog, job->id, on_version, &last, &ignored) < 0)
		return job->shown.committed_ns;
	if (last.committed_ns)
		job->shown.committed_ns = last.committed_ns;
	else if (!job->shown.committed_ns)
		job->shown.committed_ns = last.oldest_ns;
	job->shown.version = head->id;
	return job->shown.committed_ns;
}

/* Returns how many files were written that no version has.  While a command changes that, it is what it was before. */
static size_t dirty_files(struct rs_job *job)
{
	if (pthread_rwlock_tryrdlock(&job->names) != 0)
		return job->shown.dirty;
	/* files without a name are in the map, too */
	job->shown.dirty = job->by_blob.nr - (size_t)sc_min_u64(job->nameless, job->by_blob.nr);
	(void)pthread_rwlock_unlock(&job->names);
	return job->shown.dirty;
}

static void sample_head(struct sample *one, struct rs_job *job, const struct rs_view *head)
{
	const struct rs_version *v = head->version;
	const char *state = rs_state_text(head);
	uint32_t nr;

	one->has_head = true;
	one->version = v->nr;
	one->has_step = v->step >= 0;
	one->step = (uint64_t)v->step;
	one->ranks = head->topo.ranks;
	one->logical = rs_tensors_bytes(v->tensors, &nr);
	one->stored = rs_version_bytes(v);
	one->committed_ns = committed_ns(job, v);
	while (one->state < NR_STATES - 1 && strcmp(states[one->state], state) != 0)
		one->state++;
}

/* Adds a job, unless it is removed. */
static int add_sample(struct samples *all, struct rs_job *job, struct sc_err *err)
{
	struct sample one = {.name = all->names.bytes};
	struct rs_progress p;
	struct rs_view *head;
	bool removed, is_eager;

	(void)pthread_mutex_lock(&job->state);
	removed = job->removed;
	p = job->progress;
	is_eager = job->config.materialize == RS_EAGER;
	one.is_stopped = job->stopped;
	if (!removed)
		sc_metric_label(&all->names, job->name);
	(void)pthread_mutex_unlock(&job->state);
	if (removed)
		return 0;
	one.name_bytes = all->names.bytes - one.name;
	one.dirty = dirty_files(job);
	head = rs_job_head(job);
	if (head)
		sample_head(&one, job, head);
	if (p.version)
		one.backlog = p.total - sc_min_u64(p.done, p.total);
	else if (head && is_eager && !job->service->shared && !rs_view_is_materialized(head))
		one.backlog = one.logical;
	rs_view_unref(job->service, head);
	return sc_vec_push(&all->v, one) < 0 ? sc_nomem(err) : 0;
}

/* --- text --- */

/* Adds NAME{job="JOB" and what follows, up to the value. */
static void begin_line(struct sc_buf *buf, const char *name, const struct samples *all, const struct sample *one)
{
	sc_buf_add(buf, name, strlen(name));
	sc_buf_add(buf, "{job=\"", 6);
	sc_buf_add(buf, all->names.text + one->name, one->name_bytes);
}

enum { ALWAYS, OF_HEAD, OF_STEP };

static bool is_said(const struct sample *one, int when)
{
	return when == ALWAYS || (when == OF_HEAD && one->has_head) || (when == OF_STEP && one->has_step);
}

static void add_numbers(struct sc_buf *buf, const struct samples *all)
{
	static const struct {
		const char *name, *help;
		size_t at;		/* in struct sample */
		int when;
	} families[] = {
#define FAMILY(name, field, when, help) {"scalai_job_" name, help, offsetof(struct sample, field), when}
		FAMILY("version", version, OF_HEAD, "Number of the version that the job's ranks see."),
		FAMILY("step", step, OF_STEP, "Its training step."),
		FAMILY("ranks", ranks, OF_HEAD, "Ranks that its topology has."),
		FAMILY("logical_bytes", logical, OF_HEAD, "Bytes of its tensors, each counted once."),
		FAMILY("stored_bytes", stored, OF_HEAD,
		       "Bytes of its ranks' files of tensors; those of several versions count for each."),
		FAMILY("dirty_files", dirty, ALWAYS, "Files that were written and that no version has yet."),
		FAMILY("backlog_bytes", backlog, ALWAYS,
		       "Bytes that the background has still to verify or write for it."),
	};

	for (size_t f = 0; f < sizeof(families) / sizeof(*families); f++) {
		sc_metric_family(buf, families[f].name, SC_GAUGE, families[f].help);
		for (size_t i = 0; i < all->v.nr; i++) {
			const struct sample *one = &all->v.at[i];

			if (!is_said(one, families[f].when))
				continue;
			begin_line(buf, families[f].name, all, one);
			sc_buf_add(buf, "\"} ", 3);
			sc_buf_number(buf, *(const uint64_t *)((const char *)one + families[f].at));
			sc_buf_byte(buf, '\n');
		}
	}
}

static void add_times(struct sc_buf *buf, const struct samples *all)
{
	static const char name[] = "scalai_job_commit_timestamp_seconds";

	sc_metric_family(buf, name, SC_GAUGE, "When the job's last commit was, since 1970.");
	for (size_t i = 0; i < all->v.nr; i++) {
		const struct sample *one = &all->v.at[i];
		char ms[4] = {(char)('0' + one->committed_ns / 100000000 % 10),
			      (char)('0' + one->committed_ns / 10000000 % 10),
			      (char)('0' + one->committed_ns / 1000000 % 10), '\n'};

		if (!one->has_head)
			continue;
		begin_line(buf, name, all, one);
		sc_buf_add(buf, "\"} ", 3);
		sc_buf_number(buf, (uint64_t)one->committed_ns / 1000000000);
		sc_buf_byte(buf, '.');
		sc_buf_add(buf, ms, sizeof(ms));
	}
}

static void add_states(struct sc_buf *buf, const struct samples *all)
{
	sc_metric_family(buf, "scalai_job_state", SC_GAUGE, "1: the job's version is in this state, 0: it is not.");
	for (size_t i = 0; i < all->v.nr; i++)
		for (size_t k = 0; k < NR_STATES; k++) {
			begin_line(buf, "scalai_job_state", all, &all->v.at[i]);
			sc_buf_add(buf, "\",state=\"", 9);
			sc_buf_add(buf, states[k], strlen(states[k]));
			sc_buf_add(buf, "\"} ", 3);
			sc_buf_byte(buf, k == all->v.at[i].state ? '1' : '0');
			sc_buf_byte(buf, '\n');
		}
	sc_metric_family(buf, "scalai_job_stopped", SC_GAUGE,
			 "1: the background could not do its work for the job, whose status says why; it tries again.");
	for (size_t i = 0; i < all->v.nr; i++) {
		begin_line(buf, "scalai_job_stopped", all, &all->v.at[i]);
		sc_buf_add(buf, all->v.at[i].is_stopped ? "\"} 1\n" : "\"} 0\n", 5);
	}
}

static void add_gauge(struct sc_buf *buf, const char *name, const char *help, uint64_t value)
{
	sc_metric_family(buf, name, SC_GAUGE, help);
	sc_buf_printf(buf, "%s %llu\n", name, (unsigned long long)value);
}

static int add_store(struct rs_service *s, struct sc_buf *buf, struct sc_err *err)
{
	struct statvfs space;
	uint64_t *marked;
	size_t nr;
	int rc = meta_store_damaged(&s->store, &marked, &nr, err);

	sc_sys.release(marked);
	if (rc < 0)
		return rc;
	add_gauge(buf, "scalai_damaged_files", "Stored files that are known to be damaged, and are not mended.", nr);
	add_gauge(buf, "scalai_healthy", "0: some of what versions have is known to be damaged, 1: nothing is.",
		  !rs_service_is_damaged(s));
	if (sc_sys.fstatvfs(s->store.dir, &space) < 0)
		return 0; /* the rest can be said */
	add_gauge(buf, "scalai_store_free_bytes", "Bytes that the store's file system has left.",
		  (uint64_t)space.f_bavail * space.f_frsize);
	add_gauge(buf, "scalai_store_size_bytes", "Bytes that the store's file system has in all.",
		  (uint64_t)space.f_blocks * space.f_frsize);
	return 0;
}

int rs_render_gauges(struct rs_service *s, struct sc_buf *buf, struct sc_err *err)
{
	struct samples all = {.v = {.nr = 0}};
	struct rs_job *job;
	int rc = add_store(s, buf, err);

	(void)pthread_mutex_lock(&s->gauges_lock);
	for (size_t i = 0; rc == 0 && (job = rs_job_at(s, i)); i++)
		rc = add_sample(&all, job, err);
	(void)pthread_mutex_unlock(&s->gauges_lock);
	if (rc == 0) {
		add_gauge(buf, "scalai_jobs", "Jobs that there are.", all.v.nr);
		add_numbers(buf, &all);
		add_times(buf, &all);
		add_states(buf, &all);
	}
	if (all.names.failed || buf->failed)
		rc = sc_nomem(err);
	sc_vec_done(&all.v);
	sc_buf_done(&all.names);
	return rc;
}
