/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Step 2 of commit: makes logical tensors of the files that ranks wrote, or refuses them.  Only reads.
 */
#include "reshard/command/changed/items_i.h"

#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

/* Takes owner, mode and times of a file that another node wrote from its row. */
static int stat_away(struct commit *c, struct item *it, const struct rs_away_file *file)
{
	struct sc_arena texts = {0};
	struct meta_inode_row row = {0};
	int rc;

	(void)pthread_rwlock_rdlock(&c->tree->names);
	rc = rs_overlay_inode(c->tree->overlay, it->ino, &texts, &row, c->err);
	(void)pthread_rwlock_unlock(&c->tree->names);
	sc_arena_done(&texts);
	it->own = (struct rs_owner){row.uid, row.gid, row.mode & 07777};
	it->atime_ns = row.atime_ns;
	it->mtime_ns = row.mtime_ns;
	it->ctime_ns = row.ctime_ns;
	it->bytes = file->bytes;
	return rc < 0 ? rc : rs_commit_reach(c, it);
}

/* Takes owner, mode and times of a written file from its blob. */
static int stat_written(struct commit *c, struct item *it)
{
	const struct rs_away_file *file = c->a.joined ? rs_away_find(&c->a.joined->aways, it->blob) : NULL;
	sc_cleanup(sc_closep) int fd = -1;
	int rc;

	if (file)
		return stat_away(c, it, file);
	if (it->copied)
		return 0;
	rc = meta_store_open_work(&c->s->store, it->blob, O_RDONLY, &fd, c->err);
	if (rc < 0)
		return rc;
	return rs_commit_stat(c, it, fd);
}

/* Takes owner, mode and times of a moved file from its row. */
static int stat_moved(struct commit *c, struct item *it)
{
	struct meta_inode_row row;
	int rc;

	(void)pthread_rwlock_rdlock(&c->tree->names);
	rc = rs_overlay_inode(c->tree->overlay, it->ino, &c->arena, &row, c->err);
	(void)pthread_rwlock_unlock(&c->tree->names);
	if (rc == 0)
		return sc_fail(c->err, SC_E_NOT_FOUND, "rank %u: '%s' is gone", it->rank, it->path);
	it->own = (struct rs_owner){row.uid, row.gid, row.mode & 07777};
	it->atime_ns = row.atime_ns;
	it->mtime_ns = row.mtime_ns;
	it->nlink = row.nlink;
	if (rc > 0)
		rc = rs_commit_find_moved(c, it);
	return rc < 0 ? rc : rs_commit_reach(c, it);
}

static int read_item(struct commit *c, struct item *it)
{
	bool opaque = true;
	int rc;

	it->format = &rs_format_plain;
	rc = it->moved ? stat_moved(c, it) : stat_written(c, it);
	if (rc == 0)
		rc = rs_commit_find_format(c, it, &opaque);
	it->stays = rc == 0 && it->was_plain && opaque;
	if (rc < 0 || it->stays)
		return rc;
	it->owner = it->own;
	rc = rs_owner_limit(c->tree, it->rank, it->path, &it->owner, c->err);
	if (rc < 0)
		return rc;
	if (!opaque && strchr(it->path, ':'))
		return sc_fail(c->err, SC_E_STATE, "rank %u: '%s': the name of a file of tensors has no colon, which "
			       "is between it and a tensor's name; rename it, or keep it as it is by a line 'plain' "
			       "in the layout", it->rank, it->path);
	if (!opaque) {
		rc = rs_commit_parse(c, it);
		if (rc < 0)
			return sc_wrap(c->err, rc, "rank %u: '%s'", it->rank, it->path);
		it->nr_rows = it->found->nr;
	}
	/* a file of a format that has no tensors is in no logical file: it is kept as it is */
	return it->nr_rows || it->away ? 0 : rs_hash_blob(&c->s->store, it->blob, NULL, NULL, it->hash, &it->bytes,
							  c->err);
}

static int add_written(struct commit *c, struct item *it)
{
	it->row = c->written.nr;
	for (uint32_t i = 0; i < it->nr_rows; i++) {
		const struct rs_found_tensor *t = &it->found->tensors[i];
		struct meta_written w = {.rank = it->rank, .file = it->path, .name = t->name, .dtype = t->dtype,
					 .shape = t->shape};

		if (sc_vec_push(&c->written, w) < 0)
			return sc_nomem(c->err);
	}
	return 0;
}

static int by_file(const void *a, const void *b)
{
	return strcmp(((const struct meta_stored *)a)->file, ((const struct meta_stored *)b)->file);
}

/* Adds the tensors that the head has in a kept file.  `list` has the tensors of all files of the rank, by file; *at is
 * in front of those of this file. */
static int add_kept(struct commit *c, struct item *it, const struct meta_stored_list *list, size_t *at)
{
	const struct meta_state *state = c->head->model->state;

	it->row = c->written.nr;
	while (*at < list->nr && strcmp(list->at[*at].file, it->path) < 0)
		(*at)++;
	for (; *at < list->nr && strcmp(list->at[*at].file, it->path) == 0; (*at)++) {
		const struct meta_stored *s = &list->at[*at];
		const struct meta_tensor *t = &state->tensors[s->entry->tensor];

		if (s->part || meta_layout_is_object(c->layout, c->topo.pp > 1, s->file, s->name))
			continue;
		struct meta_written w = {.rank = it->rank, .file = it->path, .name = s->name, .dtype = t->dtype,
					 .shape = s->piece.shape};

		if (sc_vec_push(&c->written, w) < 0)
			return sc_nomem(c->err);
		it->nr_rows++;
	}
	return 0;
}

/* Adds the tensors of one rank's files: of the items from *at on. */
static int add_rank(struct commit *c, size_t *at)
{
	const uint32_t rank = c->items.at[*at].rank;
	struct meta_stored_list list = {0};
	size_t kept = 0;
	int rc = 0;

	for (size_t i = *at; i < c->items.nr && c->items.at[i].rank == rank; i++)
		kept += c->items.at[i].how == ITEM_KEPT;
	if (kept)
		rc = meta_view_rank(c->head->model, rank, NULL, &c->arena, &list, c->err);
	if (list.nr)
		qsort(list.at, list.nr, sizeof(*list.at), by_file);
	for (kept = 0; *at < c->items.nr && c->items.at[*at].rank == rank; (*at)++) {
		struct item *it = &c->items.at[*at];

		if (it->how == ITEM_KEPT && meta_file_is_hidden(it->path))
			continue; /* what the head has of its rows is known */
		if (rc == 0 && !it->gone)
			rc = it->how == ITEM_KEPT ? add_kept(c, it, &list, &kept) : add_written(c, it);
	}
	sc_vec_done(&list);
	return rc;
}

static int add_rows(struct commit *c)
{
	int rc = 0;

	c->written.nr = 0;
	for (size_t i = 0; rc == 0 && i < c->items.nr;)
		rc = add_rank(c, &i);
	return rc;
}

/* Notes the logical file of each item.  Only its tensors tell: a number in the name of a file may be one of its
 * pipeline stage. */
static int name_items(struct commit *c)
{
	for (size_t i = 0; i < c->items.nr; i++) {
		struct item *it = &c->items.at[i];

		for (uint32_t k = 0; k < it->nr_rows; k++) {
			const char *file = c->state.tensors[c->written.at[it->row + k].tensor].file;

			if (k && strcmp(it->logical, file) != 0)
				return sc_fail(c->err, SC_E_STATE,
					       "rank %u: '%s' would belong to two logical files, '%s' and '%s'; give "
					       "the rules of "
					       "its tensors the same file pattern",
					       it->rank, it->path, it->logical, file);
			it->logical = file;
		}
	}
	return 0;
}

/* Maps a rank's files of tensors to their logical files, in the head. */
struct committed {
	uint32_t rank;
	bool known;		/* those of `rank` are in the map */
	struct sc_map files;	/* path -> logical file */
	struct sc_arena arena;
};

static int on_committed(void *arg, const char *file, const char *logical)
{
	struct committed *k = arg;
	const char *copy = sc_arena_copy(&k->arena, file, strlen(file));
	char *of = sc_arena_copy(&k->arena, logical, strlen(logical));

	return !copy || !of || sc_map_put(&k->files, copy, strlen(copy), of) < 0 ? SC_E_NO_MEMORY : 0;
}

/* Notes in an item without tensors whether the head's file had tensors, and of which logical file they were. */
static int note_lost(struct commit *c, struct committed *k, struct item *it)
{
	const char *logical;

	if (!c->head || it->rank >= c->head->model->topo->ranks || it->nr_rows)
		return 0;
	if (!k->known || k->rank != it->rank) {
		sc_map_done(&k->files);
		k->files = (struct sc_map){0};
		k->rank = it->rank;
		k->known = true;
		if (meta_view_files(c->head->model, it->rank, on_committed, k) < 0)
			return sc_nomem(c->err);
	}
	logical = sc_map_get(&k->files, it->path, strlen(it->path));
	it->lost = logical != NULL;
	it->logical = logical ? sc_arena_copy(&c->arena, logical, strlen(logical)) : NULL;
	return it->lost && !it->logical ? sc_nomem(c->err) : 0;
}

/* Notes the step of a committed file of tensors that was only opened to be written, or moved: it is still of the step
 * of its commit.  A file that was only opened still has its time. */
static int note_step(struct commit *c, struct item *it)
{
	struct rs_look look = {0};
	struct rs_below *below;
	uint64_t path_id;
	const char *path;
	uint32_t rank;
	int rc;

	it->step = META_STEP_UNKNOWN;
	if (!c->a.base || !it->nr_rows)
		return 0;
	rc = rs_view_below(c->a.base, &below, c->err);
	if (rc == 0)
		rc = rs_below_file(below, it->ino, &rank, &path_id, &path, c->err);
	if (rc <= 0)
		return rc;
	it->step = rs_commit_step_below(c, rank, path);
	rc = it->moved ? 0 : rs_view_look(c->a.base, rank, path, &look, c->err);
	it->opened = look.kind != RS_NONE && look.mtime_ns == it->mtime_ns && look.bytes == it->bytes;
	return rc < 0 ? rc : 0;
}

static bool is_written(const struct commit *c, const char *logical)
{
	for (size_t i = 0; i < c->items.nr; i++)
		if (c->items.at[i].how == ITEM_WROTE && !c->items.at[i].lost &&
		    c->items.at[i].logical &&
		    strcmp(c->items.at[i].logical, logical) == 0)
			return true;
	return false;
}

/* Checks the removal of a logical file of tensors: of each class of replicas one must have removed it; *ret_removed is
 * set then. */
static int check_removed(struct commit *c, const char *logical, bool *ret_removed, struct sc_err *err)
{
	uint32_t removed = 0;

	*ret_removed = false;
	for (size_t i = 0; i < c->items.nr; i++) {
		const struct item *it = &c->items.at[i];

		removed += it->lost && strcmp(it->logical, logical) == 0;
	}
	if (!removed)
		return 0;
	for (uint32_t rank = 0; rank < c->topo.ranks; rank++) {
		struct meta_stored_list list = {0};
		struct sc_arena arena = {0};
		int rc = meta_view_rank(c->head->model, rank, NULL, &arena, &list, err);
		const char *left = NULL;

		for (size_t k = 0; rc == 0 && k < list.nr && !left; k++) {
			const struct meta_stored *s = &list.at[k];
			const struct item *it;

			if (strcmp(c->head->model->state->tensors[s->entry->tensor].file, logical) != 0)
				continue;
			it = rs_commit_item(c, rank, s->file);
			left = it && it->lost ? NULL : s->file;
		}
		if (rc == 0 && left)
			rc = sc_fail(err, SC_E_STATE, "'%s' was removed on some ranks, but rank %u still has '%s'",
				     logical, rank, left);
		sc_vec_done(&list);
		sc_arena_done(&arena);
		if (rc < 0)
			return rc;
	}
	*ret_removed = true;
	return 0;
}

/* Refuses a file that some ranks removed, and that no others wrote.  It is known by now what was written. */
static int refuse_partly_removed(struct commit *c)
{
	int rc = 0;

	for (size_t i = 0; rc == 0 && c->head && i < c->head->version->nr_sets; i++) {
		const struct rs_set *set = c->head->version->sets[i];
		bool removed;

		if (!is_written(c, set->file))
			rc = check_removed(c, set->file, &removed, c->err);
	}
	return rc;
}

static bool is_rewritten(const struct commit *c, const struct rs_set *set)
{
	for (size_t i = 0; i < c->items.nr; i++)
		if (c->items.at[i].how == ITEM_WROTE && !c->items.at[i].gone && !c->items.at[i].lost &&
		    strcmp(c->items.at[i].path, set->file) == 0)
			return true;
	return false;
}

static int known_tensors(struct commit *c, struct meta_state *ret)
{
	for (size_t i = 0; c->head && i < c->head->version->nr_sets; i++) {
		const struct rs_set *set = c->head->version->sets[i];
		bool removed = false;
		struct sc_err partly;
		int rc;

		rc = check_removed(c, set->file, &removed, &partly);
		if (rc < 0 && rc != SC_E_STATE) {
			*c->err = partly;
			return rc;
		}
		for (uint32_t t = 0; !removed && t < set->state.nr; t++) {
			const struct meta_tensor *x = &set->state.tensors[t];

			/* the layout has become another one: written again, it is not of the state any more */
			if (meta_layout_is_object(c->layout, c->topo.pp > 1, x->file, x->name) && is_rewritten(c, set))
				continue;
			if (meta_state_add(ret, x->key, strlen(x->key), x->dtype, &x->shape) < 0)
				return sc_nomem(c->err);
		}
	}
	return 0;
}

/* --- several files at once --- */

#define READERS_MAX 4
#define FILES_EACH 4		/* a thread for fewer costs more than it saves */

struct reading {
	const struct commit *c;
	size_t next;		/* atomic: of the items */
	pthread_mutex_t lock;	/* of what follows: of the first item that fails, whoever reads it first */
	size_t failed;
	struct sc_err err;
};

/* Tells whether threads may read an item: those of moved files use the commit's arena, and are read before. */
static bool is_read(const struct item *it)
{
	return !it->gone && !it->moved;
}

/* Reads items: each thread takes the next one that nobody has.  So all items before one that failed are read, too. */
static void *read_some(void *arg)
{
	struct reading *r = arg;
	struct sc_err err;
	/* reading an item changes nothing of the commit but the item and the error */
	struct commit mine = *r->c;
	bool go_on = true;

	mine.err = &err;
	while (go_on) {
		size_t i = __atomic_fetch_add(&r->next, 1, __ATOMIC_RELAXED);

		if (i >= mine.items.nr || (is_read(&mine.items.at[i]) && read_item(&mine, &mine.items.at[i]) < 0)) {
			(void)pthread_mutex_lock(&r->lock);
			if (i < r->failed) { /* the number of items at first */
				r->err = err;
				r->failed = i;
			}
			(void)pthread_mutex_unlock(&r->lock);
			go_on = false;
		}
	}
	return NULL;
}

static int read_written(struct commit *c)
{
	struct reading r = {.c = c, .lock = PTHREAD_MUTEX_INITIALIZER, .failed = c->items.nr};
	long cores = sysconf(_SC_NPROCESSORS_ONLN);
	struct sc_thread threads[READERS_MAX] = {0};
	struct sc_err ignored;
	size_t files = 0;
	unsigned nr = 0;

	for (size_t i = 0; i < c->items.nr; i++)
		files += is_read(&c->items.at[i]);
	/* the first is this thread: there is always one */
	for (unsigned i = 1; i < READERS_MAX && i < cores && i < files / FILES_EACH; i++)
		nr += sc_thread_start(&threads[nr], "scalai-reader", read_some, &r, &ignored) == 0;
	(void)read_some(&r);
	for (unsigned i = 0; i < nr; i++)
		sc_thread_join(&threads[i]);
	(void)pthread_mutex_destroy(&r.lock);
	if (r.failed == c->items.nr)
		return 0;
	*c->err = r.err;
	return r.err.code;
}

static int read_items(struct commit *c)
{
	struct committed k = {0};
	int rc = 0;

	rs_commit_sort(c);
	for (size_t i = 0; rc == 0 && i < c->items.nr; i++) {
		struct item *it = &c->items.at[i];

		rc = it->moved ? read_item(c, it) : 0;
	}
	if (rc == 0)
		rc = read_written(c);
	for (size_t i = 0; rc == 0 && i < c->items.nr; i++)
		rc = note_lost(c, &k, &c->items.at[i]);
	for (size_t i = 0; rc == 0 && i < c->items.nr; i++)
		rc = note_step(c, &c->items.at[i]);
	sc_map_done(&k.files);
	sc_arena_done(&k.arena);
	if (rc == 0)
		rc = rs_commit_complete(c);
	return rc < 0 ? rc : rs_commit_add_hidden(c);
}

static int infer(struct commit *c, const struct meta_state *known)
{
	int rc = add_rows(c);

	return rc < 0 ? rc : meta_infer(c->layout, &c->topo, c->written.at, c->written.nr, known, &c->state, c->err);
}

/* Infers the state from the files that were written; if they are not complete, from the head's files beside them,
 * too. */
static int infer_all(struct commit *c, const struct meta_state *known)
{
	int rc = infer(c, known), more;

	if (rc != SC_E_STATE && rc != SC_E_TOPOLOGY)
		return rc;
	more = rs_commit_add_kept(c);
	if (more < 0)
		return more;
	if (more)
		rc = infer(c, known);
	return rc == SC_E_STATE ? rs_commit_refuse_missing(c, rc) : rc;
}

static bool has_tensors(const struct commit *c)
{
	for (size_t i = 0; i < c->items.nr; i++)
		if (c->items.at[i].nr_rows && !c->items.at[i].gone)
			return true;
	return false;
}

int rs_commit_read(struct commit *c)
{
	struct meta_state known = {.layers = c->job->whole.layers, .experts = c->job->whole.experts};
	int rc;

	rs_step(RS_STEP_COMMIT_READ);
	rc = read_items(c);
	if (rc == 0)
		rc = known_tensors(c, &known);
	if (rc == 0 && has_tensors(c)) {
		rc = infer_all(c, &known);
	} else if (rc == 0) {
		/* only plain files were written, or files removed */
		rc = meta_state_add_all(&c->state, &known) < 0 ? sc_nomem(c->err) : 0;
	}
	meta_state_done(&known);
	if (rc == 0)
		rc = name_items(c);
	return rc < 0 ? rc : refuse_partly_removed(c);
}
