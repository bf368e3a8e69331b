/* SPDX-License-Identifier: Apache-2.0 */
#ifndef RS_HASH_H
#define RS_HASH_H

#include "reshard/engine/engine.h"

/**
 * Hashes (XXH3-128) all bytes of a blob, also of one that is known to be damaged; *ret_bytes: how many there were.
 * `tick` may be NULL.  Errors: SC_E_DAMAGED, SC_E_SYSTEM, SC_E_CANCELLED.
 */
int rs_hash_blob(const struct meta_store *store, uint64_t blob, rs_tick_fn *tick, void *arg, uint8_t hash[16],
		 uint64_t *ret_bytes, struct sc_err *err);
/** Hashes an open file, which may be open with O_DIRECT. */
int rs_hash_fd(int fd, uint64_t blob, rs_tick_fn *tick, void *arg, uint8_t ret[16], uint64_t *ret_bytes,
	       struct sc_err *err);

struct rs_bytes;
/** Hashes a source, which is elsewhere maybe: its bytes are waited for. */
int rs_hash_bytes(struct rs_bytes *bytes, uint8_t ret[16], struct sc_err *err);

#endif
