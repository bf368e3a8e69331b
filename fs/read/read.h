/* SPDX-License-Identifier: Apache-2.0 */
/* Replies with bytes of views and partitions. */
#ifndef FS_READ_H
#define FS_READ_H

#include "fs/fs_i.h"
#include "meta/base/metric.h"

/* Time until reads of a kind were answered. */
#define FS_READS(object, kind)								\
	SC_HISTOGRAM(object, "scalai_read_seconds", "kind=\"" kind "\"",			\
		     "Time until a read was answered, with its waits.")

/* seen.c */
/** A read of a view: of `bytes` bytes, one at least, and no more than there are. */
struct fs_seen {
	struct fs *fs;
	fuse_req_t req;
	struct rs_image *image;
	struct rs_view *view;
	fuse_ino_t ino;
	size_t bytes;
	uint64_t at;
	int64_t began_ns;
};
/** Answer a read: with bytes that were needed, or with an error, which the job's `error` keeps. */
void fs_send_seen(const struct fs_seen *seen);
void fs_fail_seen(const struct fs_seen *seen, const struct sc_err *err);
/** Answers a read of a partition. */
void fs_read_data(fuse_req_t req, struct fs *fs, const struct fs_handle *h, size_t bytes, uint64_t at);
void fs_buffers_done(void);	/* at the end */

/* reads.c */
/** Answers a read of an image that may wait (rs_mapped.waits), at once or, from another thread, when its bytes have
 *  come. */
void fs_read_late(const struct fs_seen *seen);
/** At the end: answers what is parked, and waits until no source will call. */
void fs_reads_stop(struct fs *fs);

#endif
