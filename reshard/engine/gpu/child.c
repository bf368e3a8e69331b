/* SPDX-License-Identifier: Apache-2.0 */
#include "reshard/engine/gpu/child.h"

#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <signal.h>
#include <spawn.h>
#include <stdio.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "meta/base/mem.h"
#include "meta/base/thread.h"

struct rs_child {
	pid_t pid;
	pthread_mutex_t lock;	/* of what follows */
	pthread_cond_t news;
	bool ended;		/* and reaped: the pid is nobody's */
	int status;
	unsigned refs;		/* of the caller, of the thread */
};

static void unref(struct rs_child *c)
{
	bool last;

	(void)pthread_mutex_lock(&c->lock);
	last = --c->refs == 0;
	(void)pthread_mutex_unlock(&c->lock);
	if (!last)
		return;
	(void)pthread_cond_destroy(&c->news);
	(void)pthread_mutex_destroy(&c->lock);
	sc_sys.release(c);
}

/* Waits for the child's end, and reaps it under the lock: while the lock is held, the pid is this child's or `ended` is
 * set. */
static void attend(struct rs_child *c)
{
	siginfo_t info;

	while (waitid(P_PID, (id_t)c->pid, &info, WEXITED | WNOWAIT) < 0 && errno == EINTR)
		;
	(void)pthread_mutex_lock(&c->lock);
	if (waitpid(c->pid, &c->status, 0) != c->pid)
		c->status = 0;
	c->ended = true;
	(void)pthread_cond_broadcast(&c->news);
	(void)pthread_mutex_unlock(&c->lock);
	unref(c);
}

static void *run(void *child)
{
	attend(child);
	return NULL;
}

static int describe(posix_spawn_file_actions_t *files, posix_spawnattr_t *attr, int fd, int as)
{
	sigset_t none, all;
	int rc;

	(void)sigemptyset(&none);
	(void)sigfillset(&all);
	rc = posix_spawnattr_setflags(attr, POSIX_SPAWN_SETPGROUP | POSIX_SPAWN_SETSIGMASK | POSIX_SPAWN_SETSIGDEF);
	rc = rc ? rc : posix_spawnattr_setpgroup(attr, 0);
	rc = rc ? rc : posix_spawnattr_setsigmask(attr, &none);
	rc = rc ? rc : posix_spawnattr_setsigdefault(attr, &all);
	/* first: it may be one of those that are opened */
	rc = rc ? rc : posix_spawn_file_actions_adddup2(files, fd, as);
	rc = rc ? rc : posix_spawn_file_actions_addopen(files, 0, "/dev/null", O_RDONLY, 0);
	rc = rc ? rc : posix_spawn_file_actions_addopen(files, 1, "/dev/null", O_WRONLY, 0);
	rc = rc ? rc : posix_spawn_file_actions_addclosefrom_np(files, as + 1);
	return rc ? rc : posix_spawn_file_actions_addchdir_np(files, "/");
}

static int spawn(const char *program, const char *variable, int fd, int as, pid_t *ret)
{
	/* CUDA has no cache in $HOME, which may be in the mount, refuses kernels when it loads them, and numbers
	 * devices by their places */
	char *const environment[] = {
		(char *)"PATH=/usr/bin:/bin", (char *)"CUDA_CACHE_DISABLE=1", (char *)"CUDA_MODULE_LOADING=EAGER",
		(char *)"CUDA_DEVICE_ORDER=PCI_BUS_ID", (char *)variable, NULL,
	};
	char *const argv[] = {(char *)program, NULL};
	posix_spawn_file_actions_t files;
	posix_spawnattr_t attr;
	int rc = posix_spawnattr_init(&attr);

	if (rc)
		return rc;
	rc = posix_spawn_file_actions_init(&files);
	if (rc == 0) {
		rc = describe(&files, &attr, fd, as);
		if (rc == 0)
			rc = posix_spawn(ret, program, &files, &attr, argv, environment);
		(void)posix_spawn_file_actions_destroy(&files);
	}
	(void)posix_spawnattr_destroy(&attr);
	return rc;
}

int rs_child_start(const char *program, const char *variable, int fd, int as, struct rs_child **ret,
		   struct sc_err *err)
{
	struct rs_child *c = sc_zalloc(sizeof(*c));
	pthread_condattr_t clock;
	int rc;

	if (!c)
		return sc_nomem(err);
	rc = spawn(program, variable, fd, as, &c->pid);
	if (rc) {
		sc_sys.release(c);
		return sc_fail_sys(err, rc, "cannot run '%s'", program);
	}
	c->refs = 2;
	(void)pthread_mutex_init(&c->lock, NULL);
	(void)pthread_condattr_init(&clock);
	(void)pthread_condattr_setclock(&clock, CLOCK_MONOTONIC);
	(void)pthread_cond_init(&c->news, &clock);
	(void)pthread_condattr_destroy(&clock);
	rc = sc_thread_release("scalai-helper", run, c, err);
	if (rc < 0) { /* it has not begun to listen, and ends at once */
		rs_child_kill(c);
		attend(c);
		unref(c);
		return rc;
	}
	*ret = c;
	return 0;
}

bool rs_child_wait(struct rs_child *c, unsigned ms)
{
	const int64_t until = sc_now_ns() + (int64_t)ms * 1000000;
	bool ended;

	(void)pthread_mutex_lock(&c->lock);
	while (!c->ended && sc_sys.wait_until(&c->news, &c->lock, until) != ETIMEDOUT)
		;
	ended = c->ended;
	(void)pthread_mutex_unlock(&c->lock);
	return ended;
}

bool rs_child_ended_well(struct rs_child *c, char *ret_text, size_t bytes)
{
	int status;

	(void)pthread_mutex_lock(&c->lock);
	status = c->status;
	(void)pthread_mutex_unlock(&c->lock);
	if (WIFSIGNALED(status))
		(void)snprintf(ret_text, bytes, "by SIG%s", sigabbrev_np(WTERMSIG(status)));
	else
		(void)snprintf(ret_text, bytes, "with status %d", WEXITSTATUS(status));
	return status == 0;
}

void rs_child_kill(struct rs_child *c)
{
	(void)pthread_mutex_lock(&c->lock);
	if (!c->ended)
		(void)kill(-c->pid, SIGKILL); /* its group */
	(void)pthread_mutex_unlock(&c->lock);
}

void rs_child_leave(struct rs_child *c)
{
	unref(c);
}
