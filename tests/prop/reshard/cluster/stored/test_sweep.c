/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The sweep (reshard/cluster/stored/sweep.c, as daemons run it) over an etcd in memory, while all else happens between any two of its
 * transactions: versions are made and dropped, jobs made and removed, nodes that have parts in versions come and go, another node
 * sweeps, the sweeper dies or stands still, nodes of the program before make versions while the cluster speaks their protocol, and an
 * older copy of etcd's data is put in its place, so that of what a sweeper has sent one transaction is done there.  Promises:
 *
 *	named	a version that is stored has its record, and is made of objects that etcd has; so are first layouts
 *	known	a record stays until its version was dropped, and all nodes know of it that have a part in it
 *	ended	of a job that was removed etcd says so, for ever; of no other one
 *	spoken	nothing is swept while the program before may be a member
 *	swept	in the end nothing stays that nobody needs
 *
 * Each rule, taken out, breaks one of them: by a schedule, or where few come to that, at a moment that is made.
 *
 *     test_sweep [SCHEDULES [SEED]]
 *     test_sweep --rule NAME [FIRST]	the schedule that breaks a promise without it
 */
#include "tests/prop/reshard/cluster/stored/sweep_world.h"
#include "tests/support/every.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
/* cmocka wants some of the above first */
#include <cmocka.h>

struct rs_sweep_off rs_sweep_off;
struct world w;

static struct rs_service service;
static struct rs_member member = {.s = &service};

unsigned pick(unsigned below)
{
	w.random = w.random * 6364136223846793005u + 1442695040888963407u;
	return (unsigned)((w.random >> 33) % below);
}

void broken(const char *fmt, ...)
{
	va_list args;

	va_start(args, fmt);
	if (!*w.broken)
		(void)vsnprintf(w.broken, sizeof(w.broken), fmt, args);
	va_end(args);
}

void sweep(unsigned who)
{
	const unsigned was = w.sweeper;
	struct rs_sweep *s = &w.sweep[who];
	struct sc_err err;

	w.sweeper = who;
	w.lives[who] = 1 + w.restored;
	(void)rs_sweep_round(s, &err);
	w.rounds++;
	if (w.lives[who] != 1 + w.restored || !pick(8)) { /* it was dead, or knows of nothing that was before */
		rs_sweep_done(s);
		*s = (struct rs_sweep){.m = &member};
	}
	w.sweeper = was;
}

/* --- what the sweep calls --- */

enum meta_outcome rs_member_ask(struct rs_member *m, const struct meta_txn *txn, rs_answer_fn *take, void *arg)
{
	const unsigned who = w.sweeper, restored = w.restored;
	enum meta_outcome outcome;
	bool removes = false;

	(void)m;
	if (w.lives[who] != 1 + w.restored)
		return META_UNKNOWN; /* it was sent by a node that is none any more */
	while (w.faults && pick(3))
		happens();
	for (unsigned i = restored != w.restored ? pick(100) : 0; i-- > 0;) /* others go on, with what etcd has now */
		happens();
	if (w.lives[who] == 0 && pick(2))
		return META_UNKNOWN; /* it has died before it has sent this, or after */
	for (uint32_t i = 0; i < txn->nr_then; i++) {
		const bool is = txn->then[i].what == META_DELETE || txn->then[i].what == META_CLEAR;
		void (*at)(void) = is && txn->then[i].key.kind == w.at_kind ? w.at : NULL;

		removes |= is;
		if (at) {
			w.at = NULL;
			at();
		}
	}
	outcome = fake_txn(&w.etcd, txn, take, arg);
	if (removes && outcome == META_APPLIED) {
		w.removed++;
		if (spoken() == 1)
			broken("spoken: keys are removed while the cluster speaks protocol 1");
		check();
	}
	return outcome;
}

int rs_objects_named_by(const struct rs_object_link *object, const struct rs_object_ops *ops, void *arg,
			struct rs_object_links *ret, struct rs_object_parts *ret_parts, struct sc_err *err)
{
	struct rs_bag *bag = arg;
	struct meta_op op = {.what = META_GET};
	struct meta_txn txn = {.nr_then = 1, .then = &op};
	struct got g = {0};
	unsigned at;

	(void)ops;
	memcpy(&at, object->name.at + 1, sizeof(at));
	op.key = object_key(at);
	bag->lacking = false;
	if (rs_member_ask(&member, &txn, on_got, &g) != META_APPLIED)
		return sc_fail(err, SC_E_SYSTEM, "dead");
	if (!g.mod)
		return sc_fail(err, SC_E_NOT_FOUND, "absent");
	for (unsigned i = 0; i < w.object[at].nr; i++) {
		const struct meta_hash h = name_of(w.object[at].names[i]);
		struct rs_object_link link = {.kind = RS_OBJECT_LEAF};

		memcpy(link.name.at, h.at, sizeof(link.name.at));
		assert_int_equal(0, sc_vec_push(ret, link));
	}
	for (unsigned n = 0; ret_parts && n < NODES; n++)
		if (w.object[at].parts & 1u << n)
			assert_int_equal(0, sc_vec_push(ret_parts, ((struct rs_object_from){.node = n + 1})));
	return 0;
}

int rs_bag_get(struct rs_member *m, struct rs_bag *bag, struct sc_err *err)
{
	(void)m;
	(void)bag;
	return sc_fail(err, SC_E_NOT_FOUND, "absent");
}

void rs_bag_done(struct rs_bag *bag)
{
	(void)bag;
}

const struct rs_object_ops rs_bag_ops;

void rs_sweeping_line(const struct rs_object_name *name, char ret[RS_SWEEPING_LINE + 1])
{
	for (size_t i = 0; i < RS_SWEEPING_LINE / 2; i++)
		(void)snprintf(ret + 2 * i, 3, "%02x", name->at[i]);
	(void)snprintf(ret + RS_SWEEPING_LINE - 1, 2, "\n");
}

int rs_object_name_order(const void *a, const void *b)
{
	return memcmp(a, b, RS_OBJECT_NAME_BYTES);
}

uint8_t rs_protocol_in(const struct meta_record *r)
{
	return r->key.kind == META_KEY_PROTOCOL && r->present ? 1 : 0;
}

/* Rows are here as long as etcd has the version's storage. */
int meta_shared_job_find(struct meta_catalog *c, uint64_t id, uint64_t *ret_job, struct sc_err *err)
{
	(void)c;
	(void)err;
	*ret_job = 0;
	for (unsigned i = 0; i < JOBS; i++)
		if (w.now.job[i].id == id)
			*ret_job = i + 1;
	return 0;
}

int meta_version_find(struct meta_catalog *c, uint64_t job, uint64_t nr, uint64_t *ret, struct sc_err *err)
{
	(void)c;
	(void)err;
	*ret = job <= JOBS && has(key(META_KEY_STORE, w.now.job[job - 1].id, nr));
	return 0;
}

bool rs_core_lists(const struct rs_core *c, uint32_t node)
{
	(void)c;
	(void)node;
	return false;
}

size_t rs_core_members(const struct rs_core *c, uint32_t *ret, size_t room)
{
	(void)c;
	(void)ret;
	(void)room;
	return 0;
}

uint64_t rs_core_tick(const struct rs_core *c)
{
	(void)c;
	return 0;
}

/* --- schedules --- */

static void begin_world(uint64_t seed)
{
	memset(&w, 0, sizeof(w));
	w.random = seed * 7919 + 1;
	w.objects = LAYOUT + 1;
	w.etcd.revision = 10;
	w.faults = true;
	for (unsigned i = 0; i < SETS; i++)
		w.object[i] = (struct object){{SETS + i % PAYLOADS}, 1, 0};
	for (unsigned i = 0; i < 2; i++)
		w.sweep[i] = (struct rs_sweep){.m = &member};
}

static void end_world(void)
{
	for (unsigned i = 0; i < 2; i++)
		rs_sweep_done(&w.sweep[i]);
	forget_makers(0);
	fake_done(&w.etcd);
	fake_done(&w.copy);
}

static bool is_named(unsigned object)
{
	for (unsigned i = 0; i < JOBS; i++) {
		const struct job *j = &w.now.job[i];

		for (unsigned nr = 1; j->id && !j->removed && nr <= j->head; nr++) {
			const struct object *v = &w.object[j->version[nr]];

			if (has(key(META_KEY_STORE, j->id, nr)) &&
			    (j->version[nr] == object || v->names[0] == object || v->names[1] == object ||
			     w.object[v->names[0]].names[0] == object))
				return true;
		}
		if (j->id && !j->removed && object == LAYOUT)
			return true;
	}
	return false;
}

/* Everything stands still, all nodes are here, and what nobody needs goes. */
static void nothing_stays(void)
{
	w.faults = false;
	if (spoken() == 1)
		speak();
	for (unsigned i = 0; i < JOBS; i++)
		for (unsigned n = 0; w.now.job[i].id && !w.now.job[i].removed && n < NODES; n++) {
			struct meta_key k = key(META_KEY_COPIED, w.now.job[i].id, 0);
			struct edit e = {.txn = {0}};

			k.node = n + 1;
			w.knows[i][n] = sc_max_u64(w.knows[i][n], w.now.job[i].head);
			add(&e, META_PUT, k)->value.copied.version = w.knows[i][n];
			(void)done(&e);
		}
	for (unsigned i = 0; i < 8; i++)
		sweep(0);
	for (unsigned o = 0; o < w.objects; o++)
		if (has(object_key(o)) && !is_named(o))
			broken("swept: object %u stays, and nothing names it", o);
	for (unsigned i = 0; i < JOBS; i++) {
		const struct job *j = &w.now.job[i];

		if (j->id && j->removed && (has(key(META_KEY_REMOVED, j->id, 0)) || has(key(META_KEY_HEAD, j->id, 0))))
			broken("swept: keys of job %u stay", i);
		for (unsigned nr = 1; j->id && nr <= j->head; nr++)
			if (has(key(META_KEY_VERSION, j->id, nr)) && (j->removed || !has(key(META_KEY_STORE, j->id, nr))))
				broken("swept: the record of version %u of job %u stays", nr, i);
	}
}

static bool run(uint64_t seed)
{
	begin_world(seed);
	for (unsigned i = 0; i < 4; i++)
		make_job();
	for (unsigned i = 0; i < ROUNDS && !*w.broken; i++) {
		for (unsigned k = 0; k < 30; k++)
			happens();
		sweep(pick(2));
	}
	if (!*w.broken)
		nothing_stays();
	end_world();
	return !*w.broken;
}

static unsigned long schedules, seed = 1;

static void promises_hold(void **unused)
{
	unsigned long rounds = 0, commits = 0, removed = 0, again = 0, restored = 0;

	(void)unused;
	for (unsigned long i = 0; i < schedules; i++) {
		if (!run(seed + i))
			fail_msg("schedule %lu: %s", seed + i, w.broken);
		rounds += w.rounds;
		commits += w.commits;
		removed += w.removed;
		again += w.again;
		restored += w.restored;
	}
	fprintf(stderr, "%lu schedules: %lu rounds, %lu versions, %lu made again, %lu transactions that removed keys, etcd restored %lu times\n",
		schedules, rounds, commits, again, removed, restored);
	/* schedules in which nothing is swept would keep all promises */
	assert_true(removed > schedules && commits > schedules && again && restored);
}

static const struct {
	const char *name;
	bool *off;
} rules[] = {
#define X(name) {#name, &rs_sweep_off.name},
	RS_SWEEP_RULES(X)
#undef X
};

/* --- what few schedules come to --- */

/* Another node announces something else, and a version is made of what this one removes next. */
static void name_again(void)
{
	struct edit e = {.txn = {0}};

	add(&e, META_PUT, key(META_KEY_SWEEPING, 0, 0))->value.rest = "";
	add(&e, META_PUT, key(META_KEY_SWEEP, 0, 0))->value.number.nr = 99;
	(void)done(&e);
	make_version(w.first, 0);
}

static void make_another(void)
{
	restore();
	make_job();
}

/* A schedule in which at the worst moment happens what a rule is there for. */
static bool meets(const char *rule)
{
	static const struct {
		const char *rule;
		enum meta_key_kind kind;
		void (*at)(void);
	} all[] = {{"announced", META_KEY_OBJECT, name_again}, {"record_compared", META_KEY_VERSION, restore},
		   {"row_compared", META_KEY_VERSION, restore}, {"removed_compared", META_KEY_REMOVED, make_another}};
	struct edit e = {.txn = {0}};
	size_t is = 0;

	while (is < sizeof(all) / sizeof(*all) && strcmp(all[is].rule, rule) != 0)
		is++;
	if (is == sizeof(all) / sizeof(*all))
		return true;
	begin_world(1);
	w.faults = false;
	if (strcmp(rule, "removed_compared") == 0)
		copy();
	make_job();
	while (!w.now.job[w.first].id)
		w.first++;
	for (unsigned i = 0; i < 3; i++)
		make_version(w.first, i);
	if (strcmp(rule, "removed_compared") != 0)
		copy();
	if (is < 2) {
		(void)add(&e, META_DELETE, key(META_KEY_STORE, w.now.job[w.first].id, 1));
		(void)done(&e);
	}
	while (is > 1 && !w.now.job[w.first].removed)
		remove_a_job();
	w.at = all[is].at;
	w.at_kind = all[is].kind;
	for (unsigned i = 0; i < 6 && !*w.broken; i++)
		sweep(0);
	assert_null(w.at);
	end_world();
	return !*w.broken;
}

static void at_the_worst_moment(void **unused)
{
	(void)unused;
	for (size_t i = 0; i < sizeof(rules) / sizeof(*rules); i++)
		if (!meets(rules[i].name))
			fail_msg("%s: %s", rules[i].name, w.broken);
}

/* Runs schedules from `first` on without a rule, until one breaks a promise. */
static bool caught(size_t rule, unsigned long first)
{
	unsigned long at = first;

	*rules[rule].off = true;
	if (meets(rules[rule].name))
		while (run(at) && at < first + MOST)
			at++;
	else
		at = 0;
	*rules[rule].off = false;
	fprintf(stderr, "%-18s %s (schedule %lu)\n", rules[rule].name, *w.broken ? w.broken : "NOTHING IS BROKEN", at);
	return *w.broken;
}

static void each_rule_is_missed(void **unused)
{
	unsigned missed = 0;

	(void)unused;
	for (size_t i = 0; i < sizeof(rules) / sizeof(*rules); i++)
		missed += !caught(i, every() > 1 && strcmp(rules[i].name, "ended_compared") == 0 ? 230 : 1); /* it is rare */
	assert_int_equal(0, missed);
}

int main(int argc, char **argv)
{
	const struct CMUnitTest tests[] = {cmocka_unit_test(promises_hold), cmocka_unit_test(at_the_worst_moment),
					   cmocka_unit_test(each_rule_is_missed)};

	(void)pthread_mutex_init(&member.lock, NULL);
	member.protocol_made = RS_PROTOCOL_SWEEPS;
	for (size_t i = 0; argc > 2 && strcmp(argv[1], "--rule") == 0 && i < sizeof(rules) / sizeof(*rules); i++)
		if (strcmp(rules[i].name, argv[2]) == 0)
			return !caught(i, argc > 3 ? strtoul(argv[3], NULL, 0) : 1);
	schedules = argc > 1 ? strtoul(argv[1], NULL, 0) : some_of(every() > 1 ? 120 : 2000);
	if (argc > 2)
		seed = strtoul(argv[2], NULL, 0);
	return cmocka_run_group_tests(tests, NULL, NULL);
}
