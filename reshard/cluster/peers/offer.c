/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Makes this node's part, what it has uncommitted, for the node that commits (reshard/exchange/merge/part.h).  The
 * part is made when a commit is checked, with the gate closed, and kept in memory until the outcome is known.  The
 * version's object says which parts are in it: a node that finds its own there has its files in the version, by the
 * same bytes.
 */
#include "reshard/cluster/peers/peers_i.h"

#include <stdlib.h>
#include <string.h>


int rs_part_prepare(struct rs_member *m, struct rs_shared *j, uint64_t token, struct sc_err *err)
{
	struct sc_buf text = {0};
	int rc = rs_part_make(j->job, m->node, &text, err);

	if (rc < 0) {
		sc_buf_done(&text);
		return rc;
	}
	(void)pthread_mutex_lock(&m->lock);
	sc_buf_done(&j->part.text);
	j->part.text = text;
	j->part.token = token;
	rs_sha256(text.text ? text.text : "", text.bytes, j->part.name);
	(void)pthread_mutex_unlock(&m->lock);
	return 0;
}

int rs_part_is_in(struct rs_member *m, struct rs_shared *j, const uint8_t version[RS_OBJECT_NAME_BYTES],
		  struct sc_err *err)
{
	struct rs_bag bag = {.lacking = false};
	int rc = 0;

	if (j->part.token != j->row) /* the daemon before has made it */
		rc = rs_part_prepare(m, j, j->row, err);
	if (rc < 0 || !j->part.text.bytes)
		return rc < 0 ? rc : 1;
	do
		rc = bag.lacking ? rs_bag_get(m, &bag, err) : 0;
	while (rc == 0 && (rc = rs_objects_has_part(version, m->node, j->part.name, &rs_bag_ops, &bag, err)) < 0 &&
	       bag.lacking);
	rs_bag_done(&bag);
	return rc;
}

void rs_part_drop(struct rs_member *m, struct rs_shared *j)
{
	(void)pthread_mutex_lock(&m->lock);
	sc_buf_done(&j->part.text);
	j->part.token = 0;
	(void)pthread_mutex_unlock(&m->lock);
}

void rs_part_copy(const struct rs_shared *j, uint64_t from, uint32_t nr, uint8_t *to)
{
	const uint64_t bytes = j->part.text.bytes;
	uint8_t header[RS_PART_HEADER];
	uint32_t n = from < RS_PART_HEADER ? (uint32_t)sc_min_u64(nr, RS_PART_HEADER - from) : 0;

	memcpy(header, &bytes, sizeof(bytes));
	memcpy(header + sizeof(bytes), j->part.name, RS_OBJECT_NAME_BYTES);
	memcpy(to, header + (n ? from : 0), n);
	if (nr > n)
		memcpy(to + n, j->part.text.text + (from + n - RS_PART_HEADER), nr - n);
}

int rs_part_serve(struct rs_member *m, const struct rs_pull *p, uint8_t *to)
{
	char *end;
	const unsigned long long token = strtoull(p->file, &end, 10);
	const struct rs_shared *j = NULL;
	int code = RS_CODE_BUSY; /* it is made in a moment */
	uint64_t bytes;

	(void)pthread_mutex_lock(&m->lock);
	for (size_t i = 0; i < m->jobs.nr && !j; i++)
		if (token && m->jobs.at[i]->part.token == token)
			j = m->jobs.at[i];
	bytes = j ? RS_PART_HEADER + j->part.text.bytes : 0;
	if (j && (p->from > bytes || p->bytes > bytes - p->from))
		code = RS_CODE_BAD;
	else if (j)
		code = RS_CODE_OK;
	if (j && code == RS_CODE_OK)
		rs_part_copy(j, p->from, p->bytes, to);
	(void)pthread_mutex_unlock(&m->lock);
	return code;
}
