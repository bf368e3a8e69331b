/* SPDX-License-Identifier: Apache-2.0 */
#include "tests/gpu/fake_net.h"

#include <arpa/inet.h>
#include <errno.h>
#include <ifaddrs.h>
#include <net/if.h>
#include <poll.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#define RANKS_MAX 64
#define STEP (256u << 10)	/* bytes of a read */
#define ALONE_S 10		/* a hub that nobody has joined ends then */

enum { JOIN, ALL, DATA, LEAVE, GONE };

struct frame {
	uint32_t kind;
	int32_t from, to;	/* to: of JOIN, how many there are */
	uint32_t bytes;		/* that follow, up to a multiple of a frame's alignment */
};

struct buffer {
	unsigned char *at;
	size_t nr, room;
};

/* --- bytes --- */

static unsigned char *room_for(struct buffer *b, size_t bytes)
{
	if (b->room - b->nr < bytes) {
		b->room = 2 * (b->nr + bytes);
		b->at = realloc(b->at, b->room);
		if (!b->at)
			abort();
	}
	return b->at + b->nr;
}

static void add(struct buffer *b, const void *at, size_t bytes)
{
	memcpy(room_for(b, bytes), at, bytes);
	b->nr += bytes;
}

static void drop(struct buffer *b, size_t bytes)
{
	memmove(b->at, b->at + bytes, b->nr - bytes);
	b->nr -= bytes;
}

static size_t whole(const struct frame *f)
{
	return sizeof(*f) + (f->bytes + _Alignof(struct frame) - 1) / _Alignof(struct frame) * _Alignof(struct frame);
}

static void add_frame(struct buffer *b, uint32_t kind, int from, int to, const void *at, size_t bytes)
{
	const struct frame f = {kind, from, to, (uint32_t)bytes};

	add(b, &f, sizeof(f));
	if (bytes)
		add(b, at, bytes);
	add(b, "\0\0\0", whole(&f) - sizeof(f) - bytes);
}

/* Reads what is there; false: it is the end. */
static bool fill(int fd, struct buffer *b)
{
	for (;;) {
		const ssize_t n = recv(fd, room_for(b, STEP), STEP, MSG_DONTWAIT);

		if (n <= 0)
			return n < 0 && (errno == EAGAIN || errno == EINTR);
		b->nr += (size_t)n;
	}
}

static bool flush(int fd, struct buffer *b)
{
	size_t at = 0;
	ssize_t n = 1;

	while (at < b->nr && (n = send(fd, b->at + at, b->nr - at, MSG_DONTWAIT | MSG_NOSIGNAL)) > 0)
		at += (size_t)n;
	if (at)
		drop(b, at);
	return n > 0 || errno == EAGAIN || errno == EINTR;
}

/* A whole frame at the beginning; its payload follows it. */
static const struct frame *first_frame(const struct buffer *b)
{
	const struct frame *f = (const struct frame *)b->at;

	return b->nr >= sizeof(*f) && b->nr >= whole(f) ? f : NULL;
}

/* --- the hub --- */

static struct link {
	int fd, rank;		/* rank -1: it has not joined */
	bool left;
	struct buffer in, out;
} links[RANKS_MAX];
static unsigned nr_links, nr_joined;

static void tell_all(uint32_t kind, const struct link *but)
{
	for (unsigned i = 0; i < nr_links; i++)
		if (&links[i] != but && links[i].fd >= 0)
			add_frame(&links[i].out, kind, -1, -1, NULL, 0);
}

static void route(struct link *l, const struct frame *f)
{
	if (f->kind == JOIN) {
		l->rank = f->from;
		if (++nr_joined == (unsigned)f->to)
			tell_all(ALL, NULL);
	}
	l->left |= f->kind == LEAVE;
	for (unsigned i = 0; f->kind == DATA && i < nr_links; i++)
		if (links[i].fd >= 0 && links[i].rank == f->to)
			add_frame(&links[i].out, DATA, f->from, f->to, f + 1, f->bytes);
}

/* False: it has ended. */
static bool serve(struct link *l)
{
	const bool there = fill(l->fd, &l->in);
	const struct frame *f;
	size_t at = 0;

	for (struct buffer b = l->in; (f = first_frame(&b)); b.nr -= whole(f), b.at += whole(f)) {
		route(l, f);
		at += whole(f);
	}
	if (at)
		drop(&l->in, at);
	return there;
}

static void end_link(struct link *l)
{
	(void)close(l->fd);
	l->fd = -1;
	if (!l->left)
		tell_all(GONE, l);
}

static bool are_left(void)
{
	for (unsigned i = 0; i < nr_links; i++)
		if (links[i].fd >= 0)
			return true;
	return nr_links == 0;
}

static void hub(int listener)
{
	while (are_left()) {
		struct pollfd fds[RANKS_MAX + 1] = {{.fd = listener, .events = POLLIN}};
		const unsigned nr = nr_links;

		for (unsigned i = 0; i < nr; i++)
			fds[i + 1] = (struct pollfd){.fd = links[i].fd, .events = (short)(POLLIN | (links[i].out.nr ? POLLOUT : 0))};
		if (poll(fds, nr + 1, nr ? -1 : ALONE_S * 1000) <= 0)
			return;
		for (unsigned i = 0; i < nr; i++)
			if (links[i].fd >= 0 && ((fds[i + 1].revents & (POLLIN | POLLHUP | POLLERR) && !serve(&links[i])) ||
						 !flush(links[i].fd, &links[i].out)))
				end_link(&links[i]);
		if (fds[0].revents && nr_links < RANKS_MAX)
			links[nr_links++] = (struct link){.fd = accept4(listener, NULL, NULL, SOCK_CLOEXEC), .rank = -1};
	}
}

static bool address_of(const char *interface, struct sockaddr_in *ret)
{
	const bool whole = *interface == '=';
	const char *name = interface + whole;
	struct ifaddrs *all;
	bool found = false;

	if (getifaddrs(&all) < 0)
		return false;
	for (struct ifaddrs *i = all; i && !found; i = i->ifa_next) {
		found = i->ifa_addr && i->ifa_addr->sa_family == AF_INET && i->ifa_flags & IFF_UP &&
			strncmp(i->ifa_name, name, whole ? IF_NAMESIZE : strlen(name)) == 0;
		if (found)
			memcpy(ret, i->ifa_addr, sizeof(*ret));
	}
	freeifaddrs(all);
	return found;
}

bool fake_net_name(const char *interface, char *ret, size_t bytes)
{
	struct sockaddr_in at;
	socklen_t n = sizeof(at);
	char text[INET_ADDRSTRLEN];
	int listener;

	if (!address_of(interface, &at))
		return false;
	at.sin_port = 0;
	listener = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
	if (listener < 0 || bind(listener, (struct sockaddr *)&at, n) < 0 || listen(listener, RANKS_MAX) < 0 ||
	    getsockname(listener, (struct sockaddr *)&at, &n) < 0)
		abort();
	if (fork() == 0) {
		/* nobody waits for the other end of what the parent has open */
		(void)close_range(0, 1, 0);
		(void)close_range(3, (unsigned)listener - 1, 0);
		(void)close_range((unsigned)listener + 1, ~0u, 0);
		(void)setsid(); /* its parent may end, or be killed, before others have all that was sent to them */
		hub(listener);
		_exit(0);
	}
	(void)close(listener);
	(void)snprintf(ret, bytes, "net %s %u", inet_ntop(AF_INET, &at.sin_addr, text, sizeof(text)), ntohs(at.sin_port));
	return true;
}

bool fake_net_is(const char *id)
{
	return strncmp(id, "net ", 4) == 0;
}

/* --- a rank --- */

struct fake_net {
	int fd, rank;
	bool all, gone;
	struct buffer in, out;
	struct buffer from[RANKS_MAX];	/* uint32_t bytes, and these, again and again */
};

static void pump(struct fake_net *n)
{
	const struct frame *f;
	size_t at = 0;

	if (n->fd >= 0 && (!flush(n->fd, &n->out) || !fill(n->fd, &n->in)) && !n->gone) {
		(void)close(n->fd);
		n->fd = -1;
		n->gone = true;
	}
	for (struct buffer b = n->in; (f = first_frame(&b)); b.nr -= whole(f), b.at += whole(f)) {
		n->all |= f->kind == ALL;
		n->gone |= f->kind == GONE;
		if (f->kind == DATA && f->from >= 0 && f->from < RANKS_MAX) {
			add(&n->from[f->from], &f->bytes, sizeof(f->bytes));
			add(&n->from[f->from], f + 1, f->bytes);
		}
		at += whole(f);
	}
	if (at)
		drop(&n->in, at);
}

struct fake_net *fake_net_join(const char *id, int rank, int nr)
{
	struct sockaddr_in at = {.sin_family = AF_INET};
	char text[INET_ADDRSTRLEN];
	struct fake_net *n;
	unsigned port;

	if (sscanf(id, "net %15s %u", text, &port) != 2 || inet_pton(AF_INET, text, &at.sin_addr) != 1)
		return NULL;
	at.sin_port = htons((uint16_t)port);
	n = calloc(1, sizeof(*n));
	n->fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
	n->rank = rank;
	if (connect(n->fd, (struct sockaddr *)&at, sizeof(at)) < 0) { /* nobody is there any more: it waits in vain */
		(void)close(n->fd);
		n->fd = -1;
	}
	add_frame(&n->out, JOIN, rank, nr, NULL, 0);
	return n;
}

bool fake_net_all(struct fake_net *n)
{
	pump(n);
	return n->all;
}

bool fake_net_gone(struct fake_net *n)
{
	pump(n);
	return n->gone;
}

void fake_net_send(struct fake_net *n, int to, const void *at, size_t bytes)
{
	add_frame(&n->out, DATA, n->rank, to, at, bytes);
	pump(n);
}

size_t fake_net_next(struct fake_net *n, int from)
{
	uint32_t bytes = 0;

	pump(n);
	if (n->from[from].nr)
		memcpy(&bytes, n->from[from].at, sizeof(bytes));
	return bytes;
}

void fake_net_take(struct fake_net *n, int from, void *to)
{
	const size_t bytes = fake_net_next(n, from);

	memcpy(to, n->from[from].at + sizeof(uint32_t), bytes);
	drop(&n->from[from], sizeof(uint32_t) + bytes);
}

void fake_net_leave(struct fake_net *n, bool well)
{
	if (well)
		add_frame(&n->out, LEAVE, n->rank, -1, NULL, 0);
	pump(n);
	while (well && n->fd >= 0 && n->out.nr) {
		(void)poll(&(struct pollfd){.fd = n->fd, .events = POLLIN | POLLOUT}, 1, 100);
		pump(n);
	}
	if (n->fd >= 0)
		(void)close(n->fd);
	for (unsigned i = 0; i < RANKS_MAX; i++)
		free(n->from[i].at);
	free(n->in.at);
	free(n->out.at);
	free(n);
}
