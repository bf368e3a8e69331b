/* SPDX-License-Identifier: Apache-2.0 */
/* The service of a mount, and, where this program can be one, the node of a cluster that it is. */
#include "fs/fs_i.h"

#include "reshard/member/member.h"

#ifdef FS_HAS_CLUSTER

int fs_service_start(struct fs *fs, const struct rs_options *options, const struct rs_member_options *member,
		     struct sc_err *err)
{
	int rc = rs_service_new(options, &fs->service, err);

	return rc == 0 && member->cluster ? rs_member_start(fs->service, member, err) : rc;
}

void fs_service_leave(struct fs *fs)
{
	if (fs->service)
		rs_member_leave(fs->service);
}

void fs_service_end(struct fs *fs)
{
	struct rs_landings *landings = fs->service ? rs_member_stop(fs->service) : NULL;

	rs_service_free(fs->service);
	if (landings)
		(void)rs_landings_free(landings);
}

void fs_service_describe(struct fs *fs, struct sc_buf *buf)
{
	rs_member_describe(fs->service, buf);
}

#else

int fs_service_start(struct fs *fs, const struct rs_options *options, const struct rs_member_options *member,
		     struct sc_err *err)
{
	(void)member; /* its options were refused */
	return rs_service_new(options, &fs->service, err);
}

void fs_service_leave(struct fs *fs)
{
	(void)fs;
}

void fs_service_end(struct fs *fs)
{
	rs_service_free(fs->service);
}

void fs_service_describe(struct fs *fs, struct sc_buf *buf)
{
	(void)fs;
	(void)buf;
}

#endif
