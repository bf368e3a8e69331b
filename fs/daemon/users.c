/* SPDX-License-Identifier: Apache-2.0 */
#include "fs/daemon/users.h"

#include <ctype.h>
#include <dirent.h>
#include <fcntl.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/sysmacros.h>
#include <unistd.h>

/* Tells whether a link in /proc leads into the mount; its file's attributes are those that the kernel remembers. */
static bool leads_there(int dir, const char *link, dev_t device, char ret[4096])
{
	struct statx st;
	ssize_t n;

	if (statx(dir, link, AT_STATX_DONT_SYNC | AT_NO_AUTOMOUNT, STATX_TYPE, &st) < 0 ||
	    makedev(st.stx_dev_major, st.stx_dev_minor) != device)
		return false;
	n = readlinkat(dir, link, ret, 4095);
	ret[n > 0 ? n : 0] = 0;
	return true;
}

static bool has_open(int dir, dev_t device, char ret[4096])
{
	int fd = openat(dir, "fd", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
	DIR *d = fd < 0 ? NULL : fdopendir(fd);
	const struct dirent *e;
	bool found = false;

	if (!d) {
		if (fd >= 0)
			(void)close(fd);
		return false;
	}
	while (!found && (e = readdir(d)))
		found = isdigit(e->d_name[0]) && leads_there(dirfd(d), e->d_name, device, ret);
	(void)closedir(d);
	return found;
}

/* By the path: of a file that the kernel reads by itself, the device is that of the store. */
static bool has_mapped(int dir, const char *mountpoint, char ret[4096])
{
	size_t n = strlen(mountpoint), room = 0;
	int fd = openat(dir, "maps", O_RDONLY | O_CLOEXEC);
	FILE *f = fd < 0 ? NULL : fdopen(fd, "r");
	char *line = NULL;
	bool found = false;

	if (!f) {
		if (fd >= 0)
			(void)close(fd);
		return false;
	}
	while (!found && getline(&line, &room, f) > 0) {
		const char *path = strchr(line, '/');

		found = path && strncmp(path, mountpoint, n) == 0 && path[n] == '/';
		if (found)
			(void)snprintf(ret, 4096, "%.*s", (int)strcspn(path, "\n"), path);
	}
	free(line);
	(void)fclose(f);
	return found;
}

static void read_name(int dir, char *ret, size_t room)
{
	int fd = openat(dir, "comm", O_RDONLY | O_CLOEXEC);
	ssize_t n = fd < 0 ? 0 : read(fd, ret, room - 1);

	ret[n > 0 ? n : 0] = 0;
	ret[strcspn(ret, "\n")] = 0;
	if (fd >= 0)
		(void)close(fd);
}

size_t fs_users_each(const char *mountpoint, dev_t device, void (*each)(void *arg, const struct fs_user *user),
		     void *arg)
{
	DIR *proc = opendir("/proc");
	const struct dirent *e;
	size_t nr = 0;

	while (proc && (e = readdir(proc))) {
		struct fs_user user = {.pid = atoi(e->d_name)};
		int dir = user.pid > 0 && user.pid != getpid()
				  ? openat(dirfd(proc), e->d_name, O_RDONLY | O_DIRECTORY | O_CLOEXEC)
				  : -1;

		if (dir < 0)
			continue;
		if (has_open(dir, device, user.file) || leads_there(dir, "cwd", device, user.file) ||
		    leads_there(dir, "root", device, user.file) || has_mapped(dir, mountpoint, user.file)) {
			read_name(dir, user.name, sizeof(user.name));
			each(arg, &user);
			nr++;
		}
		(void)close(dir);
	}
	if (proc)
		(void)closedir(proc);
	return nr;
}
