/* SPDX-License-Identifier: Apache-2.0 */
/*
 * fsck checks everything that a store promises, and reads every byte.  It mends a damaged blob if another blob had the
 * same contents (replicas that ranks wrote one by one).
 */
#include "reshard/repair/repair_i.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <string.h>
#include <sys/stat.h>

#include "reshard/upkeep/background/upkeep_i.h"

struct found {
	uint64_t id, bytes;
	uint8_t hash[16];
	bool has_hash, sealed, away, garbage, damaged, bad, mended;
};

struct fsck {
	struct rs_service *s;
	bool repair;
	uint64_t bad;
	struct sc_buf *report;
	struct sc_err *err;
	struct {
		size_t nr, room;
		struct found *at;	/* by id */
	} blobs;
	struct {
		size_t nr, room;
		uint64_t *at;
	} orphans;
	uint64_t bytes;
	struct rs_repair_progress progress;
};

/* A line of the report: a word, a tab, and text whose names are escaped. */
#define SAY(f, word, ...)                                                                          \
	do {                                                                                       \
		sc_buf_printf((f)->report, "%s\t", word);                                          \
		sc_buf_line((f)->report, __VA_ARGS__);                                             \
	} while (0)

static int on_complaint(void *arg, uint64_t id, const char *text, const char *more)
{
	struct fsck *f = arg;

	(void)id;
	(void)more;
	f->bad++;
	SAY(f, "BAD", "catalog: %s", text);
	return 0;
}

/* --- blobs --- */

static int on_blob(void *arg, const struct meta_blob_row *row)
{
	struct fsck *f = arg;
	struct found b = {.id = row->id, .bytes = row->bytes, .sealed = !row->work, .has_hash = row->hash != NULL,
			  .away = row->away, .garbage = row->garbage, .damaged = row->damaged};

	if (row->hash)
		memcpy(b.hash, row->hash, sizeof(b.hash));
	return sc_vec_push(&f->blobs, b) < 0 ? sc_nomem(f->err) : 0;
}

static struct found *find(struct fsck *f, uint64_t id)
{
	const size_t at = sc_first(f->blobs.nr, i, f->blobs.at[i].id >= id);

	return at < f->blobs.nr && f->blobs.at[at].id == id ? &f->blobs.at[at] : NULL;
}

static void complain(struct fsck *f, struct found *b, const char *what)
{
	b->bad = true;
	f->bad++;
	sc_buf_printf(f->report, "BAD\tblob %" PRIu64 " %s\n", b->id, what);
}

static int on_file(void *arg, uint64_t id)
{
	struct fsck *f = arg;
	struct found *b = find(f, id);

	/* of one that is away: a copy that was not all here when the daemon ended, and goes with its next start */
	return b && !b->away ? 0 : sc_vec_push(&f->orphans, id) < 0 ? sc_nomem(f->err) : 0;
}

/* Ends the check with an error that says nothing about the blob. */
static int lost(struct fsck *f, struct found *b, const struct sc_err *why, const char *what)
{
	if (!rs_is_damage(why)) {
		*f->err = *why;
		return why->code;
	}
	complain(f, b, what);
	return 0;
}

static int check_blob(struct fsck *f, struct found *b)
{
	sc_cleanup(sc_closep) int fd = -1;
	struct sc_err err;
	struct stat st;
	uint8_t hash[16];
	uint64_t bytes;

	if (b->garbage || b->away)
		return 0; /* the next start removes it; another node checks it */
	if (meta_store_open_damaged(&f->s->store, b->id, O_RDONLY, &fd, &err) < 0) {
		const char *other = meta_store_not_a_file(&f->s->store, b->id);

		/* of a working tree: made and not yet written, when the daemon ended */
		if (err.errnum == ENOENT && !b->sealed)
			return 0;
		return lost(f, b, &err, err.errnum == ENOENT ? "is missing" : other ? other : "cannot be opened");
	}
	if (!b->sealed)
		return 0;
	if (sc_sys.fstat(fd, &st) < 0)
		return sc_fail_sys(f->err, errno, "blob %" PRIu64, b->id);
	f->bytes += (uint64_t)st.st_size;
	rs_repair_next(&f->progress, b->bytes);
	if ((uint64_t)st.st_size != b->bytes) {
		complain(f, b, "has another size than the catalog says");
		return 0;
	}
	if (rs_hash_blob(&f->s->store, b->id, rs_repair_bytes, &f->progress, hash, &bytes, &err) < 0)
		return lost(f, b, &err, "cannot be read");
	if (b->has_hash && memcmp(hash, b->hash, 16) != 0)
		complain(f, b, "has other bytes than when it was stored");
	return 0;
}

/* Takes the mark off a blob that is intact: somebody has restored it, or its disk failed only for a while. */
static int unmark(struct fsck *f, const struct found *b)
{
	sc_buf_printf(f->report, "intact\tblob %" PRIu64 ", which was marked as damaged; the mark is removed\n", b->id);
	return meta_blob_checked(f->s->catalog, b->id, b->has_hash ? b->hash : NULL, 0, false, f->err);
}

static int mend(struct fsck *f, struct found *b)
{
	char from[RS_MENDED_TEXT] = "";
	int rc = b->has_hash ? rs_blob_mend(f->s, b->id, b->bytes, b->hash, from, f->err) : 0;

	if (rc < 0 || !*from)
		return rc;
	sc_buf_printf(f->report, "repaired\tblob %" PRIu64 " from %s, which has the same contents\n", b->id, from);
	b->bad = false;
	b->mended = true;
	f->bad--;
	return 0;
}

struct named {
	struct fsck *f;
	const struct found *b;
};

static int on_use(void *arg, const struct meta_blob_use *use)
{
	const struct named *n = arg;

	struct sc_buf file = {0};

	rs_use_text(use, &file);
	SAY(n->f, n->b->mended ? "was" : "BAD", "job '%s' version %" PRIu64 " topology '%s' %s is blob %" PRIu64,
	    use->job, use->version, use->topology, file.text ? file.text : "", n->b->id);
	n->f->report->failed |= file.failed;
	sc_buf_done(&file);
	return 0;
}

/* Names the files, with their ranks, that a damaged blob is. */
static int name_damage(struct fsck *f, const struct found *b)
{
	struct named n = {f, b};

	return b->bad || b->mended ? meta_blob_uses(f->s->catalog, b->id, on_use, &n, f->err) : 0;
}

static int check_blobs(struct fsck *f)
{
	int rc = 0;

	for (size_t i = 0; rc == 0 && i < f->blobs.nr; i++)
		rc = check_blob(f, &f->blobs.at[i]);
	for (size_t i = 0; f->repair && rc == 0 && i < f->blobs.nr; i++)
		if (f->blobs.at[i].bad)
			rc = mend(f, &f->blobs.at[i]);
	for (size_t i = 0; rc == 0 && i < f->blobs.nr; i++) {
		rc = name_damage(f, &f->blobs.at[i]);
		if (rc == 0 && f->blobs.at[i].damaged && !f->blobs.at[i].bad && !f->blobs.at[i].mended)
			rc = unmark(f, &f->blobs.at[i]);
	}
	if (rc == 0)
		rc = meta_store_each(&f->s->store, on_file, f, f->err);
	for (size_t i = 0; rc == 0 && i < f->orphans.nr; i++) {
		if (f->repair)
			rc = meta_store_set_aside(&f->s->store, f->orphans.at[i], f->err);
		else
			f->bad++;
		sc_buf_printf(f->report, "%s\tfile of blob %" PRIu64 ", which the catalog does not have%s\n",
			      f->repair ? "moved" : "BAD", f->orphans.at[i], f->repair ? ", to lost+found" : "");
	}
	return rc;
}

/* --- versions --- */

static int check_set(struct fsck *f, const struct rs_job *job, const struct rs_version *v, struct rs_set *set)
{
	uint8_t (*digests)[16] = NULL;
	char *text = NULL;
	struct sc_err err = {0};
	int rc = rs_set_is_here(f->s, set, f->err);

	if (rc <= 0)
		return rc; /* other nodes check what they have */
	rs_repair_next(&f->progress, rs_set_bytes(set));
	rc = rs_verify_set(f->s, set, rs_repair_bytes, &f->progress, &digests, &text, &err);
	if (rc == SC_E_NO_MEMORY)
		return sc_nomem(f->err);
	/* that copies differ is known since its commit: no news */
	if (rc < 0 && !(rc == SC_E_COPIES && set->verified == META_DIFFER && !set->digests)) {
		f->bad++;
		SAY(f, "BAD", "job '%s' version %" PRIu64 " '%s': %s", job->name, v->nr, set->file, err.msg);
	}
	for (uint32_t t = 0; rc == 0 && set->digests && t < set->state.nr; t++)
		if (memcmp(set->digests[t], digests[t], 16) != 0) {
			f->bad++;
			SAY(f, "BAD", "job '%s' version %" PRIu64 ": tensor '%s' is not what was committed", job->name,
			    v->nr, set->state.tensors[t].key);
		}
	sc_sys.release(digests);
	sc_sys.release(text);
	return 0;
}

struct versions {
	struct {
		size_t nr, room;
		uint64_t *at;
	} nrs;
	struct sc_err *err;
};

static int on_version(void *arg, uint64_t nr)
{
	struct versions *v = arg;

	return sc_vec_push(&v->nrs, nr) < 0 ? sc_nomem(v->err) : 0;
}

/* Counts the bytes of the sets of all versions.  What cannot be read is reported later. */
static void count_versions(struct fsck *f, struct rs_job *job)
{
	struct versions v = {.err = f->err};
	struct rs_view *view;
	struct sc_err ignored;

	(void)rs_versions_each(f->s, job, on_version, &v, &ignored);
	for (size_t i = 0; i < v.nrs.nr; i++)
		if (rs_view_version(f->s, job, v.nrs.at[i], &view, &ignored) == 0) {
			f->progress.total += rs_version_bytes(view->version);
			rs_view_unref(f->s, view);
		}
	sc_vec_done(&v.nrs);
}

/* Counts what is to be read, if somebody is told how far the check is. */
static void count(struct fsck *f)
{
	struct rs_job *job;

	if (!f->s->events.progress)
		return;
	for (size_t i = 0; i < f->blobs.nr; i++)
		if (f->blobs.at[i].sealed && !f->blobs.at[i].garbage && !f->blobs.at[i].away)
			f->progress.total += f->blobs.at[i].bytes;
	for (size_t i = 0; (job = rs_job_at(f->s, i)); i++)
		if (!rs_job_is_removed(job))
			count_versions(f, job);
}

/* --- the head's tree --- */

struct tree_walk {
	struct fsck *f;
	const struct rs_job *job;
	struct rs_below *below;
	struct rs_lower lower;
	struct sc_map seen;
	struct {
		size_t nr, room;
		uint64_t *at;
	} folders;
	struct sc_arena arena;
};

/* Checks that a regular file is in a set, or has a blob of its own. */
static int check_file(struct tree_walk *w, const struct meta_inode_row *row, struct meta_bytes name)
{
	const char *path;
	uint64_t path_id;
	uint32_t rank;
	int has = rs_below_file(w->below, row->ino, &rank, &path_id, &path, w->f->err);

	if (has == 0 && row->blob)
		has = meta_blob_known(w->f->s->catalog, row->blob, w->f->err);
	if (has == 0) {
		w->f->bad++;
		SAY(w->f, "BAD", "job '%s': file '%.*s' (number %" PRIu64 ") is in no set and has no blob",
		    w->job->name, (int)name.nr, name.at, row->ino);
	}
	return has < 0 ? has : 0;
}

static int on_child(void *arg, struct meta_bytes name, uint64_t ino)
{
	struct tree_walk *w = arg;
	struct meta_inode_row row;
	const char *key;
	int rc;

	if (sc_map_get(&w->seen, (const char *)&ino, sizeof(ino)))
		return 0;
	key = sc_arena_copy(&w->arena, (const char *)&ino, sizeof(ino));
	if (!key || sc_map_put(&w->seen, key, sizeof(ino), w) < 0)
		return sc_nomem(w->f->err);
	rc = w->lower.inode(w->lower.arg, ino, &w->arena, &row, w->f->err);
	if (rc == 0) {
		w->f->bad++;
		SAY(w->f, "BAD", "job '%s': name '%.*s' has number %" PRIu64 ", which is nothing", w->job->name,
		    (int)name.nr, name.at, ino);
	}
	if (rc <= 0)
		return rc;
	if (S_ISDIR(row.mode))
		return sc_vec_push(&w->folders, ino) < 0 ? sc_nomem(w->f->err) : 0;
	return S_ISREG(row.mode) ? check_file(w, &row, name) : 0;
}

static int check_tree(struct fsck *f, struct rs_job *job)
{
	struct rs_view *head = rs_job_head(job);
	struct tree_walk w = {.f = f, .job = job};
	int rc = head ? rs_view_below(head, &w.below, f->err) : 0;

	if (rc == 0 && head) {
		w.lower = rs_below_lower(w.below);
		rc = sc_vec_push(&w.folders, job->root) < 0 ? sc_nomem(f->err) : 0;
	}
	while (rc == 0 && w.folders.nr)
		rc = w.lower.children(w.lower.arg, w.folders.at[--w.folders.nr], on_child, &w, f->err);
	sc_vec_done(&w.folders);
	sc_map_done(&w.seen);
	sc_arena_done(&w.arena);
	rs_view_unref(f->s, head);
	return rc;
}

static int check_job(struct fsck *f, struct rs_job *job)
{
	struct versions v = {.err = f->err};
	int rc = rs_versions_each(f->s, job, on_version, &v, f->err);

	for (size_t i = 0; rc == 0 && i < v.nrs.nr; i++) {
		struct rs_view *view = NULL;
		struct sc_err err;

		if (rs_view_version(f->s, job, v.nrs.at[i], &view, &err) < 0) {
			f->bad++;
			SAY(f, "BAD", "job '%s' version %" PRIu64 ": %s", job->name, v.nrs.at[i], err.msg);
			continue;
		}
		for (size_t k = 0; rc == 0 && k < view->version->nr_sets; k++)
			rc = check_set(f, job, view->version, view->version->sets[k]);
		rs_view_unref(f->s, view);
	}
	if (rc == 0)
		rc = check_tree(f, job);
	SAY(f, "job", "'%s': %zu versions", job->name, v.nrs.nr);
	sc_vec_done(&v.nrs);
	return rc;
}

/* Reports a damaged log.  Its changes are lost: nothing can mend that, and it harms nothing else. */
static void tell_of_log(struct fsck *f)
{
	struct meta_tail_damage damage;
	char name[META_ASIDE_BYTES];

	if (rs_log_is_damaged(f->s, &damage))
		sc_buf_printf(f->report, "note\tlog of working trees: the record at %" PRIu64 " is damaged; the next "
			      "mount drops it and %" PRIu64 " whole records behind it, and keeps the log in "
			      "lost+found\n",
			      damage.at, damage.behind);
	for (unsigned nr = 0; rs_log_next_kept(f->s, &nr, name);)
		sc_buf_printf(f->report, "note\tlost+found/%s is a damaged log, or was newer than the catalog: changes "
			      "of names and attributes in it were dropped, and their files are there, too\n", name);
}

int rs_fsck(struct rs_service *s, bool repair, uint64_t *ret_bad, struct sc_buf *report, struct sc_err *err)
{
	struct fsck f = {.s = s, .repair = repair, .report = report, .err = err, .progress = {&s->events}};
	struct rs_job *job;
	int rc = meta_catalog_check(s->catalog, on_complaint, &f, err);

	if (rc == 0)
		rc = meta_blob_each(s->catalog, on_blob, &f, err);
	if (rc == 0)
		count(&f);
	if (rc == 0)
		rc = check_blobs(&f);
	for (size_t i = 0; rc == 0 && (job = rs_job_at(s, i)); i++)
		if (!rs_job_is_removed(job))
			rc = check_job(&f, job);
	tell_of_log(&f);
	sc_buf_printf(report, "%s\t%zu blobs, %" PRIu64 " sealed bytes, %" PRIu64 " problems\n",
		      f.bad ? "BAD" : "clean", f.blobs.nr, f.bytes, f.bad);
	*ret_bad = f.bad;
	sc_vec_done(&f.blobs);
	sc_vec_done(&f.orphans);
	return rc < 0 ? rc : report->failed ? sc_nomem(err) : 0;
}
