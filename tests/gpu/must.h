/* SPDX-License-Identifier: Apache-2.0 */
/* For programs that call CUDA, or the stand-in: a call that fails ends the program with its name. */
#ifndef TEST_MUST_H
#define TEST_MUST_H

#include <cuda_runtime_api.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <unistd.h>

#include "meta/base/sys.h"

#define LATE_NS ((int64_t)60000000000)

#define MUST(call)                                                                                 \
	do {                                                                                       \
		const cudaError_t rc_ = (call);                                                    \
		if (rc_ != cudaSuccess) {                                                          \
			(void)printf("%s failed: %s (%s)\n", #call, cudaGetErrorName(rc_), cudaGetErrorString(rc_)); \
			exit(1);                                                                   \
		}                                                                                  \
	} while (0)

/* For a pipeline or an exchange: there is nothing to do while it waits. */
__attribute__((unused)) static int idle(void *arg, struct sc_err *err)
{
	(void)arg, (void)err;
	return 0;
}

static void *pinned(size_t bytes)
{
	const int fd = memfd_create("pinned", MFD_CLOEXEC);
	void *at = MAP_FAILED;

	if (fd >= 0 && ftruncate(fd, (off_t)bytes) == 0)
		at = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
	if (at == MAP_FAILED) {
		(void)printf("there are no %zu bytes of shared memory\n", bytes);
		exit(1);
	}
	(void)close(fd);
	MUST(cudaHostRegister(at, bytes, cudaHostRegisterPortable));
	return at;
}

static void wait_for(cudaStream_t s)
{
	const int64_t until = sc_now_ns() + LATE_NS;
	cudaError_t rc;

	while ((rc = cudaStreamQuery(s)) == cudaErrorNotReady)
		if (sc_now_ns() > until) {
			(void)printf("a stream has not ended for a minute\n");
			exit(1);
		}
	MUST(rc);
}

#endif
