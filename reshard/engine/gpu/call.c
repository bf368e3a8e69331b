/* SPDX-License-Identifier: Apache-2.0 */
#include "reshard/engine/gpu/call.h"

struct open_file {
	int fd;
	uint64_t blob;
};

static int read_file(const void *arg, uint64_t at, uint64_t bytes, unsigned char *to, struct sc_err *err)
{
	const struct open_file *f = arg;

	return rs_fd_read(f->fd, f->blob, at, bytes, to, err);
}

static int fill_extent(struct rs_call *c, struct rs_bytes *from, const struct rs_extent *e, unsigned char *to,
		       struct sc_err *err)
{
	struct open_file file = {.blob = from->blob};
	int rc;

	if (e->bytes < RS_FDS_READ_BYTES_MIN)
		return rs_bytes_read(from, e->at, e->bytes, to, err);
	rc = rs_fds_get(&c->fds, from, &file.fd, err);
	if (rc == 0)
		rc = rs_bytes_need(from, e->at, e->bytes, NULL, err);
	if (rc < 0)
		return rc;
	rc = rs_crew_read(c->crew, read_file, &file, e->at, e->bytes, to, err);
	rs_bytes_release(from, e->at, e->bytes);
	return rc;
}

unsigned char *rs_call_window(const struct rs_call *c, uint32_t peer, uint64_t nr, enum rs_pool_part part)
{
	return c->h->memory + rs_pool_place(&c->pool, peer, nr % RS_POOL_SLOTS, part);
}

static int fill_share(struct rs_call *c, const struct rs_share *share, unsigned char *in, struct sc_err *err)
{
	uint32_t nr_files;
	const struct rs_rounds_file *files = rs_rounds_files(c->rounds, &nr_files);
	int rc = 0;

	for (uint32_t i = 0; rc == 0 && i < share->nr_in; i++)
		rc = fill_extent(c, files[share->in[i].file].bytes, &share->in[i], in + share->in[i].window, err);
	return rc;
}

int rs_call_fill(struct rs_call *c, uint64_t nr, struct sc_err *err)
{
	int rc = 0;

	for (uint32_t p = 0; rc == 0 && p < c->pool.peers; p++)
		rc = fill_share(c, &c->round->shares[c->pool.first + p], rs_call_window(c, p, nr, RS_POOL_IN), err);
	return rc;
}

int rs_call_say(struct rs_call *c, enum rs_wire_kind kind, uint64_t nr, struct sc_err *err)
{
	const struct rs_wire_message m = rs_wire_message(kind, nr);

	return rs_helper_say(c->h, &m, err);
}

int rs_call_converse(struct rs_call *c, enum rs_wire_kind last, struct sc_err *err)
{
	for (;;) {
		struct rs_wire_message m;
		int rc = rs_helper_hear(c->h, c->tick, c->arg, &m, err);

		if (rc < 0 || m.kind == last)
			return rc;
		/* it is no other: the conversation is checked */
		rc = (m.kind == RS_WIRE_FILL ? c->fill : c->drain)(c->arg, m.nr, err);
		if (rc == 0)
			rc = rs_call_say(c, m.kind == RS_WIRE_FILL ? RS_WIRE_FILLED : RS_WIRE_DRAINED, m.nr, err);
		if (rc < 0)
			return rc;
	}
}

int rs_call_put(struct rs_call *c, const struct rs_round *round, struct sc_err *err)
{
	int rc;

	c->round = round;
	rs_wire_put_plan(&c->pool, c->h->memory, round);
	rc = rs_call_say(c, RS_WIRE_ROUND, c->h->wire.put, err);
	return rc < 0 ? rc : rs_call_converse(c, RS_WIRE_TAKEN, err);
}
