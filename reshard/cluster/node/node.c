/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Runs the node's thread: it tells the core what etcd, other nodes and other threads say, and hands what the core wants
 * to etcd, to other nodes, or to the worker.
 */
#include "reshard/cluster/node/member_i.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

SC_METRIC(is_member, SC_GAUGE, "scalai_cluster_member", "1: this node is a member of the cluster, 0: it is not now.");
SC_METRIC(fences, SC_COUNTER, "scalai_cluster_fences_total", "Times that this node was no member any more.");

#define ASKS_FROM (UINT64_C(1) << 63)	/* ids of requests that are not the core's */
#define PEERS_ASKED 1			/* likewise; the core's are larger */
#define GOODBYE 2			/* likewise */
#define POLL_MS 200
#define SAID_MAX 8u			/* lines, in SAID_NS */
#define SAID_NS (60000 * MEMBER_MS)
#define GOODBYE_NS (1000 * MEMBER_MS)

/* --- what the core wants --- */

static void ask_etcd(struct rs_member *m, const struct rs_act *a)
{
	struct sc_err err;
	int rc = 0;

	switch (a->kind) {
	case RS_ACT_TXN:
		rc = meta_etcd_txn(m->etcd, a->id, &a->txn, &err);
		break;
	case RS_ACT_GRANT:
		rc = meta_etcd_grant(m->etcd, a->id, (uint64_t)(a->ttl / (1000 * MEMBER_MS)), &err);
		break;
	case RS_ACT_KEEPALIVE:
		rc = meta_etcd_keepalive(m->etcd, a->id, a->lease, &err);
		break;
	case RS_ACT_REVOKE:
		rc = meta_etcd_revoke(m->etcd, a->id, a->lease, &err);
		break;
	case RS_ACT_SNAPSHOT:
		rs_shared_note_heads(m);
		rc = meta_etcd_snapshot(m->etcd, a->id, &err);
		break;
	default:
		meta_etcd_rewatch(m->etcd);
	}
	if (rc < 0) /* nothing was sent: the core gives the request up by its own time */
		sc_log(SC_LOG_ERROR, "etcd: %s", err.msg);
}

/* Says that the node is a member, or none, a few times a minute: where etcd answers late, it is both in turn. */
static void say_serves(struct rs_member *m, bool serves)
{
	if (sc_now_ns() - m->said.since_ns >= SAID_NS) {
		m->said.since_ns = sc_now_ns();
		m->said.nr = 0;
	}
	if (m->said.nr++ >= SAID_MAX)
		return;
	sc_log(SC_LOG_INFO, serves ? "node '%s' is a member of cluster '%s'"
				   : "node '%s' is no member of cluster '%s' now: it shows no newest version",
	       m->name, m->cluster);
	if (m->said.nr == SAID_MAX)
		sc_log(SC_LOG_WARN, "node '%s' is a member, and none, in turn: etcd answers late, or this machine has "
		       "too much to do; /.ctl/health says which it is, and the log does not for a minute", m->name);
}

static void set_serves(struct rs_member *m, bool serves)
{
	sc_metric_set(&is_member, serves);
	sc_metric_add(&fences, !serves);
	(void)pthread_mutex_lock(&m->lock);
	m->serves = serves;
	m->gave_up = false;
	m->fenced_ns = sc_now_ns();
	(void)pthread_cond_broadcast(&m->changed);
	(void)pthread_mutex_unlock(&m->lock);
	say_serves(m, serves);
}

/* Copies what an action points to, for the worker.  False: out of memory. */
static bool keep_more(const struct rs_act *a, void **ret)
{
	struct rs_object_name *names;

	if (a->kind == RS_ACT_PLACE) {
		*ret = sc_zalloc_array(a->nr_keep + 1, sizeof(*a->keep));
		if (*ret)
			memcpy(*ret, a->keep, a->nr_keep * sizeof(*a->keep));
	} else if (a->kind == RS_ACT_STORED) {
		*ret = names = sc_zalloc_array(a->nr_sets + 1, sizeof(*names));
		for (uint32_t i = 0; names && i < a->nr_sets; i++)
			memcpy(names[i].at, a->sets[i].set.at, sizeof(names[i].at));
	} else {
		return true;
	}
	return *ret != NULL;
}

static void act(struct rs_member *m, const struct rs_act *a)
{
	struct rs_todo todo = {.act = *a, .what = TODO_ACT};
	struct sc_err err;

	if (a->kind <= RS_ACT_REWATCH) {
		ask_etcd(m, a);
		return;
	}
	switch (a->kind) {
	case RS_ACT_KEEP_LEASE:
		rs_copies_registered(m, a->lease);
		rs_storage_registered(m);
		if (meta_member_set_lease(m->s->catalog, a->lease, &err) < 0)
			sc_log(SC_LOG_ERROR, "%s; after a crash this node waits until its registration has ended",
			       err.msg);
		return;
	case RS_ACT_SEND:
		rs_peers_send(m, a);
		return;
	case RS_ACT_FENCE:
	case RS_ACT_SERVE:
		set_serves(m, a->kind == RS_ACT_SERVE);
		return;
	case RS_ACT_DONE:
		rs_move_done(m, a);
		return;
	case RS_ACT_GATE:
	case RS_ACT_CHECK:
	case RS_ACT_PREPARE:
	case RS_ACT_SEAL:
	case RS_ACT_FORGET:
	case RS_ACT_UNGATE:
	case RS_ACT_HIDE:
	case RS_ACT_SHOW:
	case RS_ACT_COMPOSE:
	case RS_ACT_STORED:
	case RS_ACT_PLACE:
	case RS_ACT_DIED:
	case RS_ACT_DELETE:
		todo.act.txn = (struct meta_txn){0};
		todo.act.sets = NULL;
		todo.act.keep = NULL;
		(void)pthread_mutex_lock(&m->lock);
		if (!keep_more(a, &todo.more) || !rs_member_todo(m, &todo))
			sc_sys.release(todo.more);
		(void)pthread_mutex_unlock(&m->lock);
		return;
	default: /* nothing is removed yet, nor set aside; what is pulled follows from the version */
		return;
	}
}

/* Leaves the cluster: it speaks another protocol than this program, since the node was away when that was changed, or
 * etcd has lost its data.  The node does nothing more, so its registration ends, no sooner than what kernels keep of
 * its names; etcd knows what became of its commands. */
static void leave(struct rs_member *m, const struct sc_err *why)
{
	sc_log(SC_LOG_ERROR, "%s", why->msg);
	(void)pthread_mutex_lock(&m->lock);
	m->outdated = true;
	if (why->code == SC_E_STALE)
		(void)snprintf(m->left, sizeof(m->left), "%s", why->msg);
	for (size_t i = 0; i < m->jobs.nr; i++) {
		struct rs_move *move = m->jobs.at[i]->move;

		if (move && !move->done) {
			move->done = true;
			move->code = SC_E_STALE;
		}
	}
	(void)pthread_mutex_unlock(&m->lock);
	set_serves(m, false);
}

static void take_protocol(struct rs_member *m, const struct meta_answer *answer)
{
	const struct meta_record *r = NULL;
	struct sc_err err;

	for (uint32_t i = 0; i < answer->nr; i++)
		if (answer->records[i].key.kind == META_KEY_PROTOCOL && rs_protocol_in(&answer->records[i]))
			r = &answer->records[i];
	if (!r || rs_protocol_in(r) == m->protocol || m->outdated)
		return;
	m->protocol = rs_protocol_in(r);
	if (rs_protocol_check(m, m->protocol, &err) < 0) {
		leave(m, &err);
		return;
	}
	rs_net_set_protocol(m->net, m->protocol);
	sc_log(SC_LOG_INFO, "cluster '%s' speaks protocol %u now", m->cluster, m->protocol);
}

void rs_node_give(struct rs_member *m, const struct rs_event *e)
{
	const struct rs_act *a;
	struct sc_err err;
	uint64_t epoch;
	int rc;

	if (m->outdated)
		return;
	(void)pthread_mutex_lock(&m->lock);
	rc = rs_core_event(m->core, rs_member_now(), e, &err);
	(void)pthread_mutex_unlock(&m->lock);
	if (rc < 0)
		sc_log(SC_LOG_ERROR, "the node's state: %s; no version is shown any more", err.msg);
	while ((a = rs_core_next(m->core)))
		act(m, a);
	epoch = rs_core_epoch(m->core);
	if (epoch != m->epoch)
		rs_net_set_epoch(m->net, epoch);
	m->epoch = epoch;
	if (rs_core_is_taken(m->core, rs_member_now()) != m->taken) {
		(void)pthread_mutex_lock(&m->lock);
		m->taken = !m->taken;
		(void)pthread_mutex_unlock(&m->lock);
		if (m->taken)
			sc_log(SC_LOG_ERROR, "node '%s' is no member: %s", m->name, RS_TAKEN);
	}
}

/* --- what comes --- */

/* Notes why a node refuses a command: the sentence that the command then says. */
static void note_why(struct rs_member *m, const struct rs_node_id *peer, const struct rs_frame_message *x)
{
	struct rs_move *move;
	char node[RS_PEER_TEXT];

	(void)pthread_mutex_lock(&m->lock);
	move = rs_move_of(m, x->job, x->token);
	if (move && !move->err.code)
		(void)sc_fail(&move->err, -(int)x->code, "%s: %s", rs_peers_text(m, peer->node, node), x->text);
	(void)pthread_mutex_unlock(&m->lock);
}

void rs_node_message(void *arg, const struct rs_node_id *peer, const struct rs_net_frame *f)
{
	struct rs_member *m = arg;
	const struct rs_frame_message *x = &f->message;
	struct rs_event e = {.kind = RS_EV_MESSAGE, .from = peer->node, .epoch = peer->epoch};

	e.message = (struct rs_message){.job = x->job, .token = x->token, .nr = x->nr};
	e.message.kind = f->kind == RS_FRAME_PREPARED ? RS_MSG_PREPARED
			 : f->kind == RS_FRAME_HIDDEN ? RS_MSG_HIDDEN
						      : RS_MSG_REFUSED;
	if (f->kind == RS_FRAME_REFUSED) {
		e.message.code = x->code && x->code <= (uint32_t)-SC_E_CORRUPT ? -(int)x->code : SC_E_STATE;
		note_why(m, peer, x);
	}
	rs_node_give(m, &e);
}

/* Refuses a command on behalf of a member that cannot be reached. */
static void refuse(struct rs_member *m, const struct meta_member *at, uint64_t job, uint64_t token)
{
	struct rs_event e = {.kind = RS_EV_MESSAGE, .from = at->node, .epoch = at->epoch};

	e.message = (struct rs_message){.kind = RS_MSG_REFUSED, .job = job, .token = token, .code = SC_E_BUSY};
	rs_node_give(m, &e);
}

/* --- rows of jobs: no business of the core --- */

static void to_worker(struct rs_member *m, struct rs_todo todo, const char *text)
{
	todo.text = text ? sc_strdup(text) : NULL;
	(void)pthread_mutex_lock(&m->lock);
	if ((text && !todo.text) || !rs_member_todo(m, &todo))
		sc_sys.release(todo.text);
	(void)pthread_mutex_unlock(&m->lock);
}

static void take_row(struct rs_member *m, const struct meta_record *r, uint64_t revision)
{
	struct rs_todo todo = {.act = {.job = r->key.job}, .mod = r->mod};
	const char *rest = r->present && r->value.rest ? r->value.rest : "";

	switch (r->key.kind) {
	case META_KEY_JOB:
		todo.what = r->present ? TODO_JOB : TODO_END;
		todo.mod = r->present ? r->mod : revision;
		break;
	case META_KEY_FIRST:
		todo.what = TODO_FIRST;
		todo.layout = r->value.first.layout;
		rest = r->value.first.topology;
		break;
	case META_KEY_CONFIG:
		todo.what = TODO_CONFIG;
		break;
	default:
		todo.what = TODO_TAGS;
	}
	if (r->present || todo.what == TODO_END || todo.what == TODO_TAGS)
		to_worker(m, todo, rest);
}

/*
 * Tells whether etcd has lost a job that has a version here, or versions of it.  Of a job that was removed etcd says
 * so, for ever; and no version is saved here before etcd has it.  E2, E3 of docs/cluster-protocol.md.
 */
static bool has_lost(struct rs_member *m, const struct meta_answer *answer, const struct rs_shared *j,
		     struct sc_err *err)
{
	const struct meta_record *head = rs_record_of_job(answer, META_KEY_HEAD, j->id);
	const uint64_t nr = j->asked_head, is = head ? head->value.head.nr : 0;
	char name[SC_NAME_BYTES_MAX + 1];

	if (is >= nr || rs_record_of_job(answer, META_KEY_REMOVED, j->id) ||
	    (rs_ended_covers(answer, j->id) && rs_bound_knows(m, j->id)))
		return false;
	(void)sc_fail(err, SC_E_STALE, "etcd has version %" PRIu64 " of job '%s' as the newest, and this store has "
		      "%" PRIu64 ": etcd has lost its data, or is an older copy; nothing is taken from it, and "
		      "nothing is removed: give it the newest copy of its data, and mount again", is,
		      rs_job_name(j->job, name, sizeof(name)), nr);
	return true;
}

/* Tells whether etcd has lost any job. */
static bool has_lost_any(struct rs_member *m, const struct meta_answer *answer, struct sc_err *err)
{
	for (size_t i = 0;; i++) {
		struct rs_shared *j;
		struct rs_job *job;

		(void)pthread_mutex_lock(&m->lock);
		j = i < m->jobs.nr ? m->jobs.at[i] : NULL;
		job = j && !j->gone && !j->kept ? j->job : NULL;
		(void)pthread_mutex_unlock(&m->lock);
		if (!j)
			return false;
		if (job && !rs_job_is_removed(job) && has_lost(m, answer, j, err))
			return true;
	}
}

static bool is_removed_by_hand(struct rs_member *m, const struct meta_answer *answer, struct sc_err *err)
{
	if (!rs_removed_by_hand(answer))
		return false;
	(void)sc_fail(err, SC_E_STALE, "keys of cluster '%s' were removed from etcd by hand: nothing is taken from it, "
		      "and nothing is removed: give it the newest copy of its data that has them, or make them anew: "
		      "'scalai cluster rebuild --replace', and mount again", m->cluster);
	return true;
}

/* Hands to the worker, of an answer that has all rows, the jobs here that have none.  A job that was removed while the
 * node was away has a key that says so; one that never had a version may not have come into being.  Tags that are gone
 * can't be seen: all are looked at. */
static void take_absent(struct rs_member *m, const struct meta_answer *answer)
{
	for (size_t i = 0;; i++) {
		struct rs_todo todo = {.what = TODO_END, .mod = answer->revision};
		const struct rs_shared *j;

		j = rs_shared_at(m, i);
		if (!j)
			return;
		todo.act.job = j->id;
		if (rs_record_of_job(answer, META_KEY_JOB, j->id))
			todo.what = TODO_TAGS;
		to_worker(m, todo, NULL);
	}
}

/* Hands rows to the worker: a job's row before its others, and after that of a job that had its name. */
static void take_rows(struct rs_member *m, const struct meta_answer *answer, bool is_all)
{
	if (answer->revision < m->position) /* of a server that lags: it is asked again */
		return;
	__atomic_store_n(&m->position, answer->revision, __ATOMIC_RELEASE);
	if (is_all)
		take_absent(m, answer);
	for (uint32_t i = 0; i < answer->nr; i++)
		if (answer->records[i].key.kind == META_KEY_JOB)
			take_row(m, &answer->records[i], answer->revision);
	for (uint32_t i = 0; i < answer->nr; i++) {
		enum meta_key_kind kind = answer->records[i].key.kind;

		if (kind == META_KEY_FIRST || kind == META_KEY_CONFIG || kind == META_KEY_TAG)
			take_row(m, &answer->records[i], answer->revision);
	}
}

static void answer_ask(struct rs_member *m, uint64_t id, const struct meta_etcd_event *v)
{
	struct rs_ask **p = &m->sent, *ask;

	while (*p && (*p)->id != id)
		p = &(*p)->next;
	ask = *p;
	if (!ask)
		return;
	*p = ask->next;
	if (ask->take && v->answer.outcome == META_APPLIED)
		ask->take(ask->arg, &v->answer);
	(void)pthread_mutex_lock(&m->lock);
	ask->outcome = v->answer.outcome;
	ask->why = v->err.code == SC_E_NO_SPACE ? RS_NO_ROOM : v->unsent ? RS_UNSENT : RS_LOST;
	ask->done = true;
	(void)pthread_cond_broadcast(&m->changed);
	(void)pthread_mutex_unlock(&m->lock);
}

/* Notes whether etcd has room for changes, as its last answer to one says. */
static void note_full(struct rs_member *m, const struct meta_etcd_event *v)
{
	const bool is_full = v->err.code == SC_E_NO_SPACE;

	if (is_full == m->full || (!is_full && !v->put))
		return;
	if (is_full)
		sc_log(SC_LOG_ERROR, "%s", RS_FULL);
	else
		sc_log(SC_LOG_INFO, "etcd takes changes again");
	(void)pthread_mutex_lock(&m->lock);
	m->full = is_full;
	(void)pthread_mutex_unlock(&m->lock);
}

static void on_etcd(struct rs_member *m, const struct meta_etcd_event *v)
{
	static const enum rs_event_kind kinds[] = {[META_ETCD_ANSWER] = RS_EV_ANSWER,
						   [META_ETCD_SNAPSHOT] = RS_EV_SNAPSHOT,
						   [META_ETCD_WATCH] = RS_EV_WATCH,
						   [META_ETCD_UNWATCHED] = RS_EV_UNWATCHED};
	struct rs_event e = {.kind = kinds[v->kind],
			     .id = v->id,
			     .outcome = v->answer.outcome,
			     .revision = v->answer.revision,
			     .code = v->err.code == SC_E_NO_SPACE ? SC_E_NO_SPACE : 0,
			     .lease = v->lease,
			     .nr_records = v->answer.nr,
			     .records = v->answer.records};
	struct sc_err why;

	if (v->err.code)
		sc_log(SC_LOG_DEBUG, "etcd: %s", v->err.msg);
	note_full(m, v);
	if (!m->outdated && (v->kind == META_ETCD_SNAPSHOT || v->kind == META_ETCD_WATCH))
		take_protocol(m, &v->answer); /* before this node finds that it is a member, or that it lacks a key */
	if (!m->outdated && (v->lost || (v->kind == META_ETCD_SNAPSHOT && v->answer.outcome == META_APPLIED &&
					 has_lost_any(m, &v->answer, &why)) ||
			     (v->kind == META_ETCD_WATCH && is_removed_by_hand(m, &v->answer, &why))))
		leave(m, v->lost ? &v->err : &why);
	/* not that of an etcd which is refused: the right one may be behind it */
	(void)pthread_mutex_lock(&m->lock);
	if (!m->checked && v->kind == META_ETCD_SNAPSHOT && v->answer.outcome == META_APPLIED) {
		m->checked = true;
		(void)pthread_cond_broadcast(&m->changed);
	}
	if (m->checked && !m->outdated)
		m->seen = meta_etcd_seen(m->etcd);
	(void)pthread_mutex_unlock(&m->lock);
	if (v->kind == META_ETCD_ANSWER && v->id == PEERS_ASKED) {
		rs_peers_take(m, &v->answer);
		return;
	}
	if (v->kind == META_ETCD_ANSWER && v->id & ASKS_FROM) {
		answer_ask(m, v->id, v);
		return;
	}
	if (!m->outdated && (v->kind == META_ETCD_SNAPSHOT || v->kind == META_ETCD_WATCH)) {
		take_rows(m, &v->answer, v->kind == META_ETCD_SNAPSHOT);
		for (uint32_t i = 0; i < v->answer.nr; i++) /* another list of members: others may have moved */
			if (v->answer.records[i].key.kind == META_KEY_MEMBERS)
				m->peers.nr = 0;
		for (uint32_t i = 0; i < v->answer.nr; i++)
			rs_near_take(m, &v->answer.records[i]);
	}
	rs_node_give(m, &e);
}

/* --- what other threads want --- */

static void send_ask(struct rs_member *m, struct rs_ask *ask)
{
	const struct meta_etcd_event none = {.answer.outcome = META_UNKNOWN, .unsent = true};
	struct sc_err err;

	ask->id = ASKS_FROM | ++m->next_ask;
	ask->next = m->sent;
	m->sent = ask;
	if (meta_etcd_txn(m->etcd, ask->id, ask->txn, &err) < 0) {
		sc_log(SC_LOG_ERROR, "etcd: %s", err.msg);
		answer_ask(m, ask->id, &none);
	}
}

/* True: the thread is to end. */
static bool take_posts(struct rs_member *m)
{
	typeof(m->events) events;
	struct rs_pulling *pulls;
	struct rs_ask *asks;
	bool stop;

	(void)pthread_mutex_lock(&m->lock);
	events = m->events;
	m->events = (typeof(m->events)){0};
	asks = m->asks;
	m->asks = NULL;
	pulls = m->pulls;
	m->pulls = NULL;
	stop = m->stop;
	(void)pthread_mutex_unlock(&m->lock);
	for (struct rs_ask *a = asks, *next; a; a = next) {
		next = a->next;
		send_ask(m, a);
	}
	for (struct rs_pulling *p = pulls, *next; p; p = next) {
		next = p->next;
		rs_pull_begin(m, p);
	}
	rs_pulls_again(m, stop);
	for (size_t i = 0; i < events.nr; i++) {
		rs_node_give(m, &events.at[i]);
		rs_storage_placed(&events.at[i]);
	}
	sc_vec_done(&events);
	return stop;
}

/* Gives the time in ms until the core wants to be asked again. */
static int pause_of(const struct rs_member *m)
{
	int64_t ns = m->outdated ? POLL_MS * MEMBER_MS : rs_core_wake(m->core) - rs_member_now();

	for (const struct rs_pulling *p = m->pulls_again; p; p = p->next)
		ns = ns < p->again - sc_now_ns() ? ns : p->again - sc_now_ns();
	return ns <= 0 ? 0 : ns / MEMBER_MS >= POLL_MS ? POLL_MS : (int)(ns / MEMBER_MS) + 1;
}

static void *run(void *arg)
{
	const struct rs_event time = {.kind = RS_EV_TIME};
	const struct meta_etcd_event *v;
	struct rs_member *m = arg;

	while (!take_posts(m)) {
		int ms = pause_of(m);

		while (meta_etcd_next(m->etcd, ms, &v)) {
			on_etcd(m, v);
			ms = 0;
		}
		rs_net_run(m->net, 0);
		if (rs_member_now() >= rs_core_wake(m->core))
			rs_node_give(m, &time);
		rs_copies_tick(m);
		rs_bound_tick(m);
		rs_probes_tick(m, refuse);
	}
	return NULL;
}

int rs_node_start(struct rs_member *m, struct sc_err *err)
{
	const struct rs_act *a;

	meta_etcd_also(m->etcd, rs_net_fd(m->net));
	while ((a = rs_core_next(m->core)))
		act(m, a);
	return sc_thread_start(&m->thread, "scalai-node", run, m, err);
}

bool rs_node_goodbye(struct rs_member *m)
{
	const int64_t until = sc_now_ns() + GOODBYE_NS;
	const struct meta_etcd_event *v;
	struct sc_err err;
	bool done = m->outdated || !m->registration || meta_etcd_revoke(m->etcd, GOODBYE, m->registration, &err) < 0;

	while (!done && sc_now_ns() < until)
		while (!done && meta_etcd_next(m->etcd, 20, &v))
			done = v->kind == META_ETCD_ANSWER && v->id == GOODBYE && v->answer.outcome != META_UNKNOWN;
	return done;
}

void rs_node_stop(struct rs_member *m)
{
	const struct meta_etcd_event none = {.answer.outcome = META_UNKNOWN};

	if (!m->thread.started && (!m->core || !m->net)) /* it has ended */
		return;
	sc_thread_join(&m->thread);
	(void)take_posts(m);
	while (m->sent)
		answer_ask(m, m->sent->id, &none);
}
