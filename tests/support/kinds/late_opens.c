/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Holds the opens of one thread, between the kernel's lookup and its open: what a thread without CPU does by chance.
 *
 *     LATE_OPENS.thread   the thread's number: its requests OPEN wait
 *     LATE_OPENS.held     is there while one of them waits; removed, it lets the request go on
 *
 * Linked with -Wl,--wrap=op_open.
 */
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#include "fs/open/open.h"

#define LOOK_US 1000		/* how often it looks whether it may go on */

void __real_op_open(fuse_req_t req, fuse_ino_t ino, struct fuse_file_info *fi);
void __wrap_op_open(fuse_req_t req, fuse_ino_t ino, struct fuse_file_info *fi);

/* Tells whether the requests of a thread are to wait. */
static bool is_held(const char *held, pid_t thread)
{
	char path[512], text[32] = "";
	ssize_t n;
	int fd;

	(void)snprintf(path, sizeof(path), "%s.thread", held);
	fd = open(path, O_RDONLY | O_CLOEXEC);
	if (fd < 0)
		return false;
	n = read(fd, text, sizeof(text) - 1);
	(void)close(fd);
	return n > 0 && atoi(text) == thread;
}

void __wrap_op_open(fuse_req_t req, fuse_ino_t ino, struct fuse_file_info *fi)
{
	const char *held = getenv("LATE_OPENS");
	char path[512];
	int fd;

	if (held && is_held(held, fuse_req_ctx(req)->pid)) {
		(void)snprintf(path, sizeof(path), "%s.held", held);
		fd = open(path, O_WRONLY | O_CREAT | O_CLOEXEC, 0600);
		if (fd >= 0)
			(void)close(fd);
		while (access(path, F_OK) == 0)
			(void)usleep(LOOK_US);
	}
	__real_op_open(req, ino, fi);
}
