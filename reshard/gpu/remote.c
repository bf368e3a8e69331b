/* SPDX-License-Identifier: Apache-2.0 */
#include "reshard/gpu/remote.h"

#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "meta/base/log.h"
#include "meta/base/metric.h"
#include "reshard/engine/fds.h"
#include "reshard/engine/host.h"
#include "reshard/gpu/helper.h"
#include "reshard/rounds/rounds.h"

#define TARGETS 256
#define STOP_MS 2000

SC_METRIC(gpu_bytes, SC_COUNTER, "scalai_gpu_bytes_total", "Bytes of rank files that a GPU has put together.");
SC_METRIC(gpu_failures, SC_COUNTER, "scalai_gpu_failures_total", "Calls of the engine gpu that the host did again.");

static struct {
	pthread_mutex_t busy;		/* of a call, and of `helper` and `options` */
	struct rs_helper *helper;	/* NULL: none runs */
	struct rs_gpu_options options;
	pthread_mutex_t said;		/* short; of what follows */
	bool off;
	char program[sizeof(((struct rs_gpu_options *)0)->program)];	/* empty: not known */
	int64_t paused_until_ns;
	struct rs_gpu_state state;
} gpu = {.busy = PTHREAD_MUTEX_INITIALIZER, .said = PTHREAD_MUTEX_INITIALIZER};

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
	struct rs_rounds *rounds;
	struct rs_helper *h;
	struct rs_fds fds;
	struct rs_pool pool;
	const struct rs_round *round;	/* that is being put */
	struct outs {
		struct rs_extent *out;	/* of a round that is not drained; room for rs_pool_extents() */
		uint32_t nr;
	} slots[RS_POOL_SLOTS][RS_POOL_PEERS_MAX];
	uint64_t ticked;		/* bytes that `tick` was told */
	size_t nr, failed;		/* targets; the one that an error is about; nr: none */
	bool of_files;			/* an error is about files or the caller, and none of the GPU's */
};

/* --- what all calls share --- */

struct rs_gpu_options rs_gpu_options_default(void)
{
	return (struct rs_gpu_options){.nr_devices = 1, .device_bytes = 512u << 20, .pinned_bytes = 512u << 20,
				       .timeout_ms = 60000, .idle_ms = 30000, .boxes_max = 4096,
				       .run_bytes = RS_FDS_READ_BYTES_MIN};
}

/* `scalai-gpu` in the folder of this program. */
static void program_beside(char *ret, size_t bytes)
{
	static const char name[] = "scalai-gpu";
	ssize_t n = readlink("/proc/self/exe", ret, bytes - 1);
	char *slash;

	ret[n > 0 ? n : 0] = 0;
	slash = strrchr(ret, '/');
	if (slash && (size_t)(slash + 1 - ret) + sizeof(name) <= bytes)
		memcpy(slash + 1, name, sizeof(name));
	else
		*ret = 0;
}

static void take_options(const struct rs_gpu_options *options)
{
	gpu.options = *options;
	if (!*options->program)
		program_beside(gpu.options.program, sizeof(gpu.options.program));
	(void)pthread_mutex_lock(&gpu.said);
	gpu.off = options->off;
	memcpy(gpu.program, gpu.options.program, sizeof(gpu.program));
	gpu.state = (struct rs_gpu_state){0};
	gpu.paused_until_ns = 0;
	(void)pthread_mutex_unlock(&gpu.said);
}

void rs_gpu_configure(const struct rs_gpu_options *options)
{
	(void)rs_gpu_stop();
	(void)pthread_mutex_lock(&gpu.busy);
	take_options(options);
	(void)pthread_mutex_unlock(&gpu.busy);
}

bool rs_gpu_stop(void)
{
	bool well;

	(void)pthread_mutex_lock(&gpu.busy);
	well = rs_helper_end(sc_steal(&gpu.helper), STOP_MS);
	(void)pthread_mutex_unlock(&gpu.busy);
	return well;
}

void rs_gpu_forgive(void)
{
	(void)pthread_mutex_lock(&gpu.said);
	gpu.state.failures = 0;
	gpu.state.why[0] = 0;
	gpu.paused_until_ns = 0;
	(void)pthread_mutex_unlock(&gpu.said);
}

void rs_gpu_state(struct rs_gpu_state *ret)
{
	(void)pthread_mutex_lock(&gpu.said);
	*ret = gpu.state;
	(void)pthread_mutex_unlock(&gpu.said);
}

static int probe(struct sc_err *err)
{
	int rc = 0;

	(void)pthread_mutex_lock(&gpu.said);
	if (gpu.off)
		rc = sc_fail(err, SC_E_UNSUPPORTED, "the mount has gpu=off");
	else if (gpu.state.failures >= RS_GPU_FAILURES_MAX && sc_now_ns() < gpu.paused_until_ns)
		rc = sc_fail(err, SC_E_UNSUPPORTED, "%s", gpu.state.why);
	else if (*gpu.program && access(gpu.program, X_OK) < 0)
		rc = sc_fail(err, SC_E_UNSUPPORTED, "there is no program '%s' (%s)", gpu.program, strerror(errno));
	(void)pthread_mutex_unlock(&gpu.said);
	return rc;
}

static void note_success(const char *device)
{
	(void)pthread_mutex_lock(&gpu.said);
	gpu.state.by_gpu++;
	gpu.state.failures = 0;
	gpu.state.why[0] = 0;
	(void)snprintf(gpu.state.device, sizeof(gpu.state.device), "%s", device);
	(void)pthread_mutex_unlock(&gpu.said);
}

static void note_failure(const struct sc_err *err)
{
	unsigned failures;

	(void)pthread_mutex_lock(&gpu.said);
	gpu.state.by_host++;
	failures = ++gpu.state.failures;
	(void)snprintf(gpu.state.why, sizeof(gpu.state.why), "%s", err->msg);
	gpu.paused_until_ns = sc_now_ns() + (int64_t)RS_GPU_PAUSE_S * 1000000000;
	(void)pthread_mutex_unlock(&gpu.said);
	sc_metric_add(&gpu_failures, 1);
	sc_log(SC_LOG_WARN, "engine gpu: %s, continuing: the host writes these files%s", err->msg,
	       failures >= RS_GPU_FAILURES_MAX ? ", and all for an hour, or until a job's `config` is written" : "");
}

/* --- files --- */

static int tick(struct batch *b, uint64_t bytes)
{
	b->ticked += bytes;
	return b->how->tick ? b->how->tick(b->how->arg, bytes) : 0;
}

/* While the helper is waited for. */
static int tick_nothing(void *arg)
{
	struct batch *b = arg;

	b->failed = b->nr;
	b->of_files = tick(b, 0) != 0;
	return b->of_files;
}

static int fill_extent(struct batch *b, struct rs_bytes *from, const struct rs_extent *e, unsigned char *to,
		       struct sc_err *err)
{
	int fd, rc;

	if (e->bytes < RS_FDS_READ_BYTES_MIN)
		return rs_bytes_read(from, e->at, e->bytes, to, err);
	rc = rs_fds_get(&b->fds, from, &fd, err);
	if (rc == 0)
		rc = rs_bytes_need(from, e->at, e->bytes, NULL, err);
	if (rc < 0)
		return rc;
	rc = rs_fd_read(fd, from->blob, e->at, e->bytes, to, err);
	rs_bytes_release(from, e->at, e->bytes);
	return rc;
}

static unsigned char *window(const struct batch *b, uint32_t peer, uint64_t nr, enum rs_pool_part part)
{
	return b->h->memory + rs_pool_place(&b->pool, peer, nr % RS_POOL_SLOTS, part);
}

static int fill_share(struct batch *b, const struct rs_share *share, unsigned char *in, struct sc_err *err)
{
	uint32_t nr_files;
	const struct rs_rounds_file *files = rs_rounds_files(b->rounds, &nr_files);
	int rc = 0;

	for (uint32_t i = 0; rc == 0 && i < share->nr_in; i++)
		rc = fill_extent(b, files[share->in[i].file].bytes, &share->in[i], in + share->in[i].window, err);
	return rc;
}

static int fill(struct batch *b, uint64_t nr, struct sc_err *err)
{
	int rc = 0;

	b->failed = b->nr;
	for (uint32_t p = 0; rc == 0 && p < b->pool.peers; p++)
		rc = fill_share(b, &b->round->shares[p], window(b, p, nr, RS_POOL_IN), err);
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

static int drain(struct batch *b, uint64_t nr, struct sc_err *err)
{
	int rc = 0;

	for (uint32_t p = 0; rc == 0 && p < b->pool.peers; p++)
		rc = drain_extents(b, &b->slots[nr % RS_POOL_SLOTS][p], window(b, p, nr, RS_POOL_OUT), err);
	b->of_files = rc < 0;
	return rc;
}

/* --- the conversation of a call --- */

static int say(struct batch *b, enum rs_wire_kind kind, uint64_t nr, struct sc_err *err)
{
	const struct rs_wire_message m = rs_wire_message(kind, nr);

	return rs_helper_say(b->h, &m, err);
}

/* Does what the helper asks, until it says `last`. */
static int converse(struct batch *b, enum rs_wire_kind last, struct sc_err *err)
{
	for (;;) {
		struct rs_wire_message m;
		int rc = rs_helper_hear(b->h, tick_nothing, b, &m, err);

		if (rc < 0 || m.kind == last)
			return rc;
		/* it is no other: the conversation is checked */
		rc = m.kind == RS_WIRE_FILL ? fill(b, m.nr, err) : drain(b, m.nr, err);
		if (rc == 0)
			rc = say(b, m.kind == RS_WIRE_FILL ? RS_WIRE_FILLED : RS_WIRE_DRAINED, m.nr, err);
		if (rc < 0)
			return rc;
	}
}

static int start(struct batch *b, struct sc_err *err)
{
	struct rs_helper_options o = {.program = gpu.options.program, .pool = b->pool,
				      .idle_ms = gpu.options.idle_ms, .timeout_ms = gpu.options.timeout_ms};

	memcpy(o.devices, gpu.options.devices, sizeof(o.devices));
	return rs_helper_start(&o, tick_nothing, b, &gpu.helper, err);
}

/* A helper that went, because it was idle, makes room for another. */
static int begin(struct batch *b, struct sc_err *err)
{
	struct rs_wire_message m = {.kind = RS_WIRE_BYE};
	int rc = 0;

	b->h = gpu.helper;
	if (b->h)
		rc = say(b, RS_WIRE_BEGIN, 0, err);
	/* its last word is there to be heard, also when nothing can be said any more */
	if (b->h && (rc == 0 || b->h->wire.phase == RS_WIRE_BEGINNING))
		rc = rs_helper_hear(b->h, tick_nothing, b, &m, err);
	if (rc < 0 || m.kind != RS_WIRE_BYE)
		return rc;
	(void)rs_helper_end(sc_steal(&gpu.helper), STOP_MS);
	rc = start(b, err);
	if (rc < 0)
		return rc;
	b->h = gpu.helper;
	rc = say(b, RS_WIRE_BEGIN, 0, err);
	if (rc == 0)
		rc = rs_helper_hear(b->h, tick_nothing, b, &m, err);
	if (rc == 0 && m.kind == RS_WIRE_BYE)
		rc = sc_fail(err, SC_E_SYSTEM, "scalai-gpu ended before it was asked for anything");
	return rc;
}

static int put_round(struct batch *b, const struct rs_round *round, struct sc_err *err)
{
	const uint64_t nr = b->h->wire.put;
	int rc;

	b->round = round;
	rs_wire_put_plan(&b->pool, b->h->memory, round);
	rc = say(b, RS_WIRE_ROUND, nr, err);
	if (rc == 0)
		rc = converse(b, RS_WIRE_TAKEN, err);
	/* the round that had the slot before is drained */
	for (uint32_t p = 0; rc == 0 && p < round->nr; p++) {
		const struct rs_share *share = &round->shares[p];
		struct outs *outs = &b->slots[nr % RS_POOL_SLOTS][p];

		for (uint32_t i = 0; i < share->nr_out; i++)
			outs->out[i] = share->out[i];
		outs->nr = share->nr_out;
	}
	return rc;
}

/* Until the first round there is no need of a helper. */
static int put_rounds(struct batch *b, struct sc_err *err)
{
	const struct rs_round *round = NULL;
	bool begun = false;
	int rc;

	for (;;) {
		rc = rs_rounds_next(b->rounds, &round, err);
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
		rc = say(b, RS_WIRE_FINISH, 0, err);
	if (rc == 0 && begun)
		rc = converse(b, RS_WIRE_FINISHED, err);
	return rc;
}

/* --- a call --- */

static int tick_rest(void *arg, uint64_t bytes)
{
	return tick(arg, bytes);
}

/* What no round wrote, by the host; of each file, so that write-back of all begins. */
static int write_rest(struct batch *b, struct remote *r, struct rs_written *ret, struct sc_err *err)
{
	struct rs_write_options how = *b->how;
	const struct rs_extent *rest;
	struct {
		size_t nr, room;
		struct rs_range *at;
	} parts = {0};
	uint32_t nr_rest, next = 0;
	int rc = rs_rounds_rest(b->rounds, &rest, &nr_rest, err);

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
	for (unsigned i = 0; i < RS_POOL_SLOTS; i++)
		for (uint32_t p = 0; p < b->pool.peers; p++) {
			b->slots[i][p].out = sc_zalloc_array(rs_pool_extents(&b->pool), sizeof(*b->slots[i][p].out));
			if (!b->slots[i][p].out)
				return sc_nomem(err);
		}
	return 0;
}

/* Deals files of sources to the peers; numbers of blobs may have a step in common. */
static uint32_t reader_of(void *arg, const struct rs_place *place)
{
	const struct batch *b = arg;

	return (uint32_t)((place->id * 0x9e3779b97f4a7c15u) >> 32) % b->pool.peers;
}

static int prepare(struct batch *b, struct sc_err *err)
{
	const struct rs_gpu_options *o = &gpu.options;
	struct rs_rounds_options options;
	int rc;

	if (!*o->program)
		return sc_fail(err, SC_E_UNSUPPORTED, "the folder of this program is not known (/proc/self/exe)");
	b->pool = (struct rs_pool){.boxes_max = o->boxes_max, .peers = o->nr_devices};
	b->pool.window_bytes = rs_pool_window(o->device_bytes, o->pinned_bytes, o->boxes_max, o->nr_devices);
	if (!b->pool.window_bytes)
		return sc_fail(err, SC_E_UNSUPPORTED, "gpu_memory=%" PRIu64 "M or gpu_pinned=%" PRIu64 "M has no room "
			       "for windows", o->device_bytes >> 20, o->pinned_bytes >> 20);
	if (o->window_bytes)
		b->pool.window_bytes = sc_min_u64(b->pool.window_bytes, o->window_bytes);
	options = (struct rs_rounds_options){.window_bytes = b->pool.window_bytes, .boxes_max = b->pool.boxes_max,
					     .run_bytes = o->run_bytes, .peers = b->pool.peers, .writers = b->writers,
					     .reader = reader_of, .arg = b};
	for (size_t i = 0; i < b->nr; i++) {
		b->images[i] = b->targets[i].image;
		b->writers[i] = (uint32_t)i % b->pool.peers;
	}
	rc = make_slots(b, err);
	if (rc == 0)
		rc = rs_rounds_new(b->images, (uint32_t)b->nr, &options, &b->rounds, err);
	return rc;
}

static void end(struct batch *b)
{
	rs_rounds_free(b->rounds);
	rs_fds_close(&b->fds);
	for (unsigned i = 0; i < RS_POOL_SLOTS; i++)
		for (uint32_t p = 0; p < b->pool.peers; p++)
			sc_sys.release(b->slots[i][p].out);
}

/* Under gpu.busy.  A helper that is in the midst of a call cannot be used for another one. */
static int write_by_gpu(struct batch *b, struct remote *r, struct rs_written *ret, struct sc_err *err)
{
	int rc;

	if (!*gpu.options.program && !gpu.options.boxes_max) { /* nobody has configured anything */
		const struct rs_gpu_options options = rs_gpu_options_default();

		take_options(&options);
	}
	rc = prepare(b, err);
	if (rc == 0)
		rc = put_rounds(b, err);
	if (rc < 0)
		(void)rs_helper_end(sc_steal(&gpu.helper), 0);
	else
		rc = write_rest(b, r, ret, err);
	if (rc == 0 && b->h)
		note_success(b->h->device);
	end(b);
	return rc;
}

/* Of what is written again, the caller was told before. */
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
	struct batch b = {.targets = targets, .how = how, .nr = nr, .failed = nr};
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
		note_failure(err);
	}
	return write_by_host(&b, r, ret, err);
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
	.probe = probe,
	.open = remote_open,
	.close = remote_close,
	.write = remote_write,
};

__attribute__((constructor)) static void add_kind(void)
{
	rs_engine_add(&rs_engine_gpu);
}
