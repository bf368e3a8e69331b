/* SPDX-License-Identifier: Apache-2.0 */
#include "meta/base/guard.h"

#include <setjmp.h>
#include <signal.h>
#include <stddef.h>

static __thread sigjmp_buf *here;
static __thread const void *lost; /* the address of the page that could not be read */
static struct sigaction before;

static void on_bus(int nr, siginfo_t *info, void *unused)
{
	(void)unused;
	lost = info->si_addr;
	if (here)
		siglongjmp(*here, 1);
	(void)sigaction(nr, &before, NULL); /* not a guarded read: the signal is raised again, and ends the process */
}

void sc_guard_install(void)
{
	/* NODEFER: the jump leaves the handler, and the next one must come through */
	struct sigaction action = {.sa_sigaction = on_bus, .sa_flags = SA_NODEFER | SA_SIGINFO}, found;

	(void)sigaction(SIGBUS, &action, &found);
	if (found.sa_sigaction != on_bus)
		before = found;
}

bool sc_guard_run(void (*fn)(void *arg), void *arg, const void **ret_lost)
{
	sigjmp_buf *volatile outer = here;
	sigjmp_buf buf;
	bool good = sigsetjmp(buf, 0) == 0;

	if (good) {
		here = &buf;
		fn(arg);
	}
	here = outer;
	if (!good)
		*ret_lost = lost;
	return good;
}
