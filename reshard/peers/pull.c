/* SPDX-License-Identifier: Apache-2.0 */
/* Bytes of other nodes' blobs: asked for on any thread, pulled by the node's. */
#include "reshard/peers/peers_i.h"

#include <errno.h>
#include <inttypes.h>
#include <stdio.h>

#include "meta/catalog/nodes.h"

#define AGAIN_NS (20 * MEMBER_MS)
#define PATIENCE_NS (10000 * MEMBER_MS)
#define ATTEMPT_MS 5000
#define LANDED_BYTES (UINT64_C(1) << 30)	/* on disk */
#define PULLS_MAX 16			/* 1 MiB of memory each */

void rs_member_pull(struct rs_member *m, struct rs_pulling *p)
{
	bool ends;

	p->give_up = sc_now_ns() + PATIENCE_NS;
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

/* It is tried again, unless its time is over: a node that has just moved or died is back soon, or never. */
static void again(struct rs_member *m, struct rs_pulling *p, const char *why)
{
	p->again = sc_now_ns() + AGAIN_NS;
	if (p->again < p->give_up && !m->stop) {
		p->next = m->pulls_again;
		m->pulls_again = p;
		return;
	}
	if (p->part)
		(void)sc_fail_sys(&p->err, EIO, "what node %u has uncommitted cannot be read: %s", p->node, why);
	else
		(void)sc_fail_sys(&p->err, EIO, "blob %" PRIu64 " of node %u cannot be read: %s", p->blob, p->node,
				  why);
	p->done(p);
}

static void on_pulled(void *arg, int code, const struct sc_err *err)
{
	static const char *const why[RS_CODES_NR] = {
		[RS_CODE_BUSY] = "the node is busy", [RS_CODE_NOT_HERE] = "the node has it no more",
		[RS_CODE_GONE] = "the node has it no more", [RS_CODE_DAMAGED] = "it is damaged there",
		[RS_CODE_FENCED] = "one of both is no member", [RS_CODE_BAD] = "it is shorter there",
		[RS_CODE_VERSION] = "the node does not know the request",
	};
	struct rs_pulling *p = arg;

	if (code == RS_CODE_OK)
		p->done(p);
	else if (code == RS_CODE_BUSY || code == RS_CODE_FENCED || code == RS_CODE_IO || code == RS_CODE_DAMAGED)
		again(p->m, p, code == RS_CODE_IO ? err->msg : why[code]);
	else {
		p->give_up = 0;
		again(p->m, p, why[code]);
	}
}

void rs_pull_begin(struct rs_member *m, struct rs_pulling *p)
{
	const char *address = rs_peers_address(m, p->node);
	struct rs_pull *f = sc_zalloc(sizeof(*f));
	struct sc_err err;

	p->m = m;
	if (!address || !f) {
		again(m, p, f ? "it is not registered" : "out of memory");
		sc_sys.release(f);
		return;
	}
	(void)snprintf(f->file, sizeof(f->file), "%" PRIu64, p->part ? p->part : p->blob);
	(void)snprintf(f->tensor, sizeof(f->tensor), "%s", p->part ? "part" : "");
	f->from = p->at;
	f->run = p->bytes;
	f->bytes = p->bytes;
	f->deadline_ms = ATTEMPT_MS;
	if (rs_net_pull(m->net, address, f, p->to, on_pulled, p, &err) < 0)
		again(m, p, err.msg);
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
	*l = (struct landing_pull){.done = done};
	l->p = (struct rs_pulling){.node = what->node, .blob = what->blob, .at = at, .bytes = (uint32_t)bytes, .to = to,
				   .done = on_landed};
	rs_member_pull(arg, &l->p);
}

/* A pull ends by its own deadline; when the member ends, all do. */
static void cancel(void *arg, struct rs_done *done)
{
	(void)arg;
	(void)done;
}

/* Of a commit that has not ended? */
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

static int place(void *arg, uint64_t blob, uint64_t bytes, uint64_t at, struct rs_place *ret, struct sc_err *err)
{
	struct rs_member *m = arg;
	struct rs_away what = {.bytes = bytes};
	int rc = is_joined(m, blob, &what) ? 1 : meta_blob_away(m->s->catalog, blob, &what.node, &what.blob, err);

	if (rc > 0 && rs_landing_place(m->landings, &what, at, ret, err) < 0)
		return err->code;
	return rc;
}

static int is_there(void *arg, uint64_t blob, uint32_t *ret_node, struct sc_err *err)
{
	struct rs_member *m = arg;
	uint64_t number;
	int rc = meta_blob_origin(m->s->catalog, blob, ret_node, &number, err);
	bool is;

	if (rc <= 0)
		return rc < 0 ? rc : 1;
	(void)pthread_mutex_lock(&m->lock);
	is = rs_core_lists(m->core, *ret_node);
	(void)pthread_mutex_unlock(&m->lock);
	return is;
}

int rs_pulls_start(struct rs_member *m, struct sc_err *err)
{
	struct rs_landing_config c = {.store = &m->s->store, .puller = {m, begin, cancel}, .bytes_max = LANDED_BYTES,
				      .pulls_max = PULLS_MAX};
	int rc = rs_landings_new(&c, &m->landings, err);

	if (rc == 0)
		rs_blobs_elsewhere(m->s->blobs, &(struct rs_elsewhere){m, place, is_there});
	return rc;
}
