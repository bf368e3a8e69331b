/* SPDX-License-Identifier: Apache-2.0 */
#include "reshard/cluster/peers/holders.h"

#include <stdlib.h>

#include "meta/base/mem.h"

/* Gives the weight of a node for a blob: the larger it is, the sooner the node has a copy; the origin's is the
 * largest. */
static uint64_t weight(uint32_t node, uint32_t origin, uint64_t number)
{
	const uint64_t blob = sc_mix64(number + UINT64_C(0x9e3779b97f4a7c15) * (origin + UINT64_C(1)));

	return node == origin ? UINT64_MAX : sc_mix64(blob ^ sc_mix64(node + UINT64_C(1))) >> 1;
}

static bool is_before(uint32_t a, uint32_t b, uint32_t origin, uint64_t number)
{
	const uint64_t x = weight(a, origin, number), y = weight(b, origin, number);

	return x != y ? x > y : a < b;
}

static int by_domain(const void *a, const void *b)
{
	const struct rs_holder *x = a, *y = b;

	if (x->domain != y->domain)
		return x->domain < y->domain ? -1 : 1;
	return x->node < y->node ? -1 : x->node > y->node;
}

void rs_holders_sort(struct rs_holder *nodes, size_t nr)
{
	if (nr)
		qsort(nodes, nr, sizeof(*nodes), by_domain);
}

/* Counts the nodes from the first one on that are of its domain. */
static size_t domain_of(const struct rs_holder *nodes, size_t nr)
{
	size_t n = 1;

	while (n < nr && nodes[0].domain && nodes[n].domain == nodes[0].domain)
		n++;
	return n;
}

static size_t count_before(const struct rs_holder *nodes, size_t nr, uint32_t self, uint32_t origin, uint64_t number)
{
	size_t n = 0;

	for (size_t i = 0; i < nr; i++)
		n += is_before(nodes[i].node, self, origin, number);
	return n;
}

/* `self` is the place-th node of its domain, from 0.  Of each domain `place` nodes come before it, and one more if more
 * than `place` nodes of that domain are before it by weight. */
bool rs_holder_is(uint32_t self, const struct rs_holder *nodes, size_t nr, uint32_t origin, uint64_t number,
		  uint32_t copies)
{
	const struct rs_holder *me = NULL;
	size_t place = 0, before = 0, n, by_weight;

	for (size_t i = 0; i < nr; i++)
		if (nodes[i].node == self)
			me = &nodes[i];
	if (!me || self == origin)
		return false;
	for (size_t i = 0; me->domain && i < nr; i++)
		place += nodes[i].domain == me->domain && is_before(nodes[i].node, self, origin, number);
	for (size_t i = 0; i < nr && before < copies; i += n) {
		n = domain_of(nodes + i, nr - i);
		by_weight = count_before(nodes + i, n, self, origin, number);
		before += (place < n ? place : n) + (by_weight > place);
	}
	return before < copies;
}

struct first {
	uint32_t node;
	size_t place;	/* in its domain */
};

/* Puts a node at its place in a list, if that is among the first `room`. */
static size_t put(struct first *list, size_t n, size_t room, struct first x, uint32_t origin, uint64_t number)
{
	size_t at = n;

	while (at > 0 && x.place <= list[at - 1].place &&
	       (x.place < list[at - 1].place || is_before(x.node, list[at - 1].node, origin, number)))
		at--;
	if (at == room)
		return n;
	n += n < room;
	for (size_t k = n - 1; k > at; k--)
		list[k] = list[k - 1];
	list[at] = x;
	return n;
}

size_t rs_holders_first(const struct rs_holder *nodes, size_t nr, uint32_t origin, uint64_t number, uint32_t *ret,
			size_t room)
{
	struct first all[RS_HOLDERS_MAX], of[RS_HOLDERS_MAX];
	size_t n = 0, nr_of, domain;

	room = room < RS_HOLDERS_MAX ? room : RS_HOLDERS_MAX;
	for (size_t i = 0; i < nr; i += domain) {
		domain = domain_of(nodes + i, nr - i);
		nr_of = 0;
		for (size_t k = i; k < i + domain; k++)
			nr_of = put(of, nr_of, room, (struct first){nodes[k].node, 0}, origin, number);
		for (size_t k = 0; k < nr_of; k++)
			n = put(all, n, room, (struct first){of[k].node, k}, origin, number);
	}
	for (size_t i = 0; i < n; i++)
		ret[i] = all[i].node;
	return n;
}
