/* SPDX-License-Identifier: Apache-2.0 */
/* Keeps which nodes are here, which were here a moment ago, and which are being emptied. */
#include "reshard/cluster/peers/peers_i.h"

#include <stdlib.h>
#include <string.h>

#include "meta/catalog/nodes.h"

SC_METRIC(members, SC_GAUGE, "scalai_cluster_members", "Nodes that are members of the cluster.");

static bool has(const uint32_t *at, size_t nr, uint32_t node)
{
	for (size_t i = 0; i < nr; i++)
		if (at[i] == node)
			return true;
	return false;
}

bool rs_near_is_here(const struct rs_member *m, uint32_t node)
{
	for (size_t i = 0; i < m->members.nr; i++)
		if (m->members.at[i].node == node)
			return true;
	return false;
}

bool rs_near_is(const struct rs_member *m, uint32_t node)
{
	for (size_t i = 0; i < m->gone.nr; i++)
		if (m->gone.at[i].node == node)
			return true;
	return rs_near_is_here(m, node);
}

static bool is_absent(const struct rs_member *m, uint32_t node)
{
	return node != m->node && !rs_core_lists(m->core, node) && !has(m->drained.at, m->drained.nr, node);
}

uint32_t rs_near_absent(const struct rs_member *m, uint32_t first)
{
	if (first && is_absent(m, first))
		return first;
	for (uint32_t n = 1; n <= m->last; n++)
		if (is_absent(m, n))
			return n;
	return 0;
}

uint32_t rs_near_domain(const struct rs_member *m, uint32_t node)
{
	for (size_t i = 0; i < m->domains.nr; i++)
		if (m->domains.at[i].node == node)
			return m->domains.at[i].domain;
	return 0;
}

static void note_gone(struct rs_member *m, uint32_t node)
{
	if (node != m->node && !rs_near_is(m, node)) /* out of memory: its copies are made sooner */
		(void)sc_vec_push(&m->gone, ((typeof(*m->gone.at)){node, sc_now_ns()}));
}

static void find_domains(struct rs_member *m)
{
	for (size_t i = 0; i < m->members.nr; i++)
		m->members.at[i].domain = rs_near_domain(m, m->members.at[i].node);
	rs_holders_sort(m->members.at, m->members.nr);
}

static void take_members(struct rs_member *m, const struct meta_record *r)
{
	typeof(m->members) was = m->members;
	size_t kept = 0;

	m->members = (typeof(m->members)){0};
	m->members_mod = r->mod;
	for (uint32_t i = 0; r->present && i < r->value.members.nr; i++)
		(void)sc_vec_push(&m->members, ((struct rs_holder){r->value.members.at[i].node, 0}));
	find_domains(m);
	sc_metric_set(&members, m->members.nr);
	for (size_t i = 0; i < m->members.nr; i++)
		m->last = m->last > m->members.at[i].node ? m->last : m->members.at[i].node;
	for (size_t i = 0; i < was.nr; i++)
		note_gone(m, was.at[i].node);
	sc_vec_done(&was);
	for (size_t i = 0; i < m->gone.nr; i++)
		if (!rs_near_is_here(m, m->gone.at[i].node))
			m->gone.at[kept++] = m->gone.at[i];
	m->gone.nr = kept;
}

static void take_drained(struct rs_member *m, const struct meta_record *r)
{
	const char *p = r->present && r->value.rest ? r->value.rest : "";
	char *end;

	m->drained.nr = 0;
	m->drained_mod = r->mod;
	for (; *p; p = end) {
		unsigned long node = strtoul(p, &end, 10);

		if (end == p)
			break;
		if (node && node < META_NODES_MAX)
			(void)sc_vec_push(&m->drained, (uint32_t)node);
	}
}

bool rs_domain_line(const char **p, unsigned long *ret_node, const char **ret_name)
{
	const char *end = strchr(*p, '\n');
	char *space;

	*ret_node = end ? strtoul(*p, &space, 10) : 0;
	if (!end || space == *p || *space != ' ' || !*ret_node || *ret_node >= META_NODES_MAX)
		return false;
	*ret_name = space + 1;
	*p = end + 1;
	return true;
}

/* Takes the list of domains, of lines "NUMBER NAME".  A domain's number is that of the first line that has its name,
 * from 1: it means nothing but that nodes are in one domain. */
static void take_domains(struct rs_member *m, const struct meta_record *r)
{
	const char *text = r->present && r->value.rest ? r->value.rest : "", *name;
	struct {
		size_t nr, room;
		const char **at;
	} names = {0};
	unsigned long node;

	m->domains.nr = 0;
	m->domains_mod = r->mod;
	for (const char *p = text; rs_domain_line(&p, &node, &name);) {
		uint32_t d = 0;

		while (d < names.nr && strncmp(names.at[d], name, (size_t)(p - name)) != 0)
			d++;
		(void)sc_vec_push(&names, name);
		(void)sc_vec_push(&m->domains, ((struct rs_holder){(uint32_t)node, d + 1}));
	}
	sc_vec_done(&names);
	find_domains(m);
}

void rs_near_take(struct rs_member *m, const struct meta_record *r)
{
	const enum meta_key_kind kind = r->key.kind;

	if (kind != META_KEY_MEMBERS && kind != META_KEY_DRAIN && kind != META_KEY_DOMAINS)
		return;
	(void)pthread_mutex_lock(&m->lock);
	if (kind == META_KEY_MEMBERS)
		take_members(m, r);
	else if (kind == META_KEY_DRAIN)
		take_drained(m, r);
	else
		take_domains(m, r);
	for (size_t i = 0; i < m->jobs.nr; i++)
		m->jobs.at[i]->copies.done = false;
	(void)pthread_mutex_unlock(&m->lock);
	if (kind == META_KEY_MEMBERS) /* of replicas, others are near now */
		rs_images_forget(m->s, NULL);
	rs_worker_call(m->s, false);
}

bool rs_near_expire(struct rs_member *m)
{
	const int64_t before = sc_now_ns() - GONE_TTLS * m->times.ttl;
	size_t kept = 0;
	bool any;

	(void)pthread_mutex_lock(&m->lock);
	for (size_t i = 0; i < m->gone.nr; i++)
		if (m->gone.at[i].since_ns >= before)
			m->gone.at[kept++] = m->gone.at[i];
	any = kept < m->gone.nr;
	m->gone.nr = kept;
	for (size_t i = 0; any && i < m->jobs.nr; i++)
		m->jobs.at[i]->copies.done = false;
	(void)pthread_mutex_unlock(&m->lock);
	return any;
}

static int on_origin(void *arg, uint64_t node)
{
	note_gone(arg, (uint32_t)node);
	return 0;
}

int rs_near_start(struct rs_member *m, struct sc_err *err)
{
	return meta_away_nodes(m->s->catalog, on_origin, m, err);
}
