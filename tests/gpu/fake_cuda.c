/* SPDX-License-Identifier: Apache-2.0 */
/* Memory, accesses and running of the stand-in; fake_calls.c has the functions of CUDA. */
#include "tests/gpu/fake_cuda_i.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define POISON 0xdb

struct fake_device fake;

uint64_t fake_random(void)
{
	uint64_t z = fake.random += 0x9e3779b97f4a7c15u;

	z = (z ^ z >> 30) * 0xbf58476d1ce4e5b9u;
	z = (z ^ z >> 27) * 0x94d049bb133111ebu;
	return z ^ z >> 31;
}

void fake_find(unsigned *counter, const char *fmt, ...)
{
	struct fake_findings *f = &fake.found;
	va_list ap;

	if (f->races + f->deadlocks + f->misuse + f->leaks == 0) {
		va_start(ap, fmt);
		(void)vsnprintf(f->first, sizeof(f->first), fmt, ap);
		va_end(ap);
	}
	(*counter)++;
}

void fake_join(struct fake_clock *a, const struct fake_clock *b)
{
	for (unsigned i = 0; i < FAKE_CLOCKS; i++)
		if (a->at[i] < b->at[i])
			a->at[i] = b->at[i];
}

/* --- memory --- */

struct fake_area *fake_area_new(void *at, size_t bytes, int device)
{
	struct fake_area *a = calloc(1, sizeof(*a));

	a->at = at ? at : aligned_alloc(256, (bytes + 255) / 256 * 256);
	a->bytes = bytes;
	a->device = device;
	a->written = calloc(bytes + 1, 1);
	memset(a->at, POISON, bytes);
	a->next = fake.areas;
	fake.areas = a;
	fake.bytes[device + 1] += bytes;
	if (fake.most[device + 1] < fake.bytes[device + 1])
		fake.most[device + 1] = fake.bytes[device + 1];
	return a;
}

struct fake_area *fake_area_of(const void *p)
{
	for (struct fake_area *a = fake.areas; a; a = a->next)
		if (!a->gone && (const unsigned char *)p >= a->at && (const unsigned char *)p < a->at + a->bytes)
			return a;
	return NULL;
}

/* --- accesses --- */

struct use {
	uintptr_t lo, hi;
	bool write;
	unsigned clock;
	uint32_t epoch;
	char name[60];
};

static struct {
	struct use *at;
	size_t nr, room;
} uses;

/* Compares with all earlier ones; those that a later one covers are forgotten. */
static void note(const void *p, size_t bytes, bool write, unsigned clock, const struct fake_clock *c, const char *name)
{
	struct use u = {(uintptr_t)p, (uintptr_t)p + bytes, write, clock, c->at[clock], ""};
	size_t kept = 0;

	if (!bytes)
		return;
	(void)snprintf(u.name, sizeof(u.name), "%s", name);
	for (size_t i = 0; i < uses.nr; i++) {
		const struct use *o = &uses.at[i];
		const bool before = c->at[o->clock] >= o->epoch;

		if (!before && o->lo < u.hi && u.lo < o->hi && (o->write || write))
			fake_find(&fake.found.races, "race: '%s' %s bytes that '%s' %s, and nothing orders them", u.name,
				  write ? "writes" : "reads", o->name, o->write ? "writes" : "reads");
		if (!(before && (write || !o->write) && o->lo >= u.lo && o->hi <= u.hi))
			uses.at[kept++] = *o;
	}
	uses.nr = kept;
	if (uses.nr == uses.room) {
		uses.room = uses.room ? 2 * uses.room : 256;
		uses.at = realloc(uses.at, uses.room * sizeof(*uses.at));
	}
	uses.at[uses.nr++] = u;
}

static struct fake_area *area_of_all(const void *p, size_t bytes, const char *name)
{
	struct fake_area *a = fake_area_of(p);

	if (a && bytes <= (size_t)(a->at + a->bytes - (const unsigned char *)p))
		return a;
	fake_find(&fake.found.misuse, "'%s' uses memory that is not there, was given back, or ends before", name);
	return NULL;
}

struct fake_area *fake_uses(struct fake_op *op, const void *p, size_t bytes, bool write)
{
	struct fake_area *a = area_of_all(p, bytes, op->name);

	if (a && a->device >= 0 && a->device != op->stream->device)
		fake_misuse(op, "it uses memory of another device");
	if (a)
		note(p, bytes, write, op->stream->clock_nr, &op->clock, op->name);
	return a;
}

void fake_misuse(struct fake_op *op, const char *what)
{
	fake_find(&fake.found.misuse, "'%s': %s", op->name, what);
}

void fake_host_uses(const void *p, size_t bytes, bool write, const char *what)
{
	struct fake_area *a = area_of_all(p, bytes, what);
	uint8_t *written;

	if (!a || !bytes)
		return;
	fake.host.at[0]++;
	note(p, bytes, write, 0, &fake.host, what);
	written = a->written + ((const unsigned char *)p - a->at);
	if (write)
		memset(written, 1, bytes);
	else if (memchr(written, 0, bytes))
		fake_find(&fake.found.misuse, "'%s' reads bytes that nobody has written", what);
}

/* --- running --- */

struct fake_op *fake_enqueue(struct CUstream_st *s, enum fake_kind kind, const char *name)
{
	struct fake_op *op = calloc(1, sizeof(*op));

	op->kind = kind;
	op->stream = s;
	(void)snprintf(op->name, sizeof(op->name), "%s, operation %u of stream %u", name, ++s->ops, s->clock_nr);
	fake_join(&s->clock, &fake.host);
	s->clock.at[s->clock_nr]++;
	op->clock = s->clock;
	if (s->tail)
		s->tail->next = op;
	else
		s->head = op;
	s->tail = op;
	op->all = fake.ops;
	fake.ops = op;
	return op;
}

static void run_set(struct fake_op *op)
{
	struct fake_area *to = fake_uses(op, op->to, op->bytes, true);

	if (!to)
		return;
	memset(op->to, op->value, op->bytes);
	memset(to->written + ((unsigned char *)op->to - to->at), 1, op->bytes);
}

static bool goes_as_it_says(const struct fake_area *from, const struct fake_area *to, enum cudaMemcpyKind kind)
{
	return kind == (from->device < 0 ? cudaMemcpyHostToDevice : to->device < 0 ? cudaMemcpyDeviceToHost : cudaMemcpyDeviceToDevice) &&
	       (from->device >= 0 || to->device >= 0);
}

/* Bytes that nobody has written stay so where they are copied to. */
static void run_copy(struct fake_op *op)
{
	struct fake_area *from = fake_uses(op, op->from, op->bytes, false), *to = fake_uses(op, op->to, op->bytes, true);

	if (!from || !to)
		return;
	if (!goes_as_it_says(from, to, op->copy))
		fake_misuse(op, "it copies in another direction than it says");
	if (op->copy == cudaMemcpyDeviceToHost && memchr(from->written + ((const unsigned char *)op->from - from->at), 0, op->bytes))
		fake_misuse(op, "it copies out bytes that nobody has written"); /* so does initcheck */
	memcpy(op->to, op->from, op->bytes);
	memcpy(to->written + ((unsigned char *)op->to - to->at), from->written + ((const unsigned char *)op->from - from->at),
	       op->bytes);
}

static void pop(struct fake_op *op)
{
	op->ran = true;
	op->stream->head = op->next;
	if (!op->next)
		op->stream->tail = NULL;
}

/* Runs the head of a stream, if it may; false: nothing happened. */
bool fake_step(struct CUstream_st *s)
{
	struct fake_op *op = s->head;
	const bool works = op && op->kind <= FAKE_GROUP;

	if (!op || (op->kind == FAKE_WAIT && !op->dep->ran && !fake.sticky))
		return false;
	if (works && !fake.sticky) {
		if (!op->nth)
			op->nth = ++fake.ran;
		if (op->nth == fake.hang_run && (op->kind != FAKE_GROUP || op->comm)) /* what is aborted ends */
			return false;
		if (op->nth == fake.fail_run)
			fake.sticky = cudaErrorIllegalAddress;
		else if (op->kind == FAKE_COPY)
			run_copy(op);
		else if (op->kind == FAKE_SET)
			run_set(op);
		else if (op->kind == FAKE_GROUP) {
			if (!fake_step_group(op))
				return false;
			if (!op->ran)
				return true;
		}
		else if (!fake_the_kernel.run(op, op->args, op->blocks, op->threads, fake_random()))
			fake.sticky = cudaErrorIllegalAddress;
	}
	pop(op);
	return true;
}

static bool step_any(void)
{
	for (unsigned i = 0, from = (unsigned)fake_random(); i < fake.nr_streams; i++)
		if (fake_step(fake.streams[(i + from) % fake.nr_streams]))
			return true;
	return false;
}

void fake_some(void)
{
	if (fake.order == FAKE_EAGER)
		while (step_any())
			;
	for (unsigned n = fake.order == FAKE_RANDOM && fake.nr_streams ? fake_random() % 4 : 0; n; n--)
		(void)fake_step(fake.streams[fake_random() % fake.nr_streams]);
}

/* Runs what an operation needs and itself, no more.  False: something of that does not end. */
static bool force(struct fake_op *op)
{
	while (!op->ran) {
		struct fake_op *head = op->stream->head;

		if (!fake_step(op->stream) && (head->kind != FAKE_WAIT || !force(head->dep)) &&
		    (head->kind != FAKE_GROUP || !step_any())) /* any other stream may bring the peer */
			return false;
	}
	return true;
}

/* The host asks once more.  Late: what it asks for runs at the third time. */
cudaError_t fake_ask(struct fake_op *op)
{
	fake.asked++;
	if (fake.order == FAKE_LATE && fake.asked % 3 == 0)
		(void)force(op);
	if (op->ran) {
		fake.asked = 0;
		return cudaSuccess;
	}
	if (fake.asked < FAKE_ASKS_MAX || fake.nets)
		return cudaErrorNotReady;
	if (!force(op)) {
		fake_find(&fake.found.deadlocks, "deadlock: the host asks for '%s', and '%s' does not end", op->name,
			  op->stream->head->name);
		fake.sticky = cudaErrorLaunchTimeout;
	}
	fake.asked = 0;
	return fake.sticky;
}

/* --- begin and end --- */

void fake_begin(enum fake_order order, uint64_t seed)
{
	memset(&fake, 0, sizeof(fake));
	fake.order = order;
	fake.random = seed;
	fake.device = -1;
	fake.what = (struct fake_machine){.driver = 12090, .devices = FAKE_DEVICES, .major = 9, .nccl = 22203};
}

void fake_machine(const struct fake_machine *machine)
{
	fake.what = *machine;
}

bool fake_rests(void)
{
	for (unsigned i = 0; i < fake.nr_streams; i++)
		if (fake.streams[i]->head)
			return false;
	return true;
}

size_t fake_most(bool pinned)
{
	size_t most = fake.most[pinned ? 0 : 1];

	for (unsigned i = 2; i <= FAKE_DEVICES && !pinned; i++)
		most = most < fake.most[i] ? fake.most[i] : most;
	return most;
}

struct fake_findings fake_found(void)
{
	return fake.found;
}

static void count_leaks(void)
{
	for (struct fake_area *a = fake.areas; a; a = a->next)
		if (!a->gone)
			fake_find(&fake.found.leaks, "leak: %zu bytes of %s", a->bytes, a->device < 0 ? "pinned memory" : "a device");
	for (unsigned i = 0; i < fake.nr_streams; i++)
		if (fake.streams[i]->open)
			fake_find(&fake.found.leaks, "leak: stream %u", i + 1);
	if (fake.events)
		fake_find(&fake.found.leaks, "leak: %u events", fake.events);
	if (fake.libraries)
		fake_find(&fake.found.leaks, "leak: a library");
}

struct fake_findings fake_end(void)
{
	count_leaks();
	fake_nccl_end();
	for (struct fake_op *op = fake.ops, *next; op; op = next) {
		next = op->all;
		for (unsigned i = 0; i < 4; i++)
			free(op->args[i]);
		free(op->transfers);
		free(op);
	}
	for (struct fake_area *a = fake.areas, *next; a; a = next) {
		next = a->next;
		if (a->device >= 0)
			free(a->at);
		free(a->written);
		free(a);
	}
	for (unsigned i = 0; i < fake.nr_streams; i++)
		free(fake.streams[i]);
	free(uses.at);
	memset(&uses, 0, sizeof(uses));
	fake.areas = NULL;
	fake.ops = NULL;
	fake.nr_streams = 0;
	return fake.found;
}

void fake_fail_call(unsigned nth)
{
	fake.fail_call = nth;
}

void fake_fail_run(unsigned nth)
{
	fake.fail_run = nth;
}

void fake_hang_run(unsigned nth)
{
	fake.hang_run = nth;
}

bool fake_hangs_exchange(void)
{
	for (struct fake_op *op = fake.ops; op; op = op->all)
		if (op->nth && op->nth == fake.hang_run)
			return op->kind == FAKE_GROUP;
	return false;
}

unsigned fake_calls(void)
{
	return fake.calls;
}

unsigned fake_ran(void)
{
	return fake.ran;
}
