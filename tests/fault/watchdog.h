/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A test that stands still for a minute or more says where each of its threads is, in the kernel and in the
 * program, and ends.  The time limit of who runs it would only say that it took too long.
 */
#ifndef TESTS_FAULT_WATCHDOG_H
#define TESTS_FAULT_WATCHDOG_H

#include <dirent.h>
#include <execinfo.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/syscall.h>
#include <unistd.h>

#define WATCHDOG_SECONDS 60 /* times LIMIT_FACTOR, as limits of tests/gate/limit.py */

static unsigned long watchdog_steps; /* atomic; whoever gets on counts it up */

static void watchdog_backtrace(int sig)
{
	void *frames[40];
	int nr = backtrace(frames, 40);

	(void)sig;
	backtrace_symbols_fd(frames, nr, STDERR_FILENO);
}

static void watchdog_print(const char *tid, const char *what)
{
	char path[64], text[2000];
	FILE *f;
	size_t n;

	(void)snprintf(path, sizeof(path), "/proc/self/task/%s/%s", tid, what);
	f = fopen(path, "re");
	if (!f)
		return;
	n = fread(text, 1, sizeof(text), f);
	(void)fprintf(stderr, "%s %s: %.*s\n", tid, what, (int)n, text);
	(void)fclose(f);
}

static void *watchdog(void *unused)
{
	static const char *const what[] = {"comm", "wchan", "syscall", "stack"};
	unsigned long before = 0, now;
	const char *factor = getenv("LIMIT_FACTOR");
	const unsigned most = WATCHDOG_SECONDS * (factor && atoi(factor) > 1 ? (unsigned)atoi(factor) : 1);
	unsigned still = 0;
	DIR *tasks;

	(void)unused;
	while (still < most) {
		(void)sleep(1);
		now = __atomic_load_n(&watchdog_steps, __ATOMIC_RELAXED);
		still = now == before ? still + 1 : 0;
		before = now;
	}
	(void)fprintf(stderr, "watchdog: %u s without a step\n", still);
	tasks = opendir("/proc/self/task");
	for (struct dirent *d; tasks && (d = readdir(tasks));) {
		if (*d->d_name == '.')
			continue;
		for (size_t i = 0; i < sizeof(what) / sizeof(*what); i++)
			watchdog_print(d->d_name, what[i]);
		(void)syscall(SYS_tgkill, getpid(), atoi(d->d_name), SIGUSR1);
		(void)sleep(1); /* one after another */
	}
	abort();
}

static inline void watchdog_step(void)
{
	(void)__atomic_add_fetch(&watchdog_steps, 1, __ATOMIC_RELAXED);
}

static inline int watchdog_start(void)
{
	pthread_t thread;
	int rc;

	(void)signal(SIGUSR1, watchdog_backtrace);
	rc = pthread_create(&thread, NULL, watchdog, NULL);
	return rc ? rc : pthread_detach(thread);
}

#endif
