/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Pulls bytes of other nodes' blobs: any thread asks for them, the node's thread pulls them.  It asks the node that a
 * blob is of first, then those that keep copies of it; and again, until one of them gives the bytes, or it is too late.
 */
#include "reshard/cluster/peers/peers_i.h"

#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>

#include "meta/catalog/nodes.h"
#include "reshard/cluster/peers/holders.h"

SC_METRIC(pulls, SC_COUNTER, "scalai_pulls_total", "Requests for bytes that were sent to other nodes.");
SC_METRIC(pulls_again, SC_COUNTER, "scalai_pulls_repeated_total",
	  "Requests for bytes that a node has not given, and that were sent again.");
SC_METRIC(pulls_failed, SC_COUNTER, "scalai_pulls_failed_total", "Requests for bytes that no node has given.");
SC_HISTOGRAM(pull_times, "scalai_pull_seconds", "", "Time until a node gave the bytes that this one asked for.");

#define AGAIN_NS (20 * MEMBER_MS)
#define PATIENCE_NS (10000 * MEMBER_MS)
#define ABOUT_NS (2000 * MEMBER_MS)	/* what can be done without is not waited for longer */
#define ATTEMPT_MS 3000
#define HOLDERS 8		/* that are asked */
#define LANDED_BYTES (UINT64_C(1) << 30)	/* on disk */
#define PULLS_MAX 16			/* 1 MiB of memory each */

void rs_member_pull(struct rs_member *m, struct rs_pulling *p)
{
	bool ends;

	p->began_ns = sc_now_ns();
	p->give_up = p->began_ns + (p->about ? ABOUT_NS : PATIENCE_NS);
	p->next = NULL;
	(void)pthread_mutex_lock(&m->lock);
	ends = m->stop;
	if (!ends) {
		p->next = m->pulls;
		m->pulls = p;
	}
	(void)pthread_mutex_unlock(&m->lock);
	if (ends)
		(void)sc_fail(&p->err, SC_E_CANCELLED, "this mount ends");
	if (ends)
		p->done(p);
	else
		meta_etcd_wake(m->etcd);
}

static void fail(struct rs_pulling *p, const char *why)
{
	char node[RS_PEER_TEXT];

	if (p->m->stop)
		(void)sc_fail(&p->err, SC_E_CANCELLED, "this mount ends");
	else if (p->part)
		(void)sc_fail_sys(&p->err, EIO, "what %s has uncommitted cannot be read (%s); commit again when it is "
				  "back, or, without that, when the cluster goes on without it",
				  rs_peers_text(p->m, p->node, node), why);
	else
		(void)sc_fail_sys(&p->err, EIO, "blob %" PRIu64 " of node %u cannot be read: %s", p->blob, p->node,
				  why);
	sc_metric_add(&pulls_failed, !p->m->stop);
	p->done(p);
}

/* Tries a pull again, unless its time is over: a node that has just moved or died is back soon, or never. */
static void again(struct rs_member *m, struct rs_pulling *p, int64_t pause, const char *why)
{
	p->again = sc_now_ns() + pause;
	if (p->again >= p->give_up || m->stop) {
		fail(p, why);
		return;
	}
	p->next = m->pulls_again;
	m->pulls_again = p;
	sc_metric_add(&pulls_again, 1);
}

/* Gives the next node that may have the bytes; 0: no node may. */
static uint32_t holder(struct rs_member *m, struct rs_pulling *p)
{
	uint32_t first[HOLDERS], n;

	(void)pthread_mutex_lock(&m->lock);
	n = (uint32_t)rs_holders_first(m->members.at, m->members.nr, p->node, p->blob, first, HOLDERS);
	(void)pthread_mutex_unlock(&m->lock);
	p->holders = n;
	if (p->tries >= n)
		p->tries = p->lacking = 0;
	if (!p->tries)
		p->is_away = !n || first[0] != p->node;
	return n ? first[p->tries] : 0;
}

/* Moves on to the next node, as this one has not given the bytes; `lacks`: it never will. */
static void next_holder(struct rs_pulling *p, bool lacks, const char *why)
{
	struct rs_member *m = p->m;
	const bool is_its_own = !p->tries && !p->is_away; /* which should have it: it says most */
	bool near;

	p->tries++;
	p->lacking += lacks;
	if (!lacks || is_its_own)
		(void)snprintf(p->said, sizeof(p->said), "%s", why);
	else if (*p->said)
		why = p->said; /* says more than who never had it */
	if (p->tries < p->holders) {
		again(m, p, 0, why);
		return;
	}
	(void)pthread_mutex_lock(&m->lock);
	near = p->is_away && rs_near_is(m, p->node);
	(void)pthread_mutex_unlock(&m->lock);
	if (p->lacking == p->holders && !near)
		fail(p, p->is_away ? "that node is not here, and no other one has a copy" : why);
	else
		again(m, p, AGAIN_NS, p->is_away ? "that node is not here, and no other one has given a copy" : why);
}

static void on_pulled(void *arg, int code, const struct sc_err *err)
{
	static const char *const why[RS_CODES_NR] = {
		[RS_CODE_BUSY] = "the node is busy", [RS_CODE_NOT_HERE] = "the node has it no more",
		[RS_CODE_GONE] = "the node has it no more", [RS_CODE_DAMAGED] = "it is damaged there",
		[RS_CODE_FENCED] = "one of both is no member", [RS_CODE_BAD] = "it has another size there",
		[RS_CODE_VERSION] = "the node does not know the request",
	};
	struct rs_pulling *p = arg;
	const bool lacks = code != RS_CODE_BUSY && code != RS_CODE_FENCED && code != RS_CODE_IO &&
			   code != RS_CODE_DAMAGED;

	if (code == RS_CODE_OK)
		sc_metric_since(&pull_times, p->began_ns);
	if (code == RS_CODE_OK)
		p->done(p);
	else if (p->only)
		fail(p, code == RS_CODE_IO ? err->msg : why[code]);
	else if (!p->part)
		next_holder(p, lacks, code == RS_CODE_IO ? err->msg : why[code]);
	else if (lacks)
		fail(p, why[code]);
	else
		again(p->m, p, AGAIN_NS, code == RS_CODE_IO ? err->msg : why[code]);
}

void rs_pull_begin(struct rs_member *m, struct rs_pulling *p)
{
	const uint32_t node = p->part ? p->node : p->only ? p->only : holder(m, p);
	const char *address = node == m->node ? "" : node ? rs_peers_address(m, node) : NULL;
	struct rs_pull *f = sc_zalloc(sizeof(*f));
	struct sc_err err;

	p->m = m;
	if (m->stop) {
		sc_sys.release(f);
		fail(p, NULL);
		return;
	}
	if (!address || !f) {
		again(m, p, AGAIN_NS, !f ? "out of memory" : "it is not registered");
		sc_sys.release(f);
		return;
	}
	(void)snprintf(f->file, sizeof(f->file), "%" PRIu64, p->part ? p->part : p->blob);
	if (p->part)
		(void)snprintf(f->tensor, sizeof(f->tensor), "part");
	else if (node != p->node)
		(void)snprintf(f->tensor, sizeof(f->tensor), "%s%sof %u", p->about ? p->about : "", p->about ? " " : "",
			       p->node);
	else if (p->about)
		(void)snprintf(f->tensor, sizeof(f->tensor), "%s", p->about);
	rs_pull_of_file(f, p->at, p->bytes, p->whole);
	f->deadline_ms = ATTEMPT_MS;
	sc_metric_add(&pulls, node != m->node);
	if (node == m->node) /* a copy that came after this blob was opened; a damaged one is none */
		on_pulled(p, rs_peers_serve(m, f, p->to) == RS_CODE_OK ? RS_CODE_OK : RS_CODE_NOT_HERE, NULL);
	else if (rs_net_pull(m->net, address, f, p->to, on_pulled, p, &err) < 0)
		on_pulled(p, RS_CODE_IO, &err);
	sc_sys.release(f);
}

void rs_pulls_again(struct rs_member *m, bool all)
{
	struct rs_pulling *waiting = m->pulls_again;
	const int64_t now = sc_now_ns();

	m->pulls_again = NULL;
	for (struct rs_pulling *p = waiting, *next; p; p = next) {
		next = p->next;
		if (all || now >= p->again) {
			rs_pull_begin(m, p);
			continue;
		}
		p->next = m->pulls_again;
		m->pulls_again = p;
	}
}

/* --- one that is waited for --- */

struct fetch {
	struct rs_pulling p;	/* first */
	bool done;
};

static void on_fetched(struct rs_pulling *p)
{
	struct fetch *f = (struct fetch *)p;
	struct rs_member *m = p->m;

	(void)pthread_mutex_lock(&m->lock);
	f->done = true;
	(void)pthread_cond_broadcast(&m->changed);
	(void)pthread_mutex_unlock(&m->lock);
}

int rs_member_fetch(struct rs_member *m, const struct rs_pulling *what, struct sc_err *err)
{
	struct fetch f = {.p = *what};

	f.p.m = m;
	f.p.done = on_fetched;
	rs_member_pull(m, &f.p);
	(void)pthread_mutex_lock(&m->lock);
	while (!f.done)
		(void)pthread_cond_wait(&m->changed, &m->lock);
	(void)pthread_mutex_unlock(&m->lock);
	if (f.p.err.code)
		*err = f.p.err;
	return f.p.err.code;
}

/* --- for landings --- */

struct landing_pull {
	struct rs_pulling p; /* first */
	struct rs_done *done;
};

static void on_landed(struct rs_pulling *p)
{
	struct landing_pull *l = (struct landing_pull *)p;
	struct rs_done *done = l->done;
	const struct sc_err err = p->err;

	sc_sys.release(l);
	done->call(done, err.code ? &err : NULL);
}

static void begin(void *arg, const struct rs_away *what, uint64_t at, uint64_t bytes, void *to, struct rs_done *done)
{
	struct landing_pull *l = sc_zalloc(sizeof(*l));
	struct sc_err err;

	if (!l) {
		(void)sc_nomem(&err);
		done->call(done, &err);
		return;
	}
	rs_cluster_step(RS_PULL);
	*l = (struct landing_pull){.done = done};
	l->p = (struct rs_pulling){.node = what->node, .blob = what->blob, .at = at, .whole = what->bytes,
				   .bytes = (uint32_t)bytes, .to = to, .done = on_landed};
	rs_member_pull(arg, &l->p);
}

/* Does nothing: a pull ends by its own deadline, and all pulls end with the member. */
static void cancel(void *arg, struct rs_done *done)
{
	(void)arg;
	(void)done;
}

/* Has all other nodes that may have given bytes look at theirs; one that does not answer looks when it scrubs. */
static void differs(void *arg, const struct rs_away *what)
{
	struct rs_member *m = arg;
	uint32_t nodes[HOLDERS];
	uint8_t ignored[RS_ABOUT_BYTES];
	size_t nr;

	(void)pthread_mutex_lock(&m->lock);
	nr = rs_holders_first(m->members.at, m->members.nr, what->node, what->blob, nodes, HOLDERS);
	(void)pthread_mutex_unlock(&m->lock);
	for (size_t i = 0; i < nr; i++) {
		struct rs_pulling p = {.node = what->node, .blob = what->blob, .bytes = sizeof(ignored), .to = ignored,
				       .about = RS_ABOUT_LOOK, .only = nodes[i]};
		struct sc_err err;

		if (nodes[i] != m->node)
			(void)rs_member_fetch(m, &p, &err);
	}
}

/* Gets the hash of a blob.  A node that is asked may have lost the blob: then another one is asked. */
static int hash(void *arg, const struct rs_away *what, uint8_t ret[RS_AWAY_HASH_BYTES])
{
	uint8_t answer[RS_ABOUT_BYTES];
	struct sc_err err;
	struct rs_pulling p = {.node = what->node, .blob = what->blob, .bytes = sizeof(answer), .to = answer,
			       .about = RS_ABOUT_HASH};

	if (rs_member_fetch(arg, &p, &err) < 0) {
		sc_log(SC_LOG_DEBUG, "nobody has told a hash: %s", err.msg);
		return 0;
	}
	memcpy(ret, answer + 1, RS_AWAY_HASH_BYTES);
	return answer[0] == 1;
}

/* Tells whether a blob is of a commit that has not ended. */
static bool is_joined(struct rs_member *m, uint64_t blob, struct rs_away *ret)
{
	const struct rs_away_file *f = NULL;

	(void)pthread_mutex_lock(&m->lock);
	for (size_t i = 0; i < m->jobs.nr && !f; i++) {
		const struct rs_move *move = m->jobs.at[i]->move;

		f = move && move->joins ? rs_away_find(&move->joined.aways, blob) : NULL;
	}
	if (f) {
		ret->node = f->node;
		ret->blob = f->number;
	}
	(void)pthread_mutex_unlock(&m->lock);
	return f;
}

/* Tells whether the store has lost the file of a sealed blob, or a part of it.  Such a file is mended, and other nodes
 * are asked until then. */
static bool is_missing(struct rs_member *m, uint64_t blob, uint64_t bytes)
{
	struct sc_err why = {0};
	uint64_t sealed = 0;
	struct stat st;
	int rc = meta_store_stat_work(&m->s->store, blob, &st, &why);

	if (rc == 0 ? (uint64_t)st.st_size >= bytes : why.code != SC_E_DAMAGED && why.errnum != ENOENT)
		return false;
	if (meta_blob_bytes(m->s->catalog, blob, &sealed, &why) < 0 || !sealed) /* it went with its version */
		return false;
	why = (struct sc_err){.code = SC_E_DAMAGED, .blob = blob};
	rs_damage_met(m->s, &why);
	return true;
}

static int place(void *arg, uint64_t blob, uint64_t bytes, uint64_t at, struct rs_place *ret, struct sc_err *err)
{
	struct rs_member *m = arg;
	struct rs_away what = {.bytes = bytes};
	int rc = is_joined(m, blob, &what) ? 1 : meta_blob_away(m->s->catalog, blob, &what.node, &what.blob, err);

	if (rc == 0 && is_missing(m, blob, bytes)) {
		what.node = m->node;
		what.blob = blob;
		rc = meta_blob_origin(m->s->catalog, blob, &what.node, &what.blob, err);
		rc = rc < 0 ? rc : 1;
	}
	if (rc > 0 && rs_landing_place(m->landings, &what, at, ret, err) < 0)
		return err->code;
	return rc;
}

/* Any node may write any rank's file. */
static int is_there(void *arg, uint64_t blob, uint32_t *ret_node, struct sc_err *err)
{
	struct rs_member *m = arg;
	uint64_t number;
	uint32_t node = 0;
	int rc = meta_blob_origin(m->s->catalog, blob, &node, &number, err);

	if (rc < 0)
		return rc;
	(void)pthread_mutex_lock(&m->lock);
	*ret_node = rs_near_absent(m, node);
	(void)pthread_mutex_unlock(&m->lock);
	return !*ret_node;
}

static bool is_gone(void *arg, uint64_t blob)
{
	struct rs_member *m = arg;
	struct sc_err ignored;
	uint32_t node = 0;
	uint64_t number;
	bool is;

	if (meta_blob_origin(m->s->catalog, blob, &node, &number, &ignored) <= 0)
		return false;
	(void)pthread_mutex_lock(&m->lock);
	is = node != m->node && !rs_near_is_here(m, node);
	(void)pthread_mutex_unlock(&m->lock);
	return is;
}

/* Of this node's own blob, or of one of another node that has, or had, a copy here. */
static int copies(void *arg, uint64_t blob, uint64_t bytes, struct rs_place *ret, struct sc_err *err)
{
	struct rs_member *m = arg;
	struct rs_away what = {.node = m->node, .blob = blob, .bytes = bytes};
	int rc = meta_blob_origin(m->s->catalog, blob, &what.node, &what.blob, err);

	if (rc >= 0)
		rc = rs_landing_place(m->landings, &what, 0, ret, err);
	return rc < 0 ? rc : 1;
}

struct telling {
	struct rs_pulling p;	/* first */
	uint8_t ignored[RS_ABOUT_BYTES];
};

static void on_told(struct rs_pulling *p)
{
	if (p->err.code)
		sc_log(SC_LOG_WARN, "node %u may keep wrong bytes of blob %" PRIu64 " of node %u until it ends: %s, "
		       "continuing", p->only, p->blob, p->node, p->err.msg);
	sc_sys.release(p);
}

void rs_member_tell_wrong(struct rs_member *m, uint64_t blob)
{
	uint64_t number = blob;
	uint32_t node = m->node;
	struct sc_err ignored;
	struct {
		uint32_t *at;
		size_t nr, room;
	} nodes = {0};

	(void)meta_blob_origin(m->s->catalog, blob, &node, &number, &ignored); /* else: this node's own */
	rs_landing_forget(m->landings, node, number, true);
	(void)pthread_mutex_lock(&m->lock);
	for (size_t i = 0; i < m->members.nr; i++)
		(void)sc_vec_push(&nodes, m->members.at[i].node);
	(void)pthread_mutex_unlock(&m->lock);
	for (size_t i = 0; i < nodes.nr; i++) {
		struct telling *t = nodes.at[i] == m->node ? NULL : sc_zalloc(sizeof(*t));

		if (!t)
			continue;
		t->p = (struct rs_pulling){.node = node, .blob = number, .bytes = sizeof(t->ignored), .to = t->ignored,
					   .about = RS_ABOUT_WRONG, .only = nodes.at[i], .done = on_told};
		rs_member_pull(m, &t->p);
	}
	sc_vec_done(&nodes);
}

int rs_pulls_start(struct rs_member *m, struct sc_err *err)
{
	struct rs_landing_config c = {.store = &m->s->store, .puller = {m, begin, cancel, hash, differs},
				      .bytes_max = LANDED_BYTES, .pulls_max = PULLS_MAX};
	int rc = rs_landings_new(&c, &m->landings, err);

	if (rc == 0)
		rs_blobs_elsewhere(m->s->blobs, &(struct rs_elsewhere){m, place, is_there, is_gone, copies});
	return rc;
}
