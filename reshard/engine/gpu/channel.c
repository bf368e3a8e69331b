/* SPDX-License-Identifier: Apache-2.0 */
#include "reshard/engine/gpu/channel.h"

#include <errno.h>
#include <poll.h>
#include <string.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

union control {
	char room[CMSG_SPACE(sizeof(int))];
	struct cmsghdr align;
};

int rs_channel_send(int fd, const struct rs_wire_message *m, int pass_fd, struct sc_err *err)
{
	union control control = {{0}};
	struct iovec iov = {(void *)m, sizeof(*m)};
	struct msghdr msg = {.msg_iov = &iov, .msg_iovlen = 1};
	struct cmsghdr *c;
	ssize_t n;

	if (pass_fd >= 0) {
		msg.msg_control = &control;
		msg.msg_controllen = sizeof(control);
		c = CMSG_FIRSTHDR(&msg);
		c->cmsg_level = SOL_SOCKET;
		c->cmsg_type = SCM_RIGHTS;
		c->cmsg_len = CMSG_LEN(sizeof(int));
		memcpy(CMSG_DATA(c), &pass_fd, sizeof(int));
	}
	do
		n = sc_sys.sendmsg(fd, &msg, MSG_NOSIGNAL | MSG_DONTWAIT);
	while (n < 0 && errno == EINTR);
	return n == sizeof(*m) ? 0 : sc_fail_sys(err, n < 0 ? errno : EIO, "cannot say %s", rs_wire_name(m));
}

/* Gives the descriptor that came with a message, if one is wanted; closes it if not. */
static int take_fd(struct msghdr *msg, bool wanted)
{
	int fd = -1;

	for (struct cmsghdr *c = CMSG_FIRSTHDR(msg); c; c = CMSG_NXTHDR(msg, c))
		if (c->cmsg_level == SOL_SOCKET && c->cmsg_type == SCM_RIGHTS && c->cmsg_len == CMSG_LEN(sizeof(int)))
			memcpy(&fd, CMSG_DATA(c), sizeof(fd));
	if (!wanted)
		sc_closep(&fd);
	return fd;
}

int rs_channel_receive(int fd, int timeout_ms, struct rs_wire_message *ret, int *ret_fd, struct sc_err *err)
{
	struct pollfd p = {fd, POLLIN, 0};
	union control control;
	struct iovec iov = {ret, sizeof(*ret)};
	struct msghdr msg = {.msg_iov = &iov, .msg_iovlen = 1, .msg_control = &control,
			     .msg_controllen = sizeof(control)};
	int ready = sc_sys.poll(&p, timeout_ms), passed;
	ssize_t n;

	if (ready == 0 || (ready < 0 && errno == EINTR))
		return RS_CHANNEL_LATE;
	n = ready < 0 ? -1 : sc_sys.recvmsg(fd, &msg, MSG_CMSG_CLOEXEC | MSG_DONTWAIT);
	if (n < 0 && (errno == EINTR || errno == EAGAIN))
		return RS_CHANNEL_LATE;
	if (n < 0 && errno != ECONNRESET)
		return sc_fail_sys(err, errno, "cannot hear the other side");
	if (n <= 0)
		return RS_CHANNEL_ENDED;
	passed = take_fd(&msg, ret_fd != NULL);
	if (ret_fd)
		*ret_fd = passed;
	if (n == sizeof(*ret) && !(msg.msg_flags & (MSG_TRUNC | MSG_CTRUNC)))
		return RS_CHANNEL_HERE;
	sc_closep(&passed);
	if (ret_fd)
		*ret_fd = -1;
	return sc_fail(err, SC_E_STATE, "a message has %zd bytes, not %zu", n, sizeof(*ret));
}

bool rs_channel_is_closed(int fd, unsigned us)
{
	struct pollfd p = {fd, 0, 0};
	const struct timespec ts = {0, (long)us * 1000};

	return ppoll(&p, 1, &ts, NULL) > 0 && p.revents & (POLLHUP | POLLERR | POLLNVAL);
}
