/* SPDX-License-Identifier: Apache-2.0 */
/* Files, folders and links that random worlds write on a node, beside its model. */
#ifndef PROP_REQUESTS_H
#define PROP_REQUESTS_H

#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
/* cmocka wants some of the above first */
#include <cmocka.h>

#include "tests/prop/files.h"
#include "tests/prop/pick.h"
#include "tests/prop/reshard/exchange/objects/two_stores.h"
#include "tests/support/paths.h"
#include "tests/support/torch_archive.h"

/* A file of torch.save() with a tensor that all ranks have, and a number of the rank's own. */
static inline void write_torch(struct node *n, uint32_t rank, unsigned own)
{
	static struct archive a;
	static const char begin[] = "\x80\2}(X\1\0\0\0wctorch._utils\n_rebuild_tensor_v2\n(" ARCHIVE_GOOD
				    "K\0K\4\x85K\1\x85\x89}tRX\3\0\0\0ownK";
	char pickle[sizeof(begin) + 3];
	size_t nr = sizeof(begin) - 1;
	struct rs_owner owner = {geteuid(), getegid(), 0600};
	struct sc_err err;
	uint64_t blob;
	int fd;

	memcpy(pickle, begin, nr);
	pickle[nr++] = (char)(own % 100);
	pickle[nr++] = 'u';
	pickle[nr++] = '.';
	archive_make_of(&a, pickle, nr);
	good(work_create(n->s, n->job, rank, "o.pt", &owner, &blob, &fd, &err), err);
	assert_int_equal(a.nr, write(fd, a.bytes, a.nr));
	(void)close(fd);
}

/* --- plain files, folders, links: any request, also one that fails --- */

static inline const char *some_path(void)
{
	static const char *const paths[] = {"notes", "notes.txt", "d/one", "d/two", "d/e/three", "e/four", "e/notes", "log"};

	return paths[pick(8)];
}

static inline void write_plain(struct node *n, uint32_t rank, const char *path)
{
	struct rs_owner owner = {geteuid(), getegid(), pick(2) ? 0644 : 0600};
	size_t bytes = pick(3) ? pick(9000) : 0;
	char *text = calloc(1, bytes + 1);
	struct sc_err err;
	uint64_t blob;
	int fd;

	for (size_t i = 0; i < bytes; i++)
		text[i] = (char)pick(256);
	if (work_create_new(n->s, n->job, rank, path, &owner, &blob, &fd, &err) == 0) {
		assert_int_equal(bytes, write(fd, text, bytes));
		(void)close(fd);
	}
	free(text);
}

static inline void change_tree(struct node *n, const struct shown *x)
{
	struct rs_owner owner = {geteuid(), getegid(), pick(2) ? 0755 : 0700};
	uint32_t rank = pick(3) ? pick(x->topo.ranks) : RS_SHARED;
	const char *path = some_path(), *other = some_path();
	struct sc_err err;

	switch (pick(10)) {
	case 0: case 1: case 2:
		write_plain(n, rank, path);
		return;
	case 3:
		(void)work_mkdir(n->s, n->job, rank, pick(2) ? "d" : "e", &owner, &err);
		return;
	case 4:
		(void)work_symlink(n->s, n->job, "../target\n of it", rank, path, &err);
		return;
	case 5:
		(void)work_link(n->s, n->job, rank, path, rank, other, &err);
		return;
	case 6:
		(void)work_rename(n->s, n->job, rank, path, rank, other, false, &err);
		return;
	case 7:
		(void)work_unlink(n->s, n->job, rank, path, &err);
		return;
	case 8:
		(void)work_set_xattr(n->s, n->job, rank, path, "user.x", pick(2) ? "1" : "another\n value", &err);
		return;
	default:
		(void)work_chattr(n->s, n->job, rank, path, &owner, 1000000000 + pick(1000), &err);
	}
}

#endif
