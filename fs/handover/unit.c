/* SPDX-License-Identifier: Apache-2.0 */
#include "fs/handover/unit.h"

#include <fcntl.h>
#include <poll.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include "meta/base/log.h"
#include "meta/base/sys.h"

#define FIRST_FD 3	/* of those that systemd hands over */

static const char *const names[FS_UNIT_FDS] = {"scalai-fuse", "scalai-kept", "scalai-lock"};

/* Sends a message, and a descriptor unless it is -1; without systemd nothing. */
static void say(const char *text, int fd)
{
	const char *path = getenv("NOTIFY_SOCKET");
	struct sockaddr_un to = {.sun_family = AF_UNIX};
	union {
		char room[CMSG_SPACE(sizeof(int))];
		struct cmsghdr align;
	} control = {{0}};
	struct iovec iov = {(char *)text, strlen(text)};
	struct msghdr msg = {.msg_name = &to, .msg_iov = &iov, .msg_iovlen = 1};
	int s;

	if (!path || strlen(path) >= sizeof(to.sun_path))
		return;
	memcpy(to.sun_path, path, strlen(path));
	if (*path == '@')
		to.sun_path[0] = 0;
	msg.msg_namelen = (socklen_t)(offsetof(struct sockaddr_un, sun_path) + strlen(path));
	if (fd >= 0) {
		struct cmsghdr *c;

		msg.msg_control = &control;
		msg.msg_controllen = sizeof(control);
		c = CMSG_FIRSTHDR(&msg);
		c->cmsg_level = SOL_SOCKET;
		c->cmsg_type = SCM_RIGHTS;
		c->cmsg_len = CMSG_LEN(sizeof(fd));
		memcpy(CMSG_DATA(c), &fd, sizeof(fd));
	}
	s = socket(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC, 0);
	if (s < 0)
		return;
	(void)sendmsg(s, &msg, MSG_NOSIGNAL);
	(void)close(s);
}

bool fs_unit_is(void)
{
	return getenv("NOTIFY_SOCKET") != NULL;
}

void fs_unit_ready(void)
{
	say("READY=1", -1);
}

void fs_unit_waits(const char *why)
{
	char text[1200];

	(void)snprintf(text, sizeof(text), "STATUS=%s%s", why, *why ? "\nEXTEND_TIMEOUT_USEC=60000000" : "");
	say(text, -1);
}

bool fs_unit_keeps(void)
{
	const char *most = getenv("FDSTORE");

	return getenv("NOTIFY_SOCKET") && most && atoi(most) >= FS_UNIT_FDS;
}

void fs_unit_keep(const int fds[FS_UNIT_FDS])
{
	char text[64];

	for (size_t i = 0; fs_unit_keeps() && i < FS_UNIT_FDS; i++) {
		(void)snprintf(text, sizeof(text), "FDSTORE=1\nFDNAME=%s", names[i]);
		say(text, fds[i]);
	}
}

/* Finds our descriptors among those of LISTEN_FDS, and closes others. */
static void find(int ret[FS_UNIT_FDS])
{
	const char *pid = getenv("LISTEN_PID"), *nr = getenv("LISTEN_FDS"), *of = getenv("LISTEN_FDNAMES");
	int n = pid && nr && of && atoi(pid) == getpid() ? atoi(nr) : 0;

	for (int i = 0; i < FS_UNIT_FDS; i++)
		ret[i] = -1;
	for (int fd = FIRST_FD; fd < FIRST_FD + n; fd++) {
		size_t length = strcspn(of, ":"), i = 0;

		while (i < FS_UNIT_FDS && (strlen(names[i]) != length || memcmp(names[i], of, length) != 0))
			i++;
		of += length + (of[length] == ':');
		(void)fcntl(fd, F_SETFD, FD_CLOEXEC);
		if (i < FS_UNIT_FDS && ret[i] < 0)
			ret[i] = fd;
		else
			(void)close(fd);
	}
	(void)unsetenv("LISTEN_PID");
	(void)unsetenv("LISTEN_FDS");
	(void)unsetenv("LISTEN_FDNAMES");
}

bool fs_unit_is_live(int fuse_fd)
{
	struct pollfd device = {.fd = fuse_fd};

	return poll(&device, 1, 0) >= 0 && !(device.revents & POLLERR);
}

bool fs_unit_take(bool mounted, int ret[FS_UNIT_FDS])
{
	bool all = true, any = false;
	char text[64];

	find(ret);
	for (int i = 0; i < FS_UNIT_FDS; i++) {
		all &= ret[i] >= 0;
		any |= ret[i] >= 0;
	}
	if (all && mounted && fs_unit_is_live(ret[FS_UNIT_FUSE]))
		return true;
	if (any)
		sc_log(SC_LOG_INFO, "what systemd has kept is of no living mount any more: mounting anew");
	for (int i = 0; i < FS_UNIT_FDS; i++) {
		if (ret[i] < 0)
			continue;
		if (i == FS_UNIT_LOCK)
			(void)flock(ret[i], LOCK_UN); /* systemd's copy of it unlocks, too */
		(void)snprintf(text, sizeof(text), "FDSTOREREMOVE=1\nFDNAME=%s", names[i]);
		say(text, -1);
		sc_closep(&ret[i]);
	}
	return false;
}
