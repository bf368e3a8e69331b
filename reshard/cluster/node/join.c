/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Commits what several nodes have uncommitted: the committer asks all members for their parts
 * (reshard/cluster/peers/offer.c), joins them to its own working tree, and says in the version's object which parts
 * they were.
 *
 * 1. A node whose part is not in the version keeps what it has uncommitted, and shows nothing of the job until a user
 *    discards that: a commit throws nothing away that it did not have.
 * 2. The list of members may change while a version is made: the version counts for the list alone that it was made of.
 *    The members' parts are asked for again, and are the same, or the commit is refused.
 */
#include "reshard/cluster/node/member_i.h"

#include <string.h>

#define HEADER RS_PART_HEADER
#define PIECE (1u << 20)

/* --- those of others --- */

static int fetch(struct rs_member *m, uint32_t node, uint64_t token, uint64_t at, uint32_t bytes, void *to,
		 struct sc_err *err)
{
	return rs_member_fetch(m, &(struct rs_pulling){.node = node, .part = token, .at = at, .bytes = bytes, .to = to},
			       err);
}

struct parts {
	size_t nr, room;
	struct part {
		uint32_t node;
		uint64_t bytes;
		struct rs_object_name name;
	} *at;
};

/* Lists the nodes that have a part, this one, too. */
static int list(struct rs_member *m, const struct rs_shared *j, struct rs_move *move, struct parts *ret,
		struct sc_err *err)
{
	uint8_t header[HEADER];
	uint32_t *nodes;
	size_t nr;
	int rc = 0;

	(void)pthread_mutex_lock(&m->lock);
	move->members = rs_core_members_mod(m->core);
	nr = rs_core_members(m->core, NULL, 0);
	nodes = sc_zalloc_array(nr + 1, sizeof(*nodes));
	if (nodes)
		(void)rs_core_members(m->core, nodes, nr);
	(void)pthread_mutex_unlock(&m->lock);
	rc = nodes ? 0 : sc_nomem(err);
	for (size_t i = 0; rc == 0 && i < nr; i++) {
		struct part p = {.node = nodes[i]};

		if (p.node == m->node)
			rs_part_copy(j, 0, HEADER, header);
		else
			rc = fetch(m, p.node, move->token, 0, HEADER, header, err);
		memcpy(&p.bytes, header, sizeof(p.bytes));
		memcpy(p.name.at, header + sizeof(p.bytes), sizeof(p.name.at));
		if (rc == 0 && p.bytes > RS_PART_BYTES_MAX)
			rc = sc_fail(err, SC_E_LIMIT, "node %u has too much uncommitted; commit it there", p.node);
		if (rc == 0 && p.bytes && sc_vec_push(ret, p) < 0)
			rc = sc_nomem(err);
	}
	sc_sys.release(nodes);
	return rc;
}

static int fetch_text(struct rs_member *m, const struct part *p, uint64_t token, struct sc_buf *ret, struct sc_err *err)
{
	uint8_t is[RS_OBJECT_NAME_BYTES], *piece = sc_sys.alloc(PIECE);
	int rc = piece ? 0 : sc_nomem(err);

	for (uint64_t at = 0; rc == 0 && at < p->bytes; at += PIECE) {
		const uint32_t n = (uint32_t)sc_min_u64(PIECE, p->bytes - at);

		rc = fetch(m, p->node, token, HEADER + at, n, piece, err);
		if (rc == 0)
			sc_buf_add(ret, (const char *)piece, n);
		if (rc == 0 && ret->failed)
			rc = sc_nomem(err);
	}
	sc_sys.release(piece);
	if (rc < 0)
		return rc;
	rs_sha256(ret->text, ret->bytes, is);
	return memcmp(is, p->name.at, sizeof(is)) == 0
		       ? 0 : sc_fail(err, SC_E_FORMAT, "what node %u has uncommitted came with other bytes; try again",
				     p->node);
}

/* --- joining --- */

struct was {			/* a name of an object in the version below */
	struct sc_arena *texts;
	uint64_t parent;
	char *name;
};

static int on_name(void *arg, const struct meta_entry_row *row)
{
	struct was *w = arg;

	w->parent = row->parent;
	w->name = sc_arena_copy(w->texts, row->name.at, row->name.nr);
	return 1;
}

/* Gives the name of a removed file or folder, which it has in the version below. */
static int name_below(struct rs_job *job, uint64_t ino, struct sc_buf *to, struct sc_err *err)
{
	struct sc_arena texts = {0};
	struct was w = {.texts = &texts};
	const char *path = "";
	struct rs_below *b;
	int rc = rs_view_below(job->head, &b, err);

	while (rc == 0 && !(ino >= job->root && ino - job->root <= SC_RANKS_MAX)) {
		rc = rs_below_names(b, ino, on_name, &w, err);
		if (rc <= 0)
			break;
		path = w.name ? sc_arena_printf(&texts, "%s%s%s", w.name, *path ? "/" : "", path) : NULL;
		rc = path ? 0 : sc_nomem(err);
		ino = w.parent;
	}
	if (rc == 0 && *path && ino > job->root)
		sc_buf_printf(to, "rank %u: ", (uint32_t)(ino - job->root - 1));
	if (rc == 0 && *path)
		sc_buf_printf(to, "'%s'", path);
	sc_arena_done(&texts);
	return rc;
}

static int name(void *arg, uint64_t ino, const char *more, struct sc_buf *to, struct sc_err *err)
{
	const size_t before = to->bytes;
	struct rs_job *job = arg;
	int rc = rs_tree_name(job, ino, more, to, err);

	return rc < 0 || to->bytes > before || *more || !job->head ? rc : name_below(job, ino, to, err);
}

static int begin(struct rs_member *m, struct rs_shared *j, struct rs_move *move, struct rs_lower *lower,
		 struct sc_err *err)
{
	struct rs_job *second;
	int rc = rs_second_new(j->job, &second, err);

	if (rc < 0)
		return rc;
	move->joined.tree = second;
	rc = rs_tree_lower(second, second->head, lower, err);
	move->joining = (struct rs_joining){.o = second->overlay, .lower = lower, .root = second->root,
					    .node = m->node, .name = name, .arg = second};
	return rc;
}

static int join_one(struct rs_member *m, struct rs_shared *j, struct rs_move *move, const struct part *p,
		    struct sc_err *err)
{
	struct meta_changes rows = {0};
	struct meta_bytes bytes;
	struct sc_buf *text;
	int rc;

	if (sc_vec_push(&move->texts, (struct sc_buf){0}) < 0)
		return sc_nomem(err);
	text = &move->texts.at[move->texts.nr - 1];
	rc = fetch_text(m, p, move->token, text, err);
	bytes = (struct meta_bytes){text->text, text->bytes};
	if (rc == 0)
		rc = rs_part_take(j->job, m->node, p->node, &bytes, &move->joining.texts, &rows, &move->joined.aways,
				  err);
	if (rc == 0)
		rc = rs_join(&move->joining, p->node, &rows, &move->joined.rows, err);
	meta_changes_done(&rows);
	return rc;
}

int rs_member_join(struct rs_member *m, struct rs_shared *j, struct rs_move *move, struct sc_err *err)
{
	struct parts parts = {0};
	struct rs_lower lower;
	int rc = list(m, j, move, &parts, err);

	for (size_t i = 0; rc == 0 && i < parts.nr; i++) {
		const struct part *p = &parts.at[i];

		if (sc_vec_push(&move->parts, ((struct rs_object_from){p->node, p->name})) < 0)
			rc = sc_nomem(err);
		if (p->node == m->node)
			continue;
		if (rc == 0 && !move->joined.tree)
			rc = begin(m, j, move, &lower, err);
		if (rc == 0)
			rc = join_one(m, j, move, p, err);
	}
	(void)pthread_mutex_lock(&m->lock);
	move->joins = rc == 0 && move->joined.tree;
	(void)pthread_mutex_unlock(&m->lock);
	sc_vec_done(&parts);
	return rc;
}

int rs_member_join_check(struct rs_member *m, struct rs_shared *j, struct rs_move *move, struct sc_err *err)
{
	struct parts parts = {0};
	int rc = list(m, j, move, &parts, err);
	bool same = rc == 0 && parts.nr == move->parts.nr;

	for (size_t i = 0; same && i < parts.nr; i++)
		same = parts.at[i].node == move->parts.at[i].node &&
		       memcmp(&parts.at[i].name, &move->parts.at[i].part, sizeof(parts.at[i].name)) == 0;
	sc_vec_done(&parts);
	return rc < 0 || same ? rc
			      : sc_fail(err, SC_E_BUSY, "a node with uncommitted files has come or gone while they "
					"were read: nothing was committed; try again");
}

void rs_member_join_done(struct rs_member *m, struct rs_move *move)
{
	(void)pthread_mutex_lock(&m->lock);
	move->joins = false;
	(void)pthread_mutex_unlock(&m->lock);
	/* what stays uncommitted may change: nothing of it must be found again */
	for (size_t i = 0; i < move->joined.aways.nr; i++) {
		const struct rs_away_file *f = &move->joined.aways.at[i];

		if (!move->saved) {
			rs_blob_forget(m->s->blobs, f->blob);
			rs_landing_forget(m->landings, f->node, f->number, false);
		}
	}
	rs_second_free(move->joined.tree);
	meta_changes_done(&move->joined.rows);
	sc_vec_done(&move->joined.aways);
	rs_joining_done(&move->joining);
	for (size_t i = 0; i < move->texts.nr; i++)
		sc_buf_done(&move->texts.at[i]);
	sc_vec_done(&move->texts);
	sc_vec_done(&move->parts);
	move->joined = (struct rs_joined){0};
}
