/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Asks members that a command of this node waits for whether they are there.  etcd may hear from a node that this one
 * cannot reach: its certificate is of another CA, or the network is parted between both.  Such a node stays a member,
 * and the command would wait for it for as long as a commit may take.
 *
 * 1. A member that was not reached for two registrations, however often it was asked, counts as if it had refused the
 *    command.  A member that has died is none by then; one that is there and is slow has its time.
 */
#include "reshard/cluster/peers/peers_i.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#define TICK_NS (500 * MEMBER_MS)
#define ANSWER_MS 3000
#define WARN_NS (3000 * MEMBER_MS)
#define MISSING 16	/* members that are looked at */

struct rs_probe {
	struct rs_probe *next;
	struct rs_member *m;
	uint32_t node;
	bool wanted, asked, warned;	/* asked: an answer is to come */
	int64_t since_ns;		/* it has not been reached since then; 0: it was */
	uint8_t byte;
	char why[192];
};

static struct rs_probe *probe_of(struct rs_member *m, uint32_t node)
{
	struct rs_probe *p = m->probes;

	while (p && p->node != node)
		p = p->next;
	if (p)
		return p;
	p = sc_zalloc(sizeof(*p));
	if (!p)
		return NULL;
	*p = (struct rs_probe){.next = m->probes, .m = m, .node = node};
	return m->probes = p;
}

static void missed(struct rs_probe *p, const char *why)
{
	if (!p->since_ns)
		p->since_ns = sc_now_ns();
	(void)snprintf(p->why, sizeof(p->why), "%s", why);
}

/* Takes the end of a question: any answer of the node says that it is there. */
static void on_answer(void *arg, int code, const struct sc_err *err)
{
	struct rs_probe *p = arg;

	p->asked = false;
	if (code == RS_CODE_IO)
		missed(p, err->msg);
	else
		p->since_ns = p->warned = 0;
}

/* Asks a node whether it is there, by a pull of a byte of no blob. */
static void ask(struct rs_probe *p)
{
	const char *address = rs_peers_address(p->m, p->node);
	struct rs_pull *f;
	struct sc_err err;

	if (p->asked || !address)
		return;
	f = sc_zalloc(sizeof(*f));
	if (!f)
		return;
	(void)snprintf(f->file, sizeof(f->file), "0");
	f->run = f->bytes = 1;
	f->deadline_ms = ANSWER_MS;
	if (rs_net_pull(p->m->net, address, f, &p->byte, on_answer, p, &err) == 0)
		p->asked = true;
	else if (err.code != SC_E_BUSY && err.code != SC_E_NO_MEMORY)
		missed(p, err.msg);
	sc_sys.release(f);
}

/* Asks once more; true: the node was not reached for so long that the command is refused. */
static bool look_at(struct rs_probe *p, int64_t now)
{
	char node[RS_PEER_TEXT];

	p->wanted = true;
	ask(p);
	if (p->since_ns && !p->warned && now - p->since_ns >= WARN_NS) {
		p->warned = true;
		sc_log(SC_LOG_WARN, "%s is a member of the cluster and cannot be reached; a command waits for it: %s",
		       rs_peers_text(p->m, p->node, node), p->why);
	}
	return p->since_ns && now - p->since_ns >= 2 * p->m->times.ttl;
}

static void note_late(struct rs_member *m, struct rs_move *move, const struct meta_member *at, size_t nr)
{
	char node[RS_PEER_TEXT];

	(void)snprintf(move->late, sizeof(move->late), "%s", nr ? rs_peers_text(m, at->node, node) : "");
	if (nr > 1)
		(void)snprintf(move->late + strlen(move->late), sizeof(move->late) - strlen(move->late),
			       ", as %s%zu other%s,", nr == MISSING ? "at least " : "", nr - 1, nr > 2 ? "s" : "");
}

static void note_unreached(struct rs_move *move, const struct rs_probe *p, int64_t now)
{
	char node[RS_PEER_TEXT];

	if (!move->err.code)
		(void)sc_fail(&move->err, SC_E_BUSY, "%s is a member of the cluster, and was not reached from here "
			      "for %" PRId64 " s: %s; mend that, or unmount that node, and try again",
			      rs_peers_text(p->m, p->node, node), (now - p->since_ns) / (1000 * MEMBER_MS), p->why);
}

struct waited {
	uint64_t job, token;
	size_t nr;
	struct meta_member at[MISSING];
};

/* Finds the next command that waits for members, from the i-th job on; false: there is none. */
static bool next_waiting(struct rs_member *m, size_t *i, struct waited *ret)
{
	for (ret->nr = 0; *i < m->jobs.nr && !ret->nr; ++*i) {
		struct rs_move *move = m->jobs.at[*i]->move;

		if (!move || move->done)
			continue;
		ret->job = m->jobs.at[*i]->id;
		ret->token = move->token;
		ret->nr = rs_core_waits_for(m->core, ret->job, ret->token, ret->at, MISSING);
		for (size_t k = 0; k < ret->nr; k++)
			if (ret->at[k].node == m->node)
				ret->at[k--] = ret->at[--ret->nr];
		note_late(m, move, ret->at, ret->nr);
	}
	return ret->nr;
}

static void drop_unwanted(struct rs_member *m)
{
	for (struct rs_probe **p = &m->probes, *gone; (gone = *p);) {
		if (gone->wanted || gone->asked) {
			gone->wanted = false;
			p = &gone->next;
			continue;
		}
		*p = gone->next;
		sc_sys.release(gone);
	}
}

void rs_probes_tick(struct rs_member *m,
		    void (*refuse)(struct rs_member *m, const struct meta_member *at, uint64_t job, uint64_t token))
{
	const int64_t now = sc_now_ns();
	struct waited w;
	bool any = true;

	if (now < m->probed_ns + TICK_NS)
		return;
	m->probed_ns = now;
	for (size_t i = 0; any;) {
		(void)pthread_mutex_lock(&m->lock);
		any = next_waiting(m, &i, &w);
		(void)pthread_mutex_unlock(&m->lock);
		for (size_t k = 0; k < w.nr; k++) {
			struct rs_probe *p = probe_of(m, w.at[k].node);
			struct rs_move *move;

			if (!p || !look_at(p, now))
				continue;
			(void)pthread_mutex_lock(&m->lock);
			move = rs_move_of(m, w.job, w.token);
			if (move)
				note_unreached(move, p, now);
			(void)pthread_mutex_unlock(&m->lock);
			refuse(m, &w.at[k], w.job, w.token);
		}
	}
	drop_unwanted(m);
}

void rs_probes_end(struct rs_member *m)
{
	while (m->probes) {
		struct rs_probe *p = m->probes;

		m->probes = p->next;
		sc_sys.release(p);
	}
}
