/* SPDX-License-Identifier: Apache-2.0 */
/* Makes, takes and removes the storage of a cluster's versions, on the member's threads. */
#ifndef RS_STORED_I_H
#define RS_STORED_I_H

#include "reshard/cluster/peers/peers_i.h"

/** As `kept` of head.h: on the thread of background work. */
int rs_storage_kept(void *service, struct rs_view *head, struct sc_err *err);
/** On the node's thread, after the lease of a new registration is noted: puts what this node keeps anew, as what it put
 *  under the lease before has gone with that. */
void rs_storage_registered(struct rs_member *m);
/** Ends an event that rs_storage_place() has posted; an event of another kind is left alone. */
void rs_storage_placed(const struct rs_event *e);
/** Makes the storage of version `nr`, the head, of what nodes keep, and hands it to the core; does nothing if no node
 *  keeps some of it. */
int rs_storage_place(struct rs_member *m, struct rs_shared *j, uint64_t nr, const struct rs_keep *keep,
		     uint32_t nr_keep, struct sc_err *err);
/** Notes the sets that a version is stored in; rs_storage_step() takes them when they can be shown, and
 *  returns true while it is to be called again. */
int rs_storage_note(struct rs_member *m, struct rs_shared *j, const struct rs_todo *todo, struct sc_err *err);
bool rs_storage_step(struct rs_member *m, struct rs_shared *j);
/** Takes the sets that were noted, if they were not taken yet, before another version is the head. */
int rs_storage_finish(struct rs_member *m, struct rs_shared *j, struct sc_err *err);
/** Asks etcd for the sets that a version is stored in: 1, 0 (there is no such version any more), or an error. */
int rs_storage_ask(struct rs_member *m, uint64_t id, uint64_t nr, struct rs_object_names *ret, struct sc_err *err);

/* --- gone.c: the worker --- */
/** Tell the core which versions and held sets are here: of all at the start, then of a new version. */
int rs_gone_start(struct rs_member *m, struct rs_shared *j, struct sc_err *err);
void rs_gone_taken(struct rs_member *m, struct rs_shared *j, uint64_t nr);
/** Watches the sets that the head was stored in, which are held now. */
int rs_gone_replaced(struct rs_member *m, struct rs_shared *j, const struct rs_version *was, struct sc_err *err);
/** Hides a version that has died (0: a set has) at some revision since `since`.  rs_gone_step() says when nothing dead
 *  is read here any more; it returns true while it is to be called again. */
int rs_gone_died(struct rs_member *m, struct rs_shared *j, uint64_t nr, uint64_t since, uint64_t revision,
		 struct sc_err *err);
/** Hides the version that died while it was the newest here, once there is a newer one. */
int rs_gone_followed(struct rs_member *m, struct rs_shared *j, struct sc_err *err);
bool rs_gone_step(struct rs_member *m, struct rs_shared *j);
/** Removes a version or a set that no node reads any more. */
int rs_gone_delete(struct rs_member *m, struct rs_shared *j, const struct meta_hash *set, struct sc_err *err);
void rs_gone_done(struct rs_shared *j);

/* --- sweep.c --- */
/** Begins to remove from etcd, from time to time, what nobody needs any more. */
int rs_sweep_start(struct rs_member *m, struct sc_err *err);
/** Ends it, after m->stop. */
void rs_sweep_stop(struct rs_member *m);

/* --- same.c --- */
/** The copies that rs_same_take() gives; empty at first. */
struct rs_same {
	size_t nr, room;
	uint64_t *at;
};
/** Gives files that this node made of a version to the version's storage, as copies of the other nodes' files that the
 *  storage has in their place.  It is called inside the transaction that makes that the storage. */
int rs_same_take(struct rs_service *s, uint64_t version, bool sync, struct rs_same *same, struct sc_err *err);
/** Is called after that transaction, with its result `rc`. */
void rs_same_end(struct rs_service *s, struct rs_same *same, int rc);

#endif
