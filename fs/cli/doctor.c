/* SPDX-License-Identifier: Apache-2.0 */
#include "fs/cli/doctor.h"

#include <errno.h>
#include <fcntl.h>
#include <linux/fuse.h>
#include <netdb.h>
#include <poll.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mount.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#define WAIT_MS 3000

/* --- the kernel --- */

static int fails(struct doctor_fuse *ret, const char *step)
{
	ret->errnum = errno ? errno : EIO;
	(void)snprintf(ret->step, sizeof(ret->step), "%s", step);
	return -1;
}

static int write_file(const char *path, const char *text)
{
	int fd = open(path, O_WRONLY | O_CLOEXEC), rc;

	if (fd < 0)
		return -1;
	rc = write(fd, text, strlen(text)) < 0 ? -1 : 0;
	(void)close(fd);
	return rc;
}

/* Leaves for namespaces of its own, in which this user may mount. */
static int leave(struct doctor_fuse *ret)
{
	const uid_t uid = geteuid();
	const gid_t gid = getegid();
	char map[40];

	if (unshare(CLONE_NEWNS | (uid ? CLONE_NEWUSER : 0)) < 0)
		return fails(ret, "unshare(2)");
	if (uid) {
		(void)write_file("/proc/self/setgroups", "deny");
		(void)snprintf(map, sizeof(map), "0 %u 1", uid);
		if (write_file("/proc/self/uid_map", map) < 0)
			return fails(ret, "a user namespace");
		(void)snprintf(map, sizeof(map), "0 %u 1", gid);
		if (write_file("/proc/self/gid_map", map) < 0)
			return fails(ret, "a user namespace");
	}
	return mount(NULL, "/", NULL, MS_REC | MS_PRIVATE, NULL) < 0 ? fails(ret, "mount(2)") : 0;
}

/* The child: it ends with its namespaces and its mount, which it answers nothing. */
static void ask(struct doctor_fuse *ret)
{
	static union {
		struct {
			struct fuse_in_header head;
			uint32_t major, minor, read_ahead, flags, flags2;
		} init;
		char room[1 << 17];
	} request;
	struct pollfd p = {.events = POLLIN};
	char options[80];

	if (leave(ret) < 0)
		return;
	p.fd = open("/dev/fuse", O_RDWR | O_CLOEXEC);
	if (p.fd < 0) {
		(void)fails(ret, "/dev/fuse");
		return;
	}
	(void)snprintf(options, sizeof(options), "fd=%d,rootmode=40000,user_id=0,group_id=0", p.fd);
	errno = 0;
	if (mount("scalai-doctor", "/dev", "fuse", MS_NOSUID | MS_NODEV, options) < 0)
		(void)fails(ret, "mount(2)");
	else if (poll(&p, 1, WAIT_MS) != 1 || read(p.fd, &request, sizeof(request)) < (ssize_t)sizeof(request.init) ||
		 request.init.head.opcode != FUSE_INIT)
		(void)fails(ret, "FUSE's first message");
	ret->minor = request.init.minor;
	ret->flags = request.init.flags | (uint64_t)request.init.flags2 << 32;
}

void doctor_ask_fuse(struct doctor_fuse *ret)
{
	int pipes[2];
	pid_t pid;

	*ret = (struct doctor_fuse){.errnum = EIO, .step = "a child"};
	if (pipe2(pipes, O_CLOEXEC) < 0)
		return;
	(void)fflush(stdout);
	pid = fork();
	if (pid == 0) {
		ret->errnum = 0;
		ask(ret);
		(void)!write(pipes[1], ret, sizeof(*ret));
		_exit(0);
	}
	(void)close(pipes[1]);
	if (pid > 0 && read(pipes[0], ret, sizeof(*ret)) != (ssize_t)sizeof(*ret))
		*ret = (struct doctor_fuse){.errnum = EIO, .step = "a child"};
	(void)close(pipes[0]);
	if (pid > 0)
		(void)waitpid(pid, NULL, 0);
}

/* --- etcd --- */

/* Connects, or returns -1 with a reason in `why`. */
static int connect_to(const char *host, const char *port, char *why, size_t bytes)
{
	const struct addrinfo hints = {.ai_socktype = SOCK_STREAM};
	const struct timeval patience = {.tv_sec = WAIT_MS / 1000};
	struct addrinfo *all = NULL;
	int rc = getaddrinfo(host, port, &hints, &all), fd = -1;

	if (rc != 0)
		(void)snprintf(why, bytes, "'%s' is no known host (%s)", host, gai_strerror(rc));
	for (const struct addrinfo *a = all; a && fd < 0; a = a->ai_next) {
		fd = socket(a->ai_family, a->ai_socktype | SOCK_CLOEXEC, a->ai_protocol);
		if (fd < 0)
			continue;
		(void)setsockopt(fd, SOL_SOCKET, SO_SNDTIMEO, &patience, sizeof(patience));
		(void)setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &patience, sizeof(patience));
		if (connect(fd, a->ai_addr, a->ai_addrlen) < 0) {
			(void)snprintf(why, bytes, "it does not take connections (%s)",
				       strerror(errno == EINPROGRESS ? ETIMEDOUT : errno));
			(void)close(fd);
			fd = -1;
		}
	}
	if (all)
		freeaddrinfo(all);
	return fd;
}

/* Asks for its health by HTTP. */
static bool is_healthy(int fd, const char *host, char *why, size_t bytes)
{
	char text[4096];
	size_t at = 0;
	ssize_t n;

	n = snprintf(text, sizeof(text), "GET /health HTTP/1.0\r\nHost: %s\r\n\r\n", host);
	if (send(fd, text, (size_t)n, MSG_NOSIGNAL) != n) {
		(void)snprintf(why, bytes, "it takes no request (%s)", strerror(errno));
		return false;
	}
	while (at < sizeof(text) - 1 && (n = recv(fd, text + at, sizeof(text) - 1 - at, 0)) > 0)
		at += (size_t)n;
	text[at] = 0;
	if (strstr(text, "\"health\":\"true\"")) {
		(void)snprintf(why, bytes, "is healthy");
		return true;
	}
	(void)snprintf(why, bytes, "%s",
		       strstr(text, "\"health\"") ? "it is not healthy: it has no majority, or no room"
						  : "what answers there is no etcd, or gives no answer");
	return false;
}

bool doctor_ask_etcd(const char *url, char *why, size_t bytes)
{
	const bool tls = strncmp(url, "https://", 8) == 0, plain = strncmp(url, "http://", 7) == 0;
	char host[256];
	const char *colon;
	bool good;
	int fd;

	(void)snprintf(host, sizeof(host), "%s", url + (tls ? 8 : plain ? 7 : 0));
	host[strcspn(host, "/")] = 0;
	colon = strrchr(host, ':');
	if ((!tls && !plain) || !colon || colon == host) {
		(void)snprintf(why, bytes, "it is not http://HOST:PORT or https://HOST:PORT");
		return false;
	}
	host[colon - host] = 0;
	if (*host == '[' && host[strlen(host) - 1] == ']') { /* of IPv6 */
		host[strlen(host) - 1] = 0;
		fd = connect_to(host + 1, colon + 1, why, bytes);
	} else {
		fd = connect_to(host, colon + 1, why, bytes);
	}
	if (fd < 0)
		return false;
	good = tls || is_healthy(fd, host, why, bytes);
	if (tls)
		(void)snprintf(why, bytes, "takes connections; its certificate and its health were not asked for");
	(void)close(fd);
	return good;
}
