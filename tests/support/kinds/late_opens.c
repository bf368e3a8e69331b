/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Holds requests of one thread: its opens, between the kernel's lookup and its open, or its lookups of a name, between
 * two names of a path.  That is what happens to a thread without CPU by chance.
 *
 *     LATE_OPENS.thread   the thread's number: its requests OPEN wait
 *     LATE_OPENS.name     is there: not these wait, but its requests LOOKUP of the name in this file
 *     LATE_OPENS.held     is there while one of them waits; removed, it lets the request go on
 *
 * Linked with -Wl,--wrap=op_open,--wrap=op_lookup.
 */
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "fs/calls/calls.h"
#include "fs/open/open.h"

#define LOOK_US 1000		/* how often it looks whether it may go on */

void __real_op_open(fuse_req_t req, fuse_ino_t ino, struct fuse_file_info *fi);
void __wrap_op_open(fuse_req_t req, fuse_ino_t ino, struct fuse_file_info *fi);
void __real_op_lookup(fuse_req_t req, fuse_ino_t parent, const char *name);
void __wrap_op_lookup(fuse_req_t req, fuse_ino_t parent, const char *name);

/* Reads LATE_OPENS.what, without the end of its line; false: it is not there. */
static bool read_what(const char *what, char ret[64])
{
	const char *held = getenv("LATE_OPENS");
	char path[512];
	ssize_t n;
	int fd;

	(void)snprintf(path, sizeof(path), "%s.%s", held ? held : "/nowhere", what);
	fd = open(path, O_RDONLY | O_CLOEXEC);
	if (fd < 0)
		return false;
	n = read(fd, ret, 63);
	(void)close(fd);
	ret[n > 0 ? n : 0] = 0;
	ret[strcspn(ret, "\n")] = 0;
	return n > 0;
}

/* Holds a request of the thread, if it is one of those that are to wait: LOOKUP of `name`, or (NULL) OPEN. */
static void hold(fuse_req_t req, const char *name)
{
	char thread[64], held_name[64], path[512];
	int fd;

	if (!read_what("thread", thread) || atoi(thread) != fuse_req_ctx(req)->pid ||
	    read_what("name", held_name) != (name != NULL) || (name && strcmp(name, held_name) != 0))
		return;
	(void)snprintf(path, sizeof(path), "%s.held", getenv("LATE_OPENS"));
	fd = open(path, O_WRONLY | O_CREAT | O_CLOEXEC, 0600);
	if (fd >= 0)
		(void)close(fd);
	while (access(path, F_OK) == 0)
		(void)usleep(LOOK_US);
}

void __wrap_op_open(fuse_req_t req, fuse_ino_t ino, struct fuse_file_info *fi)
{
	hold(req, NULL);
	__real_op_open(req, ino, fi);
}

void __wrap_op_lookup(fuse_req_t req, fuse_ino_t parent, const char *name)
{
	hold(req, name);
	__real_op_lookup(req, parent, name);
}
