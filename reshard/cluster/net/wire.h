/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Carries bytes between two nodes: by TCP, with TLS or without (tcp.c), or by UCX (ucx.c).  Frames, sessions, limits
 * and deadlines are the same over each kind.
 *
 * A fabric is what all connections of a net share: the listener, and the waiting for all.  A wire is one connection.
 * A wire never touches memory of its user outside of a call, and nothing but wait() blocks.
 */
#ifndef RS_WIRE_H
#define RS_WIRE_H

#include <netinet/in.h>
#include <stdbool.h>
#include <stddef.h>
#include <sys/types.h>

#include "meta/base/err.h"

struct rs_wire_kind;

struct rs_fabric {
	const struct rs_wire_kind *kind;
};

struct rs_wire {
	void *user;	/* who is told of it; NULL: nobody */
};

/** The calls by which wait() tells what has happened. */
struct rs_wire_events {
	void *arg;
	/** A peer has opened a connection: the callee sets its user, or closes it. */
	void (*accepted)(void *arg, struct rs_wire *take_wire, const struct sockaddr_in *from);
	/** Bytes may be sent, or, with `may_take`, may have come. */
	void (*ready)(void *user, bool may_take);
};

struct rs_fabric_config {
	const char *listen;	/* NULL: none */
	struct sockaddr_in at;	/* listen, parsed */
	const char *tls;	/* a folder as tls.h wants it; NULL: without */
	struct rs_wire_events on;
};

struct rs_wire_kind {
	/** Listens.  SC_E_SYSTEM, SC_E_NO_MEMORY, SC_E_FORMAT (a file of tls), SC_E_UNSUPPORTED (a library). */
	int (*begin)(const struct rs_fabric_config *config, struct rs_fabric **ret, struct sc_err *err);
	/** Ends the fabric; all wires were closed. */
	void (*end)(struct rs_fabric *fabric);
	/** Returns the port that is listened at; -1: none. */
	int (*port)(const struct rs_fabric *fabric);
	/** Returns a descriptor that can be read when wait() would find something to do. */
	int (*fd)(const struct rs_fabric *fabric);
	/** Waits up to `ms` for something to do, and tells it. */
	void (*wait)(struct rs_fabric *fabric, int ms);

	/** Begins a connection; what is wrong with it later is what send() and recv() say. */
	int (*connect)(struct rs_fabric *fabric, const struct sockaddr_in *to, void *user, struct rs_wire **ret,
		       struct sc_err *err);
	/** As send(2) and recv(2) of a socket that does not block.  An errno other than EAGAIN and EINTR: *why is the
	 *  reason, in a static buffer; NULL: the other side has closed the connection, as when recv() returns 0. */
	ssize_t (*send)(struct rs_wire *w, const void *from, size_t bytes, const char **why);
	ssize_t (*recv)(struct rs_wire *w, void *to, size_t bytes, const char **why);
	/** Says whether bytes are here of which ready() does not tell. */
	bool (*has_more)(const struct rs_wire *w);
	/** Says whether bytes wait to be sent, after send() had none or said EAGAIN.  Returns an errno or 0. */
	int (*wants)(struct rs_wire *w, bool to_send);
	/** Closes the connection: its user hears no more of it. */
	void (*close)(struct rs_wire *w);
};

extern const struct rs_wire_kind rs_wire_tcp;
/** Exists only if this program is built with UCX's headers (RS_HAS_UCX). */
extern const struct rs_wire_kind rs_wire_ucx;
int rs_wire_ucx_load(struct sc_err *err); /* SC_E_UNSUPPORTED */

#endif
