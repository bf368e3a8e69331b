/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Talks to etcd: transactions, leases, one snapshot and watch of all/, over the JSON gateway with libcurl.
 *
 *	meta_etcd_txn() ...	begin a request; `id` is the caller's
 *	meta_etcd_next()	waits for the next thing that has come: an answer, a change, the end of the watch
 *
 * Each request is answered once: APPLIED, REFUSED, or UNKNOWN; but a snapshot that another one, or a watch, has
 * ended has no answer.  UNKNOWN is no failure: the request was done, or will be later, or never.  A request that
 * writes is sent once; only if no connection could be made is it sent to another server.
 * A request that reads is sent to the servers one after another.
 *
 * One thread uses a client; meta_etcd_wake() may be called by others.
 */
#ifndef META_ETCD_H
#define META_ETCD_H

#include "meta/member/wire.h"

struct meta_etcd;

struct meta_etcd_config {
	const char *cluster;
	const char *const *endpoints; /* http(s)://HOST:PORT; asked in turn, from the one that last answered */
	uint32_t nr_endpoints;
	int64_t request_ms, connect_ms; /* deadlines of one attempt */
	bool whole;			/* snapshot and watch: of all keys of the cluster, not of all/ only */
	const char *ca, *cert, *key;	/* files in PEM; NULL: the system's, none */
};

enum meta_etcd_kind { META_ETCD_ANSWER, META_ETCD_SNAPSHOT, META_ETCD_WATCH, META_ETCD_UNWATCHED };

struct meta_etcd_event {
	enum meta_etcd_kind kind;
	uint64_t id;		  /* ANSWER, SNAPSHOT */
	struct meta_answer answer; /* SNAPSHOT: all keys of all/, at `revision`; WATCH: what changed up to `revision` */
	uint64_t lease, ttl_s;	  /* ANSWER of grant and keepalive */
	struct sc_err err;	  /* UNKNOWN, UNWATCHED: why, SC_E_NO_SPACE if etcd is out of space: it was
				   * refused, or it was the last one that was done; code 0 else */
	bool put;		  /* APPLIED: it put something */
	bool unsent;		  /* UNKNOWN: no server was reached, so it was not done, and never will be */
	bool more;		  /* SNAPSHOT of a whole cluster: it comes in parts, at one revision, and has more */
	bool lost;		  /* UNKNOWN, as etcd has lost changes: it has fewer than were seen when this was
				   * asked, as a server says, and none has answered that has them */
};

/** Makes a client.  SC_E_LIMIT (a name, or no endpoints), SC_E_UNSUPPORTED (this libcurl lacks what the client needs),
 *  SC_E_NO_MEMORY. */
int meta_etcd_new(const struct meta_etcd_config *config, struct meta_etcd **ret, struct sc_err *err);
/** Note that etcd was seen at a revision before, and return the highest that was seen.  An etcd that has fewer has lost
 *  its data, or is another one: none of its answers is taken (`lost`). */
void meta_etcd_saw(struct meta_etcd *e, uint64_t revision);
uint64_t meta_etcd_seen(const struct meta_etcd *e);
/** Ends a client; requests that are on their way get no answer. */
void meta_etcd_free(struct meta_etcd *e);

/* Errors: SC_E_LIMIT (a value, or 1 MiB in all), SC_E_NO_MEMORY; then nothing was sent, and there will be no answer. */
int meta_etcd_txn(struct meta_etcd *e, uint64_t id, const struct meta_txn *txn, struct sc_err *err);
int meta_etcd_grant(struct meta_etcd *e, uint64_t id, uint64_t ttl_s, struct sc_err *err);
/** Keeps a lease alive.  The answer is REFUSED if the lease is gone. */
int meta_etcd_keepalive(struct meta_etcd *e, uint64_t id, uint64_t lease, struct sc_err *err);
int meta_etcd_revoke(struct meta_etcd *e, uint64_t id, uint64_t lease, struct sc_err *err);
/** Reads all/ at one revision; when it is answered, a watch has begun from there.  A former snapshot or watch ends, and
 *  nothing comes of it any more: parts of two snapshots, or a change from before one, are never taken for one's own. */
int meta_etcd_snapshot(struct meta_etcd *e, uint64_t id, struct sc_err *err);
/** Watches the changes behind a revision, of which the caller has all keys.  It ends what meta_etcd_snapshot() ends. */
void meta_etcd_watch(struct meta_etcd *e, uint64_t revision);
/** Goes on watching from where it is, by another connection, and another server if there is one. */
void meta_etcd_rewatch(struct meta_etcd *e);

/** Waits up to `ms` for an event: 1 and *ret, which lives until the next call; 0: no event came. */
int meta_etcd_next(struct meta_etcd *e, int ms, const struct meta_etcd_event **ret);
/** Lets meta_etcd_next() return 0, too, when this descriptor can be read (-1: none). */
void meta_etcd_also(struct meta_etcd *e, int fd);
/** Lets meta_etcd_next() return 0 now.  Any thread may call it. */
void meta_etcd_wake(struct meta_etcd *e);

#endif
