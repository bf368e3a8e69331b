/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The service as a node of a cluster: jobs, versions and topologies that all nodes have (docs/cluster-protocol.md).
 *
 *	rs_member_start()	registers this store's node with etcd, and gives the service a kind of head.h, "etcd"
 *	rs_member_stop()	before the service ends
 *
 * The protocol is reshard/cluster/protocol's core; this room is its hands: what it asks of etcd, of other nodes, of
 * jobs.
 *
 *  E1  No thread waits for one that has ended.  rs_member_leave() first lets nothing new be asked for, then joins the
 *      node's thread, which alone talks to etcd and to other nodes, and then ends, by an error, all that was asked of
 *      it: transactions, and pulls that are on their way or were not begun.  Only then is a thread joined that may
 *      wait for bytes of other nodes: workers of FUSE (fs/daemon/service.c looks for the end of their session), those
 *      of commands and reads (fs/daemon/mount.c), the service's worker and scrubber, the member's worker.  None of
 *      them waits for a node that does not answer.
 */
#ifndef RS_MEMBER_H
#define RS_MEMBER_H

#include "reshard/engine/remote/landing.h"
#include "reshard/cluster/peers/boot.h"
#include "reshard/version/state/state.h"

#define RS_MEMBER_ETCD_MAX 8

struct rs_member_options {
	const char *cluster, *node;	/* names; cluster NULL: none */
	const char *domain;		/* what fails together, NULL: itself alone */
	const char *listen;		/* ADDRESS:PORT, where other nodes reach this one; port 0: any */
	const char *etcd[RS_MEMBER_ETCD_MAX]; /* http(s)://HOST:PORT */
	uint32_t nr_etcd;
	const char *tls;		/* a folder of certificates, between nodes; NULL: not secret */
	const char *fabric;		/* tcp or ucx, between nodes; NULL: tcp */
	struct rs_boot_options boot;
	const char *etcd_tls;		/* the same to etcd; NULL: the system's CAs, no certificate of this node's */
};

/**
 * Joins the cluster, or makes it.  The store is of one node of one cluster for ever.
 * Errors: SC_E_STATE (the store is another node's, or has jobs of its own), SC_E_BUSY (another daemon is this node),
 * SC_E_UNSUPPORTED (built without), SC_E_SYSTEM (etcd does not answer), SC_E_CANCELLED (`boot.ends`), those of the net
 * and the catalog.
 */
int rs_member_start(struct rs_service *s, const struct rs_member_options *o, struct sc_err *err);
/** Ends what waits for etcd or for other nodes, and lets nothing wait any more: before rs_member_stop(). */
void rs_member_leave(struct rs_service *s);
/** Returns what files of other nodes that are open still are read from: for rs_landings_free(), after the service. */
struct rs_landings *rs_member_stop(struct rs_service *s);
/** Appends lines for `health`; none of a service that is no member. */
void rs_member_describe(struct rs_service *s, struct sc_buf *buf);

#endif
