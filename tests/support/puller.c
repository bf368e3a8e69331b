/* SPDX-License-Identifier: Apache-2.0 */
#include "tests/support/puller.h"

#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#define WISHES_MAX 4096
#define THREADS_MAX 4

struct wish {
	struct rs_away what;
	uint64_t at, bytes;
	void *to;
	struct rs_done *done;
	bool cancelled, taken;
};

struct fake_puller {
	puller_bytes_fn *bytes;
	unsigned fails, delay_us;
	pthread_mutex_t lock;
	pthread_cond_t wake;
	bool stop, held;
	size_t nr;		/* on their way */
	uint32_t most;
	struct wish *at[WISHES_MAX];
	uint64_t seed;
	int threads;
	pthread_t thread[THREADS_MAX];
};

static unsigned dice(struct fake_puller *p, unsigned n)
{
	p->seed = p->seed * 6364136223846793005u + 1442695040888963407u;
	return (unsigned)(p->seed >> 33) % n;
}

static void broken(const char *why)
{
	(void)fprintf(stderr, "puller: %s\n", why);
	abort();
}

static void answer(struct fake_puller *p, struct wish *w, bool fails)
{
	struct sc_err err;
	int rc = w->cancelled ? sc_fail(&err, SC_E_CANCELLED, "the pull was cancelled")
		 : fails      ? sc_fail_sys(&err, 5, "the wire is cut")
			      : p->bytes(&w->what, w->at, w->bytes, w->to, &err);
	struct rs_done *done = w->done;

	(void)pthread_mutex_lock(&p->lock);
	for (size_t i = 0; i < p->nr; i++)
		if (p->at[i] == w) {
			p->at[i] = p->at[--p->nr];
			break;
		}
	(void)pthread_mutex_unlock(&p->lock);
	free(w);
	done->call(done, rc < 0 ? &err : NULL);
}

/* One that may be answered; NULL: there is none. */
static struct wish *choose(struct fake_puller *p)
{
	size_t from = p->nr ? dice(p, (unsigned)p->nr) : 0;

	for (size_t i = 0; i < p->nr; i++) {
		struct wish *w = p->at[(from + i) % p->nr];

		if (!w->taken && (!p->held || w->cancelled))
			return w;
	}
	return NULL;
}

static void *run(void *arg)
{
	struct fake_puller *p = arg;

	(void)pthread_mutex_lock(&p->lock);
	while (!p->stop) {
		struct wish *w = choose(p);
		bool fails;
		unsigned us;

		if (!w) {
			(void)pthread_cond_wait(&p->wake, &p->lock);
			continue;
		}
		w->taken = true;
		fails = p->fails && dice(p, p->fails) == 0;
		us = p->delay_us ? dice(p, p->delay_us) : 0;
		(void)pthread_mutex_unlock(&p->lock);
		if (us)
			(void)usleep(us);
		answer(p, w, fails);
		(void)pthread_mutex_lock(&p->lock);
	}
	(void)pthread_mutex_unlock(&p->lock);
	return NULL;
}

static void begin(void *arg, const struct rs_away *what, uint64_t at, uint64_t bytes, void *to, struct rs_done *done)
{
	struct wish *w = malloc(sizeof(*w)); /* not sc_sys: what a test fails is not this */
	struct fake_puller *p = arg;
	bool now, fails;

	*w = (struct wish){*what, at, bytes, to, done, false, false};
	if (!bytes || bytes > RS_PULL_BYTES || at + bytes > what->bytes)
		broken("a pull beyond the blob, or too long");
	(void)pthread_mutex_lock(&p->lock);
	for (size_t i = 0; i < p->nr; i++) {
		const struct wish *x = p->at[i];

		if (x->what.node == what->node && x->what.blob == what->blob && at < x->at + x->bytes &&
		    x->at < at + bytes)
			broken("a byte is pulled twice at the same time");
	}
	if (p->nr == WISHES_MAX)
		broken("too many pulls");
	p->at[p->nr++] = w;
	p->most = p->nr > p->most ? (uint32_t)p->nr : p->most;
	now = !p->threads || (!p->held && dice(p, 4) == 0);
	w->taken = now;
	fails = p->fails && dice(p, p->fails) == 0;
	(void)pthread_cond_signal(&p->wake);
	(void)pthread_mutex_unlock(&p->lock);
	if (now)
		answer(p, w, fails);
}

static void cancel(void *arg, struct rs_done *done)
{
	struct fake_puller *p = arg;

	(void)pthread_mutex_lock(&p->lock);
	for (size_t i = 0; i < p->nr; i++)
		if (p->at[i]->done == done && !p->at[i]->taken)
			p->at[i]->cancelled = true;
	(void)pthread_cond_broadcast(&p->wake);
	(void)pthread_mutex_unlock(&p->lock);
}

struct fake_puller *fake_puller_new(puller_bytes_fn *bytes, int threads, unsigned fails, unsigned delay_us)
{
	struct fake_puller *p = calloc(1, sizeof(*p));

	p->bytes = bytes;
	p->fails = fails;
	p->delay_us = delay_us;
	p->seed = 7;
	(void)pthread_mutex_init(&p->lock, NULL);
	(void)pthread_cond_init(&p->wake, NULL);
	for (p->threads = 0; p->threads < threads && p->threads < THREADS_MAX; p->threads++)
		if (pthread_create(&p->thread[p->threads], NULL, run, p) != 0)
			broken("no thread");
	return p;
}

struct rs_puller fake_puller_of(struct fake_puller *p)
{
	return (struct rs_puller){p, begin, cancel};
}

void fake_puller_hold(struct fake_puller *p, bool held)
{
	(void)pthread_mutex_lock(&p->lock);
	p->held = held;
	(void)pthread_cond_broadcast(&p->wake);
	(void)pthread_mutex_unlock(&p->lock);
}

uint32_t fake_puller_free(struct fake_puller *p)
{
	uint32_t most = p->most;

	(void)pthread_mutex_lock(&p->lock);
	p->stop = true;
	if (p->nr)
		broken("pulls are on their way still");
	(void)pthread_cond_broadcast(&p->wake);
	(void)pthread_mutex_unlock(&p->lock);
	for (int i = 0; i < p->threads; i++)
		(void)pthread_join(p->thread[i], NULL);
	free(p);
	return most;
}
