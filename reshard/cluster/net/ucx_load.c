/* SPDX-License-Identifier: Apache-2.0 */
#include "reshard/cluster/net/ucx_i.h"

#include <dlfcn.h>
#include <signal.h>

#include "meta/base/err.h"
#include "reshard/cluster/net/wire.h"

struct rs_ucx rs_ucx;

static int find(void *library, const char *name, void *ret, struct sc_err *err)
{
	*(void **)ret = dlsym(library, name);
	return *(void **)ret ? 0 : sc_fail(err, SC_E_UNSUPPORTED, "fabric=ucx needs UCX 1.13 or later: it has no %s()",
					   name);
}

/* Loads UCX, which stays.  Takes UCX's handlers of signals away again: guarded reads of files need SIGBUS. */
int rs_wire_ucx_load(struct sc_err *err)
{
	struct sigaction actions[SIGSYS + 1];
	void *ucs, *ucp = NULL;
	int rc = 0;

	if (rs_ucx.loaded)
		return 0;
	for (int i = 1; i <= SIGSYS; i++)
		(void)sigaction(i, NULL, &actions[i]);
	ucs = dlopen("libucs.so.0", RTLD_NOW | RTLD_LOCAL);
	if (ucs)
		ucp = dlopen("libucp.so.0", RTLD_NOW | RTLD_LOCAL);
	for (int i = 1; i <= SIGSYS; i++)
		(void)sigaction(i, &actions[i], NULL);
	if (!ucp)
		return sc_fail(err, SC_E_UNSUPPORTED, "fabric=ucx needs the library of UCX; install the package "
			       "libucx0: %s", dlerror());
#define FIND(name, function)                                                                                           \
	if (rc == 0)                                                                                                   \
		rc = find(ucp, #function, &rs_ucx.name, err);
	RS_UCP_FUNCTIONS(FIND)
	if (rc == 0)
		rc = find(ucs, "ucs_status_string", &rs_ucx.text, err);
	rs_ucx.loaded = rc == 0;
	return rc;
}

