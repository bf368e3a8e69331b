/* SPDX-License-Identifier: Apache-2.0 */
#include "reshard/engine/gpu/remote.h"

#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "meta/base/log.h"
#include "meta/base/metric.h"
#include "reshard/engine/io/host.h"
#include "reshard/engine/gpu/call.h"
#include "reshard/engine/rounds/rounds.h"

#define TARGETS 256

SC_METRIC(gpu_bytes, SC_COUNTER, "scalai_gpu_bytes_total", "Bytes of rank files that a GPU has put together.");

static struct {
	pthread_mutex_t busy;		/* of a call, and of what follows */
	struct rs_helper *helper;	/* NULL: none runs */
	struct rs_gpu_options options;	/* of the call */
} gpu = {.busy = PTHREAD_MUTEX_INITIALIZER};

struct remote {
	struct rs_engine engine;
	struct rs_engine *host;
};

/* A call, while rounds are made. */
struct batch {
	const struct rs_target *targets;
	const struct rs_image *images[TARGETS];
	uint32_t writers[TARGETS];	/* the peer that writes each */
	const struct rs_write_options *how;
	struct rs_call call;
	struct outs {
		struct rs_extent *out;	/* of a round that is not drained; room for rs_pool_extents() */
		uint32_t nr;
	} slots[RS_POOL_SLOTS][RS_POOL_PEERS_MAX];
	uint64_t ticked;		/* bytes that `tick` was told */
	size_t nr, failed;		/* targets; the one that an error is about; nr: none */
	bool of_files;			/* an error is about files or the caller, and none of the GPU's */
};

/* --- what all calls share --- */

void rs_gpu_configure(const struct rs_gpu_options *options)
{
	(void)pthread_mutex_lock(&gpu.busy);
	(void)rs_helper_end(sc_steal(&gpu.helper), gpu.options.stop_ms);
	rs_gpu_set(options);
	(void)pthread_mutex_unlock(&gpu.busy);
}

bool rs_gpu_stop(void)
{
	bool well;

	(void)pthread_mutex_lock(&gpu.busy);
	well = rs_helper_end(sc_steal(&gpu.helper), gpu.options.stop_ms);
	(void)pthread_mutex_unlock(&gpu.busy);
	return well;
}

/* --- files --- */

static int tick(struct batch *b, uint64_t bytes)
{
	b->ticked += bytes;
	return b->how->tick ? b->how->tick(b->how->arg, bytes) : 0;
}

/* Is called while the daemon waits for the helper. */
static int tick_nothing(void *arg)
{
	struct batch *b = arg;

	b->failed = b->nr;
	b->of_files = tick(b, 0) != 0;
	return b->of_files;
}

static int fill(void *arg, uint64_t nr, struct sc_err *err)
{
	struct batch *b = arg;
	int rc;

	b->failed = b->nr;
	rc = rs_call_fill(&b->call, nr, err);
	b->of_files = rc < 0;
	return rc;
}

static int drain_extents(struct batch *b, const struct outs *outs, const unsigned char *bytes, struct sc_err *err)
{
	for (uint32_t i = 0; i < outs->nr; i++) {
		const struct rs_extent *e = &outs->out[i];

		b->failed = e->file;
		if (sc_pwrite_all(b->targets[e->file].fd, bytes + e->window, e->bytes, e->at) < 0)
			return sc_fail_sys(err, errno, "cannot write");
		if (tick(b, e->bytes))
			return sc_fail(err, SC_E_CANCELLED, "stopped");
		sc_metric_add(&gpu_bytes, e->bytes);
	}
	return 0;
}

static int drain(void *arg, uint64_t nr, struct sc_err *err)
{
	struct batch *b = arg;
	int rc = 0;

	for (uint32_t p = 0; rc == 0 && p < b->call.pool.peers; p++)
		rc = drain_extents(b, &b->slots[nr % RS_POOL_SLOTS][p], rs_call_window(&b->call, p, nr, RS_POOL_OUT),
				   err);
	b->of_files = rc < 0;
	return rc;
}

/* --- the conversation of a call --- */

static int start(struct batch *b, struct sc_err *err)
{
	struct rs_helper_options o = {.program = gpu.options.program, .pool = b->call.pool,
				      .net = b->how->joint ? gpu.options.net : NULL,
				      .idle_ms = gpu.options.idle_ms, .timeout_ms = gpu.options.timeout_ms};

	memcpy(o.devices, gpu.options.devices, sizeof(o.devices));
	return rs_helper_start(&o, tick_nothing, b, &gpu.helper, err);
}

static bool is_pool(const struct rs_pool *a, const struct rs_pool *b)
{
	return a->window_bytes == b->window_bytes && a->boxes_max == b->boxes_max && a->peers == b->peers &&
	       a->world == b->world && a->first == b->first;
}

/* Asks the helper that is there. */
static int ask(struct batch *b, const struct rs_wire_message *question, struct rs_wire_message *ret,
	       struct sc_err *err)
{
	int rc;

	b->call.h = gpu.helper;
	rc = rs_helper_say(b->call.h, question, err);
	/* its last word is there to be heard, also when nothing can be said any more */
	if (rc == 0 || b->call.h->wire.phase == RS_WIRE_BEGINNING || b->call.h->wire.phase == RS_WIRE_NAMING)
		rc = rs_helper_hear(b->call.h, tick_nothing, b, ret, err);
	return rc;
}

/* Asks a helper that fits the call.  One that has gone, as it was idle, or that is for other calls, makes room for
 * another. */
static int ask_one(struct batch *b, const struct rs_wire_message *question, struct rs_wire_message *ret,
		   struct sc_err *err)
{
	int rc = 0;

	*ret = rs_wire_message(RS_WIRE_BYE, 0);
	if (gpu.helper && is_pool(&gpu.helper->wire.pool, &b->call.pool))
		rc = ask(b, question, ret, err);
	if (rc < 0 || ret->kind != RS_WIRE_BYE)
		return rc;
	(void)rs_helper_end(sc_steal(&gpu.helper), gpu.options.stop_ms);
	rc = start(b, err);
	if (rc == 0)
		rc = ask(b, question, ret, err);
	if (rc == 0 && ret->kind == RS_WIRE_BYE)
		rc = sc_fail(err, SC_E_SYSTEM, "scalai-gpu ended before it was asked for anything");
	return rc;
}

static int begin(struct batch *b, struct sc_err *err)
{
	struct rs_wire_message m = rs_wire_message(RS_WIRE_BEGIN, 0), begun;

	if (b->how->joint)
		(void)snprintf(m.text, sizeof(m.text), "%s", b->how->joint->id);
	return ask_one(b, &m, &begun, err);
}

static int put_round(struct batch *b, const struct rs_round *round, struct sc_err *err)
{
	const uint64_t nr = b->call.h->wire.put;
	int rc = rs_call_put(&b->call, round, err);

	/* the round that had the slot before is drained */
	for (uint32_t p = 0; rc == 0 && p < b->call.pool.peers; p++) {
		const struct rs_share *share = &round->shares[b->call.pool.first + p];
		struct outs *outs = &b->slots[nr % RS_POOL_SLOTS][p];

		for (uint32_t i = 0; i < share->nr_out; i++)
			outs->out[i] = share->out[i];
		outs->nr = share->nr_out;
	}
	return rc;
}

/* Puts all rounds of the call; until the first one there is no need of a helper. */
static int put_rounds(struct batch *b, struct sc_err *err)
{
	const struct rs_round *round = NULL;
	bool begun = false;
	int rc;

	for (;;) {
		rc = rs_rounds_next(b->call.rounds, &round, err);
		if (rc == 0 && round && !begun)
			rc = begin(b, err);
		if (rc < 0 || !round)
			break;
		begun = true;
		rc = put_round(b, round, err);
		if (rc < 0)
			return rc;
	}
	if (rc == 0 && begun)
		rc = rs_call_say(&b->call, RS_WIRE_FINISH, 0, err);
	if (rc == 0 && begun)
		rc = rs_call_converse(&b->call, RS_WIRE_FINISHED, err);
	return rc;
}

/* --- a call --- */

static int tick_rest(void *arg, uint64_t bytes)
{
	return tick(arg, bytes);
}

/* Has the host write what no round wrote; asks it for each file, so that write-back of all begins. */
static int write_rest(struct batch *b, struct remote *r, struct rs_written *ret, struct sc_err *err)
{
	struct rs_write_options how = *b->how;
	const struct rs_extent *rest;
	struct {
		size_t nr, room;
		struct rs_range *at;
	} parts = {0};
	uint32_t nr_rest, next = 0;
	int rc = rs_rounds_rest(b->call.rounds, &rest, &nr_rest, err);

	how.tick = how.tick ? tick_rest : NULL;
	how.arg = b;
	for (size_t i = 0; rc == 0 && i < b->nr; i++) {
		uint64_t left = 0;

		parts.nr = 0;
		for (; rc == 0 && next < nr_rest && rest[next].file == i; next++) {
			left += rest[next].bytes;
			if (sc_vec_push(&parts, (struct rs_range){rest[next].at, rest[next].bytes}) < 0)
				rc = sc_nomem(err);
		}
		if (rc < 0)
			break;
		if (b->targets[i].fd < 0)
			continue;
		b->failed = i;
		ret->copied += b->targets[i].image->bytes - left;
		rc = rs_host_write_parts(r->host, &b->targets[i], parts.at, parts.nr, &how, ret, err);
		b->of_files = rc < 0;
	}
	sc_vec_done(&parts);
	return rc;
}

static int make_slots(struct batch *b, struct sc_err *err)
{
	const uint32_t nr = rs_pool_extents(&b->call.pool);

	for (unsigned i = 0; i < RS_POOL_SLOTS; i++)
		for (uint32_t p = 0; p < b->call.pool.peers; p++) {
			b->slots[i][p].out = sc_zalloc_array(nr, sizeof(*b->slots[i][p].out));
			if (!b->slots[i][p].out)
				return sc_nomem(err);
		}
	return 0;
}

static uint32_t reader_of(void *arg, const struct rs_place *place)
{
	const struct batch *b = arg;

	if (b->how->joint)
		return b->how->joint->reader(b->how->joint->arg, place);
	return rs_pool_deal(place->id, b->call.pool.peers);
}

/* Chooses the windows of the call.  Those of a joint call are the same on all nodes. */
static int choose_pool(struct batch *b, struct sc_err *err)
{
	const struct rs_gpu_options *o = &gpu.options;
	const struct rs_joint *j = b->how->joint;
	struct rs_pool *pool = &b->call.pool;

	rs_gpu_get(&gpu.options);
	if (!*o->program)
		return sc_fail(err, SC_E_UNSUPPORTED, "the folder of this program is not known (/proc/self/exe)");
	*pool = rs_gpu_pool(o);
	if (!pool->window_bytes)
		return sc_fail(err, SC_E_UNSUPPORTED, "gpu_memory=%" PRIu64 "M or gpu_pinned=%" PRIu64 "M is too "
			       "small for the buffers through which tensors go; give more",
			       o->device_bytes >> 20, o->pinned_bytes >> 20);
	if (o->window_bytes)
		pool->window_bytes = sc_min_u64(pool->window_bytes, o->window_bytes);
	if (!j)
		return 0;
	if (!*o->net || j->window_bytes > pool->window_bytes || !j->window_bytes || j->first > j->world ||
	    pool->peers > j->world - j->first || j->world > RS_POOL_WORLD_MAX)
		return sc_fail(err, SC_E_UNSUPPORTED, "its GPUs, windows or gpu_net= are other ones than it said");
	*pool = (struct rs_pool){j->window_bytes, j->boxes_max, pool->peers, j->world, j->first};
	return 0;
}

static int prepare(struct batch *b, struct sc_err *err)
{
	const struct rs_joint *j = b->how->joint;
	struct rs_rounds_options options;
	int rc = choose_pool(b, err);

	if (rc < 0)
		return rc;
	options = (struct rs_rounds_options){.window_bytes = b->call.pool.window_bytes,
					     .boxes_max = b->call.pool.boxes_max,
					     .run_bytes = j ? 0 : gpu.options.run_bytes,
					     .peers = rs_pool_world(&b->call.pool), .writers = b->writers,
					     .reader = reader_of, .arg = b};
	for (size_t i = 0; i < b->nr; i++) {
		b->images[i] = b->targets[i].image;
		b->writers[i] = j ? j->writers[i] : (uint32_t)i % b->call.pool.peers;
	}
	rc = make_slots(b, err);
	if (rc == 0)
		rc = rs_rounds_new(b->images, (uint32_t)b->nr, &options, &b->call.rounds, err);
	return rc;
}

static void end(struct batch *b)
{
	rs_rounds_free(b->call.rounds);
	rs_fds_close(&b->call.fds);
	for (unsigned i = 0; i < RS_POOL_SLOTS; i++)
		for (uint32_t p = 0; p < b->call.pool.peers; p++)
			sc_sys.release(b->slots[i][p].out);
}

/* Writes the files by GPU, under gpu.busy.  After an error ends the helper, which in the midst of a call cannot be used
 * for another one. */
static int write_by_gpu(struct batch *b, struct remote *r, struct rs_written *ret, struct sc_err *err)
{
	int rc = prepare(b, err);

	if (rc == 0)
		rc = put_rounds(b, err);
	if (rc < 0)
		(void)rs_helper_end(sc_steal(&gpu.helper), 0);
	else
		rc = write_rest(b, r, ret, err);
	if (rc == 0 && b->call.h)
		rs_gpu_note_success(b->call.h->device);
	end(b);
	return rc;
}

/* Tells the caller of bytes, but for those that are written again, of which the caller was told before. */
static int tick_again(void *arg, uint64_t bytes)
{
	struct batch *b = arg;
	const uint64_t again = sc_min_u64(bytes, b->ticked);

	b->ticked -= again;
	return b->how->tick(b->how->arg, bytes - again);
}

static int write_by_host(struct batch *b, struct remote *r, struct rs_written *ret, struct sc_err *err)
{
	struct rs_write_options how = *b->how;
	struct rs_written one;
	int rc = 0;

	how.tick = how.tick ? tick_again : NULL;
	how.arg = b;
	*ret = (struct rs_written){.failed = b->nr};
	for (size_t i = 0; rc == 0 && i < b->nr; i++) {
		if (sc_sys.ftruncate(b->targets[i].fd, 0) < 0)
			rc = sc_fail_sys(err, errno, "cannot begin anew");
		if (rc == 0)
			rc = rs_engine_write(r->host, &b->targets[i], 1, &how, &one, err);
		if (rc < 0) {
			ret->failed = i;
			break;
		}
		ret->cloned += one.cloned;
		ret->copied += one.copied;
	}
	return rc;
}

static int remote_write(struct rs_engine *e, const struct rs_target *targets, size_t nr,
			const struct rs_write_options *how, struct rs_written *ret, struct sc_err *err)
{
	struct remote *r = (struct remote *)e;
	struct batch b = {.targets = targets, .how = how, .nr = nr, .failed = nr,
			  .call = {.tick = tick_nothing, .fill = fill, .drain = drain, .arg = &b}};
	int rc = 0;

	if (!how->clones_only) { /* a GPU clones nothing */
		(void)pthread_mutex_lock(&gpu.busy);
		rc = write_by_gpu(&b, r, ret, err);
		(void)pthread_mutex_unlock(&gpu.busy);
		if (rc == 0)
			return 0;
		ret->failed = b.failed;
		if (b.of_files)
			return rc;
		if (how->joint) /* whose failure it was nobody knows */
			return err->code = SC_E_UNSUPPORTED;
		rs_gpu_note_failure(err);
	}
	return write_by_host(&b, r, ret, err);
}

int rs_gpu_joint_id(const struct rs_write_options *how, char ret[RS_POOL_ID_DIGITS + 1], struct sc_err *err)
{
	const struct rs_wire_message m = rs_wire_message(RS_WIRE_ID, 0);
	struct batch b = {.how = how};
	struct rs_wire_message named;
	int rc;

	(void)pthread_mutex_lock(&gpu.busy);
	rc = choose_pool(&b, err);
	if (rc == 0)
		rc = ask_one(&b, &m, &named, err);
	if (rc < 0)
		(void)rs_helper_end(sc_steal(&gpu.helper), 0);
	else
		(void)snprintf(ret, RS_POOL_ID_DIGITS + 1, "%s", named.text);
	(void)pthread_mutex_unlock(&gpu.busy);
	return rc;
}

/* --- the kind --- */

static int remote_open(const struct meta_store *store, uint64_t budget, struct rs_engine **ret, struct sc_err *err)
{
	struct remote *r = sc_zalloc(sizeof(*r));
	int rc = r ? rs_engine_open(rs_engines[0], store, budget, &r->host, err) : sc_nomem(err);

	if (rc < 0)
		sc_sys.release(r);
	else
		*ret = &r->engine;
	return rc;
}

static void remote_close(struct rs_engine *e)
{
	struct remote *r = (struct remote *)e;

	rs_engine_close(r->host);
	sc_sys.release(r);
}

const struct rs_engine_ops rs_engine_gpu = {
	.name = "gpu",
	.threads = 1,
	.targets = TARGETS,
	.joins = true,
	.probe = rs_gpu_probe,
	.open = remote_open,
	.close = remote_close,
	.write = remote_write,
};

__attribute__((constructor)) static void add_kind(void)
{
	rs_engine_add(&rs_engine_gpu);
}
