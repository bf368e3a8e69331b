/* SPDX-License-Identifier: Apache-2.0 */
#include "reshard/engine/gpu_helper/pipeline.h"

#include <inttypes.h>
#include <string.h>

#include "meta/base/err.h"
#include "meta/base/mem.h"
#include "reshard/engine/gpu_helper/exchange.h"
#include "reshard/engine/gpu_helper/lane.h"

struct rs_pipeline {
	struct rs_pipeline_options o;
	struct sc_err first;	/* code 0: none */
	cudaLibrary_t library;
	bool pinned;
	struct rs_exchange *exchange;	/* of the pass; NULL: none has begun, or there is one GPU */
	bool has_id;			/* `id` is of the pass */
	unsigned char id[RS_EXCHANGE_ID_BYTES];
	unsigned next;			/* the slot of the next round */
	bool full[RS_POOL_SLOTS];	/* it has a round that is not drained */
	struct rs_lane lanes[RS_POOL_PEERS_MAX];
	struct rs_lane_buffer buffers[RS_POOL_LOADS_MAX];	/* of the first one */
	const struct rs_lane_buffer *to;	/* of the pass; NULL: it is drained */
};

/* Keeps the first error as it is: that of a callback may be about anything. */
static int keep(struct rs_pipeline *p, int rc, const struct sc_err *err)
{
	if (rc < 0 && !p->first.code)
		p->first = *err;
	return rc;
}

/* --- begin --- */

/* Loads the kernel and pins the pool, both for all devices. */
static int load(struct rs_pipeline *p, cudaKernel_t *ret, struct sc_err *err)
{
	const struct rs_lane *l = &p->lanes[0];

	RS_LANE_TRY(cudaSetDevice, l->device);
	RS_LANE_TRY(cudaLibraryLoadData, &p->library, p->o.kernel, NULL, NULL, 0, NULL, NULL, 0);
	RS_LANE_TRY(cudaLibraryGetKernel, ret, p->library, "scalai_copy");
	RS_LANE_TRY(cudaHostRegister, p->o.memory, rs_pool_bytes(&p->o.pool), cudaHostRegisterPortable);
	p->pinned = true;
	return 0;
}

static int no_idle(void *arg, struct sc_err *err)
{
	(void)arg, (void)err;
	return 0;
}

int rs_pipeline_new(const struct rs_pipeline_options *options, struct rs_pipeline **ret, struct sc_err *err)
{
	struct rs_pipeline *p = sc_zalloc(sizeof(*p));
	cudaKernel_t kernel = NULL;
	struct sc_err ignored;
	int rc;

	if (!p)
		return sc_nomem(err);
	p->o = *options;
	for (uint32_t k = 0; k < p->o.pool.peers; k++)
		p->lanes[k] = (struct rs_lane){.device = p->o.devices[k], .pool = &p->o.pool};
	rc = load(p, &kernel, err);
	for (uint32_t k = 0; rc == 0 && k < p->o.pool.peers; k++) {
		p->lanes[k].kernel = kernel;
		rc = rs_lane_begin(&p->lanes[k], p->o.memory, k, err);
	}
	if (rc == 0) {
		*ret = p;
		return 0;
	}
	p->o.idle = no_idle; /* nothing was enqueued: it ends at once */
	(void)rs_pipeline_close(p, &ignored);
	return rc;
}

/* Joins the pass, before anything runs that NCCL would wait for. */
static int begin_pass(struct rs_pipeline *p, struct sc_err *err)
{
	struct rs_exchange_options o = {.world = rs_pool_world(&p->o.pool), .peers = p->o.pool.peers,
					.first = p->o.pool.first, .devices = p->o.devices,
					.timeout_ms = p->o.exchange_ms, .idle = p->o.idle, .arg = p->o.arg};
	int rc = 0;

	if (p->exchange || o.world == 1)
		return 0;
	if (p->has_id)
		memcpy(o.id, p->id, sizeof(o.id));
	else
		rc = rs_exchange_id(o.id, err);
	return rc < 0 ? rc : rs_exchange_new(&o, &p->exchange, err);
}

/* --- a round --- */

/* Waits a little for a device.  One that takes part in an exchange may wait for a peer: then there is a time limit. */
static int wait_a_little(struct rs_pipeline *p, int64_t until, const struct rs_lane *l, struct sc_err *err)
{
	int rc = p->o.idle(p->o.arg, err);

	if (rc == 0 && p->exchange)
		rc = rs_exchange_check(p->exchange, err);
	if (rc == 0 && p->exchange && sc_now_ns() >= until)
		rc = sc_fail(err, SC_E_SYSTEM, "GPU %d: a round has not ended for %u ms: a peer is gone, or far",
			     l->device, p->o.exchange_ms);
	return rc;
}

static int wait_by_host(struct rs_pipeline *p, const struct rs_lane *l, cudaEvent_t event, struct sc_err *err)
{
	const int64_t until = sc_now_ns() + (int64_t)p->o.exchange_ms * 1000000;
	cudaError_t state;

	while ((state = cudaEventQuery(event)) == cudaErrorNotReady) {
		int rc = wait_a_little(p, until, l, err);

		if (rc < 0)
			return rc;
	}
	return state == cudaSuccess ? 0 : rs_lane_failed(l, state, "work of the device", err);
}

static int wait_for_all(struct rs_pipeline *p, unsigned slot, enum rs_lane_event event, struct sc_err *err)
{
	int rc = 0;

	for (uint32_t k = 0; rc == 0 && k < p->o.pool.peers; k++)
		rc = wait_by_host(p, &p->lanes[k], p->lanes[k].slots[slot].events[event], err);
	return rc;
}

static int check(const struct rs_pipeline *p, uint32_t k, const struct rs_share *s, struct sc_err *err)
{
	const uint64_t bytes = p->o.pool.window_bytes, exchanged = rs_pool_world(&p->o.pool) > 1 ? bytes : 0;
	const uint32_t boxes = p->o.pool.boxes_max, extents = rs_pool_extents(&p->o.pool);

	if (s->in_bytes > bytes || s->out_bytes > bytes || s->send_bytes > exchanged || s->recv_bytes > exchanged)
		return sc_fail(err, SC_E_LIMIT, "GPU %d: a round reads %" PRIu64 ", writes %" PRIu64 ", sends %" PRIu64
			       " and receives %" PRIu64 " bytes, windows have %" PRIu64, p->o.devices[k], s->in_bytes,
			       s->out_bytes, s->send_bytes, s->recv_bytes, bytes);
	if (s->nr_copies > boxes || s->nr_packs > boxes || s->nr_unpacks > boxes || s->nr_out > extents)
		return sc_fail(err, SC_E_LIMIT, "GPU %d: a round has %u copies, %u and %u for or of peers, and %u "
			       "ranges to write, tables have %u boxes", p->o.devices[k], s->nr_copies, s->nr_packs,
			       s->nr_unpacks, s->nr_out, boxes);
	return 0;
}

static int exchange(struct rs_pipeline *p, unsigned slot, const struct rs_round *round, struct sc_err *err)
{
	struct rs_exchange_peer peers[RS_POOL_PEERS_MAX];
	bool some = false;

	for (uint32_t k = 0; k < round->nr; k++) {
		const struct rs_lane *l = &p->lanes[k];

		peers[k] = (struct rs_exchange_peer){l->streams[RS_LANE_NET], l->slots[slot].device[RS_POOL_SEND],
						     l->slots[slot].device[RS_POOL_RECV], &round->shares[k]};
		some |= round->shares[k].send_bytes || round->shares[k].recv_bytes;
	}
	return some ? rs_exchange_put(p->exchange, peers, err) : 0;
}

static int drain(struct rs_pipeline *p, unsigned slot, struct sc_err *err)
{
	int rc;

	if (!p->full[slot])
		return 0;
	rc = wait_for_all(p, slot, RS_LANE_OUT_DONE, err);
	if (rc == 0 && !p->to)
		rc = p->o.drain(p->o.arg, slot, err);
	p->full[slot] = false;
	return rc;
}

static int prepare(struct rs_pipeline *p, unsigned slot, const struct rs_round *round, struct sc_err *err)
{
	int rc = 0;

	for (uint32_t k = 0; rc == 0 && k < round->nr; k++)
		rc = check(p, k, &round->shares[k], err);
	if (rc == 0)
		rc = begin_pass(p, err);
	if (rc == 0)
		rc = wait_for_all(p, slot, RS_LANE_IN_DONE, err);
	for (uint32_t k = 0; rc == 0 && k < round->nr; k++)
		rc = rs_lane_plan(&p->lanes[k], slot, &round->shares[k], err);
	return rc == 0 ? p->o.fill(p->o.arg, round, slot, err) : rc;
}

static int put(struct rs_pipeline *p, unsigned slot, const struct rs_round *round, struct sc_err *err)
{
	int rc = prepare(p, slot, round, err);

	for (uint32_t k = 0; rc == 0 && k < round->nr; k++)
		rc = rs_lane_run(&p->lanes[k], slot, &round->shares[k], err);
	if (rc == 0)
		rc = exchange(p, slot, round, err);
	for (uint32_t k = 0; rc == 0 && p->exchange && k < round->nr; k++)
		rc = rs_lane_unpack(&p->lanes[k], slot, err);
	if (rc == 0 && !p->to)
		rc = drain(p, slot, err);
	for (uint32_t k = 0; rc == 0 && k < round->nr; k++)
		rc = p->to ? rs_lane_keep(&p->lanes[k], slot, &round->shares[k], p->to, err)
			   : rs_lane_out(&p->lanes[k], slot, &round->shares[k], err);
	p->full[slot] = rc == 0;
	return rc;
}

int rs_pipeline_put(struct rs_pipeline *p, const struct rs_round *round, struct sc_err *err)
{
	const unsigned slot = p->next;

	if (p->first.code) {
		*err = p->first;
		return err->code;
	}
	p->next = (slot + 1) % RS_POOL_SLOTS;
	return keep(p, put(p, slot, round, err), err);
}

int rs_pipeline_finish(struct rs_pipeline *p, struct sc_err *err)
{
	int rc = p->first.code;

	if (rc < 0)
		*err = p->first;
	for (unsigned i = 0; rc == 0 && i < RS_POOL_SLOTS; i++)
		rc = keep(p, drain(p, (p->next + i) % RS_POOL_SLOTS, err), err);
	if (rc == 0 && p->exchange)
		rc = keep(p, rs_exchange_finish(sc_steal(&p->exchange), err), err);
	return rc;
}

/* --- buffers --- */

int rs_pipeline_load(struct rs_pipeline *p, uint32_t nr, uint64_t bytes, char *ret_text, struct sc_err *err)
{
	int rc = p->first.code;

	if (rc < 0) {
		*err = p->first;
		return rc;
	}
	rc = rs_lane_take(&p->lanes[0], bytes, &p->buffers[nr - 1], ret_text, err);
	return rc == SC_E_NO_MEMORY ? rc : keep(p, rc, err);
}

int rs_pipeline_unload(struct rs_pipeline *p, uint32_t nr, struct sc_err *err)
{
	return keep(p, rs_lane_give(&p->lanes[0], &p->buffers[nr - 1], err), err);
}

int rs_pipeline_begin(struct rs_pipeline *p, uint32_t nr, const unsigned char *id, struct sc_err *err)
{
	p->has_id = id != NULL;
	if (id)
		memcpy(p->id, id, sizeof(p->id));
	p->to = nr ? &p->buffers[nr - 1] : NULL;
	p->full[p->next] = p->to != NULL; /* rs_pipeline_finish() waits */
	return p->to ? keep(p, rs_lane_clear(&p->lanes[0], p->next, p->to, err), err) : 0;
}

/* --- end --- */

/* Waits until a stream has nothing to do.  If an error comes twice, the device does nothing any more. */
static int wait_for_stream(struct rs_pipeline *p, cudaStream_t stream, struct sc_err *err)
{
	cudaError_t state = stream ? cudaErrorNotReady : cudaSuccess;

	for (int errors = 0; state != cudaSuccess && errors < 2;) {
		int rc = 0;

		state = cudaStreamQuery(stream);
		if (state == cudaErrorNotReady)
			rc = p->o.idle(p->o.arg, err);
		else
			errors++;
		if (rc < 0)
			return rc;
	}
	return 0;
}

/* Leaves the exchange first, so that no device waits for a peer any more. */
int rs_pipeline_close(struct rs_pipeline *p, struct sc_err *err)
{
	int rc = 0;

	if (!p)
		return 0;
	rs_exchange_abort(sc_steal(&p->exchange));
	for (uint32_t k = 0; k < p->o.pool.peers; k++)
		for (unsigned i = 0; rc == 0 && i < RS_LANE_STREAMS; i++)
			rc = wait_for_stream(p, p->lanes[k].streams[i], err);
	if (rc < 0)
		return rc;
	for (unsigned i = 0; i < RS_POOL_LOADS_MAX; i++)
		if (p->buffers[i].at)
			(void)rs_lane_give(&p->lanes[0], &p->buffers[i], err);
	for (uint32_t k = 0; k < p->o.pool.peers; k++)
		rs_lane_end(&p->lanes[k]);
	if (p->pinned)
		(void)cudaHostUnregister(p->o.memory);
	if (p->library)
		(void)cudaLibraryUnload(p->library);
	sc_sys.release(p);
	return 0;
}
