/* SPDX-License-Identifier: Apache-2.0 */
#include "reshard/engine/gpu_helper/exchange.h"

#include <assert.h>
#include <string.h>

#include "meta/base/mem.h"
#include "reshard/engine/gpu_helper/nccl.h"

static_assert(sizeof(ncclUniqueId) == RS_EXCHANGE_ID_BYTES, "an id is NCCL's");

struct rs_exchange {
	struct rs_exchange_options o;
	const struct rs_nccl *nccl;
	ncclComm_t comms[];	/* of each peer of this process; NULL: it has none */
};

static int nccl_failed(const struct rs_exchange *e, uint32_t peer, ncclResult_t rc, const char *call,
		       struct sc_err *err)
{
	return sc_fail(err, SC_E_SYSTEM, "GPU %d: %s failed: %s", e->o.devices[peer], call, e->nccl->text(rc));
}

/* Tells whether a call succeeded, or goes on by itself. */
static bool is_good(ncclResult_t rc)
{
	return rc == ncclSuccess || rc == ncclInProgress;
}

/* Waits until NCCL says of no communicator any more that the call is in progress. */
static int settle(struct rs_exchange *e, const char *call, struct sc_err *err)
{
	const int64_t until = sc_now_ns() + (int64_t)e->o.timeout_ms * 1000000;

	for (uint32_t p = 0; p < e->o.peers; p++) {
		ncclResult_t state = ncclInProgress;

		while (state == ncclInProgress) {
			ncclResult_t rc = e->nccl->state(e->comms[p], &state);
			int idle;

			if (rc != ncclSuccess)
				return nccl_failed(e, p, rc, "ncclCommGetAsyncError()", err);
			if (state != ncclInProgress)
				break;
			if (sc_now_ns() >= until)
				return sc_fail(err, SC_E_SYSTEM, "GPU %d: %s has not ended for %u ms: a peer is gone, "
					       "or far", e->o.devices[p], call, e->o.timeout_ms);
			idle = e->o.idle(e->o.arg, err);
			if (idle < 0)
				return idle;
		}
		if (state != ncclSuccess)
			return nccl_failed(e, p, state, call, err);
	}
	return 0;
}

/* Ends a group that was begun, also if a call in it failed (rc). */
static int end_group(struct rs_exchange *e, const char *call, int rc, struct sc_err *err)
{
	const ncclResult_t ended = e->nccl->group_end();

	if (rc == 0 && !is_good(ended))
		rc = nccl_failed(e, 0, ended, "ncclGroupEnd()", err);
	return rc < 0 ? rc : settle(e, call, err);
}

/* --- join --- */

int rs_exchange_id(unsigned char *ret, struct sc_err *err)
{
	const struct rs_nccl *nccl;
	ncclUniqueId id;
	char version[40];
	int rc = rs_nccl_load(&nccl, version, sizeof(version), err);

	if (rc == 0 && nccl->unique_id(&id) != ncclSuccess)
		rc = sc_fail(err, SC_E_SYSTEM, "ncclGetUniqueId() failed");
	if (rc == 0)
		memcpy(ret, &id, sizeof(id));
	return rc;
}

static int init(struct rs_exchange *e, uint32_t p, struct sc_err *err)
{
	ncclConfig_t config = NCCL_CONFIG_INITIALIZER;
	ncclUniqueId id;
	ncclResult_t rc;
	cudaError_t set = cudaSetDevice(e->o.devices[p]);

	if (set != cudaSuccess)
		return sc_fail(err, SC_E_SYSTEM, "GPU %d: cudaSetDevice() failed: %s (%s)", e->o.devices[p],
			       cudaGetErrorName(set), cudaGetErrorString(set));
	config.blocking = 0;
	memcpy(&id, e->o.id, sizeof(id));
	rc = e->nccl->init(&e->comms[p], (int)e->o.world, id, (int)(e->o.first + p), &config);
	return is_good(rc) ? 0 : nccl_failed(e, p, rc, "ncclCommInitRankConfig()", err);
}

static int join(struct rs_exchange *e, struct sc_err *err)
{
	ncclResult_t started = e->nccl->group_start();
	int rc = 0;

	if (started != ncclSuccess)
		return nccl_failed(e, 0, started, "ncclGroupStart()", err);
	for (uint32_t p = 0; rc == 0 && p < e->o.peers; p++)
		rc = init(e, p, err);
	return end_group(e, "ncclCommInitRankConfig()", rc, err);
}

int rs_exchange_new(const struct rs_exchange_options *options, struct rs_exchange **ret, struct sc_err *err)
{
	struct rs_exchange *e = sc_zalloc(sizeof(*e) + options->peers * sizeof(*e->comms));
	char version[40];
	int rc;

	if (!e)
		return sc_nomem(err);
	e->o = *options;
	rc = rs_nccl_load(&e->nccl, version, sizeof(version), err);
	if (rc == 0)
		rc = join(e, err);
	if (rc < 0)
		rs_exchange_abort(e);
	else
		*ret = e;
	return rc;
}

/* --- a round --- */

static int put_peer(struct rs_exchange *e, uint32_t p, const struct rs_exchange_peer *peer, struct sc_err *err)
{
	const struct rs_share *s = peer->share;

	for (uint32_t q = 0; q < e->o.world; q++) {
		ncclResult_t rc = ncclSuccess;

		if (s->sends[q].bytes)
			rc = e->nccl->send(peer->send + s->sends[q].at, s->sends[q].bytes, ncclUint8, (int)q,
					   e->comms[p], peer->stream);
		if (!is_good(rc))
			return nccl_failed(e, p, rc, "ncclSend()", err);
		if (s->recvs[q].bytes)
			rc = e->nccl->recv(peer->recv + s->recvs[q].at, s->recvs[q].bytes, ncclUint8, (int)q,
					   e->comms[p], peer->stream);
		if (!is_good(rc))
			return nccl_failed(e, p, rc, "ncclRecv()", err);
	}
	return 0;
}

int rs_exchange_put(struct rs_exchange *e, const struct rs_exchange_peer *peers, struct sc_err *err)
{
	ncclResult_t started = e->nccl->group_start();
	int rc = 0;

	if (started != ncclSuccess)
		return nccl_failed(e, 0, started, "ncclGroupStart()", err);
	for (uint32_t p = 0; rc == 0 && p < e->o.peers; p++)
		rc = put_peer(e, p, &peers[p], err);
	return end_group(e, "an exchange", rc, err);
}

int rs_exchange_check(struct rs_exchange *e, struct sc_err *err)
{
	for (uint32_t p = 0; p < e->o.peers; p++) {
		ncclResult_t state = ncclSuccess, rc = e->nccl->state(e->comms[p], &state);

		if (rc != ncclSuccess)
			return nccl_failed(e, p, rc, "ncclCommGetAsyncError()", err);
		if (!is_good(state))
			return nccl_failed(e, p, state, "an exchange", err);
	}
	return 0;
}

/* --- leave --- */

int rs_exchange_finish(struct rs_exchange *e, struct sc_err *err)
{
	ncclResult_t started = e->nccl->group_start();
	int rc = 0;

	if (started != ncclSuccess)
		rc = nccl_failed(e, 0, started, "ncclGroupStart()", err);
	for (uint32_t p = 0; rc == 0 && p < e->o.peers; p++) {
		ncclResult_t finalized = e->nccl->finalize(e->comms[p]);

		if (!is_good(finalized))
			rc = nccl_failed(e, p, finalized, "ncclCommFinalize()", err);
	}
	if (started == ncclSuccess)
		rc = end_group(e, "ncclCommFinalize()", rc, err);
	for (uint32_t p = 0; rc == 0 && p < e->o.peers; p++) {
		ncclResult_t destroyed = e->nccl->destroy(e->comms[p]);

		e->comms[p] = NULL;
		if (destroyed != ncclSuccess)
			rc = nccl_failed(e, p, destroyed, "ncclCommDestroy()", err);
	}
	rs_exchange_abort(e);
	return rc;
}

/* Aborts all communicators in one group: one that waited for another to leave would wait for ever. */
void rs_exchange_abort(struct rs_exchange *e)
{
	bool in_group;

	if (!e)
		return;
	in_group = e->nccl && e->nccl->group_start() == ncclSuccess;
	for (uint32_t p = 0; p < e->o.peers; p++)
		if (e->comms[p])
			(void)e->nccl->abort(e->comms[p]);
	if (in_group)
		(void)e->nccl->group_end();
	sc_sys.release(e);
}
