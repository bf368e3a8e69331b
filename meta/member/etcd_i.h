/* SPDX-License-Identifier: Apache-2.0 */
/* The state that the two files of etcd's client share: calls.c makes single transfers, etcd.c the requests of them. */
#ifndef META_ETCD_I_H
#define META_ETCD_I_H

#include <curl/curl.h>

#include "meta/member/etcd.h"

enum call_kind { CALL_TXN, CALL_GRANT, CALL_KEEPALIVE, CALL_REVOKE, CALL_PAGE, CALL_WATCH };

struct call {
	struct call *next;
	struct meta_etcd *client;
	CURL *easy;
	enum call_kind kind;
	uint64_t id;
	bool writes, puts;
	bool begun; /* part of the body was handed to curl in this attempt */
	bool over;          /* what it ends with does not matter any more */
	void (*came)(struct call *c); /* after each part of an answer; NULL: it is looked at when it is whole */
	uint32_t endpoint, tries;
	int64_t began_ns;
	size_t sent; /* of the body */
	struct sc_buf body, answer;
	struct sc_arena arena;
	struct meta_txn txn; /* what was asked for, without values */
	struct event *event; /* that it ends with, so that this needs no memory; of a snapshot: what was read so far */
	uint64_t revision;   /* of a snapshot's first page; 0: not read yet */
	uint64_t since;	     /* that etcd had when this was begun, if its answer says how far etcd is; 0: it does not */
};

struct event {
	struct event *next;
	struct meta_etcd_event event;
	struct sc_arena arena;
};

struct meta_etcd {
	char *cluster, **endpoints, *ca, *cert, *key;
	uint32_t nr_endpoints, current;
	int64_t request_ms, connect_ms;
	CURLM *multi;
	struct curl_slist *headers;
	struct call *calls;
	struct event *first, **last, *taken;
	bool watching, whole;
	uint64_t position;
	struct call *watch;
	int64_t watch_at, backoff_ms; /* when to begin again, while there is none */
	bool woken;
	int also;
	uint64_t seen; /* the highest revision that was seen */
};

/** Makes a call; NULL: out of memory. */
struct call *meta_call_new(struct meta_etcd *e, enum call_kind kind, uint64_t id);
/** Takes a call and sends it; after an error, earlier (rc) or now, frees it. */
int meta_call_begin(struct call *take_call, int rc, struct sc_err *err);
/** Sends a call once more, to c->endpoint. */
int meta_call_start(struct call *c, struct sc_err *err);
/** Takes a call off the client's list, and ends it. */
void meta_call_drop(struct call *c);
void meta_event_free(struct event *v);

#endif
