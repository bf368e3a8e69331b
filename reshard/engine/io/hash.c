/* SPDX-License-Identifier: Apache-2.0 */
/* Hashes whole blobs, 1 MiB at a time, through the page cache or past it (O_DIRECT). */
#include "reshard/engine/io/hash.h"

#include <errno.h>
#include <fcntl.h>
#include <string.h>

#include "meta/base/sys.h"
#include "meta/base/xxh.h"

#define CHUNK (1u << 20)
#define PAGE 4096		/* what O_DIRECT wants */

struct rs_hashing {
	XXH3_state_t *state;
	void *all;
	unsigned char *buffer;	/* of CHUNK bytes, aligned for O_DIRECT */
};

int rs_hashing_begin(struct rs_hashing **ret, struct sc_err *err)
{
	struct rs_hashing *h = sc_sys.alloc(sizeof(*h));

	if (!h)
		return sc_nomem(err);
	h->all = sc_sys.alloc(CHUNK + PAGE);
	h->buffer = (unsigned char *)(((uintptr_t)h->all + PAGE - 1) / PAGE * PAGE);
	h->state = XXH3_createState();
	if (!h->all || !h->state) {
		rs_hashing_end(h, NULL);
		return sc_nomem(err);
	}
	(void)XXH3_128bits_reset(h->state);
	*ret = h;
	return 0;
}

int rs_hashing_add(struct rs_hashing *h, struct rs_bytes *bytes, uint64_t at, uint64_t nr, struct sc_err *err)
{
	int rc = 0;

	for (uint64_t n; rc == 0 && nr; at += n, nr -= n) {
		n = nr < CHUNK ? nr : CHUNK;
		rc = rs_bytes_read(bytes, at, n, h->buffer, err);
		if (rc == 0)
			(void)XXH3_128bits_update(h->state, h->buffer, n);
	}
	return rc;
}

void rs_hashing_end(struct rs_hashing *h, uint8_t ret[16])
{
	XXH128_canonical_t hash;

	if (!h)
		return;
	if (ret) {
		XXH128_canonicalFromHash(&hash, XXH3_128bits_digest(h->state));
		memcpy(ret, hash.digest, 16);
	}
	(void)XXH3_freeState(h->state);
	sc_sys.release(h->all);
	sc_sys.release(h);
}

/* Reads a piece; returns 0 at the end.  After a read that ended inside of a page it goes on without O_DIRECT. */
static ssize_t read_piece(int fd, unsigned char *to, uint64_t at)
{
	ssize_t n;

	if (at % PAGE)
		(void)sc_sys.fcntl_flags(fd, 0);
	do
		n = sc_sys.pread(fd, to, CHUNK, (off_t)at);
	while (n < 0 && errno == EINTR);
	return n;
}

int rs_hash_fd(int fd, uint64_t blob, rs_tick_fn *tick, void *arg, uint8_t ret[16], uint64_t *ret_bytes,
	       struct sc_err *err)
{
	struct rs_hashing *h = NULL;
	ssize_t n = 0;
	int rc = rs_hashing_begin(&h, err);

	*ret_bytes = 0;
	while (rc == 0 && (n = read_piece(fd, h->buffer, *ret_bytes)) > 0) {
		(void)XXH3_128bits_update(h->state, h->buffer, (size_t)n);
		*ret_bytes += (uint64_t)n;
		if (tick && tick(arg, (uint64_t)n))
			rc = sc_fail(err, SC_E_CANCELLED, "stopped");
	}
	if (rc == 0 && n < 0)
		rc = rs_cannot_read(blob, *ret_bytes, errno, err);
	rs_hashing_end(h, rc == 0 ? ret : NULL);
	return rc;
}

int rs_hash_bytes(struct rs_bytes *bytes, uint8_t ret[16], struct sc_err *err)
{
	struct rs_hashing *h = NULL;
	int rc = rs_hashing_begin(&h, err);

	if (rc == 0)
		rc = rs_hashing_add(h, bytes, 0, bytes->bytes, err);
	rs_hashing_end(h, rc == 0 ? ret : NULL);
	return rc;
}

int rs_hash_blob(const struct meta_store *store, uint64_t blob, rs_tick_fn *tick, void *arg, uint8_t hash[16],
		 uint64_t *ret_bytes, struct sc_err *err)
{
	sc_cleanup(sc_closep) int fd = -1;
	int rc = meta_store_open_damaged(store, blob, O_RDONLY, &fd, err);

	return rc < 0 ? rc : rs_hash_fd(fd, blob, tick, arg, hash, ret_bytes, err);
}
