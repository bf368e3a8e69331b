/* SPDX-License-Identifier: Apache-2.0 */
#include "reshard/cluster/joint/joint_i.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "meta/base/log.h"
#include "meta/base/metric.h"
#include "reshard/version/config/config.h"
#include "reshard/engine/io/engine.h"

SC_METRIC(joint_passes, SC_COUNTER, "scalai_joint_passes_total", "Versions whose files nodes put together by NCCL.");
SC_METRIC(joint_failures, SC_COUNTER, "scalai_joint_failures_total", "Versions of which that failed.");

/* The writing of this node's files. */
struct writing {
	struct rs_agreement *a;
	struct rs_engine *engine;
	struct rs_set **sets;		/* of each of the version: files that are made */
	struct rs_flush flush;
	struct meta_store_dirs dirs;
};

/* --- one call --- */

struct call {
	size_t first;
	uint32_t nr;
	struct rs_target targets[RS_JOINT_FILES_MAX];
	uint32_t writers[RS_JOINT_FILES_MAX];
	uint64_t blobs[RS_JOINT_FILES_MAX];	/* 0: another node's file */
};

static int begin_files(struct writing *w, struct call *c, struct sc_err *err)
{
	struct rs_service *s = w->a->p->s;
	int rc = 0;

	for (uint32_t i = 0; i < c->nr; i++) {
		const struct rs_joint_file *f = &w->a->list.files.at[c->first + i];

		c->targets[i] = (struct rs_target){f->image, -1};
		c->writers[i] = f->writer;
		if (rc < 0 || !f->mine)
			continue;
		rc = meta_blob_add(s->catalog, &c->blobs[i], err);
		if (rc == 0)
			rc = meta_store_create(&s->store, c->blobs[i], &c->targets[i].fd, err);
	}
	return rc;
}

/* Keeps a file that was written, and lists it in its set. */
static int keep_file(struct writing *w, struct call *c, uint32_t i, struct sc_err *err)
{
	const struct rs_joint_file *f = &w->a->list.files.at[c->first + i];
	struct rs_pass *p = w->a->p;
	struct rs_set_blob b = {.rank = f->rank, .blob = c->blobs[i], .bytes = f->image->bytes};
	int rc = rs_path_id(p->job, f->name, &b.path_id, err);

	if (rc == 0)
		rc = rs_path_text(p->s, b.path_id, &b.path, err);
	if (rc == 0 && rs_set_add_blob(w->sets[f->set], b) < 0)
		rc = sc_nomem(err);
	return rc < 0 ? rc : rs_pass_keep(p, &w->flush, &w->dirs, sc_steal_fd(&c->targets[i].fd), b.blob, (int)b.rank,
					  b.path, err);
}

/* Closes the files of a call; `drop`: removes them, too, as they belong to nothing. */
static void end_files(struct writing *w, struct call *c, bool drop)
{
	struct sc_err ignored;

	for (uint32_t i = 0; i < c->nr; i++) {
		sc_closep(&c->targets[i].fd);
		if (drop && c->blobs[i])
			(void)meta_store_remove(&w->a->p->s->store, c->blobs[i], &ignored);
	}
}

static int make_call(struct writing *w, struct call *c, struct sc_err *err)
{
	const struct rs_pool pool = rs_parties_pool(&w->a->parties);
	char id[RS_POOL_ID_DIGITS + 1];
	struct rs_joint joint = {.world = pool.world, .first = w->a->list.self->first, .writers = c->writers,
				 .reader = rs_joint_reader, .arg = &w->a->list, .window_bytes = pool.window_bytes,
				 .boxes_max = pool.boxes_max, .id = id};
	const struct rs_write_options how = {.will_flush = rs_job_syncs(w->a->p->job), .tick = rs_pass_bytes,
					     .arg = w->a->p, .joint = &joint};
	struct rs_written written;
	int rc = begin_files(w, c, err);

	if (rc == 0)
		rc = rs_agree_id(w->a, (unsigned)(c->first / RS_JOINT_FILES_MAX), &how, id, err);
	if (rc == 0)
		rc = rs_engine_write(w->engine, c->targets, c->nr, &how, &written, err);
	if (rc == 0 || rc == SC_E_UNSUPPORTED)
		rs_gpu_note_joint(rc == 0);
	for (uint32_t i = 0; rc == 0 && i < c->nr; i++)
		if (c->blobs[i])
			rc = keep_file(w, c, i, err);
	if (rc == 0)
		rs_made_count(written.cloned + written.copied, written.cloned);
	end_files(w, c, rc < 0);
	return rc;
}

/* --- all --- */

static int make_calls(struct writing *w, struct sc_err *err)
{
	struct rs_pass *p = w->a->p;
	int rc = rs_engine_open(&rs_engine_gpu, &p->s->store, rs_config_of(p->job).buffer_bytes, &w->engine, err);

	for (size_t at = 0; rc == 0 && at < w->a->list.files.nr; at += RS_JOINT_FILES_MAX) {
		struct call c = {.first = at,
				 .nr = (uint32_t)sc_min_u64(RS_JOINT_FILES_MAX, w->a->list.files.nr - at)};

		rc = make_call(w, &c, err);
	}
	w->engine = rs_engine_close(w->engine);
	if (rc == 0)
		rc = rs_flush_add_dirs(&w->flush, &p->s->store, &w->dirs, err);
	return rs_flush_end(&w->flush, rc, err);
}

/* Makes files that are on stable storage this node's. */
static int take_files(struct writing *w, struct sc_err *err)
{
	const struct rs_version *v = w->a->p->head->version;
	int rc = 0;

	for (size_t i = 0; rc == 0 && i < v->nr_sets; i++)
		if (w->sets[i]->nr_blobs)
			rc = rs_homes_take(w->a->p, w->sets[i], err);
	return rc;
}

static int make(struct rs_agreement *a, struct sc_err *err)
{
	const struct rs_version *v = a->p->head->version;
	struct writing w = {.a = a, .sets = sc_zalloc_array(v->nr_sets + 1, sizeof(*w.sets))};
	int rc = w.sets ? 0 : sc_nomem(err);

	for (size_t i = 0; rc == 0 && i < v->nr_sets; i++) {
		w.sets[i] = rs_set_new(v->sets[i]->file, v->sets[i]->format);
		if (!w.sets[i])
			rc = sc_nomem(err);
	}
	if (rc == 0)
		rc = make_calls(&w, err);
	if (rc == 0)
		rc = take_files(&w, err);
	for (size_t i = 0; w.sets && i < v->nr_sets; i++) {
		if (rc < 0 && w.sets[i])
			rs_set_remove_new(a->p->s, w.sets[i]);
		rs_set_unref(w.sets[i]);
	}
	sc_sys.release(w.sets);
	return rc;
}

/* Agrees with the other nodes, then makes the files. */
static int take_part(struct rs_agreement *a, struct sc_err *err)
{
	int rc = rs_agree_plan(a, err);

	if (rc == 0)
		rc = rs_joint_list(&a->list, err);
	if (rc == 0)
		rc = rs_agree_votes(a, err);
	return rc < 0 ? rc : make(a, err);
}

/* Takes no part any more.  After an error it says so, so that others do not wait; what all said stays for a node that
 * has not heard it yet. */
static void leave(struct rs_agreement *a, int rc, const struct sc_err *why)
{
	char text[SC_ERR_BYTES_MAX + 40];
	struct sc_err ignored;

	if (rc < 0 && a->list.self) {
		(void)snprintf(text, sizeof(text), "node %u: %s", a->words.m->node, why->msg);
		(void)rs_words_say(&a->words, "stop", text, &ignored);
	}
	if (rc < 0)
		rs_words_forget(&a->words, false);
	rs_words_leave(&a->words);
}

/* Tells whether this node may begin for a head: once.  A node that comes a second time, or that had begun before this
 * mount, would be alone. */
static bool begins(struct rs_job *job, const struct rs_view *head)
{
	bool first;

	(void)pthread_mutex_lock(&job->state);
	first = job->homes.joint != head->id;
	for (size_t i = 0; first && i < job->made.nr; i++)
		first = job->made.at[i].view != head->id || !job->made.at[i].kept;
	job->homes.joint = head->id;
	(void)pthread_mutex_unlock(&job->state);
	return first;
}

int rs_joint_make(void *service, struct rs_pass *p)
{
	struct rs_service *s = service;
	const struct rs_config config = rs_config_of(p->job);
	const char *engine = rs_config_engine(&config);
	struct rs_gpu_options options;
	struct rs_agreement a = {.p = p, .list = {.p = p, .parties = &a.parties}, .options = &options};
	struct sc_err err;
	int rc;

	if (!engine || strcmp(engine, "gpu") != 0 || rs_view_is_materialized(p->head) ||
	    rs_gpu_check(&options, &err) < 0 || !*options.net || rs_gpu_joint_pauses() || !begins(p->job, p->head) ||
	    !rs_words_begin(&a.words, s->member, p->head))
		return 0;
	rc = take_part(&a, &err);
	leave(&a, rc, &err);
	rs_joint_list_done(&a.list);
	sc_vec_done(&a.parties);
	rs_words_done(&a.words);
	if (rc == SC_E_CANCELLED) {
		*p->err = err;
		return rc;
	}
	sc_metric_add(rc < 0 ? &joint_failures : &joint_passes, 1);
	if (rc < 0)
		sc_log(SC_LOG_WARN, "version %" PRIu64 ": nodes exchange nothing by NCCL: %s, continuing: bytes are "
		       "pulled by TCP", p->head->version->nr, err.msg);
	return 0;
}
