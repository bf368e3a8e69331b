/* SPDX-License-Identifier: Apache-2.0 */
#ifndef RS_HASH_H
#define RS_HASH_H

#include "reshard/engine/io/engine.h"
#include "reshard/engine/io/source.h"

/**
 * Hashes (XXH3-128) all bytes of a blob, also of one that is known to be damaged; *ret_bytes: how many there were.
 * `tick` may be NULL.  Errors: SC_E_DAMAGED, SC_E_SYSTEM, SC_E_CANCELLED.
 */
int rs_hash_blob(const struct meta_store *store, uint64_t blob, rs_tick_fn *tick, void *arg, uint8_t hash[16],
		 uint64_t *ret_bytes, struct sc_err *err);
/** Hashes an open file, which may be open with O_DIRECT. */
int rs_hash_fd(int fd, uint64_t blob, rs_tick_fn *tick, void *arg, uint8_t ret[16], uint64_t *ret_bytes,
	       struct sc_err *err);

/** A hash that is being made, of bytes that come one after the other. */
struct rs_hashing;
/** Begins a hash; rs_hashing_end() ends it.  Errors: SC_E_NO_MEMORY. */
int rs_hashing_begin(struct rs_hashing **ret, struct sc_err *err);
/** Waits for bytes [at, at + nr) of a source, and adds them.  Errors: those of the source. */
int rs_hashing_add(struct rs_hashing *h, struct rs_bytes *bytes, uint64_t at, uint64_t nr, struct sc_err *err);
/** Ends a hash, and gives it (`ret` NULL: nobody wants it); `h` may be NULL. */
void rs_hashing_end(struct rs_hashing *h, uint8_t ret[16]);
/** Hashes a source, and waits for its bytes, which may be on another node. */
int rs_hash_bytes(struct rs_bytes *bytes, uint8_t ret[16], struct sc_err *err);

#endif
