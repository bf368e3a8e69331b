/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Writes requests to etcd and reads its answers, as its JSON gateway has them.  Pure.  Keys and values travel in
 * base64, 64-bit numbers as strings; etcd leaves out a member that is zero or false.
 */
#ifndef META_WIRE_H
#define META_WIRE_H

#include "meta/member/txn.h"

#define META_ANSWER_BYTES_MAX (64u << 20) /* 2,000 nodes with 512 bytes each, in base64, and much room */

struct meta_answer {
	enum meta_outcome outcome;
	uint64_t revision;
	uint32_t nr;
	struct meta_record *records; /* of GET and LIST, in their order; a GET of an absent key: not present */
};

/* A line of a watch. */
struct meta_watched {
	bool created, cancelled;
	uint64_t compacted; /* revisions below are gone; 0: that is not why it was cancelled */
	uint64_t revision;  /* of the last change; 0: none */
	uint32_t nr;
	struct meta_record *records;
};

/** Append the body of a transaction, of a page of all/ (from a key on; revision 0: now), of a watch; `whole`: of all
 *  keys of the cluster.  SC_E_LIMIT, SC_E_NO_MEMORY. */
int meta_wire_txn(const char *cluster, const struct meta_txn *txn, struct sc_buf *buf, struct sc_err *err);
int meta_wire_page(const char *cluster, bool whole, const char *from, uint64_t revision, struct sc_buf *buf,
		   struct sc_err *err);
int meta_wire_watch(const char *cluster, bool whole, uint64_t from, struct sc_buf *buf, struct sc_err *err);

/** Read an answer into the arena.  Keys that this program does not know are left out.  SC_E_FORMAT, SC_E_LIMIT,
 *  SC_E_NO_MEMORY: then nothing of the answer may be taken. */
int meta_wire_txn_answer(const char *cluster, const struct meta_txn *txn, const void *json, size_t bytes,
			 struct sc_arena *arena, struct meta_answer *ret, struct sc_err *err);
/** Reads a page; *ret_next is the key from which the next page is to be read, or NULL: this was the last. */
int meta_wire_page_answer(const char *cluster, const void *json, size_t bytes, struct sc_arena *arena,
			  struct meta_answer *ret, const char **ret_next, struct sc_err *err);
int meta_wire_watched(const char *cluster, const void *json, size_t bytes, struct sc_arena *arena,
		      struct meta_watched *ret, struct sc_err *err);
/** Reads the answer to grant and keepalive; a lease that is gone has no time left. */
int meta_wire_lease_answer(const void *json, size_t bytes, uint64_t *ret_lease, uint64_t *ret_ttl_s,
			   struct sc_err *err);
/** Reads the code of gRPC and the sentence of a refusal; false: the answer is no refusal. */
bool meta_wire_error(const void *json, size_t bytes, int *ret_code, char *ret_text, size_t room);

/** Write and read base64, standard alphabet, padded.  Reading is exact: false for all that writing does not make. */
void meta_add_base64(struct sc_buf *buf, const void *bytes, size_t nr);
bool meta_read_base64(const char *text, size_t nr, uint8_t *ret, size_t *ret_nr); /* room: 3 * nr / 4 */

#endif
