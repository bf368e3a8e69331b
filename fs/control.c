/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Control files.  One write(2) is one command, decided inside write(2); what is read is rendered
 * at open, so that one reader sees one consistent text.  After a refusal the descriptor answers the
 * same errno to every later write: Python sends a refused command again when it closes the file.
 *
 * `layout` takes a command too (a single line `use ...`); anything longer is a document, which
 * comes in pieces and is judged at close(2).
 */
#include "fs/fs_i.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "meta/base/metric.h"

/* in the order of fs_control_names */
enum control {
	TOPOLOGY,
	LAYOUT,
	COMMIT,
	DISCARD,
	ROLLBACK,
	VERSIONS,
	STATUS,
	WAIT,
	PLAN,
	ERROR,
	CONFIG,
	VERIFY,
	DATA,
	DIFF,
};

struct fs_control {
	struct rs_job *job;	/* NULL: a file of /.ctl */
	uint32_t index;
	pthread_mutex_t lock;	/* two threads may share a descriptor */
	struct sc_buf text;	/* what is read */
	int refused;		/* errno of the first refusal */
	/* plan, diff: the answer's first byte is where the first read after the write starts */
	off_t base;
	bool rebase;
	/* layout: a document */
	struct sc_buf document;
	bool judged;
	bool lost;		/* opened by a daemon that died: what it had written and read is not known */
	struct fs_poll poll;	/* its `seen`: news that `text` shows */
};

static int render_top(struct fs *fs, uint32_t index, struct sc_buf *buf)
{
	if (index == 0)
		sc_metrics_text(buf);
	else if (index == 1)
		sc_buf_printf(buf, "%s\npassthrough: %s\nepoch: %s\nio_uring: %s\npid: %d\nreplaced: %u\n",
			      rs_service_is_damaged(fs->service) ? "damaged" : "ok", fs->passthrough ? "yes" : "no",
			      fs->epoch ? "yes" : "no", __atomic_load_n(&fs->io_uring, __ATOMIC_RELAXED) ? "yes" : "no",
			      (int)getpid(), fs->kept->generation - 1);
	else
		sc_buf_printf(buf, "scalai %s\nlibfuse %s\n", SC_VERSION, fuse_pkgversion());
	return 0;
}

static int render(struct fs *fs, struct fs_control *c, struct sc_err *err)
{
	struct sc_buf *b = &c->text;

	sc_buf_reset(b);
	if (!c->job)
		return render_top(fs, c->index, b);
	fs_poll_seen(&c->poll);
	switch ((enum control)c->index) {
	case TOPOLOGY:
		return rs_render_topology(fs->service, c->job, b, err);
	case LAYOUT:
		return rs_render_layout(fs->service, c->job, b, err);
	case VERSIONS:
		return rs_render_versions(fs->service, c->job, b, err);
	case STATUS:
		return rs_render_status(fs->service, c->job, b, err);
	case ERROR:
		rs_render_error(c->job, b);
		return 0;
	case CONFIG:
		return rs_render_config(fs->service, c->job, b, err);
	case VERIFY:
		return rs_render_verify(fs->service, c->job, b, err);
	case DATA:
		return rs_render_data(fs->service, c->job, b, err);
	default:
		return 0; /* wait, plan and diff before a write, and what is only written */
	}
}

int fs_control_open(struct fs *fs, struct rs_job *job, bool top, uint32_t index, int flags,
		    struct fs_control **ret, struct sc_err *err)
{
	struct fs_control *c = sc_zalloc(sizeof(*c));
	int rc = c ? 0 : sc_nomem(err);

	if (rc < 0)
		return rc;
	c->job = c->poll.job = top ? NULL : job;
	c->index = index;
	(void)pthread_mutex_init(&c->lock, NULL);
	if ((flags & O_ACCMODE) != O_WRONLY)
		rc = render(fs, c, err);
	if (rc < 0) {
		fs_control_close(fs, c);
		return rc;
	}
	*ret = c;
	return 0;
}

void fs_control_lost(struct fs *fs, struct fs_control *c, uint64_t fh)
{
	c->lost = true;
	if (fs_document_is_lost(fs, fh))
		c->refused = EIO;
}

void fs_control_close(struct fs *fs, struct fs_control *c)
{
	/* The caller was answered and has closed, while the thread that answered still holds the lock. */
	(void)pthread_mutex_lock(&c->lock);
	(void)pthread_mutex_unlock(&c->lock);
	fs_poll_end(fs, &c->poll);
	sc_buf_done(&c->text);
	sc_buf_done(&c->document);
	(void)pthread_mutex_destroy(&c->lock);
	sc_sys.release(c);
}

void fs_control_read(fuse_req_t req, struct fs *fs, struct fs_control *c, uint64_t fh, size_t bytes, off_t at)
{
	struct sc_err err = {0};
	int rc = 0;

	(void)pthread_mutex_lock(&c->lock);
	if (c->rebase) {
		c->base = at;
		c->rebase = false;
	}
	at -= c->base;
	/* from the start again, and there is news: a new text */
	if (at == 0 && c->index != PLAN && c->index != DIFF && fs_poll_has_news(&c->poll))
		rc = render(fs, c, &err);
	if (rc == 0 && at == 0 && c->index != PLAN && c->index != DIFF) {
		c->lost = false;
		fs_text_begun(fs, fh, c->text.bytes);
	}
	/* the rest of a text that is not there any more, but for its end */
	if (rc == 0 && c->lost && !fs_text_is_read(fs, fh, (uint64_t)at))
		rc = sc_fail_sys(&err, EIO, "%s: the daemon was replaced; read it again", fs_control_names[c->index]);
	if (rc < 0)
		fs_fail(req, "read", &err);
	else if (c->lost || at < 0 || (size_t)at >= c->text.bytes)
		(void)fuse_reply_buf(req, NULL, 0);
	else
		(void)fuse_reply_buf(req, c->text.text + at,
				     c->text.bytes - (size_t)at < bytes ? c->text.bytes - (size_t)at : bytes);
	(void)pthread_mutex_unlock(&c->lock);
}

/* --- commands --- */

static int plan(struct fs *fs, struct fs_control *c, const char *text, struct sc_err *err)
{
	sc_buf_reset(&c->text);
	c->rebase = true;
	c->lost = false;
	return rs_render_plan(fs->service, c->job, text, &c->text, err);
}

static int diff(struct fs *fs, struct fs_control *c, const char *text, struct sc_err *err)
{
	sc_buf_reset(&c->text);
	c->rebase = true;
	c->lost = false;
	return rs_render_diff(fs->service, c->job, text, &c->text, err);
}

static int command(struct fs *fs, struct fs_control *c, const char *text, struct sc_err *err)
{
	switch ((enum control)c->index) {
	case TOPOLOGY:
		return rs_job_topology(fs->service, c->job, text, err);
	case LAYOUT:
		return rs_job_layout(fs->service, c->job, text, err);
	case DISCARD:
		return rs_job_discard(fs->service, c->job, err);
	case ROLLBACK:
		return rs_job_rollback(fs->service, c->job, text, err);
	case PLAN:
		return plan(fs, c, text, err);
	case DIFF:
		return diff(fs, c, text, err);
	case VERSIONS:
		return rs_job_tag(fs->service, c->job, text, err);
	case CONFIG:
		return rs_job_config(fs->service, c->job, text, err);
	default:
		return sc_fail(err, SC_E_PERMISSION, "%s is only read", fs_control_names[c->index]);
	}
}

static void refuse(fuse_req_t req, struct fs_control *c, const struct sc_err *err)
{
	c->refused = fs_refuse(req, c->job, fs_control_names[c->index], err);
}

struct long_request {
	struct fs *fs;
	struct fs_control *c;
	struct fs_waiter *waiter;
	uid_t uid;
	gid_t gid;
	struct fs_command *command;
	char text[];
};

static int long_command(const struct long_request *l, struct sc_err *err)
{
	struct fs *fs = l->fs;

	switch ((enum control)l->c->index) {
	case COMMIT:
		fs_writers_check(fs);
		return rs_job_commit(fs->service, l->c->job, l->text, err);
	case VERIFY:
		return rs_job_verify(fs->service, l->c->job, err);
	default:
		return rs_job_data(fs->service, l->c->job, l->text, l->uid, l->gid, fs->device, err);
	}
}

/*
 * What waits for others or reads everything there is runs in a thread of its own.  A commit waits for closes, which
 * come as requests: over io_uring, to the only thread of a core.
 */
static void *long_thread(void *arg)
{
	struct long_request *l = arg;
	struct fs *fs = l->fs;
	int *running = l->c->index == COMMIT ? &fs->commits : &fs->long_threads;
	struct sc_err err = {0};
	int rc;

	(void)rs_request(fs->service, l->command ? l->command->token : 0, false, &err);
	rc = long_command(l, &err);
	/* the descriptor stays open until it is answered */
	if (rc < 0) {
		err.errnum = err.errnum ? err.errnum : EIO;
		__atomic_store_n(&l->c->refused, err.errnum, __ATOMIC_RELEASE);
	} else {
		err = (struct sc_err){0};
	}
	fs_notify_done(l->waiter, l->command, &err);
	sc_sys.release(l);
	(void)__atomic_sub_fetch(running, 1, __ATOMIC_RELEASE);
	return NULL;
}

static void start_long(fuse_req_t req, struct fs *fs, struct fs_control *c, const char *text, size_t bytes,
		       struct fs_command *command)
{
	struct fs_waiter *waiter = fs_notify_new(req, fs, c->job, fs_control_names[c->index], bytes);
	struct long_request *l = sc_zalloc(sizeof(*l) + bytes + 1);
	const struct fuse_ctx *ctx = fuse_req_ctx(req);
	const bool commits = c->index == COMMIT;
	int *running = commits ? &fs->commits : &fs->long_threads;
	int most = !commits ? FS_LONG_THREADS : fuse_req_is_uring(req) ? FS_RING_COMMITS : FS_COMMITS;
	struct sc_err err = {0};
	pthread_t thread;

	if (!l || !waiter) {
		sc_sys.release(waiter);
		sc_sys.release(l);
		(void)sc_nomem(&err);
		refuse(req, c, &err);
		fs_command_end(command);
		return;
	}
	*l = (struct long_request){fs, c, waiter, ctx->uid, ctx->gid, command};
	memcpy(l->text, text, bytes);
	if (__atomic_add_fetch(running, 1, __ATOMIC_ACQUIRE) > most ||
	    pthread_create(&thread, NULL, long_thread, l) != 0) {
		(void)__atomic_sub_fetch(running, 1, __ATOMIC_RELEASE);
		sc_sys.release(waiter);
		sc_sys.release(l);
		(void)sc_fail(&err, SC_E_BUSY, "too many %s are running (limit %d); try again later",
			      commits ? "commits" : "verify and data commands", most);
		refuse(req, c, &err);
		fs_command_end(command);
		return;
	}
	(void)pthread_detach(thread);
}

static void start_wait(fuse_req_t req, struct fs *fs, struct fs_control *c, const char *text,
		       size_t bytes)
{
	struct fs_waiter *waiter;
	struct sc_err err = {0};
	uint64_t nr;

	if (rs_job_wait_parse(fs->service, c->job, text, &nr, &err) < 0) {
		refuse(req, c, &err);
		return;
	}
	waiter = fs_notify_new(req, fs, c->job, fs_control_names[WAIT], bytes);
	if (waiter)
		fs_notify_wait(waiter, nr);
	else
		(void)fuse_reply_err(req, ENOMEM);
}

/* Is this a whole `use ...` line? */
static bool is_use_line(const char *text, size_t bytes)
{
	const char *end = memchr(text, '\n', bytes);

	return bytes > 4 && memcmp(text, "use ", 4) == 0 && (!end || (size_t)(end - text) == bytes - 1);
}

static void write_layout(fuse_req_t req, struct fs *fs, struct fs_control *c, uint64_t fh, const char *text,
			 size_t bytes)
{
	struct sc_err err = {0};
	bool first = c->document.bytes == 0;

	if (c->document.bytes + bytes > SC_LAYOUT_BYTES_MAX) {
		(void)sc_fail(&err, SC_E_LIMIT, "a layout has at most %u bytes", SC_LAYOUT_BYTES_MAX);
		refuse(req, c, &err);
		return;
	}
	sc_buf_add(&c->document, text, bytes);
	c->judged = false;
	fs_document(fs, fh, true);
	if (c->document.failed) {
		(void)sc_nomem(&err);
		refuse(req, c, &err);
		return;
	}
	if (first && is_use_line(text, bytes)) {
		c->judged = true;
		if (command(fs, c, c->document.text, &err) < 0) {
			fs_document(fs, fh, false);
			refuse(req, c, &err);
			return;
		}
		fs_document(fs, fh, false);
	}
	(void)fuse_reply_write(req, bytes);
}

/* Decided here and answered, but for what is long. */
static void write_command(fuse_req_t req, struct fs *fs, struct fs_control *c, const char *text, size_t bytes,
			  struct fs_command **ret_command)
{
	char copy[SC_COMMAND_BYTES_MAX + 1];
	struct sc_err err = {0};

	memcpy(copy, text, bytes);
	copy[bytes] = 0;
	if (c->index == WAIT)
		start_wait(req, fs, c, copy, bytes);
	else if (c->index == VERIFY || c->index == COMMIT)
		start_long(req, fs, c, copy, bytes, sc_steal(ret_command));
	else if (command(fs, c, copy, &err) < 0)
		refuse(req, c, &err);
	else
		(void)fuse_reply_write(req, bytes);
}

void fs_control_write(fuse_req_t req, struct fs *fs, struct fs_control *c, uint64_t fh, const char *text,
		      size_t bytes, off_t at)
{
	struct fs_command *running = NULL;
	struct sc_err err = {0};
	bool replay = false;
	int rc = 0;

	/* each write is a command of its own, whatever its offset */
	if (!c->job) {
		(void)fuse_reply_err(req, EPERM);
		return;
	}
	(void)pthread_mutex_lock(&c->lock);
	if (c->index != WAIT && c->index != LAYOUT)
		running = fs_command_begin(fs, fh, text, bytes, at, &replay);
	rc = rs_request(fs->service, running ? running->token : 0, replay, &err);
	if (c->refused) {
		(void)fuse_reply_err(req, c->refused);
	} else if (rc < 0) {
		refuse(req, c, &err);
	} else if (rc > 0) {
		(void)fuse_reply_write(req, bytes); /* it was done before the daemon died */
	} else if (c->index == LAYOUT) {
		write_layout(req, fs, c, fh, text, bytes);
	} else if (c->index == DATA && !memchr(text, 0, bytes)) {
		/* many paths may make it long: as large as a write is */
		start_long(req, fs, c, text, bytes, sc_steal(&running));
	} else if (bytes > SC_COMMAND_BYTES_MAX) {
		(void)sc_fail(&err, SC_E_LIMIT, "a command has at most %d bytes, this write has %zu",
			      SC_COMMAND_BYTES_MAX, bytes);
		refuse(req, c, &err);
	} else if (memchr(text, 0, bytes)) {
		(void)sc_fail(&err, SC_E_COMMAND, "a command is text, this write has a zero byte");
		refuse(req, c, &err);
	} else {
		write_command(req, fs, c, text, bytes, &running);
	}
	fs_command_end(running);
	(void)rs_request(fs->service, 0, false, &err);
	(void)pthread_mutex_unlock(&c->lock);
}

void fs_control_flush(fuse_req_t req, struct fs *fs, struct fs_control *c, uint64_t fh)
{
	struct sc_err err = {0};

	(void)pthread_mutex_lock(&c->lock);
	if (fs_document_is_lost(fs, fh)) {
		fs_document(fs, fh, false);
		(void)sc_fail_sys(&err, EIO, "layout: the daemon was replaced before it was closed; write it again");
	} else if (c->index == LAYOUT && c->job && c->document.bytes && !c->judged && !c->refused) {
		c->judged = true;
		if (memchr(c->document.text, 0, c->document.bytes))
			(void)sc_fail(&err, SC_E_LAYOUT, "layout: it is text, this one has a zero byte");
		else
			(void)command(fs, c, c->document.text, &err);
		fs_document(fs, fh, false);
	}
	if (err.code)
		refuse(req, c, &err);
	else
		(void)fuse_reply_err(req, 0);
	(void)pthread_mutex_unlock(&c->lock);
}

void fs_control_poll(fuse_req_t req, struct fs *fs, struct fs_control *c, struct fuse_pollhandle *ph)
{
	fs_poll_begin(req, fs, &c->poll, ph);
}
