/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A transaction of etcd, and its answer, as plain values: compares, then one of two lists of operations, at one
 * revision.  A revision is etcd's count of changes; a key has the revision that made it and the one that changed it
 * last.
 */
#ifndef META_TXN_H
#define META_TXN_H

#include "meta/member/keys.h"

#define META_TXN_OPS_MAX 8u		/* of either list */
#define META_TXN_NODES_MAX 60u		/* compares of nodes in one transaction; etcd's own limit is 128 */
#define META_TXN_COMPARES_MAX (META_TXN_NODES_MAX + 8u)

struct meta_compare {
	enum { META_CREATE_IS, META_CREATE_IS_NOT, META_MOD_IS } what;
	struct meta_key key;
	uint64_t revision;		/* 0: the key is absent */
};

enum meta_range { META_RANGE_ALL, META_RANGE_NODES, META_RANGE_READY, META_RANGE_KEPT, META_RANGE_LOW,
		  META_RANGE_TAGS, META_RANGE_COPIED, META_RANGE_NUMBERS, META_RANGE_STORES, META_RANGE_VERSIONS,
		  META_RANGE_NCCL, META_RANGE_JOB, META_RANGE_RECORDS, META_RANGE_OBJECTS,
		  META_RANGE_CLUSTER };

struct meta_op {
	enum { META_PUT, META_DELETE, META_CLEAR, META_GET, META_LIST } what;	/* CLEAR: deletes a range */
	struct meta_key key;		/* LIST, CLEAR: job and nr of a range that has them; JOB: the kind, too */
	struct meta_value value;	/* PUT */
	uint64_t lease;			/* PUT: the key goes with it; 0: it stays */
	enum meta_range range;		/* LIST, CLEAR */
	bool keys_only;			/* LIST */
};

struct meta_txn {
	uint32_t nr_compares, nr_then, nr_else;
	struct meta_compare *compares;
	struct meta_op *then, *otherwise;
	bool any_server;		/* no compares, only reads: a server that lags behind may answer */
};

struct meta_record {
	struct meta_key key;
	bool present;
	uint64_t create, mod;		/* mod of an absent key: revision at which it was seen to be absent */
	struct meta_value value;	/* of a present one, unless only keys were asked for */
};

enum meta_outcome {
	META_APPLIED,	/* the compares held, `then` was done */
	META_REFUSED,	/* they did not, `otherwise` was done */
	META_UNKNOWN,	/* no answer: it was done, or will be, or never will */
};

#endif
