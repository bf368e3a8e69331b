/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A second kind of source, linked to tests of the first: the bytes of a blob come late, and go when nobody needs them.
 *
 *     noise ── need() ──> wanted ── the thread, in any order ──> here ── last release() ──> noise
 *
 * Whoever reads without a need, or after the release, reads noise.  Its memory is its own (so is what its descriptor reads), in
 * chunks that are small, so that few bytes are there by chance.  The program fails if nothing asked for it.
 *
 * While the file that LATE_HOLDS names is there, nothing comes.  What it says, if anything, is why what is asked for then
 * cannot come: an error, of all that was asked for when the file goes.
 */
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "meta/base/sys.h"
#include "reshard/engine/io/sources.h"

#define CHUNK 64u
#define WAITERS_MAX 4096
#define HELD_US 2000		/* how often the thread looks whether it is told */
#define TURN 256		/* chunks that the thread brings before it tells anybody */

enum state { NOISE, WANTED, HERE, BAD };

struct chunk {
	uint32_t needs;
	enum state state;
};

struct late {
	struct rs_bytes bytes;
	struct rs_place from;
	struct rs_bytes *bytes_of;	/* the blob's own */
	int fd;				/* of memory, mapped for writing, too */
	unsigned char *memory;
	size_t nr;
	struct chunk *chunks;
	struct sc_err err;		/* of chunks that are BAD */
};

/* All of this is under `lock`, but the bytes of a chunk that is WANTED: they are the thread's. */
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static pthread_cond_t asked = PTHREAD_COND_INITIALIZER, came = PTHREAD_COND_INITIALIZER;
static struct rs_done *waiters[WAITERS_MAX];
static size_t nr_waiters;
static struct {
	size_t nr, room;
	struct wish {
		struct late *l;
		size_t i;
	} *at;
} wanted;
static uint64_t brought, seed = 1;
static bool has_thread;
static char held[256];

static unsigned dice(unsigned n)
{
	seed = seed * 6364136223846793005u + 1442695040888963407u;
	return (unsigned)(seed >> 33) % n;
}

static uint64_t chunk_bytes(const struct late *l, size_t i)
{
	return sc_min_u64(CHUNK, l->bytes.bytes - i * CHUNK);
}

static void make_noise(struct late *l, size_t i)
{
	for (uint64_t k = 0; k < chunk_bytes(l, i); k++)
		l->memory[i * CHUNK + k] = (unsigned char)(0xa5 ^ dice(256));
	l->chunks[i].state = NOISE;
}

/* --- the thread that brings chunks --- */

static void bring(struct late *l, size_t i)
{
	struct sc_err err;
	int rc = *held ? sc_fail(&err, SC_E_SYSTEM, "%s", held)
		       : rs_bytes_read(l->bytes_of, i * CHUNK, chunk_bytes(l, i), l->memory + i * CHUNK, &err);

	if (rc < 0)
		l->err = err;
	/* who waits with a `done` is told by that, and has no need of it */
	l->chunks[i].state = rc == 0 ? HERE : *held && !l->chunks[i].needs ? NOISE : BAD;
	brought++;
}

/* Waits while nothing is to come, and keeps what the file says. */
static void wait_until_told(void)
{
	const char *path = getenv("LATE_HOLDS");
	bool were_held = false;

	for (int fd; path && (fd = open(path, O_RDONLY | O_CLOEXEC)) >= 0; were_held = true) {
		ssize_t n = read(fd, held, sizeof(held) - 1);

		held[n > 0 ? n : 0] = 0;
		(void)close(fd);
		(void)pthread_mutex_unlock(&lock);
		(void)usleep(HELD_US);
		(void)pthread_mutex_lock(&lock);
	}
	if (!were_held)
		*held = 0;
}

static void *run(void *unused)
{
	static struct rs_done *tell[WAITERS_MAX];
	struct sc_err err;

	(void)unused;
	(void)pthread_mutex_lock(&lock);
	for (;;) {
		size_t nr;

		while (!wanted.nr)
			(void)pthread_cond_wait(&asked, &lock);
		wait_until_told();
		for (int i = 0; (i < TURN || *held) && wanted.nr; i++) {
			struct wish *one = &wanted.at[dice((unsigned)wanted.nr)], found = *one;

			*one = wanted.at[--wanted.nr];
			bring(found.l, found.i);
		}
		(void)pthread_cond_broadcast(&came);
		nr = nr_waiters;
		nr_waiters = 0;
		memcpy(tell, waiters, nr * sizeof(*tell));
		if (*held)
			(void)sc_fail(&err, SC_E_SYSTEM, "%s", held);
		(void)pthread_mutex_unlock(&lock);
		for (size_t i = 0; i < nr; i++)
			tell[i]->call(tell[i], *held ? &err : NULL);
		(void)pthread_mutex_lock(&lock);
	}
	return NULL;
}

static void want_thread(void)
{
	pthread_t thread;

	if (has_thread || pthread_create(&thread, NULL, run, NULL) != 0)
		return;
	(void)pthread_detach(thread);
	has_thread = true;
}

/* --- the kind --- */

static int late_open(void *arg, uint64_t id, uint64_t bytes_expected, struct rs_bytes **ret, struct sc_err *err)
{
	struct late *l = sc_zalloc(sizeof(*l));
	int rc = l ? 0 : sc_nomem(err);

	if (rc < 0)
		return rc;
	l->from = (struct rs_place){rs_source_kinds[0], arg, id, bytes_expected, 0};
	l->nr = (bytes_expected + CHUNK - 1) / CHUNK;
	l->chunks = sc_zalloc_array(l->nr + 1, sizeof(*l->chunks));
	l->fd = memfd_create("late", MFD_CLOEXEC);
	rc = l->chunks ? rs_place_open(&l->from, &l->bytes_of, err) : sc_nomem(err);
	if (rc == 0 && bytes_expected) {
		if (l->fd < 0 || ftruncate(l->fd, (off_t)bytes_expected) < 0)
			rc = sc_fail_sys(err, errno, "late: no memory");
		else
			l->memory = mmap(NULL, bytes_expected, PROT_READ | PROT_WRITE, MAP_SHARED, l->fd, 0);
		if (rc == 0 && l->memory == MAP_FAILED)
			rc = sc_fail_sys(err, errno, "late: no memory");
	}
	if (rc < 0) {
		if (l->bytes_of)
			rs_place_close(&l->from, l->bytes_of);
		sc_closep(&l->fd);
		sc_sys.release(l->chunks);
		sc_sys.release(l);
		return rc;
	}
	l->bytes = (struct rs_bytes){rs_source_extra, l->memory, bytes_expected, id};
	(void)pthread_mutex_lock(&lock);
	for (size_t i = 0; i < l->nr; i++)
		make_noise(l, i);
	want_thread();
	(void)pthread_mutex_unlock(&lock);
	*ret = &l->bytes;
	return 0;
}

static void late_close(void *arg, struct rs_bytes *b)
{
	struct late *l = (struct late *)b;

	(void)arg;
	(void)pthread_mutex_lock(&lock);
	for (size_t i = 0; i < l->nr; i++)
		if (l->chunks[i].needs) {
			(void)fprintf(stderr, "late: blob %lu is closed, and byte %zu was not released\n", b->blob, i * CHUNK);
			_exit(1);
		}
	for (size_t i = 0; i < wanted.nr;)
		if (wanted.at[i].l == l)
			wanted.at[i] = wanted.at[--wanted.nr];
		else
			i++;
	(void)pthread_mutex_unlock(&lock);
	rs_place_close(&l->from, l->bytes_of);
	if (l->memory)
		(void)munmap(l->memory, l->bytes.bytes);
	sc_closep(&l->fd);
	sc_sys.release(l->chunks);
	sc_sys.release(l);
}

static int late_fd(struct rs_bytes *b, int *ret_fd, struct sc_err *err)
{
	const struct late *l = (struct late *)b;
	char path[64];

	(void)snprintf(path, sizeof(path), "/proc/self/fd/%d", l->fd);
	*ret_fd = open(path, O_RDONLY | O_CLOEXEC);
	return *ret_fd < 0 ? sc_fail_sys(err, errno, "late: cannot open its memory") : 0;
}

/* The first state of a range that is not HERE, with all of its noise asked for; HERE: there is none. */
static enum state ask(struct late *l, size_t first, size_t end)
{
	enum state found = HERE;

	for (size_t i = first; i < end; i++) {
		if (l->chunks[i].state == NOISE) {
			struct wish wish = {l, i};

			if (sc_vec_push(&wanted, wish) < 0)
				abort();
			l->chunks[i].state = WANTED;
		}
		if (found == HERE || l->chunks[i].state == BAD)
			found = l->chunks[i].state;
	}
	return found;
}

static void put_back(struct late *l, size_t first, size_t end)
{
	for (size_t i = first; i < end; i++)
		if (--l->chunks[i].needs == 0 && l->chunks[i].state != WANTED)
			make_noise(l, i);
}

static int late_need(struct rs_bytes *b, uint64_t at, uint64_t bytes, struct rs_done *done, struct sc_err *err)
{
	struct late *l = (struct late *)b;
	size_t first = at / CHUNK, end = (at + bytes + CHUNK - 1) / CHUNK;
	enum state found;
	int rc = RS_HERE;

	(void)pthread_mutex_lock(&lock);
	for (size_t i = first; i < end; i++)
		l->chunks[i].needs++;
	found = ask(l, first, end);
	while (found == WANTED && !(done && nr_waiters < WAITERS_MAX)) {
		(void)pthread_cond_signal(&asked);
		(void)pthread_cond_wait(&came, &lock);
		found = ask(l, first, end);
	}
	if (found == WANTED) {
		waiters[nr_waiters++] = done;
		(void)pthread_cond_signal(&asked);
		rc = RS_LATER;
	} else if (found == BAD) {
		*err = l->err;
		rc = err->code;
	}
	/* what was asked for meanwhile comes, and stays until it is asked for again: so it comes to an end */
	if (rc < 0)
		put_back(l, first, end);
	for (size_t i = first; rc == RS_LATER && i < end; i++)
		l->chunks[i].needs--;
	(void)pthread_mutex_unlock(&lock);
	return rc;
}

static void late_release(struct rs_bytes *b, uint64_t at, uint64_t bytes)
{
	(void)pthread_mutex_lock(&lock);
	put_back((struct late *)b, at / CHUNK, (at + bytes + CHUNK - 1) / CHUNK);
	(void)pthread_mutex_unlock(&lock);
}

static const struct rs_source_ops late = {
	.name = "late",
	.open = late_open,
	.close = late_close,
	.fd = late_fd,
	.need = late_need,
	.release = late_release,
};

__attribute__((constructor)) static void choose(void)
{
	rs_source_extra = &late;
}

__attribute__((destructor)) static void expect_use(void)
{
	/* with LATE_HOLDS the readers see it; a holder (fs/handover/hold.h) has brought none */
	if (__atomic_load_n(&brought, __ATOMIC_RELAXED) || getenv("LATE_HOLDS"))
		return;
	(void)fprintf(stderr, "no bytes came late\n");
	_exit(1);
}
