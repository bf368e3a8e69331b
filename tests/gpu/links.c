/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The links of a GPU alone, and NCCL alone, on CUDA itself or on the stand-in:
 *     links copies [MIB]     pins shared memory; copies so many MiB of it to GPU 0, inside of it, and back, and in and out at once,
 *                            20 times each
 *     links exchange GPUS    a communicator of these GPUs, from GPU 0 on, of which each sends to all, itself included
 * Bytes that are not what they should be are an error.  Prints `NAME: BYTES in N N ... ns`; of an exchange a sentence; 77: there is no NCCL.
 */
#include <cuda_runtime_api.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#include "meta/base/err.h"
#include "meta/base/sys.h"
#include "reshard/engine/gpu_helper/exchange.h"
#include "reshard/engine/gpu_helper/nccl.h"
#include "reshard/engine/gpu/pool.h"
#include "tests/gpu/fake_cuda.h"
#include "tests/gpu/must.h"

#ifndef TIMES
#define TIMES 20
#endif
#define PART 40000u	/* that a GPU sends to each; the first has some bytes more */
/* --- copies --- */

static void copy(const char *name, void *to, const void *from, size_t bytes, enum cudaMemcpyKind kind, cudaStream_t s)
{
	(void)printf("%s: %zu in", name, bytes);
	for (unsigned i = 0; i < TIMES; i++) {
		const int64_t began = sc_now_ns();

		MUST(cudaMemcpyAsync(to, from, bytes, kind, s));
		wait_for(s);
		(void)printf(" %" PRId64, sc_now_ns() - began);
	}
	(void)printf(" ns\n");
}

/* Copies both ways at once, as a pipeline does.  Then nothing is left of what was there before: a copy that was not made is seen. */
static void copy_both(unsigned char *host, unsigned char *device[2], size_t bytes, cudaStream_t in, cudaStream_t out)
{
	MUST(cudaMemsetAsync(device[0], 0, bytes, in));
	wait_for(in);
	fake_host_uses(host + bytes, bytes, true, "what is copied out");
	memset(host + bytes, 0, bytes);
	(void)printf("both: %zu in", bytes);
	for (unsigned i = 0; i < TIMES; i++) {
		const int64_t began = sc_now_ns();

		MUST(cudaMemcpyAsync(device[0], host, bytes, cudaMemcpyHostToDevice, in));
		MUST(cudaMemcpyAsync(host + bytes, device[1], bytes, cudaMemcpyDeviceToHost, out));
		wait_for(in);
		wait_for(out);
		(void)printf(" %" PRId64, sc_now_ns() - began);
	}
	(void)printf(" ns\n");
}

static bool has_come(const unsigned char *host, size_t bytes)
{
	fake_host_uses(host + bytes, bytes, false, "what was copied out");
	return memcmp(host, host + bytes, bytes) == 0;
}

static int copies(size_t bytes)
{
	unsigned char *host, *device[2];
	cudaStream_t s, other;
	int rc;

	MUST(cudaSetDevice(0));
	host = pinned(2 * bytes);
	MUST(cudaMalloc((void **)&device[0], bytes));
	MUST(cudaMalloc((void **)&device[1], bytes));
	MUST(cudaStreamCreateWithFlags(&s, cudaStreamNonBlocking));
	MUST(cudaStreamCreateWithFlags(&other, cudaStreamNonBlocking));
	fake_host_uses(host, bytes, true, "what is copied in");
	for (size_t i = 0; i < bytes; i++)
		host[i] = (unsigned char)(i * 2654435761u >> 13);
	copy("in", device[0], host, bytes, cudaMemcpyHostToDevice, s);
	copy("inside", device[1], device[0], bytes, cudaMemcpyDeviceToDevice, s);
	copy("out", host + bytes, device[1], bytes, cudaMemcpyDeviceToHost, s);
	rc = !has_come(host, bytes);
	copy_both(host, device, bytes, s, other);
	rc |= !has_come(host, bytes);
	MUST(cudaMemcpyAsync(host + bytes, device[0], bytes, cudaMemcpyDeviceToHost, s));
	wait_for(s);
	rc |= !has_come(host, bytes);
	if (rc)
		(void)printf("other bytes came back than were copied in\n");
	MUST(cudaStreamDestroy(other));
	MUST(cudaStreamDestroy(s));
	MUST(cudaFree(device[0]));
	MUST(cudaFree(device[1]));
	MUST(cudaHostUnregister(host));
	(void)munmap(host, 2 * bytes);
	return rc;
}

/* --- an exchange --- */

static uint64_t bytes_of(uint32_t from, uint32_t to)
{
	return PART + 100 * from + to;
}

static unsigned char byte_of(uint32_t from, uint32_t to, uint64_t i)
{
	return (unsigned char)((i + 7) * (from * 31 + to * 17 + 3));
}

/* Of each GPU: what it sends, and what it receives, one behind the other. */
struct gpu {
	struct rs_part sends[RS_POOL_PEERS_MAX], recvs[RS_POOL_PEERS_MAX];
	struct rs_share share;
	unsigned char *host, *device;	/* sent, received */
	uint64_t half;
};

/* Before anything is enqueued: these calls may wait for a device. */
static void take(struct gpu *g, uint32_t p, uint32_t nr, struct rs_exchange_peer *peer)
{
	MUST(cudaSetDevice((int)p));
	g->half = nr * bytes_of(nr, nr);
	g->host = pinned(2 * g->half);
	MUST(cudaMalloc((void **)&g->device, 2 * g->half));
	MUST(cudaStreamCreateWithFlags(&peer->stream, cudaStreamNonBlocking));
}

static void fill(struct gpu *g, uint32_t p, uint32_t nr, struct rs_exchange_peer *peer)
{
	uint64_t sent = 0, received = 0;

	MUST(cudaSetDevice((int)p));
	fake_host_uses(g->host, g->half, true, "what is sent");
	for (uint32_t q = 0; q < nr; q++) {
		g->sends[q] = (struct rs_part){sent, bytes_of(p, q)};
		g->recvs[q] = (struct rs_part){received, bytes_of(q, p)};
		for (uint64_t i = 0; i < g->sends[q].bytes; i++)
			g->host[sent + i] = byte_of(p, q, i);
		sent += g->sends[q].bytes;
		received += g->recvs[q].bytes;
	}
	g->share = (struct rs_share){.sends = g->sends, .recvs = g->recvs};
	peer->send = g->device;
	peer->recv = g->device + g->half;
	peer->share = &g->share;
	MUST(cudaMemcpyAsync(g->device, g->host, sent, cudaMemcpyHostToDevice, peer->stream));
}

static int check(struct gpu *g, uint32_t p, uint32_t nr, const struct rs_exchange_peer *peer)
{
	unsigned char *host = g->host + g->half;
	int wrong = 0;

	MUST(cudaSetDevice((int)p));
	for (uint32_t q = 0; q < nr; q++)
		MUST(cudaMemcpyAsync(host + g->recvs[q].at, peer->recv + g->recvs[q].at, g->recvs[q].bytes, cudaMemcpyDeviceToHost, peer->stream));
	wait_for(peer->stream);
	for (uint32_t q = 0; q < nr; q++) {
		fake_host_uses(host + g->recvs[q].at, g->recvs[q].bytes, false, "what was received");
		for (uint64_t i = 0; i < g->recvs[q].bytes; i++)
			wrong |= host[g->recvs[q].at + i] != byte_of(q, p, i);
	}
	return wrong;
}

static void give_back(struct gpu *g, uint32_t p, const struct rs_exchange_peer *peer)
{
	MUST(cudaSetDevice((int)p));
	MUST(cudaStreamDestroy(peer->stream));
	MUST(cudaFree(g->device));
	MUST(cudaHostUnregister(g->host));
	(void)munmap(g->host, 2 * g->half);
}

static int exchange(uint32_t nr)
{
	static const int devices[RS_POOL_PEERS_MAX] = {0, 1, 2, 3, 4, 5, 6, 7};
	struct rs_exchange_options o = {.world = nr, .peers = nr, .devices = devices, .timeout_ms = 60000, .idle = idle};
	struct rs_exchange_peer peers[RS_POOL_PEERS_MAX] = {0};
	struct gpu gpus[RS_POOL_PEERS_MAX] = {0};
	struct rs_exchange *e = NULL;
	const struct rs_nccl *ignored;
	char version[40];
	struct sc_err err;
	int wrong = 0, rc = rs_nccl_load(&ignored, version, sizeof(version), &err);

	if (rc == 0)
		rc = rs_exchange_id(o.id, &err);
	if (rc == 0)
		rc = rs_exchange_new(&o, &e, &err);
	for (uint32_t p = 0; rc == 0 && p < nr; p++)
		take(&gpus[p], p, nr, &peers[p]);
	for (uint32_t p = 0; rc == 0 && p < nr; p++)
		fill(&gpus[p], p, nr, &peers[p]);
	if (rc == 0)
		rc = rs_exchange_put(e, peers, &err);
	if (rc < 0) {
		(void)printf("%s\n", err.msg);
		return err.code == SC_E_UNSUPPORTED ? 77 : 1;
	}
	for (uint32_t p = 0; p < nr; p++)
		wait_for(peers[p].stream);
	rc = rs_exchange_finish(e, &err);
	for (uint32_t p = 0; p < nr; p++)
		wrong |= check(&gpus[p], p, nr, &peers[p]);
	for (uint32_t p = 0; p < nr; p++)
		give_back(&gpus[p], p, &peers[p]);
	(void)printf("%s: %s\n", version, rc < 0 ? err.msg : wrong ? "other bytes were received than were sent" : "what was sent has arrived");
	return rc < 0 || wrong;
}

int main(int argc, char **argv)
{
	const long n = argc > 2 ? atol(argv[2]) : 0;
	struct fake_findings found;
	int rc = 2;

	fake_begin(FAKE_RANDOM, 7);
	if (argc > 1 && strcmp(argv[1], "copies") == 0)
		rc = copies((size_t)(n > 0 ? n : 64) << 20);
	if (argc > 1 && strcmp(argv[1], "exchange") == 0 && n > 0 && n <= RS_POOL_PEERS_MAX)
		rc = exchange((uint32_t)n);
	if (rc == 2)
		(void)fprintf(stderr, "links copies [MIB] | links exchange GPUS\n");
	found = fake_end();
	if (found.first[0])
		(void)printf("%s\n", found.first);
	return found.first[0] ? 1 : rc;
}
