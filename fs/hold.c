/* SPDX-License-Identifier: Apache-2.0 */
#include "fs/hold.h"

#include <errno.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include "meta/base/log.h"
#include "meta/base/sys.h"

/* One that dies before it serves, so often, will not live (a request that kills it comes again): the mount ends. */
#define EARLY_DEATHS_MAX 3

static volatile pid_t child;	/* for the signal handler */

struct fs_kept *fs_kept_new(void)
{
	void *p = mmap(NULL, sizeof(struct fs_kept), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);

	return p == MAP_FAILED ? NULL : p;
}

union control {
	char room[CMSG_SPACE(sizeof(int))];
	struct cmsghdr align;
};

int fs_hold_tell(int tell_fd, int fuse_fd, struct sc_err *err)
{
	union control control = {{0}};
	char byte = 0;
	struct iovec iov = {&byte, 1};
	struct msghdr msg = {.msg_iov = &iov, .msg_iovlen = 1, .msg_control = &control, .msg_controllen = sizeof(control)};
	struct cmsghdr *c = CMSG_FIRSTHDR(&msg);

	c->cmsg_level = SOL_SOCKET;
	c->cmsg_type = SCM_RIGHTS;
	c->cmsg_len = CMSG_LEN(sizeof(int));
	memcpy(CMSG_DATA(c), &fuse_fd, sizeof(int));
	return sendmsg(tell_fd, &msg, MSG_NOSIGNAL) == 1 ? 0 : sc_fail_sys(err, errno, "cannot hand the mount to its holder");
}

/* -1: the daemon ended before it had mounted. */
static int receive_fd(int from)
{
	union control control;
	char byte;
	struct iovec iov = {&byte, 1};
	struct msghdr msg = {.msg_iov = &iov, .msg_iovlen = 1, .msg_control = &control, .msg_controllen = sizeof(control)};
	struct cmsghdr *c;
	ssize_t n;
	int fd = -1;

	do
		n = recvmsg(from, &msg, MSG_CMSG_CLOEXEC);
	while (n < 0 && errno == EINTR);
	c = n == 1 ? CMSG_FIRSTHDR(&msg) : NULL;
	if (c && c->cmsg_type == SCM_RIGHTS)
		memcpy(&fd, CMSG_DATA(c), sizeof(fd));
	return fd;
}

/* Whoever ends the holder means the daemon, which then unmounts. */
static void pass_on(int signal)
{
	if (child > 0)
		(void)kill(child, signal);
}

static void on_signals(void (*handler)(int signal))
{
	static const int signals[] = {SIGTERM, SIGINT, SIGHUP};
	struct sigaction action = {.sa_handler = handler};

	for (size_t i = 0; i < sizeof(signals) / sizeof(*signals); i++)
		(void)sigaction(signals[i], &action, NULL);
}

static int wait_for(pid_t pid)
{
	int status = 0;

	while (waitpid(pid, &status, 0) < 0 && errno == EINTR)
		;
	return status;
}

int fs_hold(int (*serve)(void *arg, struct fs_kept *kept, int fuse_fd, int tell_fd, struct sc_err *err),
	    void (*live)(void *arg), void *arg, struct sc_err *err)
{
	struct fs_kept *kept = fs_kept_new();
	int pair[2], fuse_fd = -1, status, early = 0;

	if (!kept)
		return sc_nomem(err);
	if (socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, pair) < 0)
		return sc_fail_sys(err, errno, "socketpair");
	on_signals(pass_on);
	for (;;) {
		pid_t pid = fork();

		if (pid < 0)
			return sc_fail_sys(err, errno, "cannot start a daemon");
		if (pid == 0) {
			int rc;

			(void)close(pair[0]);
			on_signals(SIG_DFL); /* libfuse takes only what nobody has */
			rc = serve(arg, kept, fuse_fd, pair[1], err);
			(void)snprintf(kept->message, sizeof(kept->message), "%s", rc < 0 ? err->msg : "");
			_exit(rc < 0);
		}
		child = pid;
		if (fuse_fd < 0) {
			sc_closep(&pair[1]); /* so that its end is seen */
			fuse_fd = receive_fd(pair[0]);
			if (fuse_fd >= 0)
				live(arg);
		}
		status = wait_for(pid);
		child = 0;
		if (WIFEXITED(status) && WEXITSTATUS(status) == 0)
			return 0;
		if (WIFEXITED(status) || fuse_fd < 0)
			return sc_fail(err, SC_E_SYSTEM, "%s", *kept->message ? kept->message : "the daemon ended before the mount was live");
		early = kept->live == kept->generation ? 0 : early + 1;
		if (early == EARLY_DEATHS_MAX)
			return sc_fail(err, SC_E_SYSTEM, "%d daemons died before they served (signal %d): the mount ends",
				       EARLY_DEATHS_MAX, WTERMSIG(status));
		sc_log(SC_LOG_WARN, "the daemon was killed by signal %d, continuing with another one", WTERMSIG(status));
	}
}
