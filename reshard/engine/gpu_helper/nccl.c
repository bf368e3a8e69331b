/* SPDX-License-Identifier: Apache-2.0 */
#include "reshard/engine/gpu_helper/nccl.h"

#include <dlfcn.h>
#include <stdio.h>

#define LIBRARY "libnccl.so.2"

/* The functions of NCCL, which stays loaded: it has threads of its own. */
static struct rs_nccl nccl;

static int find(void *library, const char *name, void *ret, struct sc_err *err)
{
	*(void **)ret = dlsym(library, name);
	return *(void **)ret ? 0 : sc_fail(err, SC_E_UNSUPPORTED, LIBRARY " has no %s()", name);
}

int rs_nccl_load(const struct rs_nccl **ret, char *ret_text, size_t bytes, struct sc_err *err)
{
	void *library = dlopen(LIBRARY, RTLD_NOW | RTLD_LOCAL);
	int version = 0, rc = 0;

	if (!library)
		return sc_fail(err, SC_E_UNSUPPORTED, "several GPUs need NCCL 2.22 or later: %s", dlerror());
#define FIND(name, function)                                                                       \
	if (rc == 0)                                                                               \
		rc = find(library, #function, &nccl.name, err);
	RS_NCCL_FUNCTIONS(FIND)
	if (rc < 0)
		return rc;
	if (nccl.version(&version) != ncclSuccess || version < RS_NCCL_VERSION_MIN)
		return sc_fail(err, SC_E_UNSUPPORTED, "several GPUs need NCCL 2.22 or later: " LIBRARY " is of version "
			       "%d", version);
	(void)snprintf(ret_text, bytes, "NCCL %d.%d.%d", version / 10000, version / 100 % 100, version % 100);
	*ret = &nccl;
	return 0;
}
