/* SPDX-License-Identifier: Apache-2.0 */
#include "fs/handover/hold.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/mman.h>
#include <sys/signalfd.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include "fs/handover/signals.h"
#include "fs/handover/unit.h"
#include "meta/base/log.h"
#include "meta/base/sys.h"

/*
 * The mount ends after so many daemons in a row that died before they served: of a fault of their own, as a request
 * that kills its daemon is sent again; or killed by others (a machine that is out of memory, a script), which says
 * nothing of the next one.  The holder waits longer after each: 100 of them take a minute and a half.
 */
#define FAULTS_MAX 3
#define EARLY_DEATHS_MAX 100
#define PAUSE_MIN_MS 5
#define PAUSE_MAX_MS 1000

#define HELD "SCALAI_HELD" /* in the environment: descriptors of /dev/fuse, struct fs_kept, the lock */

/* The version of struct fs_kept: a program that finds another one forgets what was kept. */
#define KEPT_VERSION 3
#define LAYOUT ((UINT64_C(0x5ca1a0) + KEPT_VERSION) << 32 | sizeof(struct fs_kept))
/* A change of where its fields lie does not compile until these numbers, and with them the version, are written anew; a
 * change of what a field means needs a new version, too. */
#define LIES(field, at) \
	_Static_assert(offsetof(struct fs_kept, field) == (at), #field " lies elsewhere: raise KEPT_VERSION")
LIES(live, 12);
LIES(message, 1044);
LIES(backings, 2072);
LIES(commands, 526360);
LIES(texts, 536600);
LIES(documents, 540704);
LIES(told_stale, 541216);
LIES(writer_order, 542240);
LIES(writers, 542256);
LIES(reserved, 3163696);
LIES(opens, 3188280);
LIES(numbers, 5285432);
LIES(requests, 6334008);
LIES(lock_fd, 6335032);
LIES(open_blobs, 6335040);
_Static_assert(sizeof(struct fs_kept) == 6859328, "struct fs_kept has another size: raise KEPT_VERSION");

static struct fs_kept *map_kept(int fd)
{
	void *p = mmap(NULL, sizeof(struct fs_kept), PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);

	return p == MAP_FAILED ? NULL : p;
}

struct fs_kept *fs_kept_new(int *ret_fd)
{
	sc_cleanup(sc_closep) int fd = memfd_create("scalai-kept", MFD_CLOEXEC);
	struct fs_kept *kept = fd >= 0 && ftruncate(fd, sizeof(*kept)) == 0 ? map_kept(fd) : NULL;

	if (kept) {
		kept->layout = LAYOUT;
		kept->generation = 1;
	}
	if (kept && ret_fd)
		*ret_fd = sc_steal_fd(&fd);
	return kept;
}

bool fs_is_held(void)
{
	return getenv(HELD) != NULL;
}

void fs_hold_resume(bool mounted)
{
	int fds[FS_UNIT_FDS];
	char text[48];

	if (fs_is_held() || !fs_unit_take(mounted, fds))
		return;
	(void)snprintf(text, sizeof(text), "%d %d %d", fds[FS_UNIT_FUSE], fds[FS_UNIT_KEPT], fds[FS_UNIT_LOCK]);
	(void)setenv(HELD, text, 1);
}

/* Maps the memory that the previous program has left. */
static struct fs_kept *inherit(int *ret_fuse_fd, int *ret_kept_fd, int *ret_lock_fd)
{
	struct fs_kept *kept;

	/* a program of before had no lock: its daemons took it */
	if (sscanf(getenv(HELD), "%d %d %d", ret_fuse_fd, ret_kept_fd, ret_lock_fd) < 2)
		return NULL;
	(void)unsetenv(HELD);
	(void)fcntl(*ret_fuse_fd, F_SETFD, FD_CLOEXEC);
	(void)fcntl(*ret_kept_fd, F_SETFD, FD_CLOEXEC);
	(void)fcntl(*ret_lock_fd, F_SETFD, FD_CLOEXEC);
	/* it may be shorter, if that program kept less */
	(void)ftruncate(*ret_kept_fd, sizeof(*kept));
	kept = map_kept(*ret_kept_fd);
	if (kept && kept->layout != LAYOUT) {
		sc_log(SC_LOG_WARN,
		       "upgraded from an incompatible build, continuing: files that are open through passthrough "
		       "cannot be "
		       "opened again until every process has closed them");
		kept->layout = LAYOUT;
		kept->nr_backings = 0;
		memset(kept->commands, 0, sizeof(*kept) - offsetof(struct fs_kept, commands));
	}
	return kept;
}

/* Runs the installed program; returns only if that fails. */
static void run_anew(char **argv, const char *program, int fuse_fd, int kept_fd, int lock_fd)
{
	const int fds[] = {fuse_fd, kept_fd, lock_fd};
	char text[48];

	(void)snprintf(text, sizeof(text), "%d %d %d", fuse_fd, kept_fd, lock_fd);
	(void)setenv(HELD, text, 1);
	for (size_t i = 0; i < sizeof(fds) / sizeof(*fds); i++)
		(void)fcntl(fds[i], F_SETFD, 0);
	(void)execv(program, argv);
	sc_log(SC_LOG_ERROR, "cannot run '%s' (%s), continuing with this program", program, strerror(errno));
	(void)unsetenv(HELD);
	for (size_t i = 0; i < sizeof(fds) / sizeof(*fds); i++)
		(void)fcntl(fds[i], F_SETFD, FD_CLOEXEC);
}

/* descriptors that the daemon hands over: /dev/fuse and the lock of the store */
#define HANDED 2

union control {
	char room[CMSG_SPACE(HANDED * sizeof(int))];
	struct cmsghdr align;
};

int fs_hold_tell(int tell_fd, int fuse_fd, int lock_fd, struct sc_err *err)
{
	const int fds[HANDED] = {fuse_fd, lock_fd};
	union control control = {{0}};
	char byte = 0;
	struct iovec iov = {&byte, 1};
	struct msghdr msg = {.msg_iov = &iov, .msg_iovlen = 1, .msg_control = &control,
			     .msg_controllen = sizeof(control)};
	struct cmsghdr *c = CMSG_FIRSTHDR(&msg);

	c->cmsg_level = SOL_SOCKET;
	c->cmsg_type = SCM_RIGHTS;
	c->cmsg_len = CMSG_LEN(sizeof(fds));
	memcpy(CMSG_DATA(c), fds, sizeof(fds));
	if (sendmsg(tell_fd, &msg, MSG_NOSIGNAL) != 1)
		return sc_fail_sys(err, errno, "the daemon cannot hand the mount to its holder");
	return 0;
}

/* Receives these descriptors from the daemon; -1: the daemon ended before it had mounted. */
static void receive(int from, int *ret_fuse_fd, int *ret_lock_fd)
{
	union control control;
	char byte;
	struct iovec iov = {&byte, 1};
	struct msghdr msg = {.msg_iov = &iov, .msg_iovlen = 1, .msg_control = &control,
			     .msg_controllen = sizeof(control)};
	struct cmsghdr *c;
	ssize_t n;
	int fds[HANDED] = {-1, -1};

	do
		n = recvmsg(from, &msg, MSG_CMSG_CLOEXEC);
	while (n < 0 && errno == EINTR);
	c = n == 1 ? CMSG_FIRSTHDR(&msg) : NULL;
	if (c && c->cmsg_type == SCM_RIGHTS && c->cmsg_len == CMSG_LEN(sizeof(fds)))
		memcpy(fds, CMSG_DATA(c), sizeof(fds));
	*ret_fuse_fd = fds[0];
	*ret_lock_fd = fds[1];
}

/* --- the holder --- */

struct holder {
	int signals;	/* signalfd: taken one by one, a signal falls into no gap between two daemons */
	int from, tell_fd; /* where the first daemon that serves hands the mount over; -1: one has */
	int fuse_fd;	/* -1: nothing is mounted yet */
	int kept_fd;
	int lock_fd;	/* of the store, which stays locked until the holder ends; -1: likewise */
	pid_t daemon;
	bool ends;	/* SIGTERM or SIGINT came */
	bool upgrades;	/* SIGUSR1 came */
	bool leaves;	/* the mount stays with systemd: U1 of unit.h */
	unsigned early, faults; /* daemons in a row that died before they served; those of a fault of their own */
	const struct fs_hold_calls *calls;
	char program[4096];
};

static int take_signals(struct sc_err *err)
{
	sigset_t set;
	int fd;

	(void)sigemptyset(&set);
	(void)sigaddset(&set, SIGTERM);
	(void)sigaddset(&set, SIGINT);
	(void)sigaddset(&set, SIGUSR1);
	(void)sigaddset(&set, SIGCHLD);
	(void)sigprocmask(SIG_BLOCK, &set, NULL);
	fd = signalfd(-1, &set, SFD_CLOEXEC);
	return fd < 0 ? sc_fail_sys(err, errno, "signalfd") : fd;
}

/* Tells whether the daemon has ended, with *ret_status. */
static bool take_signal(struct holder *h, int *ret_status)
{
	struct signalfd_siginfo info;

	if (read(h->signals, &info, sizeof(info)) != sizeof(info))
		return false;
	if (info.ssi_signo == SIGCHLD)
		return waitpid(h->daemon, ret_status, WNOHANG) == h->daemon;
	if (info.ssi_signo == SIGUSR1) {
		h->upgrades = h->fuse_fd >= 0;
		if (h->upgrades)
			(void)kill(h->daemon, SIGKILL); /* as good as any other end */
		return false;
	}
	/* a signal to end is passed on to the daemon, which then unmounts */
	h->ends = true;
	/* a program that was removed has no next process */
	h->leaves = h->fuse_fd >= 0 && fs_unit_keeps() && access(h->program, X_OK) == 0 &&
		    h->calls->is_mounted(h->calls->arg);
	(void)kill(h->daemon, h->leaves ? SIGKILL : (int)info.ssi_signo);
	return false;
}

/* The daemon serves: the first one has mounted, or that of a program that was run anew has taken over. */
static void begin(struct holder *h)
{
	int fuse_fd, lock_fd;

	receive(h->from, &fuse_fd, &lock_fd);
	sc_closep(&h->from);
	sc_closep(&h->tell_fd);
	if (fuse_fd < 0)
		return;
	if (h->fuse_fd >= 0) { /* the same, once more */
		sc_closep(&fuse_fd);
		sc_closep(&lock_fd);
	} else {
		h->fuse_fd = fuse_fd;
		h->lock_fd = lock_fd;
	}
	fs_unit_keep((const int[FS_UNIT_FDS]){h->fuse_fd, h->kept_fd, h->lock_fd});
	h->calls->live(h->calls->arg);
}

/* Waits until the daemon has ended; returns its status. */
static int attend(struct holder *h)
{
	struct pollfd fds[] = {{h->signals, POLLIN, 0}, {h->from, POLLIN, 0}};
	int status = 0;

	for (;;) {
		if (poll(fds, 2, -1) < 0)
			continue;
		if (fds[1].revents) {
			begin(h);
			fds[1].fd = -1;
		}
		if (fds[0].revents && take_signal(h, &status))
			return status;
	}
}

/* Never returns. */
static void serve(struct holder *h, struct fs_kept *kept, struct sc_err *err)
{
	int rc;

	sc_closep(&h->from);
	sc_closep(&h->signals);
	fs_signals_admit();
	kept->lock_fd = h->lock_fd < 0 ? 0 : h->lock_fd;
	rc = h->calls->serve(h->calls->arg, kept, h->fuse_fd, h->tell_fd, err);
	(void)snprintf(kept->message, sizeof(kept->message), "%s", rc < 0 ? err->msg : "");
	_exit(rc < 0);
}

/* Counts a daemon that was killed by a signal, and waits before the next one where it never served: until a signal
 * comes to the holder, which is the next daemon's, or the mount ends. */
static int count_death(struct holder *h, const struct fs_kept *kept, int sig, struct sc_err *err)
{
	struct pollfd fds[] = {{h->signals, POLLIN, 0}, {h->fuse_fd, 0, 0}};
	int pause_ms = PAUSE_MIN_MS;

	if (kept->live == kept->generation) {
		h->early = h->faults = 0;
		return 0;
	}
	h->early++;
	h->faults += sig != SIGKILL;
	if (h->faults == FAULTS_MAX || h->early == EARLY_DEATHS_MAX)
		return sc_fail(err, SC_E_SYSTEM, "%u daemons died before they could serve (signal %d): the mount ends",
			       h->early, sig);
	for (unsigned i = 1; i < h->early && pause_ms < PAUSE_MAX_MS; i++)
		pause_ms *= 2;
	(void)poll(fds, 2, pause_ms < PAUSE_MAX_MS ? pause_ms : PAUSE_MAX_MS);
	return 0;
}

/* Daemon after daemon; returns what fs_hold() does. */
static int hold(struct holder *h, struct fs_kept *kept, char **argv, struct sc_err *err)
{
	int status;

	for (;;) {
		/* counted here: a daemon may die before its first step */
		kept->generation += h->fuse_fd >= 0;
		h->daemon = fork();
		if (h->daemon < 0)
			return sc_fail_sys(err, errno, "the holder cannot start a daemon");
		if (h->daemon == 0)
			serve(h, kept, err);
		status = attend(h);
		if (h->leaves)
			return FS_HOLD_LEFT;
		if (WIFEXITED(status) && WEXITSTATUS(status) == 0)
			return 0;
		if (h->ends && h->fuse_fd >= 0)
			return FS_HOLD_ENDED;
		if (h->ends && fs_unit_is())
			return 0; /* stopped while it started: nothing has failed */
		if (h->fuse_fd >= 0 && !fs_unit_is_live(h->fuse_fd))
			return 0; /* it was unmounted before its next daemon served */
		if (WIFEXITED(status) || h->fuse_fd < 0)
			return sc_fail(err, SC_E_SYSTEM, "%s",
				       *kept->message ? kept->message : "the daemon ended before the mount was live");
		if (h->upgrades) {
			h->upgrades = false;
			run_anew(argv, h->program, h->fuse_fd, h->kept_fd, h->lock_fd);
			continue;
		}
		sc_log(SC_LOG_WARN, "the daemon was killed by signal %d, continuing with another one",
		       WTERMSIG(status));
		if (count_death(h, kept, WTERMSIG(status), err) < 0)
			return err->code;
		if (!fs_unit_is_live(h->fuse_fd))
			return 0;
	}
}

int fs_hold(const struct fs_hold_calls *calls, char **argv, struct sc_err *err)
{
	struct holder h = {.fuse_fd = -1, .kept_fd = -1, .lock_fd = -1, .from = -1, .tell_fd = -1,
			   .calls = calls};
	int pair[2], rc;
	struct fs_kept *kept = fs_is_held() ? inherit(&h.fuse_fd, &h.kept_fd, &h.lock_fd) : fs_kept_new(&h.kept_fd);

	if (!kept)
		return sc_nomem(err);
	(void)!readlink("/proc/self/exe", h.program, sizeof(h.program) - 1);
	h.signals = take_signals(err);
	if (h.signals < 0)
		return h.signals;
	if (socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, pair) < 0)
		return sc_fail_sys(err, errno, "socketpair");
	h.from = pair[0];
	h.tell_fd = pair[1];
	rc = hold(&h, kept, argv, err);
	if (rc != FS_HOLD_LEFT && h.lock_fd >= 0)
		(void)flock(h.lock_fd, LOCK_UN); /* systemd has a copy, too, for some time to come */
	return rc;
}
