/* SPDX-License-Identifier: Apache-2.0 */
/* Keeps descriptors of sources, which an engine reads in long runs: each is opened once in a call, some at a time. */
#ifndef RS_FDS_H
#define RS_FDS_H

#include "reshard/engine/io/source.h"

#define RS_FDS_MAX 64
/* Runs of so many bytes are read by read(), which has the file's readahead and no faults; shorter ones are copied from
 * the mapping. */
#define RS_FDS_READ_BYTES_MIN (256u << 10)

struct rs_fds {
	struct {
		const struct rs_bytes *of;
		int fd;
	} open[RS_FDS_MAX];
	unsigned nr, next;
};

/** Gives a descriptor of a source; it stays open until RS_FDS_MAX others were asked for, or rs_fds_close(). */
int rs_fds_get(struct rs_fds *fds, struct rs_bytes *b, int *ret_fd, struct sc_err *err);
/** Closes all; the next call begins anew. */
void rs_fds_close(struct rs_fds *fds);

#endif
