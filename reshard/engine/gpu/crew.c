/* SPDX-License-Identifier: Apache-2.0 */
#include "reshard/engine/gpu/crew.h"

#include <assert.h>
#include <unistd.h>

#include "meta/base/mem.h"

/* Reads parts until there is none left.  The caller holds the lock, which is released while a part is read. */
static void read_parts(struct rs_crew *c)
{
	while (c->next < c->end) {
		const uint64_t at = c->next, n = sc_min_u64(c->end - at, RS_CREW_PART_BYTES);
		struct sc_err err = {0};
		int rc;

		c->next += n;
		c->busy++;
		(void)pthread_mutex_unlock(&c->lock);
		rc = c->read(c->arg, at, n, c->to + (at - c->from), &err);
		(void)pthread_mutex_lock(&c->lock);
		c->busy--;
		assert(rc == 0 || err.code == rc);
		if (rc < 0) {
			c->next = c->end;
			if (!c->first.code)
				c->first = err;
		}
	}
}

static void *run(void *arg)
{
	struct rs_crew *c = arg;

	(void)pthread_mutex_lock(&c->lock);
	while (!c->stop) {
		read_parts(c);
		if (!c->busy)
			(void)pthread_cond_signal(&c->ended);
		(void)pthread_cond_wait(&c->begin, &c->lock);
	}
	(void)pthread_mutex_unlock(&c->lock);
	return NULL;
}

/* Starts threads beside the caller.  If fewer start than wanted, or none, these do the same work. */
static void start(struct rs_crew *c)
{
	const long cores = sysconf(_SC_NPROCESSORS_ONLN);
	struct sc_err ignored;

	(void)pthread_mutex_init(&c->lock, NULL);
	(void)pthread_cond_init(&c->begin, NULL);
	(void)pthread_cond_init(&c->ended, NULL);
	c->started = true;
	for (long i = 1; i < RS_CREW_MAX && i < cores; i++) {
		if (sc_thread_start(&c->threads[c->nr], "scalai-crew", run, c, &ignored) < 0)
			break;
		c->nr++;
	}
}

int rs_crew_read(struct rs_crew *c, rs_crew_read_fn *read, const void *arg, uint64_t at, uint64_t bytes,
		 unsigned char *to, struct sc_err *err)
{
	if (!c || bytes <= RS_CREW_PART_BYTES)
		return read(arg, at, bytes, to, err);
	if (!c->started)
		start(c);
	(void)pthread_mutex_lock(&c->lock);
	c->read = read;
	c->arg = arg;
	c->from = c->next = at;
	c->end = at + bytes;
	c->to = to;
	c->first = (struct sc_err){0};
	(void)pthread_cond_broadcast(&c->begin);
	read_parts(c);
	while (c->busy)
		(void)pthread_cond_wait(&c->ended, &c->lock);
	*err = c->first;
	(void)pthread_mutex_unlock(&c->lock);
	return err->code;
}

void rs_crew_end(struct rs_crew *c)
{
	if (!c->started)
		return;
	(void)pthread_mutex_lock(&c->lock);
	c->stop = true;
	(void)pthread_cond_broadcast(&c->begin);
	(void)pthread_mutex_unlock(&c->lock);
	for (unsigned i = 0; i < c->nr; i++)
		sc_thread_join(&c->threads[i]);
	(void)pthread_cond_destroy(&c->ended);
	(void)pthread_cond_destroy(&c->begin);
	(void)pthread_mutex_destroy(&c->lock);
	*c = (struct rs_crew){0};
}
