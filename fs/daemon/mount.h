/* SPDX-License-Identifier: Apache-2.0 */
/* Mounts a store, serves it, and unmounts it. */
#ifndef FS_MOUNT_H
#define FS_MOUNT_H

#include <stdbool.h>
#include <stdint.h>

#include "reshard/engine/gpu/remote.h"
#include "reshard/cluster/node/member.h"

struct fs_mount_options {
	const char *store, *mountpoint;
	char **argv;		/* of the program; store and mount point are its last two */
	bool foreground, debug;
	bool private_;		/* only the user who mounted (no allow_other) */
	bool io_uring;		/* FUSE over io_uring */
	bool no_passthrough;
	bool hold;		/* replace a daemon that dies, under the living mount */
	bool read_ahead_off;
	bool existing;		/* a store that is not there is refused, not made */
	int64_t scrub_s;	/* how often each blob is verified; 0: never */
	char log[4096];		/* a file; empty: stderr in the foreground, else syslog */
	uint32_t scrub_mib_s;	/* maximum read rate of scrubbing; 0: no limit */
	struct rs_gpu_options gpu;
	struct rs_member_options member;
	char words[4096];	/* that member points into */
	size_t nr_words;
};

/** Parses the value of -o; unknown words are refused, those of mount(8) and fstab are taken. */
int fs_mount_option(struct fs_mount_options *o, const char *text, struct sc_err *err);
/** Reads where a cluster's etcd is, cluster=, etcd= and etcd_tls=, into o->member.  Errors: as above. */
int fs_etcd_option(struct fs_mount_options *o, const char *text, struct sc_err *err);

/**
 * Serves until a signal or umount.  As a daemon (not foreground) the calling process returns once
 * the mount is live.  A dead mount at the mount point is replaced.
 */
int fs_mount(const struct fs_mount_options *o, struct sc_err *err);

#endif
