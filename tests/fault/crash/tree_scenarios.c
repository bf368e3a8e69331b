/* SPDX-License-Identifier: Apache-2.0 */
/* Folders, links and attributes. */
#include "tests/fault/crash/crash.h"

#include <errno.h>
#include <fcntl.h>
#include <string.h>
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

/* Links of both kinds that were made after a topology, over those of before. */
void with_turned_links(struct rs_service *s)
{
	with_tree(s);
	COMMAND(s, rs_job_topology, "tp=4 dp=2");
	put(s, 5, "own/a", "a", 1);
	IN_TREE(s, work_link(s, job_of(s), 5, "own/a", 5, "own/b", &err));
	IN_TREE(s, work_link(s, job_of(s), 5, "own/a", 5, "c", &err));
	IN_TREE(s, work_symlink(s, job_of(s), "own/a", 5, "latest", &err));
	IN_TREE(s, work_link(s, job_of(s), 5, "latest", 5, "own/latest", &err));
	IN_TREE(s, work_link(s, job_of(s), RS_SHARED, "shared/all", RS_SHARED, "everything", &err));
	IN_TREE(s, work_set_xattr(s, job_of(s), 5, "own/b", "user.of", "three names", &err));
}

/* What a topology brought has got other names, and things were put beside it. */
void with_moved_brought(struct rs_service *s)
{
	committed(s);
	for (uint32_t r = 0; r < 4; r++) {
		make_folder(s, r, "both", 0755);
		make_folder(s, r, "both/deep", 0750);
		put(s, r, "both/deep/x", "the same on all", 15);
	}
	do_commit(s);
	work(s);
	COMMAND(s, rs_job_topology, "tp=4 dp=2");
	IN_TREE(s, work_rename(s, job_of(s), 5, "both", 5, "turned", false, &err));
	put(s, 5, "turned/new", "new", 3);
	IN_TREE(s, work_mkfifo(s, job_of(s), 5, "turned/deep/fifo", &err));
	IN_TREE(s, work_link(s, job_of(s), 5, "turned/deep/x", 5, "again", &err));
	IN_TREE(s, work_set_xattr(s, job_of(s), 5, "turned/deep", "user.of", "a folder", &err));
	IN_TREE(s, work_rename(s, job_of(s), 6, "notes.txt", 6, "both/notes.txt", false, &err));
	put(s, 6, "notes.txt", "another one", 11);
}

/* Files of tensors have a plain name, too, and on one rank another name still. */
void with_both_kinds(struct rs_service *s)
{
	committed(s);
	COMMAND(s, rs_job_layout, "plain *.bak\nuse megatron-gpt vocab=300 tied=embedding.word_embeddings.weight");
	for (uint32_t r = 0; r < 4; r++)
		IN_TREE(s, work_link(s, job_of(s), r, "model.safetensors", r, "model.bak", &err));
	IN_TREE(s, work_link(s, job_of(s), 1, "model.bak", 1, "older.bak", &err));
	IN_TREE(s, work_set_xattr(s, job_of(s), 1, "model.bak", "user.of", "three names", &err));
}

/* Versions with and without that tree, which is the older one. */
void with_other_tree(struct rs_service *s)
{
	with_dirty_tree(s);
	do_commit(s);
	work(s);
}

static uint64_t blob_of_log(struct rs_service *s)
{
	struct sc_err err = {0};
	struct rs_look look;

	must(rs_look(s, job_of(s), NULL, 1, "logs/run.log", &look, &err), &err);
	if (look.kind != RS_WORK)
		die("the log is no file of the working tree");
	return look.blob;
}

static void append_to_log(struct rs_service *s, const char *text)
{
	struct sc_err err = {0};
	int fd;

	must(meta_store_open_work(rs_service_store(s), blob_of_log(s), O_WRONLY | O_APPEND, &fd, &err), &err);
	if (write(fd, text, strlen(text)) != (ssize_t)strlen(text))
		die("write: %s", strerror(errno));
	(void)close(fd);
}

/* A log under two names, and what else is uncommitted. */
void with_log(struct rs_service *s)
{
	with_tree(s);
	COMMAND(s, rs_job_layout, "log logs/*.log\nuse megatron-gpt vocab=300 tied=embedding.word_embeddings.weight");
	put(s, 1, "logs/run.log", "first\n", 6);
	IN_TREE(s, work_link(s, job_of(s), 1, "logs/run.log", 1, "logs/same.log", &err));
	IN_TREE(s, work_set_xattr(s, job_of(s), 1, "logs/run.log", "user.of", "a log", &err));
	put(s, 1, "logs/b", "other bytes", 11);
}

/* A program has it open all the time. */
void do_commit_log(struct rs_service *s)
{
	const uint64_t blob = blob_of_log(s);
	struct sc_err err = {0};

	must(rs_writer_begin(s, blob, &err), &err);
	do_commit(s);
	if (blob_of_log(s) != blob)
		die("the log is another file after the commit");
	rs_writer_end(s, blob);
}

/* It was committed while it was open, and more was written to it. */
void with_kept_log(struct rs_service *s)
{
	with_log(s);
	do_commit_log(s);
	append_to_log(s, "second\n");
	work(s);
}

void do_rollback_log(struct rs_service *s)
{
	COMMAND(s, rs_job_rollback, "4");
}

void do_discard_log(struct rs_service *s)
{
	const uint64_t blob = blob_of_log(s);
	struct sc_err err = {0};

	put(s, 1, "logs/b", "more", 4);
	must(rs_writer_begin(s, blob, &err), &err);
	do_discard(s);
	if (blob_of_log(s) != blob)
		die("the log is another file after a discard");
	rs_writer_end(s, blob);
}

void do_exchange(struct rs_service *s)
{
	const struct meta_bytes a = {"logs", 4}, b = {"empty", 5};
	uint64_t folder = rs_job_root(job_of(s)) + 2;

	IN_TREE(s, rs_tree_rename(s, job_of(s), folder, a, folder, b, RS_RENAME_EXCHANGE, &err));
	flush_tree(s);
}

void do_rollback_tree(struct rs_service *s)
{
	COMMAND(s, rs_job_rollback, "2");
}

/* A committed file, its copy and a removed one are open: they lose their names. */
void do_discard_held(struct rs_service *s)
{
	struct rs_look look;
	uint64_t blob;

	IN_TREE(s, work_copy_up(s, job_of(s), 1, "logs/b", false, &blob, &err));
	IN_TREE(s, rs_work_hold(s, blob, &err));
	IN_TREE(s, work_find(s, job_of(s), 1, "logs/deep/c", &look, &err));
	if (look.kind != RS_NONE)
		IN_TREE(s, work_copy_up(s, job_of(s), 1, "logs/deep/c", true, &blob, &err));
	IN_TREE(s, rs_work_hold(s, blob, &err));
	do_discard(s);
	rs_work_release(s, blob);
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
