/* SPDX-License-Identifier: Apache-2.0 */
/*
 * How fast a GPU copies, on CUDA itself or on the stand-in, where times say nothing:
 *     speed kernel [MIB]      so many MiB by the kernel, in rows of 16 B to 64 KiB, of one to three dimensions, and as boxes of
 *                             4 KiB; beside cudaMemcpyAsync() inside of the GPU and, of one dimension, cudaMemcpy2DAsync()
 *     speed pipeline [MIB [W]]  windows of W MiB (16) through the pipeline, as many as have MIB, with files that cost nothing
 * Every byte is compared with loops of the host once.  Prints `NAME: BYTES in N N ... ns`, of 20 times, without the first one, by events of the GPU; the
 * pipeline's are of 5 times, by the clock.
 */
#include <inttypes.h>
#include <string.h>

#include "meta/base/err.h"
#include "reshard/engine/gpu_helper/pipeline.h"
#include "reshard/engine/gpu/boxes.h"
#include "reshard/engine/plan/gather.h"
#include "tests/gpu/fake_cuda.h"
#include "tests/gpu/must.h"
#include "tests/gpu/pipeline_rounds.h"

#ifndef TIMES
#define TIMES 20
#endif
#define PASSES 5
#ifndef AT_ONCE
#define AT_ONCE 8	/* launches between two looks at the clock */
#endif
#define BOXES 10000u
#define BOX_BYTES 4096u

static unsigned char byte_of(uint64_t at)
{
	return (unsigned char)(at * 2654435761u >> 13);
}

/* As the device does it: what is copied where, by loops. */
static void copy_by_host(const struct rs_copy *c, const unsigned char *from, unsigned char *to)
{
	uint64_t rows = 1;

	for (unsigned k = 0; k < c->nr; k++)
		rows *= c->ext[k];
	for (uint64_t row = 0; row < rows; row++) {
		uint64_t left = row, f = c->from, t = c->to;

		for (unsigned k = c->nr; k-- > 0; left /= c->ext[k]) {
			f += left % c->ext[k] * c->from_stride[k];
			t += left % c->ext[k] * c->to_stride[k];
		}
		memcpy(to + t, from + f, c->run);
	}
}

/* --- the kernel --- */

struct bench {
	uint64_t bytes, room;			/* that are copied; of each side, twice as many */
	unsigned char *host, *from, *to;	/* host: what `from` has, then what is expected, then what came */
	struct rs_tables pinned;
	void *tables;
	uint64_t tables_bytes;
	cudaKernel_t kernel;
	cudaStream_t stream;
	cudaEvent_t began, ended;
	int multiprocessors;
};

static void put_tables(struct bench *b, const struct rs_copy *copies, uint32_t nr)
{
	const struct rs_window from = {(uint64_t)(uintptr_t)b->from, b->room}, to = {(uint64_t)(uintptr_t)b->to, b->room};
	struct sc_err err;

	b->pinned.nr_boxes = b->pinned.nr_tiles = 0;
	fake_host_uses(b->pinned.boxes, b->tables_bytes, true, "tables");
	for (uint32_t i = 0; i < nr; i++)
		if (rs_tables_add(&b->pinned, &copies[i], &from, &to, &err) < 0) {
			(void)printf("%s\n", err.msg);
			exit(1);
		}
	MUST(cudaMemcpyAsync(b->tables, b->pinned.boxes, b->tables_bytes, cudaMemcpyHostToDevice, b->stream));
	wait_for(b->stream);
}

static void launch(struct bench *b)
{
	struct rs_box *boxes = b->tables;
	struct rs_tile *tiles = (void *)((unsigned char *)b->tables + ((unsigned char *)b->pinned.tiles - (unsigned char *)b->pinned.boxes));
	uint32_t nr = b->pinned.nr_tiles;
	void *args[] = {(void *)&boxes, (void *)&tiles, &nr};
	const unsigned most = 16 * (unsigned)b->multiprocessors; /* as reshard/engine/gpu_helper/lane.c */

	MUST(cudaLaunchKernel((const void *)b->kernel, (dim3){nr < most ? nr : most, 1, 1}, (dim3){RS_BLOCK_THREADS, 1, 1}, args, 0,
			      b->stream));
}

static void copy_inside(struct bench *b)
{
	MUST(cudaMemcpyAsync(b->to, b->from, b->bytes, cudaMemcpyDeviceToDevice, b->stream));
}

#ifdef WITH_COPY_2D
static uint64_t pitch_from, pitch_to, width;

static void copy_2d(struct bench *b)
{
	MUST(cudaMemcpy2DAsync(b->to, pitch_to, b->from, pitch_from, width, b->bytes / width, cudaMemcpyDeviceToDevice, b->stream));
}
#endif

static void measure(struct bench *b, const char *name, uint64_t bytes, void (*what)(struct bench *b))
{
	(void)printf("%s: %" PRIu64 " in", name, bytes);
	for (unsigned i = 0; i <= TIMES; i++) {
		float ms;

		MUST(cudaEventRecord(b->began, b->stream));
		for (unsigned k = 0; k < AT_ONCE; k++)
			what(b);
		MUST(cudaEventRecord(b->ended, b->stream));
		wait_for(b->stream);
		MUST(cudaEventElapsedTime(&ms, b->began, b->ended));
		if (i)
			(void)printf(" %.0f", (double)ms * 1e6 / AT_ONCE);
	}
	(void)printf(" ns\n");
}

/* Copies nr boxes of equal bytes by the kernel; -1: other bytes are there than the host makes of it. */
static int of_boxes(struct bench *b, const char *name, const struct rs_copy *copies, uint32_t nr)
{
	unsigned char *expected = b->host + b->room, *came = b->host + 2 * b->room;
	uint64_t bytes = 0;

	memset(expected, 0, b->room);
	MUST(cudaMemsetAsync(b->to, 0, b->room, b->stream));
	put_tables(b, copies, nr);
	for (uint32_t i = 0; i < nr; i++) {
		uint64_t rows = 1;

		for (unsigned k = 0; k < copies[i].nr; k++)
			rows *= copies[i].ext[k];
		bytes += rows * copies[i].run;
		copy_by_host(&copies[i], b->host, expected);
	}
	launch(b);
	MUST(cudaMemcpyAsync(came, b->to, b->room, cudaMemcpyDeviceToHost, b->stream));
	wait_for(b->stream);
	fake_host_uses(came, b->room, false, "what came");
	if (memcmp(expected, came, b->room) != 0) {
		(void)printf("%s: other bytes than by the host\n", name);
		return -1;
	}
	measure(b, name, bytes, launch);
	return 0;
}

/* Rows that lie one behind the other on one side, and with as much between them on the other one. */
static int of_rows(struct bench *b, uint64_t run, unsigned dims, bool pack)
{
	struct rs_copy c = {.run = run, .nr = (uint8_t)dims};
	uint64_t rows = b->bytes / run, tight = run, loose = 2 * run;
	char name[80];
	int rc;

	for (unsigned k = dims; k-- > 0;) {
		c.ext[k] = k ? 16 : rows;
		rows /= 16;
		c.from_stride[k] = pack ? loose : tight;
		c.to_stride[k] = pack ? tight : loose;
		tight *= c.ext[k];
		loose *= c.ext[k];
	}
	(void)snprintf(name, sizeof(name), "%s, rows of %" PRIu64 " B, %u dimension%s", pack ? "pack" : "unpack", run, dims,
		       dims == 1 ? "" : "s");
	rc = of_boxes(b, name, &c, 1);
#ifdef WITH_COPY_2D
	if (rc == 0 && dims == 1) {
		width = run;
		pitch_from = pack ? 2 * run : run;
		pitch_to = pack ? run : 2 * run;
		(void)snprintf(name, sizeof(name), "cudaMemcpy2DAsync, %s, rows of %" PRIu64 " B", pack ? "pack" : "unpack", run);
		measure(b, name, b->bytes, copy_2d);
	}
#endif
	return rc;
}

static int of_small_boxes(struct bench *b)
{
	const uint32_t nr = (uint32_t)(b->bytes / BOX_BYTES < BOXES ? b->bytes / BOX_BYTES : BOXES);
	struct rs_copy *copies = calloc(nr, sizeof(*copies));
	char name[80];
	int rc;

	for (uint32_t i = 0; copies && i < nr; i++)
		copies[i] = (struct rs_copy){.from = (uint64_t)(nr - 1 - i) * 2 * BOX_BYTES, .to = (uint64_t)i * BOX_BYTES, .run = BOX_BYTES};
	(void)snprintf(name, sizeof(name), "%u boxes of %u B", nr, BOX_BYTES);
	rc = copies ? of_boxes(b, name, copies, nr) : -1;
	free(copies);
	return rc;
}

static void take(struct bench *b, uint64_t bytes, cudaLibrary_t *library)
{
	const uint32_t boxes = BOXES + 16, tiles = (uint32_t)(2 * bytes / RS_TILE_BYTES) + 2 * boxes;
	unsigned char *tables;

	*b = (struct bench){.bytes = bytes, .room = 2 * bytes};
	MUST(cudaSetDevice(0));
	MUST(cudaDeviceGetAttribute(&b->multiprocessors, cudaDevAttrMultiProcessorCount, 0));
	MUST(cudaLibraryLoadData(library, pipeline_kernel, NULL, NULL, 0, NULL, NULL, 0));
	MUST(cudaLibraryGetKernel(&b->kernel, *library, "scalai_copy"));
	b->tables_bytes = boxes * sizeof(struct rs_box) + tiles * sizeof(struct rs_tile);
	b->host = pinned(3 * b->room);
	tables = pinned(b->tables_bytes);
	b->pinned = (struct rs_tables){.boxes = (void *)tables, .tiles = (void *)(tables + boxes * sizeof(struct rs_box)),
				       .boxes_max = boxes, .tiles_max = tiles};
	MUST(cudaMalloc(&b->tables, b->tables_bytes));
	MUST(cudaMalloc((void **)&b->from, b->room));
	MUST(cudaMalloc((void **)&b->to, b->room));
	MUST(cudaStreamCreateWithFlags(&b->stream, cudaStreamNonBlocking));
	MUST(cudaEventCreateWithFlags(&b->began, cudaEventDefault));
	MUST(cudaEventCreateWithFlags(&b->ended, cudaEventDefault));
	fake_host_uses(b->host, b->room, true, "what is copied");
	for (uint64_t i = 0; i < b->room; i++)
		b->host[i] = byte_of(i);
	MUST(cudaMemcpyAsync(b->from, b->host, b->room, cudaMemcpyHostToDevice, b->stream));
	wait_for(b->stream);
}

static void give_back(struct bench *b, cudaLibrary_t library)
{
	MUST(cudaEventDestroy(b->ended));
	MUST(cudaEventDestroy(b->began));
	MUST(cudaStreamDestroy(b->stream));
	MUST(cudaFree(b->to));
	MUST(cudaFree(b->from));
	MUST(cudaFree(b->tables));
	MUST(cudaHostUnregister(b->pinned.boxes));
	MUST(cudaHostUnregister(b->host));
	(void)munmap(b->pinned.boxes, b->tables_bytes);
	(void)munmap(b->host, 3 * b->room);
	MUST(cudaLibraryUnload(library));
}

static int kernel(uint64_t bytes)
{
	static const uint32_t runs[] = {16, 64, 256, 1024, 4096, 65536};
	cudaLibrary_t library;
	struct bench b;
	int rc = 0;

	take(&b, bytes, &library);
	measure(&b, "cudaMemcpyAsync inside", bytes, copy_inside);
	for (unsigned i = 0; i < sizeof(runs) / sizeof(*runs); i++)
		for (unsigned pack = 0; pack < 2; pack++)
			rc |= of_rows(&b, runs[i], 1, !pack);
	for (unsigned dims = 2; dims <= 3; dims++)
		rc |= of_rows(&b, 256, dims, true) | of_rows(&b, 256, dims, false);
	rc |= of_small_boxes(&b);
	give_back(&b, library);
	return rc != 0;
}

/* --- the pipeline --- */

#define RUN 1024u	/* a window's rows become its even rows, then its odd ones */

static struct {
	struct rs_pool pool;
	unsigned char *memory;
	unsigned filled;	/* slots that have what is copied */
	bool compares, differs;
} line;

static struct rs_extent all_in, all_out;
static struct rs_copy halves[2];

static int fill(void *arg, const struct rs_round *round, unsigned slot, struct sc_err *err)
{
	unsigned char *in = line.memory + rs_pool_place(&line.pool, 0, slot, RS_POOL_IN);

	(void)arg, (void)round, (void)err;
	if (line.filled >> slot & 1)
		return 0; /* a file that costs nothing */
	fake_host_uses(in, line.pool.window_bytes, true, "a read of a file");
	for (uint64_t i = 0; i < line.pool.window_bytes; i++)
		in[i] = byte_of(i + slot);
	line.filled |= 1u << slot;
	return 0;
}

static int drain(void *arg, unsigned slot, struct sc_err *err)
{
	const unsigned char *out = line.memory + rs_pool_place(&line.pool, 0, slot, RS_POOL_OUT);
	const unsigned char *in = line.memory + rs_pool_place(&line.pool, 0, slot, RS_POOL_IN);
	const uint64_t half = line.pool.window_bytes / 2;

	(void)arg, (void)err;
	if (!line.compares)
		return 0;
	fake_host_uses(out, line.pool.window_bytes, false, "a write to a file");
	for (uint64_t i = 0; i < 2 * half; i += RUN)
		line.differs |= memcmp(out + i / RUN % 2 * half + i / (2 * RUN) * RUN, in + i, RUN) != 0;
	return 0;
}

static void pass(struct rs_pipeline *p, unsigned rounds)
{
	struct rs_share share = {.in = &all_in, .out = &all_out, .copies = halves, .nr_in = 1, .nr_out = 1, .nr_copies = 2,
				 .in_bytes = line.pool.window_bytes, .out_bytes = line.pool.window_bytes};
	const struct rs_round round = {1, &share};
	struct sc_err err;
	int rc = 0;

	for (unsigned i = 0; rc == 0 && i < rounds; i++)
		rc = rs_pipeline_put(p, &round, &err);
	if (rc == 0)
		rc = rs_pipeline_finish(p, &err);
	if (rc < 0) {
		(void)printf("%s\n", err.msg);
		exit(1);
	}
}

static int through_pipeline(uint64_t bytes, uint64_t wanted)
{
	const uint64_t window = bytes < wanted ? RS_POOL_WINDOW_MIN : wanted, half = window / 2;
	const unsigned rounds = bytes < 4 * window ? 4 : (unsigned)(bytes / window);
	struct rs_pipeline_options o = {.kernel = pipeline_kernel, .exchange_ms = 60000, .fill = fill, .drain = drain,
					.idle = idle};
	struct rs_pipeline *p = NULL;
	struct sc_err err;

	line.pool = o.pool = (struct rs_pool){window, 64, 1};
	line.memory = o.memory = aligned_alloc(4096, (rs_pool_bytes(&o.pool) + 4095) / 4096 * 4096);
	all_in = all_out = (struct rs_extent){.bytes = window};
	for (unsigned i = 0; i < 2; i++)
		halves[i] = (struct rs_copy){.from = i * RUN, .to = i * half, .run = RUN, .nr = 1, .ext = {half / RUN},
					     .from_stride = {2 * RUN}, .to_stride = {RUN}};
	if (!line.memory || rs_pipeline_new(&o, &p, &err) < 0) {
		(void)printf("%s\n", line.memory ? err.msg : "there is no memory for windows");
		return 1;
	}
	line.compares = true;
	pass(p, 4);
	line.compares = false;
	(void)printf("pipeline: %" PRIu64 " in", rounds * window);
	for (unsigned i = 0; i < PASSES; i++) {
		const int64_t began = sc_now_ns();

		pass(p, rounds);
		(void)printf(" %" PRId64, sc_now_ns() - began);
	}
	(void)printf(" ns\n");
	if (line.differs)
		(void)printf("pipeline: other bytes than by the host\n");
	if (rs_pipeline_close(p, &err) < 0) {
		(void)printf("%s\n", err.msg);
		return 1;
	}
	free(line.memory);
	return line.differs;
}

int main(int argc, char **argv)
{
	const long n = argc > 2 ? atol(argv[2]) : 0;
	const uint64_t bytes = (uint64_t)(n > 0 ? n : 256) << 20;
	struct fake_findings found;
	int rc = 2;

	fake_begin(FAKE_RANDOM, 7);
	if (argc > 1 && strcmp(argv[1], "kernel") == 0)
		rc = kernel(bytes);
	if (argc > 1 && strcmp(argv[1], "pipeline") == 0)
		rc = through_pipeline(bytes, (uint64_t)(argc > 3 && atol(argv[3]) > 0 ? atol(argv[3]) : 16) << 20);
	if (rc == 2)
		(void)fprintf(stderr, "speed kernel [MIB] | speed pipeline [MIB [W]]\n");
	found = fake_end();
	if (found.first[0])
		(void)printf("%s\n", found.first);
	return found.first[0] ? 1 : rc;
}
