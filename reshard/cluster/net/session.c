/* SPDX-License-Identifier: Apache-2.0 */
/* Proves who both sides are, and signs frames, by HMAC-SHA256 of OpenSSL's libcrypto. */
#include "reshard/cluster/net/session.h"

#include <openssl/crypto.h>
#include <openssl/hmac.h>
#include <stdlib.h>
#include <string.h>

#include "meta/base/mem.h"

#define PROTOCOL_AT 2u /* in a header */
#define MAC_AT 24u
#define MAC_BYTES 8u

static void mac_of(const uint8_t *key, const void *text, size_t bytes, uint8_t ret[32])
{
	unsigned n = 32;

	if (!HMAC(EVP_sha256(), key, 32, text, bytes, ret, &n))
		abort(); /* libcrypto can't be without SHA-256 */
}

void rs_sha256(const void *at, size_t bytes, uint8_t ret[32])
{
	if (!EVP_Digest(at, bytes, ret, NULL, EVP_sha256(), NULL))
		abort();
}

static void put(uint8_t **p, const void *from, size_t bytes)
{
	memcpy(*p, from, bytes);
	*p += bytes;
}

static void put_id(uint8_t **p, const struct rs_node_id *id, const uint8_t nonce[32])
{
	put(p, id->cluster, sizeof(id->cluster));
	put(p, &id->node, sizeof(id->node));
	put(p, &id->epoch, sizeof(id->epoch));
	put(p, &id->boot, sizeof(id->boot));
	put(p, &id->protocol_min, 1);
	put(p, &id->protocol_max, 1);
	put(p, nonce, 32);
}

/* Computes the mac of both sides' hellos, with a word that says what the mac is used for. */
static void proof(const struct rs_session *s, const char word[5], uint8_t ret[32])
{
	uint8_t text[5 + 2 * 70], *p = text;

	put(&p, word, 5);
	put_id(&p, s->asks ? &s->me : &s->peer, s->asks ? s->nonce : s->peer_nonce);
	put_id(&p, s->asks ? &s->peer : &s->me, s->asks ? s->peer_nonce : s->nonce);
	mac_of(s->secrets[s->which], text, (size_t)(p - text), ret);
}

void rs_session_begin(struct rs_session *s, bool asks, const struct rs_node_id *me,
		      const uint8_t (*secrets)[RS_SECRET_BYTES], unsigned nr_secrets, const uint8_t nonce[32])
{
	*s = (struct rs_session){.asks = asks, .me = *me, .nr_secrets = nr_secrets};
	memcpy(s->secrets, secrets, nr_secrets * sizeof(*s->secrets));
	memcpy(s->nonce, nonce, sizeof(s->nonce));
}

static void begin_keys(struct rs_session *s)
{
	proof(s, s->asks ? "key a" : "key b", s->key[0]);
	proof(s, s->asks ? "key b" : "key a", s->key[1]);
	s->open = true;
}

uint8_t rs_session_protocol(const struct rs_session *s)
{
	return s->me.protocol_max < s->peer.protocol_max ? s->me.protocol_max : s->peer.protocol_max;
}

int rs_session_hello(struct rs_session *s, struct rs_net_frame *ret)
{
	struct rs_hello *h = &ret->hello;

	if (s->open || s->step >= 3 || (s->step % 2 == 0) != s->asks)
		return 0;
	memset(ret, 0, offsetof(struct rs_net_frame, hello) + sizeof(*h));
	ret->kind = RS_FRAME_HELLO;
	ret->protocol = s->me.protocol_min;
	ret->epoch = s->me.epoch;
	*h = (struct rs_hello){.step = ++s->step,
			       .node = s->me.node,
			       .boot = s->me.boot,
			       .protocol_min = s->me.protocol_min,
			       .protocol_max = s->me.protocol_max};
	memcpy(h->cluster, s->me.cluster, sizeof(h->cluster));
	memcpy(h->nonce, s->nonce, sizeof(h->nonce));
	if (s->step > 1)
		proof(s, s->asks ? "asks " : "asked", h->mac);
	if (s->step == 3)
		begin_keys(s);
	return 1;
}

static bool is_proved(struct rs_session *s, const struct rs_hello *h)
{
	uint8_t want[32];

	for (s->which = 0; s->which < s->nr_secrets; s->which++) {
		proof(s, s->asks ? "asked" : "asks ", want);
		if (CRYPTO_memcmp(want, h->mac, sizeof(want)) == 0)
			return true;
	}
	s->which = 0;
	return false;
}

int rs_session_take_hello(struct rs_session *s, const struct rs_net_frame *f, struct sc_err *err)
{
	const struct rs_hello *h = &f->hello;
	struct rs_node_id peer = {.node = h->node,
				  .epoch = f->epoch,
				  .boot = h->boot,
				  .protocol_min = h->protocol_min,
				  .protocol_max = h->protocol_max};

	memcpy(peer.cluster, h->cluster, sizeof(peer.cluster));
	if (f->mac || f->id || s->open || h->step != s->step + 1 || (h->step % 2 == 0) != s->asks)
		return sc_fail(err, SC_E_PERMISSION, "node %u says HELLO %u out of turn", h->node, h->step);
	if (memcmp(peer.cluster, s->me.cluster, sizeof(peer.cluster)) != 0)
		return sc_fail(err, SC_E_PERMISSION, "node %u is of another cluster", h->node);
	if (peer.protocol_min > s->me.protocol_max || peer.protocol_max < s->me.protocol_min)
		return sc_fail(err, SC_E_UNSUPPORTED,
			       "node %u speaks protocols %u to %u, this node %u to %u; upgrade one of them", h->node,
			       peer.protocol_min, peer.protocol_max, s->me.protocol_min, s->me.protocol_max);
	if (h->step == 1 && memcmp(h->mac, (uint8_t[32]){0}, sizeof(h->mac)) != 0)
		return sc_fail(err, SC_E_PERMISSION, "node %u proves something before it was asked", h->node);
	if (h->step == 3 && (peer.node != s->peer.node || peer.epoch != s->peer.epoch || peer.boot != s->peer.boot ||
			     peer.protocol_min != s->peer.protocol_min || peer.protocol_max != s->peer.protocol_max ||
			     memcmp(h->nonce, s->peer_nonce, sizeof(h->nonce)) != 0))
		return sc_fail(err, SC_E_PERMISSION, "node %u says something else than before", h->node);
	if (h->step < 3) {
		s->peer = peer;
		memcpy(s->peer_nonce, h->nonce, sizeof(s->peer_nonce));
	}
	if (h->step > 1 && !is_proved(s, h))
		return sc_fail(err, SC_E_PERMISSION,
			       "a peer that says it is node %u does not know the cluster's secret", h->node);
	s->step = h->step;
	if (h->step == 3)
		begin_keys(s);
	return 0;
}

static void sign(struct rs_session *s, unsigned way, const uint8_t *frame, size_t bytes, uint8_t ret[32])
{
	static const uint8_t none[MAC_BYTES];
	uint8_t text[8 + RS_FRAME_HEADER + RS_FRAME_BODY_MAX], *p = text;

	put(&p, &s->count[way], 8);
	put(&p, frame, MAC_AT);
	put(&p, none, MAC_BYTES);
	put(&p, frame + RS_FRAME_HEADER, bytes - RS_FRAME_HEADER);
	mac_of(s->key[way], text, (size_t)(p - text), ret);
	s->count[way]++;
}

void rs_session_seal(struct rs_session *s, uint8_t *frame, size_t bytes)
{
	uint8_t mac[32];

	frame[PROTOCOL_AT] = rs_session_protocol(s);
	sign(s, 0, frame, bytes, mac);
	memcpy(frame + MAC_AT, mac, MAC_BYTES);
}

int rs_session_check(struct rs_session *s, const uint8_t *frame, size_t bytes, struct sc_err *err)
{
	uint8_t mac[32];

	sign(s, 1, frame, bytes, mac);
	if (CRYPTO_memcmp(mac, frame + MAC_AT, MAC_BYTES) != 0)
		return sc_fail(err, SC_E_PERMISSION, "node %u: a frame is not by that node, or not the next one",
			       s->peer.node);
	if (frame[PROTOCOL_AT] != rs_session_protocol(s))
		return sc_fail(err, SC_E_PERMISSION, "node %u goes on in protocol %u, but both speak %u", s->peer.node,
			       frame[PROTOCOL_AT], rs_session_protocol(s));
	return 0;
}
