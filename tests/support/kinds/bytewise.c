/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A second kind of engine, linked to tests of the first: byte by byte, two files a call in turns.  Whatever the
 * host engine's tests want of a store, this one must give, too.  The program fails if nothing asked for it.
 */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#include "reshard/engine/io/engine.h"
#include "tests/support/every.h"

#define CHUNK 4096u

struct bytewise {
	struct rs_engine engine;
	unsigned char chunk[2][CHUNK];
};

static unsigned pairs;		/* calls with two files; atomic */

static int bytewise_open(const struct meta_store *store, uint64_t budget, struct rs_engine **ret, struct sc_err *err)
{
	struct bytewise *b = sc_zalloc(sizeof(*b));

	(void)store;
	(void)budget;
	if (!b)
		return sc_nomem(err);
	*ret = &b->engine;
	return 0;
}

static void bytewise_close(struct rs_engine *e)
{
	sc_sys.release(e);
}

/* How many bytes of a chunk a file has. */
static uint64_t left(const struct rs_target *t, uint64_t at)
{
	return at < t->image->bytes ? sc_min_u64(t->image->bytes - at, CHUNK) : 0;
}

/* A chunk of each file, a byte (in the gate, seven) of each in turns; what they are made of is there.  *ret_at: of which file an error is. */
static int read_turns(struct bytewise *b, const struct rs_target *targets, size_t nr, uint64_t at, size_t *ret_at,
		      struct sc_err *err)
{
	const uint64_t part = every() > 1 ? 7 : 1;

	for (uint64_t k = 0; k < CHUNK; k += part)
		for (size_t i = 0; i < nr; i++) {
			const uint64_t end = left(&targets[i], at);
			int rc = 0;

			*ret_at = i;
			if (k < end)
				rc = rs_image_read(targets[i].image, at + k, sc_min_u64(part, end - k), &b->chunk[i][k], err);
			if (rc < 0)
				return rc;
		}
	return 0;
}

static int put(struct bytewise *b, const struct rs_target *t, size_t i, uint64_t at, const struct rs_write_options *how,
	       struct sc_err *err)
{
	uint64_t n = left(t, at);

	if (sc_pwrite_all(t->fd, b->chunk[i], n, at) < 0)
		return sc_fail_sys(err, errno, "bytewise: cannot write");
	return n && how->tick && how->tick(how->arg, n) ? sc_fail(err, SC_E_CANCELLED, "stopped") : 0;
}

static int copy_chunk(struct bytewise *b, const struct rs_target *targets, size_t nr, uint64_t at,
		      const struct rs_write_options *how, size_t *ret_at, struct sc_err *err)
{
	size_t needed = 0;
	int rc = 0;

	for (; rc == 0 && needed < nr; needed++) {
		*ret_at = needed;
		if (left(&targets[needed], at))
			rc = rs_image_need(targets[needed].image, at, left(&targets[needed], at), NULL, err);
		if (rc < 0)
			break;
	}
	if (rc == 0)
		rc = read_turns(b, targets, nr, at, ret_at, err);
	for (size_t i = 0; i < needed; i++)
		if (left(&targets[i], at))
			rs_image_release(targets[i].image, at, left(&targets[i], at));
	for (size_t i = 0; rc == 0 && i < nr; i++) {
		*ret_at = i;
		rc = put(b, &targets[i], i, at, how, err);
	}
	return rc;
}

static int bytewise_write(struct rs_engine *e, const struct rs_target *targets, size_t nr, const struct rs_write_options *how,
			  struct rs_written *ret, struct sc_err *err)
{
	uint64_t bytes = 0;
	int rc = 0;

	if (how->clones_only)
		return sc_fail(err, SC_E_UNSUPPORTED, "bytewise: clones nothing");
	(void)__atomic_fetch_add(&pairs, nr == 2, __ATOMIC_RELAXED);
	for (size_t i = 0; i < nr; i++) {
		bytes = targets[i].image->bytes > bytes ? targets[i].image->bytes : bytes;
		ret->copied += targets[i].image->bytes;
	}
	for (uint64_t at = 0; rc == 0 && at < bytes; at += CHUNK)
		rc = copy_chunk((struct bytewise *)e, targets, nr, at, how, &ret->failed, err);
	return rc;
}

static const struct rs_engine_ops bytewise = {
	.name = "bytewise",
	.threads = 2,
	.targets = 2,
	.open = bytewise_open,
	.close = bytewise_close,
	.write = bytewise_write,
};

__attribute__((constructor)) static void choose(void)
{
	rs_engine_extra = &bytewise;
}

__attribute__((destructor)) static void expect_use(void)
{
	if (__atomic_load_n(&pairs, __ATOMIC_RELAXED))
		return;
	(void)fprintf(stderr, "no two files were written by the second engine\n");
	_exit(1);
}
