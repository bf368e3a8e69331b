/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Open control files.  One write(2) is one command, decided inside write(2); what is read is rendered at open, so that
 * one reader sees one consistent text.  A write that repeats the one before, which was refused, is refused with the
 * same errno and not tried: Python sends a refused command again when it closes the file, and hides what comes of that.
 * A document (RS_CTL_DOCUMENT) comes in pieces and is judged at close(2), but for a single line `use ...`, which is a
 * command.  After a refused piece the others are refused, too.
 *
 * What a file says and does is its row's (reshard/service/control.h): of a job's files none is known by its name here.
 */
#include "fs/control/control.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>
#include <xxhash.h>

#include "fs/handover/handover.h"
#include "fs/request/parked.h"
#include "fs/request/request.h"
#include "reshard/command/commands/head.h"

/* What is remembered of a write, to know when it comes again. */
struct written {
	off_t at;
	size_t bytes;
	uint64_t hash;
};

struct fs_control {
	const struct rs_control *row;
	struct rs_job *job;	/* NULL: a file of /.ctl */
	pthread_mutex_t lock;	/* two threads may share a descriptor */
	struct sc_buf text;	/* what is read */
	struct written last;	/* the last write that was tried */
	int refused;		/* its errno; 0: it was not refused */
	/* RS_CTL_ANSWER: the answer's first byte is where the first read after the write starts */
	off_t base;
	bool rebase;
	/* RS_CTL_DOCUMENT */
	struct sc_buf document;
	bool judged;
	int spoilt;		/* errno of its other pieces, once one was refused or lost */
	bool lost;		/* opened by a daemon that died: what it had written and read is not known */
	unsigned nr_running;	/* commands in threads of their own; who ends the last one of a closed file frees it */
	bool is_closed;
	struct fs_poll poll;	/* its `seen`: news that `text` shows */
};

static struct rs_caller caller(fuse_req_t req, const struct fs *fs, const struct fs_command *command)
{
	const struct fuse_ctx *ctx = fuse_req_ctx(req);

	return (struct rs_caller){fs->service, ctx->uid, ctx->gid, fs->device, command ? command->token : 0};
}

static int render(fuse_req_t req, struct fs *fs, struct fs_control *c, struct sc_err *err)
{
	const struct rs_caller who = caller(req, fs, NULL);

	sc_buf_done(&c->text);
	if (c->job)
		fs_poll_seen(&c->poll);
	return rs_control_read(c->row, &who, c->job, &c->text, err);
}

int fs_control_open(fuse_req_t req, struct fs *fs, struct rs_job *job, const struct rs_control *row, int flags,
		    struct fs_control **ret, struct sc_err *err)
{
	struct fs_control *c = sc_zalloc(sizeof(*c));
	int rc = c ? 0 : sc_nomem(err);

	if (rc < 0)
		return rc;
	c->job = c->poll.job = job;
	c->row = row;
	(void)pthread_mutex_init(&c->lock, NULL);
	if (job)
		rs_head_soon(job); /* what is read, or waited for, is of the newest version */
	if ((flags & O_ACCMODE) != O_WRONLY)
		rc = render(req, fs, c, err);
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
		c->spoilt = EIO;
}

static void control_free(struct fs_control *c)
{
	sc_buf_done(&c->text);
	sc_buf_done(&c->document);
	(void)pthread_mutex_destroy(&c->lock);
	sc_sys.release(c);
}

void fs_control_close(struct fs *fs, struct fs_control *c)
{
	bool is_last;

	fs_poll_end(fs, &c->poll);
	/* The caller was answered and has closed, while the thread that answered still holds the lock. */
	(void)pthread_mutex_lock(&c->lock);
	c->is_closed = true;
	is_last = !c->nr_running; /* else its program was killed, and its command goes on */
	(void)pthread_mutex_unlock(&c->lock);
	if (is_last)
		control_free(c);
}

void fs_control_read(fuse_req_t req, struct fs *fs, struct fs_control *c, uint64_t fh, size_t bytes, off_t at)
{
	const bool is_answer = c->row->flags & RS_CTL_ANSWER;
	struct sc_err err = {0};
	int rc = 0;

	(void)pthread_mutex_lock(&c->lock);
	if (c->rebase) {
		c->base = at;
		c->rebase = false;
	}
	at -= c->base;
	/* from the start again, and there is news: a new text */
	if (at == 0 && !is_answer && fs_poll_has_news(&c->poll))
		rc = render(req, fs, c, &err);
	if (rc == 0 && at == 0 && !is_answer) {
		c->lost = false;
		fs_text_begun(fs, fh, c->text.bytes);
	}
	/* the rest of a text that is not there any more, but for its end */
	if (rc == 0 && c->lost && !fs_text_is_read(fs, fh, (uint64_t)at))
		rc = sc_fail_sys(&err, EIO, "%s: the daemon was replaced; read it again", c->row->name);
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

static bool is_same(const struct written *a, const struct written *b)
{
	return a->at == b->at && a->bytes == b->bytes && a->hash == b->hash;
}

static void refuse(fuse_req_t req, struct fs_control *c, const struct sc_err *err)
{
	c->refused = fs_refuse(req, c->job, c->row->name, err);
}

/* Carries out a command.  A command that finds no room is tried once more, when the bytes of files that were removed a
 * moment ago are free. */
static int execute(struct fs *fs, struct fs_control *c, const struct rs_caller *who, const char *text,
		   struct sc_buf *answer, uint64_t *ret_held, struct sc_err *err)
{
	int rc = rs_control_write(c->row, who, c->job, text, answer, ret_held, err);

	if (rc == SC_E_NO_SPACE && fs_room_for_command(fs)) {
		*err = (struct sc_err){0};
		if (answer)
			sc_buf_done(answer);
		rc = rs_control_write(c->row, who, c->job, text, answer, ret_held, err);
	}
	return rc;
}

/* Carries out one command in this thread; a reader gets its answer next. */
static int command(struct fs *fs, struct fs_control *c, const struct rs_caller *who, const char *text,
		   uint64_t *ret_held, struct sc_err *err)
{
	const bool answers = c->row->flags & RS_CTL_ANSWER;
	int rc;

	if (answers) {
		sc_buf_done(&c->text);
		c->rebase = true;
		c->lost = false;
	}
	rc = execute(fs, c, who, text, answers ? &c->text : NULL, ret_held, err);
	if (rc < 0 && answers)
		sc_buf_done(&c->text);
	return rc;
}

/* A command in a thread of its own. */
struct long_request {
	struct fs_order order; /* first: order.run() gets it */
	enum { COMMAND, USE_LINE, DOCUMENT } what;
	struct fs *fs;
	struct fs_control *c;
	uint64_t fh;
	struct fs_waiter *waiter;
	struct rs_caller who;
	struct fs_command *command;
	struct written write;
	struct sc_err err; /* why it was refused */
	char text[];
};

/* Tells whether a command may have to wait: for commands of its job, for writers, or for nodes that show the head,
 * too. */
static bool waits(const struct fs *fs, const struct rs_control *row)
{
	return row->flags & (RS_CTL_WAITS | RS_CTL_DOCUMENT) ||
	       (row->flags & RS_CTL_MOVES && rs_head_waits(fs->service));
}

/* Notes for the descriptor that its command is over; `errnum`: it was refused, or (not `tried`) given up. */
static void is_over(const struct long_request *l, bool tried, int errnum)
{
	struct fs_control *c = l->c;
	bool is_last;

	if (l->what != COMMAND) /* the program of a document is not answered before */
		fs_document(l->fs, l->fh, false);
	(void)pthread_mutex_lock(&c->lock);
	/* no other thread has written since */
	if (tried && errnum && l->what != DOCUMENT && is_same(&l->write, &c->last))
		c->refused = errnum;
	if (errnum && l->what == USE_LINE) {
		sc_buf_done(&c->document);
		c->spoilt = errnum;
	}
	is_last = !--c->nr_running && c->is_closed;
	(void)pthread_mutex_unlock(&c->lock);
	if (is_last)
		control_free(c);
}

/* Carries out a command in its own thread.  The descriptor stays open until then, unless its program is killed. */
static void carry_out(struct fs_order *order)
{
	struct long_request *l = (struct long_request *)order;
	struct fs *fs = l->fs;
	struct sc_err *err = &l->err;

	fs_notify_runs(l->waiter, l->what == COMMAND);
	/* it waits for writers: not for those of which there is nothing left */
	if (waits(fs, l->c->row))
		fs_writers_check(fs);
	if (execute(fs, l->c, &l->who, l->text, NULL, NULL, err) < 0)
		err->errnum = err->errnum ? err->errnum : EIO;
	else
		*err = (struct sc_err){0};
}

static void answer(struct fs_order *order)
{
	struct long_request *l = (struct long_request *)order;

	is_over(l, true, l->err.errnum);
	fs_notify_done(l->waiter, l->command, &l->err);
	sc_sys.release(l);
}

static void give_up(struct fs_order *order)
{
	struct long_request *l = (struct long_request *)order;

	is_over(l, false, EINTR);
	fs_command_end(l->command);
	sc_sys.release(l->waiter);
	sc_sys.release(l);
}

static void *long_thread(void *arg)
{
	struct long_request *l = arg;
	struct fs *fs = l->fs;

	carry_out(&l->order);
	answer(&l->order);
	(void)__atomic_sub_fetch(&fs->long_threads, 1, __ATOMIC_RELEASE);
	return NULL;
}

/* Starts a command that reads everything, as verify does: only few run at once. */
static int start_long(struct long_request *l, struct sc_err *err)
{
	struct fs *fs = l->fs;

	if (__atomic_add_fetch(&fs->long_threads, 1, __ATOMIC_ACQUIRE) > FS_LONG_THREADS ||
	    sc_thread_release("scalai-long", long_thread, l, err) < 0) {
		(void)__atomic_sub_fetch(&fs->long_threads, 1, __ATOMIC_RELEASE);
		return sc_fail(err, SC_E_BUSY, "too many commands that take long, such as verify, are running (limit "
			       "%d); try again later", FS_LONG_THREADS);
	}
	return 0;
}

/* Starts a command that has a thread of its own, and answers it when it is done (`bytes` were written; 0: it is a
 * close(2) that waits).  Takes `command`, or NULL.  Fails if it could not be started. */
static int start(fuse_req_t req, struct fs *fs, struct fs_control *c, uint64_t fh, int what, const char *text,
		 size_t length, size_t bytes, struct fs_command *command, struct sc_err *err)
{
	struct fs_waiter *waiter = fs_notify_new(req, fs, c->job, c->row, bytes);
	struct long_request *l = sc_zalloc(sizeof(*l) + length + 1);
	int rc = l && waiter ? 0 : sc_nomem(err);

	if (rc == 0) {
		*l = (struct long_request){{carry_out, answer, give_up}, what, fs, c, fh, waiter,
					   caller(req, fs, command), command, c->last};
		memcpy(l->text, text, length);
		rc = waits(fs, c->row) ? fs_order(req, c->job, &l->order, err) : start_long(l, err);
	}
	if (rc == 0) {
		c->nr_running++; /* under the lock, as is_over() counts it down */
		return 0;
	}
	sc_sys.release(waiter);
	sc_sys.release(l);
	fs_command_end(command);
	return rc;
}

static void start_held(fuse_req_t req, struct fs *fs, struct fs_control *c, const char *text, size_t bytes)
{
	const struct rs_caller who = caller(req, fs, NULL);
	struct fs_waiter *waiter;
	struct sc_err err = {0};
	uint64_t held;

	if (command(fs, c, &who, text, &held, &err) < 0) {
		refuse(req, c, &err);
		return;
	}
	waiter = fs_notify_new(req, fs, c->job, c->row, bytes);
	if (waiter)
		fs_notify_hold(waiter, held);
	else
		(void)fuse_reply_err(req, ENOMEM);
}

/* Tells whether a text is one whole line `use ...`. */
static bool is_use_line(const char *text, size_t bytes)
{
	const char *end = memchr(text, '\n', bytes);

	return bytes > 4 && memcmp(text, "use ", 4) == 0 && (!end || (size_t)(end - text) == bytes - 1);
}

/* Judges a document that is complete, and answers then.  Fails if the document is refused at once. */
static int judge(fuse_req_t req, struct fs *fs, struct fs_control *c, uint64_t fh, int what, size_t bytes,
		 struct sc_err *err)
{
	int rc;

	c->judged = true;
	if (memchr(c->document.text, 0, c->document.bytes))
		rc = sc_fail(err, SC_E_COMMAND, "%s: the document has a zero byte; write text", c->row->name);
	else
		rc = start(req, fs, c, fh, what, c->document.text, c->document.bytes, bytes, NULL, err);
	if (rc < 0)
		fs_document(fs, fh, false);
	return rc;
}

static void write_document(fuse_req_t req, struct fs *fs, struct fs_control *c, uint64_t fh, const char *text,
			   size_t bytes)
{
	const bool is_use = c->document.bytes == 0 && is_use_line(text, bytes);
	struct sc_err err = {0};
	int rc = 0;

	if (c->document.bytes + bytes > rs_control_bytes_max(c->row)) {
		rc = sc_fail(&err, SC_E_LIMIT, "a %s has at most %zu bytes", c->row->name,
			     rs_control_bytes_max(c->row));
	} else {
		sc_buf_add(&c->document, text, bytes);
		c->judged = false;
		fs_document(fs, fh, true);
		if (c->document.failed)
			rc = sc_nomem(&err);
	}
	c->spoilt = 0;
	if (rc == 0 && is_use)
		rc = judge(req, fs, c, fh, USE_LINE, bytes, &err);
	else if (rc == 0)
		(void)fuse_reply_write(req, bytes);
	if (rc < 0) {
		fs_document(fs, fh, false);
		sc_buf_done(&c->document);
		refuse(req, c, &err);
		c->spoilt = c->refused;
	}
}

/* Carries out a written command and answers, unless it is a long one, which takes *ret_command and answers later. */
static void write_command(fuse_req_t req, struct fs *fs, struct fs_control *c, uint64_t fh, const char *text,
			  size_t bytes, struct fs_command **ret_command)
{
	const struct rs_caller who = caller(req, fs, *ret_command);
	struct sc_err err = {0};
	char *copy;

	if (c->row->flags & RS_CTL_LONG || waits(fs, c->row)) {
		if (start(req, fs, c, fh, COMMAND, text, bytes, bytes, sc_steal(ret_command), &err) < 0)
			refuse(req, c, &err);
		return;
	}
	copy = sc_zalloc(bytes + 1);
	if (copy)
		memcpy(copy, text, bytes);
	if (copy && c->row->flags & RS_CTL_HELD)
		start_held(req, fs, c, copy, bytes);
	else if ((copy ? command(fs, c, &who, copy, NULL, &err) : sc_nomem(&err)) < 0)
		refuse(req, c, &err);
	else
		(void)fuse_reply_write(req, bytes);
	sc_sys.release(copy);
}

void fs_control_write(fuse_req_t req, struct fs *fs, struct fs_control *c, uint64_t fh, const char *text,
		      size_t bytes, off_t at)
{
	const struct written write = {at, bytes, XXH3_64bits(text, bytes)};
	struct fs_command *begun = NULL;
	struct sc_err err = {0};
	bool replay = false;
	int rc = 0;

	/* each write is a command of its own, whatever its offset */
	(void)pthread_mutex_lock(&c->lock);
	if (c->refused && !is_same(&write, &c->last))
		c->refused = 0;
	c->last = write;
	if (c->row->flags & RS_CTL_MOVES)
		begun = fs_command_begin(fs, fh, text, bytes, at, &replay);
	if (replay)
		rc = rs_requested(fs->service, begun->token, &err);
	if (c->refused) {
		(void)fuse_reply_err(req, c->refused);
	} else if (c->spoilt && (fs_document_is_lost(fs, fh) || !is_use_line(text, bytes))) {
		(void)fuse_reply_err(req, c->spoilt);
	} else if (rc < 0) {
		refuse(req, c, &err);
	} else if (rc > 0) {
		(void)fuse_reply_write(req, bytes); /* it was done before the daemon died */
	} else if (c->row->flags & RS_CTL_DOCUMENT) {
		write_document(req, fs, c, fh, text, bytes);
	} else if (bytes > rs_control_bytes_max(c->row)) {
		(void)sc_fail(&err, SC_E_LIMIT, "%s: a command has at most %zu bytes, but this write has %zu",
			c->row->name,
			      rs_control_bytes_max(c->row), bytes);
		refuse(req, c, &err);
	} else if (memchr(text, 0, bytes)) {
		(void)sc_fail(&err, SC_E_COMMAND, "%s: the command has a zero byte; write text", c->row->name);
		refuse(req, c, &err);
	} else {
		write_command(req, fs, c, fh, text, bytes, &begun);
	}
	fs_command_end(begun);
	(void)pthread_mutex_unlock(&c->lock);
}

void fs_control_flush(fuse_req_t req, struct fs *fs, struct fs_control *c, uint64_t fh)
{
	struct sc_err err = {0};
	bool is_answered = false; /* or will be */

	if (!(c->row->flags & RS_CTL_DOCUMENT)) { /* a process that is forked closes it, too: a command goes on */
		(void)fuse_reply_err(req, 0);
		return;
	}
	(void)pthread_mutex_lock(&c->lock);
	if (fs_document_is_lost(fs, fh)) {
		fs_document(fs, fh, false);
		(void)sc_fail_sys(&err, EIO, "%s: the daemon was replaced before the document was closed; write it "
			"again",
				  c->row->name);
	} else if (c->document.bytes && !c->judged) {
		is_answered = judge(req, fs, c, fh, DOCUMENT, 0, &err) == 0;
	}
	if (err.code)
		(void)fs_refuse(req, c->job, c->row->name, &err);
	else if (!is_answered)
		(void)fuse_reply_err(req, 0);
	(void)pthread_mutex_unlock(&c->lock);
}

void fs_control_poll(fuse_req_t req, struct fs *fs, struct fs_control *c, struct fuse_pollhandle *ph)
{
	fs_poll_begin(req, fs, &c->poll, ph);
}
