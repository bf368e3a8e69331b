/* SPDX-License-Identifier: Apache-2.0 */
#include "reshard/cluster/joint/joint_i.h"

#include <stdio.h>
#include <string.h>

#include "meta/base/mem.h"

bool rs_words_begin(struct rs_words *w, struct rs_member *m, const struct rs_view *head)
{
	struct rs_words before = {.m = m};
	struct rs_shared *j;

	*w = (struct rs_words){.m = m, .nr = head->version->nr};
	(void)pthread_mutex_lock(&m->lock);
	j = rs_shared_find(m, head->job);
	w->job = before.job = j ? j->id : 0;
	before.nr = j ? j->nccl_left : 0;
	if (j)
		j->nccl_left = 0;
	w->lease = m->registration;
	(void)pthread_mutex_unlock(&m->lock);
	if (before.nr && before.nr != w->nr)
		rs_words_forget(&before, true);
	return j && w->lease;
}

void rs_words_done(struct rs_words *w)
{
	sc_vec_done(&w->all);
	sc_arena_done(&w->arena);
}

static int silent(struct sc_err *err)
{
	return sc_fail(err, SC_E_SYSTEM, "etcd does not answer");
}

static enum meta_outcome say(struct rs_words *w, const char *name, const char *text, bool once)
{
	struct meta_op put = {.what = META_PUT, .lease = w->lease,
			      .key = {.kind = META_KEY_NCCL, .job = w->job, .nr = w->nr, .text = name}};
	struct meta_compare absent = {.what = META_MOD_IS, .key = put.key};
	struct meta_txn txn = {.nr_compares = once, .compares = &absent, .nr_then = 1, .then = &put};

	put.value = (struct meta_value){.kind = META_KEY_NCCL, .rest = text};
	return rs_member_ask(w->m, &txn, NULL, NULL);
}

int rs_words_say(struct rs_words *w, const char *name, const char *text, struct sc_err *err)
{
	return say(w, name, text, false) == META_APPLIED ? 0 : silent(err);
}

/* Writes "NAME-NODE", of which the longest is "offer-" and a number. */
static const char *name_of(const char *name, uint32_t node, char ret[24])
{
	(void)snprintf(ret, 24, "%s-%u", name, node);
	return ret;
}

int rs_words_say_mine(struct rs_words *w, const char *name, const char *text, struct sc_err *err)
{
	char mine[24];

	return rs_words_say(w, name_of(name, w->m->node, mine), text, err);
}

int rs_words_say_first(struct rs_words *w, const char *name, const char *text, struct sc_err *err)
{
	const enum meta_outcome outcome = say(w, name, text, true);

	return outcome == META_APPLIED ? 1 : outcome == META_REFUSED ? 0 : silent(err);
}

struct hearing {
	struct rs_words *w;
	bool failed;
};

/* Takes etcd's answer, on the node's thread; the thread that asked waits. */
static void on_words(void *arg, const struct meta_answer *answer)
{
	struct hearing *h = arg;
	struct rs_words *w = h->w;

	for (uint32_t i = 0; i < answer->nr; i++) {
		const struct meta_record *r = &answer->records[i];
		const char *text = r->present && r->value.rest ? r->value.rest : "";
		struct rs_word word;

		if (!r->present || r->key.kind != META_KEY_NCCL)
			continue;
		word.name = sc_arena_copy(&w->arena, r->key.text, strlen(r->key.text));
		word.text = sc_arena_copy(&w->arena, text, strlen(text));
		h->failed |= !word.name || !word.text || sc_vec_push(&w->all, word) < 0;
	}
}

int rs_words_hear(struct rs_words *w, struct sc_err *err)
{
	struct meta_op list = {.what = META_LIST, .key = {.job = w->job, .nr = w->nr}, .range = META_RANGE_NCCL};
	struct meta_txn txn = {.nr_then = 1, .then = &list};
	struct hearing h = {.w = w};

	w->all.nr = 0;
	sc_arena_done(&w->arena);
	if (rs_member_ask(w->m, &txn, on_words, &h) != META_APPLIED)
		return silent(err);
	return h.failed ? sc_nomem(err) : 0;
}

const char *rs_words_find(const struct rs_words *w, const char *name)
{
	for (size_t i = 0; i < w->all.nr; i++)
		if (strcmp(w->all.at[i].name, name) == 0)
			return w->all.at[i].text;
	return NULL;
}

const char *rs_words_of(const struct rs_words *w, const char *name, uint32_t node)
{
	char whole[24];

	return rs_words_find(w, name_of(name, node, whole));
}

void rs_words_forget(struct rs_words *w, bool all)
{
	struct meta_op ops[2] = {{.what = META_CLEAR, .key = {.job = w->job, .nr = w->nr}, .range = META_RANGE_NCCL}};
	struct meta_txn txn = {.nr_then = all ? 1 : 2, .then = ops};
	char names[2][24];

	for (unsigned i = 0; !all && i < 2; i++)
		ops[i] = (struct meta_op){.what = META_DELETE,
					  .key = {.kind = META_KEY_NCCL, .job = w->job, .nr = w->nr,
						  .text = name_of(i ? "vote" : "offer", w->m->node, names[i])}};
	(void)rs_member_ask(w->m, &txn, NULL, NULL); /* what stays goes with the lease */
}

void rs_words_leave(struct rs_words *w)
{
	struct rs_shared *j;

	(void)pthread_mutex_lock(&w->m->lock);
	j = rs_shared_of(w->m, w->job);
	if (j)
		j->nccl_left = w->nr;
	(void)pthread_mutex_unlock(&w->m->lock);
}
