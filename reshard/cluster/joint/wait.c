/* SPDX-License-Identifier: Apache-2.0 */
#include "reshard/cluster/joint/joint_i.h"

#include <stdio.h>
#include <string.h>
#include <time.h>

#define COME_NS INT64_C(5000000000)	/* in which members offer, from this node's own offer on */
#define PLAN_NS INT64_C(20000000000)	/* in which they list and hash what they would do */
#define ASK_NS 20000000L		/* at first; then more and more rarely */
#define ASK_MOST_NS 300000000L

static void nap(long *ns)
{
	const struct timespec t = {.tv_nsec = *ns};

	(void)nanosleep(&t, NULL);
	*ns = *ns * 5 / 4 < ASK_MOST_NS ? *ns * 5 / 4 : ASK_MOST_NS;
}

/* Fails if a node of the plan takes no part any more; its offer has then gone with its registration. */
static int check_parties(const struct rs_agreement *a, struct sc_err *err)
{
	for (size_t i = 0; a->list.self && i < a->parties.nr; i++)
		if (!rs_words_of(&a->words, "offer", a->parties.at[i].node))
			return sc_fail(err, SC_E_UNSUPPORTED, "node %u takes no part any more", a->parties.at[i].node);
	return 0;
}

/* Tells whether what is waited for is there: 1, 0 (not yet) or an error (it will never be). */
typedef int ready_fn(struct rs_agreement *a, void *arg, struct sc_err *err);

/* Reads what all nodes say, again and again, until `ready` says that it is enough. */
static int wait_for(struct rs_agreement *a, ready_fn *ready, void *arg, int64_t most_ns, const char *what,
		    struct sc_err *err)
{
	const int64_t until = sc_now_ns() + most_ns;
	long pause = ASK_NS;

	for (;;) {
		int rc = rs_words_hear(&a->words, err);
		const char *stop = rc == 0 ? rs_words_find(&a->words, "stop") : NULL;

		if (stop)
			rc = sc_fail(err, SC_E_UNSUPPORTED, "%s", stop);
		if (rc == 0)
			rc = ready(a, arg, err);
		if (rc == 0)
			rc = check_parties(a, err);
		if (rc != 0)
			return rc < 0 ? rc : 0;
		if (rs_pass_is_stale(a->p))
			return sc_fail(err, SC_E_CANCELLED, "stopped");
		if (sc_now_ns() >= until)
			return sc_fail(err, SC_E_UNSUPPORTED, "%s", what);
		nap(&pause);
	}
}

/* --- the plan --- */

static bool is_home(void *arg, uint32_t rank)
{
	const struct rs_pass *p = arg;

	return rs_home(p->head, rank);
}

static int offer(struct rs_agreement *a, struct sc_err *err)
{
	struct rs_pool pool = rs_gpu_pool(a->options);
	struct rs_party p = {.peers = pool.peers, .window_bytes = pool.window_bytes, .boxes_max = pool.boxes_max};
	struct sc_buf ranks = {0}, text = {0};
	int rc;

	rs_ranks_text(a->p->head->topo.ranks, is_home, a->p, &ranks);
	p.ranks = ranks.text;
	if (!ranks.failed)
		rs_party_text(&p, &text);
	rc = ranks.failed || text.failed ? sc_nomem(err) : rs_words_say_mine(&a->words, "offer", text.text, err);
	sc_buf_done(&ranks);
	sc_buf_done(&text);
	return rc;
}

/* Makes the plan when all members have offered. */
static int try_plan(struct rs_agreement *a, struct sc_err *err)
{
	struct rs_member *m = a->words.m;
	struct sc_buf text = {0};
	uint32_t members[RS_POOL_WORLD_MAX];
	size_t nr;
	bool all = true;
	int rc = 0;

	(void)pthread_mutex_lock(&m->lock);
	nr = rs_core_members(m->core, members, RS_POOL_WORLD_MAX);
	(void)pthread_mutex_unlock(&m->lock);
	if (nr < 2 || nr > RS_POOL_WORLD_MAX)
		return sc_fail(err, SC_E_UNSUPPORTED, "the cluster has %zu members", nr);
	a->leads = m->node == members[0];
	for (size_t i = 0; a->leads && all && i < nr; i++) {
		const char *said = rs_words_of(&a->words, "offer", members[i]);

		all = said != NULL;
		if (said)
			sc_buf_printf(&text, "%u %s\n", members[i], said);
	}
	if (a->leads && all)
		rc = text.failed ? sc_nomem(err) : rs_words_say_first(&a->words, "plan", text.text, err);
	sc_buf_done(&text);
	return rc < 0 ? rc : 0;
}

static int has_plan(struct rs_agreement *a, void *arg, struct sc_err *err)
{
	const char *plan = rs_words_find(&a->words, "plan");
	int rc;

	(void)arg;
	if (!plan)
		return try_plan(a, err);
	rc = rs_parties_read(plan, &a->list.arena, &a->parties, err);
	if (rc < 0)
		return rc;
	a->list.self = rs_party_of(&a->parties, a->words.m->node);
	return a->list.self ? 1 : sc_fail(err, SC_E_UNSUPPORTED, "the leading node has left this one out");
}

int rs_agree_plan(struct rs_agreement *a, struct sc_err *err)
{
	int rc = offer(a, err);

	return rc < 0 ? rc : wait_for(a, has_plan, NULL, COME_NS, "a member has not come (do all have engine=gpu, "
				      "gpu_net=, and materialize=eager?)", err);
}

/* --- votes --- */

static int have_voted(struct rs_agreement *a, void *arg, struct sc_err *err)
{
	const char *mine = arg;

	for (size_t i = 0; i < a->parties.nr; i++) {
		const uint32_t node = a->parties.at[i].node;
		const char *vote = rs_words_of(&a->words, "vote", node);

		if (!vote)
			return 0;
		if (strcmp(vote, mine) != 0)
			return sc_fail(err, SC_E_UNSUPPORTED, "node %u would do it in another way: '%s', not '%s'",
				       node, vote, mine);
	}
	return 1;
}

int rs_agree_votes(struct rs_agreement *a, struct sc_err *err)
{
	char hash[RS_PLAN_HASH_DIGITS + 1];
	int rc = rs_joint_hash(&a->list, hash, err);

	if (rc == 0)
		rc = rs_words_say_mine(&a->words, "vote", hash, err);
	if (rc == 0)
		rc = wait_for(a, have_voted, hash, PLAN_NS, "a member has planned nothing", err);
	return rc;
}

/* --- ids --- */

struct awaited {
	const char *name;
	char *ret;
};

static int has_id(struct rs_agreement *a, void *arg, struct sc_err *err)
{
	const struct awaited *w = arg;
	const char *id = rs_words_find(&a->words, w->name);

	if (!id)
		return 0;
	if (strlen(id) != RS_POOL_ID_DIGITS)
		return sc_fail(err, SC_E_UNSUPPORTED, "the id of call %s is none", w->name);
	memcpy(w->ret, id, RS_POOL_ID_DIGITS + 1);
	return 1;
}

int rs_agree_id(struct rs_agreement *a, unsigned call, const struct rs_write_options *how,
		char ret[RS_POOL_ID_DIGITS + 1], struct sc_err *err)
{
	const int64_t most_ns = COME_NS + (int64_t)a->options->timeout_ms * 1000000; /* a helper starts, too */
	char name[12];
	int rc;

	(void)snprintf(name, sizeof(name), "%u", call);
	if (!a->leads)
		return wait_for(a, has_id, &(struct awaited){name, ret}, most_ns, "the leading node has not begun",
				err);
	rc = rs_gpu_joint_id(how, ret, err);
	if (rc == 0)
		rc = rs_words_say_first(&a->words, name, ret, err);
	return rc == 0 ? sc_fail(err, SC_E_UNSUPPORTED, "another node leads, too") : rc < 0 ? rc : 0;
}
