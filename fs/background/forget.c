/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Drops objects without a name once nobody holds them.  Only the kernel knows who holds one, and a FORGET need not mean
 * that it does not know the node any more: the name may have been looked up again meanwhile.  So a thread asks the
 * kernel, by invalidating the attributes of a node: ENOENT if and only if the kernel does not know the node.  Requests
 * never wait for the thread, and the thread never waits for a job: objects of a job whose gate is closed are kept for
 * later.
 */
#include "fs/background/background.h"

#include <errno.h>

#include "fs/node/node.h"
#include "fs/open/open.h"
#include "fs/request/parked.h"
#include "fs/request/request.h"

#define GATHER_NS INT64_C(20000000)

static bool is_known(struct fs *fs, const struct fs_node *n)
{
	return fuse_lowlevel_notify_inval_inode(fs->se, fs_node_id(*n), -1, 0) != -ENOENT;
}

bool fs_is_known(void *arg, struct rs_job *job, uint64_t number)
{
	struct fs_node n = fs_node_of_number(job, number);
	struct fs *fs = arg;

	return fs->se && is_known(fs, &n);
}

/* Tells whether the kernel knows a node, if it is another one than `asked`, which it does not know. */
static bool is_another_known(struct fs *fs, const struct fs_node *asked, const struct fs_node *n)
{
	return fs_node_id(*asked) != fs_node_id(*n) && is_known(fs, n);
}

/* Enters the gate of a job, or keeps the node for when it opens (without memory, for the next mount). */
static bool enter_or_keep(struct fs *fs, struct rs_job *job, const struct fs_node *n)
{
	bool is_in;

	(void)pthread_mutex_lock(&fs->forget.lock); /* who opens the gate takes it afterwards */
	is_in = rs_tree_try_enter(job);
	if (!is_in)
		(void)sc_vec_push(&fs->forget.later, fs_node_id(*n));
	(void)pthread_mutex_unlock(&fs->forget.lock);
	return is_in;
}

void fs_opened(void *arg, struct rs_job *job)
{
	struct fs *fs = arg;

	(void)pthread_mutex_lock(&fs->forget.lock);
	for (size_t i = 0; i < fs->forget.later.nr; i++)
		(void)sc_vec_push(&fs->forget.nodes, fs->forget.later.at[i]);
	if (fs->forget.later.nr)
		(void)pthread_cond_signal(&fs->forget.wake);
	fs->forget.later.nr = 0;
	(void)pthread_mutex_unlock(&fs->forget.lock);
	fs_parked_opened(job);
}

/* Asks the kernel for the nodes of an object without a name, and drops the object if it knows none. */
static void ask(struct fs *fs, struct rs_job *job, uint64_t number, const struct fs_node *n)
{
	struct fs_node now, other;
	struct sc_err err = {0};
	struct rs_look look;
	int rc;

	if (!rs_tree_is_nameless(fs->service, job, number))
		return;
	if (is_known(fs, n))
		return;
	if (rs_tree_get(fs->service, job, number, &look, &err) == 0 && look.kind != RS_NONE) {
		now = other = fs_node_of_look(job, &look);
		other.kind = now.kind == FS_VIEW ? FS_BLOB : now.kind == FS_BLOB ? FS_VIEW : now.kind;
		if (is_another_known(fs, n, &now) || (other.kind != now.kind && is_another_known(fs, n, &other)))
			return;
		/* it was committed, and is open as it was then */
		if (look.type == S_IFREG && fs_handle_has(fs, number))
			return;
	}
	if (!enter_or_keep(fs, job, n))
		return;
	rc = rs_tree_forget(fs->service, job, number, &err);
	rs_tree_leave(job);
	if (rc < 0 && rc != SC_E_BUSY)
		sc_log(SC_LOG_WARN, "cannot drop what has no name (%s), continuing: it takes room until the next mount",
		       err.msg);
}

static void ask_node(struct fs *fs, fuse_ino_t ino)
{
	struct fs_node n = fs_node_of(ino);
	struct sc_err ignored;
	struct rs_job *job;
	uint64_t number;

	if (fs_number(fs, &n, &job, &number, &ignored) == 0)
		ask(fs, job, number, &n);
}

struct nameless {
	size_t nr, room;
	struct fs_nameless {
		struct rs_job *job;
		uint64_t number, blob;
	} *at;
};

static int on_nameless(void *arg, struct rs_job *job, uint64_t number, uint64_t blob)
{
	struct fs_nameless x = {job, number, blob};

	return sc_vec_push((struct nameless *)arg, x) < 0 ? SC_E_NO_MEMORY : 0;
}

static void ask_all(struct fs *fs)
{
	struct nameless all = {0};

	(void)rs_tree_each_nameless(fs->service, on_nameless, &all); /* else: as many as there is memory for */
	for (size_t i = 0; i < all.nr; i++) {
		const struct fs_nameless *x = &all.at[i];
		struct fs_node n = fs_node_of_number(x->job, x->number);

		struct sc_err ignored;
		mode_t type = 0;

		if (rs_job_is_removed(x->job) || rs_tree_type(fs->service, x->job, x->number, &type, &ignored) < 0)
			continue;
		if (x->blob)
			n = (struct fs_node){.kind = FS_WORK, .job = rs_job_id(x->job), .blob = x->blob};
		else if (S_ISREG(type))
			continue; /* a committed file: of which version it is known, only its FORGET says */
		ask(fs, x->job, x->number, &n);
	}
	sc_vec_done(&all);
}

/* Waits a moment, so that one wake-up serves many objects.  Committed files give no bytes back, and are often removed
 * by the thousand, by a program that needs the processors. */
static void gather(struct fs *fs)
{
	const int64_t until = sc_now_ns() + GATHER_NS;

	while (!fs->forget.is_urgent && !fs->forget.stop && !fs->forget.all)
		if (sc_sys.wait_until(&fs->forget.wake, &fs->forget.lock, until) == ETIMEDOUT)
			return;
}

/* Waits until there may be something to do; meanwhile it ends what nobody has opened in time. */
static void await(struct fs *fs)
{
	const int64_t due = fs_ahead_due(fs);

	if (!due) {
		(void)pthread_cond_wait(&fs->forget.wake, &fs->forget.lock);
	} else if (sc_sys.wait_until(&fs->forget.wake, &fs->forget.lock, due) == ETIMEDOUT) {
		(void)pthread_mutex_unlock(&fs->forget.lock);
		fs_ahead_expire(fs);
		(void)pthread_mutex_lock(&fs->forget.lock);
		return;
	}
	gather(fs);
}

static void *forgetter(void *arg)
{
	struct fs *fs = arg;

	(void)pthread_mutex_lock(&fs->forget.lock);
	while (!fs->forget.stop) {
		struct fs_nodes nodes = fs->forget.nodes;
		bool all = fs->forget.all;

		if (!nodes.nr && !all) {
			await(fs);
			continue;
		}
		fs->forget.nodes = (struct fs_nodes){0};
		fs->forget.all = fs->forget.is_urgent = false;
		fs->forget.is_busy = true;
		(void)pthread_mutex_unlock(&fs->forget.lock);
		if (all)
			ask_all(fs);
		for (size_t i = 0; i < nodes.nr; i++)
			ask_node(fs, nodes.at[i]);
		sc_vec_done(&nodes);
		(void)pthread_mutex_lock(&fs->forget.lock);
		fs->forget.is_busy = false;
		(void)pthread_cond_broadcast(&fs->forget.settled);
	}
	(void)pthread_mutex_unlock(&fs->forget.lock);
	return NULL;
}

void fs_forget(struct fs *fs, fuse_ino_t ino)
{
	struct fs_node n = fs_node_of(ino);

	if ((n.kind != FS_INODE && n.kind != FS_IMPLIED && !fs_node_is_file(&n)) || !rs_tree_any_nameless(fs->service))
		return;
	(void)pthread_mutex_lock(&fs->forget.lock);
	/* without memory it is asked for at the next mount */
	if (sc_vec_push(&fs->forget.nodes, ino) == 0 && (n.kind == FS_WORK || fs->forget.nodes.nr == 1)) {
		fs->forget.is_urgent |= n.kind == FS_WORK;
		(void)pthread_cond_signal(&fs->forget.wake);
	}
	(void)pthread_mutex_unlock(&fs->forget.lock);
}

void fs_forget_all(struct fs *fs)
{
	if (!fs->forget.thread.started || !rs_tree_any_nameless(fs->service))
		return;
	(void)pthread_mutex_lock(&fs->forget.lock);
	fs->forget.all = true;
	(void)pthread_cond_signal(&fs->forget.wake);
	(void)pthread_mutex_unlock(&fs->forget.lock);
}

int fs_forget_start(struct fs *fs, struct sc_err *err)
{
	(void)pthread_cond_init(&fs->forget.settled, NULL);
	return sc_thread_start(&fs->forget.thread, "scalai-forget", forgetter, fs, err);
}

void fs_forget_stop(struct fs *fs)
{
	if (!fs->forget.thread.started)
		return;
	(void)pthread_mutex_lock(&fs->forget.lock);
	fs->forget.stop = true;
	(void)pthread_cond_signal(&fs->forget.wake);
	(void)pthread_mutex_unlock(&fs->forget.lock);
	sc_thread_join(&fs->forget.thread);
	sc_vec_done(&fs->forget.nodes);
	sc_vec_done(&fs->forget.later);
}

void op_forget(fuse_req_t req, fuse_ino_t ino, uint64_t times)
{
	(void)times;
	fs_forget(fs_of(req), ino);
	fuse_reply_none(req);
}

void op_forget_multi(fuse_req_t req, size_t nr, struct fuse_forget_data *forgets)
{
	struct fs *fs = fs_of(req);

	for (size_t i = 0; i < nr; i++)
		fs_forget(fs, forgets[i].ino);
	fuse_reply_none(req);
}
