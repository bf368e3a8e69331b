/* SPDX-License-Identifier: Apache-2.0 */
/*
 * `scalai doctor`: what this machine has of what Scalai can use; what costs what when it is absent, and what to do.
 * Nothing is asked of a table of versions that can be tried: the kernel itself says what it has of FUSE, in a mount
 * that a child makes where nobody sees it, and the store's file system shares bytes of two files without a name.
 */
#include "fs/cli/cli.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <linux/fs.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <sys/utsname.h>
#include <unistd.h>

#include "fs/cli/doctor.h"
#include "fs/cli/json.h"
#include "reshard/engine/io/host.h"

#define FILES_WANTED 65536	/* fs/daemon/mount.c asks for so many */
#define FREE_LEAST 10		/* percent */

/* --- what is found --- */

struct findings {
	json_t *all;		/* NULL: they are printed as text, one by one */
	bool cannot_mount;
};

enum state { OK, LACKS, FAILS };

/* Says one line: the state, what it is of, and a sentence. */
static void say(struct findings *f, enum state state, const char *name, const char *fmt, ...)
	__attribute__((format(printf, 4, 5)));
static void say(struct findings *f, enum state state, const char *name, const char *fmt, ...)
{
	static const char *const states[] = {"ok", "lacks", "FAILS"};
	char text[1000];
	va_list ap;

	va_start(ap, fmt);
	(void)vsnprintf(text, sizeof(text), fmt, ap);
	va_end(ap);
	f->cannot_mount |= state == FAILS;
	if (f->all)
		(void)json_array_append_new(f->all, json_pack("{s:s, s:s, s:s}", "check", name, "state", states[state],
							      "text", text));
	else
		(void)printf("%s\t%s\t%s\n", states[state], name, text);
}

/* --- FUSE --- */

static bool has_fusermount(void)
{
	const char *path = getenv("PATH");
	char copy[8192], file[8300], *save = NULL;
	struct stat st;

	(void)snprintf(copy, sizeof(copy), "%s", path ? path : "/usr/bin:/bin");
	for (const char *dir = strtok_r(copy, ":", &save); dir; dir = strtok_r(NULL, ":", &save)) {
		(void)snprintf(file, sizeof(file), "%s/fusermount3", dir);
		if (stat(file, &st) == 0 && st.st_mode & S_ISUID && access(file, X_OK) == 0)
			return true;
	}
	return false;
}

static void check_mount(struct findings *f, const struct doctor_fuse *fuse)
{
	const bool root = geteuid() == 0;
	int fd = open("/dev/fuse", O_RDWR | O_CLOEXEC);

	if (fd >= 0)
		say(f, OK, "/dev/fuse", "can be opened");
	else
		say(f, FAILS, "/dev/fuse", "cannot be opened (%s): nothing can be mounted; %s", strerror(errno),
		    errno == ENOENT || errno == ENODEV
			    ? "load the module fuse, or give the container --device /dev/fuse"
			    : "give this user, or the container, the right to open it");
	if (fd >= 0)
		(void)close(fd);
	if (root && fuse->errnum)
		say(f, FAILS, "mount", "%s is refused (%s): nothing can be mounted; root needs CAP_SYS_ADMIN, in a "
		    "container --cap-add SYS_ADMIN and no seccomp or AppArmor rule against mount(2)", fuse->step,
		    strerror(fuse->errnum));
	else if (root)
		say(f, OK, "mount", "a mount was tried, and the kernel answered");
	if (has_fusermount())
		say(f, OK, "fusermount3", "is there");
	else
		say(f, root ? LACKS : FAILS, "fusermount3", "is not there, or not set-uid: users other than root "
		    "cannot mount; install the package fuse3");
}

static void check_kernel(struct findings *f, const struct doctor_fuse *fuse, bool has_leases, const char *store)
{
	const bool root = geteuid() == 0;
	struct utsname u;

	(void)uname(&u);
	if (fuse->errnum) {
		say(f, LACKS, "kernel", "%s %s; what it has of FUSE is not known, since %s is refused (%s)", u.sysname,
		    u.release, fuse->step, strerror(fuse->errnum));
		return;
	}
	say(f, OK, "kernel", "%s %s, FUSE 7.%u", u.sysname, u.release, fuse->minor);
	if (!root)
		say(f, LACKS, "passthrough", "needs root: reads and writes of real files go through the daemon, at a "
		    "third of their speed or less; mount as root");
	else if (!(fuse->flags & DOCTOR_PASSTHROUGH))
		say(f, LACKS, "passthrough", "the kernel has none: reads and writes of real files go through the "
		    "daemon, at a third of their speed or less; use Linux 6.9 or newer");
	else if (!has_leases)
		say(f, LACKS, "passthrough", "the file system of '%s' has no leases: reads and writes of real files go "
		    "through the daemon; put the store on ext4, XFS or btrfs", store);
	else
		say(f, OK, "passthrough", "real files are read and written at the store's own speed");
	if (fuse->minor >= 44)
		say(f, OK, "epoch", "names are kept by the kernel");
	else
		say(f, LACKS, "epoch", "the kernel has none: each name is looked up in the daemon, some 20 "
		    "microseconds each; use Linux 6.16 or newer");
	if (fuse->flags & DOCTOR_OVER_IO_URING)
		say(f, OK, "fuse-over-io_uring", "-o io_uring can be used");
	else if (access("/sys/module/fuse/parameters/enable_uring", F_OK) == 0)
		say(f, LACKS, "fuse-over-io_uring", "is switched off: -o io_uring is refused, with which many readers "
		    "of views are up to 1.5 times as fast; echo Y >/sys/module/fuse/parameters/enable_uring");
	else
		say(f, LACKS, "fuse-over-io_uring", "the kernel has none: -o io_uring is refused, with which many "
		    "readers of views are up to 1.5 times as fast; use Linux 6.14 or newer");
}

/* --- the rest of the machine --- */

static void check_ring(struct findings *f)
{
	const int errnum = rs_host_ring();

	if (!errnum) {
		say(f, OK, "io_uring", "real files are written by it");
		return;
	}
	say(f, LACKS, "io_uring", "is refused (%s): real files are made of views one piece after the other, without "
	    "it; write 0 to /proc/sys/kernel/io_uring_disabled, and let the container's seccomp rules allow "
	    "it", strerror(errnum));
}

static void check_limit(struct findings *f, const char *name, int what, rlim_t wanted, const char *costs)
{
	struct rlimit limit = {wanted, wanted};

	(void)setrlimit((__rlimit_resource_t)what, &limit); /* as the daemon does: root may raise it */
	(void)getrlimit((__rlimit_resource_t)what, &limit);
	if (limit.rlim_max == RLIM_INFINITY)
		say(f, OK, name, "unlimited");
	else if (limit.rlim_max >= wanted)
		say(f, OK, name, "%llu", (unsigned long long)limit.rlim_max);
	else
		say(f, LACKS, name, "%llu, where %llu are wanted: %s", (unsigned long long)limit.rlim_max,
		    (unsigned long long)wanted, costs);
}

/* --- the store's file system --- */

/* Finds the folder that is there, on the way to a store that may still have to be made. */
static void nearest(const char *store, char *ret, size_t bytes)
{
	(void)snprintf(ret, bytes, "%s", store);
	while (access(ret, F_OK) < 0 && strchr(ret, '/')) {
		char *slash = strrchr(ret, '/');

		slash[slash == ret] = 0;
		if (strcmp(ret, "/") == 0)
			return;
	}
	if (access(ret, F_OK) < 0)
		(void)snprintf(ret, bytes, ".");
}

/* Tells by two files without a name what the file system of a folder can do: 0, or an errno. */
static int try_files(const char *folder, bool *ret_leases, int *ret_clone)
{
	static const char block[4096] = "scalai doctor";
	int from = open(folder, O_TMPFILE | O_RDWR | O_CLOEXEC, 0600), to = -1, rc = 0;

	if (from >= 0)
		to = open(folder, O_TMPFILE | O_RDWR | O_CLOEXEC, 0600);
	if (to < 0 || write(from, block, sizeof(block)) != (ssize_t)sizeof(block))
		rc = errno ? errno : EIO;
	if (rc == 0) {
		*ret_clone = ioctl(to, FICLONE, from) == 0 ? 0 : errno;
		/* it is open for writing, so a file system with leases refuses this one */
		*ret_leases = fcntl(to, F_SETLEASE, F_RDLCK) == 0 || errno == EAGAIN;
	}
	if (from >= 0)
		(void)close(from);
	if (to >= 0)
		(void)close(to);
	return rc;
}

static void check_store(struct findings *f, const char *store, const char *folder, int tried, int clone)
{
	struct statvfs space;

	if (tried)
		say(f, access(folder, W_OK) == 0 ? LACKS : FAILS, "store", "nothing can be written in '%s' (%s); give "
		    "another folder, or the right to write there", folder, strerror(tried));
	else if (clone == 0)
		say(f, OK, "reflink", "the file system of '%s' shares bytes: imports, and files that a topology leaves "
		    "as they are, copy nothing", folder);
	else
		say(f, LACKS, "reflink", "the file system of '%s' has none (%s): files are copied, and take space "
		    "twice until the old version goes; XFS and btrfs have it", folder, strerror(clone));
	if (statvfs(folder, &space) < 0) {
		say(f, FAILS, "space", "of '%s' cannot be found out (%s)", folder, strerror(errno));
	} else {
		const double all = (double)space.f_blocks * (double)space.f_frsize;
		const double left = (double)space.f_bavail * (double)space.f_frsize;
		const bool few = left * 100 < all * FREE_LEAST;

		say(f, few ? LACKS : OK, "space", "%.1f of %.1f GB are free for '%s'%s", left / 1e9, all / 1e9, store,
		    few ? ": a commit or new real files may find no room; make some, or keep fewer versions (keep= in "
			  ".ctl/config)" : "");
	}
}

/* --- all of it --- */

static int finish(struct findings *f)
{
	int rc = 0;

	if (f->all)
		rc = cli_json_print(json_pack("{s:b, s:o}", "can_mount", !f->cannot_mount, "checks", f->all));
	return rc || f->cannot_mount;
}

int cli_doctor(const struct cli_args *args)
{
	const char *store = args->nr_operands ? args->operands[0] : ".", *etcd = cli_value(args, "etcd");
	struct findings f = {.all = cli_value(args, "json") ? json_array() : NULL};
	struct doctor_fuse fuse;
	bool has_leases = false;
	int clone = 0, tried;
	char folder[4096], why[200];

	if (cli_value(args, "json") && !f.all)
		return cli_json_print(NULL);
	nearest(store, folder, sizeof(folder));
	tried = try_files(folder, &has_leases, &clone);
	doctor_ask_fuse(&fuse);
	check_mount(&f, &fuse);
	check_kernel(&f, &fuse, has_leases || tried, folder);
	check_ring(&f);
	check_store(&f, store, folder, tried, clone);
	check_limit(&f, "nofile", RLIMIT_NOFILE, FILES_WANTED, "with more open files than that, opens fail with "
		    "EMFILE; raise the hard limit (LimitNOFILE=, ulimit -Hn)");
	check_limit(&f, "memlock", RLIMIT_MEMLOCK, 1 << 20, "rings of io_uring may be refused on kernels before 5.12; "
		    "raise the hard limit (LimitMEMLOCK=, ulimit -Hl)");
	if (etcd && doctor_ask_etcd(etcd, why, sizeof(why)))
		say(&f, OK, "etcd", "%s: %s", etcd, why);
	else if (etcd)
		say(&f, FAILS, "etcd", "%s: %s: no node of a cluster can be mounted; start it, or look at the address "
		    "and at its majority", etcd, why);
	return finish(&f);
}
