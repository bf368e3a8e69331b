/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A disk that remembers what was done to it: serves IMAGE (read into memory) as MOUNTPOINT/disk and
 * appends each write and each flush to LOG, in order. A loop device over it is a block device whose
 * power can be cut at any point (power.py).
 *
 *     recorder IMAGE LOG MOUNTPOINT [BAD]
 *
 * LOG: records of { u64 offset; u64 bytes; data }, bytes 0 is a flush.
 * BAD: lines "OFFSET BYTES", which may change at any time: reading any of these bytes fails with EIO, as of a disk that
 * has lost them (e2e 25).
 */
#define FUSE_USE_VERSION 318
#include <errno.h>
#include <fcntl.h>
#include <fuse_lowlevel.h>
#include <pthread.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

static unsigned char *disk;
static size_t disk_bytes;
static int log_fd;
static const char *bad;

static void append(const void *p, size_t n)
{
	if (write(log_fd, p, n) != (ssize_t)n) {
		perror("recorder: log");
		_exit(1);
	}
}

static struct stat stat_of(fuse_ino_t ino)
{
	struct stat st = {.st_ino = ino, .st_mode = ino == 1 ? S_IFDIR | 0755 : S_IFREG | 0600, .st_nlink = 1,
			  .st_size = ino == 1 ? 0 : (off_t)disk_bytes};

	return st;
}

static void do_lookup(fuse_req_t req, fuse_ino_t parent, const char *name)
{
	struct fuse_entry_param e = {.ino = 2, .attr = stat_of(2), .attr_timeout = 1e6, .entry_timeout = 1e6};

	if (parent != 1 || strcmp(name, "disk") != 0)
		(void)fuse_reply_err(req, ENOENT);
	else
		(void)fuse_reply_entry(req, &e);
}

static void do_getattr(fuse_req_t req, fuse_ino_t ino, struct fuse_file_info *fi)
{
	struct stat st = stat_of(ino);

	(void)fi;
	(void)fuse_reply_attr(req, &st, 1e6);
}

static void do_open(fuse_req_t req, fuse_ino_t ino, struct fuse_file_info *fi)
{
	(void)ino;
	fi->direct_io = bad != NULL; /* what it has read before it does not keep */
	(void)fuse_reply_open(req, fi);
}

static bool is_bad(unsigned long long at, size_t n)
{
	unsigned long long from, bytes;
	bool found = false;
	FILE *f = bad ? fopen(bad, "re") : NULL;

	while (f && !found && fscanf(f, "%llu %llu", &from, &bytes) == 2)
		found = at < from + bytes && from < at + n;
	if (f)
		(void)fclose(f);
	return found;
}

static void do_read(fuse_req_t req, fuse_ino_t ino, size_t n, off_t at, struct fuse_file_info *fi)
{
	(void)ino;
	(void)fi;
	if (is_bad((unsigned long long)at, n)) {
		(void)fuse_reply_err(req, EIO);
		return;
	}
	if ((size_t)at > disk_bytes)
		at = (off_t)disk_bytes;
	(void)fuse_reply_buf(req, (const char *)disk + at, n < disk_bytes - (size_t)at ? n : disk_bytes - (size_t)at);
}

static void do_write(fuse_req_t req, fuse_ino_t ino, const char *p, size_t n, off_t at, struct fuse_file_info *fi)
{
	unsigned long long head[2] = {(unsigned long long)at, n};

	(void)ino;
	(void)fi;
	if ((size_t)at + n > disk_bytes) {
		(void)fuse_reply_err(req, ENOSPC);
		return;
	}
	memcpy(disk + at, p, n);
	append(head, sizeof(head));
	append(p, n);
	(void)fuse_reply_write(req, n);
}

static void do_fsync(fuse_req_t req, fuse_ino_t ino, int data_only, struct fuse_file_info *fi)
{
	unsigned long long head[2] = {0, 0};

	(void)ino;
	(void)data_only;
	(void)fi;
	append(head, sizeof(head));
	(void)fuse_reply_err(req, 0);
}

static const struct fuse_lowlevel_ops ops = {.lookup = do_lookup, .getattr = do_getattr, .open = do_open,
					     .read = do_read, .write = do_write, .fsync = do_fsync};

int main(int argc, char **argv)
{
	struct fuse_args args = FUSE_ARGS_INIT(0, NULL);
	struct fuse_session *se;
	struct stat st;
	int fd = argc == 4 || argc == 5 ? open(argv[1], O_RDONLY) : -1;

	if (fd < 0 || fstat(fd, &st) < 0)
		return 2;
	bad = argv[4];
	disk_bytes = (size_t)st.st_size;
	disk = mmap(NULL, disk_bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE, fd, 0);
	log_fd = open(argv[2], O_WRONLY | O_CREAT | O_TRUNC | O_APPEND, 0600);
	if (disk == MAP_FAILED || log_fd < 0)
		return 1;
	(void)fuse_opt_add_arg(&args, "recorder");
	se = fuse_session_new(&args, &ops, sizeof(ops), NULL);
	if (!se || fuse_set_signal_handlers(se) != 0 || fuse_session_mount(se, argv[3]) != 0)
		return 1;
	(void)fuse_session_loop(se); /* one thread: in order */
	fuse_session_unmount(se);
	fuse_session_destroy(se);
	fuse_opt_free_args(&args);
	return 0;
}
