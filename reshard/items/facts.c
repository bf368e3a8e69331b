/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Tensors against the config.json of their model (reshard/form/facts.h): a model that no library could load is
 * refused when it is committed, not months later.  Read are the config.json beside a file of tensors, in the folder of
 * the first rank that has it, and the one at the same place of the job's folder; each if it or the file of tensors was
 * written.
 */
#include "reshard/items/items_i.h"

#include <stdio.h>
#include <string.h>

#include "meta/base/limits.h"
#include "reshard/form/facts.h"

#define CONFIG "config.json"

static bool is_known(const struct rs_set *set)
{
	for (uint32_t i = 0; i < set->state.nr; i++)
		if (rs_facts_know(set->state.tensors[i].name))
			return true;
	return false;
}

static int read_facts(struct commit *c, const struct rs_folder_file *file, struct rs_facts *ret)
{
	char *text = sc_sys.alloc(file->bytes + 1);
	int rc = text ? rs_blob_read(c->s->blobs, file->blob, file->bytes, text, c->err) : sc_nomem(c->err);

	if (rc == 0)
		rc = rs_facts_read(text, file->bytes, ret, c->err);
	sc_sys.release(text);
	return rc;
}

static int refuse(struct commit *c, const struct meta_tensor *t, uint32_t rank, const char *path, const char *key,
		  const struct meta_shape *want)
{
	char has[128], other[128], where[32] = "the job";

	if (rank != RS_SHARED)
		(void)snprintf(where, sizeof(where), "rank %u", rank);
	if (!want->nr)
		return sc_fail(c->err, SC_E_STATE, "'%s' %s is of a layer that the model has not, by %s in '%s' of "
			       "%s: correct it, or the name; if both are right, write suspicious=accept to config",
			       t->key, meta_shape_text(&t->shape, has, sizeof(has)), key, path, where);
	return sc_fail(c->err, SC_E_STATE, "'%s' is %s, but %s in '%s' of %s makes it %s: correct it, or the rule of "
		       "the layout by which ranks' parts became this shape; if both are right, write "
		       "suspicious=accept to config", t->key, meta_shape_text(&t->shape, has, sizeof(has)), key, path,
		       where, meta_shape_text(want, other, sizeof(other)));
}

/* Judges a set by a file, if there is one, and one of the two was written. */
static int judge(struct commit *c, const struct rs_set *set, uint32_t rank, const char *path)
{
	struct rs_folder_file file;
	struct rs_facts facts;
	struct meta_shape want;
	const char *key;
	uint64_t ino = 0;
	int rc;

	if ((set->id && !rs_commit_item(c, rank, path)) || !is_known(set))
		return 0;
	(void)pthread_rwlock_rdlock(&c->tree->names);
	rc = rs_find_path(c->tree, rank, path, &ino, c->err);
	(void)pthread_rwlock_unlock(&c->tree->names);
	if (rc == 0 && ino)
		rc = rs_commit_file(c, ino, &file, c->err);
	if (rc <= 0 || !ino || !file.blob || !file.bytes || file.bytes > SC_CONFIG_JSON_BYTES_MAX)
		return rc < 0 ? rc : 0;
	rc = read_facts(c, &file, &facts);
	for (uint32_t i = 0; rc == 0 && i < set->state.nr; i++)
		if (!rs_facts_agree(&facts, &set->state.tensors[i], &key, &want))
			rc = refuse(c, &set->state.tensors[i], rank, path, key, &want);
	return rc;
}

int rs_commit_facts(struct commit *c)
{
	int rc = 0;

	for (size_t i = 0; i < c->version->nr_sets && rc == 0; i++) {
		const struct rs_set *set = c->version->sets[i];
		const struct rs_set_blob *first = set->nr_blobs ? &set->blobs[0] : NULL;
		const char *slash = first ? strrchr(first->path, '/') : NULL;
		char *path;

		if (!first)
			continue;
		path = sc_arena_printf(&c->arena, "%.*s" CONFIG, slash ? (int)(slash + 1 - first->path) : 0,
				       first->path);
		rc = path ? judge(c, set, first->rank, path) : sc_nomem(c->err);
		if (rc == 0)
			rc = judge(c, set, RS_SHARED, path);
	}
	return rc;
}
