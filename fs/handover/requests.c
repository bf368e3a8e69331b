/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Requests that come again.  With -o hold the kernel sends the requests that a dead daemon has not answered to the next
 * one.  Some of them were carried out: their record is in the log of working trees, and only the answer is missing.  An
 * errno does not tell (ENOENT: was the name removed by this request, or was it never there?), and nothing else tells of
 * an exchange.  So a request is known by its number, which the kernel keeps when it sends it again:
 *
 *     a thread reads a request   its number -> the thread's entry, in memory that the next daemon has
 *     the log takes its record   where the record ends -> the entry, before the record is there
 *     the daemon dies
 *     the next one               the log ends before the entry's record: not done; else: done
 *
 * R1  An entry has the number of a request that is not answered yet, or that nobody asks for again.
 * R2  An entry says where its request's first record ends before that record is there.  So a request whose record is in
 *     the log has an entry that says so.
 * R3  The next daemon marks entries whose record is not in the log before it appends one: later records end there, too.
 * R4  Entries of an earlier daemon stay until the last request that comes again is answered: this daemon may die, too.
 *     A thread's own request takes none of them but the one of its number.
 *
 * A request that asks fs_was_done() makes one record, or its first one decides.  Jobs are made, renamed and removed in
 * transactions of the catalog, without a record: those requests are known by their errno (docs/durability.md).
 */
#include "fs/handover/handover.h"

#include <errno.h>
#include <fcntl.h>
#include <linux/fuse.h>
#include <string.h>
#include <sys/uio.h>
#include <unistd.h>

#include "fs/handover/hold.h"
#include "reshard/worktree/requests/tree.h"

/* <linux/fuse.h> of FUSE 7.40 has it; the headers of the distribution are older than the kernels */
#ifndef FUSE_UNIQUE_RESEND
#define FUSE_UNIQUE_RESEND (UINT64_C(1) << 63)
#endif

static _Thread_local struct fs_request *mine;
static _Thread_local bool comes_again, is_done;
static _Thread_local uint64_t number;
static pthread_key_t at_end;

static void drop(void *entry)
{
	struct fs_request *r = entry;

	__atomic_store_n(&r->sequence, 0, __ATOMIC_RELEASE);
	__atomic_store_n(&r->unique, 0, __ATOMIC_RELEASE);
}

static void enter(struct fs_request *r, uint64_t unique)
{
	__atomic_store_n(&r->sequence, 0, __ATOMIC_RELEASE); /* what it was of is answered */
	__atomic_store_n(&r->unique, unique, __ATOMIC_RELEASE);
}

static struct fs_request *find(struct fs_kept *kept, uint64_t unique)
{
	for (size_t i = 0; i < FS_REQUESTS_MAX; i++)
		if (__atomic_load_n(&kept->requests[i].unique, __ATOMIC_ACQUIRE) == unique)
			return &kept->requests[i];
	return NULL;
}

static struct fs_request *claim(struct fs_kept *kept, uint64_t unique)
{
	for (size_t i = 0; i < FS_REQUESTS_MAX; i++) {
		uint64_t none = 0;

		if (__atomic_compare_exchange_n(&kept->requests[i].unique, &none, unique, false, __ATOMIC_ACQ_REL,
						__ATOMIC_RELAXED))
			return &kept->requests[i];
	}
	return NULL;
}

static void take(struct fs_request *r)
{
	mine = r;
	rs_log_note(r ? &r->sequence : NULL);
	(void)pthread_setspecific(at_end, r);
}

/* Enters a request that this thread is to serve. */
static void came_to(struct fs *fs, uint64_t unique)
{
	if (mine)
		enter(mine, unique);
	else
		take(claim(fs->kept, unique));
	if (!mine)
		sc_log(SC_LOG_ERROR, "more than %d threads serve at once: if this daemon is killed now, a program may "
		       "get a wrong errno", FS_REQUESTS_MAX);
}

/* Enters a request that has come. */
static void came(struct fs *fs, uint64_t unique)
{
	comes_again = unique & FUSE_UNIQUE_RESEND;
	unique &= ~FUSE_UNIQUE_RESEND;
	number = unique;
	if (!unique)
		return;
	if (comes_again) {
		take(find(fs->kept, unique));
		is_done = mine && mine->sequence;
	}
	if (!is_done)
		came_to(fs, unique);
}

static ssize_t read_request(int fd, void *buf, size_t bytes, void *fs)
{
	ssize_t n = read(fd, buf, bytes);

	if (n >= (ssize_t)sizeof(struct fuse_in_header))
		came(fs, ((const struct fuse_in_header *)buf)->unique);
	return n;
}

static ssize_t write_answer(int fd, struct iovec *parts, int nr, void *fs)
{
	(void)fs;
	return writev(fd, parts, nr);
}

static ssize_t splice_answer(int fd_in, off_t *at_in, int fd_out, off_t *at_out, size_t bytes, unsigned flags,
			     void *fs)
{
	(void)fs;
	return splice(fd_in, at_in, fd_out, at_out, bytes, flags);
}

int fs_requests_begin(struct fs *fs, struct sc_err *err)
{
	const struct fuse_custom_io io = {.read = read_request, .writev = write_answer, .splice_send = splice_answer};
	int rc = pthread_key_create(&at_end, drop);

	if (rc)
		return sc_fail_sys(err, rc, "cannot make a thread-specific key");
	rc = fuse_session_custom_io(fs->se, &io, sizeof(io), fuse_session_fd(fs->se));
	if (rc == -ENOTSUP)
		return sc_fail(err, SC_E_SYSTEM, "hold: the system's libfuse, which this program was built with, does "
			       "not show the numbers of requests (its option enable-custom-io is off); build with the "
			       "private one of tools/setup");
	return rc < 0 ? sc_fail_sys(err, -rc, "hold: libfuse does not hand over its reads") : 0;
}

void fs_requests_load(struct fs *fs)
{
	for (size_t i = 0; i < FS_REQUESTS_MAX; i++)
		if (!rs_log_had(fs->service, fs->kept->requests[i].sequence)) /* R3 */
			__atomic_store_n(&fs->kept->requests[i].sequence, 0, __ATOMIC_RELEASE);
}

bool fs_request_comes_again(void)
{
	return comes_again;
}

bool fs_was_done(void)
{
	return is_done;
}

void fs_request_answered(void)
{
	if (mine) {
		drop(mine);
		take(NULL);
	}
	is_done = false;
}

uint64_t fs_request_number(void)
{
	return number;
}

void fs_request_runs(struct fs *fs, uint64_t of)
{
	comes_again = is_done = false;
	number = of;
	if (of)
		came_to(fs, of);
}

void fs_requests_settle(struct fs *fs)
{
	for (size_t i = 0; i < FS_REQUESTS_MAX; i++)
		if (&fs->kept->requests[i] != mine)
			drop(&fs->kept->requests[i]);
}
