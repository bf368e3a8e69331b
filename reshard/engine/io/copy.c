/* SPDX-License-Identifier: Apache-2.0 */
/* Copies a file in the cheapest way that the file systems offer: reflink, the kernel, a buffer. */
#include "reshard/engine/io/copy.h"

#include <errno.h>

#include "meta/base/sys.h"
#include "meta/store/store.h"

#define PIECE (1u << 20)
#define AHEAD (8 * PIECE)	/* of another node's bytes is asked for at a time */

/* Copies through a buffer, if the kernel can't copy: between two file systems, say. */
static int copy_by_hand(int to, int from, uint64_t blob, uint64_t at, uint64_t bytes, const char *path,
			struct sc_err *err)
{
	size_t room = PIECE;
	unsigned char *buffer = sc_sys.alloc(room);
	int rc = buffer ? 0 : sc_nomem(err);

	for (uint64_t n; rc == 0 && at < bytes; at += n) {
		n = sc_min_u64(room, bytes - at);
		rc = rs_fd_read(from, blob, at, n, buffer, err);
		if (rc == 0 && sc_pwrite_all(to, buffer, n, at) < 0)
			rc = sc_fail_sys(err, errno, "cannot write");
	}
	sc_sys.release(buffer);
	return rc < 0 ? sc_wrap(err, rc, "cannot copy '%s'", path) : 0;
}

int rs_copy_file(int to, int from, uint64_t blob, uint64_t bytes, const char *path, struct sc_err *err)
{
	uint64_t at = 0;

	if (bytes == 0 || sc_sys.clone_range(to, 0, from, 0, 0) == 0)
		return 0;
	while (at < bytes) {
		off_t in = (off_t)at, out = (off_t)at;
		ssize_t n = sc_sys.copy_range(from, &in, to, &out, bytes - at);

		if (n < 0 && errno == EINTR)
			continue;
		/* also where a disk fails, or the file ends too early: by hand it is seen which file it is */
		if (n == 0 || (n < 0 && (errno == EXDEV || errno == EOPNOTSUPP || errno == EINVAL || errno == ENOSYS ||
					 meta_disk_fails(errno))))
			return copy_by_hand(to, from, blob, at, bytes, path, err);
		if (n < 0)
			return sc_fail_sys(err, errno, "cannot copy '%s'", path);
		at += (uint64_t)n;
	}
	return 0;
}

int rs_copy_place(int to, const struct rs_place *from, uint64_t bytes, struct sc_err *err)
{
	unsigned char *buffer = sc_sys.alloc(PIECE);
	struct rs_bytes *b = NULL;
	int rc = buffer ? rs_place_open(from, &b, err) : sc_nomem(err);

	for (uint64_t at = 0, n; rc == 0 && at < bytes; at += n) {
		n = sc_min_u64(PIECE, bytes - at);
		rs_bytes_ahead(b, at, sc_min_u64(AHEAD, bytes - at));
		rc = rs_bytes_read(b, at, n, buffer, err);
		if (rc == 0 && sc_pwrite_all(to, buffer, n, at) < 0)
			rc = sc_fail_sys(err, errno, "cannot write what another node has of a blob");
	}
	if (b)
		rs_place_close(from, b);
	sc_sys.release(buffer);
	return rc;
}
