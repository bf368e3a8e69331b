/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Makes a daemon stop at named steps (reshard/cluster/peers/steps.h): linked to the program, with nothing else changed.  A
 * thread that comes to step NAME waits for as long as $SCALAI_STEPS/NAME is there, and says so by $SCALAI_STEPS/NAME.at.
 * Where $SCALAI_STEPS/NAME.first is there, too, only the first one does, until somebody removes NAME.at.
 * Lets the program speak other protocols, too: $SCALAI_PROTOCOLS.  While $SCALAI_STEPS/catalog.fails is there, what SQLite writes
 * fails: with ENOSPC if that file is empty, else with EIO.
 */
#include "meta/base/sys.h"

#include <errno.h>
#include <fcntl.h>
#include <sqlite3.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "reshard/cluster/net/frame.h"

static void stop(int nr, const char *name)
{
	const char *folder = getenv("SCALAI_STEPS");
	char path[4096], at[sizeof(path) + 3], first[sizeof(path) + 6];
	int fd;

	(void)nr;
	if (!folder || snprintf(path, sizeof(path), "%s/%s", folder, name) >= (int)sizeof(path) || access(path, F_OK) < 0)
		return;
	(void)snprintf(at, sizeof(at), "%s.at", path);
	(void)snprintf(first, sizeof(first), "%s.first", path);
	fd = open(at, O_WRONLY | O_CREAT | O_CLOEXEC | (access(first, F_OK) == 0 ? O_EXCL : 0), 0600);
	if (fd < 0)
		return;
	(void)close(fd);
	while (access(path, F_OK) == 0)
		(void)usleep(500);
}

static struct {
	sqlite3_syscall_ptr pwrite, write;
} real;

/* Sets errno, and says so, if the catalog is to fail now. */
static bool fails(void)
{
	const char *folder = getenv("SCALAI_STEPS");
	char path[4096];
	struct stat st;

	if (!folder || snprintf(path, sizeof(path), "%s/catalog.fails", folder) >= (int)sizeof(path) || stat(path, &st) < 0)
		return false;
	errno = st.st_size ? EIO : ENOSPC;
	return true;
}

static ssize_t pwrite_or_fail(int fd, const void *at, size_t bytes, off_t off)
{
	return fails() ? -1 : ((ssize_t (*)(int, const void *, size_t, off_t))real.pwrite)(fd, at, bytes, off);
}

static ssize_t write_or_fail(int fd, const void *at, size_t bytes)
{
	return fails() ? -1 : ((ssize_t (*)(int, const void *, size_t))real.write)(fd, at, bytes);
}

static void watch_catalog(void)
{
	sqlite3_vfs *vfs = sqlite3_initialize() == SQLITE_OK ? sqlite3_vfs_find(NULL) : NULL;

	if (!vfs || vfs->iVersion < 3)
		abort();
	/* Debian's SQLite calls the one of 64 bits where it has it */
	real.pwrite = vfs->xGetSystemCall(vfs, "pwrite64");
	if (real.pwrite)
		(void)vfs->xSetSystemCall(vfs, "pwrite64", (sqlite3_syscall_ptr)pwrite_or_fail);
	else
		real.pwrite = vfs->xGetSystemCall(vfs, "pwrite");
	(void)vfs->xSetSystemCall(vfs, "pwrite", (sqlite3_syscall_ptr)pwrite_or_fail);
	real.write = vfs->xGetSystemCall(vfs, "write");
	(void)vfs->xSetSystemCall(vfs, "write", (sqlite3_syscall_ptr)write_or_fail);
}

/* A number or two of $SCALAI_PROTOCOLS, "1-2". */
static void speak(const char *protocols)
{
	const char *to = strchr(protocols, '-');

	rs_protocols.min = (uint8_t)atoi(protocols);
	rs_protocols.max = to ? (uint8_t)atoi(to + 1) : rs_protocols.min;
}

__attribute__((constructor)) static void start(void)
{
	if (getenv("SCALAI_PROTOCOLS"))
		speak(getenv("SCALAI_PROTOCOLS"));
	sc_sys.step = stop;
	watch_catalog();
}
