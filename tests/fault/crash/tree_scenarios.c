/* SPDX-License-Identifier: Apache-2.0 */
/* Folders, links and attributes. */
#include "tests/fault/crash/crash.h"

#include <unistd.h>

#include "tests/support/paths.h"

static void make_folder(struct rs_service *s, uint32_t rank, const char *path, mode_t mode)
{
	struct rs_owner owner = {geteuid(), getegid(), mode};

	IN_TREE(s, work_mkdir(s, job_of(s), rank, path, &owner, &err));
}

/* A version with folders, an empty one among them, links of both kinds and attributes. */
void with_tree(struct rs_service *s)
{
	committed(s);
	make_folder(s, 1, "logs", 0750);
	make_folder(s, 1, "logs/deep", 0755);
	make_folder(s, 1, "empty", 0711);
	put(s, 1, "logs/a", "a", 1);
	put(s, 1, "logs/b", "b", 1);
	put(s, 1, "logs/deep/c", "c", 1);
	IN_TREE(s, work_link(s, job_of(s), 1, "logs/a", 1, "logs/deep/a", &err));
	IN_TREE(s, work_symlink(s, job_of(s), "logs/deep", 1, "latest", &err));
	IN_TREE(s, work_set_xattr(s, job_of(s), 1, "logs", "user.of", "a folder", &err));
	IN_TREE(s, work_set_xattr(s, job_of(s), 1, "logs/b", "user.of", "a file", &err));
	make_folder(s, RS_SHARED, "shared", 0775);
	put(s, RS_SHARED, "shared/all", "of all ranks", 12);
	do_commit(s);
	work(s);
}

/* All kinds of changes of that version, and things that no version has. */
void with_dirty_tree(struct rs_service *s)
{
	struct rs_owner owner = {geteuid(), getegid(), 0700};

	with_tree(s);
	IN_TREE(s, work_rename(s, job_of(s), 1, "logs", 1, "shelf", false, &err));
	IN_TREE(s, work_unlink(s, job_of(s), 1, "shelf/b", &err));
	IN_TREE(s, work_link(s, job_of(s), 1, "shelf/a", 1, "again", &err));
	IN_TREE(s, work_rmdir(s, job_of(s), 1, "empty", &err));
	make_folder(s, 1, "empty", 0755); /* another one */
	make_folder(s, 2, "new", 0755);
	put(s, 2, "new/file", "new", 3);
	IN_TREE(s, work_symlink(s, job_of(s), "../nowhere", 2, "new/link", &err));
	IN_TREE(s, work_mkfifo(s, job_of(s), 2, "new/fifo", &err));
	IN_TREE(s, work_chattr(s, job_of(s), RS_SHARED, "shared", &owner, 1000000000, &err));
	IN_TREE(s, work_set_xattr(s, job_of(s), RS_SHARED, "shared/all", "user.of", "the job", &err));
	put(s, 1, "again", "other bytes", 11);
}

void do_mkdir(struct rs_service *s)
{
	make_folder(s, 1, "logs/made", 0700);
	flush_tree(s);
}

void do_rename_committed(struct rs_service *s)
{
	IN_TREE(s, work_rename(s, job_of(s), 1, "logs", 1, "empty", false, &err)); /* in the place of an empty one */
	flush_tree(s);
}

void do_link(struct rs_service *s)
{
	IN_TREE(s, work_link(s, job_of(s), 1, "logs/deep/c", 1, "c", &err));
	flush_tree(s);
}

void do_symlink(struct rs_service *s)
{
	IN_TREE(s, work_symlink(s, job_of(s), "logs/a", 1, "logs/newest", &err));
	flush_tree(s);
}

void do_setxattr(struct rs_service *s)
{
	IN_TREE(s, work_set_xattr(s, job_of(s), 1, "logs/b", "user.of", "another value", &err));
	flush_tree(s);
}

void do_rmdir(struct rs_service *s)
{
	IN_TREE(s, work_rmdir(s, job_of(s), 1, "empty", &err));
	flush_tree(s);
}

/* As rm -r does it; what is gone already is no failure when it is done again. */
void do_rmtree(struct rs_service *s)
{
	static const struct {
		const char *path;
		bool is_dir;
	} all[] = {{"logs/deep/a", false}, {"logs/deep/c", false}, {"logs/deep", true}, {"logs/a", false}, {"logs/b", false},
		   {"logs", true}};

	for (size_t i = 0; i < sizeof(all) / sizeof(*all); i++) {
		struct rs_look look;

		IN_TREE(s, work_find(s, job_of(s), 1, all[i].path, &look, &err));
		if (look.kind != RS_NONE)
			IN_TREE(s, all[i].is_dir ? work_rmdir(s, job_of(s), 1, all[i].path, &err)
						 : work_unlink(s, job_of(s), 1, all[i].path, &err));
	}
	flush_tree(s);
}
