/* SPDX-License-Identifier: Apache-2.0 */
#include "reshard/engine/gpu_helper/lane.h"

#include <inttypes.h>
#include <stdio.h>

#include "meta/base/err.h"
#include "meta/base/text.h"

#define BLOCKS_PER_SM 16u	/* four times what run at once: those that end early make room for others */

#define TRY RS_LANE_TRY

int rs_lane_failed(const struct rs_lane *l, cudaError_t rc, const char *call, struct sc_err *err)
{
	if (rc == cudaErrorMemoryAllocation)
		return sc_fail(err, SC_E_NO_MEMORY, "GPU %d: %s: it has no memory for windows of %" PRIu64 " bytes",
			       l->device, call, l->pool->window_bytes);
	return sc_fail(err, SC_E_SYSTEM, "GPU %d: %s failed: %s (%s)", l->device, call, cudaGetErrorName(rc),
		       cudaGetErrorString(rc));
}

/* --- begin and end --- */

static struct rs_tables tables_at(const struct rs_lane *l, unsigned char *place)
{
	const uint32_t boxes = rs_pool_boxes(l->pool);

	return (struct rs_tables){
		.boxes = (struct rs_box *)place,
		.tiles = (struct rs_tile *)(place + boxes * sizeof(struct rs_box)),
		.boxes_max = boxes, .tiles_max = rs_pool_tiles(l->pool),
	};
}

static int make_slot(struct rs_lane *l, unsigned nr, unsigned char *memory, uint32_t peer, struct sc_err *err)
{
	struct rs_lane_slot *s = &l->slots[nr];

	for (enum rs_pool_part k = RS_POOL_IN; k < RS_POOL_PINNED; k++)
		s->pinned[k] = memory + rs_pool_place(l->pool, peer, nr, k);
	for (enum rs_pool_part k = RS_POOL_IN; k < RS_POOL_PARTS; k++) {
		const uint64_t bytes = rs_pool_part_bytes(l->pool, k);

		if (bytes)
			TRY(cudaMalloc, (void **)&s->device[k], bytes);
	}
	for (enum rs_lane_event k = 0; k <= l->last || k <= RS_LANE_OUT_DONE; k++)
		TRY(cudaEventCreateWithFlags, &s->events[k], cudaEventDisableTiming);
	return 0;
}

int rs_lane_begin(struct rs_lane *l, unsigned char *memory, uint32_t peer, struct sc_err *err)
{
	const bool exchanges = rs_pool_world(l->pool) > 1;
	const unsigned streams = exchanges ? RS_LANE_STREAMS : RS_LANE_NET;
	int multiprocessors = 0, rc = 0;

	l->last = exchanges ? RS_LANE_UNPACKED : RS_LANE_RAN;
	TRY(cudaSetDevice, l->device);
	TRY(cudaDeviceGetAttribute, &multiprocessors, cudaDevAttrMultiProcessorCount, l->device);
	l->blocks_max = BLOCKS_PER_SM * (unsigned)multiprocessors;
	for (unsigned k = 0; k < streams; k++)
		TRY(cudaStreamCreateWithFlags, &l->streams[k], cudaStreamNonBlocking);
	for (unsigned i = 0; rc == 0 && i < RS_POOL_SLOTS; i++)
		rc = make_slot(l, i, memory, peer, err);
	return rc;
}

void rs_lane_end(struct rs_lane *l)
{
	for (unsigned i = 0; i < RS_POOL_SLOTS; i++) {
		struct rs_lane_slot *s = &l->slots[i];

		for (unsigned k = 0; k < RS_POOL_PARTS; k++)
			if (s->device[k])
				(void)cudaFree(s->device[k]);
		for (unsigned k = 0; k < RS_LANE_EVENTS; k++)
			if (s->events[k])
				(void)cudaEventDestroy(s->events[k]);
	}
	for (unsigned k = 0; k < RS_LANE_STREAMS; k++)
		if (l->streams[k])
			(void)cudaStreamDestroy(l->streams[k]);
}

/* --- tables --- */

static struct rs_window window(const struct rs_lane_slot *s, enum rs_pool_part part, uint64_t bytes)
{
	return (struct rs_window){(uint64_t)(uintptr_t)s->device[part], bytes};
}

static int add(struct rs_tables *t, const struct rs_copy *copies, uint32_t nr, struct rs_window from,
	       struct rs_window to, struct sc_err *err)
{
	int rc = 0;

	for (uint32_t i = 0; rc == 0 && i < nr; i++)
		rc = rs_tables_add(t, &copies[i], &from, &to, err);
	return rc;
}

int rs_lane_plan(struct rs_lane *l, unsigned slot, const struct rs_share *share, struct sc_err *err)
{
	struct rs_lane_slot *s = &l->slots[slot];
	const struct rs_window in = window(s, RS_POOL_IN, share->in_bytes);
	const struct rs_window out = window(s, RS_POOL_OUT, share->out_bytes);
	struct rs_tables *t = &s->tables;
	int rc = 0;

	*t = tables_at(l, s->pinned[RS_POOL_TABLES]);
	for (uint32_t i = 0; rc == 0 && i < share->nr_out; i++)
		if (share->out[i].zero)
			rc = rs_tables_add(t, &(struct rs_copy){.to = share->out[i].window, .run = share->out[i].bytes},
					   NULL, &out, err);
	s->zeros = t->nr_tiles;
	if (rc == 0)
		rc = add(t, share->copies, share->nr_copies, in, out, err);
	if (rc == 0)
		rc = add(t, share->packs, share->nr_packs, in, window(s, RS_POOL_SEND, share->send_bytes), err);
	s->boxes = t->nr_tiles;
	if (rc == 0)
		rc = add(t, share->unpacks, share->nr_unpacks, window(s, RS_POOL_RECV, share->recv_bytes), out, err);
	return rc;
}

/* --- work --- */

static int copy(struct rs_lane *l, enum rs_lane_stream stream, void *to, const void *from, uint64_t bytes,
		struct sc_err *err)
{
	if (bytes)
		TRY(cudaMemcpyAsync, to, from, bytes,
		    stream == RS_LANE_OUT ? cudaMemcpyDeviceToHost : cudaMemcpyHostToDevice, l->streams[stream]);
	return 0;
}

/* Enqueues the kernel for tiles [first, end) of a slot. */
static int launch(struct rs_lane *l, enum rs_lane_stream stream, const struct rs_lane_slot *s, uint32_t first,
		  uint32_t end, struct sc_err *err)
{
	const struct rs_tables t = tables_at(l, s->device[RS_POOL_TABLES]);
	const struct rs_tile *tiles = t.tiles + first;
	uint32_t nr = end - first;
	void *args[] = {(void *)&t.boxes, &tiles, &nr};
	const unsigned blocks = nr < l->blocks_max ? nr : l->blocks_max;

	if (nr)
		TRY(cudaLaunchKernel, (const void *)l->kernel, (dim3){blocks, 1, 1}, (dim3){RS_BLOCK_THREADS, 1, 1},
		    args, 0, l->streams[stream]);
	return 0;
}

static int copy_in(struct rs_lane *l, struct rs_lane_slot *s, const struct rs_share *share, struct sc_err *err)
{
	const struct rs_tables *pinned = &s->tables, device = tables_at(l, s->device[RS_POOL_TABLES]);
	int rc;

	TRY(cudaStreamWaitEvent, l->streams[RS_LANE_IN], s->events[l->last], 0);
	rc = copy(l, RS_LANE_IN, s->device[RS_POOL_IN], s->pinned[RS_POOL_IN], share->in_bytes, err);
	if (rc == 0)
		rc = copy(l, RS_LANE_IN, device.boxes, pinned->boxes, pinned->nr_boxes * sizeof(struct rs_box), err);
	if (rc == 0)
		rc = copy(l, RS_LANE_IN, device.tiles, pinned->tiles, pinned->nr_tiles * sizeof(struct rs_tile), err);
	if (rc == 0)
		TRY(cudaEventRecord, s->events[RS_LANE_IN_DONE], l->streams[RS_LANE_IN]);
	return rc;
}

static int clear(struct rs_lane *l, struct rs_lane_slot *s, struct sc_err *err)
{
	if (!s->cleared)
		TRY(cudaMemsetAsync, s->device[RS_POOL_OUT], 0, l->pool->window_bytes, l->streams[RS_LANE_RUN]);
	s->cleared = true;
	return 0;
}

int rs_lane_run(struct rs_lane *l, unsigned slot, const struct rs_share *share, struct sc_err *err)
{
	struct rs_lane_slot *s = &l->slots[slot];
	int rc;

	TRY(cudaSetDevice, l->device); /* launches are to streams of it */
	rc = copy_in(l, s, share, err);
	if (rc < 0)
		return rc;
	TRY(cudaStreamWaitEvent, l->streams[RS_LANE_RUN], s->events[RS_LANE_IN_DONE], 0);
	TRY(cudaStreamWaitEvent, l->streams[RS_LANE_RUN], s->events[RS_LANE_OUT_DONE], 0);
	rc = clear(l, s, err);
	if (rc == 0)
		rc = launch(l, RS_LANE_RUN, s, 0, s->zeros, err);
	if (rc == 0)
		rc = launch(l, RS_LANE_RUN, s, s->zeros, s->boxes, err);
	if (rc == 0)
		TRY(cudaEventRecord, s->events[RS_LANE_RAN], l->streams[RS_LANE_RUN]);
	if (rc == 0 && l->streams[RS_LANE_NET])
		TRY(cudaStreamWaitEvent, l->streams[RS_LANE_NET], s->events[RS_LANE_RAN], 0);
	return rc;
}

int rs_lane_unpack(struct rs_lane *l, unsigned slot, struct sc_err *err)
{
	struct rs_lane_slot *s = &l->slots[slot];
	int rc;

	TRY(cudaSetDevice, l->device);
	TRY(cudaEventRecord, s->events[RS_LANE_EXCHANGED], l->streams[RS_LANE_NET]);
	TRY(cudaStreamWaitEvent, l->streams[RS_LANE_UNPACK], s->events[RS_LANE_EXCHANGED], 0);
	rc = launch(l, RS_LANE_UNPACK, s, s->boxes, s->tables.nr_tiles, err);
	if (rc == 0)
		TRY(cudaEventRecord, s->events[RS_LANE_UNPACKED], l->streams[RS_LANE_UNPACK]);
	return rc;
}

int rs_lane_out(struct rs_lane *l, unsigned slot, const struct rs_share *share, struct sc_err *err)
{
	struct rs_lane_slot *s = &l->slots[slot];
	int rc;

	TRY(cudaStreamWaitEvent, l->streams[RS_LANE_OUT], s->events[l->last], 0);
	rc = copy(l, RS_LANE_OUT, s->pinned[RS_POOL_OUT], s->device[RS_POOL_OUT], share->out_bytes, err);
	if (rc == 0)
		TRY(cudaEventRecord, s->events[RS_LANE_OUT_DONE], l->streams[RS_LANE_OUT]);
	return rc;
}

/* --- buffers --- */

#define PCI_BYTES 32

/* A process that opens a handle opens the whole block that CUDA has cut the memory from; so many bytes are a block of
 * their own. */
#define BLOCK_BYTES (2u << 20)

static void describe(const char *pci, const cudaIpcMemHandle_t *handle, char *ret)
{
	_Static_assert(PCI_BYTES + 2 * sizeof(handle->reserved) + 2 <= RS_POOL_HANDLE_BYTES, "a handle has no room");
	const int at = snprintf(ret, RS_POOL_HANDLE_BYTES, "%.*s ", PCI_BYTES, pci);

	(void)sc_hex(ret + at, handle->reserved, sizeof(handle->reserved));
}

static int take(struct rs_lane *l, struct rs_lane_buffer *b, cudaIpcMemHandle_t *ret_handle, struct sc_err *err)
{
	cudaError_t rc;

	TRY(cudaSetDevice, l->device);
	rc = cudaMalloc((void **)&b->at, b->room);
	if (rc == cudaErrorMemoryAllocation)
		return sc_fail(err, SC_E_NO_MEMORY, "GPU %d has no %" PRIu64 " bytes left", l->device, b->room);
	if (rc != cudaSuccess)
		return rs_lane_failed(l, rc, "cudaMalloc()", err);
	TRY(cudaIpcGetMemHandle, ret_handle, b->at);
	return 0;
}

int rs_lane_take(struct rs_lane *l, uint64_t bytes, struct rs_lane_buffer *ret, char ret_text[RS_POOL_HANDLE_BYTES],
		 struct sc_err *err)
{
	struct rs_lane_buffer b = {.bytes = bytes, .room = (bytes + BLOCK_BYTES - 1) / BLOCK_BYTES * BLOCK_BYTES};
	cudaIpcMemHandle_t handle;
	char pci[PCI_BYTES];
	int rc;

	TRY(cudaDeviceGetPCIBusId, pci, PCI_BYTES, l->device);
	rc = b.room < bytes ? sc_fail(err, SC_E_NO_MEMORY, "no GPU has %" PRIu64 " bytes", bytes)
			    : take(l, &b, &handle, err);
	if (rc < 0) {
		if (b.at)
			(void)cudaFree(b.at);
		return rc;
	}
	describe(pci, &handle, ret_text);
	*ret = b;
	return 0;
}

int rs_lane_give(struct rs_lane *l, struct rs_lane_buffer *buffer, struct sc_err *err)
{
	unsigned char *at = buffer->at;

	*buffer = (struct rs_lane_buffer){0};
	TRY(cudaFree, at);
	return 0;
}

int rs_lane_clear(struct rs_lane *l, unsigned slot, const struct rs_lane_buffer *buffer, struct sc_err *err)
{
	TRY(cudaSetDevice, l->device);
	TRY(cudaMemsetAsync, buffer->at, 0, buffer->room, l->streams[RS_LANE_OUT]);
	TRY(cudaEventRecord, l->slots[slot].events[RS_LANE_OUT_DONE], l->streams[RS_LANE_OUT]);
	return 0;
}

int rs_lane_keep(struct rs_lane *l, unsigned slot, const struct rs_share *share, const struct rs_lane_buffer *buffer,
		 struct sc_err *err)
{
	struct rs_lane_slot *s = &l->slots[slot];

	TRY(cudaStreamWaitEvent, l->streams[RS_LANE_OUT], s->events[l->last], 0);
	for (uint32_t i = 0; i < share->nr_out; i++) {
		const struct rs_extent *e = &share->out[i];

		if (e->at > buffer->bytes || e->bytes > buffer->bytes - e->at)
			return sc_fail(err, SC_E_STATE, "GPU %d: bytes %" PRIu64 " to %" PRIu64 " are no part of a "
				       "file of %" PRIu64, l->device, e->at, e->at + e->bytes, buffer->bytes);
		if (e->bytes)
			TRY(cudaMemcpyAsync, buffer->at + e->at, s->device[RS_POOL_OUT] + e->window, e->bytes,
			    cudaMemcpyDeviceToDevice, l->streams[RS_LANE_OUT]);
	}
	TRY(cudaEventRecord, s->events[RS_LANE_OUT_DONE], l->streams[RS_LANE_OUT]);
	return 0;
}
