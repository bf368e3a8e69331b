/* SPDX-License-Identifier: Apache-2.0 */
/* Hashes of whole blobs: 1 MiB at a time, through the page cache or past it (O_DIRECT). */
#include "reshard/engine/hash.h"

#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <xxhash.h>

#include "meta/base/sys.h"
#include "reshard/engine/source.h"

#define CHUNK (1u << 20)
#define PAGE 4096		/* what O_DIRECT wants */

/* Aligned for O_DIRECT; *ret_all is what is released. */
static unsigned char *aligned(size_t bytes, void **ret_all)
{
	*ret_all = sc_sys.alloc(bytes + PAGE);
	return *ret_all ? (unsigned char *)(((uintptr_t)*ret_all + PAGE - 1) / PAGE * PAGE) : NULL;
}

/* A piece; 0 at the end.  A read that ended inside of a page goes on without O_DIRECT. */
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
	void *all;
	unsigned char *buffer = aligned(CHUNK, &all);
	XXH3_state_t *state = XXH3_createState();
	XXH128_canonical_t hash;
	ssize_t n = 0;
	int rc = buffer && state ? 0 : sc_nomem(err);

	*ret_bytes = 0;
	if (rc == 0)
		(void)XXH3_128bits_reset(state);
	while (rc == 0 && (n = read_piece(fd, buffer, *ret_bytes)) > 0) {
		(void)XXH3_128bits_update(state, buffer, (size_t)n);
		*ret_bytes += (uint64_t)n;
		if (tick && tick(arg, (uint64_t)n))
			rc = sc_fail(err, SC_E_CANCELLED, "stopped");
	}
	if (rc == 0 && n < 0)
		rc = rs_cannot_read(blob, *ret_bytes, errno, err);
	if (rc == 0) {
		XXH128_canonicalFromHash(&hash, XXH3_128bits_digest(state));
		memcpy(ret, hash.digest, 16);
	}
	(void)XXH3_freeState(state);
	sc_sys.release(all);
	return rc;
}

int rs_hash_bytes(struct rs_bytes *bytes, uint8_t ret[16], struct sc_err *err)
{
	void *buffer = sc_sys.alloc(CHUNK);
	XXH3_state_t *state = XXH3_createState();
	XXH128_canonical_t hash;
	int rc = buffer && state ? 0 : sc_nomem(err);

	if (rc == 0)
		(void)XXH3_128bits_reset(state);
	for (uint64_t at = 0, n; rc == 0 && at < bytes->bytes; at += n) {
		n = bytes->bytes - at < CHUNK ? bytes->bytes - at : CHUNK;
		rc = rs_bytes_read(bytes, at, n, buffer, err);
		if (rc == 0)
			(void)XXH3_128bits_update(state, buffer, (size_t)n);
	}
	if (rc == 0) {
		XXH128_canonicalFromHash(&hash, XXH3_128bits_digest(state));
		memcpy(ret, hash.digest, 16);
	}
	(void)XXH3_freeState(state);
	sc_sys.release(buffer);
	return rc;
}

int rs_hash_blob(const struct meta_store *store, uint64_t blob, rs_tick_fn *tick, void *arg, uint8_t hash[16],
		 uint64_t *ret_bytes, struct sc_err *err)
{
	sc_cleanup(sc_closep) int fd = -1;
	int rc = meta_store_open_damaged(store, blob, O_RDONLY, &fd, err);

	return rc < 0 ? rc : rs_hash_fd(fd, blob, tick, arg, hash, ret_bytes, err);
}
