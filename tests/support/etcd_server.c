/* SPDX-License-Identifier: Apache-2.0 */
#include "tests/support/etcd_server.h"

#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

static void nap(int ms)
{
	struct timespec t = {ms / 1000, ms % 1000 * 1000000l};

	(void)nanosleep(&t, NULL);
}

/* -1: something has this port; 0: any one. */
static int listener_at(int port, int *ret_port)
{
	struct sockaddr_in a = {
	    .sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK), .sin_port = htons((uint16_t)port)};
	socklen_t n = sizeof(a);
	int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);

	if (fd < 0)
		abort();
	if (bind(fd, (void *)&a, sizeof(a)) < 0 || listen(fd, 64) < 0) {
		(void)close(fd);
		return -1;
	}
	if (getsockname(fd, (void *)&a, &n) < 0)
		abort();
	*ret_port = ntohs(a.sin_port);
	return fd;
}

static int listener(int *ret_port)
{
	int fd = listener_at(0, ret_port);

	if (fd < 0)
		abort();
	return fd;
}

/* A port for a server that binds it later, below those that the kernel gives to connections (it begins with 32768): only
 * another server can take it meanwhile. */
static int listener_of_server(int *ret_port)
{
	static unsigned seed;

	if (!seed)
		seed = (unsigned)getpid() * 2654435761u ^ (unsigned)time(NULL);
	for (int tries = 0; tries < 1000; tries++) {
		int fd = listener_at(20000 + rand_r(&seed) % 12000, ret_port);

		if (fd >= 0)
			return fd;
	}
	abort();
}

static int connect_to(int port)
{
	struct sockaddr_in a = {
	    .sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK), .sin_port = htons((uint16_t)port)};
	struct timeval patience = {10, 0};
	int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);

	(void)setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &patience, sizeof(patience));
	if (connect(fd, (void *)&a, sizeof(a)) == 0)
		return fd;
	(void)close(fd);
	return -1;
}

/* --- servers --- */

void servers_again(struct servers *s, unsigned i)
{
	char name[16], data[100], peer[64], log[100];
	const char *argv[] = {"etcd",
			"--name",
			name,
			"--data-dir",
			data,
			"--listen-client-urls",
			s->url[i],
			"--advertise-client-urls",
			s->url[i],
			"--listen-peer-urls",
			peer,
			"--initial-advertise-peer-urls",
			peer,
			"--initial-cluster",
			s->peers,
			"--pre-vote",
			"--unsafe-no-fsync", /* they are killed, the machine is not */
			"--logger",
			"zap",
			"--log-outputs",
			"stderr",
			NULL};

	(void)snprintf(name, sizeof(name), "m%u", i);
	(void)snprintf(data, sizeof(data), "%s/%u", s->dir, i);
	(void)snprintf(log, sizeof(log), "%s/%u.log", s->dir, i);
	(void)snprintf(peer, sizeof(peer), "http://127.0.0.1:%d", s->port[i]);
	s->pid[i] = fork();
	if (s->pid[i] == 0) {
		int fd = open(log, O_WRONLY | O_CREAT | O_APPEND, 0600);

		(void)prctl(PR_SET_PDEATHSIG, SIGKILL);
		(void)dup2(fd, 1);
		(void)dup2(fd, 2);
		(void)setenv("ETCD_UNSUPPORTED_ARCH", "arm64", 0);
		(void)execv(ETCD, (char **)(uintptr_t)argv); /* what tools/setup has fetched */
		(void)execvp("etcd", (char **)(uintptr_t)argv);
		_exit(127);
	}
}

const char *servers_post(const struct servers *s, unsigned i, const char *path, const char *body)
{
	static char answer[1 << 20];
	int fd = connect_to(atoi(strrchr(s->url[i], ':') + 1));
	size_t n = 0;
	ssize_t k;

	answer[0] = 0;
	if (fd < 0)
		return answer;
	(void)dprintf(fd, "POST %s HTTP/1.1\r\nHost: etcd\r\nConnection: close\r\nContent-Length: %zu\r\n\r\n%s", path,
		      strlen(body), body);
	while (n + 1 < sizeof(answer) && (k = recv(fd, answer + n, sizeof(answer) - 1 - n, 0)) > 0)
		n += (size_t)k;
	answer[n] = 0;
	(void)close(fd);
	return answer;
}

int servers_leader(const struct servers *s)
{
	for (unsigned i = 0; i < s->nr; i++) {
		char own[64] = "", leader[64] = "";
		const char *text = s->pid[i] ? servers_post(s, i, "/v3/maintenance/status", "{}") : "", *p;

		if ((p = strstr(text, "\"member_id\":\"")))
			(void)sscanf(p + 13, "%63[0-9]", own);
		if ((p = strstr(text, "\"leader\":\"")))
			(void)sscanf(p + 10, "%63[0-9]", leader);
		if (*own && strcmp(own, leader) == 0)
			return (int)i;
	}
	return -1;
}

static bool is_there(void)
{
	return access(ETCD, X_OK) == 0 || system("command -v etcd >/dev/null 2>&1") == 0;
}

/* Takes ports that are free now; another server may have them before etcd binds them: then it ends at its start. */
static void choose_ports(struct servers *s)
{
	int hold[2 * SERVERS_MAX];

	s->peers[0] = 0;
	for (unsigned i = 0; i < s->nr; i++) {
		int port;

		hold[2 * i] = listener_of_server(&port);
		(void)snprintf(s->url[i], sizeof(s->url[i]), "http://127.0.0.1:%d", port);
		hold[2 * i + 1] = listener_of_server(&s->port[i]);
		(void)snprintf(s->peers + strlen(s->peers), sizeof(s->peers) - strlen(s->peers),
			       "%sm%u=http://127.0.0.1:%d", i ? "," : "", i, s->port[i]);
	}
	for (unsigned i = 0; i < 2 * s->nr; i++)
		(void)close(hold[i]);
}

static bool has_ended(struct servers *s)
{
	bool any = false;

	for (unsigned i = 0; i < s->nr; i++)
		if (s->pid[i] && waitpid(s->pid[i], NULL, WNOHANG) == s->pid[i]) {
			s->pid[i] = 0;
			any = true;
		}
	return any;
}

static void show_logs(const struct servers *s)
{
	char command[100];

	(void)snprintf(command, sizeof(command), "tail -n 20 %s/*.log >&2", s->dir);
	if (system(command) != 0)
		fprintf(stderr, "there are no logs of etcd in %s\n", s->dir);
}

/* False: one of them has ended. */
static bool wait_for_leader(struct servers *s)
{
	for (int tries = 0; tries < 1200; tries++) {
		if (servers_leader(s) >= 0)
			return true;
		if (has_ended(s))
			return false;
		nap(100);
	}
	fprintf(stderr, "etcd runs, and does not serve within 120 s\n");
	show_logs(s);
	abort();
}

bool servers_start(struct servers *s, unsigned nr)
{
	*s = (struct servers){.nr = nr};
	if (!is_there())
		return false;
	for (int attempts = 0; attempts < 5; attempts++) {
		(void)snprintf(s->dir, sizeof(s->dir), "/tmp/etcd-test-XXXXXX");
		if (!mkdtemp(s->dir))
			abort();
		choose_ports(s);
		for (unsigned i = 0; i < nr; i++)
			servers_again(s, i);
		if (wait_for_leader(s))
			return true;
		fprintf(stderr, "an etcd has ended at its start: once more, with other ports\n");
		show_logs(s);
		servers_stop(s);
	}
	fprintf(stderr, "etcd ends at its start, five times\n");
	abort();
}

void servers_kill(struct servers *s, unsigned i)
{
	if (!s->pid[i])
		return;
	(void)kill(s->pid[i], SIGKILL);
	(void)waitpid(s->pid[i], NULL, 0);
	s->pid[i] = 0;
}

void servers_stop(struct servers *s)
{
	char command[100];

	for (unsigned i = 0; i < s->nr; i++)
		servers_kill(s, i);
	(void)snprintf(command, sizeof(command), "rm -rf %s", s->dir);
	if (strncmp(s->dir, "/tmp/etcd-test-", 15) == 0 && system(command) != 0)
		abort();
}

/* --- proxy --- */

#define PAIRS_MAX 64

struct proxy {
	pthread_t thread;
	pthread_mutex_t lock;
	int fd, to_port;
	bool stop, cut;
	char lose[64];
	unsigned nr_seen;
	char seen[1000][40]; /* paths of requests */
	char buffer[1 << 16]; /* of this thread: there are several proxies */
	struct {
		int client, server; /* -1: free */
		bool lost;
	} pair[PAIRS_MAX];
};

static void close_pair(struct proxy *p, unsigned i)
{
	(void)close(p->pair[i].client);
	(void)close(p->pair[i].server);
	p->pair[i].client = p->pair[i].server = -1;
	p->pair[i].lost = false;
}

static void take_client(struct proxy *p)
{
	int fd = accept4(p->fd, NULL, NULL, SOCK_CLOEXEC), to = connect_to(p->to_port);

	for (unsigned i = 0; i < PAIRS_MAX; i++)
		if (p->pair[i].client < 0) {
			p->pair[i].client = fd;
			p->pair[i].server = to;
			if (to < 0)
				close_pair(p, i);
			return;
		}
	abort();
}

/* Requests of the tests begin a packet. */
static void look(struct proxy *p, unsigned i, const char *text)
{
	char path[40];

	if (sscanf(text, "POST %39s", path) != 1)
		return;
	(void)snprintf(p->seen[p->nr_seen++ % 1000], 40, "%s", path);
	p->pair[i].lost = *p->lose && strstr(path, p->lose);
}

static void move(struct proxy *p, unsigned i, bool from_client)
{
	char *buffer = p->buffer;
	ssize_t n = recv(from_client ? p->pair[i].client : p->pair[i].server, buffer, sizeof(p->buffer) - 1, 0);

	if (n <= 0 || (!from_client && p->pair[i].lost)) {
		close_pair(p, i);
		return;
	}
	buffer[n] = 0;
	if (from_client)
		look(p, i, buffer);
	if (send(from_client ? p->pair[i].server : p->pair[i].client, buffer, (size_t)n, MSG_NOSIGNAL) != n)
		close_pair(p, i);
}

static void *serve(void *arg)
{
	struct proxy *p = arg;

	for (;;) {
		struct pollfd fds[2 * PAIRS_MAX + 1] = {{p->fd, POLLIN, 0}};

		(void)pthread_mutex_lock(&p->lock);
		for (unsigned i = 0; i < PAIRS_MAX; i++) {
			if (p->cut && p->pair[i].client >= 0)
				close_pair(p, i);
			fds[2 * i + 1] = (struct pollfd){p->pair[i].client, POLLIN, 0};
			fds[2 * i + 2] = (struct pollfd){p->pair[i].server, POLLIN, 0};
		}
		p->cut = false;
		if (p->stop) {
			(void)pthread_mutex_unlock(&p->lock);
			return NULL;
		}
		(void)pthread_mutex_unlock(&p->lock);
		(void)poll(fds, 2 * PAIRS_MAX + 1, 5);
		(void)pthread_mutex_lock(&p->lock);
		for (unsigned i = 0; i < PAIRS_MAX; i++) {
			if (fds[2 * i + 1].revents && p->pair[i].client == fds[2 * i + 1].fd)
				move(p, i, true);
			if (fds[2 * i + 2].revents && p->pair[i].server == fds[2 * i + 2].fd)
				move(p, i, false);
		}
		if (fds[0].revents)
			take_client(p);
		(void)pthread_mutex_unlock(&p->lock);
	}
}

struct proxy *proxy_start(int to_port, char *ret_url, size_t room)
{
	struct proxy *p = calloc(1, sizeof(*p));
	int port;

	p->fd = listener(&port);
	p->to_port = to_port;
	for (unsigned i = 0; i < PAIRS_MAX; i++)
		p->pair[i].client = p->pair[i].server = -1;
	(void)pthread_mutex_init(&p->lock, NULL);
	(void)snprintf(ret_url, room, "http://127.0.0.1:%d", port);
	if (pthread_create(&p->thread, NULL, serve, p) != 0)
		abort();
	return p;
}

void proxy_stop(struct proxy *p)
{
	(void)pthread_mutex_lock(&p->lock);
	p->stop = p->cut = true;
	(void)pthread_mutex_unlock(&p->lock);
	(void)pthread_join(p->thread, NULL);
	(void)close(p->fd);
	free(p);
}

void proxy_lose_answers(struct proxy *p, const char *path)
{
	(void)pthread_mutex_lock(&p->lock);
	(void)snprintf(p->lose, sizeof(p->lose), "%s", path ? path : "");
	(void)pthread_mutex_unlock(&p->lock);
}

void proxy_cut(struct proxy *p)
{
	(void)pthread_mutex_lock(&p->lock);
	p->cut = true;
	while (p->cut) { /* its thread looks every few milliseconds */
		(void)pthread_mutex_unlock(&p->lock);
		nap(1);
		(void)pthread_mutex_lock(&p->lock);
	}
	(void)pthread_mutex_unlock(&p->lock);
}

unsigned proxy_count(struct proxy *p, const char *path)
{
	unsigned nr = 0;

	(void)pthread_mutex_lock(&p->lock);
	for (unsigned i = 0; i < p->nr_seen && i < 1000; i++)
		nr += strcmp(p->seen[i], path) == 0;
	p->nr_seen = 0;
	(void)pthread_mutex_unlock(&p->lock);
	return nr;
}
