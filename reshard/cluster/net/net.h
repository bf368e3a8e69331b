/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Sends and takes frames over TCP or UCX: one thread, epoll, connections that are opened at first use.  A connection
 * carries the requests of the side that opened it, and their answers; each side opens its own.
 *
 *	rs_net_send()	sends a message to a node; the message is lost if the connection is
 *	rs_net_pull()	pulls a region of a tensor from a holder, to the caller's memory; `done` tells how that ended
 *	rs_net_run()	waits for frames, answers them, and calls back
 *
 * Deadlines are this side's: a connection whose request has passed its own is closed, and all its requests end.
 * Nothing depends on the transport to notice a peer that says nothing.
 */
#ifndef RS_NET_H
#define RS_NET_H

#include "reshard/cluster/net/session.h"

struct rs_net;

struct rs_net_config {
	struct rs_node_id id;
	uint8_t secrets[2][RS_SECRET_BYTES];
	unsigned nr_secrets;
	const char *listen; /* ADDRESS:PORT, numeric; port 0: any; NULL: none */
	const char *tls;    /* a folder as tls.h wants it; NULL: connections are not secret */
	bool ucx;           /* over UCX, without TLS; else over TCP */
	int64_t hello_ms;   /* for connecting and both proofs */
	void *arg;
	/** Packs p->bytes bytes to `to`.  Returns an enum rs_frame_code.  Called by rs_net_run(). */
	int (*serve)(void *arg, const struct rs_node_id *peer, const struct rs_pull *p, uint8_t *to);
	/** Takes a message: PREPARED, REFUSED, HIDDEN. */
	void (*message)(void *arg, const struct rs_node_id *peer, const struct rs_net_frame *f);
	/** Is this a member, with this epoch?  Asked for each request; NULL: any. */
	bool (*is_member)(void *arg, uint32_t node, uint64_t epoch);
};

/** Tells the end of a pull.  `code` is an enum rs_frame_code of the holder's, RS_CODE_DAMAGED if the hash of the bytes
 *  is wrong, or RS_CODE_IO if the connection has failed or the deadline has passed, which err tells.  From then on
 *  nobody touches the pull's `to`. */
typedef void rs_pulled_fn(void *arg, int code, const struct sc_err *err);

/** Makes a net.  SC_E_SYSTEM, SC_E_NO_MEMORY, SC_E_LIMIT (an address), SC_E_FORMAT (a file of tls), SC_E_UNSUPPORTED
 *  (UCX: its library is missing, or this program was built without it). */
int rs_net_new(const struct rs_net_config *config, struct rs_net **ret, struct sc_err *err);
/** Loads UCX's library, as rs_net_new() does, too.  SC_E_UNSUPPORTED: it is missing, or this program was built
 *  without its headers. */
int rs_net_load_ucx(struct sc_err *err);
/** Ends a net, and all that is on its way: each pull by RS_CODE_IO. */
void rs_net_free(struct rs_net *net);
int rs_net_port(const struct rs_net *net);

/** Sends a frame to a node at ADDRESS:PORT.  SC_E_LIMIT, SC_E_BUSY (too much waits for this node), SC_E_NO_MEMORY. */
int rs_net_send(struct rs_net *net, const char *address, const struct rs_net_frame *f, struct sc_err *err);
/** Begins a pull of p->bytes bytes to `to`, within p->deadline_ms.  Errors are those of rs_net_send(); after one,
 *  `done` is not called. */
int rs_net_pull(struct rs_net *net, const char *address, const struct rs_pull *p, uint8_t *to, rs_pulled_fn *done,
		void *arg, struct sc_err *err);
/** Sets the epoch by which this node asks from now on; connections that it opened before end. */
void rs_net_set_epoch(struct rs_net *net, uint64_t epoch);
/** Sets the highest protocol that this node speaks on connections that are made from now on. */
void rs_net_set_protocol(struct rs_net *net, uint8_t max);
/** Returns a descriptor that can be read when there is something to do. */
int rs_net_fd(const struct rs_net *net);
/** Does what there is to do, and waits up to `ms` for more. */
void rs_net_run(struct rs_net *net, int ms);

#endif
