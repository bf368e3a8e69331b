/* SPDX-License-Identifier: Apache-2.0 */
#include "fs/daemon/mount.h"

#include <errno.h>
#include <fcntl.h>
#include <grp.h>
#include <linux/capability.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mount.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/statvfs.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include "fs/background/background.h"
#include "fs/control/control.h"
#include "fs/daemon/daemon.h"
#include "fs/daemon/mounts.h"
#include "fs/handover/hold.h"
#include "fs/handover/signals.h"
#include "fs/handover/unit.h"
#include "fs/open/open.h"
#include "fs/read/read.h"
#include "fs/request/parked.h"

#define THREADS_MAX 16
#define FILES_MAX 65536		/* descriptors: mappings and passthrough need none that stays */

/* --- events of the service --- */

static void on_names(void *arg)
{
	struct fs *fs = arg;

	fs_names_changed(fs);
	fs_forget_all(fs); /* a rollback or discard may have taken names */
}

static void on_news(void *arg, uint64_t job)
{
	(void)job;
	fs_notify_news(arg);
}

/* --- the session --- */

static int prepare_mountpoint(const char *path, struct sc_err *err)
{
	struct stat st;
	struct statvfs fs;
	char parent[4096];

	/* statvfs asks the daemon: the attributes that stat shows may be remembered from before */
	if (statvfs(path, &fs) < 0 || stat(path, &st) < 0) {
		/* a daemon died here: its mount goes, whoever still holds it */
		if (errno == ENOTCONN || errno == ECONNABORTED || errno == ESTALE)
			return fs_umount_dead(path, 0, err) < 0 ? err->code : prepare_mountpoint(path, err);
		if (errno != ENOENT)
			return sc_fail_sys(err, errno, "cannot use the mount point '%s'", path);
		if (mkdir(path, 0755) < 0)
			return sc_fail_sys(err, errno, "cannot make the mount point '%s'", path);
		return 0;
	}
	if (!S_ISDIR(st.st_mode))
		return sc_fail(err, SC_E_NOT_DIR, "the mount point '%s' is not a folder", path);
	(void)snprintf(parent, sizeof(parent), "%s/.ctl/health", path);
	if (access(parent, R_OK) == 0)
		return sc_fail(err, SC_E_BUSY, "'%s' has a live scalai mount already; 'scalai umount %s' ends it", path,
			       path);
	return 0;
}

/* Finds the device of the mount, in the mount table: stat(2) of a mount that nobody serves yet would wait for ever. */
static dev_t device_of(const char *mountpoint)
{
	struct fs_mounts mounts = {0};
	const struct fs_mounted *m = NULL;
	struct sc_err err = {0};
	dev_t device;

	if (fs_mounts_read(&mounts, &err) == 0)
		m = fs_mounts_find(&mounts, mountpoint);
	device = m ? m->device : 0;
	if (!m)
		sc_log(SC_LOG_WARN, "'%s' is not in the mount table (%s), continuing: dataset sources in it are not "
		       "refused", mountpoint, err.msg);
	fs_mounts_done(&mounts);
	return device;
}

/* Refuses -o io_uring if the kernel has it off: the kernel would not refuse, but send requests by /dev/fuse. */
static int check_rings(struct sc_err *err)
{
	static const char switch_[] = "/sys/module/fuse/parameters/enable_uring";
	char text[2] = "";
	int device;
	FILE *f;

	if (!FS_LIBFUSE_IS_PRIVATE)
		return sc_fail(err, SC_E_SYSTEM, "io_uring: the system's libfuse, which this program was built with, "
			       "loses requests over io_uring; build with the private one of tools/setup");
	device = open("/dev/fuse", O_RDWR | O_CLOEXEC); /* loads the module */
	f = fopen(switch_, "re");
	sc_closep(&device);
	if (f) {
		(void)!fread(text, 1, 1, f);
		(void)fclose(f);
	}
	if (*text == 'Y')
		return 0;
	return sc_fail(err, SC_E_SYSTEM, "io_uring: the kernel has FUSE over io_uring %s",
		       f ? "switched off; write Y to /sys/module/fuse/parameters/enable_uring"
			 : "not at all (it came with 6.14)");
}

/* libfuse is mounting: the first message of libfuse becomes the reason in our sentence if the mount fails. */
static bool mounting;
static char mount_failure[256];

/* Sends libfuse's own messages to our log. */
static void on_libfuse_log(enum fuse_log_level level, const char *fmt, va_list ap)
{
	char text[512];
	bool is_error = level <= FUSE_LOG_ERR, is_warning = level <= FUSE_LOG_WARNING;

	(void)vsnprintf(text, sizeof(text), fmt, ap);
	text[strcspn(text, "\n")] = 0;
	if (mounting && is_error) {
		if (!*mount_failure)
			(void)snprintf(mount_failure, sizeof(mount_failure), "%s", text);
		return;
	}
	sc_log(is_error ? SC_LOG_ERROR : is_warning ? SC_LOG_WARN : SC_LOG_DEBUG, "libfuse: %s", text);
}

static void tell_parent(int *pipe_fd, const char *text)
{
	if (*pipe_fd < 0)
		return;
	(void)!write(*pipe_fd, text, strlen(text) + 1);
	sc_closep(pipe_fd);
}

static void become_daemon(const struct fs_mount_options *o)
{
	int fd = open("/dev/null", O_RDWR | O_CLOEXEC);

	if (!*o->log && access("/dev/log", W_OK) < 0)
		sc_log(SC_LOG_WARN, "there is no syslog here (/dev/log), continuing: the log of this mount is lost; "
		       "-o log=FILE keeps it");
	else if (!*o->log)
		sc_log_to_syslog();
	for (int i = 0; fd >= 0 && i < 3; i++)
		(void)dup2(fd, i);
	if (fd > 2)
		(void)close(fd);
}

/*
 * Drops the capabilities of root's daemon but for those that it needs: for mount and passthrough (SYS_ADMIN), for files
 * of all users in the store (DAC_OVERRIDE, CHOWN, FOWNER, FSETID, LEASE), to open sources as the user who added them
 * (SETUID, SETGID), and to take the descriptor from which an import shares bytes (SYS_PTRACE).
 */
static void drop_capabilities(void)
{
	static const int kept[] = {CAP_SYS_ADMIN, CAP_DAC_OVERRIDE, CAP_CHOWN, CAP_FOWNER, CAP_FSETID, CAP_LEASE,
				   CAP_SETUID, CAP_SETGID, CAP_SYS_PTRACE};
	struct __user_cap_header_struct head = {.version = _LINUX_CAPABILITY_VERSION_3};
	struct __user_cap_data_struct caps[2] = {{0}};
	uint64_t mask = 0;

	if (geteuid() != 0)
		return;
	for (size_t i = 0; i < sizeof(kept) / sizeof(*kept); i++)
		mask |= UINT64_C(1) << kept[i];
	for (int i = 0; i <= CAP_LAST_CAP; i++)
		if (!(mask >> i & 1))
			(void)prctl(PR_CAPBSET_DROP, i, 0, 0, 0);
	if (syscall(SYS_capget, &head, caps) < 0)
		return;
	for (int i = 0; i < 2; i++) {
		caps[i].effective &= (uint32_t)(mask >> 32 * i);
		caps[i].permitted = caps[i].effective;
		caps[i].inheritable = 0;
	}
	(void)prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0);
	if (syscall(SYS_capset, &head, caps) < 0)
		sc_log(SC_LOG_WARN, "cannot drop capabilities (%s), continuing with all of them", strerror(errno));
}

static struct fuse_loop_config *loop_config(void)
{
	struct fuse_loop_config *config = fuse_loop_cfg_create();
	long cores = sysconf(_SC_NPROCESSORS_ONLN);

	if (!config)
		return NULL;
	fuse_loop_cfg_set_clone_fd(config, 0);
	/* the kernel hands requests to the one that has waited longest: few that wait keep them in the
	 * processor's caches (docs/benchmarks/changes.md), and libfuse adds threads while all are busy */
	fuse_loop_cfg_set_max_threads(config, THREADS_MAX);
	fuse_loop_cfg_set_idle_threads(config,
				       (unsigned)sc_min_u64((uint64_t)(cores < 2 ? 2 : cores) + 1, THREADS_MAX));
	return config;
}

/* Serves until the mount ends. */
static void loop(struct fs *fs, const struct fs_mount_options *o, struct fuse_loop_config *config, int *pipe_fd)
{
	int rc;

	fs->device = device_of(o->mountpoint);
	if (!o->read_ahead_off)
		fs_session_read_ahead(fs->device);
	if (!o->foreground)
		become_daemon(o);
	sc_log(SC_LOG_INFO, "'%s' is mounted at '%s'", o->store, o->mountpoint);
	if (!o->hold)
		fs_unit_ready();
	tell_parent(pipe_fd, "");
	fs_service_look(fs); /* before signals are admitted: they are for this thread alone */
	fs_signals_admit();
	rc = fuse_session_loop_mt(fs->se, config);
	fs_signals_defer(); /* a second one changes nothing */
	fs_service_looked(fs);
	if (rc < 0)
		sc_log(SC_LOG_ERROR, "the mount ends: %s", strerror(-rc));
	sc_log(SC_LOG_INFO, "'%s' is unmounted%s%s", o->mountpoint, rc > 0 ? ": ended by SIG" : "",
	       rc > 0 ? sigabbrev_np(rc) : "");
}

struct serve {
	const struct fs_mount_options *o;
	int *pipe_fd;
};

/* Begins the session: the first daemon of a mount mounts; a daemon that takes over finds /dev/fuse open. */
static int begin(struct fs *fs, const struct fs_mount_options *o, int fuse_fd, int tell_fd, struct sc_err *err)
{
	char path[32];
	int rc;

	if (fuse_fd >= 0) {
		(void)snprintf(path, sizeof(path), "/dev/fd/%d", fuse_fd);
		if (fuse_session_mount(fs->se, path) != 0)
			return sc_fail(err, SC_E_SYSTEM, "cannot take over the mount");
		rc = fs_take_over(fs, err);
		return rc < 0 || tell_fd < 0
			       ? rc
			       : fs_hold_tell(tell_fd, fuse_fd, rs_service_store(fs->service)->lock, err);
	}
	mounting = true;
	rc = fuse_session_mount(fs->se, o->mountpoint);
	mounting = false;
	if (rc != 0)
		return sc_fail(err, SC_E_SYSTEM, "cannot mount at '%s' (%s); is /dev/fuse there, and may you use it?",
			       o->mountpoint, *mount_failure ? mount_failure : "libfuse gives no reason");
	if (tell_fd < 0)
		return 0;
	rc = fs_begin(fs, err);
	if (rc == 0)
		rc = fs_hold_tell(tell_fd, fuse_session_fd(fs->se), rs_service_store(fs->service)->lock, err);
	if (rc < 0)
		fuse_session_unmount(fs->se);
	return rc;
}

/* Frees what serve() has made, as far as it came. */
static void end(struct fs *fs, bool has_handlers)
{
	fs_parked_stop();
	fs_service_leave(fs);
	fs_reads_stop(fs);
	while (__atomic_load_n(&fs->long_threads, __ATOMIC_ACQUIRE) ||
	       __atomic_load_n(&fs->waiting_threads, __ATOMIC_ACQUIRE))
		(void)usleep(1000);
	if (fs->notifier.started)
		fs_notify_stop(fs);
	fs_forget_stop(fs);
	fs_write_back_stop(fs);
	fs_ahead_end(fs);
	for (size_t i = 0; i < fs->handles.nr; i++)
		fs_handle_free(fs, fs->handles.at[i]);
	fs_service_end(fs);
	fs_gpu_end();
	fs_buffers_done();
	if (has_handlers)
		fuse_remove_signal_handlers(fs->se);
	if (fs->se)
		fuse_session_destroy(fs->se);
	sc_vec_done(&fs->handles);
	sc_vec_done(&fs->free_handles);
	sc_vec_done(&fs->free_writers);
	sc_vec_done(&fs->free_opens);
}

static int serve(void *arg, struct fs_kept *kept, int fuse_fd, int tell_fd, struct sc_err *err)
{
	const struct serve *x = arg;
	const struct fs_mount_options *o = x->o;
	struct fs fs = {.uid = geteuid(), .gid = getegid(), .no_passthrough = o->no_passthrough, .is_held = o->hold,
			.on_ring = fs_parked_ring, .rings = o->io_uring, .kept = kept,
			.gpu.news = PTHREAD_COND_INITIALIZER, .began_ns = sc_now_wall_ns(),
			.took_over_ns = fuse_fd >= 0 ? sc_now_ns() : INT64_MIN / 2};
	struct rs_events events = {&fs, on_names, on_news, fs_describe, fs_handle_each, fs_is_known, fs_opened};
	struct rlimit files = {FILES_MAX, FILES_MAX};
	char presets[4096];
	struct rs_options service = {.store = o->store, .preset_dir = presets, .events = &events,
				     .is_held = o->hold, .takes_over = fuse_fd >= 0, .scrub_every_s = o->scrub_s,
				     .scrub_bytes_per_s = (uint64_t)o->scrub_mib_s << 20};
	pthread_mutex_t *const locks[] = {&fs.lock, &fs.adopt_lock, &fs.write_back.lock, &fs.forget.lock,
					  &fs.notify_lock, &fs.reads.lock, &fs.gpu.lock};
	pthread_cond_t *const wakes[] = {&fs.write_back.wake, &fs.forget.wake, &fs.notify_wake, &fs.reads.wake};
	struct fuse_loop_config *config = NULL;
	bool has_handlers = false;
	int rc;

	if (!kept)
		return sc_nomem(err);
	service.open = kept->open_blobs;
	service.nr_open = kept->nr_opens;
	service.lock = kept->lock_fd;
	(void)snprintf(presets, sizeof(presets), "%s/presets", o->store);
	(void)setrlimit(RLIMIT_NOFILE, &files); /* as far as we may */
	/* sources of datasets are opened as the user who added them, who is in none of our groups */
	(void)(geteuid() == 0 && setgroups(0, NULL));
	drop_capabilities(); /* before there are threads: each has its own */
	for (size_t i = 0; i < sizeof(locks) / sizeof(*locks); i++)
		(void)pthread_mutex_init(locks[i], NULL);
	for (size_t i = 0; i < sizeof(wakes) / sizeof(*wakes); i++)
		(void)pthread_cond_init(wakes[i], NULL);
	rc = fuse_fd < 0 ? prepare_mountpoint(o->mountpoint, err) : 0;
	fs_signals_defer(); /* until loop(), and in all other threads for ever */
	if (rc == 0 && !(config = loop_config()))
		rc = sc_nomem(err);
	if (rc == 0)
		rc = fs_session_new(&fs, o, err);
	if (rc == 0)
		rc = fs_service_start(&fs, &service, &o->member, fuse_fd, err);
	if (rc == 0)
		rc = fs_notify_start(&fs, err);
	if (rc == 0)
		rc = fs_write_back_start(&fs, err);
	if (rc == 0)
		rc = fs_forget_start(&fs, err);
	if (rc == 0 && !(has_handlers = fuse_set_signal_handlers(fs.se) == 0))
		rc = sc_fail(err, SC_E_SYSTEM, "cannot set signal handlers");
	if (rc == 0)
		rc = begin(&fs, o, fuse_fd, tell_fd, err);
	if (rc == 0) {
		struct sc_err ignored;

		kept->live = kept->generation;
		loop(&fs, o, config, x->pipe_fd);
		if (fuse_fd < 0)
			fuse_session_unmount(fs.se);
		else
			(void)fs_umount_dead(o->mountpoint, fs.device, &ignored); /* libfuse did not mount it */
	}
	fuse_loop_cfg_destroy(config);
	end(&fs, has_handlers);
	return rc;
}

/* Is called in the holder when its daemon has mounted. */
static void live(void *arg)
{
	const struct serve *x = arg;

	if (!x->o->foreground)
		become_daemon(x->o);
	sc_closep(x->pipe_fd); /* the daemon has one of its own */
	fs_unit_ready();
}

static bool is_mounted(void *arg)
{
	const struct serve *x = arg;

	return fs_mount_is_there(x->o->store, x->o->mountpoint);
}

static int run(const struct fs_mount_options *o, int *pipe_fd, struct sc_err *err)
{
	struct serve x = {o, pipe_fd};
	const struct fs_hold_calls calls = {&x, serve, live, is_mounted};
	int rc = o->hold ? fs_hold(&calls, o->argv, err) : serve(&x, fs_kept_new(NULL), -1, -1, err);

	if (rc == FS_HOLD_LEFT) {
		sc_log(SC_LOG_INFO, "'%s' is left to systemd, for the next process of the unit", o->mountpoint);
		rc = 0;
	}
	if (rc == FS_HOLD_ENDED) { /* no daemon is left that would unmount */
		sc_log(SC_LOG_INFO, "'%s' is unmounted: a signal to end came while no daemon ran", o->mountpoint);
		rc = fs_umount_dead(o->mountpoint, 0, err);
	}
	return rc;
}

static int open_log(const struct fs_mount_options *o, struct sc_err *err)
{
	size_t n = strlen(o->mountpoint);

	if (*o->log && strncmp(o->log, o->mountpoint, n) == 0 && o->log[n] == '/')
		return sc_fail(err, SC_E_COMMAND, "log=%s: the log of a mount can't be a file of it; write it "
			"elsewhere", o->log);
	if (*o->log)
		return sc_log_to_file(o->log, err);
	if (o->foreground)
		return 0;
	if (fs_is_held())
		sc_log_to_syslog();
	return 0;
}

int fs_mount(const struct fs_mount_options *o, struct sc_err *err)
{
	char store[FS_PATH_BYTES], mountpoint[FS_PATH_BYTES], message[SC_ERR_BYTES_MAX] = "";
	struct fs_mount_options abs = *o;
	int pipes[2] = {-1, -1};
	bool made;
	size_t n;
	pid_t pid;
	int rc;

	sc_log_level(o->debug ? SC_LOG_DEBUG : SC_LOG_INFO);
	fuse_set_log_func(on_libfuse_log);
	fs_signals_begin();
	if (!fs_is_held()) /* a holder that runs the program anew has held back what came meanwhile */
		fs_signals_admit();
	rc = o->io_uring ? check_rings(err) : 0;
	if (rc < 0)
		return rc;
	/* absolute: a daemon has no folder of its own */
	rc = fs_mount_store(o->store, o->existing, store, &made, err);
	rc = rc < 0 ? rc : fs_mount_path(o->mountpoint, mountpoint, err);
	rc = rc < 0 ? rc : fs_mount_apart(store, mountpoint, err);
	if (rc < 0 && made)
		(void)rmdir(store);
	if (rc < 0)
		return rc;
	abs.store = store;
	abs.mountpoint = mountpoint;
	if (o->hold)
		fs_hold_resume(fs_mount_is_there(store, mountpoint));
	rc = open_log(&abs, err);
	if (rc < 0)
		return rc;
	/* to be run anew, maybe from another folder */
	for (char **word = o->argv; word && *word; word++)
		*word = *word == o->store ? store : *word == o->mountpoint ? mountpoint : *word;
	if (o->foreground || fs_is_held())
		return run(&abs, &pipes[1], err);
	if (pipe2(pipes, O_CLOEXEC) < 0)
		return sc_fail_sys(err, errno, "pipe");
	pid = fork();
	if (pid < 0)
		return sc_fail_sys(err, errno, "fork");
	if (pid == 0) {
		sc_closep(&pipes[0]);
		(void)setsid();
		(void)!chdir("/");
		rc = run(&abs, &pipes[1], err);
		if (rc < 0)
			tell_parent(&pipes[1], err->msg);
		_exit(rc < 0);
	}
	sc_closep(&pipes[1]);
	n = fs_signals_wait(pid, pipes[0], message, sizeof(message) - 1);
	sc_closep(&pipes[0]);
	if (n < 1)
		return sc_fail(err, SC_E_SYSTEM, "the daemon ended before the mount was live");
	return *message ? sc_fail(err, SC_E_SYSTEM, "%s", message) : 0;
}
