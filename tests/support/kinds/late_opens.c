/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Holds requests of a thread: its opens, between the kernel's lookup and its open, or its lookups of a name, between
 * two names of a path.  That is what happens to a thread without CPU by chance.
 *
 *     LATE_OPENS.THREAD        is there: its requests OPEN wait, or, if it has a line, its requests LOOKUP of that name
 *     LATE_OPENS.THREAD.held   is there while one of them waits; removed, it lets the request go on
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

/* Holds a request, if it is one of those that are to wait: LOOKUP of `name`, or (NULL) OPEN. */
static void hold(fuse_req_t req, const char *name)
{
	const char *held = getenv("LATE_OPENS");
	char path[512], said[64];
	ssize_t n;
	int fd;

	(void)snprintf(path, sizeof(path), "%s.%d", held ? held : "/nowhere", (int)fuse_req_ctx(req)->pid);
	fd = open(path, O_RDONLY | O_CLOEXEC);
	if (fd < 0)
		return;
	n = read(fd, said, sizeof(said) - 1);
	(void)close(fd);
	said[n > 0 ? n : 0] = 0;
	said[strcspn(said, "\n")] = 0;
	if (strcmp(said, name ? name : "") != 0)
		return;
	(void)strncat(path, ".held", sizeof(path) - strlen(path) - 1);
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
