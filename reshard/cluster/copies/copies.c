/* SPDX-License-Identifier: Apache-2.0 */
/* Says which copies this node keeps, and takes what all nodes have said of theirs. */
#include "reshard/cluster/copies/copies_i.h"

#include <errno.h>
#include <inttypes.h>
#include <stdio.h>

SC_METRIC(copies_wanted, SC_GAUGE, "scalai_copies_bytes", "Bytes of other nodes' files that this node is to have.");
SC_METRIC(copies_here, SC_GAUGE, "scalai_copies_here_bytes", "Bytes that it has of those.");
SC_METRIC(files_lost, SC_GAUGE, "scalai_lost_files", "Files that no node has, as all nodes have said.");

#define AGAIN_NS (5000 * MEMBER_MS)	/* what other nodes did not give is tried again */
#define AGAIN_TIMES 6			/* so often, the time doubles in which what nobody had is tried again */
#define ASK_NS (1000 * MEMBER_MS)	/* others are asked again, and so much more for each 100 nodes */

/* --- which --- */

static bool is_drained(const struct rs_member *m, uint32_t node)
{
	for (size_t i = 0; i < m->drained.nr; i++)
		if (m->drained.at[i] == node)
			return true;
	return false;
}

static void add_keeper(struct rs_member *m, uint32_t node, uint32_t domain)
{
	if (!is_drained(m, node)) /* out of memory: others keep more */
		(void)sc_vec_push(&m->keepers, ((struct rs_holder){node, domain}));
}

/* Finds the nodes that keep copies: members and nodes that may be back, without those that are being emptied.  Under
 * m->lock. */
static void find_keepers(struct rs_member *m)
{
	m->keepers.nr = 0;
	for (size_t i = 0; i < m->members.nr; i++)
		add_keeper(m, m->members.at[i].node, m->members.at[i].domain);
	for (size_t i = 0; i < m->gone.nr; i++)
		add_keeper(m, m->gone.at[i].node, rs_near_domain(m, m->gone.at[i].node));
	rs_holders_sort(m->keepers.at, m->keepers.nr);
}

static bool keeps(void *arg, uint32_t replicas, uint32_t node, uint64_t number)
{
	const struct rs_member *m = arg;

	return rs_holder_is(m->node, m->keepers.at, m->keepers.nr, node, number, replicas);
}

static bool is_near(void *arg, uint32_t node)
{
	struct rs_member *m = arg;
	bool is;

	(void)pthread_mutex_lock(&m->lock);
	is = rs_near_is(m, node);
	(void)pthread_mutex_unlock(&m->lock);
	return is;
}

/* Gives the newest revision of all that decides who keeps what of a job: members, drains, domains, the job's
 * settings. */
static uint64_t basis(const struct rs_member *m, const struct rs_shared *j)
{
	return sc_max_u64(sc_max_u64(m->members_mod, m->drained_mod), sc_max_u64(m->domains_mod, j->config_mod));
}

/* Tells whether to try again to get copies that nobody had: soon at first, then more and more rarely.  Under
 * m->lock. */
static bool is_again(const struct rs_shared *j)
{
	const uint32_t times = j->copies.again < AGAIN_TIMES ? j->copies.again : AGAIN_TIMES;

	return j->copies.mine.lost && !j->gone && !j->copies.waits &&
	       sc_now_ns() - j->copies.tried_ns >= AGAIN_NS << times;
}

static bool begin(void *arg, struct rs_job *job, struct rs_copied *c)
{
	struct rs_member *m = arg;
	struct rs_shared *j;
	const struct rs_copied *was;
	bool is_new = false;

	(void)pthread_mutex_lock(&m->lock);
	j = m->serves ? rs_shared_find(m, job) : NULL;
	if (j && !j->copies.waits) {
		was = &j->copies.mine;
		c->replicas = c->replicas ? c->replicas : m->copies;
		c->basis = basis(m, j);
		c->others = was->basis != c->basis;
		is_new = was->version != c->version || was->basis != c->basis || was->replicas != c->replicas ||
			 j->copies.gone != m->gone.nr ||
			 (was->has + was->lost < was->wants && sc_now_ns() - j->copies.tried_ns >= AGAIN_NS);
		c->again = !is_new && is_again(j);
		is_new |= c->again;
		j->copies.gone = m->gone.nr;
	}
	if (is_new)
		find_keepers(m);
	(void)pthread_mutex_unlock(&m->lock);
	return is_new;
}

/* Sets the metrics of copies, over all jobs.  Under m->lock. */
static void measure(const struct rs_member *m)
{
	struct rs_copied mine = {0}, all = {0};

	for (size_t i = 0; i < m->jobs.nr; i++) {
		const struct rs_shared *j = m->jobs.at[i];

		if (j->gone)
			continue;
		mine.wants += j->copies.mine.wants;
		mine.has += j->copies.mine.has;
		all.files += j->copies.all.files;
	}
	sc_metric_set(&copies_wanted, mine.wants);
	sc_metric_set(&copies_here, mine.has);
	sc_metric_set(&files_lost, all.files);
}

static void done(void *arg, struct rs_job *job, const struct rs_copied *c)
{
	struct rs_member *m = arg;
	struct rs_shared *j;

	(void)pthread_mutex_lock(&m->lock);
	j = rs_shared_find(m, job);
	if (j && !(c->again && j->copies.mine.wants == c->wants && j->copies.mine.lost == c->lost)) {
		j->copies.mine = *c;
		j->copies.puts = true;
		j->copies.done = false;
	}
	if (j) {
		j->copies.tried_ns = sc_now_ns();
		j->copies.again = c->again ? j->copies.again + 1 : 0;
	}
	measure(m);
	(void)pthread_mutex_unlock(&m->lock);
	meta_etcd_wake(m->etcd);
}

/* --- what all have said --- */

struct said {
	const struct rs_member *m;
	struct rs_copied all;
	uint64_t version, basis;
	uint32_t here;			/* members that have said it as of these members and this version */
	uint64_t gone;
};

static void on_said(void *arg, const struct meta_answer *answer)
{
	struct said *s = arg;

	for (uint32_t i = 0; i < answer->nr; i++) {
		const struct meta_record *r = &answer->records[i];
		const struct meta_copied_value *v = &r->value.copied;

		if (r->key.kind != META_KEY_COPIED || !r->present || v->version < s->version || v->basis != s->basis)
			continue;
		s->all.wants += v->wants;
		s->all.has += v->has;
		s->all.lost += v->lost;
		s->all.files += v->files;
		s->all.newest += v->newest;
		s->gone = sc_max_u64(s->gone, v->gone);
		s->here++;
	}
}

static bool say_mine(struct rs_member *m, struct rs_shared *j)
{
	struct meta_op put = {.what = META_PUT, .key = {.kind = META_KEY_COPIED, .job = j->id, .node = m->node}};
	struct meta_txn txn = {.nr_then = 1, .then = &put};
	struct rs_copied mine;

	put.value.kind = META_KEY_COPIED;
	(void)pthread_mutex_lock(&m->lock);
	mine = j->copies.mine;
	put.value.copied = (struct meta_copied_value){mine.version, mine.basis, j->copies.gone,
						      mine.wants,   mine.has,   mine.lost, mine.files, mine.newest};
	put.lease = m->registration;
	(void)pthread_mutex_unlock(&m->lock);
	return put.lease && rs_member_ask(m, &txn, NULL, NULL) == META_APPLIED;
}

void rs_copies_say(struct rs_member *m, struct rs_shared *j)
{
	struct meta_op list = {.what = META_LIST, .key = {.job = j->id}, .range = META_RANGE_COPIED};
	struct meta_txn txn = {.nr_then = 1, .then = &list};
	struct said s = {.m = m};
	bool puts, is_done = false, asked;

	(void)pthread_mutex_lock(&m->lock);
	puts = j->copies.puts;
	j->copies.puts = false;
	s.version = j->copies.mine.version;
	s.basis = j->copies.mine.basis;
	(void)pthread_mutex_unlock(&m->lock);
	puts = puts && !say_mine(m, j);
	asked = !puts && rs_member_ask(m, &txn, on_said, &s) == META_APPLIED;
	(void)pthread_mutex_lock(&m->lock);
	j->copies.asks = false;
	j->copies.puts |= puts;
	if (asked && s.basis == basis(m, j)) {
		j->copies.all = s.all;
		j->copies.all.version = s.version;
		j->copies.all.basis = s.basis;
		j->copies.all_gone = s.gone;
		j->copies.silent = m->members.nr > s.here ? (uint32_t)m->members.nr - s.here : 0;
		is_done = !j->copies.silent && !s.gone && !m->gone.nr && s.all.has + s.all.lost >= s.all.wants;
	}
	j->copies.done = is_done;
	measure(m);
	j->copies.ask_ns = is_done ? 0 : sc_now_ns() + ASK_NS + ASK_NS * (int64_t)m->members.nr / 100;
	(void)pthread_mutex_unlock(&m->lock);
	if (is_done && j->job)
		rs_job_tell(j->job);
}

void rs_copies_wait(struct rs_member *m, struct rs_shared *j, bool waits)
{
	bool kick;

	(void)pthread_mutex_lock(&m->lock);
	kick = j->copies.waits && !waits;
	j->copies.waits = waits;
	(void)pthread_mutex_unlock(&m->lock);
	if (kick)
		rs_worker_call(m->s, false);
}

void rs_copies_registered(struct rs_member *m, uint64_t lease)
{
	(void)pthread_mutex_lock(&m->lock);
	m->registration = lease;
	for (size_t i = 0; i < m->jobs.nr; i++)
		m->jobs.at[i]->copies.puts = m->jobs.at[i]->copies.mine.version != 0;
	(void)pthread_mutex_unlock(&m->lock);
}

void rs_copies_tick(struct rs_member *m)
{
	bool kick = rs_near_expire(m);
	int64_t now = sc_now_ns();

	(void)pthread_mutex_lock(&m->lock);
	for (size_t i = 0; m->serves && i < m->jobs.nr; i++) {
		struct rs_shared *j = m->jobs.at[i];
		const struct rs_copied *mine = &j->copies.mine;
		const struct rs_todo todo = {.act = {.job = j->id}, .what = TODO_COPIES};

		if (!mine->version)
			continue;
		kick |= mine->has + mine->lost < mine->wants && now - j->copies.tried_ns >= AGAIN_NS;
		if (is_again(j) && now - j->copies.kicked_ns >= AGAIN_NS) { /* the worker may not come to it */
			j->copies.kicked_ns = now;
			kick = true;
		}
		if (!j->copies.asks && (j->copies.puts || (j->copies.ask_ns && now >= j->copies.ask_ns)))
			j->copies.asks = rs_member_todo(m, &todo);
	}
	(void)pthread_mutex_unlock(&m->lock);
	if (kick)
		rs_worker_call(m->s, false);
}

/* --- for users --- */

/* Gives what all nodes have said of a job's copies; false: they said it as of other members or of an older version, or
 * while nodes were waited for that are not waited for now. */
static bool known(const struct rs_member *m, const struct rs_shared *j, uint64_t version, struct rs_copied *ret)
{
	*ret = j->copies.all;
	return ret->version && ret->version >= version && ret->basis == basis(m, j) &&
	       (!j->copies.all_gone || m->gone.nr);
}

#define LOST_IS " are only on nodes that are not here"
#define LOST_DO                                                                                                 \
	"start such a node again; or save these files anew, or remove them, and commit; or go back to another " \
	"version"
enum { SUCH = sizeof(((struct rs_copied *)0)->file) + 16 };

/* Names a lost file of the newest version, if this node was to have a copy of one.  Under m->lock. */
static void such_as(const struct rs_shared *j, char ret[SUCH])
{
	const char *file = j->copies.mine.file;

	(void)snprintf(ret, SUCH, *file ? " (such as %s)" : "", file);
}

int rs_copies_refuse_lost(struct rs_member *m, struct rs_job *job, uint64_t version, struct sc_err *err)
{
	struct rs_copied all = {0};
	struct rs_shared *j;
	char such[SUCH];
	bool is = false;

	(void)pthread_mutex_lock(&m->lock);
	j = rs_shared_find(m, job);
	is = j && known(m, j, version, &all) && all.newest;
	if (is)
		such_as(j, such);
	(void)pthread_mutex_unlock(&m->lock);
	if (!is)
		return 0;
	return sc_fail_sys(err, EIO, "%" PRIu64 " of the files of version %" PRIu64 LOST_IS "%s: " LOST_DO, all.newest,
			   all.version, such);
}

static int are_done(void *arg, struct rs_job *job, uint64_t version, struct sc_err *err)
{
	struct rs_member *m = arg;
	struct rs_copied all;
	struct rs_shared *j;
	bool is;

	(void)pthread_mutex_lock(&m->lock);
	j = rs_shared_find(m, job);
	is = j && j->copies.done && known(m, j, version, &all);
	(void)pthread_mutex_unlock(&m->lock);
	return is && rs_copies_refuse_lost(m, job, version, err) < 0 ? err->code : is;
}

static void describe(void *arg, struct rs_job *job, struct sc_buf *buf)
{
	struct rs_member *m = arg;
	struct rs_shared *j;
	struct rs_copied all = {0};
	uint32_t silent;
	char such[SUCH] = "";
	bool is_known, kept;
	size_t gone;

	(void)pthread_mutex_lock(&m->lock);
	j = rs_shared_find(m, job);
	is_known = j && known(m, j, j->copies.mine.version, &all);
	silent = j ? j->copies.silent : 0;
	gone = m->gone.nr;
	kept = rs_nodes_keep(m);
	if (j)
		such_as(j, such);
	(void)pthread_mutex_unlock(&m->lock);
	if (!j || !j->shown)
		return;
	if (!kept)
		sc_buf_printf(buf, "protected: no, all nodes that are here are being emptied (.ctl/nodes)\n");
	else if (!is_known)
		sc_buf_printf(buf, "protected: not known yet\n");
	else if (silent)
		sc_buf_printf(buf, "protected: not known yet, %u %s not said\n", silent,
			      silent == 1 ? "node has" : "nodes have");
	else if (gone)
		sc_buf_printf(buf, "protected: %" PRIu64 " of %" PRIu64 " bytes, if %zu %s back soon\n", all.has,
			      all.wants, gone, gone == 1 ? "node is" : "nodes are");
	else
		sc_buf_printf(buf, "protected: %" PRIu64 " of %" PRIu64 " bytes\n", all.has, all.wants);
	if (is_known && all.lost)
		sc_buf_line(buf, "lost: %" PRIu64 " bytes, of %" PRIu64 " files, %" PRIu64 " of them of the newest "
			    "version%s," LOST_IS ": " LOST_DO, all.lost, all.files, all.newest, such);
}

static void wrong(void *arg, uint64_t blob)
{
	rs_member_tell_wrong(arg, blob);
}

static const struct rs_copies_ops ops = {
	.begin = begin, .keeps = keeps, .is_near = is_near, .done = done, .are_done = are_done, .describe = describe,
		.wrong = wrong, .nodes = rs_nodes_table, .drain = rs_nodes_drain,
	.cluster = rs_cluster_text, .set_cluster = rs_cluster_set,
};

void rs_copies_start(struct rs_member *m)
{
	rs_copies_by(m->s, &ops);
}
