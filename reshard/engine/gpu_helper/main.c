/* SPDX-License-Identifier: Apache-2.0 */
/*
 * scalai-gpu, which the daemon starts: rs_serve() with CUDA itself, and the kernel as nvcc made it.  Without a GPU it
 * can be tried only as far as to the sentence that there is none (docs/gpu-internals.md).
 */
#include <stdio.h>
#include <sys/socket.h>
#include <unistd.h>

#include "reshard/engine/gpu/helper.h"
#include "reshard/engine/gpu_helper/serve.h"

extern const char rs_kernel_text[];	/* made by tools/ptx */

static bool is_started_by_a_daemon(void)
{
	int type = 0;
	socklen_t bytes = sizeof(type);

	return getsockopt(RS_HELPER_SOCKET, SOL_SOCKET, SO_TYPE, &type, &bytes) == 0 && type == SOCK_SEQPACKET;
}

int main(void)
{
	struct sc_err err;

	if (!is_started_by_a_daemon()) {
		(void)fprintf(stderr, "scalai-gpu: the daemon of a mount starts this program for engine=gpu\n");
		return 2;
	}
	rs_serve_drop_privileges();
	_exit(rs_serve(RS_HELPER_SOCKET, rs_kernel_text, &err) < 0); /* a device that hangs would keep exit() */
}
