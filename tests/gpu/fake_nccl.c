/* SPDX-License-Identifier: Apache-2.0 */
/*
 * NCCL of the stand-in.  Ranks are of this process, and of others where the environment names an interface (fake_net.h).  A
 * communicator does not block: what a group has reaches its streams when ncclCommGetAsyncError() has been asked often enough,
 * and a transfer runs when both sides have begun; to another process, when the sender has.
 */
#include <dlfcn.h>
#include <nccl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "tests/gpu/fake_cuda_i.h"
#include "tests/gpu/fake_net.h"

#define RANKS_MAX 64
#define TRANSFERS_MAX (2 * RANKS_MAX)
#define LATE_ASKS 40

struct fake_transfer {
	bool send, done;
	unsigned char *at;
	size_t bytes;
	int peer;
};

struct ncclComm {
	ncclUniqueId id;
	int rank, nr, device;
	bool joined, finalized, ends, gone;
	unsigned asks;			/* until it is not in progress any more */
	struct fake_net *net;		/* NULL: all ranks are here */
	struct ncclComm *next;
	/* of a group that is on no stream yet */
	cudaStream_t stream;
	unsigned group, nr_transfers;
	struct fake_transfer transfers[TRANSFERS_MAX];
};

static int depth;
static unsigned ids;

static ncclResult_t misuse(const char *what)
{
	fake_find(&fake.found.misuse, "NCCL: %s", what);
	return ncclInvalidUsage;
}

/* The library has threads that do this. */
static void move_bytes(void)
{
	for (struct ncclComm *c = fake.comms; c && fake.nets; c = c->next)
		if (c->net)
			(void)fake_net_all(c->net);
}

static ncclResult_t enter_nccl(void)
{
	move_bytes();
	if (++fake.calls == fake.fail_call)
		return ncclSystemError;
	if (fake.sticky)
		return ncclUnhandledCudaError;
	fake_some();
	return ncclSuccess;
}

#define ENTER_NCCL()                                                                               \
	do {                                                                                       \
		ncclResult_t entered = enter_nccl();                                               \
		if (entered != ncclSuccess)                                                        \
			return entered;                                                            \
	} while (0)

static unsigned asks(const struct ncclComm *c)
{
	return (unsigned)(fake_random() % 4) + (fake.peer == FAKE_PEER_LATE && c->rank == c->nr - 1 ? LATE_ASKS : 0);
}

static bool is_last(const struct ncclComm *c)
{
	return c->rank == c->nr - 1;
}

/* How many ranks of its world have joined. */
static int joined(const struct ncclComm *c)
{
	int nr = 0;

	if (c->net)
		return fake_net_all(c->net) ? c->nr : 0;
	for (struct ncclComm *o = fake.comms; o; o = o->next)
		nr += o->joined && !o->gone && memcmp(&o->id, &c->id, sizeof(c->id)) == 0;
	return nr;
}

/* --- the library --- */

const char *ncclGetErrorString(ncclResult_t rc)
{
	return rc == ncclRemoteError ? "a peer is gone" : rc ? "NCCL of the stand-in was told to fail" : "no error";
}

ncclResult_t ncclGetVersion(int *version)
{
	ENTER_NCCL();
	*version = fake.what.nccl;
	return ncclSuccess;
}

ncclResult_t ncclGetUniqueId(ncclUniqueId *id)
{
	const char *net = getenv("NCCL_SOCKET_IFNAME");

	ENTER_NCCL();
	memset(id, 0, sizeof(*id));
	(void)snprintf(id->internal, sizeof(id->internal), "id %u", ++ids);
	if (net && strcmp(net, "lo") != 0 && !fake_net_name(net, id->internal, sizeof(id->internal)))
		return ncclSystemError;
	return ncclSuccess;
}

ncclResult_t ncclCommInitRankConfig(ncclComm_t *ret, int nr, ncclUniqueId id, int rank, ncclConfig_t *config)
{
	struct ncclComm *c;

	ENTER_NCCL();
	if (config->size != sizeof(*config) || config->magic != 0xcafebeef || config->blocking != 0)
		return misuse("a communicator that blocks, or without its configuration");
	if (!depth || nr < 1 || nr > RANKS_MAX || rank < 0 || rank >= nr || fake.device < 0)
		return misuse("several ranks of a thread join outside of a group, or a rank is none");
	for (unsigned i = 0; i < fake.nr_streams; i++)
		if (fake.streams[i]->head)
			return misuse("a rank joins while a device works: it would wait for it");
	c = calloc(1, sizeof(*c));
	c->id = id;
	c->rank = rank;
	c->nr = nr;
	c->device = fake.device;
	for (struct ncclComm *o = fake.comms; o; o = o->next)
		if (!o->gone && memcmp(&o->id, &id, sizeof(id)) == 0 && (o->rank == rank || o->device == c->device))
			(void)misuse("a rank joins twice, or two are of one device");
	c->joined = fake.peer != FAKE_PEER_NEVER || !is_last(c);
	if (fake_net_is(id.internal) && c->joined) {
		c->net = fake_net_join(id.internal, rank, nr);
		if (!c->net)
			return misuse("an id is none");
		fake.nets++;
	}
	c->asks = asks(c);
	c->next = fake.comms;
	fake.comms = c;
	*ret = c;
	return fake_random() % 2 ? ncclInProgress : ncclSuccess;
}

/* --- groups --- */

ncclResult_t ncclGroupStart(void); /* the header has them without a prototype */
ncclResult_t ncclGroupEnd(void);

ncclResult_t ncclGroupStart(void)
{
	ENTER_NCCL();
	depth++;
	return ncclSuccess;
}

/* A group ends also when this fails, and has nothing then. */
ncclResult_t ncclGroupEnd(void)
{
	ncclResult_t rc = enter_nccl();
	bool some = false;

	if (depth != 1)
		return misuse("a group in a group, or the end of none");
	depth = 0;
	for (struct ncclComm *c = fake.comms; c; c = c->next) {
		if (rc != ncclSuccess && !c->group)
			c->nr_transfers = 0;
		if (!c->nr_transfers || c->group)
			continue;
		some = true;
		c->group = fake.groups + 1;
		c->asks = asks(c);
	}
	fake.groups += some;
	return rc == ncclSuccess ? ncclInProgress : rc;
}

static ncclResult_t add(struct ncclComm *c, const void *at, size_t bytes, ncclDataType_t type, int peer, cudaStream_t s, bool send)
{
	ENTER_NCCL();
	if (c->gone || c->finalized || c->asks || joined(c) < c->nr || c->group)
		return misuse("a communicator is used that is in progress, or ended");
	if (!depth || type != ncclUint8 || peer < 0 || peer >= c->nr || !s || s->device != c->device || !bytes ||
	    (c->nr_transfers && c->stream != s) || c->nr_transfers == TRANSFERS_MAX)
		return misuse("a transfer outside of a group, to nobody, of nothing, or by a stream of another device");
	c->stream = s;
	c->transfers[c->nr_transfers++] = (struct fake_transfer){.send = send, .at = (unsigned char *)at, .bytes = bytes, .peer = peer};
	return fake_random() % 2 ? ncclInProgress : ncclSuccess;
}

ncclResult_t ncclSend(const void *at, size_t bytes, ncclDataType_t type, int peer, ncclComm_t c, cudaStream_t s)
{
	return add(c, at, bytes, type, peer, s, true);
}

ncclResult_t ncclRecv(void *at, size_t bytes, ncclDataType_t type, int peer, ncclComm_t c, cudaStream_t s)
{
	return add(c, at, bytes, type, peer, s, false);
}

/* Puts a group on its stream. */
static void hand_over(struct ncclComm *c)
{
	struct fake_op *op = fake_enqueue(c->stream, FAKE_GROUP, "exchange");

	op->comm = c;
	op->group = c->group;
	op->nr_transfers = c->nr_transfers;
	op->transfers = malloc(sizeof(c->transfers));
	memcpy(op->transfers, c->transfers, sizeof(c->transfers));
	c->nr_transfers = c->group = 0;
}

static bool has_work(const struct ncclComm *c)
{
	for (struct fake_op *op = fake.ops; op; op = op->all)
		if (op->comm == c && !op->ran)
			return true;
	return false;
}

ncclResult_t ncclCommGetAsyncError(ncclComm_t c, ncclResult_t *state)
{
	ENTER_NCCL();
	if (c->gone)
		return misuse("a communicator is asked that has ended");
	*state = ncclInProgress;
	if (c->net && fake_net_gone(c->net)) {
		*state = ncclRemoteError;
		return ncclSuccess;
	}
	if ((fake_net_is(c->id.internal) ? !c->net || joined(c) < c->nr : joined(c) < c->nr) && !c->ends)
		return ncclSuccess;
	if (fake.peer == FAKE_PEER_IS_HEARD && !is_last(c) && fake.groups >= fake.peer_nth) {
		*state = ncclRemoteError;
		return ncclSuccess;
	}
	if (c->asks) {
		c->asks--;
		return ncclSuccess;
	}
	if (c->group)
		hand_over(c);
	if (c->ends && has_work(c))
		return ncclSuccess;
	c->finalized = c->ends;
	*state = ncclSuccess;
	return ncclSuccess;
}

/* --- the end --- */

ncclResult_t ncclCommFinalize(ncclComm_t c)
{
	ENTER_NCCL();
	if (c->gone || c->ends || c->asks || c->group)
		return misuse("a communicator is finalized twice, or is in progress");
	c->ends = true;
	c->asks = asks(c);
	return ncclInProgress;
}

static void leave(struct ncclComm *c, bool well)
{
	c->gone = true;
	if (!c->net)
		return;
	fake_net_leave(c->net, well);
	c->net = NULL;
	fake.nets--;
}

ncclResult_t ncclCommDestroy(ncclComm_t c)
{
	if (c->gone || !c->finalized)
		return misuse("a communicator is destroyed that is not finalized: it would block");
	leave(c, true);
	return enter_nccl();
}

/* What it has on streams ends without its bytes. */
ncclResult_t ncclCommAbort(ncclComm_t c)
{
	if (c->gone)
		return misuse("a communicator is ended twice");
	for (struct fake_op *op = fake.ops; op; op = op->all)
		if (op->comm == c)
			op->comm = NULL;
	leave(c, false);
	return enter_nccl();
}

void fake_nccl_end(void)
{
	for (struct ncclComm *c = fake.comms, *next; c; c = next) {
		next = c->next;
		if (!c->gone)
			fake_find(&fake.found.leaks, "leak: a communicator");
		leave(c, false);
		free(c);
	}
	if (depth)
		fake_find(&fake.found.leaks, "leak: a group");
	fake.comms = NULL;
	depth = 0;
}

/* --- running --- */

static struct fake_transfer *other_side(const struct fake_op *op, const struct fake_transfer *t, struct fake_op **ret)
{
	for (unsigned i = 0; i < fake.nr_streams; i++) {
		struct fake_op *o = fake.streams[i]->head;

		if (!o || o->kind != FAKE_GROUP || !o->began || !o->comm || o->comm->rank != t->peer ||
		    memcmp(&o->comm->id, &op->comm->id, sizeof(o->comm->id)) != 0)
			continue;
		*ret = o;
		for (unsigned k = 0; k < o->nr_transfers; k++)
			if (!o->transfers[k].done && o->transfers[k].send != t->send && o->transfers[k].peer == op->comm->rank)
				return &o->transfers[k];
	}
	return NULL;
}

static void transfer(struct fake_op *from, struct fake_transfer *send, struct fake_op *to, struct fake_transfer *recv)
{
	struct fake_area *a = fake_uses(from, send->at, send->bytes, false), *b = fake_uses(to, recv->at, recv->bytes, true);

	send->done = recv->done = true;
	if (send->bytes != recv->bytes)
		fake_misuse(from, "it sends more or less than its peer receives");
	else if (a && b) {
		memcpy(recv->at, send->at, send->bytes);
		memcpy(b->written + (recv->at - b->at), a->written + (send->at - a->at), send->bytes);
	}
}

/* Is a rank one of this process? */
static bool is_here(const struct ncclComm *c, int rank)
{
	for (struct ncclComm *o = fake.comms; o; o = o->next)
		if (!o->gone && o->rank == rank && memcmp(&o->id, &c->id, sizeof(c->id)) == 0)
			return true;
	return false;
}

/* Sends to another process, or takes what has come from it; false: nothing has. */
static bool transfer_far(struct fake_op *op, struct fake_transfer *t)
{
	const size_t bytes = t->send ? t->bytes : fake_net_next(op->comm->net, t->peer);
	struct fake_area *a = bytes ? fake_uses(op, t->at, t->bytes, !t->send) : NULL;

	if (!bytes)
		return false;
	t->done = true;
	if (bytes != t->bytes)
		fake_misuse(op, "it receives more or less than its peer sends");
	else if (t->send)
		fake_net_send(op->comm->net, t->peer, t->at, bytes);
	else
		fake_net_take(op->comm->net, t->peer, t->at);
	if (a && !t->send)
		memset(a->written + (t->at - a->at), 1, bytes);
	return true;
}

/* What is behind an exchange that was aborted runs, with any bytes. */
static void give_anything(struct fake_op *op)
{
	for (unsigned i = 0; i < op->nr_transfers; i++) {
		const struct fake_transfer *t = &op->transfers[i];
		struct fake_area *a = t->send || t->done ? NULL : fake_uses(op, t->at, t->bytes, true);

		if (a)
			memset(a->written + (t->at - a->at), 1, t->bytes);
	}
	op->ran = true;
}

bool fake_step_group(struct fake_op *op)
{
	const bool dies = (fake.peer == FAKE_PEER_DIES || fake.peer == FAKE_PEER_IS_HEARD) && op->group >= fake.peer_nth;
	bool moved = !op->began, all = true;

	move_bytes();
	if (!op->comm) {
		give_anything(op);
		return true;
	}
	if (dies && is_last(op->comm))
		return false;
	op->began = true;
	for (unsigned i = 0; i < op->nr_transfers; i++) {
		struct fake_transfer *t = &op->transfers[i], *o;
		struct fake_op *other = NULL;

		if (!t->done && op->comm->net && !is_here(op->comm, t->peer)) {
			moved |= transfer_far(op, t);
			all &= t->done;
			continue;
		}
		o = t->done ? NULL : other_side(op, t, &other);
		if (o) {
			transfer(t->send ? op : other, t->send ? t : o, t->send ? other : op, t->send ? o : t);
			moved = true;
		}
		all &= t->done;
	}
	op->ran = all;
	return moved || all;
}

void fake_peer(enum fake_peer what, unsigned nth)
{
	fake.peer = what;
	fake.peer_nth = nth;
}

unsigned fake_groups(void)
{
	return fake.groups;
}

/* --- in the place of the library --- */

void *__wrap_dlopen(const char *name, int flags);
void *__wrap_dlsym(void *library, const char *name);
char *__wrap_dlerror(void);

char *__wrap_dlerror(void)
{
	return (char *)"libnccl.so.2: it is not here";
}

void *__wrap_dlopen(const char *name, int flags)
{
	(void)flags;
	return strcmp(name, "libnccl.so.2") == 0 && fake.what.nccl ? &fake : NULL;
}

void *__wrap_dlsym(void *library, const char *name)
{
	static const struct {
		const char *name;
		void *function;
	} functions[] = {
#define FUNCTION(f) {#f, (void *)f}
		FUNCTION(ncclGetVersion), FUNCTION(ncclGetUniqueId), FUNCTION(ncclCommInitRankConfig), FUNCTION(ncclCommGetAsyncError),
		FUNCTION(ncclCommFinalize), FUNCTION(ncclCommDestroy), FUNCTION(ncclCommAbort), FUNCTION(ncclGroupStart),
		FUNCTION(ncclGroupEnd), FUNCTION(ncclSend), FUNCTION(ncclRecv), FUNCTION(ncclGetErrorString),
	};

	for (size_t i = 0; library == &fake && i < sizeof(functions) / sizeof(*functions); i++)
		if (strcmp(functions[i].name, name) == 0)
			return functions[i].function;
	return NULL;
}
