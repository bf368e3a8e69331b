/* SPDX-License-Identifier: Apache-2.0 */
/*
 * commit: the working tree becomes a version.  Steps 1 to 6 of steps.h.  Everything before the
 * transaction only reads; a refusal leaves the tree as it was.
 */
#include "reshard/command/changed/items_i.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "reshard/engine/io/flush.h"

#define TRIES 5 /* of a commit below which the storage changes, or parts come and go */

SC_METRIC(commits_made, SC_COUNTER, "scalai_commits_total", "Versions made by commit.");

#define PHASE(object, phase)								\
	SC_HISTOGRAM(object, "scalai_commit_phase_seconds", "phase=\"" phase "\"",	\
		     "Time that a phase of a commit took, also of a commit that was refused later.")
PHASE(quiet_phase, "quiet");	/* of steps.h; `transact` is with what publishes the version */
PHASE(read_phase, "read");
PHASE(verify_phase, "verify");
PHASE(sync_phase, "sync");
PHASE(transact_phase, "transact");

/* A phase ends, and the next one begins. */
static void phase_ends(struct commit *c, struct sc_metric *histogram)
{
	sc_metric_since(histogram, c->phase_ns);
	c->phase_ns = sc_now_ns();
}

/* Parses one word: step=NUMBER, samples=NUMBER or kept=yes. */
static int parse_word(struct commit *c, struct sc_keys *keys, char *word)
{
	bool is_step = strncmp(word, "step=", 5) == 0, is_kept = strncmp(word, "kept=", 5) == 0;
	char *value = strchr(word, '='), *end;
	long long number;

	if (!is_step && !is_kept && strncmp(word, "samples=", 8) != 0)
		return sc_fail(c->err, SC_E_COMMAND,
			       "'%s' is unknown; write step=NUMBER [samples=NUMBER] [kept=yes] [note=TEXT]", word);
	*value++ = 0;
	if (sc_keys_add(keys, word, c->err) < 0)
		return c->err->code;
	if (is_kept) {
		c->takes_kept = strcmp(value, "yes") == 0;
		return c->takes_kept || strcmp(value, "no") == 0
			       ? 0 : sc_fail(c->err, SC_E_COMMAND, "kept: '%s' is neither yes nor no", value);
	}
	errno = 0;
	number = strtoll(value, &end, 10);
	if (errno || *end || end == value || number < 0)
		return sc_fail(c->err, SC_E_COMMAND, "%s: '%s' is not a number", word, value);
	if (is_step) {
		c->step = number;
	} else {
		c->samples = (uint64_t)number;
		c->has_samples = true;
	}
	return 0;
}

static int parse_words(struct commit *c, char *text)
{
	struct sc_keys keys = {0};
	int rc = 0;

	for (text = sc_trim(text); rc == 0 && *text && strncmp(text, "note=", 5) != 0;) {
		char *word = text;

		text += strcspn(text, " \t\n");
		if (*text)
			*text++ = 0;
		text += strspn(text, " \t\n");
		rc = parse_word(c, &keys, word);
	}
	if (rc == 0 && *text)
		c->note = text + 5; /* all that follows */
	sc_vec_done(&keys);
	return rc;
}

static int presentation(struct commit *c)
{
	struct rs_job *job = c->job;
	const struct rs_kept_layout *kept;
	const char *topology;
	int rc;

	c->head = c->a.base;
	(void)pthread_mutex_lock(&job->state);
	c->layout_id = c->head ? c->head->version->layout_id : job->first_layout;
	topology = job->first_topology ? sc_arena_copy(&c->arena, job->first_topology, strlen(job->first_topology))
				       : NULL;
	(void)pthread_mutex_unlock(&job->state);
	if (c->head)
		topology = c->head->topo.text;
	if (!c->layout_id)
		return sc_fail(c->err, SC_E_COMMAND, "the job has no layout; write one to .ctl/layout first, for "
			       "example 'use replicated' ('scalai clone' copies a job with its layout and versions)");
	if (!topology)
		return sc_fail(c->err, SC_E_COMMAND, "the job has no topology; write one to .ctl/topology first, for "
			       "example 'tp=2 pp=2'");
	rc = rs_layout_by_id(c->s, c->layout_id, &kept, c->err);
	if (rc < 0)
		return rc;
	c->layout = kept->layout;
	return meta_topology_parse(c->layout, topology, &c->topo, c->err);
}

/* --- what was written --- */

static bool is_temporary(const char *path)
{
	const char *name = strrchr(path, '/');
	size_t n;

	name = name ? name + 1 : path;
	n = strlen(name);
	if (strncmp(name, ".tmp", 4) == 0 || (n > 4 && strcmp(name + n - 4, ".tmp") == 0))
		return true;
	/* rsync's .NAME.XXXXXX, of random letters and digits; six small letters are a word, like .hparams.config */
	return *name == '.' && n > 8 && name[n - 7] == '.' && strcspn(name + n - 6, "._-") == 6 &&
	       strpbrk(name + n - 6, "ABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789");
}

/* Refuses the commit because of "rank 3: 'a'", or "'a'" for a file of the job itself. */
static int busy(struct commit *c, const struct item *it, const char *why)
{
	if (it->rank == RS_SHARED)
		return sc_fail(c->err, SC_E_BUSY, "'%s' %s", it->path, why);
	return sc_fail(c->err, SC_E_BUSY, "rank %u: '%s' %s", it->rank, it->path, why);
}

/* Tells whether the commit moves the position in the datasets: that alone is enough for a version. */
static bool moves_position(const struct commit *c)
{
	return c->head && (c->has_samples || (c->step >= 0 && c->head->version->data.nr));
}

#define STRANGERS_SHOWN 4

/* Refuses files of ranks that the topology does not have. */
static int refuse_strangers(struct commit *c)
{
	struct sc_buf files = {0};
	size_t nr = 0;
	int rc = 0;

	for (size_t i = 0; i < c->items.nr; i++) {
		const struct item *it = &c->items.at[i];

		if (it->rank != RS_SHARED && it->rank >= c->topo.ranks && nr++ < STRANGERS_SHOWN)
			sc_buf_printf(&files, "%srank %u: '%s'", files.bytes ? ", " : "", it->rank, it->path);
	}
	if (nr)
		rc = files.failed ? sc_nomem(c->err)
				  : sc_fail(c->err, SC_E_STATE, "%zu written file%s of ranks that topology '%s' does "
					    "not have (%s%s); its ranks are 0 to %u: move or remove %s", nr,
					    nr == 1 ? " is" : "s are", c->topo.text, files.text,
					    nr > STRANGERS_SHOWN ? ", ..." : "", c->topo.ranks - 1,
					    nr == 1 ? "it" : "them");
	sc_buf_done(&files);
	return rc;
}

struct strange_folder {
	struct commit *c;
	uint32_t rank;
	bool found;
};

static int on_row(void *arg, const struct meta_inode_row *row)
{
	struct strange_folder *x = arg;
	uint64_t rank = row->ino - x->c->job->root - 1;

	if (!row->nlink || row->ino <= x->c->job->root || rank >= SC_RANKS_MAX || rank < x->c->topo.ranks)
		return 0;
	x->rank = (uint32_t)rank;
	x->found = true;
	return 1;
}

/* Refuses the folder of a rank that the topology does not have: no version would show it. */
static int refuse_strange_folder(struct commit *c)
{
	struct strange_folder x = {.c = c};

	(void)pthread_rwlock_rdlock(&c->tree->names);
	(void)rs_overlay_each(c->tree->overlay, on_row, &x);
	(void)pthread_rwlock_unlock(&c->tree->names);
	return !x.found ? 0
			: sc_fail(c->err, SC_E_STATE, "'%u' is the folder of no rank of topology '%s', which has the "
				  "ranks 0 to %u: remove it", x.rank, c->topo.text, c->topo.ranks - 1);
}

/* Collects what was written.  Folders, links and attributes are in no item: the tree has them. */
static int on_change(void *arg, const struct rs_change_row *row)
{
	struct commit *c = arg;
	struct item it = {.gone = row->how == RS_CHANGE_GONE, .moved = row->how == RS_CHANGE_MOVED,
			  .rank = row->rank, .ino = row->ino, .blob = row->blob};
	int rc;

	it.was_plain = it.moved && it.blob;
	if (it.moved && it.rank == RS_SHARED)
		return 0; /* no file of the job has tensors */
	rc = rs_path_id(c->job, row->path, &it.path_id, c->err);
	if (rc == 0)
		rc = rs_path_text(c->s, it.path_id, &it.path, c->err);
	return rc < 0 ? rc : sc_vec_push(&c->items, it) < 0 ? sc_nomem(c->err) : 0;
}

/* Tells whether another commit of the same step has taken the files while this one waited, and has moved the position
 * as this one would. */
static bool is_done(const struct commit *c)
{
	const struct rs_version *head = c->head ? c->head->version : NULL;

	return head && head->nr != c->before.nr && c->step >= 0 && head->step == c->step &&
	       (!c->before.nr || c->before.step != c->step) && (!c->has_samples || c->samples == head->samples);
}

/* Answers a commit of nothing: it is done, too, by another one (1), or a sentence names the head and its age. */
static int answer_nothing(struct commit *c)
{
	const struct rs_version *head = c->head ? c->head->version : NULL;
	char step[40] = "";

	if (!head)
		return sc_fail(c->err, SC_E_COMMAND, "nothing was written since the job was made");
	if (is_done(c))
		return 1;
	if (head->step >= 0)
		(void)snprintf(step, sizeof(step), ", step %" PRId64 ",", head->step);
	if (head->nr != c->before.nr)
		return sc_fail(c->err, SC_E_COMMAND, "nothing is uncommitted any more: version %" PRIu64 "%s was made "
			       "while this command waited; .ctl/versions says what it has", head->nr, step);
	return sc_fail(c->err, SC_E_COMMAND, "nothing was written since version %" PRIu64 "%s was made, %" PRId64
		       " s ago", head->nr, step, (sc_now_wall_ns() - head->made_ns) / 1000000000);
}

static int collect(struct commit *c)
{
	struct rs_dirt dirt;
	int rc = rs_tree_dirt(c->tree, &dirt, NULL, c->err);

	if (rc == 0 && !dirt.nr && (!moves_position(c) || is_done(c)))
		return answer_nothing(c);
	if (rc == 0)
		rc = rs_tree_changes(c->tree, on_change, c, c->err);
	for (size_t i = 0; i < c->items.nr && rc == 0; i++) {
		const struct item *it = &c->items.at[i];

		if (!it->gone && is_temporary(it->path))
			rc = busy(
			    c, it,
			    "looks like a temporary file that a killed writer left; remove it or wait for the writer");
	}
	if (rc == 0)
		rc = refuse_strangers(c);
	if (rc == 0)
		rc = refuse_strange_folder(c);
	return rc < 0 ? rc : rs_commit_logs(c);
}

/* --- 3 verify, 4 sync --- */

static int append_report(struct rs_set *set, char *more, struct sc_err *err)
{
	struct sc_buf buf = {0};

	sc_buf_printf(&buf, "%s%s", set->report, more);
	sc_sys.release(more);
	if (buf.failed)
		return sc_nomem(err);
	sc_sys.release(set->report);
	set->report = buf.text;
	return 0;
}

#define STAND_INS_SHOWN 4

/* Adds to the error that copies differ which of the copies no rank wrote itself, and what to do. */
static int advise_copies(struct commit *c, const struct rs_set *set, int rc)
{
	struct sc_buf text = {0};
	uint32_t nr = 0;

	for (size_t i = 0; i < c->items.nr && nr <= STAND_INS_SHOWN; i++) {
		const struct item *it = &c->items.at[i];

		if (it->how == ITEM_WROTE || !it->logical || strcmp(it->logical, set->file) != 0)
			continue;
		if (nr++ == STAND_INS_SHOWN)
			sc_buf_printf(&text, ", ...");
		else if (it->how == ITEM_LIKE)
			sc_buf_printf(&text, "%s rank %u has the file of rank %u", text.bytes ? "," : "", it->rank,
				      it->like);
		else
			sc_buf_printf(&text, "%s rank %u keeps its file", text.bytes ? "," : "", it->rank);
	}
	if (!text.failed) {
		const struct sc_err why = *c->err;

		rc = sc_fail(c->err, rc, "%s%s%s%s%s; write it with equal copies, or a rule by which each rank has a "
			     "part of its own", why.msg, nr ? "; of '" : "", nr ? set->file : "", nr ? "'," : "",
			     nr ? text.text : "");
	}
	sc_buf_done(&text);
	return rc;
}

static int verify(struct commit *c)
{
	bool now = rs_config_of(c->job).verify == RS_VERIFY_COMMIT;
	char name[SC_NAME_BYTES_MAX + 1];
	int rc = 0;

	rs_step(RS_STEP_COMMIT_VERIFY);
	for (size_t i = 0; i < c->version->nr_sets && rc == 0; i++) {
		struct rs_set *set = c->version->sets[i];
		char *report = NULL;

		if (set->id)
			continue;
		rc = rs_verify_padding(c->s, set, &report, c->err);
		if (rc == 0 && *report)
			sc_log(SC_LOG_WARN, "job '%s': %.*s, continuing", rs_job_name(c->job, name, sizeof(name)),
			       (int)strcspn(report, "\n"), report);
		if (rc == 0)
			rc = append_report(set, report, c->err);
		report = NULL;
		if (rc == 0 && now)
			rc = rs_verify_set(c->s, set, NULL, NULL, &set->digests, &report, c->err);
		if (rc == SC_E_COPIES)
			rc = advise_copies(c, set, rc);
		sc_sys.release(report);
		if (rc == 0 && now)
			set->verified = META_EQUAL;
	}
	return rc;
}

/* Tells whether the blob of an item is to be sealed and flushed. */
static bool takes_bytes(const struct item *it)
{
	return !it->gone && !it->away && (it->made || (it->how == ITEM_WROTE && !it->moved));
}

static int sync_blobs(struct commit *c)
{
	struct meta_store_dirs dirs = {{0}};
	struct rs_flush flush = {0};
	int rc = 0;

	rs_step(RS_STEP_COMMIT_SYNC);
	if (!rs_job_syncs(c->job))
		return 0;
	for (size_t i = 0; rc == 0 && i < c->items.nr; i++) {
		const struct item *it = &c->items.at[i];
		int fd;

		if (!takes_bytes(it))
			continue;
		rc = meta_store_open_work(&c->s->store, it->blob, O_RDWR, &fd, c->err);
		if (rc == 0)
			rc = rs_flush_add(&flush, fd, (int)it->rank, it->path, c->err);
		meta_store_note_dir(&dirs, it->blob);
	}
	if (rc == 0)
		rc = rs_flush_add_dirs(&flush, &c->s->store, &dirs, c->err);
	return rs_flush_end(&flush, rc, c->err);
}

/* --- 5 transact --- */

static int seal_items(struct commit *c)
{
	int rc = 0;

	for (size_t i = 0; i < c->items.nr && rc == 0; i++) {
		const struct item *it = &c->items.at[i];
		struct rs_seal seal = {it->blob, it->bytes};

		if (takes_bytes(it))
			rc = sc_vec_push(&c->seals, seal) < 0 ? sc_nomem(c->err) : 0;
	}
	c->a.seals = c->seals.at;
	c->a.nr_seals = c->seals.nr;
	c->a.rows = &c->rows;
	c->a.leaves = &c->leaves;
	return rc;
}

/* Takes over the head's datasets, at the position that the commit says. */
static int take_over_data(struct commit *c)
{
	const struct rs_version *head = c->head ? c->head->version : NULL;
	struct rs_version *v = c->version;
	int rc = 0;

	for (size_t i = 0; rc == 0 && head && i < head->data.nr; i++) {
		const struct rs_use *use = &head->data.at[i];

		rc = rs_version_use(v, use->corpus, use->from_epoch, use->from_samples, c->err);
	}
	v->samples = c->has_samples ? c->samples : head ? head->samples : 0;
	if (rc == 0 && !c->has_samples && c->step >= 0 && v->data.nr)
		rc = rs_data_samples(v, head, c->step, &v->samples, c->err);
	if (rc == 0)
		rs_data_prune(v);
	return rc;
}

/* Makes the new version, of the files that were written and of those that stay, as a view: c->a.next. */
static int make_next(struct commit *c)
{
	struct rs_version *v;
	int rc = rs_commit_read(c);

	if (rc == 0)
		rc = rs_commit_folders(c);
	v = c->version = c->a.draft = rs_version_new();
	if (rc == 0 && !v)
		rc = sc_nomem(c->err);
	if (rc < 0)
		return rc;
	v->layout_id = c->layout_id;
	v->layout = c->layout;
	v->step = c->step;
	v->made_ns = sc_now_wall_ns();
	v->note = sc_strdup(c->note);
	rc = meta_topology_copy(&c->topo, &v->topo) < 0 || !v->note ? sc_nomem(c->err) : 0;
	if (rc == 0)
		rc = take_over_data(c);
	if (rc == 0)
		rc = rs_commit_sets(c);
	if (rc == 0 && !rs_config_of(c->job).accept_suspicious)
		rc = rs_commit_facts(c);
	if (rc == 0)
		rc = rs_commit_rows(c);
	if (rc == 0)
		rc = rs_version_finish(v, &c->job->whole, c->err);
	if (rc == 0) {
		phase_ends(c, &read_phase);
		rc = verify(c);
	}
	if (rc == 0) {
		phase_ends(c, &verify_phase);
		rc = sync_blobs(c);
	}
	if (rc < 0)
		return rc;
	phase_ends(c, &sync_phase);
	c->a.draft = NULL;
	rc = rs_view_new(c->job, v, 0, &c->topo, &c->a.next, c->err);
	if (rc == 0)
		rc = rs_view_check_written(c->a.next, &c->state, c->err);
	return rc < 0 ? rc : seal_items(c);
}

/* Commits the working tree while the gate is closed, and opens the gate. */
static int commit_tree(struct commit *c)
{
	int rc = presentation(c);

	c->tree = rs_advance_tree(&c->a);
	if (rc == 0)
		rc = collect(c);
	if (rc == 0)
		rc = make_next(c);
	if (rc) {
		rs_head_abort(&c->a);
		return rc < 0 ? rc : 0;
	}
	rc = rs_head_publish(&c->a, c->err);
	if (rc == 0) {
		phase_ends(c, &transact_phase);
		sc_metric_add(&commits_made, 1);
	}
	return rc;
}

static void release_items(struct commit *c, int rc)
{
	bool garbage = false;

	for (size_t i = 0; i < c->items.nr; i++) {
		const struct item *it = &c->items.at[i];

		if (it->how != ITEM_LIKE) {
			rs_blob_put(c->s->blobs, it->parsed);
			if (it->remote)
				rs_place_close(&it->place, it->remote);
			if (it->own_found)
				rs_found_done(it->own_found);
			sc_sys.release(it->own_found);
		}
		if (it->pinned)
			rs_unpin(c->s, it->blob);
		garbage |= it->pinned && rc < 0;
	}
	/* what stays in the working tree may change: a mapping of it must not be found again */
	for (size_t i = 0; rc < 0 && i < c->items.nr; i++)
		rs_blob_forget(c->s->blobs, c->items.at[i].blob);
	if (garbage)
		rs_worker_call(c->s, true);
}

/* *ret_again: what the version was made of changed meanwhile, and it may be made anew. */
static int commit_once(const struct rs_caller *who, struct rs_job *job, const char *text, const struct rs_view *before,
		       bool *ret_again, struct sc_err *err)
{
	struct commit c = {.a = {.job = job, .change = RS_BY_COMMIT, .token = who->token}, .s = who->service,
			   .job = job, .err = err, .step = -1, .note = "", .phase_ns = sc_now_ns()};
	char *words = sc_arena_copy(&c.arena, text, strlen(text));
	int rc = words ? parse_words(&c, words) : sc_nomem(err);

	if (before) {
		c.before.nr = before->version->nr;
		c.before.step = before->version->step;
	}
	if (rc == 0)
		rc = rs_head_begin(&c.a, err);
	if (rc == 0) {
		phase_ends(&c, &quiet_phase);
		rc = commit_tree(&c);
	}
	release_items(&c, rc);
	sc_vec_done(&c.items);
	sc_vec_done(&c.written);
	sc_vec_done(&c.seals);
	meta_changes_done(&c.rows);
	sc_vec_done(&c.leaves);
	meta_state_done(&c.state);
	meta_topology_done(&c.topo);
	sc_arena_done(&c.arena);
	if (rc == 0)
		rs_worker_call(c.s, true);
	*ret_again = c.a.again;
	return rc;
}

int rs_job_commit(const struct rs_caller *who, struct rs_job *job, const char *text, struct sc_err *err)
{
	int rc = rs_head_current(job, err);
	struct rs_view *before = rc == 0 ? rs_job_head(job) : NULL;
	bool again = rc == 0;

	for (int i = 0; again && i < TRIES; i++) {
		rc = commit_once(who, job, text, before, &again, err);
		again &= rc < 0;
	}
	rs_view_unref(who->service, before);
	return rc;
}
