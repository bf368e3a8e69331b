/* SPDX-License-Identifier: Apache-2.0 */
#include "reshard/cluster/joint/joint_i.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "reshard/version/config/config.h"

/* --- ranks --- */

void rs_ranks_text(uint32_t ranks, bool (*is)(void *arg, uint32_t rank), void *arg, struct sc_buf *to)
{
	bool some = false;

	for (uint32_t first = 0, end; first < ranks; first = end) {
		for (end = first; end < ranks && is(arg, end); end++)
			;
		if (end == first) {
			end++;
			continue;
		}
		sc_buf_printf(to, end == first + 1 ? "%s%u" : "%s%u-%u", some ? "," : "", first, end - 1);
		some = true;
	}
	if (!some)
		sc_buf_byte(to, '-');
}

/* --- parties --- */

void rs_party_text(const struct rs_party *party, struct sc_buf *to)
{
	sc_buf_printf(to, "%u %" PRIu64 " %u %s", party->peers, party->window_bytes, party->boxes_max, party->ranks);
}

/* Reads what rs_party_text() formatted; `ret->ranks` points into `text`.  False: the text is no offer. */
static bool read_offer(const char *text, struct rs_party *ret)
{
	struct rs_ranks ignored;
	const char *ranks;
	int at = -1;

	*ret = (struct rs_party){0};
	if (sscanf(text, "%u %" SCNu64 " %u %n", &ret->peers, &ret->window_bytes, &ret->boxes_max, &at) < 3 || at < 0)
		return false;
	ret->ranks = text + at;
	for (ranks = ret->ranks; rs_ranks_next(&ranks, &ignored);)
		;
	return ret->peers && ret->peers <= RS_POOL_PEERS_MAX && ret->window_bytes && ret->boxes_max &&
	       (!*ranks || strcmp(ret->ranks, "-") == 0);
}

static int add(struct rs_parties *parties, char *line, struct sc_err *err)
{
	struct rs_party p;
	char *offer;
	const unsigned long node = strtoul(line, &offer, 10);
	const struct rs_party *before = parties->nr ? &parties->at[parties->nr - 1] : NULL;

	if (offer == line || *offer != ' ' || !node || node >= META_NODES_MAX || !read_offer(offer + 1, &p) ||
	    (before && before->node >= node))
		return sc_fail(err, SC_E_FORMAT, "the leading node sent a plan that cannot be read: '%.60s'", line);
	p.node = (uint32_t)node;
	p.first = before ? before->first + before->peers : 0;
	if (p.first + p.peers > RS_POOL_WORLD_MAX)
		return sc_fail(err, SC_E_UNSUPPORTED, "all nodes together have more than %u GPUs", RS_POOL_WORLD_MAX);
	return sc_vec_push(parties, p) < 0 ? sc_nomem(err) : 0;
}

int rs_parties_read(const char *text, struct sc_arena *arena, struct rs_parties *ret, struct sc_err *err)
{
	char *copy = sc_arena_copy(arena, text, strlen(text)), *line, *rest = copy;
	int rc = copy ? 0 : sc_nomem(err);

	ret->nr = 0;
	while (rc == 0 && (line = strsep(&rest, "\n")))
		if (*line)
			rc = add(ret, line, err);
	return rc == 0 && !ret->nr ? sc_fail(err, SC_E_FORMAT, "the plan of the leading node is empty") : rc;
}

const struct rs_party *rs_party_of(const struct rs_parties *parties, uint32_t node)
{
	for (size_t i = 0; i < parties->nr; i++)
		if (parties->at[i].node == node)
			return &parties->at[i];
	return NULL;
}

struct rs_pool rs_parties_pool(const struct rs_parties *parties)
{
	struct rs_pool pool = {UINT64_MAX, UINT32_MAX, 0, 0, 0};

	for (size_t i = 0; i < parties->nr; i++) {
		const struct rs_party *p = &parties->at[i];

		pool.window_bytes = sc_min_u64(pool.window_bytes, p->window_bytes);
		pool.boxes_max = p->boxes_max < pool.boxes_max ? p->boxes_max : pool.boxes_max;
		pool.world += p->peers;
	}
	return pool;
}
