/* SPDX-License-Identifier: Apache-2.0 */
/* What is promised of etcd's keys, and what happens beside the sweep, as nodes do it. */
#include "tests/prop/reshard/cluster/stored/sweep_world.h"

#include <stdlib.h>
#include <string.h>

/* --- keys --- */

struct meta_hash name_of(unsigned object)
{
	struct meta_hash h = {{0}};

	h.at[0] = (uint8_t)(object * 167);
	memcpy(h.at + 1, &object, sizeof(object));
	return h;
}

struct meta_key object_key(unsigned object)
{
	return (struct meta_key){.kind = META_KEY_OBJECT, .hash = name_of(object)};
}

struct meta_key key(enum meta_key_kind kind, uint64_t job, uint64_t nr)
{
	return (struct meta_key){.kind = kind, .job = job, .nr = nr};
}

bool has(struct meta_key k)
{
	return fake_mod(&w.etcd, &k) != 0;
}

struct meta_op *add(struct edit *e, int what, struct meta_key k)
{
	struct meta_op *o = &e->ops[e->txn.nr_then++];

	*o = (struct meta_op){.what = what, .key = k, .value = {.kind = k.kind, .rest = ""}};
	return o;
}

static void expect(struct edit *e, struct meta_key k, uint64_t mod)
{
	e->is[e->txn.nr_compares++] = (struct meta_compare){.what = META_MOD_IS, .key = k, .revision = mod};
}

bool done(struct edit *e)
{
	e->txn.compares = e->is;
	e->txn.then = e->ops;
	return fake_txn(&w.etcd, &e->txn, NULL, NULL) == META_APPLIED;
}

void on_got(void *arg, const struct meta_answer *answer)
{
	const struct meta_record *r = answer->records;
	struct got *g = arg;

	*g = (struct got){.mod = r->present ? r->mod : 0};
	if (!r->present)
		return;
	g->text = r->key.kind == META_KEY_SWEEPING || r->key.kind == META_KEY_ENDED ? strdup(r->value.rest ? r->value.rest : "") : NULL;
}

static struct got get(struct meta_key k)
{
	struct edit e = {.txn = {0}};
	struct got g;

	(void)add(&e, META_GET, k);
	e.txn.then = e.ops;
	(void)fake_txn(&w.etcd, &e.txn, on_got, &g);
	return g;
}

unsigned spoken(void)
{
	return has(key(META_KEY_PROTOCOL, 0, 0)) ? 1 : RS_PROTOCOL_SWEEPS;
}

/* --- promises --- */

static void check_version(const struct job *j, unsigned nr)
{
	const struct object *v = &w.object[j->version[nr]];

	if (!j->version[nr] || !has(key(META_KEY_VERSION, j->id, nr)))
		broken("named: version %u is stored, and has no record", nr);
	else if (!has(object_key(j->version[nr])) || !has(object_key(v->names[0])) || !has(object_key(v->names[1])) ||
		 !has(object_key(w.object[v->names[0]].names[0])))
		broken("named: version %u is made of an object that etcd lacks", nr);
}

static void check_job(unsigned at, struct job *j, const char *ended)
{
	const bool is_ended = rs_ended_has(ended, rs_job_number(j->id));

	if (j->removed && !has(key(META_KEY_REMOVED, j->id, 0)) && !is_ended)
		broken("ended: nothing says that job %u was removed", at);
	if (!j->removed && is_ended)
		broken("ended: etcd says that job %u was removed", at);
	if (!j->removed && !has(object_key(LAYOUT)))
		broken("named: the first layout of job %u is not there", at);
	for (unsigned nr = 1; !j->removed && nr <= j->head; nr++) {
		const bool stored = has(key(META_KEY_STORE, j->id, nr));

		if (stored)
			check_version(j, nr);
		if (!j->version[nr] || has(key(META_KEY_VERSION, j->id, nr)))
			continue;
		for (unsigned n = 0; n < NODES; n++)
			if (w.object[j->version[nr]].parts & 1u << n && w.knows[at][n] < nr)
				broken("known: the record of version %u goes, and node %u has a part in it", nr, n);
		j->version[nr] = 0;
	}
}

void check(void)
{
	struct got ended = get(key(META_KEY_ENDED, 0, 0));

	for (unsigned i = 0; i < JOBS; i++)
		if (w.now.job[i].id)
			check_job(i, &w.now.job[i], ended.text);
	free(ended.text);
}

/* --- who makes versions --- */

static void put_object(unsigned object)
{
	struct edit e = {.txn = {0}};

	(void)add(&e, META_PUT, object_key(object));
	(void)done(&e);
}

static bool is_announced(const struct maker *m, unsigned object)
{
	const struct meta_hash h = name_of(object);
	struct rs_object_name name;
	char line[RS_SWEEPING_LINE + 1];

	memcpy(name.at, h.at, sizeof(name.at));
	rs_sweeping_line(&name, line);
	return m->sweeping && strstr(m->sweeping, line);
}

/* Asks what the sweep removes next, and what etcd has. */
static void ask(struct maker *m, bool old)
{
	struct got sweep = get(key(META_KEY_SWEEP, 0, 0)), sweeping = get(key(META_KEY_SWEEPING, 0, 0));

	free(m->sweeping);
	m->sweeping = old ? NULL : sweeping.text;
	if (old)
		free(sweeping.text);
	m->sweep = sweep.mod;
	m->state = ASKED;
}

static void begin(struct maker *m, bool old)
{
	const struct job *j = &w.now.job[m->job = pick(JOBS)];
	const struct meta_key head = key(META_KEY_HEAD, j->id, 0);

	if (!j->id || j->removed || j->head == VERSIONS || w.objects == OBJECTS)
		return;
	m->object[0] = w.objects++;
	m->object[1] = pick(SETS);
	m->object[2] = w.object[m->object[1]].names[0];
	m->object[3] = SETS + pick(PAYLOADS);
	w.object[m->object[0]] = (struct object){{m->object[1], m->object[3]}, 2, pick(4) ? 0 : 1u << pick(NODES)};
	m->head = j->head;
	m->head_mod = fake_mod(&w.etcd, &head);
	ask(m, old);
}

static void find_lacking(struct maker *m)
{
	m->nr = m->at = 0;
	for (unsigned i = 4; i-- > 0;)
		if (!has(object_key(m->object[i])) || is_announced(m, m->object[i]))
			m->put[m->nr++] = m->object[i];
	m->state = PUTS;
}

static void commit(struct maker *m, bool old)
{
	struct job *j = &w.now.job[m->job];
	struct edit e = {.txn = {0}};
	struct meta_set_name set = {.set = name_of(m->object[1]), .file = "model"};
	struct meta_op *o;
	bool is_done;

	m->state = IDLE;
	if (!j->id || j->removed)
		return;
	expect(&e, key(META_KEY_HEAD, j->id, 0), m->head_mod);
	if (!old)
		expect(&e, key(META_KEY_SWEEP, 0, 0), m->sweep);
	o = add(&e, META_PUT, key(META_KEY_HEAD, j->id, 0));
	o->value.head.nr = m->head + 1;
	o = add(&e, META_PUT, key(META_KEY_VERSION, j->id, m->head + 1));
	o->value.version = (struct meta_version_value){.topology = "tp=1", .note = "", .placement = name_of(m->object[0])};
	o = add(&e, META_PUT, key(META_KEY_STORE, j->id, m->head + 1));
	o->value.store = (struct meta_store_value){.nr = 1, .at = &set};
	is_done = done(&e);
	if (is_done) {
		j->version[++j->head] = m->object[0];
		check_version(j, j->head);
		w.commits++;
	} else if (j->head == m->head) { /* a sweep was announced meanwhile */
		w.again++;
		ask(m, old);
	}
}

static void make(unsigned i)
{
	struct maker *m = &w.maker[i];
	const bool old = i == OLD;

	if (old && spoken() != 1)
		return;
	switch (m->state) {
	case IDLE:
		begin(m, old);
		break;
	case ASKED:
		find_lacking(m);
		break;
	default:
		if (m->at < m->nr)
			put_object(m->put[m->at++]);
		else
			commit(m, old);
	}
}

void make_version(unsigned job, unsigned set)
{
	const struct meta_key head = key(META_KEY_HEAD, w.now.job[job].id, 0);
	struct maker *m = &w.maker[0];

	m->job = job;
	m->head = w.now.job[job].head;
	m->head_mod = fake_mod(&w.etcd, &head);
	m->object[0] = w.objects++;
	m->object[1] = set;
	m->object[2] = w.object[set].names[0];
	m->object[3] = SETS;
	w.object[m->object[0]] = (struct object){{set, SETS}, 2, 0};
	ask(m, false);
	while (m->state != IDLE)
		make(0);
}

/* --- what else happens --- */

void forget_makers(unsigned first)
{
	for (unsigned i = first; i < MAKERS; i++) {
		free(w.maker[i].sweeping);
		w.maker[i] = (struct maker){.state = IDLE};
	}
}

static void drop_oldest(void)
{
	const struct job *j = &w.now.job[pick(JOBS)];
	struct edit e = {.txn = {0}};
	unsigned nr = 1;

	while (j->id && nr + KEEP <= j->head && !has(key(META_KEY_STORE, j->id, nr)))
		nr++;
	if (!j->id || j->removed || nr + KEEP > j->head)
		return;
	(void)add(&e, META_DELETE, key(META_KEY_STORE, j->id, nr));
	(void)done(&e);
}

void make_job(void)
{
	struct job *j = &w.now.job[pick(JOBS)];
	struct edit e = {.txn = {0}};

	if (j->id)
		return;
	*j = (struct job){.id = rs_job_with_number(++w.now.jobs, pick(1u << 30))};
	memset(w.knows[j - w.now.job], 0, sizeof(*w.knows));
	put_object(LAYOUT);
	add(&e, META_PUT, key(META_KEY_JOB, j->id, 0))->value.rest = "row";
	add(&e, META_PUT, key(META_KEY_FIRST, j->id, 0))->value.first =
		(struct meta_first_value){.layout = name_of(LAYOUT), .topology = "tp=1"};
	(void)done(&e);
}

void remove_a_job(void)
{
	struct job *j = &w.now.job[pick(JOBS)];
	struct edit e = {.txn = {0}};

	if (!j->id || j->removed)
		return;
	(void)add(&e, META_DELETE, key(META_KEY_JOB, j->id, 0));
	(void)add(&e, META_DELETE, key(META_KEY_FIRST, j->id, 0));
	add(&e, META_PUT, key(META_KEY_REMOVED, j->id, 0))->value.number.nr = 1;
	(void)done(&e);
	j->removed = true;
}

/* A node says which version it has saved, or goes away. */
static void come_or_go(void)
{
	const unsigned at = pick(JOBS), n = pick(NODES);
	const struct job *j = &w.now.job[at];
	struct meta_key k = key(META_KEY_COPIED, j->id, 0);
	const bool here = pick(2);
	struct edit e = {.txn = {0}};

	k.node = n + 1;
	if (!j->id || j->removed)
		return;
	if (here)
		w.knows[at][n] = sc_max_u64(w.knows[at][n], j->head);
	add(&e, here ? META_PUT : META_DELETE, k)->value.copied.version = w.knows[at][n];
	(void)done(&e);
}

/* The cluster speaks another protocol: nodes of the program before end what they do, or are members again. */
void speak(void)
{
	struct edit e = {.txn = {0}};
	const bool first = spoken() == RS_PROTOCOL_SWEEPS;

	add(&e, first ? META_PUT : META_DELETE, key(META_KEY_PROTOCOL, 0, 0))->value.rest = "1";
	(void)done(&e);
	forget_makers(OLD);
}

/* An older copy of etcd's data is put in its place.  Nodes take no part any more, and are mounted anew. */
void restore(void)
{
	if (!w.has_copy || w.restored == 3)
		return;
	fake_done(&w.etcd);
	fake_copy(&w.copy, &w.etcd);
	w.now = w.then;
	w.restored++;
	forget_makers(0);
}

void copy(void)
{
	fake_done(&w.copy);
	fake_copy(&w.etcd, &w.copy);
	w.then = w.now;
	w.has_copy = true;
}

void happens(void)
{
	const unsigned what = pick(100);

	if (what < 60)
		make(pick(MAKERS));
	else if (what < 72)
		drop_oldest();
	else if (what < 80)
		come_or_go();
	else if (what < 85)
		make_job();
	else if (what < 88)
		remove_a_job();
	else if (what < 90)
		speak();
	else if (what < 92)
		copy();
	else if (what < 93)
		restore();
	else if (what < 94)
		w.lives[w.sweeper] = 0;
	else if (what < 98 && !w.nested) { /* another one is the first member, while this one stands still */
		w.nested = true;
		for (unsigned i = 1 + pick(3); i-- > 0;)
			sweep(1 - w.sweeper);
		w.nested = false;
	}
}
