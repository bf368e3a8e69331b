/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Copies of nodes' files on other nodes, so that no node's loss is a loss of files.
 *
 *	protocol.c	the number of the protocol that all nodes speak
 *	nodes.c		the table of nodes; nodes that are emptied
 *	copies.c	which node keeps what; what all have said
 * Each calls only those below it.
 *
 * 1. A node copies what rendezvous hashing (reshard/cluster/peers/holders.h) gives it, of the nodes that are members,
 *    or were a moment ago, and are not being emptied.  Who keeps a copy is not written down anywhere: who reads asks
 *    in the same order (reshard/cluster/peers/pull.c).
 * 2. After each pass a node says what it should have and has, as of which members: key `copied`, with its lease.  The
 *    files are safe when all members have said so as of the same members, and have everything.
 */
#ifndef RS_COPIES_I_H
#define RS_COPIES_I_H

#include "reshard/cluster/peers/peers_i.h"

/** Begins: the service's worker makes copies from now on. */
void rs_copies_start(struct rs_member *m);
/** Says whether older versions of a job are still to come here, of which copies are to be made, too.  While they are
 *  (`waits`), this node makes no copies of the job and says nothing of them, so that others wait. */
void rs_copies_wait(struct rs_member *m, struct rs_shared *j, bool waits);
/** On the node's thread: notes the lease of this registration. */
void rs_copies_registered(struct rs_member *m, uint64_t lease);
/** On the node's thread, now and then: wakes the worker, which says and asks; strikes out nodes that are gone for
 *  long. */
void rs_copies_tick(struct rs_member *m);
/** The worker: says what this node has, and takes what the others have said. */
void rs_copies_say(struct rs_member *m, struct rs_shared *j);

/** Refuses what needs all files of a version, the newest, if some are lost: EIO. */
int rs_copies_refuse_lost(struct rs_member *m, struct rs_job *job, uint64_t version, struct sc_err *err);

/* --- nodes.c: as `nodes` and `drain` of struct rs_copies_ops --- */
int rs_nodes_table(void *member, struct sc_buf *buf, struct sc_err *err);
int rs_nodes_drain(void *member, const char *text, struct sc_err *err);
/** Tells whether a member keeps copies: not all are being emptied.  Under m->lock. */
bool rs_nodes_keep(const struct rs_member *m);

/* --- protocol.c: as `cluster` and `set_cluster` of struct rs_copies_ops --- */
int rs_cluster_text(void *member, struct sc_buf *buf, struct sc_err *err);
int rs_cluster_set(void *member, const char *text, struct sc_err *err);

#endif
