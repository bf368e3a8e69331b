/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Lets two nodes prove to each other that they know the cluster's secret, and then sign every header and body.  Pure:
 * the caller gives nonces and moves the bytes.
 *
 *	who asks			who is asked
 *	HELLO 1, nonce a    ->
 *			    <-		HELLO 2, nonce b, mac("asked", both hellos)
 *	HELLO 3, mac("asks", both)  ->
 *
 * From then on a frame's mac is the first 8 bytes of HMAC-SHA256 by a key of this connection and direction, over the
 * count of frames before it, header and body.  This protects against strangers, replays and forged requests; payloads
 * have a hash against accidents only.
 */
#ifndef RS_SESSION_H
#define RS_SESSION_H

#include "reshard/cluster/net/frame.h"

#define RS_SECRET_BYTES 32

struct rs_node_id {
	uint8_t cluster[16];
	uint32_t node;		/* its number */
	uint64_t epoch, boot;
	uint8_t protocol_min, protocol_max;
};

struct rs_session {
	bool asks, open;	/* open: both have proved it */
	uint8_t step;		/* of the last HELLO that was sent or taken */
	struct rs_node_id me, peer;
	uint8_t secrets[2][RS_SECRET_BYTES];
	unsigned nr_secrets, which;
	uint8_t nonce[32], peer_nonce[32];
	uint8_t key[2][32];	/* of what is sent, of what is taken */
	uint64_t count[2];
};

/**
 * Begins a session.  There are 1 or 2 secrets: this side uses the first; the other side may use the second, too, while
 * secrets change.  `nonce` is 32 random bytes that no session had before.
 */
void rs_session_begin(struct rs_session *s, bool asks, const struct rs_node_id *me,
		      const uint8_t (*secrets)[RS_SECRET_BYTES], unsigned nr_secrets, const uint8_t nonce[32]);

/** Computes the SHA-256 of some bytes. */
void rs_sha256(const void *at, size_t bytes, uint8_t ret[32]);

/** Makes this side's next HELLO: 1 (*ret is to be sent) or 0 (it is the other side's turn, or all is said). */
int rs_session_hello(struct rs_session *s, struct rs_net_frame *ret);

/** Takes a HELLO.  SC_E_PERMISSION (another cluster or secret, a step out of turn), SC_E_UNSUPPORTED (protocols): the
 *  connection is to be closed, after a while that tells nothing. */
int rs_session_take_hello(struct rs_session *s, const struct rs_net_frame *f, struct sc_err *err);

/** Returns the highest number of the protocol that both sides speak; each frame but HELLO has it. */
uint8_t rs_session_protocol(const struct rs_session *s);
/** Signs a formatted frame, of `bytes` bytes with its header, which gets the protocol's number. */
void rs_session_seal(struct rs_session *s, uint8_t *frame, size_t bytes);
/** Checks header and body of the next frame.  SC_E_PERMISSION: the frame is not by the peer, not the next one, or of
 *  another protocol. */
int rs_session_check(struct rs_session *s, const uint8_t *frame, size_t bytes, struct sc_err *err);

#endif
