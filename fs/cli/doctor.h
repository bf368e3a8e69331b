/* SPDX-License-Identifier: Apache-2.0 */
/* What `scalai doctor` asks of others: of the kernel, by a mount that nobody sees, and of etcd. */
#ifndef FS_DOCTOR_H
#define FS_DOCTOR_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define DOCTOR_PASSTHROUGH (UINT64_C(1) << 37)	 /* of linux/fuse.h, which may be older than the kernel */
#define DOCTOR_OVER_IO_URING (UINT64_C(1) << 41)

struct doctor_fuse {
	int errnum;		/* why nothing is known; 0: it is */
	char step[40];		/* that failed */
	uint32_t minor;		/* the kernel speaks FUSE 7.minor */
	uint64_t flags;		/* that it offers */
};

/** Mounts in a child, in a mount namespace of its own, and reads what the kernel says first. */
void doctor_ask_fuse(struct doctor_fuse *ret);
/** Tells whether etcd is healthy at http(s)://HOST:PORT; `why` says what was found.  By https it only connects. */
bool doctor_ask_etcd(const char *url, char *why, size_t bytes);

#endif
