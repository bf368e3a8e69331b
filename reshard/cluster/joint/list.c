/* SPDX-License-Identifier: Apache-2.0 */
#include "reshard/cluster/joint/joint_i.h"

#include <stdio.h>
#include <string.h>

#include "meta/base/xxh.h"
#include "meta/catalog/nodes.h"
#include "reshard/version/config/config.h"
#include "reshard/engine/rounds/rounds.h"

#define FILES_MAX 4096u	/* of all nodes: their images are open until the pass ends */

/* --- the files --- */

struct listing {
	struct rs_joint_list *l;
	const struct rs_party *party;
	uint32_t set, rank;
	size_t first;			/* of this party's files of the set */
	struct sc_err *err;
};

static bool is_listed(const struct listing *g, uint32_t rank, const char *file)
{
	for (size_t i = g->first; i < g->l->files.nr; i++)
		if (g->l->files.at[i].rank == rank && strcmp(g->l->files.at[i].name, file) == 0)
			return true;
	return false;
}

/* Tells whether the file is, as it is, a blob of the version's storage, so that it is copied and not put together: 1, 0
 * or an error. */
static int is_stored(const struct rs_joint_list *l, uint32_t rank, const char *file, struct sc_err *err)
{
	struct rs_image *im = NULL;
	int rc = rs_view_image(l->p->s, l->p->head, rank, file, false, false, &im, err);

	if (rc == 0)
		rc = im->same_as && !rs_made_holds(l->p->s, im->same_as);
	rs_image_unref(l->p->s, im);
	return rc;
}

/* Makes an image in the way in which all nodes make it: wherever its bytes are. */
static int make_image(const struct rs_joint_list *l, uint32_t rank, const char *file, struct rs_image **ret,
		      struct sc_err *err)
{
	const struct rs_view *head = l->p->head;
	struct rs_origins origins = head->origins;
	struct rs_formed x = rs_view_formed(head);
	struct sc_arena arena = {0};
	struct rs_image *im = NULL;
	int rc = rs_view_stored(head, rank, file, &arena, &file, err);

	origins.anywhere = true;
	x.origins = &origins;
	if (rc == 0)
		rc = rs_form_image(head->form, &x, rank, file, true, &im, err);
	if (rc == 0)
		rc = rs_image_open(im, &origins, err);
	sc_arena_done(&arena);
	if (rc < 0)
		rs_image_free(im);
	else
		*ret = im;
	return rc;
}

static int on_file(void *arg, const char *file, const char *logical)
{
	struct listing *g = arg;
	struct rs_joint_list *l = g->l;
	const struct rs_view *head = l->p->head;
	struct rs_joint_file f = {.set = g->set, .rank = rs_view_alike(head, g->rank, file),
				  .mine = g->party == l->self};
	int rc;

	if (strcmp(logical, head->version->sets[g->set]->file) != 0 || is_listed(g, f.rank, file))
		return 0;
	if (rs_pass_is_stale(l->p))
		return sc_fail(g->err, SC_E_CANCELLED, "stopped");
	if (l->files.nr == FILES_MAX)
		return sc_fail(g->err, SC_E_UNSUPPORTED, "more than %u files would be open", FILES_MAX);
	rc = is_stored(l, f.rank, file, g->err);
	if (rc != 0)
		return rc < 0 ? rc : 0;
	rc = make_image(l, f.rank, file, &f.image, g->err);
	if (rc < 0)
		return rc;
	f.writer = g->party->first + (uint32_t)(l->files.nr - g->first) % g->party->peers;
	f.name = sc_arena_copy(&l->arena, file, strlen(file));
	if (f.name && sc_vec_push(&l->files, f) == 0)
		return 0;
	rs_image_free(f.image);
	return sc_nomem(g->err);
}

int rs_joint_list(struct rs_joint_list *l, struct sc_err *err)
{
	const struct rs_view *head = l->p->head;
	int rc = 0;

	for (uint32_t set = 0; set < head->version->nr_sets; set++)
		for (size_t k = 0; !head->as_stored[set] && k < l->parties->nr; k++) {
			struct listing g = {.l = l, .party = &l->parties->at[k], .set = set, .err = err,
					    .first = l->files.nr};

			for (g.rank = 0; rc == 0 && g.rank < head->topo.ranks; g.rank++)
				if (rs_ranks_have(g.party->ranks, g.rank))
					rc = meta_view_files(head->model, g.rank, on_file, &g);
		}
	return rc;
}

void rs_joint_list_done(struct rs_joint_list *l)
{
	for (size_t i = 0; i < l->files.nr; i++)
		rs_image_free(l->files.at[i].image);
	sc_vec_done(&l->files);
	sc_vec_done(&l->readers);
	sc_arena_done(&l->arena);
}

/* --- who reads --- */

/* Gives the node whose blob a place is in, and the number that the blob has there: all nodes name the blob so. */
static int origin_of(const struct rs_joint_list *l, const struct rs_place *place, uint32_t *ret_node,
		     uint64_t *ret_number, struct sc_err *err)
{
	int rc;

	if (rs_landing_is(place, ret_node, ret_number))
		return 0;
	rc = meta_blob_origin(l->p->s->catalog, place->id, ret_node, ret_number, err);
	if (rc == 0) {
		*ret_node = l->self->node;
		*ret_number = place->id;
	}
	return rc < 0 ? rc : 0;
}

/* Copies on other nodes are not counted on, as they come and go without a word.  Readers that nodes have voted on are
 * not asked for again: an error would make a plan that nobody has voted for. */
uint32_t rs_joint_reader(void *list, const struct rs_place *place)
{
	const struct rs_joint_list *l = list;
	const struct rs_party *p = NULL;
	uint64_t number = 0;
	uint32_t node;
	struct sc_err ignored;

	for (size_t i = 0; i < l->readers.nr; i++)
		if (l->readers.at[i].ops == place->ops && l->readers.at[i].id == place->id)
			return l->readers.at[i].peer;
	if (origin_of(l, place, &node, &number, &ignored) == 0)
		p = rs_party_of(l->parties, node);
	return p ? p->first + rs_pool_deal(number, p->peers) : 0;
}

/* --- the hash --- */

static void hash_numbers(XXH3_state_t *h, const uint64_t *n, size_t nr)
{
	(void)XXH3_128bits_update(h, n, nr * sizeof(*n));
}

#define HASH(h, ...)                                                                               \
	hash_numbers(h, (const uint64_t[]){__VA_ARGS__}, sizeof((uint64_t[]){__VA_ARGS__}) / sizeof(uint64_t))

static void hash_extents(XXH3_state_t *h, const struct rs_extent *e, uint32_t nr)
{
	HASH(h, nr);
	for (uint32_t i = 0; i < nr; i++)
		HASH(h, e[i].file, e[i].zero, e[i].at, e[i].bytes, e[i].window);
}

static void hash_boxes(XXH3_state_t *h, const struct rs_copy *c, uint32_t nr)
{
	HASH(h, nr);
	for (uint32_t i = 0; i < nr; i++) {
		HASH(h, c[i].from, c[i].to, c[i].run, c[i].nr);
		hash_numbers(h, c[i].ext, c[i].nr);
		hash_numbers(h, c[i].to_stride, c[i].nr);
		hash_numbers(h, c[i].from_stride, c[i].nr);
	}
}

static void hash_round(XXH3_state_t *h, const struct rs_round *round)
{
	for (uint32_t p = 0; p < round->nr; p++) {
		const struct rs_share *s = &round->shares[p];

		hash_extents(h, s->in, s->nr_in);
		hash_extents(h, s->out, s->nr_out);
		hash_boxes(h, s->copies, s->nr_copies);
		hash_boxes(h, s->packs, s->nr_packs);
		hash_boxes(h, s->unpacks, s->nr_unpacks);
		for (uint32_t q = 0; q < round->nr; q++)
			HASH(h, s->sends[q].at, s->sends[q].bytes, s->recvs[q].at, s->recvs[q].bytes);
	}
}

/* Hashes the sources by origin, as each node numbers them for itself, and notes which peer reads each. */
static int hash_files(XXH3_state_t *h, struct rs_joint_list *l, const struct rs_rounds *r, struct sc_err *err)
{
	uint32_t nr, node = 0;
	const struct rs_rounds_file *files = rs_rounds_files(r, &nr);
	uint64_t number = 0;
	int rc = 0;

	HASH(h, nr);
	for (uint32_t i = 0; rc == 0 && i < nr; i++) {
		rc = origin_of(l, files[i].place, &node, &number, err);
		if (rc == 0 && !rs_party_of(l->parties, node))
			rc = sc_fail(err, SC_E_UNSUPPORTED, "node %u, which has bytes that are needed, takes no part",
				     node);
		HASH(h, node, number, files[i].bytes->bytes, files[i].reader);
		if (rc == 0 && sc_vec_push(&l->readers, ((struct rs_joint_reads){files[i].place->ops,
						files[i].place->id, files[i].reader})) < 0)
			rc = sc_nomem(err);
	}
	return rc;
}

/* Hashes what all parties would do for the files of a call. */
static int hash_call(XXH3_state_t *h, struct rs_joint_list *l, size_t first, uint32_t nr, struct sc_err *err)
{
	const struct rs_pool pool = rs_parties_pool(l->parties);
	const struct rs_image *images[RS_JOINT_FILES_MAX];
	uint32_t writers[RS_JOINT_FILES_MAX];
	const struct rs_rounds_options options = {.window_bytes = pool.window_bytes, .boxes_max = pool.boxes_max,
						  .peers = pool.world, .writers = writers,
						  .reader = rs_joint_reader, .arg = l};
	const struct rs_round *round = NULL;
	struct rs_rounds *r = NULL;
	int rc;

	for (uint32_t i = 0; i < nr; i++) {
		const struct rs_joint_file *f = &l->files.at[first + i];

		images[i] = f->image;
		writers[i] = f->writer;
		HASH(h, f->set, f->rank, f->image->bytes);
		(void)XXH3_128bits_update(h, f->name, strlen(f->name) + 1);
	}
	rc = rs_rounds_new(images, nr, &options, &r, err);
	if (rc == 0)
		rc = hash_files(h, l, r, err);
	while (rc == 0) {
		rc = rs_rounds_next(r, &round, err);
		if (rc < 0 || !round)
			break;
		hash_round(h, round);
		if (rs_pass_is_stale(l->p))
			rc = sc_fail(err, SC_E_CANCELLED, "stopped");
	}
	rs_rounds_free(r);
	return rc;
}

int rs_joint_hash(struct rs_joint_list *l, char ret[RS_PLAN_HASH_DIGITS + 1], struct sc_err *err)
{
	XXH3_state_t *h = XXH3_createState();
	XXH128_hash_t hash;
	int rc = h ? 0 : sc_nomem(err);

	if (rc == 0)
		(void)XXH3_128bits_reset(h);
	for (size_t i = 0; rc == 0 && i < l->files.nr; i += RS_JOINT_FILES_MAX)
		rc = hash_call(h, l, i, (uint32_t)sc_min_u64(RS_JOINT_FILES_MAX, l->files.nr - i), err);
	if (rc == 0) {
		hash = XXH3_128bits_digest(h);
		(void)snprintf(ret, RS_PLAN_HASH_DIGITS + 1, "%016llx%016llx", (unsigned long long)hash.high64,
			       (unsigned long long)hash.low64);
	}
	(void)XXH3_freeState(h);
	return rc;
}
