/* SPDX-License-Identifier: Apache-2.0 */
#include "reshard/engine/loads/loads.h"

#include <errno.h>
#include <inttypes.h>
#include <pthread.h>
#include <stdio.h>
#include <string.h>

#include "meta/base/log.h"
#include "meta/base/text.h"
#include "meta/base/thread.h"
#include "meta/base/turns.h"
#include "reshard/engine/gpu/call.h"
#include "reshard/engine/gpu/channel.h"
#include "reshard/engine/gpu/remote.h"

#define PIECES 256		/* of a round that the host reads */
#define BLOCK_BYTES (2ull << 20) /* a buffer has a multiple of so many, for CUDA's sake (lane.c) */
#define STOP_MS 2000
#define CLOSES_NS INT64_C(5000000000)
#define TURN_NS INT64_C(100000000)

struct rs_load {
	struct loader *loader;
	struct rs_load_file file;
	rs_load_done_fn *done;
	void *arg;
	bool cancelled;		/* atomic */
	bool ends;		/* it is in the queue to be ended */
	uint64_t buffer, life;	/* of the helper; 0: it has none */
	char handle[RS_POOL_HANDLE_BYTES];
	struct rs_load *next;	/* in the queue */
};

/* The loader of a GPU.  `lock` protects the fields that other threads look at; the loader's thread alone changes
 * `h`. */
static struct loader {
	pthread_mutex_t lock;
	pthread_cond_t wake;
	struct sc_thread thread;
	bool stop;
	struct rs_load *first, **end;
	struct rs_helper *h;
	uint64_t life;		/* helpers so far */
	/* of the thread alone: */
	uint8_t device;
	uint64_t taken;		/* bytes */
	struct rs_gpu_options options;	/* of the load that is begun */
} loaders[RS_POOL_PEERS_MAX];

static pthread_mutex_t starting = PTHREAD_MUTEX_INITIALIZER;

/* --- what there is room for --- */

/* Gives the bytes of a budget that the engine's windows leave. */
static uint64_t beside_engine(const struct rs_gpu_options *o, bool pinned)
{
	struct rs_pool pool = rs_gpu_pool(o);
	const uint64_t have = pinned ? o->pinned_bytes : o->device_bytes;
	uint64_t bytes;

	pool.world = *o->net ? RS_POOL_WORLD_MAX : 0;
	if (!pool.window_bytes)
		return have; /* it has none */
	bytes = pinned ? rs_pool_bytes(&pool) : rs_pool_device_bytes(&pool);
	return have - sc_min_u64(have, bytes);
}

static uint64_t room_of(uint64_t bytes)
{
	return bytes > UINT64_MAX - BLOCK_BYTES ? UINT64_MAX : (bytes + BLOCK_BYTES - 1) / BLOCK_BYTES * BLOCK_BYTES;
}

static int check_room(const struct loader *l, uint64_t bytes, struct sc_err *err)
{
	const struct rs_gpu_options *o = &l->options;
	const struct rs_pool pool = rs_gpu_load_pool(o);
	const uint64_t pinned = o->nr_devices * rs_pool_bytes(&pool), windows = rs_pool_device_bytes(&pool);
	const uint64_t have = beside_engine(o, false);

	if (beside_engine(o, true) < pinned)
		return sc_fail(err, SC_E_NO_MEMORY, "gpu_pinned=%" PRIu64 "M has no room for the windows of loads "
			       "beside those of engine=gpu: mount with %" PRIu64 "M more", o->pinned_bytes >> 20,
			       ((pinned - beside_engine(o, true)) >> 20) + 1);
	if (have < windows || have - windows < l->taken || have - windows - l->taken < room_of(bytes))
		return sc_fail(err, SC_E_NO_MEMORY, "gpu_memory=%" PRIu64 "M of GPU %u has no room for a file of %"
			       PRIu64 " bytes: windows need %" PRIu64 "M of it, open files of .gpu %" PRIu64 "M; close "
			       "some, or mount with more", o->device_bytes >> 20, l->device, bytes,
			       (o->device_bytes - have + windows) >> 20, l->taken >> 20);
	return 0;
}

/* --- the helper --- */

static void end_helper(struct loader *l, unsigned wait_ms)
{
	struct rs_helper *h;

	(void)pthread_mutex_lock(&l->lock);
	h = sc_steal(&l->h);
	(void)pthread_mutex_unlock(&l->lock);
	l->taken = 0;
	(void)rs_helper_end(h, wait_ms);
}

static int need_helper(struct loader *l, struct sc_err *err)
{
	/* it is this side that ends one that is idle */
	struct rs_helper_options o = {.program = l->options.program, .pool = rs_gpu_load_pool(&l->options),
				      .devices = {l->device}, .idle_ms = INT32_MAX,
				      .timeout_ms = l->options.timeout_ms};
	struct rs_helper *h = NULL;
	int rc;

	if (l->h && rs_channel_is_closed(l->h->fd, 0))
		end_helper(l, 0);
	if (l->h)
		return 0;
	rc = rs_helper_start(&o, NULL, NULL, &h, err);
	if (rc < 0)
		return rc;
	(void)pthread_mutex_lock(&l->lock);
	l->h = h;
	l->life++;
	(void)pthread_mutex_unlock(&l->lock);
	return 0;
}

static int ask(struct loader *l, enum rs_wire_kind kind, uint64_t nr, uint64_t bytes, struct rs_wire_message *ret,
	       struct sc_err *err)
{
	struct rs_wire_message m = rs_wire_message(kind, nr);
	int rc;

	m.window_bytes = bytes;
	rc = rs_helper_say(l->h, &m, err);
	return rc < 0 ? rc : rs_helper_hear(l->h, NULL, NULL, ret, err);
}

/* --- a pass --- */

struct pass {
	struct rs_call call;
	struct rs_crew crew;
	const struct rs_load *load;
	bool by_host;		/* the round that is being put has what no other one writes */
	struct rs_share share;
	uint32_t nr;
	struct rs_extent extents[PIECES];
	struct rs_copy copies[PIECES];
};

static int read_part(const void *file, uint64_t at, uint64_t bytes, unsigned char *to, struct sc_err *err)
{
	const struct rs_load_file *f = file;

	return f->image ? rs_image_fetch(f->image, at, bytes, to, err) : rs_fd_read(f->fd, 0, at, bytes, to, err);
}

static int read_piece(struct pass *p, const struct rs_extent *e, unsigned char *to, struct sc_err *err)
{
	const struct rs_load_file *f = &p->load->file;

	if (f->image)
		rs_image_reads(f->image, e->at, e->bytes); /* what comes from another node is asked for ahead */
	return rs_crew_read(&p->crew, read_part, f, e->at, e->bytes, to, err);
}

static int fill(void *arg, uint64_t nr, struct sc_err *err)
{
	struct pass *p = arg;
	unsigned char *in = rs_call_window(&p->call, 0, nr, RS_POOL_IN);
	int rc = 0;

	if (!p->by_host)
		return rs_call_fill(&p->call, nr, err);
	for (uint32_t i = 0; rc == 0 && i < p->nr; i++)
		rc = read_piece(p, &p->extents[i], in + p->extents[i].window, err);
	return rc;
}

static bool is_cancelled(const struct pass *p)
{
	return __atomic_load_n(&p->load->cancelled, __ATOMIC_ACQUIRE);
}

static int put_pieces(struct pass *p, struct sc_err *err)
{
	const struct rs_round round = {1, &p->share};
	struct rs_part none = {0};
	int rc;

	if (!p->nr || is_cancelled(p))
		return 0;
	p->share.in = p->share.out = p->extents;
	p->share.copies = p->copies;
	p->share.sends = p->share.recvs = &none;
	p->share.nr_in = p->share.nr_out = p->share.nr_copies = p->nr;
	p->by_host = true;
	rc = rs_call_put(&p->call, &round, err);
	p->share = (struct rs_share){0};
	p->nr = 0;
	return rc;
}

/* Adds bytes of the file that go through a window as they are: into it and out of it at the same place. */
static int add_piece(struct pass *p, uint64_t at, uint64_t bytes, struct sc_err *err)
{
	while (bytes) {
		const uint64_t place = (p->share.in_bytes + 15) / 16 * 16 + at % 16, end = p->call.pool.window_bytes;
		const uint64_t n = place < end ? sc_min_u64(bytes, end - place) : 0;
		int rc;

		if (!n || p->nr == sc_min_u64(PIECES, p->call.pool.boxes_max)) {
			rc = put_pieces(p, err);
			if (rc < 0 || is_cancelled(p))
				return rc;
			continue;
		}
		p->extents[p->nr] = (struct rs_extent){.at = at, .bytes = n, .window = place};
		p->copies[p->nr++] = (struct rs_copy){.from = place, .to = place, .run = n};
		p->share.in_bytes = p->share.out_bytes = place + n;
		at += n;
		bytes -= n;
	}
	return 0;
}

static int put_image(struct pass *p, struct sc_err *err)
{
	const struct rs_rounds_options o = {.window_bytes = p->call.pool.window_bytes,
					    .boxes_max = p->call.pool.boxes_max, .peers = 1};
	const struct rs_round *round;
	const struct rs_extent *rest;
	uint32_t nr;
	int rc = rs_rounds_new(&p->load->file.image, 1, &o, &p->call.rounds, err);

	while (rc == 0 && !is_cancelled(p)) {
		rc = rs_rounds_next(p->call.rounds, &round, err);
		if (rc < 0 || !round)
			break;
		rc = rs_call_put(&p->call, round, err);
	}
	if (rc < 0 || is_cancelled(p))
		return rc;
	rc = rs_rounds_rest(p->call.rounds, &rest, &nr, err);
	for (uint32_t i = 0; rc == 0 && !is_cancelled(p) && i < nr; i++)
		rc = add_piece(p, rest[i].at, rest[i].bytes, err);
	return rc;
}

/* Sends a file to the helper.  A load that is cancelled ends its pass, too, as the helper has other files.  A file that
 * is a blob as it is, here or on another node, goes in pieces: rounds would copy nothing of it. */
static int put(struct pass *p, struct sc_err *err)
{
	const struct rs_load_file *f = &p->load->file;
	struct rs_wire_message m;
	int rc = ask(p->load->loader, RS_WIRE_BEGIN, p->load->buffer, 0, &m, err);

	if (rc == 0)
		rc = f->image && !f->image->same_as ? put_image(p, err) : add_piece(p, 0, f->bytes, err);
	if (rc == 0)
		rc = put_pieces(p, err);
	if (rc == 0)
		rc = rs_call_say(&p->call, RS_WIRE_FINISH, 0, err);
	if (rc == 0)
		rc = rs_call_converse(&p->call, RS_WIRE_FINISHED, err);
	return rc;
}

static int run_pass(struct rs_load *load, struct sc_err *err)
{
	struct loader *l = load->loader;
	struct pass *p = sc_zalloc(sizeof(*p));
	int rc;

	if (!p)
		return sc_nomem(err);
	p->load = load;
	p->call = (struct rs_call){.h = l->h, .pool = l->h->wire.pool, .crew = &p->crew, .fill = fill, .arg = p};
	rc = put(p, err);
	rs_rounds_free(p->call.rounds);
	rs_fds_close(&p->call.fds);
	rs_crew_end(&p->crew);
	sc_sys.release(p);
	return rc;
}

/* --- a load --- */

/* Tells whether a text is a handle.  The helper's words are data: they are checked before they are passed on. */
static bool is_handle(const char *text)
{
	const size_t address = strspn(text, "0123456789abcdefABCDEF:.");
	const char *hex = text + address + 1;

	return address && address < 32 && text[address] == ' ' && *hex && !hex[strspn(hex, "0123456789abcdef")] &&
	       strlen(text) < RS_POOL_HANDLE_BYTES;
}

static int take_buffer(struct rs_load *load, struct sc_err *err)
{
	struct loader *l = load->loader;
	const uint64_t have = l->h->wire.buffers;
	struct rs_wire_message m;
	uint64_t nr = 1;
	int rc;

	while (nr <= RS_POOL_LOADS_MAX && have >> (nr - 1) & 1)
		nr++;
	if (nr > RS_POOL_LOADS_MAX)
		return sc_fail(err, SC_E_NO_MEMORY, "GPU %u has %d open files of .gpu, which is as many as it may "
			       "have; close some", l->device, RS_POOL_LOADS_MAX);
	rc = ask(l, RS_WIRE_LOAD, nr, load->file.bytes, &m, err);
	if (rc == 0 && m.kind == RS_WIRE_REFUSED)
		return sc_fail(err, SC_E_NO_MEMORY, "%s", m.text);
	if (rc == 0 && !is_handle(m.text))
		rc = sc_fail(err, SC_E_SYSTEM, "scalai-gpu has given no handle of memory");
	if (rc < 0) {
		end_helper(l, 0);
		return rc;
	}
	(void)snprintf(load->handle, sizeof(load->handle), "%s", m.text);
	load->buffer = nr;
	load->life = l->life;
	l->taken += room_of(load->file.bytes);
	return 0;
}

static void give_buffer(struct rs_load *load)
{
	struct loader *l = load->loader;
	struct rs_wire_message m;
	struct sc_err err;

	if (!load->buffer || !l->h || load->life != l->life)
		return;
	if (ask(l, RS_WIRE_FREE, load->buffer, 0, &m, &err) < 0) {
		sc_log(SC_LOG_WARN, "GPU %u: %s: files that it had are lost", l->device, err.msg);
		end_helper(l, 0);
	} else {
		l->taken -= room_of(load->file.bytes);
	}
	load->buffer = 0;
}

static int cancelled(struct sc_err *err)
{
	return sc_fail(err, SC_E_CANCELLED, "the load was given up");
}

static int load_file(struct rs_load *load, struct sc_err *err)
{
	struct loader *l = load->loader;
	int rc = rs_gpu_check(&l->options, err);

	if (rc == 0 && __atomic_load_n(&load->cancelled, __ATOMIC_ACQUIRE))
		rc = cancelled(err);
	if (rc == 0 && !load->file.bytes)
		rc = sc_fail(err, SC_E_UNSUPPORTED, "the file is empty: there is nothing to load");
	if (rc == 0)
		rc = check_room(l, load->file.bytes, err);
	if (rc == 0)
		rc = need_helper(l, err);
	if (rc == 0)
		rc = take_buffer(load, err);
	if (rc < 0)
		return rc;
	rc = run_pass(load, err);
	if (rc < 0) /* it is in the midst of the pass */
		end_helper(l, 0);
	else if (__atomic_load_n(&load->cancelled, __ATOMIC_ACQUIRE))
		rc = cancelled(err);
	if (rc < 0)
		give_buffer(load);
	return rc;
}

/* --- the thread --- */

/* Waits for the next load; NULL: the loader is to stop, and all loads are done. */
static struct rs_load *next_load(struct loader *l)
{
	struct rs_load *load;

	(void)pthread_mutex_lock(&l->lock);
	while (!l->first && !l->stop) {
		const int64_t until = sc_now_ns() + (int64_t)l->options.idle_ms * 1000000;

		if (!l->h || l->h->wire.buffers) {
			(void)pthread_cond_wait(&l->wake, &l->lock);
		} else if (sc_sys.wait_until(&l->wake, &l->lock, until) == ETIMEDOUT && !l->first) {
			(void)pthread_mutex_unlock(&l->lock);
			end_helper(l, STOP_MS);
			(void)pthread_mutex_lock(&l->lock);
		}
	}
	load = l->first;
	if (load)
		l->first = load->next;
	if (!l->first)
		l->end = &l->first;
	(void)pthread_mutex_unlock(&l->lock);
	return load;
}

static void end_load(struct rs_load *load)
{
	give_buffer(load);
	sc_sys.release(load);
}

/* Ends the first load in the queue that is to be ended, or one that comes while this waits, for CLOSES_NS in all.
 * Returns whether there was one. */
static bool end_any(struct loader *l, struct sc_turns *turns)
{
	struct rs_load **at, *found;

	(void)pthread_mutex_lock(&l->lock);
	for (;;) {
		for (at = &l->first; *at && !(*at)->ends; at = &(*at)->next)
			;
		found = *at;
		if (found || l->stop || turns->waited_ns >= CLOSES_NS)
			break;
		(void)sc_sys.wait_until(&l->wake, &l->lock, sc_turn_begin(turns));
		sc_turn_end(turns);
	}
	if (found)
		*at = found->next;
	if (found && !found->next)
		l->end = at;
	(void)pthread_mutex_unlock(&l->lock);
	if (found)
		end_load(found);
	return found;
}

static void *run(void *arg)
{
	struct loader *l = arg;
	struct rs_load *load;

	while ((load = next_load(l))) {
		struct sc_turns turns = {.turn_ns = TURN_NS};
		struct sc_err err = {0};
		int rc;

		if (load->ends) {
			end_load(load);
			continue;
		}
		/* the kernel says that a file is closed a moment after close(2) has returned: who has closed one to
		 * make room, and opens another, is not to come too early */
		while ((rc = load_file(load, &err)) == SC_E_NO_MEMORY && end_any(l, &turns))
			;
		if (rc < 0 && rc != SC_E_CANCELLED)
			sc_log(SC_LOG_WARN, "a load into GPU %u: %s", l->device, err.msg);
		load->done(load->arg, load, rc < 0 ? &err : NULL);
	}
	end_helper(l, STOP_MS);
	return NULL;
}

static void enqueue(struct rs_load *load)
{
	struct loader *l = load->loader;

	load->next = NULL;
	(void)pthread_mutex_lock(&l->lock);
	*l->end = load;
	l->end = &load->next;
	(void)pthread_cond_signal(&l->wake);
	(void)pthread_mutex_unlock(&l->lock);
}

static int start_loader(struct loader *l, uint8_t device, struct sc_err *err)
{
	pthread_condattr_t clock;
	int rc = 0;

	(void)pthread_mutex_lock(&starting);
	if (!l->thread.started) {
		*l = (struct loader){.device = device, .end = &l->first};
		(void)pthread_mutex_init(&l->lock, NULL);
		(void)pthread_condattr_init(&clock);
		(void)pthread_condattr_setclock(&clock, CLOCK_MONOTONIC);
		(void)pthread_cond_init(&l->wake, &clock);
		(void)pthread_condattr_destroy(&clock);
		rc = sc_thread_start(&l->thread, "scalai-loads", run, l, err);
	}
	(void)pthread_mutex_unlock(&starting);
	return rc;
}

/* --- what others call --- */

int rs_load_start(const struct rs_load_file *file, uint32_t rank, rs_load_done_fn *done, void *arg,
		  struct rs_load **ret, struct sc_err *err)
{
	struct rs_gpu_options o;
	struct rs_load *load;
	uint32_t which;
	int rc = rs_gpu_check(&o, err);

	if (rc < 0)
		return rc;
	which = rank % o.nr_devices;
	load = sc_zalloc(sizeof(*load));
	rc = load ? start_loader(&loaders[which], o.devices[which], err) : sc_nomem(err);
	if (rc < 0) {
		sc_sys.release(load);
		return rc;
	}
	load->loader = &loaders[which];
	load->file = *file;
	load->done = done;
	load->arg = arg;
	*ret = load;
	enqueue(load);
	return 0;
}

void rs_load_cancel(struct rs_load *load)
{
	__atomic_store_n(&load->cancelled, true, __ATOMIC_RELEASE);
}

void rs_load_end(struct rs_load *load)
{
	if (!load)
		return;
	load->ends = true;
	enqueue(load);
}

int rs_load_text(const struct rs_load *load, struct sc_buf *buf, struct sc_err *err)
{
	struct loader *l = load->loader;
	const int address = (int)strcspn(load->handle, " ");
	bool is_there;

	(void)pthread_mutex_lock(&l->lock);
	is_there = load->buffer && l->h && l->life == load->life && !rs_channel_is_closed(l->h->fd, 0);
	(void)pthread_mutex_unlock(&l->lock);
	if (!is_there)
		return sc_fail(err, SC_E_SYSTEM, "the bytes are not in GPU %u any more: scalai-gpu, which had them, "
			       "has ended; open the file again", l->device);
	sc_buf_line(buf, "{\"device\": \"%.*s\", \"handle\": \"%s\", \"bytes\": %" PRIu64 "}", address, load->handle,
		    load->handle + address + 1, load->file.bytes);
	return buf->failed ? sc_nomem(err) : 0;
}

void rs_loads_stop(void)
{
	for (unsigned i = 0; i < RS_POOL_PEERS_MAX; i++) {
		struct loader *l = &loaders[i];

		if (!l->thread.started)
			continue;
		(void)pthread_mutex_lock(&l->lock);
		l->stop = true;
		(void)pthread_cond_signal(&l->wake);
		(void)pthread_mutex_unlock(&l->lock);
		sc_thread_join(&l->thread);
		(void)pthread_cond_destroy(&l->wake);
		(void)pthread_mutex_destroy(&l->lock);
	}
}
