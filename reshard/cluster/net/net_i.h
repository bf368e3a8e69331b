/* SPDX-License-Identifier: Apache-2.0 */
/* The state that conn.c and net.c share: conn.c sends and takes frames, net.c opens and closes connections. */
#ifndef RS_NET_I_H
#define RS_NET_I_H

#include "reshard/cluster/net/net.h"
#include "reshard/cluster/net/wire.h"

#define OUT_BYTES_MAX (64u << 20) /* answers that wait to be sent, of all connections */

/* Buffers of large frames are kept for other frames: memory of that size would be new pages each time, which cost more
 * than the work on them. */
#define SPARE_MAX 16
#define SPARE_ROOM (RS_FRAME_HEADER + RS_FRAME_BODY_MAX + (1u << 20))
#define SPARE_MIN (256u << 10)	/* smaller ones are not kept */

struct out {
	struct out *next;
	size_t bytes, sent, room;	/* room SPARE_ROOM: it may be kept */
	uint8_t at[];
};

struct asked {
	struct asked *next;
	uint32_t id, bytes;
	uint8_t *to;
	int64_t deadline;
	rs_pulled_fn *done;
	void *arg;
};

struct conn {
	struct conn *next;
	struct rs_net *net;
	struct rs_wire *wire; /* NULL: closed */
	bool asks, dead;
	struct sc_err why; /* dead: why */
	char address[64];
	int64_t deadline; /* of the hello */
	struct rs_session session;
	struct out *first, **last;     /* signed, or HELLO */
	struct out *wait, **wait_last; /* until the session is open */
	struct asked *asked;
	uint32_t nr_asked, next_id;

	uint8_t in[RS_FRAME_HEADER + RS_FRAME_BODY_MAX];
	size_t got, want;
	struct rs_net_frame frame; /* whose header is there */
	bool has_header, in_payload;
	uint8_t *payload; /* NULL: it is thrown away */
	size_t payload_got;
	struct asked *answered;
};

struct rs_net {
	struct rs_net_config config;
	const struct rs_wire_kind *kind;
	struct rs_fabric *fabric;
	struct conn *conns;
	uint32_t nr;
	size_t out_bytes;
	struct out *spare;
	unsigned nr_spare;
	struct rs_net_frame frame;	/* what is made to be sent, and its bytes */
	uint8_t bytes[RS_FRAME_HEADER + RS_FRAME_BODY_MAX];
};

/** Ends a connection that is of no use any more, and its requests; `why` is NULL if the other side has closed it.  The
 *  next sweep releases it, when nobody walks over it. */
void rs_conn_fail(struct conn *c, const char *why);
void rs_conns_sweep(struct rs_net *net);
/** Makes a frame that is to be sent, with room for its payload behind it.  NULL: *err says why not. */
struct out *rs_out_make(struct conn *c, const struct rs_net_frame *f, struct sc_err *err);
/** Signs and queues a frame; before the session is open the frame waits for that. */
void rs_conn_put(struct conn *c, struct out *take_out, size_t signed_bytes);
void rs_conn_hello(struct conn *c);
/** Send what can be sent now, and take what has come. */
void rs_conn_flush(struct conn *c);
void rs_conn_take(struct conn *c);

#endif
