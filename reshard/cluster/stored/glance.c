/* SPDX-License-Identifier: Apache-2.0 */
/* Reads what the sweep has to know of etcd, all at one revision, and checks that no keys are lost. */
#include "reshard/cluster/stored/sweep_i.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

static struct rs_glance_job *job_of(struct rs_glance *l, uint64_t id)
{
	/* keys come in order: those of a job one after the other */
	for (size_t i = l->jobs.nr; i-- > 0;)
		if (l->jobs.at[i].id == id)
			return &l->jobs.at[i];
	if (sc_vec_push(&l->jobs, (struct rs_glance_job){.id = id}) == 0)
		return &l->jobs.at[l->jobs.nr - 1];
	l->failed = true;
	return NULL;
}

static int by_id(const void *a, const void *b)
{
	const struct rs_glance_job *x = a, *y = b;

	return x->id < y->id ? -1 : x->id > y->id;
}

const struct rs_glance_job *rs_glance_job(const struct rs_glance *l, uint64_t id)
{
	const struct rs_glance_job key = {.id = id};

	return l->jobs.nr ? bsearch(&key, l->jobs.at, l->jobs.nr, sizeof(key), by_id) : NULL;
}

static void name(struct rs_glance *l, uint64_t job, enum rs_object_kind kind, const struct meta_hash *hash)
{
	struct rs_glance_named n = {.job = job, .object.kind = kind};

	memcpy(n.object.name.at, hash->at, sizeof(n.object.name.at));
	l->failed |= sc_vec_push(&l->named, n) < 0;
}

static void add(struct rs_glance *l, struct rs_glance_versions *to, const struct meta_record *r)
{
	struct rs_glance_version v = {.job = r->key.job, .nr = r->key.nr, .object.kind = RS_OBJECT_VERSION};

	if (r->key.kind == META_KEY_VERSION)
		memcpy(v.object.name.at, r->value.version.placement.at, sizeof(v.object.name.at));
	l->failed |= sc_vec_push(to, v) < 0;
}

static void take_of_job(struct rs_glance *l, const struct meta_record *r)
{
	struct rs_glance_job *j = job_of(l, r->key.job);

	if (!j)
		return;
	j->has_more |= r->key.kind != META_KEY_REMOVED;
	j->has_row |= r->key.kind == META_KEY_JOB;
	j->has_removed |= r->key.kind == META_KEY_REMOVED;
	if (r->key.kind == META_KEY_REMOVED)
		j->removed_mod = r->mod;
	if (r->key.kind == META_KEY_HEAD)
		j->head = r->value.head.nr;
	if (r->key.kind == META_KEY_FIRST)
		name(l, j->id, RS_OBJECT_LEAF, &r->value.first.layout);
	if (r->key.kind != META_KEY_STORE)
		return;
	add(l, &l->stores, r);
	for (uint32_t i = 0; i < r->value.store.nr; i++)
		name(l, j->id, RS_OBJECT_SET, &r->value.store.at[i].set);
}

/* Takes a key, on the node's thread: what it means is looked at later. */
static void take(struct rs_glance *l, const struct meta_record *r)
{
	struct rs_glance_object o = {.mod = r->mod};

	switch (r->key.kind) {
	case META_KEY_ENDED:
		l->ended_mod = r->mod;
		sc_buf_printf(&l->ended, "%s", r->value.rest ? r->value.rest : "");
		break;
	case META_KEY_SWEEP:
		l->sweeps = r->value.number.nr;
		break;
	case META_KEY_PROTOCOL:
		l->protocol = rs_protocol_in(r);
		l->protocol_mod = r->mod;
		break;
	case META_KEY_OBJECT:
		memcpy(o.name.at, r->key.hash.at, sizeof(o.name.at));
		l->failed |= sc_vec_push(&l->objects, o) < 0;
		break;
	case META_KEY_VERSION:
		add(l, &l->records, r);
		break;
	case META_KEY_FIRST: case META_KEY_HEAD: case META_KEY_SHOWN: case META_KEY_PROPOSAL: case META_KEY_STORE:
	case META_KEY_JOB: case META_KEY_REMOVED: case META_KEY_CONFIG: case META_KEY_TAG:
		take_of_job(l, r);
		break;
	default:
		break;
	}
}

static void on_look(void *arg, const struct meta_answer *answer)
{
	struct rs_glance *l = arg;

	l->revision = answer->revision;
	for (uint32_t i = 0; i < answer->nr; i++)
		if (answer->records[i].present)
			take(l, &answer->records[i]);
}

static int by_number(const void *a, const void *b)
{
	const struct rs_glance_version *x = a, *y = b;

	return x->job != y->job ? (x->job < y->job ? -1 : 1) : x->nr < y->nr ? -1 : x->nr > y->nr;
}

static bool is_stored(const struct rs_glance *l, uint64_t job, uint64_t nr)
{
	const struct rs_glance_version key = {.job = job, .nr = nr};

	return l->stores.nr && bsearch(&key, l->stores.at, l->stores.nr, sizeof(key), by_number);
}

/* Notes which jobs have ended, by evidence, and which versions were not dropped. */
static void judge(struct rs_glance *l)
{
	if (l->stores.nr)
		qsort(l->stores.at, l->stores.nr, sizeof(*l->stores.at), by_number);
	if (l->records.nr)
		qsort(l->records.at, l->records.nr, sizeof(*l->records.at), by_number);
	for (size_t i = 0; i < l->records.nr; i++) {
		struct rs_glance_version *v = &l->records.at[i];
		struct rs_glance_job *j = job_of(l, v->job);

		if (!j)
			return;
		j->has_more = true;
		v->is_stored = v->nr >= j->head || is_stored(l, v->job, v->nr);
	}
	for (size_t i = 0; i < l->jobs.nr; i++) {
		struct rs_glance_job *j = &l->jobs.at[i];
		const uint64_t number = rs_job_number(j->id);

		j->has_ended = !j->has_row && (j->has_removed || (number && rs_ended_has(l->ended.text, number)));
	}
	if (l->jobs.nr)
		qsort(l->jobs.at, l->jobs.nr, sizeof(*l->jobs.at), by_id);
}

/* Checks that each job has its keys, or was removed: else somebody has removed keys by hand, and what they name is to
 * stay for when they are put back. */
static int check(const struct rs_glance *l, struct sc_err *err)
{
	for (size_t i = 0; i < l->jobs.nr; i++) {
		const struct rs_glance_job *j = &l->jobs.at[i];

		if (j->has_ended || (j->has_row && (!j->head || is_stored(l, j->id, j->head))))
			continue;
		return sc_fail(err, SC_E_STALE, "etcd lacks keys of job %016" PRIx64 ", which nobody has removed",
			       j->id);
	}
	return 0;
}

static int by_name(const void *a, const void *b)
{
	const struct rs_glance_object *x = a, *y = b;

	return rs_object_name_order(&x->name, &y->name);
}

int rs_glance(struct rs_member *m, bool objects, struct rs_glance *ret, struct sc_err *err)
{
	struct meta_op ops[] = {{.what = META_LIST, .range = META_RANGE_ALL},
				{.what = META_LIST, .range = META_RANGE_RECORDS},
				{.what = META_LIST, .range = META_RANGE_OBJECTS, .keys_only = true}};
	struct meta_txn txn = {.nr_then = objects ? 3 : 2, .then = ops};

	*ret = (struct rs_glance){.protocol = m->protocol_made};
	if (rs_member_ask(m, &txn, on_look, ret) != META_APPLIED)
		return sc_fail(err, SC_E_SYSTEM, "etcd has not answered when it was asked what it has");
	judge(ret);
	if (ret->failed || ret->ended.failed)
		return sc_nomem(err);
	if (ret->objects.nr)
		qsort(ret->objects.at, ret->objects.nr, sizeof(*ret->objects.at), by_name);
	return check(ret, err);
}

void rs_glance_done(struct rs_glance *l)
{
	sc_buf_done(&l->ended);
	sc_vec_done(&l->jobs);
	sc_vec_done(&l->stores);
	sc_vec_done(&l->records);
	sc_vec_done(&l->named);
	sc_vec_done(&l->objects);
}
