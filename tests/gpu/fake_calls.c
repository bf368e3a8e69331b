/* SPDX-License-Identifier: Apache-2.0 */
/* The functions of CUDA that the stand-in has. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "tests/gpu/fake_cuda_i.h"

/* What a call gives before it does anything: as it was told to fail, or since the device has failed. */
static cudaError_t enter(cudaError_t as)
{
	if (++fake.calls == fake.fail_call)
		return as;
	if (!fake.sticky)
		fake_some();
	return fake.sticky;
}

#define ENTER(as)                                                                                  \
	do {                                                                                       \
		cudaError_t entered = enter(as);                                                   \
		if (entered != cudaSuccess)                                                        \
			return entered;                                                            \
	} while (0)

static bool is_device(int device)
{
	return device >= 0 && device < fake.what.devices && device < FAKE_DEVICES;
}

static cudaError_t wrong(const char *what)
{
	fake_find(&fake.found.misuse, "%s", what);
	return cudaErrorInvalidValue;
}

/* Of what waits for all work of a device: it is not called while there is some. */
static void expect_rest(const char *call)
{
	for (unsigned i = 0; i < fake.nr_streams && !fake.sticky; i++)
		if (fake.streams[i]->head)
			fake_find(&fake.found.misuse, "%s while '%s' has not run: it would wait for the device", call,
				  fake.streams[i]->head->name);
}

/* --- the device and its memory --- */

const char *cudaGetErrorName(cudaError_t error)
{
	return error == cudaErrorIllegalAddress ? "cudaErrorIllegalAddress" : error ? "cudaErrorOfStandIn" : "cudaSuccess";
}

const char *cudaGetErrorString(cudaError_t error)
{
	return error ? "the stand-in was told to fail" : "no error";
}

/* As the real one without a driver: this one call succeeds. */
cudaError_t cudaDriverGetVersion(int *version)
{
	ENTER(cudaErrorInvalidValue);
	*version = fake.what.driver;
	return cudaSuccess;
}

cudaError_t cudaGetDeviceCount(int *nr)
{
	ENTER(cudaErrorInitializationError);
	if (fake.what.driver < 12000)
		return cudaErrorInsufficientDriver;
	*nr = fake.what.devices;
	return *nr ? cudaSuccess : cudaErrorNoDevice;
}

cudaError_t cudaDeviceGetPCIBusId(char *text, int bytes, int device)
{
	ENTER(cudaErrorInvalidValue);
	if (!is_device(device) || bytes < 13)
		return cudaErrorInvalidValue;
	(void)snprintf(text, (size_t)bytes, "0000:00:%02x.0", 0x1e + device);
	return cudaSuccess;
}

cudaError_t cudaSetDevice(int device)
{
	ENTER(cudaErrorDevicesUnavailable);
	if (!is_device(device))
		return cudaErrorInvalidDevice;
	fake.device = device;
	return cudaSuccess;
}

cudaError_t cudaDeviceGetAttribute(int *value, enum cudaDeviceAttr attr, int device)
{
	ENTER(cudaErrorInvalidValue);
	if (!is_device(device))
		return cudaErrorInvalidDevice;
	switch (attr) {
	case cudaDevAttrMultiProcessorCount:
		*value = 1 + (int)(fake_random() % 3);
		return cudaSuccess;
	case cudaDevAttrComputeCapabilityMajor:
		*value = fake.what.major;
		return cudaSuccess;
	case cudaDevAttrComputeCapabilityMinor:
		*value = 0;
		return cudaSuccess;
	case cudaDevAttrComputeMode:
		*value = fake.what.prohibited ? cudaComputeModeProhibited : cudaComputeModeDefault;
		return cudaSuccess;
	default:
		return wrong("an attribute that the stand-in does not have");
	}
}

cudaError_t cudaMalloc(void **ret, size_t bytes)
{
	ENTER(cudaErrorMemoryAllocation);
	expect_rest("cudaMalloc()");
	if (fake.device < 0)
		return wrong("memory of no device");
	if (bytes > FAKE_DEVICE_BYTES - fake.bytes[fake.device + 1])
		return cudaErrorMemoryAllocation;
	*ret = fake_area_new(NULL, bytes, fake.device)->at;
	return cudaSuccess;
}

/* "... will share the entire underlying memory block which may cause other sub-allocations to be shared ... it is recommended
 * to only share allocations with a 2MiB aligned size" (CUDA C++ Programming Guide, interprocess communication).  What is in a
 * handle is the stand-in's own: another process reads the memory of this one by it (tests/gpu/read_handle.py). */
cudaError_t cudaIpcGetMemHandle(cudaIpcMemHandle_t *handle, void *p)
{
	struct fake_handle h = {FAKE_HANDLE_MAGIC, (uint64_t)getpid(), (uint64_t)(uintptr_t)p, 0};
	struct fake_area *a = fake_area_of(p);

	ENTER(cudaErrorMapBufferObjectFailed);
	if (!a || a->at != p || a->device < 0)
		return wrong("a handle of memory that is not there, or not a device's");
	if (a->bytes % (2u << 20))
		return wrong("a handle of memory that is not all of its blocks");
	h.bytes = a->bytes;
	memset(handle, 0, sizeof(*handle));
	memcpy(handle, &h, sizeof(h));
	return cudaSuccess;
}

static cudaError_t give_back(const void *p, bool pinned, const char *call)
{
	struct fake_area *a = fake_area_of(p);
	cudaError_t rc = enter(cudaErrorUnknown);

	expect_rest(call);
	if (!a || a->at != p || (a->device < 0) != pinned)
		return wrong("memory is given back that is not there");
	memset(a->at, 0xdb, a->bytes);
	a->gone = true;
	fake.bytes[a->device + 1] -= a->bytes;
	return rc;
}

cudaError_t cudaFree(void *p)
{
	return give_back(p, false, "cudaFree()");
}

cudaError_t cudaHostRegister(void *p, size_t bytes, unsigned flags)
{
	ENTER(cudaErrorHostMemoryAlreadyRegistered);
	expect_rest("cudaHostRegister()");
	if (flags != cudaHostRegisterPortable || fake_area_of(p))
		return wrong("memory is pinned twice, or by other flags");
	(void)fake_area_new(p, bytes, -1);
	return cudaSuccess;
}

cudaError_t cudaHostUnregister(void *p)
{
	return give_back(p, true, "cudaHostUnregister()");
}

/* --- streams and events --- */

cudaError_t cudaStreamCreateWithFlags(cudaStream_t *ret, unsigned flags)
{
	struct CUstream_st *s;

	ENTER(cudaErrorMemoryAllocation);
	if (flags != cudaStreamNonBlocking || fake.nr_streams == FAKE_CLOCKS - 1)
		return wrong("a stream that waits for the default stream, or too many");
	s = calloc(1, sizeof(*s));
	s->open = true;
	s->device = fake.device;
	fake.streams[fake.nr_streams++] = s;
	s->clock_nr = fake.nr_streams;
	*ret = s;
	return cudaSuccess;
}

cudaError_t cudaStreamDestroy(cudaStream_t s)
{
	if (!s->open)
		return wrong("a stream is ended twice");
	s->open = false;
	return enter(cudaErrorUnknown);
}

cudaError_t cudaStreamQuery(cudaStream_t s)
{
	cudaError_t rc;

	ENTER(cudaErrorUnknown);
	rc = s->tail ? fake_ask(s->tail) : cudaSuccess;
	if (rc == cudaSuccess)
		fake_join(&fake.host, &s->clock);
	return fake.sticky ? fake.sticky : rc;
}

cudaError_t cudaStreamWaitEvent(cudaStream_t s, cudaEvent_t e, unsigned flags)
{
	ENTER(cudaErrorUnknown);
	if (!s || flags)
		return wrong("a wait of the default stream, or by flags");
	if (!e->op) /* never recorded: as in CUDA, that is no wait */
		return cudaSuccess;
	fake_join(&s->clock, &e->op->clock);
	fake_enqueue(s, FAKE_WAIT, "wait")->dep = e->op;
	return cudaSuccess;
}

cudaError_t cudaEventCreateWithFlags(cudaEvent_t *ret, unsigned flags)
{
	ENTER(cudaErrorMemoryAllocation);
	expect_rest("cudaEventCreateWithFlags()");
	if (flags != cudaEventDisableTiming && flags != cudaEventDefault)
		return wrong("an event of another kind");
	*ret = calloc(1, sizeof(**ret));
	(*ret)->device = fake.device;
	(*ret)->timed = flags == cudaEventDefault;
	fake.events++;
	return cudaSuccess;
}

cudaError_t cudaEventDestroy(cudaEvent_t e)
{
	free(e);
	fake.events--;
	return enter(cudaErrorUnknown);
}

cudaError_t cudaEventRecord(cudaEvent_t e, cudaStream_t s)
{
	ENTER(cudaErrorUnknown);
	if (!s || s->device != e->device)
		return wrong("an event of the default stream, or of another device's");
	e->op = fake_enqueue(s, FAKE_MARK, "event");
	return cudaSuccess;
}

cudaError_t cudaEventQuery(cudaEvent_t e)
{
	cudaError_t rc;

	ENTER(cudaErrorUnknown);
	rc = e->op ? fake_ask(e->op) : cudaSuccess;
	if (fake.sticky)
		return fake.sticky;
	if (rc == cudaSuccess && e->op)
		fake_join(&fake.host, &e->op->clock);
	return rc;
}

/* It has no clock: all takes a microsecond. */
cudaError_t cudaEventElapsedTime(float *ms, cudaEvent_t began, cudaEvent_t ended)
{
	ENTER(cudaErrorUnknown);
	if (!began->timed || !ended->timed || !began->op || !ended->op)
		return wrong("the time between events that measure none, or were not recorded");
	if (!began->op->ran || !ended->op->ran)
		return cudaErrorNotReady;
	*ms = 0.001f;
	return cudaSuccess;
}

/* --- work --- */

cudaError_t cudaMemcpyAsync(void *to, const void *from, size_t bytes, enum cudaMemcpyKind kind, cudaStream_t s)
{
	struct fake_op *op;

	ENTER(cudaErrorUnknown);
	if (!s)
		return wrong("a copy of the default stream");
	op = fake_enqueue(s, FAKE_COPY, kind == cudaMemcpyHostToDevice ? "copy in" :
					kind == cudaMemcpyDeviceToHost ? "copy out" : "copy to a buffer");
	op->to = to;
	op->from = from;
	op->bytes = bytes;
	op->copy = kind;
	return cudaSuccess;
}

cudaError_t cudaMemsetAsync(void *to, int value, size_t bytes, cudaStream_t s)
{
	struct fake_op *op;

	ENTER(cudaErrorUnknown);
	if (!s)
		return wrong("a set of the default stream");
	op = fake_enqueue(s, FAKE_SET, "zeros for a buffer");
	op->to = to;
	op->value = value;
	op->bytes = bytes;
	return cudaSuccess;
}

cudaError_t cudaLaunchKernel(const void *kernel, dim3 grid, dim3 block, void **args, size_t shared, cudaStream_t s)
{
	const struct fake_kernel *k = &fake_the_kernel;
	struct fake_op *op;

	ENTER(cudaErrorLaunchOutOfResources);
	if (kernel != k || !s || !grid.x || grid.y * grid.z != 1 || !block.x || block.x > 1024 || block.y * block.z != 1 || shared)
		return wrong("a launch of another kernel, on the default stream, or of a size that is not possible");
	if (s->device != fake.device)
		return wrong("a launch to a stream of a device that is not the current one");
	op = fake_enqueue(s, FAKE_KERNEL, "kernel");
	op->blocks = grid.x;
	op->threads = block.x;
	for (unsigned i = 0; i < k->nr_args; i++) {
		op->args[i] = malloc(k->args_bytes[i]);
		memcpy(op->args[i], args[i], k->args_bytes[i]);
	}
	return cudaSuccess;
}

cudaError_t cudaLibraryLoadData(cudaLibrary_t *ret, const void *code, enum cudaJitOption *jit, void **jit_values, unsigned nr_jit,
				enum cudaLibraryOption *options, void **values, unsigned nr)
{
	ENTER(cudaErrorInvalidPtx);
	if (!code || jit || jit_values || nr_jit || options || values || nr || fake.device < 0)
		return wrong("a library with options, or of no device");
	if (strncmp(code, ".version", 8) != 0)
		return cudaErrorInvalidPtx;
	fake.libraries++;
	*ret = (cudaLibrary_t)(uintptr_t)&fake.libraries;
	return cudaSuccess;
}

cudaError_t cudaLibraryUnload(cudaLibrary_t library)
{
	(void)library;
	expect_rest("cudaLibraryUnload()");
	fake.libraries--;
	return enter(cudaErrorUnknown);
}

cudaError_t cudaLibraryGetKernel(cudaKernel_t *ret, cudaLibrary_t library, const char *name)
{
	ENTER(cudaErrorSymbolNotFound);
	if (library != (cudaLibrary_t)(uintptr_t)&fake.libraries || strcmp(name, fake_the_kernel.name) != 0)
		return cudaErrorSymbolNotFound;
	*ret = (cudaKernel_t)(uintptr_t)&fake_the_kernel;
	return cudaSuccess;
}
