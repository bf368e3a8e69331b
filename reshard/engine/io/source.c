/* SPDX-License-Identifier: Apache-2.0 */
#include "reshard/engine/io/source.h"

#include <assert.h>
#include <errno.h>
#include <inttypes.h>
#include <string.h>

#include "meta/base/guard.h"
#include "meta/base/sys.h"
#include "meta/store/store.h"

/* --- what a kind is given, and what it answers --- */

int rs_place_open(const struct rs_place *place, struct rs_bytes **ret, struct sc_err *err)
{
	struct rs_bytes *b = NULL;
	int rc;

	assert(place->ops && place->at <= place->bytes);
	err->code = 0;
	rc = place->ops->open(place->arg, place->id, place->bytes, &b, err);
	assert(rc == 0 || (rc < 0 && err->code == rc));
	if (rc < 0)
		return rc;
	assert(b->ops == place->ops && b->bytes == place->bytes && (b->map || !b->bytes));
	*ret = b;
	return 0;
}

void rs_place_close(const struct rs_place *place, struct rs_bytes *b)
{
	assert(b->ops == place->ops);
	b->ops->close(place->arg, b);
}

int rs_bytes_fd(struct rs_bytes *b, int *ret_fd, struct sc_err *err)
{
	int fd = -1, rc;

	err->code = 0;
	rc = b->ops->fd(b, &fd, err);
	assert(rc == 0 ? fd >= 0 : rc < 0 && err->code == rc);
	if (rc == 0)
		*ret_fd = fd;
	return rc;
}

int rs_bytes_need(struct rs_bytes *b, uint64_t at, uint64_t bytes, struct rs_done *done, struct sc_err *err)
{
	int rc;

	assert(at <= b->bytes && bytes <= b->bytes - at);
	if (!b->ops->need || !bytes)
		return RS_HERE;
	err->code = 0;
	rc = b->ops->need(b, at, bytes, done, err);
	assert(rc == RS_HERE || (rc == RS_LATER && done) || (rc < 0 && err->code == rc));
	return rc;
}

void rs_bytes_release(struct rs_bytes *b, uint64_t at, uint64_t bytes)
{
	assert(at <= b->bytes && bytes <= b->bytes - at);
	if (b->ops->need && bytes)
		b->ops->release(b, at, bytes);
}

void rs_bytes_ahead(struct rs_bytes *b, uint64_t at, uint64_t bytes)
{
	assert(at <= b->bytes && bytes <= b->bytes - at);
	if (b->ops->ahead && bytes)
		b->ops->ahead(b, at, bytes);
}

/* --- reading --- */

int rs_cannot_read(uint64_t blob, uint64_t at, int errnum, struct sc_err *err)
{
	if (!blob)
		return sc_fail_sys(err, errnum, "cannot read byte %" PRIu64, at);
	if (!meta_disk_fails(errnum))
		return sc_fail_sys(err, errnum, "cannot read blob %" PRIu64 " at byte %" PRIu64, blob, at);
	(void)sc_fail(err, SC_E_DAMAGED, "blob %" PRIu64 " can't be read at byte %" PRIu64
		      ": its file was cut, or the disk fails; restore it, or roll back", blob, at);
	return sc_about(err, blob);
}

struct reading {
	void *to;
	const unsigned char *from;
	uint64_t bytes;
};

static void copy(void *arg)
{
	const struct reading *r = arg;

	memcpy(r->to, r->from, r->bytes);
}

int rs_bytes_read(struct rs_bytes *b, uint64_t at, uint64_t bytes, void *to, struct sc_err *err)
{
	struct reading r = {to, b->map + at, bytes};
	const void *lost;
	int rc;

	if (!bytes)
		return 0;
	rc = rs_bytes_need(b, at, bytes, NULL, err);
	if (rc < 0)
		return rc;
	if (!sc_guard_run(copy, &r, &lost))
		rc = rs_cannot_read(b->blob, (uint64_t)((const unsigned char *)lost - b->map), EIO, err);
	rs_bytes_release(b, at, bytes);
	return rc;
}

int rs_fd_read(int fd, uint64_t blob, uint64_t at, uint64_t bytes, void *to, struct sc_err *err)
{
	return sc_pread_all(fd, to, bytes, at) < 0 ? rs_cannot_read(blob, at, errno, err) : 0;
}
