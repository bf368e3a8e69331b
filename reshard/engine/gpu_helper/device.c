/* SPDX-License-Identifier: Apache-2.0 */
#include "reshard/engine/gpu_helper/device.h"

#include <cuda_runtime_api.h>
#include <stdio.h>

#define PCI_BYTES 32

static int refuse(struct sc_err *err, int device, const char *call, cudaError_t rc)
{
	return sc_fail(err, SC_E_UNSUPPORTED, "GPU %d: %s failed: %s (%s)", device, call, cudaGetErrorName(rc),
		       cudaGetErrorString(rc));
}

/*
 * Finds a device.  Without a driver cudaDriverGetVersion() succeeds and says 0; all other calls then fail as they do
 * with a driver that is too old.
 */
static int find(int device, struct sc_err *err)
{
	int version = 0, nr = 0;
	cudaError_t rc = cudaDriverGetVersion(&version);

	if (rc == cudaSuccess && !version)
		return sc_fail(err, SC_E_UNSUPPORTED, "there is no NVIDIA driver");
	if (rc == cudaSuccess)
		rc = cudaGetDeviceCount(&nr);
	if (rc == cudaErrorInsufficientDriver)
		return sc_fail(err, SC_E_UNSUPPORTED, "the NVIDIA driver is of CUDA %d.%d, which is too old: version "
			       "525 or later is needed", version / 1000, version % 1000 / 10);
	if (rc != cudaSuccess && rc != cudaErrorNoDevice)
		return refuse(err, device, "cudaGetDeviceCount()", rc);
	if (device >= nr)
		return sc_fail(err, SC_E_UNSUPPORTED, "there is no GPU %d: CUDA finds %d", device, nr);
	return 0;
}

int rs_device_check(int device, char *ret_text, size_t bytes, struct sc_err *err)
{
	int major = 0, minor = 0, mode = 0, found = find(device, err);
	char pci[PCI_BYTES];
	cudaError_t rc;

	if (found < 0)
		return found;
	rc = cudaDeviceGetAttribute(&major, cudaDevAttrComputeCapabilityMajor, device);
	if (rc == cudaSuccess)
		rc = cudaDeviceGetAttribute(&minor, cudaDevAttrComputeCapabilityMinor, device);
	if (rc == cudaSuccess)
		rc = cudaDeviceGetAttribute(&mode, cudaDevAttrComputeMode, device);
	if (rc != cudaSuccess)
		return refuse(err, device, "cudaDeviceGetAttribute()", rc);
	rc = cudaDeviceGetPCIBusId(pci, PCI_BYTES, device);
	if (rc != cudaSuccess)
		return refuse(err, device, "cudaDeviceGetPCIBusId()", rc);
	if (major < 8)
		return sc_fail(err, SC_E_UNSUPPORTED, "GPU %d (%s) has compute capability %d.%d; 8.0 (A100) or later "
			       "is needed", device, pci, major, minor);
	if (mode == cudaComputeModeProhibited)
		return sc_fail(err, SC_E_UNSUPPORTED, "GPU %d (%s) is set to take no work (compute mode prohibited)",
			       device, pci);
	(void)snprintf(ret_text, bytes, "GPU %d at %s, sm_%d%d", device, pci, major, minor);
	return 0;
}
