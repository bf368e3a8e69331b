/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Copies the logs that programs have open while a commit takes them (`log` lines of the layout,
 * reshard/worktree/requests/gate.c). The version gets a copy of the bytes that the file has at one moment, in a blob
 * of its own.  Invariants:
 *
 *  O1  The size is taken once, with the gate closed: what is appended while the bytes are copied is not in the version.
 *  O2  The copy has no other name, and nobody has it open for writing: what a program writes later changes no version.
 *  O3  The file itself, with its number, bytes, names and open handles, stays a file of the working tree, above the
 *      version that has the copy (reshard/worktree/rebase/turn.c).
 *
 * A program that writes elsewhere than at the end may be seen in the middle of that, unless the file system reflinks.
 */
#include "reshard/command/changed/items_i.h"

#include <errno.h>
#include <fcntl.h>
#include <sys/stat.h>

#include "reshard/engine/io/copy.h"

#define TRIES 8 /* a file that is emptied while it is copied is copied again */

int rs_commit_stat(struct commit *c, struct item *it, int fd)
{
	struct stat st;

	if (sc_sys.fstat(fd, &st) < 0)
		return sc_fail_sys(c->err, errno, "cannot stat '%s'", it->path);
	it->own = (struct rs_owner){st.st_uid, st.st_gid, st.st_mode & 07777};
	it->atime_ns = (int64_t)st.st_atim.tv_sec * 1000000000 + st.st_atim.tv_nsec;
	it->mtime_ns = (int64_t)st.st_mtim.tv_sec * 1000000000 + st.st_mtim.tv_nsec;
	it->ctime_ns = (int64_t)st.st_ctim.tv_sec * 1000000000 + st.st_ctim.tv_nsec;
	it->bytes = (uint64_t)st.st_size;
	return 0;
}

/* Copies the bytes that the file has now: 1, 0 (the file has become shorter meanwhile), or an error. */
static int copy_once(struct commit *c, struct item *it, int from, int to)
{
	int rc = rs_commit_stat(c, it, from), copied;
	struct stat st;

	if (rc < 0)
		return rc;
	copied = rs_copy_file(to, from, 0, it->bytes, it->path, c->err);
	if (sc_sys.fstat(from, &st) < 0)
		return sc_fail_sys(c->err, errno, "cannot stat '%s'", it->path);
	if ((uint64_t)st.st_size < it->bytes)
		return sc_sys.ftruncate(to, 0) < 0 ? sc_fail_sys(c->err, errno, "cannot copy '%s'", it->path) : 0;
	if (copied < 0)
		return copied;
	/* a reflink has all that there was, perhaps more than the size that was taken */
	if (sc_sys.ftruncate(to, (off_t)it->bytes) < 0)
		return sc_fail_sys(c->err, errno, "cannot copy '%s'", it->path);
	return 1;
}

static int copy_log(struct commit *c, struct item *it)
{
	const uint64_t work = it->blob;
	sc_cleanup(sc_closep) int from = -1;
	sc_cleanup(sc_closep) int to = -1;
	int rc = meta_store_open_work(&c->s->store, work, O_RDONLY, &from, c->err);

	if (rc < 0)
		return rc;
	it->blob = 0;
	rc = rs_pin_new(c->s, &it->blob, &to, c->err);
	it->pinned = it->blob != 0;
	it->copied = true;
	for (int i = 0; rc == 0 && i < TRIES; i++)
		rc = copy_once(c, it, from, to);
	if (rc == 0)
		rc = sc_fail(c->err, SC_E_BUSY, "'%s' is a log that becomes shorter again and again while the commit "
			     "copies it; try again, or stop its writer", it->path);
	return rc < 0 ? rc : 0;
}

/* Gives an item the copy that was made for another name of the same file, among the first `before` items. */
static bool find_copy(const struct commit *c, struct item *it, size_t before)
{
	for (size_t i = 0; i < before; i++) {
		const struct item *other = &c->items.at[i];

		if (!other->copied || other->ino != it->ino)
			continue;
		it->own = other->own;
		it->atime_ns = other->atime_ns;
		it->mtime_ns = other->mtime_ns;
		it->ctime_ns = other->ctime_ns;
		it->bytes = other->bytes;
		it->blob = other->blob;
		it->copied = true;
		return true;
	}
	return false;
}

int rs_commit_logs(struct commit *c)
{
	int rc = 0;

	for (size_t i = 0; rc == 0 && c->tree->logs.nr && i < c->items.nr; i++) {
		struct item *it = &c->items.at[i];

		if (!it->gone && !it->moved && rs_tree_is_open_log(c->tree, it->blob) && !find_copy(c, it, i))
			rc = copy_log(c, it);
	}
	return rc;
}
