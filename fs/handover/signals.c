/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Two signals end a mount: SIGTERM and SIGINT, which libfuse handles in a daemon and which the holder passes on
 * (hold.c).  No other signal that somebody sends, or that the kernel sends for a limit or a lease, may end it.
 */
#include "fs/handover/signals.h"

#include <errno.h>
#include <signal.h>
#include <stddef.h>
#include <unistd.h>

#include "meta/base/log.h"

enum meaning {
	IGNORED,
	DEFAULT,
	FATAL	/* the process is broken: it ends as by default, with a line in the log */
};

static const struct {
	int nr;
	enum meaning meaning;
	const char *why;
} signals[] = {
	{SIGTERM, DEFAULT, "ends the mount: libfuse takes it"},
	/* SIGINT as it is found, for the same reason: a shell's background job is started with it ignored */
	{SIGCHLD, DEFAULT, "waitpid() finds no child where the one who started us has ignored it"},
	{SIGIO, IGNORED, "a writer's open breaks the lease that a commit has taken; the commit asks again by itself"},
	{SIGXFSZ, IGNORED, "a write beyond RLIMIT_FSIZE fails with EFBIG, and the rank that wrote is told so"},
	{SIGXCPU, IGNORED, "RLIMIT_CPU of the one who started us; at its hard limit the kernel sends SIGKILL"},
	{SIGPIPE, IGNORED, "nobody reads the log any more; write() says EPIPE"},
	{SIGHUP, IGNORED, "a foreground mount's terminal was closed; there is no configuration to read again"},
	{SIGUSR1, IGNORED, "asks a holder, which reads it by signalfd, for an upgrade; means nothing to a daemon"},
	{SIGUSR2, IGNORED, "means nothing"},
	{SIGALRM, IGNORED, "a timer that the one who started us has left running, as the next two"},
	{SIGVTALRM, IGNORED, "see SIGALRM"},
	{SIGPROF, IGNORED, "see SIGALRM"},
	{SIGSTKFLT, IGNORED, "means nothing"},
	{SIGPWR, IGNORED, "init is told of the power, and sends SIGTERM"},
	{SIGTTOU, IGNORED, "a line of the log from the background would stop the daemon (stty tostop)"},
	{SIGQUIT, FATAL, "asks for a core dump"},
	{SIGILL, FATAL, "a fault"},
	{SIGTRAP, FATAL, "a fault"},
	{SIGABRT, FATAL, "a failed assertion"},
	{SIGBUS, FATAL, "a fault outside of meta/base/guard.c"},
	{SIGFPE, FATAL, "a fault"},
	{SIGSEGV, FATAL, "a fault"},
	{SIGSYS, FATAL, "a system call that a filter of the one who started us forbids"},
};

static void on_fatal(int nr)
{
	sc_log_death(nr);
	(void)raise(nr); /* comes when this handler returns, and finds the default (SA_RESETHAND) */
}

static void set(int nr, enum meaning meaning)
{
	struct sigaction action = {.sa_handler = meaning == IGNORED ? SIG_IGN : meaning == FATAL ? on_fatal : SIG_DFL,
				   .sa_flags = meaning == FATAL ? (int)SA_RESETHAND : 0};
	struct sigaction found;

	/* a sanitizer's handler says more */
	if (meaning == FATAL && (sigaction(nr, NULL, &found) < 0 || found.sa_handler != SIG_DFL))
		return;
	(void)sigaction(nr, &action, NULL);
}

void fs_signals_begin(void)
{
	for (size_t i = 0; i < sizeof(signals) / sizeof(*signals); i++)
		set(signals[i].nr, signals[i].meaning);
	for (int nr = SIGRTMIN; nr <= SIGRTMAX; nr++)
		set(nr, IGNORED);
}

void fs_signals_defer(void)
{
	sigset_t ends;

	(void)sigemptyset(&ends);
	(void)sigaddset(&ends, SIGTERM);
	(void)sigaddset(&ends, SIGINT);
	(void)pthread_sigmask(SIG_BLOCK, &ends, NULL);
}

/* One that is ignored is kept, too, while it is held back. */
static bool came(const sigset_t *pending, int nr)
{
	struct sigaction found;

	return sigismember(pending, nr) == 1 && sigaction(nr, NULL, &found) == 0 && found.sa_handler != SIG_IGN;
}

bool fs_signals_came(void)
{
	sigset_t pending;

	return sigpending(&pending) == 0 && (came(&pending, SIGTERM) || came(&pending, SIGINT));
}

void fs_signals_admit(void)
{
	sigset_t none;

	(void)sigemptyset(&none);
	(void)pthread_sigmask(SIG_SETMASK, &none, NULL);
}

static pid_t waits_for;

static void pass_on(int nr)
{
	(void)kill(waits_for, nr);
}

size_t fs_signals_wait(pid_t daemon, int fd, char *to, size_t room)
{
	const struct sigaction action = {.sa_handler = pass_on};
	struct sigaction found;
	ssize_t n;

	waits_for = daemon;
	(void)sigaction(SIGTERM, &action, NULL);
	if (sigaction(SIGINT, NULL, &found) == 0 && found.sa_handler != SIG_IGN)
		(void)sigaction(SIGINT, &action, NULL);
	do
		n = read(fd, to, room);
	while (n < 0 && errno == EINTR);
	return n > 0 ? (size_t)n : 0;
}
