/* SPDX-License-Identifier: Apache-2.0 */
/* What a daemon would do around its core: disk, files, gate, bytes; and what its requests look like on their way. */
#include "tests/prop/reshard/cluster/protocol/cluster.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

unsigned home(const struct world *w, unsigned range, uint64_t version)
{
	return (unsigned)((range + version) % w->nodes);
}

/* At home and on one more node. */
bool needs(const struct world *w, unsigned i, unsigned range, uint64_t version)
{
	return home(w, range, version) == i || (home(w, range, version) + 1) % w->nodes == i;
}

int64_t node_clock(const struct world *w, unsigned i)
{
	return w->node[i].offset + w->time + w->time / 1000000 * w->node[i].rate_ppm;
}

uint64_t node_current(const struct world *w, unsigned i, unsigned job)
{
	int64_t until;

	return w->node[i].core && w->node[i].state == UP
		   ? rs_core_current(w->node[i].core, node_clock(w, i), job, &until)
		   : 0;
}

struct item *pool_add(struct world *w, enum item_kind kind, unsigned node)
{
	struct item *it = calloc(1, sizeof(*it));

	if (!it || sc_vec_push(&w->pool, it) < 0)
		abort();
	it->kind = kind;
	it->node = node;
	it->life = w->node[node].life;
	it->born = w->time;
	return it;
}

void pool_drop(struct world *w, size_t at)
{
	struct item *it = w->pool.at[at];

	sc_arena_done(&it->arena);
	free(it);
	w->pool.nr--;
	for (; at < w->pool.nr; at++)
		w->pool.at[at] = w->pool.at[at + 1];
}

/* --- a request on its way: its arena is its own --- */

static void copy_ops(struct item *it, struct meta_op **ops, uint32_t nr)
{
	struct meta_op *to = sc_arena_array(&it->arena, nr ? nr : 1, sizeof(*to));
	struct sc_err err;

	for (uint32_t i = 0; i < nr; i++) {
		struct sc_buf buf = {0};

		to[i] = (*ops)[i];
		if (to[i].what == META_PUT) {
			to[i].value.kind = to[i].key.kind;
			if (meta_value_print(&to[i].value, &buf, &err) < 0 ||
			    meta_value_parse(to[i].key.kind, buf.text ? buf.text : "", buf.bytes, &it->arena,
					     &to[i].value, &err) < 0) {
				fprintf(stderr, "a value of the core is refused: %s\n", err.msg);
				abort();
			}
		}
		sc_buf_done(&buf);
	}
	*ops = to;
}

static void send_request(struct world *w, unsigned i, const struct rs_act *a)
{
	struct item *it = pool_add(w, REQUEST, i);
	struct meta_compare *compares;

	it->act = *a;
	if (a->kind != RS_ACT_TXN)
		return;
	compares = sc_arena_array(&it->arena, a->txn.nr_compares ? a->txn.nr_compares : 1, sizeof(*compares));
	if (a->txn.nr_compares)
		memcpy(compares, a->txn.compares, a->txn.nr_compares * sizeof(*compares));
	it->act.txn.compares = compares;
	copy_ops(it, &it->act.txn.then, a->txn.nr_then);
	copy_ops(it, &it->act.txn.otherwise, a->txn.nr_else);
}

/* --- bytes --- */

/*
 * Odd versions: where they are to be follows from them, so each node knows the name of what it makes.  Even ones: the
 * storage is made of what nodes keep, which has no name before etcd has it as the storage, and is not told of: a set
 * that nothing names is dead.
 */
static bool is_named(const struct world *w, unsigned i, unsigned job)
{
	const uint64_t head = w->node[i].disk[job].head;

	return head % 2 || w->node[i].disk[job].storage == head;
}

static void tell_have(struct world *w, unsigned i, unsigned job, uint64_t nr)
{
	struct rs_event e = {.kind = RS_EV_HAVE, .job = job, .set = set_hash(job, nr), .on = true};

	node_event(w, i, &e);
}

static void tell_bytes(struct world *w, unsigned i, unsigned job)
{
	struct node *n = &w->node[i];
	struct rs_event e = {.kind = RS_EV_BYTES, .job = job, .nr = n->disk[job].head, .landed = true, .on_disk = true,
			     .set = set_hash(job, n->disk[job].head * NODES_MAX + i)};
	bool here = true, any = false;

	for (unsigned r = 0; r < RANGES; r++)
		if (needs(w, i, r, e.nr)) {
			e.landed &= n->now[job].landed[r] || n->disk[job].have[e.nr][r];
			e.on_disk &= n->disk[job].have[e.nr][r];
			here &= n->disk[job].have[e.nr][r];
			any = true;
		}
	node_event(w, i, &e);
	if (here && any && is_named(w, i, job))
		tell_have(w, i, job, e.nr);
}

/* `keep`: what nodes keep, of which the storage is made; NULL: it follows from the version. */
static void tell_place(struct world *w, unsigned i, unsigned job, const struct rs_act *keep)
{
	struct meta_set_name set = {set_hash(job, w->node[i].disk[job].head), 0, "model.safetensors"};
	struct meta_hash files[NODES_MAX];
	uint32_t nodes[NODES_MAX], nr = 0;
	struct rs_event e = {.kind = RS_EV_PLACED,
			     .job = job,
			     .nr = w->node[i].disk[job].head,
			     .nr_sets = 1,
			     .sets = &set,
			     .sweep = sweep_announced(w),
			     .files = keep ? files : NULL,
			     .nodes = nodes};

	for (unsigned k = 0; k < w->nodes; k++) {
		bool any = false, says = !keep;

		for (unsigned r = 0; r < RANGES; r++)
			any |= needs(w, k, r, e.nr);
		for (uint32_t n = 0; keep && n < keep->nr_keep; n++)
			if (keep->keep[n].node == k) {
				files[nr] = keep->keep[n].files;
				says = true;
			}
		if (any && !says) /* it is away: its part is nobody's */
			return;
		if (any)
			nodes[nr++] = k;
	}
	e.nr_nodes = nr;
	node_event(w, i, &e);
}

/* Pulls one range that this node lacks, of the storage that it knows, or of a copy. */
void node_pull(struct world *w, unsigned i, unsigned job)
{
	struct node *n = &w->node[i];
	uint64_t head = n->disk[job].head, from = n->now[job].storage;

	for (unsigned r = 0; from && r < RANGES; r++) {
		if (!needs(w, i, r, head) || n->disk[job].have[head][r] || n->now[job].landed[r])
			continue;
		for (unsigned k = 0; k < w->nodes; k++) {
			bool reach = k == i || (w->node[k].state == UP && w->node[k].peer_link && n->peer_link);

			if (reach && w->node[k].disk[job].have[from][r]) {
				n->now[job].landed[r] = true;
				trace(w, "node %u pulls range %u of %lu from %u", i, r, head, k);
				tell_bytes(w, i, job);
				return;
			}
		}
	}
}

void node_sync(struct world *w, unsigned i, unsigned job)
{
	struct node *n = &w->node[i];
	bool any = false;

	for (unsigned r = 0; r < RANGES; r++) {
		any |= n->now[job].landed[r];
		n->disk[job].have[n->disk[job].head][r] |= n->now[job].landed[r];
		n->now[job].landed[r] = false;
	}
	if (any)
		tell_bytes(w, i, job);
}

static void delete_set(struct world *w, unsigned i, unsigned job, uint64_t set)
{
	w->deletes++;
	trace(w, "node %u deletes set %lu of job %u", i, set, job);
	for (unsigned k = 0; k < w->nodes; k++) {
		struct meta_key key = {.kind = META_KEY_NODE, .node = k};

		if (w->node[k].now[job].using == set && w->node[k].state != DOWN && w->node[k].state != GONE &&
		    kv_find(w, &key))
			broken(w, "referenced: node %u deletes set %lu, which an open file of node %u reads", i, set,
			       k);
	}
	sweep_deleted(w, job, set);
	memset(w->node[i].disk[job].have[set], 0, sizeof(w->node[i].disk[job].have[set]));
	check_durable(w);
}

/* --- a head is learned --- */

static void set_aside(struct world *w, unsigned i, unsigned job, uint64_t nr)
{
	struct node *n = &w->node[i];

	if (!n->disk[job].dirty || n->disk[job].dirty_on >= nr || n->disk[job].stuck)
		return;
	w->asides++;
	n->disk[job].dirty = false;
	for (uint64_t k = n->disk[job].dirty_on + 1; k <= nr; k++) /* what a version took of it, had it been asked */
		for (unsigned r = 0; r < RANGES; r++)
			if (w->log[job][k].change == META_BY_COMMIT && !w->log[job][k].presented &&
			    k > n->now[job].prev && home(w, r, k) == i)
				n->disk[job].have[k][r] = false;
	check_durable(w);
}

/* What was prepared here is not in the version: it stays uncommitted, and is prepared for nothing. */
static void leave_out(struct world *w, unsigned i, unsigned job)
{
	struct node *n = &w->node[i];

	w->left_out += n->disk[job].dirty;
	if (RULE(left_out_ends))
		n->disk[job].prepared = n->now[job].frozen = n->now[job].asked = 0;
	else
		n->disk[job].stuck = n->disk[job].dirty;
}

static void seal(struct world *w, unsigned i, unsigned job, uint64_t nr)
{
	if (!(w->log[job][nr].parts & 1u << i)) {
		leave_out(w, i, job);
		return;
	}
	w->seals++;
	w->node[i].disk[job].dirty = false;
	w->node[i].disk[job].prepared = w->node[i].now[job].frozen = 0;
	if (!w->log[job][nr].presented)
		tell_have(w, i, job, nr);
}

static void learned(struct world *w, unsigned i, unsigned job, uint64_t nr)
{
	struct node *n = &w->node[i];
	const bool *made = n->disk[job].have[n->disk[job].head];

	if (n->disk[job].head < nr && !is_named(w, i, job) && (made[0] || made[1])) /* nothing will name it */
		tell_have(w, i, job, n->disk[job].head);
	n->now[job].prev = n->disk[job].head;
	n->disk[job].head = nr;
	memset(n->now[job].landed, 0, sizeof(n->now[job].landed));
}

static void finished(struct world *w, unsigned i, unsigned job, const struct rs_act *a)
{
	bool is_there = false;

	for (uint64_t n = 2; n <= w->head[job]; n++)
		is_there |= w->log[job][n].token == a->token;
	trace(w, "command %lu of node %u ends: %d", a->token, i, a->code);
	if (a->code == 0 && !is_there)
		broken(w, "truthful: command %lu is reported as done and is in no version", a->token);
	if (a->code && a->code != SC_E_STALE && is_there)
		broken(w, "truthful: command %lu is reported as failed and is committed", a->token);
	if (a->code && a->code != SC_E_STALE)
		w->failed[a->token] = true;
	if (a->code == 0 && a->nr > w->seen[job])
		w->seen[job] = a->nr;
	w->done += !a->code;
	w->refused += !!a->code;
}

/* Things that take a while, and are then told to the core. */
void node_local(struct world *w, const struct item *it)
{
	const struct rs_act *a = &it->act;
	unsigned i = it->node, job = (unsigned)a->job;
	struct node *n = &w->node[i];
	struct meta_set_name set = {set_hash(job, a->base + 1), 0, "model.safetensors"};
	struct rs_event e = {.job = a->job, .token = a->token, .nr = a->nr};

	if ((a->kind == RS_ACT_CHECK || a->kind == RS_ACT_PREPARE) && a->token != n->now[job].asked)
		return; /* another one came after it, or its end */
	switch (a->kind) {
	case RS_ACT_CHECK:
		e.kind = RS_EV_CHECKED;
		e.dirty = n->disk[job].dirty;
		if (a->change == META_BY_COMMIT)
			n->now[job].frozen = a->token;
		break;
	case RS_ACT_PREPARE:
		e.kind = RS_EV_PREPARED;
		e.code = !w->quiet && pick(w, 20) == 0 ? SC_E_NO_SPACE : 0;
		if (e.code)
			break;
		n->disk[job].prepared = a->token;
		n->disk[job].base = a->base;
		break;
	case RS_ACT_COMPOSE:
		e.kind = RS_EV_COMPOSED;
		e.sweep = n->now[job].sweep;
		e.version.topology = "dp=2";
		e.nr_sets = 1;
		e.sets = &set;
		e.presented = a->change == META_BY_COMMIT && n->now[job].storage && (w->quiet || a->token % 3 == 0);
		if (e.presented)
			set.set = set_hash(job, n->now[job].storage);
		break;
	default:
		e.kind = RS_EV_HIDDEN;
	}
	node_event(w, i, &e);
}

static void later(struct world *w, unsigned i, const struct rs_act *a)
{
	struct item *it = pool_add(w, LOCAL, i);

	it->act = *a;
}

static void do_job_act(struct world *w, unsigned i, const struct rs_act *a)
{
	struct node *n = &w->node[i];
	unsigned job = (unsigned)a->job;

	switch (a->kind) {
	case RS_ACT_GATE:
		n->now[job].gate = true;
		n->now[job].gate_token = a->token;
		trace(w, "node %u gates job %u for %lu", i, job, a->token);
		break;
	case RS_ACT_UNGATE:
		n->now[job].gate = n->disk[job].stuck;
		n->now[job].frozen = 0;
		trace(w, "node %u lifts the gate of %lu", i, a->token);
		break;
	case RS_ACT_SEAL:
		trace(w, "node %u seals %lu as version %lu", i, a->token, a->nr);
		seal(w, i, job, a->nr);
		break;
	case RS_ACT_FORGET:
		n->disk[job].prepared = n->now[job].frozen = n->now[job].asked = 0;
		break;
	case RS_ACT_ASIDE:
		set_aside(w, i, job, a->nr);
		break;
	case RS_ACT_HIDE:
		trace(w, "node %u hides what is older than %lu", i, a->nr);
		learned(w, i, job, a->nr);
		later(w, i, a);
		break;
	case RS_ACT_SHOW:
		trace(w, "node %u shows %lu", i, a->nr);
		w->shows++;
		break;
	case RS_ACT_STORED:
		n->disk[job].storage = n->now[job].storage = a->nr_sets ? set_nr(&a->sets[0].set) : 0;
		tell_bytes(w, i, job);
		break;
	case RS_ACT_DIED:
		sweep_died(w, i, job, a->base, a->revision);
		break;
	case RS_ACT_PLACE:
		tell_place(w, i, job, a);
		break;
	case RS_ACT_PULL:
		if (a->nr % 2)
			tell_place(w, i, job, NULL);
		tell_bytes(w, i, job);
		break;
	case RS_ACT_DELETE:
		delete_set(w, i, job, set_nr(&a->set));
		break;
	case RS_ACT_DONE:
		finished(w, i, job, a);
		break;
	case RS_ACT_CHECK:
		n->now[job].asked = a->token;
		later(w, i, a);
		break;
	case RS_ACT_COMPOSE:
		sweep_ask(w, i, job, a->base + 1);
		later(w, i, a);
		break;
	default:
		later(w, i, a);
	}
}

static void do_act(struct world *w, unsigned i, const struct rs_act *a)
{
	struct item *it;

	switch (a->kind) {
	case RS_ACT_TXN:
	case RS_ACT_GRANT:
	case RS_ACT_KEEPALIVE:
	case RS_ACT_REVOKE:
	case RS_ACT_SNAPSHOT:
		send_request(w, i, a);
		break;
	case RS_ACT_KEEP_LEASE:
		w->node[i].lease = a->lease;
		/* another life: files that were open answer ESTALE where their bytes are gone */
		for (unsigned job = 0; job < w->jobs; job++) {
			struct rs_event e = {
			    .kind = RS_EV_USING, .job = job, .set = set_hash(job, w->node[i].now[job].using)};

			if (w->node[i].now[job].using) {
				w->node[i].now[job].using = 0;
				node_event(w, i, &e);
			}
		}
		break;
	case RS_ACT_SEND:
		it = pool_add(w, MESSAGE, i);
		it->act = *a;
		break;
	case RS_ACT_REWATCH:
		break;
	case RS_ACT_FENCE:
	case RS_ACT_SERVE:
		trace(w, "node %u %s", i, a->kind == RS_ACT_SERVE ? "serves" : "stops");
		break;
	default:
		do_job_act(w, i, a);
	}
}

static void drain(struct world *w, unsigned i)
{
	const struct rs_act *a;

	while (w->node[i].core && (a = rs_core_next(w->node[i].core)))
		do_act(w, i, a);
}

/* --- memory --- */

#define UNLIMITED 1000000000u
static unsigned allocations_left = UNLIMITED;

static void *alloc(size_t bytes)
{
	return allocations_left-- ? malloc(bytes) : NULL;
}

static void *resize(void *p, size_t bytes)
{
	return allocations_left-- ? realloc(p, bytes) : NULL;
}

void memory_may_fail(void)
{
	sc_sys.alloc = alloc;
	sc_sys.resize = resize;
}

static void assert_stopped(struct world *w, unsigned i)
{
	for (unsigned job = 0; job < w->jobs; job++)
		if (node_current(w, i, job))
			broken(w, "fenced: node %u has no memory and answers plain paths", i);
}

/* Actions may lead to further events at once: those come when all actions of this one are done. */
void node_event(struct world *w, unsigned i, const struct rs_event *e)
{
	struct sc_err err;
	struct queued *q;

	if (w->busy) {
		q = &w->queue[w->queued++];
		if (w->queued == QUEUE_MAX)
			abort();
		q->event = *e;
		if (e->nr_sets) {
			q->set = e->sets[0];
			q->event.sets = &q->set;
		}
		if (e->nr_nodes) {
			memcpy(q->nodes, e->nodes, e->nr_nodes * sizeof(*e->nodes));
			q->event.nodes = q->nodes;
		}
		if (e->nr_nodes && e->files) {
			memcpy(q->files, e->files, e->nr_nodes * sizeof(*e->files));
			q->event.files = q->files;
		}
		return;
	}
	w->busy = true;
	w->queued = 0;
	for (unsigned at = 0; e && w->node[i].core; e = at < w->queued ? &w->queue[at++].event : NULL) {
		int rc;

		allocations_left = w->mood == MEMORY && !w->quiet && pick(w, 100) == 0 ? pick(w, 6) : UNLIMITED;
		rc = rs_core_event(w->node[i].core, node_clock(w, i), e, &err);
		allocations_left = UNLIMITED;
		if (rc == SC_E_NO_MEMORY) {
			w->starved++;
			trace(w, "node %u has no memory", i);
			assert_stopped(w, i);
			node_crash(w, i);
			break;
		}
		drain(w, i);
	}
	w->busy = false;
}

void node_start(struct world *w, unsigned i)
{
	static struct meta_hash known[JOBS_MAX], have[JOBS_MAX][VERSIONS_MAX + 1];
	struct rs_core_job rows[JOBS_MAX] = {0};
	struct rs_core_config config = {
	    .times = {FRESH, DRIFT_PPM, SLACK, TTL, 60 * MS, 240 * MS, 10 * MS, 20 * MS, 40 * MS, 80 * MS},
	    .node = i,
	    .self = {.name = "node", .store = "store"},
	    .lease = w->node[i].lease,
	    .keep_versions = 3,
	    .nr_jobs = w->jobs,
	    .jobs = rows};
	struct rs_event time = {.kind = RS_EV_TIME};
	struct node *n = &w->node[i];
	struct sc_err err;

	n->state = UP;
	n->life++;
	n->watching = false;
	memset(n->now, 0, sizeof(n->now));
	for (unsigned job = 0; job < w->jobs; job++) {
		struct rs_core_job *row = &rows[job];

		*row = (struct rs_core_job){
		    job, n->disk[job].head, n->disk[job].prepared, n->disk[job].base, 0, 0, &known[job], have[job]};
		n->now[job].storage = n->disk[job].storage;
		n->now[job].frozen = n->disk[job].prepared;
		n->now[job].gate = n->disk[job].stuck;
		n->now[job].prev = n->disk[job].head;
		if (n->disk[job].storage)
			known[job] = set_hash(job, n->disk[job].storage), row->nr_known = 1;
		for (unsigned v = 1; v <= VERSIONS_MAX; v++)
			if ((n->disk[job].have[v][0] || n->disk[job].have[v][1]) &&
			    (v != n->disk[job].head || is_named(w, i, job)))
				have[job][row->nr_have++] = set_hash(job, v);
	}
	if (rs_core_new(&config, node_clock(w, i), &n->core, &err) < 0)
		abort();
	w->busy = true;
	w->queued = 0;
	drain(w, i);
	w->busy = false;
	node_event(w, i, &time);
	for (unsigned job = 0; job < w->jobs; job++)
		if (n->disk[job].head) {
			if (n->disk[job].head % 2)
				tell_place(w, i, job, NULL);
			tell_bytes(w, i, job);
		}
}

void node_crash(struct world *w, unsigned i)
{
	struct node *n = &w->node[i];

	rs_core_free(n->core);
	n->core = NULL;
	n->state = DOWN;
	n->life++;
	memset(n->now, 0, sizeof(n->now));
}
