/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Commands of a job are carried out one after the other.  In a cluster the change of another node holds the job's lock
 * here until etcd has told how the change ended.  That may take long, so nobody waits for the lock without end.
 */
#include "reshard/command/commands/command_i.h"

#include <pthread.h>
#include <time.h>

#define WAIT_S 30

int rs_command_lock(struct rs_job *job, struct sc_err *err)
{
	struct timespec until;

	if (!job->service->shared) {
		(void)pthread_mutex_lock(&job->command);
		return 0;
	}
	(void)clock_gettime(CLOCK_MONOTONIC, &until);
	until.tv_sec += WAIT_S;
	if (pthread_mutex_clocklock(&job->command, CLOCK_MONOTONIC, &until) == 0)
		return 0;
	return sc_fail(err, SC_E_BUSY, "another node's change of this job is not here yet; see /.ctl/health, and try "
		       "again");
}
