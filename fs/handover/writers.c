/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Keeps the handles that may write as the next daemon has to know them: W1 and W2 of
 * reshard/worktree/requests/opened.c hold also when the daemon is killed, because each count has an entry in memory
 * that the holder keeps.
 *
 * An entry is made before its count and removed after it; the kernel is answered in between.  The next daemon counts
 * all entries before it serves.  Requests that were not answered are resent, one at a time: a resent OPEN finds the
 * entry that it had made by its thread, because a thread waits for only one OPEN at a time.  An entry that is neither
 * known to be answered nor asked for again belongs to a client that was killed meanwhile, or was answered in the
 * daemon's last instant; it is dropped after LOST_NS, and from then on only the lease protects its file.
 */
#include "fs/handover/handover.h"

#include <errno.h>

#include "fs/handover/hold.h"

#define LOST_NS INT64_C(10000000000)

static int number(struct fs *fs, uint32_t *ret)
{
	struct fs_kept *kept = fs->kept;

	if (fs->free_writers.nr)
		*ret = fs->free_writers.at[--fs->free_writers.nr];
	else if (kept->nr_writers < FS_WRITERS_MAX)
		*ret = kept->nr_writers++;
	else
		return -1;
	return 0;
}

/* Drops an entry.  The caller holds fs->lock. */
static void drop(struct fs *fs, uint32_t at)
{
	struct fs_writer *w = &fs->kept->writers[at];
	uint64_t blob = w->blob;

	rs_writer_end(fs->service, blob);
	__atomic_store_n(&w->blob, 0, __ATOMIC_RELEASE);
	(void)sc_vec_push(&fs->free_writers, at); /* else: the entry is lost until the next daemon */
}

/* Finds the entry that the same request had made in a daemon that died; FS_WRITERS_MAX: there is none. */
static uint32_t find_again(struct fs *fs, uint64_t blob, pid_t thread)
{
	uint32_t found = FS_WRITERS_MAX;

	for (uint32_t i = 0; fs->replays && i < fs->kept->nr_writers; i++) {
		const struct fs_writer *w = &fs->kept->writers[i];

		if (w->blob == blob && w->thread == thread && !w->answered && w->generation != fs->kept->generation &&
		    (found == FS_WRITERS_MAX || w->order > fs->kept->writers[found].order))
			found = i;
	}
	return found;
}

int fs_writer_begin(struct fs *fs, struct fs_handle *h, uint64_t blob, pid_t thread, struct sc_err *err)
{
	struct fs_kept *kept = fs->kept;
	uint32_t at;
	int rc = 0;

	(void)pthread_mutex_lock(&fs->lock);
	at = find_again(fs, blob, thread);
	if (at == FS_WRITERS_MAX) {
		if (number(fs, &at) < 0)
			rc = sc_fail_sys(err, ENFILE, "too many files are open for writing (limit %d); close some",
					 FS_WRITERS_MAX);
		if (rc == 0) {
			kept->writers[at] = (struct fs_writer){.thread = thread, .order = ++kept->writer_order};
			__atomic_store_n(&kept->writers[at].blob, blob, __ATOMIC_RELEASE);
			rc = rs_writer_begin(fs->service, blob, err);
			if (rc < 0)
				kept->writers[at].blob = 0;
		}
	}
	if (rc == 0) {
		kept->writers[at].fh = h->number;
		kept->writers[at].generation = kept->generation;
		h->writer = at + 1;
	}
	(void)pthread_mutex_unlock(&fs->lock);
	return rc;
}

void fs_writer_answered(struct fs *fs, uint32_t writer, uint64_t fh)
{
	if (!writer)
		return;
	(void)pthread_mutex_lock(&fs->lock);
	if (fs->kept->writers[writer - 1].fh == fh)
		fs->kept->writers[writer - 1].answered = true;
	(void)pthread_mutex_unlock(&fs->lock);
}

void fs_writer_end(struct fs *fs, const struct fs_handle *h, uint64_t fh)
{
	struct fs_kept *kept = fs->kept;

	(void)pthread_mutex_lock(&fs->lock);
	if (h && h->writer)
		drop(fs, h->writer - 1);
	for (uint32_t i = 0; !fs_handle_is_mine(fs, fh) && i < kept->nr_writers; i++)
		if (kept->writers[i].blob && kept->writers[i].fh == fh)
			drop(fs, i);
	(void)pthread_mutex_unlock(&fs->lock);
}

/* --- reservations --- */

/* Ends the first reservation of a blob and thread, or (blob 0) all that are over.  The caller holds fs->lock. */
static void redeem(struct fs *fs, uint64_t blob, pid_t thread)
{
	int64_t now = sc_now_ns();

	for (size_t i = 0; i < FS_RESERVED_MAX; i++) {
		struct fs_reserved *r = &fs->kept->reserved[i];
		uint64_t reserved = r->blob;

		if (!reserved || (blob ? reserved != blob || r->thread != thread : now < r->until_ns))
			continue;
		rs_writer_redeem(fs->service, reserved);
		__atomic_store_n(&r->blob, 0, __ATOMIC_RELEASE);
		if (blob)
			return;
	}
}

void fs_reserve(struct fs *fs, uint64_t blob, pid_t thread)
{
	int64_t until = sc_now_ns() + RS_RESERVED_NS;
	struct fs_reserved *free_entry = NULL;
	struct sc_err ignored;

	(void)pthread_mutex_lock(&fs->lock);
	redeem(fs, 0, 0);
	for (size_t i = 0; !free_entry && i < FS_RESERVED_MAX; i++)
		if (!fs->kept->reserved[i].blob)
			free_entry = &fs->kept->reserved[i];
	/* without room or memory a commit may come first, and the program is told ESTALE */
	if (free_entry && rs_writer_reserve(fs->service, blob, until, &ignored) == 0) {
		free_entry->thread = thread;
		free_entry->until_ns = until;
		__atomic_store_n(&free_entry->blob, blob, __ATOMIC_RELEASE);
	}
	(void)pthread_mutex_unlock(&fs->lock);
}

void fs_redeem(struct fs *fs, uint64_t blob, pid_t thread)
{
	(void)pthread_mutex_lock(&fs->lock);
	redeem(fs, blob, thread);
	(void)pthread_mutex_unlock(&fs->lock);
}

/* --- a daemon that takes over --- */

int fs_writers_load(struct fs *fs, struct sc_err *err)
{
	struct fs_kept *kept = fs->kept;
	int rc = 0;

	for (uint32_t i = 0; rc == 0 && i < kept->nr_writers; i++)
		if (kept->writers[i].blob)
			rc = rs_writer_begin(fs->service, kept->writers[i].blob, err);
		else
			rc = sc_vec_push(&fs->free_writers, i) < 0 ? sc_nomem(err) : 0;
	for (size_t i = 0; rc == 0 && i < FS_RESERVED_MAX; i++)
		if (kept->reserved[i].blob)
			rc = rs_writer_reserve(fs->service, kept->reserved[i].blob, kept->reserved[i].until_ns, err);
	return rc;
}

void fs_writers_settle(struct fs *fs)
{
	fs->lost_writers_ns = sc_now_ns() + LOST_NS;
}

void fs_writers_check(struct fs *fs)
{
	struct fs_kept *kept = fs->kept;

	(void)pthread_mutex_lock(&fs->lock);
	redeem(fs, 0, 0);
	if (fs->lost_writers_ns && sc_now_ns() > fs->lost_writers_ns) {
		fs->lost_writers_ns = 0;
		for (uint32_t i = 0; i < kept->nr_writers; i++) {
			const struct fs_writer *w = &kept->writers[i];

			if (w->blob && !w->answered && w->generation != kept->generation)
				drop(fs, i);
		}
	}
	(void)pthread_mutex_unlock(&fs->lock);
}
