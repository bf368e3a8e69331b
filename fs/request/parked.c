/* SPDX-License-Identifier: Apache-2.0 */
/* Requests that wait for their job, the threads that serve them, and those of commands: parked.h has the invariants. */
#include "fs/request/parked.h"

#include <errno.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>

#include "fs/handover/handover.h"
#include "fs/request/request.h"
#include "meta/base/metric.h"
#include "reshard/worktree/requests/tree.h"

#define PARKED_MAX 16384	      /* some 0.5 KiB each */
#define RUNNERS 4
#define COMMANDS_MAX 256	      /* threads: so many jobs have a command that runs */
#define LOOK_NS INT64_C(100000000)    /* how often at programs that may be killed */

SC_METRIC(parked_now, SC_GAUGE, "scalai_requests_parked", "Requests that wait for a command of their job.");

struct parked {
	struct fs_asked asked;
	struct fs_order *order;		/* a command; NULL: the request waits for the gate */
	fuse_req_t req;
	struct fs *fs;
	struct rs_job *job;
	uint64_t number;		/* the kernel's; 0: nobody needs it */
	uint64_t nr;			/* ours, in their order */
	pid_t thread;			/* the program's */
	bool by_ring;
	/* under the lock */
	bool is_listed, is_ready, is_interrupted;
	struct parked *before, *next;
	char texts[];
};

static struct fs_parking {
	pthread_mutex_t lock;
	pthread_cond_t wake, settled;
	struct sc_thread runners[RUNNERS];
	unsigned nr_runners;
	bool stop;
	uint64_t next_nr;
	struct parked *first, *last;
	unsigned nr, nr_by_ring;	/* that are parked, and that run */
	unsigned nr_due;		/* in the list, and looked at */
	unsigned on_rings;		/* of rings, with a runner */
	int64_t look_ns;		/* when next */
	struct rs_job *commanded[COMMANDS_MAX];	/* jobs that have a command that runs */
	unsigned nr_commanded;
} parking = {.lock = PTHREAD_MUTEX_INITIALIZER, .wake = PTHREAD_COND_INITIALIZER, .settled = PTHREAD_COND_INITIALIZER};

/* --- the list: under the lock --- */

/* Tells whether runners look if the program of a request is being killed: the kernel has told of a signal; or it tells
 * of none, as over io_uring, and the program can be seen. */
static bool is_due(const struct parked *p)
{
	return p->is_interrupted || (p->by_ring && p->thread);
}

static void add(struct fs_parking *k, struct parked *p)
{
	p->nr = ++k->next_nr;
	p->is_listed = true;
	p->before = k->last;
	*(k->last ? &k->last->next : &k->first) = p;
	k->last = p;
	k->nr_due += is_due(p);
	sc_metric_add(&parked_now, 1);
}

static struct parked *take(struct fs_parking *k, struct parked *p)
{
	if (!p)
		return NULL;
	*(p->before ? &p->before->next : &k->first) = p->next;
	*(p->next ? &p->next->before : &k->last) = p->before;
	p->before = p->next = NULL;
	p->is_listed = false;
	k->nr_due -= is_due(p);
	sc_metric_add(&parked_now, UINT64_MAX); /* one less */
	return p;
}

static struct parked *first_ready(const struct fs_parking *k)
{
	struct parked *p = k->first;

	while (p && !p->is_ready)
		p = p->next;
	return p;
}

static struct parked *next_due(const struct fs_parking *k, uint64_t after)
{
	struct parked *p = k->first;

	while (p && (p->nr <= after || !is_due(p)))
		p = p->next;
	return p;
}

/* libfuse calls this with the request's lock held. */
static void on_interrupt(fuse_req_t req, void *data)
{
	struct parked *p = data;
	struct fs_parking *k = &parking;

	(void)req;
	(void)pthread_mutex_lock(&k->lock);
	k->nr_due += p->is_listed && !is_due(p);
	p->is_interrupted = true;
	k->look_ns = 0;
	(void)pthread_cond_signal(&k->wake);
	(void)pthread_mutex_unlock(&k->lock);
}

/* --- one that was taken out: its own thread's --- */

/* Ends the interrupts of a request: on_interrupt() neither runs nor will run afterwards. */
static void disarm(struct parked *p)
{
	if (!p->by_ring)
		fuse_req_interrupt_func(p->req, NULL, NULL);
}

static void parked_free(struct parked *p)
{
	struct fs_parking *k = &parking;

	(void)pthread_mutex_lock(&k->lock);
	k->nr--;
	k->nr_by_ring -= p->by_ring;
	(void)pthread_mutex_unlock(&k->lock);
	sc_sys.release(p);
}

/* Begins the use of a request of the kernel.  False: it came by a ring that is gone. */
static bool hold(struct parked *p)
{
	struct fs_parking *k = &parking;
	bool has;

	(void)pthread_mutex_lock(&k->lock);
	has = !fs_is_lost(p->fs, p->by_ring);
	k->on_rings += has && p->by_ring;
	(void)pthread_mutex_unlock(&k->lock);
	return has;
}

static void let_go(struct parked *p)
{
	struct fs_parking *k = &parking;

	(void)pthread_mutex_lock(&k->lock);
	k->on_rings -= p->by_ring;
	if (!k->on_rings)
		(void)pthread_cond_broadcast(&k->settled);
	(void)pthread_mutex_unlock(&k->lock);
}

/* Waits, at the end of a ring's thread, for runners that have its requests: the ring's memory goes next. */
static void settle(void *arg)
{
	struct fs_parking *k = arg;

	(void)pthread_mutex_lock(&k->lock);
	while (k->on_rings)
		(void)pthread_cond_wait(&k->settled, &k->lock);
	(void)pthread_mutex_unlock(&k->lock);
}

static pthread_key_t ring_end;

static void make_key(void)
{
	(void)pthread_key_create(&ring_end, settle);
}

void fs_parked_ring(void)
{
	static pthread_once_t once = PTHREAD_ONCE_INIT;

	(void)pthread_once(&once, make_key);
	(void)pthread_setspecific(ring_end, &parking);
}

static void answer_early(struct parked *p, int errnum)
{
	if (hold(p)) {
		disarm(p);
		if (p->order)
			p->order->give_up(p->order);
		(void)fuse_reply_err(p->req, errnum);
		let_go(p);
	} else if (p->order) {
		p->order->give_up(p->order);
	}
	parked_free(p);
}

static void serve(struct parked *p)
{
	if (fuse_session_exited(p->fs->se)) {
		answer_early(p, ECONNABORTED);
		return;
	}
	if (hold(p)) {
		disarm(p);
		fs_request_runs(p->fs, p->number);
		p->asked.serve(p->req, &p->asked);
		fs_request_answered();
		let_go(p);
	}
	parked_free(p);
}

/* --- the runners --- */

bool fs_is_killed(pid_t thread)
{
	unsigned long long pending = UINT64_C(1) << (SIGKILL - 1);
	char path[40], line[256];
	FILE *f;

	(void)snprintf(path, sizeof(path), "/proc/%d/status", thread);
	f = thread ? fopen(path, "re") : NULL;
	while (f && fgets(line, sizeof(line), f))
		if (sscanf(line, "SigPnd: %llx", &pending) == 1)
			break;
	if (f)
		(void)fclose(f);
	return pending >> (SIGKILL - 1) & 1;
}

/* Answers the requests whose programs are being killed.  The caller holds the lock, which is dropped meanwhile. */
static void look(struct fs_parking *k)
{
	uint64_t at = 0;
	struct parked *p;

	while (!k->stop && (p = next_due(k, at))) {
		const pid_t thread = p->thread;
		bool is_killed;

		at = p->nr;
		(void)pthread_mutex_unlock(&k->lock);
		is_killed = fs_is_killed(thread);
		(void)pthread_mutex_lock(&k->lock);
		p = is_killed ? next_due(k, at - 1) : NULL;
		if (!p || p->nr != at)
			continue;
		(void)take(k, p);
		(void)pthread_mutex_unlock(&k->lock);
		answer_early(p, EINTR);
		(void)pthread_mutex_lock(&k->lock);
	}
}

/* Waits for something to do.  The caller holds the lock, which is dropped meanwhile. */
static void rest(struct fs_parking *k)
{
	const int64_t now = sc_now_ns();

	if (!k->nr_due) {
		(void)pthread_cond_wait(&k->wake, &k->lock);
	} else if (now < k->look_ns) {
		(void)sc_sys.wait_until(&k->wake, &k->lock, k->look_ns);
	} else {
		k->look_ns = now + LOOK_NS;
		look(k);
	}
}

static void *run(void *arg)
{
	struct fs_parking *k = arg;
	struct parked *p;

	(void)pthread_mutex_lock(&k->lock);
	while (!k->stop || k->first) {
		const bool stop = k->stop;

		p = take(k, stop ? k->first : first_ready(k));
		if (!p) {
			rest(k);
			continue;
		}
		(void)pthread_mutex_unlock(&k->lock);
		if (stop)
			answer_early(p, ECONNABORTED);
		else
			serve(p);
		(void)pthread_mutex_lock(&k->lock);
	}
	(void)pthread_mutex_unlock(&k->lock);
	return NULL;
}

void fs_parked_opened(struct rs_job *job)
{
	struct fs_parking *k = &parking;
	bool any = false;

	(void)pthread_mutex_lock(&k->lock);
	for (struct parked *p = k->first; p; p = p->next)
		if (p->job == job && !p->order)
			any = p->is_ready = true;
	if (any)
		(void)pthread_cond_broadcast(&k->wake);
	(void)pthread_mutex_unlock(&k->lock);
}

/* --- parking --- */

/* Starts the runners, once.  The caller holds the lock. */
static int start_runners(struct fs_parking *k, struct sc_err *err)
{
	while (k->nr_runners < RUNNERS &&
	       sc_thread_start(&k->runners[k->nr_runners], "scalai-parked", run, k, err) == 0)
		k->nr_runners++;
	return k->nr_runners ? 0 : err->code;
}

/* Counts one more parked request (G7); fails if that would be too many. */
static int count(struct fs_parking *k, bool by_ring, bool is_again, struct sc_err *err)
{
	int rc;

	(void)pthread_mutex_lock(&k->lock);
	rc = start_runners(k, err);
	if (rc == 0 && k->stop)
		rc = sc_fail_sys(err, ECONNABORTED, "the mount ends");
	else if (rc == 0 && !is_again && (k->nr >= PARKED_MAX || (by_ring && k->nr_by_ring >= FS_RING_PARKED)))
		rc = sc_fail(err, SC_E_BUSY, "too many requests wait for commands of their jobs, such as commit (limit "
			     "%d%s); try again later", by_ring ? FS_RING_PARKED : PARKED_MAX,
			     by_ring ? " with -o io_uring" : "");
	if (rc == 0) {
		k->nr++;
		k->nr_by_ring += by_ring;
	}
	(void)pthread_mutex_unlock(&k->lock);
	return rc;
}

static char *copy(const char *from, size_t bytes, char **to)
{
	char *at = *to;

	if (!from)
		return NULL;
	memcpy(at, from, bytes);
	*to += bytes + 1;
	return at;
}

static struct parked *parked_new(fuse_req_t req, struct rs_job *job, const struct fs_asked *a, struct sc_err *err)
{
	const bool by_ring = fuse_req_is_uring(req);
	const size_t name = a && a->name ? strlen(a->name) : 0, text = a && a->text ? a->bytes : 0;
	struct fs *fs = fs_of(req);
	struct parked *p;
	char *to;

	if (count(&parking, by_ring, a && a->is_again, err) < 0)
		return NULL;
	p = sc_zalloc(sizeof(*p) + name + text + 2);
	if (!p) {
		(void)pthread_mutex_lock(&parking.lock);
		parking.nr--;
		parking.nr_by_ring -= by_ring;
		(void)pthread_mutex_unlock(&parking.lock);
		(void)sc_nomem(err);
		return NULL;
	}
	p->req = req;
	p->fs = fs;
	p->job = job;
	p->number = fs_request_number();
	p->thread = fuse_req_ctx(req)->pid;
	p->by_ring = by_ring;
	if (a) {
		p->asked = *a;
		p->asked.is_again = true;
		to = p->texts;
		p->asked.name = copy(a->name, name, &to);
		p->asked.text = copy(a->text, text, &to);
	}
	return p;
}

/* Makes a request interruptible, before it is in the list: from then on it may be answered at any time. */
static void arm(struct parked *p)
{
	if (!p->by_ring)
		fuse_req_interrupt_func(p->req, on_interrupt, p);
}

int fs_enter(fuse_req_t req, struct rs_job *job, const struct fs_asked *a, struct sc_err *err)
{
	struct fs_parking *k = &parking;
	struct parked *p;
	bool is_in;

	if (rs_tree_try_enter(job))
		return RS_HERE;
	if (fs_was_done()) { /* G2 */
		rs_tree_enter(job);
		return RS_HERE;
	}
	p = parked_new(req, job, a, err);
	if (!p)
		return err->code;
	arm(p);
	(void)pthread_mutex_lock(&k->lock);
	is_in = rs_tree_try_enter(job); /* G4 */
	if (!is_in) {
		add(k, p);
		(void)pthread_cond_signal(&k->wake);
	}
	(void)pthread_mutex_unlock(&k->lock);
	if (!is_in)
		return RS_LATER;
	disarm(p);
	parked_free(p);
	return RS_HERE;
}

/* --- commands --- */

/* Tells whether a command of a job runs.  The caller holds the lock. */
static bool is_commanded(const struct fs_parking *k, const struct rs_job *job)
{
	for (unsigned i = 0; i < k->nr_commanded; i++)
		if (k->commanded[i] == job)
			return true;
	return false;
}

/* Takes the next command for a thread.  The caller holds the lock. */
static struct parked *next_order(struct fs_parking *k)
{
	struct parked *p = k->stop ? NULL : k->first;

	while (p && (!p->order || is_commanded(k, p->job)))
		p = p->next;
	return take(k, p);
}

/* Ends the command of a job, and returns the command that this thread is to carry out next. */
static struct parked *end_order(struct fs_parking *k, const struct rs_job *job)
{
	struct parked *p;

	(void)pthread_mutex_lock(&k->lock);
	for (unsigned i = 0; i < k->nr_commanded; i++)
		if (k->commanded[i] == job)
			k->commanded[i] = k->commanded[--k->nr_commanded];
	p = next_order(k);
	if (p)
		k->commanded[k->nr_commanded++] = p->job;
	(void)pthread_mutex_unlock(&k->lock);
	return p;
}

static void *command_thread(void *arg)
{
	struct parked *p = arg;
	struct fs *fs = p->fs;
	struct fs_parking *k = &parking;

	while (p) {
		const struct rs_job *job = p->job;
		struct fs_order *order = p->order;

		disarm(p);
		order->run(order);
		parked_free(p);
		p = end_order(k, job);
		order->answer(order);
	}
	(void)__atomic_sub_fetch(&fs->waiting_threads, 1, __ATOMIC_RELEASE);
	return NULL;
}

static int start_command(struct parked *p, struct sc_err *err)
{
	struct fs *fs = p->fs;
	int rc;

	(void)__atomic_add_fetch(&fs->waiting_threads, 1, __ATOMIC_ACQUIRE);
	rc = sc_thread_release("scalai-command", command_thread, p, err);
	if (rc < 0)
		(void)__atomic_sub_fetch(&fs->waiting_threads, 1, __ATOMIC_RELEASE);
	return rc;
}

/* Tells whether a command of the job may begin.  The caller holds the lock. */
static bool may_begin(const struct fs_parking *k, const struct rs_job *job)
{
	return !k->stop && !is_commanded(k, job) && k->nr_commanded < COMMANDS_MAX;
}

int fs_order(fuse_req_t req, struct rs_job *job, struct fs_order *order, struct sc_err *err)
{
	struct fs_parking *k = &parking;
	struct parked *p = parked_new(req, job, NULL, err);
	bool begins;
	int rc = 0;

	if (!p)
		return err->code;
	p->order = order;
	arm(p);
	(void)pthread_mutex_lock(&k->lock);
	begins = may_begin(k, job);
	if (begins) {
		k->commanded[k->nr_commanded++] = job;
	} else {
		add(k, p);
		(void)pthread_cond_signal(&k->wake);
	}
	(void)pthread_mutex_unlock(&k->lock);
	if (begins)
		rc = start_command(p, err);
	if (rc == 0)
		return 0;
	fs_order_ends(job);
	disarm(p);
	parked_free(p);
	return rc;
}

int fs_order_here(struct rs_job *job, struct sc_err *err)
{
	struct fs_parking *k = &parking;
	char name[SC_NAME_BYTES_MAX + 1];
	bool begins;

	(void)pthread_mutex_lock(&k->lock);
	begins = may_begin(k, job);
	if (begins)
		k->commanded[k->nr_commanded++] = job;
	(void)pthread_mutex_unlock(&k->lock);
	return begins ? 0
		      : sc_fail(err, SC_E_BUSY, "a command of job '%s', such as commit, has not ended; try again when "
				"it has", rs_job_name(job, name, sizeof(name)));
}

void fs_order_ends(struct rs_job *job)
{
	struct parked *p = end_order(&parking, job);
	struct sc_err ignored;

	while (p && start_command(p, &ignored) < 0) { /* there are no threads left */
		job = p->job;
		answer_early(p, EAGAIN);
		p = end_order(&parking, job);
	}
}

void fs_parked_stop(void)
{
	struct fs_parking *k = &parking;

	(void)pthread_mutex_lock(&k->lock);
	k->stop = true;
	(void)pthread_cond_broadcast(&k->wake);
	(void)pthread_mutex_unlock(&k->lock);
	for (unsigned i = 0; i < k->nr_runners; i++)
		sc_thread_join(&k->runners[i]);
}
