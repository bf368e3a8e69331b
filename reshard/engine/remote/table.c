/* SPDX-License-Identifier: Apache-2.0 */
/* Keeps chunks in slots, which a queue links, and landings by node and blob. */
#include "reshard/engine/remote/landing_i.h"

#include <assert.h>

#define IDLE_MAX 1024 /* landings that nobody has open: each has a descriptor */

static void put_behind(struct rs_landings *set, uint32_t i, uint32_t before)
{
	struct slot *at = set->slots.at;

	at[i].state = QUEUED;
	at[i].before = before;
	at[i].next = at[before].next;
	at[at[before].next].before = i;
	at[before].next = i;
}

void landing_enqueue(struct rs_landings *set, uint32_t i)
{
	put_behind(set, i, set->slots.at[0].before);
}

void landing_enqueue_first(struct rs_landings *set, uint32_t i)
{
	put_behind(set, i, 0);
}

void landing_dequeue(struct rs_landings *set, uint32_t i)
{
	struct slot *at = set->slots.at;

	at[at[i].before].next = at[i].next;
	at[at[i].next].before = at[i].before;
}

int landing_slot_new(struct landing *l, uint32_t chunk)
{
	struct rs_landings *set = l->set;
	uint32_t i = set->free;

	if (i) {
		set->free = set->slots.at[i].next;
	} else {
		i = (uint32_t)set->slots.nr;
		if (set->slots.nr >= UINT32_MAX || sc_vec_push(&set->slots, (struct slot){0}) < 0)
			return -1;
	}
	set->slots.at[i] = (struct slot){.of = l, .chunk = chunk};
	l->slots[chunk] = i;
	l->nr_slots++;
	landing_enqueue(set, i);
	return 0;
}

void landing_slot_free(struct landing *l, uint32_t chunk)
{
	struct rs_landings *set = l->set;
	uint32_t i = l->slots[chunk];
	struct slot *s = &set->slots.at[i];

	if (s->state == QUEUED)
		landing_dequeue(set, i);
	set->nr_here -= s->state == HERE;
	*s = (struct slot){.next = set->free};
	set->free = i;
	l->slots[chunk] = 0;
	l->nr_slots--;
}

void landing_settle(struct landing *l, uint32_t chunk)
{
	const struct slot *s = slot_of(l, chunk);

	if (!l->stays || !s || s->state != HERE || s->needs)
		return;
	landing_slot_free(l, chunk);
	l->slots[chunk] = LANDING_STAYS;
	l->nr_stay++;
}

/* --- landings --- */

void landing_free(struct landing *l)
{
	if (!l)
		return;
	if (l->bytes.map)
		(void)sc_sys.munmap((void *)l->bytes.map, l->bytes.bytes);
	sc_closep(&l->fd);
	sc_sys.release(l->slots);
	sc_sys.release(l);
}

static void leave_idle(struct landing *l)
{
	l->idle_before->idle_after = l->idle_after;
	l->idle_after->idle_before = l->idle_before;
	l->idle_before = l->idle_after = NULL;
	l->set->nr_idle--;
}

void landing_ref(struct landing *l)
{
	if (l->refs++ == 0)
		leave_idle(l);
}

struct landing **landing_bucket(struct rs_landings *set, uint32_t node, uint64_t blob)
{
	return &set->buckets[(blob ^ (uint64_t)node << 5) % LANDING_BUCKETS];
}

void landing_forget(struct landing *l)
{
	struct landing **at = landing_bucket(l->set, l->what.node, l->what.blob);

	while (*at != l)
		at = &(*at)->next;
	*at = l->next;
	l->forgotten = true;
}

struct landing *landing_drop(struct landing *l)
{
	leave_idle(l);
	if (!l->forgotten)
		landing_forget(l);
	for (uint32_t i = 0; l->nr_slots; i++)
		if (slot_of(l, i))
			landing_slot_free(l, i);
	return l;
}

struct landing *landing_put(struct landing *l)
{
	struct rs_landings *set = l->set;

	assert(l->refs);
	if (--l->refs)
		return NULL;
	l->idle_before = set->idle.idle_before;
	l->idle_after = &set->idle;
	set->idle.idle_before->idle_after = l;
	set->idle.idle_before = l;
	set->nr_idle++;
	if (!l->nr_slots || l->forgotten || l->stays)
		return landing_drop(l);
	return set->nr_idle > IDLE_MAX ? landing_drop(set->idle.idle_after) : NULL;
}

struct landing *landing_find(struct rs_landings *set, uint32_t node, uint64_t blob)
{
	struct landing *l = *landing_bucket(set, node, blob);

	while (l && (l->what.node != node || l->what.blob != blob))
		l = l->next;
	if (l)
		landing_ref(l);
	return l;
}
