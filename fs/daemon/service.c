/* SPDX-License-Identifier: Apache-2.0 */
/* Starts and ends the service of a mount, and the node of a cluster that the mount may be. */
#include "fs/daemon/daemon.h"
#include "fs/handover/signals.h"

#include <poll.h>
#include <string.h>
#include <unistd.h>

#include "fs/handover/hold.h"
#include "fs/handover/unit.h"
#include "meta/base/metric.h"
#include "reshard/cluster/node/member.h"

#ifdef FS_HAS_CLUSTER

#define LOOK_MS 100

/*
 * Looks, in a thread of its own, whether the session ends, and then ends all waits for etcd and for other nodes (E1 of
 * member.h).  libfuse joins its workers at the end of a session, and one of them may wait for the newest version, or
 * for bytes while a file is opened.
 */
static void *look(void *arg)
{
	struct fs *fs = arg;
	struct pollfd device = {.fd = fuse_session_fd(fs->se)};

	while (!__atomic_load_n(&fs->looker.stop, __ATOMIC_ACQUIRE) && !fuse_session_exited(fs->se))
		if (poll(&device, 1, LOOK_MS) > 0) /* POLLERR: it is unmounted */
			break;
	fs_service_leave(fs);
	return NULL;
}

void fs_service_look(struct fs *fs)
{
	struct sc_err err;

	if (fs->looker.is_needed && sc_thread_start(&fs->looker.thread, "scalai-look", look, fs, &err) < 0)
		sc_log(SC_LOG_WARN, "%s, continuing without it: an unmount may wait for other nodes", err.msg);
}

void fs_service_looked(struct fs *fs)
{
	__atomic_store_n(&fs->looker.stop, true, __ATOMIC_RELEASE);
	sc_thread_join(&fs->looker.thread);
}

/* Has the mount been ended while its daemon starts?  One that takes over may be unmounted. */
static bool has_ended(void *arg)
{
	const int *fuse_fd = arg;

	return fs_signals_came() || (*fuse_fd >= 0 && !fs_unit_is_live(*fuse_fd));
}

int fs_service_start(struct fs *fs, const struct rs_options *options, const struct rs_member_options *member,
		     int fuse_fd, struct sc_err *err)
{
	struct rs_member_options with = *member;
	int rc = rs_service_new(options, &fs->service, err);

	/* by hand it is refused with a sentence; nobody starts that of a unit again, and files of one that takes over
	 * are open */
	with.boot = (struct rs_boot_options){&fuse_fd, has_ended, fs_unit_waits, fs_unit_is() || fuse_fd >= 0};
	fs->looker.is_needed = member->cluster;
	return rc == 0 && member->cluster ? rs_member_start(fs->service, &with, err) : rc;
}

void fs_service_leave(struct fs *fs)
{
	if (fs->service)
		rs_member_leave(fs->service);
}

void fs_service_end(struct fs *fs)
{
	struct rs_landings *landings = fs->service ? rs_member_stop(fs->service) : NULL;

	rs_service_free(fs->service);
	if (landings)
		(void)rs_landings_free(landings);
}

/* Appends lines for `health`. */
static void describe_node(struct fs *fs, struct sc_buf *buf)
{
	rs_member_describe(fs->service, buf);
}

#else

void fs_service_look(struct fs *fs)
{
	(void)fs;
}

void fs_service_looked(struct fs *fs)
{
	(void)fs;
}

int fs_service_start(struct fs *fs, const struct rs_options *options, const struct rs_member_options *member,
		     int fuse_fd, struct sc_err *err)
{
	(void)fuse_fd;
	(void)member; /* its options were refused */
	return rs_service_new(options, &fs->service, err);
}

void fs_service_leave(struct fs *fs)
{
	(void)fs;
}

void fs_service_end(struct fs *fs)
{
	rs_service_free(fs->service);
}

static void describe_node(struct fs *fs, struct sc_buf *buf)
{
	(void)fs;
	(void)buf;
}

#endif

static void describe_metrics(const struct fs *fs, struct sc_buf *buf)
{
	sc_metric_family(buf, "scalai_build_info", SC_GAUGE, "1; the labels say what this daemon was built of.");
	sc_buf_printf(buf, "scalai_build_info{version=\"%s\",libfuse=\"%s\"} 1\n", SC_VERSION, fuse_pkgversion());
	sc_metric_family(buf, "scalai_feature", SC_GAUGE,
			 "1: the mount uses this feature of the kernel, 0: it does not.");
	sc_buf_printf(buf, "scalai_feature{feature=\"passthrough\"} %d\nscalai_feature{feature=\"epoch\"} %d\n"
			   "scalai_feature{feature=\"io_uring\"} %d\n", fs->passthrough, fs->epoch,
		      __atomic_load_n(&fs->io_uring, __ATOMIC_RELAXED));
	sc_metric_family(buf, "scalai_start_time_seconds", SC_GAUGE, "When this daemon was started, since 1970.");
	sc_buf_printf(buf, "scalai_start_time_seconds %.3f\n", (double)fs->began_ns / 1e9);
	sc_metric_family(buf, "scalai_daemon_replaced_total", SC_COUNTER,
			 "Daemons of this mount that another one has followed.");
	sc_buf_printf(buf, "scalai_daemon_replaced_total %u\n", fs->kept->generation - 1);
}

void fs_describe(void *arg, const char *name, struct sc_buf *buf)
{
	struct fs *fs = arg;

	if (strcmp(name, "metrics") == 0)
		describe_metrics(fs, buf);
	if (strcmp(name, "version") == 0)
		sc_buf_printf(buf, "libfuse %s\n", fuse_pkgversion());
	if (strcmp(name, "health") != 0)
		return;
	sc_buf_printf(buf, "passthrough: %s\nepoch: %s\nio_uring: %s\npid: %d\nreplaced: %u\n",
		      fs->passthrough ? "yes" : "no", fs->epoch ? "yes" : "no",
		      __atomic_load_n(&fs->io_uring, __ATOMIC_RELAXED) ? "yes" : "no", (int)getpid(),
		      fs->kept->generation - 1);
	describe_node(fs, buf);
}
