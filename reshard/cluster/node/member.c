/* SPDX-License-Identifier: Apache-2.0 */
/* Start and end of a member, and what it says of itself. */
#include "reshard/cluster/node/member_i.h"

#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#define MEMBER_NS (3000 * MEMBER_MS)
#define LOOK_NS (100 * MEMBER_MS)	/* for a signal */

/* --- what the catalog tells --- */

struct joined {
	struct rs_member *m;
	bool is_other;
	struct {
		size_t nr, room;
		struct rs_core_job *at;
	} jobs;
	struct sc_err *err;
};

static int on_member(void *arg, const struct meta_member_row *row)
{
	struct joined *j = arg;

	j->is_other = strcmp(row->cluster, j->m->cluster) != 0;
	j->m->joined.is = true;
	j->m->joined.node = row->node;
	memcpy(j->m->joined.id, row->id, sizeof(row->id));
	j->m->joined.era = row->era;
	j->m->joined.revision = row->revision;
	j->m->joined.backup = row->backup_era == row->era ? row->backup : 0;
	j->m->lease = row->lease;
	return 0;
}

/* What the store is, before etcd is told anything. */
static int look(struct joined *j, struct sc_err *err)
{
	struct rs_member *m = j->m;
	int rc = meta_member_get(m->s->catalog, on_member, j, err);

	if (rc < 0)
		return rc;
	if (j->is_other)
		return sc_fail(err, SC_E_STATE, "this store is another cluster's: a store belongs to one node of one "
			       "cluster for ever; mount it with the cluster= and node= that it was first mounted with");
	if (!m->joined.is && rs_job_at(m->s, 0))
		return sc_fail(err, SC_E_STATE, "this store has jobs of its own, and cannot join a cluster: start "
			       "with a new store, and import them there");
	return 0;
}

static int join(struct joined *j, struct sc_err *err)
{
	struct rs_member *m = j->m;
	int rc = m->joined.is ? 0 : meta_member_join(m->s->catalog, m->cluster, m->id, m->node, err);

	if (rc == 0 && m->era != m->joined.era)
		rc = rs_member_boot_era(m, err);
	if (rc == 0 && m->era != m->joined.era)
		m->joined.backup = 0; /* it is of the era before */
	return rc;
}

static int on_job(void *arg, const struct meta_shared_job *row)
{
	struct joined *x = arg;
	struct rs_job *job = rs_job_by_id(x->m->s, row->job);
	struct rs_view *head = job ? rs_job_head(job) : NULL;
	struct rs_core_job core = {.job = row->id, .head = head ? head->version->nr : 0, .prepared = row->token,
				   .base = row->base};
	struct rs_shared *j = job ? rs_shared_of(x->m, row->id) : NULL;

	rs_view_unref(x->m->s, head);
	if (!job)
		return 0;
	if (!j || (row->id < META_LOST && sc_vec_push(&x->jobs, core) < 0))
		return sc_nomem(x->err);
	j->gone = j->kept = row->id >= META_LOST;
	j->job = job;
	j->row = row->token;
	j->row_base = row->base;
	j->again.missed = core.head > 1; /* it may have ended while it took them */
	j->copies.waits = j->again.missed;
	return rs_gone_start(x->m, j, x->err);
}

/* --- start and end --- */

static bool copy(char **to, const char *from)
{
	return (*to = sc_strdup(from)) != NULL;
}

static int new_core(struct rs_member *m, struct joined *x, struct sc_err *err)
{
	struct rs_core_config c = {.times = m->times, .node = m->node, .lease = m->lease, .jobs = x->jobs.at,
				   .nr_jobs = (uint32_t)x->jobs.nr};

	c.self = (struct meta_node_value){.name = m->name, .store = "", .domain = m->domain,
					  .protocol_min = rs_protocols.min, .protocol_max = rs_protocols.max,
					  .addresses = {1, (const char **)&m->listen}};
	return rs_core_new(&c, rs_member_now(), &m->core, err);
}

/* Puts the port on which the net listens into the address that other nodes use. */
static int note_port(struct rs_member *m, struct sc_err *err)
{
	char address[64];
	const char *colon = strrchr(m->listen, ':');
	int port = rs_net_port(m->net);

	(void)snprintf(address, sizeof(address), "%.*s:%d", colon ? (int)(colon - m->listen) : 0, m->listen, port);
	sc_sys.release(m->listen);
	m->listen = NULL;
	return copy(&m->listen, address) ? 0 : sc_nomem(err);
}

/* What the daemon before had prepared is behind a closed gate before anything is served. */
static void wait_for_gates(struct rs_member *m)
{
	(void)pthread_mutex_lock(&m->lock);
	for (size_t i = 0; i < m->jobs.nr; i++)
		while (m->jobs.at[i]->row && m->jobs.at[i]->row != m->jobs.at[i]->gate)
			(void)sc_sys.wait_until(&m->changed, &m->lock, sc_now_ns() + MEMBER_MS);
	(void)pthread_mutex_unlock(&m->lock);
}

/* Who mounts and then commands need not try again.  A node that is no member by then says so in `health`, as one that
 * is none any more. */
static void wait_for_membership(struct rs_member *m)
{
	const int64_t until = sc_now_ns() + MEMBER_NS;

	(void)pthread_mutex_lock(&m->lock);
	while (!m->serves && !m->outdated && sc_now_ns() < until && !(m->boot.ends && m->boot.ends(m->boot.arg)))
		(void)sc_sys.wait_until(&m->changed, &m->lock, sc_now_ns() + LOOK_NS);
	(void)pthread_mutex_unlock(&m->lock);
}

/* etcd's certificates: a folder without cert.pem says whom to trust only. */
int rs_member_connect(const struct rs_member_options *o, bool whole, struct meta_etcd **ret, struct sc_err *err)
{
	struct meta_etcd_config to = {.cluster = o->cluster, .endpoints = o->etcd, .nr_endpoints = o->nr_etcd,
				      .request_ms = 3000, .connect_ms = 1000, .whole = whole};
	char ca[4096], cert[4096], key[4096];

	if (o->etcd_tls) {
		(void)snprintf(ca, sizeof(ca), "%s/ca.pem", o->etcd_tls);
		(void)snprintf(cert, sizeof(cert), "%s/cert.pem", o->etcd_tls);
		(void)snprintf(key, sizeof(key), "%s/key.pem", o->etcd_tls);
		if (access(ca, R_OK) < 0)
			return sc_fail_sys(err, errno, "cannot read '%s' (etcd_tls= is a folder with ca.pem; cert.pem "
					   "and key.pem are for an etcd that asks for them)", ca);
		to.ca = ca;
		if (access(cert, F_OK) == 0) {
			to.cert = cert;
			to.key = key;
		}
	}
	return meta_etcd_new(&to, ret, err);
}

static int start(struct rs_member *m, const struct rs_member_options *o, struct sc_err *err)
{
	struct joined x = {.m = m, .err = err};
	const bool ucx = o->fabric && strcmp(o->fabric, "ucx") == 0;
	bool ok = copy(&m->cluster, o->cluster) && copy(&m->name, o->node) && copy(&m->listen, o->listen) &&
		  copy(&m->domain, o->domain ? o->domain : "");
	int rc = ok ? 0 : sc_nomem(err);

	if (rc == 0 && ucx)
		rc = rs_net_load_ucx(err); /* refused before anything is begun */
	if (rc == 0)
		rc = look(&x, err);
	if (rc == 0 && !m->joined.is && !ucx)
		rc = rs_peers_try(m, o->tls, err); /* a node that cannot start takes no number */
	if (rc == 0)
		rc = rs_member_connect(o, false, &m->etcd, err);
	if (rc == 0)
		rc = rs_member_connect(o, true, &m->backup.etcd, err);
	if (rc == 0)
		rc = rs_member_boot(m, err);
	if (rc == 0)
		rc = join(&x, err);
	if (rc == 0)
		rc = rs_member_boot_numbers(m, err);
	if (rc == 0)
		rc = meta_shared_job_each(m->s->catalog, on_job, &x, err);
	if (rc == 0)
		rc = rs_peers_start(m, rs_node_message, o->tls, ucx, err);
	if (rc == 0)
		rc = note_port(m, err);
	if (rc == 0)
		rc = new_core(m, &x, err);
	sc_vec_done(&x.jobs);
	if (rc < 0)
		return rc;
	rc = rs_pulls_start(m, err);
	if (rc < 0)
		return rc;
	m->s->head = &rs_head_etcd;
	rc = rs_near_start(m, err);
	if (rc < 0)
		return rc;
	rs_copies_start(m);
	rc = rs_follow_start(m, err);
	if (rc == 0)
		rc = rs_backup_start(m, err);
	if (rc == 0)
		rc = rs_sweep_start(m, err);
	if (rc == 0)
		rc = rs_node_start(m, err);
	if (rc == 0)
		wait_for_gates(m);
	if (rc == 0)
		wait_for_membership(m);
	return rc;
}

int rs_member_start(struct rs_service *s, const struct rs_member_options *o, struct sc_err *err)
{
	struct rs_member *m = sc_zalloc(sizeof(*m));
	int rc;

	if (!m)
		return sc_nomem(err);
	m->s = s;
	m->boot = o->boot;
	for (uint32_t i = 0; i < o->nr_etcd; i++)
		(void)snprintf(m->servers + strlen(m->servers), sizeof(m->servers) - strlen(m->servers), "%s%s",
			       i ? ", " : "", o->etcd[i]);
	m->fenced_ns = sc_now_ns();
	s->shared = true;
	(void)pthread_mutex_init(&m->lock, NULL);
	(void)pthread_cond_init(&m->changed, NULL);
	s->member = m;
	rc = start(m, o, err);
	m->boot = (struct rs_boot_options){0};
	if (rc < 0)
		(void)rs_landings_free(rs_member_stop(s));
	else
		__atomic_store_n(&s->follows, true, __ATOMIC_RELEASE);
	if (rc == 0)
		rs_worker_call(s, false);
	return rc < 0 ? sc_wrap(err, rc, "cluster '%s', node '%s'", o->cluster, o->node) : 0;
}

void rs_member_leave(struct rs_service *s)
{
	struct rs_member *m = s->member;

	if (!m)
		return;
	(void)pthread_mutex_lock(&m->lock);
	m->stop = true;
	(void)pthread_cond_broadcast(&m->changed);
	(void)pthread_mutex_unlock(&m->lock);
	if (m->etcd)
		meta_etcd_wake(m->etcd);
	rs_node_stop(m); /* E1 of member.h: what waits for etcd, and then */
	rs_net_free(m->net); /* what waits for other nodes' bytes, ends here */
	m->net = NULL;
	if (m->etcd)
		meta_etcd_also(m->etcd, -1); /* of the net */
	rs_probes_end(m);
}

struct rs_landings *rs_member_stop(struct rs_service *s)
{
	struct rs_member *m = s->member;
	struct rs_landings *landings;
	bool answers;

	if (!m)
		return NULL;
	rs_member_leave(s);
	answers = m->etcd && rs_node_goodbye(m);
	rs_worker_stop(s); /* of the service: it may read what is elsewhere */
	rs_sweep_stop(m);
	rs_follow_stop(m);
	rs_backup_stop(m);
	rs_revision_note(m);
	if (answers) /* no thread gives numbers any more */
		rs_member_end_numbers(m);
	landings = m->landings;
	if (landings)
		rs_landings_stop(landings);
	rs_blobs_elsewhere(s->blobs, &(struct rs_elsewhere){0});
	meta_etcd_free(m->etcd);
	rs_core_free(m->core);
	for (size_t i = 0; i < m->jobs.nr; i++) {
		sc_buf_done(&m->jobs.at[i]->part.text);
		rs_rows_drop(m->jobs.at[i]);
		sc_vec_done(&m->jobs.at[i]->storage.sets);
		rs_gone_done(m->jobs.at[i]);
		sc_sys.release(m->jobs.at[i]);
	}
	sc_vec_done(&m->jobs);
	for (size_t i = 0; i < m->events.nr; i++)
		rs_storage_placed(&m->events.at[i]);
	sc_vec_done(&m->events);
	sc_vec_done(&m->peers);
	sc_vec_done(&m->members);
	sc_vec_done(&m->drained);
	sc_vec_done(&m->domains);
	sc_vec_done(&m->keepers);
	sc_vec_done(&m->gone);
	(void)pthread_cond_destroy(&m->changed);
	(void)pthread_mutex_destroy(&m->lock);
	sc_sys.release(m->cluster);
	sc_sys.release(m->name);
	sc_sys.release(m->listen);
	sc_sys.release(m->domain);
	sc_sys.release(m);
	s->member = NULL;
	s->head = NULL;
	rs_copies_by(s, NULL);
	return landings;
}

void rs_member_describe(struct rs_service *s, struct sc_buf *buf)
{
	struct rs_member *m = s->member;

	if (!m)
		return;
	(void)pthread_mutex_lock(&m->lock);
	sc_buf_line(buf, "cluster: '%s', node '%s' (number %u, at %s) %s", m->cluster, m->name, m->node, m->listen,
		    *m->left	  ? "is no member:"
		    : m->outdated ? "is no member: its program does not speak the cluster's protocol; use a newer one"
		    : m->serves ? "is a member"
		    : m->taken	? "is no member: " RS_TAKEN
				: "is no member now: it waits for etcd");
	if (m->full)
		sc_buf_line(buf, "cluster: " RS_FULL);
	if (*m->left)
		sc_buf_line(buf, "cluster: %s", m->left);
	for (size_t i = 0; i < m->jobs.nr; i++) {
		const struct rs_shared *j = m->jobs.at[i];
		char name[SC_NAME_BYTES_MAX + 1];

		if (j->stuck.code)
			sc_buf_line(buf, "cluster: job '%s' cannot show version %" PRIu64 ": %s",
				    j->job ? rs_job_name(j->job, name, sizeof(name)) : "?", j->wants, j->stuck.msg);
		if (j->behind.code && j->job)
			sc_buf_line(buf, "cluster: job '%s': what was changed of it on all nodes (name, owner, "
				    "settings, tags, first layout) is not saved here yet: %s",
				    rs_job_name(j->job, name, sizeof(name)), j->behind.msg);
		if (j->kept && !rs_job_is_removed(j->job))
			sc_buf_line(buf, "cluster: job '%s' is here only: another node removed it from the cluster, "
				    "and files of it were not committed here; copy what is needed, then 'scalai "
				    "delete' it",
				    rs_job_name(j->job, name, sizeof(name)));
	}
	(void)pthread_mutex_unlock(&m->lock);
}
