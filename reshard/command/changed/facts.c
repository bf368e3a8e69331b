/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Compares tensors with the config.json of their model (reshard/checkpoint/export/facts.h): a model that no library
 * could load is refused when it is committed, not months later.  A commit reads the config.json beside a file of
 * tensors, in the folder of the first rank that has one, and that at the same place of the job's folder, if the
 * config.json or the file of tensors was written.  A layout is refused, too, that cuts a tensor of several matrices
 * (q, k and v; gate and up) as if it were one: its parts, cut or joined, have the right shapes and wrong rows.  FSDP
 * cuts like that (`chunk`), and joins the parts before they are used.
 */
#include "reshard/command/changed/items_i.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "meta/base/limits.h"
#include "reshard/checkpoint/export/facts.h"

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

/* Tells whether a cut of rows ends each matrix where a section ends. */
static bool is_sectioned(const struct meta_cut *cut, uint64_t all, const uint64_t *rows, int nr)
{
	const uint64_t sum = cut->section_sum;
	uint64_t border = 0, end = 0;
	uint32_t at = 0;

	for (int i = 0; i + 1 < nr; i++) {
		border += rows[i];
		while (end < border && at < cut->nr_sections)
			end += all % sum ? all : all / sum * cut->sections[at++];
		if (end != border)
			return false;
	}
	return true;
}

/* Writes the ratio of numbers, as sections= has it. */
static const char *ratio(const uint64_t *rows, int nr, char *text, size_t bytes)
{
	uint64_t by = rows[0];
	int n = 0;

	for (int i = 1; i < nr; i++)
		for (uint64_t b = rows[i], rest; b; b = rest) {
			rest = by % b;
			by = b;
		}
	for (int i = 0; i < nr; i++)
		n += snprintf(text + n, bytes - (size_t)n, "%s%" PRIu64, i ? ":" : "", rows[i] / by);
	return text;
}

/* Judges how the layout cuts the rows of an entry's tensor. */
static int judge_cuts(struct commit *c, const struct rs_set *set, const struct meta_entry *e, uint32_t rank,
		      const char *path, const struct rs_facts *facts)
{
	const struct meta_tensor *t = &set->state.tensors[e->tensor];
	char has[128], part[128], sections[80], where[32] = "the job";
	uint64_t rows[RS_FUSED_MAX];
	const char *what;
	const int nr = rs_facts_fused(facts, t, rows, &what);

	if (rank != RS_SHARED)
		(void)snprintf(where, sizeof(where), "rank %u", rank);
	for (int i = 0; nr && i < e->rule->nr_cuts && !e->rule->cuts[i].flat; i++) {
		const struct meta_cut *cut = &e->rule->cuts[i];
		struct meta_shape of_rank = t->shape;
		const uint32_t d = meta_topology_degree(set->view->topo, cut->axes);

		if (meta_cut_dim(cut, &t->shape) != 0 || cut->chunk ||
		    is_sectioned(cut, t->shape.dim[0], rows, nr))
			continue;
		of_rank.dim[0] /= d;
		return sc_fail(c->err, SC_E_STATE, "'%s' %s is %s by '%s' of %s, but the layout cuts it by %s as if it "
			       "were one, so that a rank of %s=%u has %s of all together: write sections=%s behind the "
			       "cut; if its parts are so, write suspicious=accept to config", t->key,
			       meta_shape_text(&t->shape, has, sizeof(has)), what, path, where, cut->axes_text,
			       cut->axes_text, d, meta_shape_text(&of_rank, part, sizeof(part)),
			       ratio(rows, nr, sections, sizeof(sections)));
	}
	return 0;
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
	for (uint32_t i = 0; rc == 0 && i < set->view->nr_entries; i++)
		rc = judge_cuts(c, set, &set->view->entries[i], rank, path, &facts);
	if (rc == 0 && facts.block[0] && facts.block[1])
		rc = meta_view_check_blocks(set->view, facts.block, c->err);
	return rc < 0 ? rc : rs_facts_heads(&facts, set->view, false, c->err);
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
