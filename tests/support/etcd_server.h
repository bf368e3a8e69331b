/* SPDX-License-Identifier: Apache-2.0 */
/* Debian's etcd for tests, on ports of the loopback, with its files in a folder that goes; and a proxy that loses answers. */
#ifndef TESTS_ETCD_SERVER_H
#define TESTS_ETCD_SERVER_H

#include <stdbool.h>
#include <sys/types.h>

#define SERVERS_MAX 3

struct servers {
	unsigned nr;
	pid_t pid[SERVERS_MAX]; /* 0: it does not run */
	char url[SERVERS_MAX][64];
	int port[SERVERS_MAX];
	char dir[64], peers[300];
};

/** Starts so many members of one etcd, and waits until they serve; false: there is no etcd here. */
bool servers_start(struct servers *s, unsigned nr);
/** Starts one that was killed, with its files. */
void servers_again(struct servers *s, unsigned i);
void servers_kill(struct servers *s, unsigned i);
void servers_stop(struct servers *s);	/* all of them, and removes the files */
/** Posts JSON to one of them; the answer's text, or "" if there is none within 10 s.  A static buffer. */
const char *servers_post(const struct servers *s, unsigned i, const char *path, const char *body);
/** Index of the leader; -1: there is none. */
int servers_leader(const struct servers *s);

/* A proxy in a thread, between a client and one server. */
struct proxy;
struct proxy *proxy_start(int to_port, char *ret_url, size_t room);
void proxy_stop(struct proxy *p);
/** From now on, requests whose path has this text are handed on, but their connection is closed before the answer;
 *  NULL: none. */
void proxy_lose_answers(struct proxy *p, const char *path);
/** Closes all connections; returns when they are closed. */
void proxy_cut(struct proxy *p);
/** How many requests of this path the server got since the last call. */
unsigned proxy_count(struct proxy *p, const char *path);

#endif
