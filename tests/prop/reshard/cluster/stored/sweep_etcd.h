/* SPDX-License-Identifier: Apache-2.0 */
/* An etcd in memory, of transactions as nodes make them: keys and values as their texts, each with the revisions that etcd has. */
#ifndef TESTS_SWEEP_ETCD_H
#define TESTS_SWEEP_ETCD_H

#include "meta/member/member_i.h"
#include "reshard/cluster/peers/peers_i.h"

struct fake_etcd {
	uint64_t revision;
	struct {
		size_t nr, room;
		struct fake_key {
			char *key, *value;
			uint64_t create, mod;
		} *at;			/* by key */
	} keys;
};

/** Carries out a transaction, and gives the answer to `take`. */
enum meta_outcome fake_txn(struct fake_etcd *e, const struct meta_txn *txn, rs_answer_fn *take, void *arg);
/** Gives the revision that changed a key last, 0: it is absent. */
uint64_t fake_mod(const struct fake_etcd *e, const struct meta_key *key);
/** Makes `to`, which is empty, a copy. */
void fake_copy(const struct fake_etcd *e, struct fake_etcd *to);
void fake_done(struct fake_etcd *e);

#endif
