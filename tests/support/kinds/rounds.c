/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A third kind of engine, linked to tests of the first: it executes rounds, with memory of its own for the windows of
 * all peers, and memcpy or the kernel on the CPU.  What an engine that has devices does with a round is what this one does.  The program fails if
 * nothing asked for it.
 */
#include "tests/support/kinds/rounds.h"

#include <assert.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define TARGETS 256
#define REST_BYTES (64u << 10)

static uint32_t read_in_turns(void *arg, const struct rs_place *place)
{
	(void)arg;
	return (uint32_t)place->id % rounds_options.peers;
}

struct rs_rounds_options rounds_options = {
	.window_bytes = 100000, .boxes_max = 100, .run_bytes = 256 << 10, .peers = 3, .reader = read_in_turns,
};
const struct rounds_device *rounds_device;
void (*rounds_look)(struct rs_rounds *r, const struct rs_round *round, const struct rs_extent *rest, uint32_t nr_rest);

static unsigned rounds;		/* executed; atomic */

/* Of a peer; each as long as the round says, so that the sanitizer sees what is outside. */
struct windows {
	unsigned char *in, *out, *send, *recv;
};

struct call {
	struct rs_rounds *rounds;
	const struct rs_target *targets;
	const struct rs_write_options *how;
	struct windows *windows;	/* of each peer */
	size_t *ret_failed;
	struct sc_err *err;
};

/* --- a round --- */

static void copy_box(const struct rs_copy *c, int k, const unsigned char *from, unsigned char *to)
{
	if (k == c->nr) {
		memcpy(to, from, c->run);
		return;
	}
	for (uint64_t i = 0; i < c->ext[k]; i++)
		copy_box(c, k + 1, from + i * c->from_stride[k], to + i * c->to_stride[k]);
}

static void copy_plainly(const struct rs_copy *boxes, uint32_t nr, unsigned char *from, uint64_t from_bytes, unsigned char *to,
			 uint64_t to_bytes)
{
	(void)from_bytes;
	(void)to_bytes;
	for (uint32_t i = 0; i < nr; i++)
		if (from)
			copy_box(&boxes[i], 0, from + boxes[i].from, to + boxes[i].to);
		else
			memset(to + boxes[i].to, 0, boxes[i].run);
}

rounds_copy_fn *rounds_copy = copy_plainly;

static void zero_extents(const struct rs_share *s, const struct windows *w)
{
	for (uint32_t i = 0; i < s->nr_out; i++)
		if (s->out[i].zero)
			rounds_copy(&(struct rs_copy){.to = s->out[i].window, .run = s->out[i].bytes}, 1, NULL, 0, w->out,
				    s->out_bytes);
}

int rounds_fill(void *call, const struct rs_share *s, unsigned char *in, struct sc_err *err)
{
	uint32_t nr;
	const struct rs_rounds_file *files = rs_rounds_files(((struct call *)call)->rounds, &nr);

	for (uint32_t i = 0; i < s->nr_in; i++) {
		const struct rs_extent *e = &s->in[i];
		int rc = rs_bytes_read(files[e->file].bytes, e->at, e->bytes, in + e->window, err);

		if (rc < 0)
			return rc;
	}
	return 0;
}

static int put(struct call *c, const struct rs_extent *e, const unsigned char *bytes, struct sc_err *err)
{
	*c->ret_failed = e->file;
	if (sc_pwrite_all(c->targets[e->file].fd, bytes, e->bytes, e->at) < 0)
		return sc_fail_sys(err, errno, "rounds: cannot write");
	return c->how->tick && c->how->tick(c->how->arg, e->bytes) ? sc_fail(err, SC_E_CANCELLED, "stopped") : 0;
}

int rounds_drain(void *call, const struct rs_extent *out, uint32_t nr, const unsigned char *bytes, struct sc_err *err)
{
	int rc = 0;

	for (uint32_t i = 0; rc == 0 && i < nr; i++)
		rc = put(call, &out[i], bytes + out[i].window, err);
	return rc;
}

static int execute(struct call *c, const struct rs_round *round)
{
	int rc = 0;

	for (uint32_t p = 0; rc == 0 && p < round->nr; p++)
		rc = rounds_fill(c, &round->shares[p], c->windows[p].in, c->err);
	for (uint32_t p = 0; rc == 0 && p < round->nr; p++) {
		const struct rs_share *s = &round->shares[p];
		struct windows *w = &c->windows[p];

		zero_extents(s, w);
		rounds_copy(s->copies, s->nr_copies, w->in, s->in_bytes, w->out, s->out_bytes);
		rounds_copy(s->packs, s->nr_packs, w->in, s->in_bytes, w->send, s->send_bytes);
	}
	for (uint32_t p = 0; rc == 0 && p < round->nr; p++)
		for (uint32_t q = 0; q < round->nr; q++)
			memcpy(c->windows[q].recv + round->shares[q].recvs[p].at,
			       c->windows[p].send + round->shares[p].sends[q].at, round->shares[p].sends[q].bytes);
	for (uint32_t p = 0; rc == 0 && p < round->nr; p++) {
		const struct rs_share *s = &round->shares[p];
		struct windows *w = &c->windows[p];

		rounds_copy(s->unpacks, s->nr_unpacks, w->recv, s->recv_bytes, w->out, s->out_bytes);
		rc = rounds_drain(c, s->out, s->nr_out, w->out, c->err);
	}
	return rc;
}

static int execute_in_memory(struct call *c, const struct rs_round *round)
{
	int rc;

	for (uint32_t p = 0; p < round->nr; p++) {
		const struct rs_share *s = &round->shares[p];

		c->windows[p] = (struct windows){malloc(s->in_bytes + 1), malloc(s->out_bytes + 1),
						 malloc(s->send_bytes + 1), malloc(s->recv_bytes + 1)};
		memset(c->windows[p].out, 0xa5, s->out_bytes);
	}
	rc = execute(c, round);
	for (uint32_t p = 0; p < round->nr; p++) {
		free(c->windows[p].in);
		free(c->windows[p].out);
		free(c->windows[p].send);
		free(c->windows[p].recv);
	}
	return rc;
}

/* --- what no round writes --- */

static int write_rest(struct call *c, const struct rs_extent *e)
{
	unsigned char *bytes = malloc(REST_BYTES);
	int rc = 0;

	for (uint64_t done = 0; rc == 0 && done < e->bytes; done += REST_BYTES) {
		struct rs_extent part = {.file = e->file, .at = e->at + done, .bytes = sc_min_u64(e->bytes - done, REST_BYTES)};

		*c->ret_failed = e->file;
		rc = rs_image_fetch(c->targets[e->file].image, part.at, part.bytes, bytes, c->err);
		if (rc == 0)
			rc = put(c, &part, bytes, c->err);
	}
	free(bytes);
	return rc;
}

static int run_rounds(struct call *c)
{
	const struct rs_round *round = NULL;
	int rc;

	for (;;) {
		rc = rs_rounds_next(c->rounds, &round, c->err);
		if (rc < 0 || !round)
			return rc;
		if (rounds_look)
			rounds_look(c->rounds, round, NULL, 0);
		(void)__atomic_fetch_add(&rounds, 1, __ATOMIC_RELAXED);
		rc = rounds_device ? rounds_device->put(round, c->err) : execute_in_memory(c, round);
		if (rc < 0)
			return rc;
	}
}

static int run(struct call *c)
{
	const struct rs_extent *rest = NULL;
	uint32_t nr = 0;
	int rc = rounds_device ? rounds_device->begin(c, c->err) : 0;

	if (rc == 0)
		rc = run_rounds(c);
	if (rounds_device)
		rc = rounds_device->end(rc, c->err);
	if (rc == 0)
		rc = rs_rounds_rest(c->rounds, &rest, &nr, c->err);
	if (rc == 0 && rounds_look)
		rounds_look(c->rounds, NULL, rest, nr);
	for (uint32_t i = 0; rc == 0 && i < nr; i++)
		rc = write_rest(c, &rest[i]);
	return rc;
}

/* --- the engine --- */

static int rounds_open(const struct meta_store *store, uint64_t budget, struct rs_engine **ret, struct sc_err *err)
{
	(void)store;
	(void)budget;
	*ret = sc_zalloc(sizeof(**ret));
	return *ret ? 0 : sc_nomem(err);
}

static void rounds_close(struct rs_engine *e)
{
	sc_sys.release(e);
}

static int rounds_write(struct rs_engine *e, const struct rs_target *targets, size_t nr, const struct rs_write_options *how,
			struct rs_written *ret, struct sc_err *err)
{
	struct rs_rounds_options options = rounds_options;
	struct call c = {.targets = targets, .how = how, .ret_failed = &ret->failed, .err = err};
	const struct rs_image *images[TARGETS];
	struct windows windows[16];
	uint32_t writers[TARGETS];
	int rc;

	(void)e;
	if (how->clones_only)
		return sc_fail(err, SC_E_UNSUPPORTED, "rounds: clones nothing");
	assert(options.peers <= 16);
	for (size_t i = 0; i < nr; i++) {
		images[i] = targets[i].image;
		writers[i] = (uint32_t)i % options.peers;
		ret->copied += targets[i].image->bytes;
	}
	options.writers = writers;
	c.windows = windows;
	rc = rs_rounds_new(images, (uint32_t)nr, &options, &c.rounds, err);
	if (rc == 0)
		rc = run(&c);
	rs_rounds_free(c.rounds);
	return rc;
}

const struct rs_engine_ops rounds_engine = {
	.name = "rounds",
	.threads = 2,
	.targets = TARGETS,
	.open = rounds_open,
	.close = rounds_close,
	.write = rounds_write,
};

__attribute__((constructor)) static void choose(void)
{
	rs_engine_extra = &rounds_engine;
}

__attribute__((destructor)) static void expect_use(void)
{
	if (__atomic_load_n(&rounds, __ATOMIC_RELAXED))
		return;
	(void)fprintf(stderr, "no round was executed\n");
	_exit(1);
}
