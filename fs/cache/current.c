/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Makes lookups wait for the newest version.  Several nodes show one namespace: a lookup may be answered only while
 * this node knows the newest version, and the kernel may remember a name only as long (docs/cluster-protocol.md).  On a
 * machine of its own both always hold.
 *
 * Nobody waits here inside a job's gate: the version that is waited for has to close the gate.
 */
#include "fs/cache/cache.h"

#include <string.h>

#include "fs/node/node.h"
#include "reshard/command/commands/head.h"

/* Waits, 5 s at most, while a newer version that another node has made is on its way here; does not fail. */
static int wait_for_newer(struct fs *fs, const struct fs_node *n)
{
	struct rs_job *job = fs_job(fs, n);

	if (job)
		rs_head_soon(job);
	return 0;
}

int fs_current(struct fs *fs, uint64_t folder, const char *name, struct sc_err *err)
{
	struct fs_node n = fs_node_of(folder);
	const char *special;
	struct rs_job *job;

	for (uint32_t i = 0, what; n.kind == FS_JOB && name && (special = fs_special_name(i, &what)); i++)
		if (strcmp(name, special) == 0)
			return wait_for_newer(fs, &n);
	switch (n.kind) {
	case FS_SPECIAL: /* presentations of the head; commands and older versions go on without it */
		if (n.what == FS_CTL_DIR || n.what == FS_V_DIR || fs_is_control(n.what))
			return wait_for_newer(fs, &n);
		break;
	case FS_JOB:
	case FS_INODE:
	case FS_IMPLIED:
		break;
	default:
		return 0;
	}
	job = fs_job(fs, &n);
	return job ? rs_head_current(job, err) : 0;
}

double fs_keep(struct fs *fs, double seconds)
{
	const int64_t until = rs_head_until(fs->service);
	double left;

	if (!fs->epoch)
		return 0;
	if (until == INT64_MAX)
		return seconds;
	left = (double)(until - sc_now_ns()) / 1e9;
	return left <= 0 ? 0 : left < seconds ? left : seconds;
}
