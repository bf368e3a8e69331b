/* SPDX-License-Identifier: Apache-2.0 */
#include "reshard/cuda/pipeline.h"

#include <cuda_runtime_api.h>
#include <inttypes.h>

#include "meta/base/err.h"
#include "meta/base/mem.h"
#include "reshard/gpu/boxes.h"

#define BLOCKS_PER_SM 4u	/* as the kernel's launch bounds say */

enum { IN = RS_POOL_IN, OUT = RS_POOL_OUT, TABLES = RS_POOL_TABLES };

struct slot {
	unsigned char *pinned[RS_POOL_PARTS], *device[RS_POOL_PARTS];
	cudaEvent_t in_done, copied, out_done;
	struct rs_extent *out;	/* of a share that is not drained */
	uint32_t nr_out;
	bool full;		/* it has one */
};

struct rs_pipeline {
	struct rs_pipeline_options o;
	struct sc_err first;	/* code 0: none */
	cudaLibrary_t library;
	cudaKernel_t kernel;
	unsigned blocks_max;
	bool pinned;
	cudaStream_t in, run, out;
	unsigned next;		/* the slot of the next share */
	struct slot slots[RS_POOL_SLOTS];
};

/* --- errors --- */

/* Keeps the first one.  A caller's error may be about anything; what it said is kept as it is. */
static int keep(struct rs_pipeline *p, int rc, const struct sc_err *err)
{
	if (rc < 0 && !p->first.code)
		p->first = *err;
	return rc;
}

static int cuda_failed(const struct rs_pipeline *p, cudaError_t rc, const char *call, struct sc_err *err)
{
	if (rc == cudaErrorMemoryAllocation)
		return sc_fail(err, SC_E_NO_MEMORY, "GPU %d: %s: it has no memory for windows of %" PRIu64 " bytes",
			       p->o.device, call, p->o.pool.window_bytes);
	return sc_fail(err, SC_E_SYSTEM, "GPU %d: %s failed: %s (%s)", p->o.device, call, cudaGetErrorName(rc),
		       cudaGetErrorString(rc));
}

/* Leaves the function if a call fails; its name is what is said. */
#define TRY(function, ...)                                                                         \
	do {                                                                                       \
		cudaError_t tried = function(__VA_ARGS__);                                         \
                                                                                                   \
		if (tried != cudaSuccess)                                                          \
			return cuda_failed(p, tried, #function "()", err);                         \
	} while (0)

/* --- begin --- */

static int load_kernel(struct rs_pipeline *p, struct sc_err *err)
{
	int multiprocessors = 0;

	TRY(cudaSetDevice, p->o.device);
	TRY(cudaDeviceGetAttribute, &multiprocessors, cudaDevAttrMultiProcessorCount, p->o.device);
	p->blocks_max = BLOCKS_PER_SM * (unsigned)multiprocessors;
	TRY(cudaLibraryLoadData, &p->library, p->o.kernel, NULL, NULL, 0, NULL, NULL, 0);
	TRY(cudaLibraryGetKernel, &p->kernel, p->library, "scalai_copy");
	TRY(cudaHostRegister, p->o.memory, rs_pool_bytes(&p->o.pool), cudaHostRegisterDefault);
	p->pinned = true;
	TRY(cudaStreamCreateWithFlags, &p->in, cudaStreamNonBlocking);
	TRY(cudaStreamCreateWithFlags, &p->run, cudaStreamNonBlocking);
	TRY(cudaStreamCreateWithFlags, &p->out, cudaStreamNonBlocking);
	return 0;
}

static int make_slot(struct rs_pipeline *p, unsigned nr, struct sc_err *err)
{
	struct slot *s = &p->slots[nr];

	for (enum rs_pool_part k = RS_POOL_IN; k < RS_POOL_PARTS; k++) {
		s->pinned[k] = (unsigned char *)p->o.memory + rs_pool_place(&p->o.pool, nr, k);
		TRY(cudaMalloc, (void **)&s->device[k], rs_pool_part_bytes(&p->o.pool, k));
	}
	TRY(cudaEventCreateWithFlags, &s->in_done, cudaEventDisableTiming);
	TRY(cudaEventCreateWithFlags, &s->copied, cudaEventDisableTiming);
	TRY(cudaEventCreateWithFlags, &s->out_done, cudaEventDisableTiming);
	s->out = sc_zalloc(p->o.pool.boxes_max * sizeof(*s->out));
	return s->out ? 0 : sc_nomem(err);
}

static int no_idle(void *arg, struct sc_err *err)
{
	(void)arg, (void)err;
	return 0;
}

int rs_pipeline_new(const struct rs_pipeline_options *options, struct rs_pipeline **ret, struct sc_err *err)
{
	struct rs_pipeline *p = sc_zalloc(sizeof(*p));
	struct sc_err ignored;
	int rc;

	if (!p)
		return sc_nomem(err);
	p->o = *options;
	rc = load_kernel(p, err);
	for (unsigned i = 0; rc == 0 && i < RS_POOL_SLOTS; i++)
		rc = make_slot(p, i, err);
	if (rc == 0) {
		*ret = p;
		return 0;
	}
	p->o.idle = no_idle; /* nothing was enqueued: it ends at once */
	(void)rs_pipeline_close(p, &ignored);
	return rc;
}

/* --- a share --- */

static int wait_by_host(struct rs_pipeline *p, cudaEvent_t event, struct sc_err *err)
{
	cudaError_t state;

	while ((state = cudaEventQuery(event)) == cudaErrorNotReady) {
		int rc = p->o.idle(p->o.arg, err);

		if (rc < 0)
			return rc;
	}
	return state == cudaSuccess ? 0 : cuda_failed(p, state, "work of the device", err);
}

static int check(const struct rs_pipeline *p, const struct rs_share *s, struct sc_err *err)
{
	if (s->nr_packs || s->nr_unpacks || s->send_bytes || s->recv_bytes)
		return sc_fail(err, SC_E_UNSUPPORTED, "GPU %d: a round exchanges bytes with other GPUs", p->o.device);
	if (s->in_bytes > p->o.pool.window_bytes || s->out_bytes > p->o.pool.window_bytes)
		return sc_fail(err, SC_E_LIMIT, "GPU %d: a round reads %" PRIu64 " and writes %" PRIu64 " bytes, "
			       "windows have %" PRIu64, p->o.device, s->in_bytes, s->out_bytes, p->o.pool.window_bytes);
	if (s->nr_copies > p->o.pool.boxes_max || s->nr_out > p->o.pool.boxes_max)
		return sc_fail(err, SC_E_LIMIT, "GPU %d: a round has %u copies and %u ranges to write, tables have "
			       "%u", p->o.device, s->nr_copies, s->nr_out, p->o.pool.boxes_max);
	return 0;
}

static struct rs_tables tables_at(const struct rs_pipeline *p, unsigned char *place)
{
	const uint32_t boxes = rs_pool_boxes(&p->o.pool);

	return (struct rs_tables){
		.boxes = (struct rs_box *)place,
		.tiles = (struct rs_tile *)(place + boxes * sizeof(struct rs_box)),
		.boxes_max = boxes, .tiles_max = rs_pool_tiles(&p->o.pool),
	};
}

/* Zeros come first: *ret_zeros tiles of them. */
static int make_tables(const struct rs_share *share, const struct slot *s, struct rs_tables *t, uint32_t *ret_zeros,
		       struct sc_err *err)
{
	const struct rs_window in = {(uint64_t)(uintptr_t)s->device[IN], share->in_bytes};
	const struct rs_window out = {(uint64_t)(uintptr_t)s->device[OUT], share->out_bytes};
	int rc = 0;

	for (uint32_t i = 0; rc == 0 && i < share->nr_out; i++)
		if (share->out[i].zero)
			rc = rs_tables_add(t, &(struct rs_copy){.to = share->out[i].window, .run = share->out[i].bytes},
					   NULL, &out, err);
	*ret_zeros = t->nr_tiles;
	for (uint32_t i = 0; rc == 0 && i < share->nr_copies; i++)
		rc = rs_tables_add(t, &share->copies[i], &in, &out, err);
	return rc;
}

static int copy(struct rs_pipeline *p, void *to, const void *from, uint64_t bytes, enum cudaMemcpyKind kind,
		cudaStream_t stream, struct sc_err *err)
{
	if (bytes)
		TRY(cudaMemcpyAsync, to, from, bytes, kind, stream);
	return 0;
}

static int copy_in(struct rs_pipeline *p, struct slot *s, const struct rs_share *share, const struct rs_tables *pinned,
		   const struct rs_tables *device, struct sc_err *err)
{
	int rc;

	TRY(cudaStreamWaitEvent, p->in, s->copied, 0);
	rc = copy(p, s->device[IN], s->pinned[IN], share->in_bytes, cudaMemcpyHostToDevice, p->in, err);
	if (rc == 0)
		rc = copy(p, device->boxes, pinned->boxes, pinned->nr_boxes * sizeof(struct rs_box),
			  cudaMemcpyHostToDevice, p->in, err);
	if (rc == 0)
		rc = copy(p, device->tiles, pinned->tiles, pinned->nr_tiles * sizeof(struct rs_tile),
			  cudaMemcpyHostToDevice, p->in, err);
	if (rc == 0)
		TRY(cudaEventRecord, s->in_done, p->in);
	return rc;
}

static int launch(struct rs_pipeline *p, const struct rs_tables *t, uint32_t first, uint32_t nr, struct sc_err *err)
{
	const struct rs_tile *tiles = t->tiles + first;
	void *args[] = {(void *)&t->boxes, &tiles, &nr};
	const unsigned blocks = nr < p->blocks_max ? nr : p->blocks_max;

	if (nr)
		TRY(cudaLaunchKernel, (const void *)p->kernel, (dim3){blocks, 1, 1}, (dim3){RS_BLOCK_THREADS, 1, 1},
		    args, 0, p->run);
	return 0;
}

static int copy_boxes(struct rs_pipeline *p, struct slot *s, const struct rs_tables *device, uint32_t zeros,
		      uint32_t nr, struct sc_err *err)
{
	int rc;

	TRY(cudaStreamWaitEvent, p->run, s->in_done, 0);
	TRY(cudaStreamWaitEvent, p->run, s->out_done, 0);
	rc = launch(p, device, 0, zeros, err);
	if (rc == 0)
		rc = launch(p, device, zeros, nr - zeros, err);
	if (rc == 0)
		TRY(cudaEventRecord, s->copied, p->run);
	return rc;
}

static int drain(struct rs_pipeline *p, struct slot *s, struct sc_err *err)
{
	int rc;

	if (!s->full)
		return 0;
	rc = wait_by_host(p, s->out_done, err);
	if (rc == 0)
		rc = p->o.drain(p->o.arg, s->out, s->nr_out, s->pinned[OUT], err);
	s->full = false;
	return rc;
}

static int copy_out(struct rs_pipeline *p, struct slot *s, const struct rs_share *share, struct sc_err *err)
{
	int rc;

	TRY(cudaStreamWaitEvent, p->out, s->copied, 0);
	rc = copy(p, s->pinned[OUT], s->device[OUT], share->out_bytes, cudaMemcpyDeviceToHost, p->out, err);
	if (rc < 0)
		return rc;
	TRY(cudaEventRecord, s->out_done, p->out);
	for (uint32_t i = 0; i < share->nr_out; i++)
		s->out[i] = share->out[i];
	s->nr_out = share->nr_out;
	s->full = true;
	return 0;
}

static int put(struct rs_pipeline *p, struct slot *s, const struct rs_share *share, struct sc_err *err)
{
	struct rs_tables pinned = tables_at(p, s->pinned[TABLES]), device = tables_at(p, s->device[TABLES]);
	uint32_t zeros = 0;
	int rc = check(p, share, err);

	if (rc == 0)
		rc = wait_by_host(p, s->in_done, err);
	if (rc == 0)
		rc = make_tables(share, s, &pinned, &zeros, err);
	if (rc == 0)
		rc = p->o.fill(p->o.arg, share, s->pinned[IN], err);
	if (rc == 0)
		rc = copy_in(p, s, share, &pinned, &device, err);
	if (rc == 0)
		rc = copy_boxes(p, s, &device, zeros, pinned.nr_tiles, err);
	if (rc == 0)
		rc = drain(p, s, err);
	return rc == 0 ? copy_out(p, s, share, err) : rc;
}

int rs_pipeline_put(struct rs_pipeline *p, const struct rs_share *share, struct sc_err *err)
{
	struct slot *s = &p->slots[p->next];

	if (p->first.code) {
		*err = p->first;
		return err->code;
	}
	p->next = (p->next + 1) % RS_POOL_SLOTS;
	return keep(p, put(p, s, share, err), err);
}

int rs_pipeline_finish(struct rs_pipeline *p, struct sc_err *err)
{
	int rc = p->first.code;

	if (rc < 0)
		*err = p->first;
	for (unsigned i = 0; rc == 0 && i < RS_POOL_SLOTS; i++)
		rc = keep(p, drain(p, &p->slots[(p->next + i) % RS_POOL_SLOTS], err), err);
	return rc;
}

/* --- end --- */

/* An error that comes again is that of a device that does nothing any more. */
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

static void free_slot(struct slot *s)
{
	const cudaEvent_t events[] = {s->in_done, s->copied, s->out_done};

	for (unsigned i = 0; i < RS_POOL_PARTS; i++)
		if (s->device[i])
			(void)cudaFree(s->device[i]);
	for (unsigned i = 0; i < sizeof(events) / sizeof(events[0]); i++)
		if (events[i])
			(void)cudaEventDestroy(events[i]);
	sc_sys.release(s->out);
}

int rs_pipeline_close(struct rs_pipeline *p, struct sc_err *err)
{
	const cudaStream_t streams[] = {p ? p->in : NULL, p ? p->run : NULL, p ? p->out : NULL};
	int rc = 0;

	if (!p)
		return 0;
	for (unsigned i = 0; rc == 0 && i < 3; i++)
		rc = wait_for_stream(p, streams[i], err);
	if (rc < 0)
		return rc;
	for (unsigned i = 0; i < RS_POOL_SLOTS; i++)
		free_slot(&p->slots[i]);
	for (unsigned i = 0; i < 3; i++)
		if (streams[i])
			(void)cudaStreamDestroy(streams[i]);
	if (p->pinned)
		(void)cudaHostUnregister(p->o.memory);
	if (p->library)
		(void)cudaLibraryUnload(p->library);
	sc_sys.release(p);
	return 0;
}
