/* SPDX-License-Identifier: Apache-2.0 */
#include "fs/daemon/mounts.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mount.h>
#include <sys/stat.h>
#include <sys/sysmacros.h>
#include <sys/wait.h>
#include <unistd.h>

#include "meta/base/mem.h"
#include "meta/base/sys.h"
#include "meta/catalog/catalog.h"
#include "meta/store/store.h"

/* --- the table --- */

/* Decodes a path of the mount table in place, which has blanks and the like as \040. */
static char *decode(const char *text)
{
	char *copy = sc_strdup(text), *to = copy;
	unsigned byte;

	while (copy && *text) {
		if (*text == '\\' && sscanf(text, "\\%3o", &byte) == 1 && strspn(text + 1, "01234567") >= 3) {
			*to++ = (char)byte;
			text += 4;
		} else {
			*to++ = *text++;
		}
	}
	if (copy)
		*to = 0;
	return copy;
}

/* Parses a line: ID PARENT MAJOR:MINOR ROOT PATH OPTIONS [FIELD...] - TYPE SOURCE OPTIONS. */
static int add_line(struct fs_mounts *mounts, char *line, struct sc_err *err)
{
	char *dash = strstr(line, " - "), *word[5] = {0}, *type, *source, *save = NULL;
	struct fs_mounted m = {0};
	unsigned major, minor;
	int rc;

	if (!dash)
		return 0;
	*dash = 0;
	for (int i = 0; i < 5; i++)
		word[i] = strtok_r(i ? NULL : line, " ", &save);
	type = strtok_r(dash + 3, " \n", &save);
	source = strtok_r(NULL, " \n", &save);
	if (!word[4] || !source || sscanf(word[2], "%u:%u", &major, &minor) != 2)
		return 0;
	m = (struct fs_mounted){decode(word[4]), decode(type), decode(source), makedev(major, minor)};
	rc = m.path && m.type && m.source && sc_vec_push(mounts, m) == 0 ? 0 : sc_nomem(err);
	if (rc < 0) {
		sc_sys.release(m.path);
		sc_sys.release(m.type);
		sc_sys.release(m.source);
	}
	return rc;
}

int fs_mounts_read(struct fs_mounts *ret, struct sc_err *err)
{
	FILE *f = fopen("/proc/self/mountinfo", "re");
	char *line = NULL;
	size_t room = 0;
	int rc = 0;

	*ret = (struct fs_mounts){0};
	if (!f)
		return sc_fail_sys(err, errno, "cannot read the mount table, /proc/self/mountinfo");
	while (rc == 0 && getline(&line, &room, f) > 0)
		rc = add_line(ret, line, err);
	free(line);
	(void)fclose(f);
	return rc;
}

void fs_mounts_done(struct fs_mounts *mounts)
{
	for (size_t i = 0; i < mounts->nr; i++) {
		sc_sys.release(mounts->at[i].path);
		sc_sys.release(mounts->at[i].type);
		sc_sys.release(mounts->at[i].source);
	}
	sc_vec_done(mounts);
}

const struct fs_mounted *fs_mounts_find(const struct fs_mounts *mounts, const char *path)
{
	for (size_t i = mounts->nr; i > 0; i--)
		if (strcmp(mounts->at[i - 1].path, path) == 0)
			return &mounts->at[i - 1];
	return NULL;
}

bool fs_mounted_is_scalai(const struct fs_mounted *m)
{
	return strcmp(m->type, "fuse.scalai") == 0;
}

bool fs_mount_is_there(const char *store, const char *mountpoint)
{
	struct fs_mounts mounts;
	struct sc_err ignored;
	const struct fs_mounted *m = NULL;
	bool found;

	if (fs_mounts_read(&mounts, &ignored) == 0)
		m = fs_mounts_find(&mounts, mountpoint);
	found = m && fs_mounted_is_scalai(m) && strcmp(m->source, store) == 0;
	fs_mounts_done(&mounts);
	return found;
}

int fs_mount_path(const char *path, char ret[FS_PATH_BYTES], struct sc_err *err)
{
	char copy[FS_PATH_BYTES], folder[FS_PATH_BYTES], *name;
	size_t bytes = strlen(path);

	/* without the last '/', which would ask the mount itself: its daemon may be this process, in a moment */
	while (bytes > 1 && path[bytes - 1] == '/')
		bytes--;
	if (bytes == 0 || bytes >= sizeof(copy))
		return sc_fail_sys(err, bytes ? ENAMETOOLONG : ENOENT, "mount point '%s'", path);
	memcpy(copy, path, bytes);
	copy[bytes] = 0;
	if (realpath(copy, ret))
		return 0;
	/* what is not there yet, or is dead: where its parent is */
	name = strrchr(copy, '/');
	name = name ? name + 1 : copy;
	(void)snprintf(folder, sizeof(folder), "%.*s", (int)(name - copy), copy);
	if (!realpath(name == copy ? "." : folder, ret))
		return sc_fail_sys(err, errno, "mount point '%s'", path);
	bytes = strlen(ret);
	if (bytes + 1 + strlen(name) >= FS_PATH_BYTES)
		return sc_fail_sys(err, ENAMETOOLONG, "mount point '%s'", path);
	(void)snprintf(ret + bytes, FS_PATH_BYTES - bytes, "%s%s", bytes > 1 ? "/" : "", name);
	return 0;
}

static bool is_below(const char *path, const char *folder)
{
	size_t bytes = strcmp(folder, "/") == 0 ? 0 : strlen(folder);

	return strncmp(path, folder, bytes) == 0 && (path[bytes] == '/' || !path[bytes]);
}

int fs_mount_apart(const char *store, const char *mountpoint, struct sc_err *err)
{
	if (is_below(mountpoint, store))
		return sc_fail(err, SC_E_COMMAND, "the mount point '%s' is the store '%s' or lies in it; choose a "
			       "folder outside of the store", mountpoint, store);
	if (is_below(store, mountpoint))
		return sc_fail(err, SC_E_COMMAND, "the store '%s' lies below the mount point '%s', which would hide "
			       "it; choose another mount point", store, mountpoint);
	return 0;
}

static int no_store(const char *path, struct sc_err *err)
{
	return sc_fail(err, SC_E_COMMAND, "there is no store at '%s', and with -o existing none is made: is its disk "
		       "mounted? 'scalai mount' without that option makes a new store; if only the catalog, scalai.db, "
		       "was lost, 'scalai fsck --rebuild' makes it anew", path);
}

/* Refuses a folder in which no daemon has made a catalog. */
static int check_is_made(const char *store, struct sc_err *err)
{
	char catalog[FS_PATH_BYTES + sizeof("/scalai.db")];

	(void)snprintf(catalog, sizeof(catalog), "%s/scalai.db", store);
	return meta_catalog_is_made(catalog) ? 0 : no_store(store, err);
}

/* Refuses a folder that has other files, and no store's, as a new store. */
static int check_may_be_new(const char *store, struct sc_err *err)
{
	static const char *const ours[] = {"blobs", "lock", "scalai.db"}, *const before[] = {".", "..", "lost+found",
											  "presets"};
	DIR *d = opendir(store);
	const struct dirent *e;
	char strange[NAME_MAX + 1] = "";
	bool is_store = !d; /* who opens it says why it cannot be read */

	while (!is_store && (e = readdir(d))) {
		bool known = false;

		for (size_t i = 0; i < sizeof(ours) / sizeof(*ours); i++)
			is_store |= strcmp(e->d_name, ours[i]) == 0;
		for (size_t i = 0; i < sizeof(before) / sizeof(*before); i++)
			known |= strcmp(e->d_name, before[i]) == 0;
		if (!known && !*strange)
			(void)snprintf(strange, sizeof(strange), "%s", e->d_name);
	}
	if (d)
		(void)closedir(d);
	return is_store || !*strange ? 0
	       : sc_fail(err, SC_E_COMMAND, "'%s' is no store, and not empty (it has '%s'): a new store is a folder "
			 "that is not there yet, or an empty one", store, strange);
}

int fs_mount_store(const char *path, bool existing, char ret[FS_PATH_BYTES], bool *ret_made, struct sc_err *err)
{
	*ret_made = !existing && mkdir(path, 0700) == 0;
	if (!existing && !*ret_made && errno != EEXIST)
		return sc_fail_sys(err, errno, "cannot make the store '%s'", path);
	if (!realpath(path, ret))
		return existing && errno == ENOENT ? no_store(path, err) : sc_fail_sys(err, errno, "store '%s'", path);
	return *ret_made ? 0 : existing ? check_is_made(ret, err) : check_may_be_new(ret, err);
}

/* --- the end of a mount --- */

static int unmount(const char *path, bool lazy, struct sc_err *err)
{
	pid_t pid;
	int status;

	if (umount2(path, (lazy ? MNT_DETACH : 0) | UMOUNT_NOFOLLOW) == 0)
		return 0;
	if (errno == EBUSY)
		return sc_fail(err, SC_E_BUSY, "'%s' is in use: close what is open there and leave its folders, or "
			       "use 'scalai umount -l %s'", path, path);
	if (errno != EPERM)
		return sc_fail_sys(err, errno, "cannot unmount '%s'", path);
	pid = fork();
	if (pid == 0) {
		(void)execlp("fusermount3", "fusermount3", lazy ? "-uz" : "-u", "--", path, NULL);
		_exit(127);
	}
	if (pid < 0 || waitpid(pid, &status, 0) < 0 || !WIFEXITED(status) || WEXITSTATUS(status))
		return sc_fail(err, SC_E_PERMISSION, "fusermount3 could not unmount '%s'", path);
	return 0;
}

static int find_ours(const struct fs_mounts *mounts, const char *path, const struct fs_mounted **ret,
		     struct sc_err *err)
{
	const struct fs_mounted *m = fs_mounts_find(mounts, path);

	if (!m)
		return sc_fail(err, SC_E_COMMAND, "nothing is mounted at '%s'; 'findmnt -t fuse.scalai' lists the "
			       "mounts of scalai", path);
	if (!fs_mounted_is_scalai(m))
		return sc_fail(err, SC_E_COMMAND, "'%s' is a mount of type %s, not one of scalai; umount(8) unmounts "
			"it",
			       path, m->type);
	*ret = m;
	return 0;
}

int fs_umount_dead(const char *path, dev_t device, struct sc_err *err)
{
	struct fs_mounts mounts = {0};
	const struct fs_mounted *m;
	int rc = fs_mounts_read(&mounts, err);

	if (rc == 0)
		rc = find_ours(&mounts, path, &m, err);
	if (rc == 0 && (!device || m->device == device))
		rc = unmount(path, true, err);
	fs_mounts_done(&mounts);
	return rc;
}

static void on_alarm(int signal)
{
	(void)signal;
}

int fs_umount_wait(const char *store, unsigned seconds, struct sc_err *err)
{
	struct sigaction act = {.sa_handler = on_alarm}; /* no SA_RESTART: it interrupts the wait */
	int rc;

	if (seconds == 0)
		return 0;
	(void)sigaction(SIGALRM, &act, NULL);
	(void)alarm(seconds);
	rc = meta_store_wait_unused(store, err);
	(void)alarm(0);
	if (rc != SC_E_BUSY)
		return rc;
	return sc_fail(err, SC_E_BUSY, "the mount has ended, but its daemon still runs after %u s: the store '%s' "
		"cannot be "
		       "mounted until the daemon has ended", seconds, store);
}

int fs_umount(const char *path, bool lazy, char ret_store[FS_PATH_BYTES], struct sc_err *err)
{
	char real[FS_PATH_BYTES];
	struct fs_mounts mounts = {0};
	const struct fs_mounted *m;
	bool others = false;
	int rc = fs_mount_path(path, real, err);

	if (rc == 0)
		rc = fs_mounts_read(&mounts, err);
	if (rc == 0)
		rc = find_ours(&mounts, real, &m, err);
	if (rc == 0)
		rc = unmount(real, lazy, err);
	for (size_t i = 0; rc == 0 && i < mounts.nr; i++)
		others |= &mounts.at[i] != m && mounts.at[i].device == m->device;
	if (rc == 0)
		(void)snprintf(ret_store, FS_PATH_BYTES, "%s", others ? "" : m->source);
	fs_mounts_done(&mounts);
	return rc;
}

/* Who has files of a mount open gets errors, and its daemon ends; the kernel goes on with what it passes through. */
static int abort_connection(dev_t device, struct sc_err *err)
{
	char path[64];
	int fd, n;

	(void)snprintf(path, sizeof(path), "/sys/fs/fuse/connections/%u/abort", minor(device));
	fd = open(path, O_WRONLY | O_CLOEXEC);
	if (fd < 0 && errno == ENOENT)
		return 0; /* the last user has ended meanwhile, and the connection with it */
	n = fd < 0 ? -1 : (int)write(fd, "1", 1);
	if (n != 1)
		(void)sc_fail_sys(err, errno, "it is unmounted, but its daemon stays until its users end: '%s', which "
				  "cuts them off", path);
	if (fd >= 0)
		(void)close(fd);
	return n == 1 ? 0 : err->code;
}

int fs_umount_cut(const char *path, void (*each)(void *arg, const struct fs_user *user), void *arg,
		  char ret_store[FS_PATH_BYTES], struct sc_err *err)
{
	char real[FS_PATH_BYTES];
	struct fs_mounts mounts;
	const struct fs_mounted *m;
	dev_t device = 0;
	int rc = fs_umount(path, false, ret_store, err);

	if (rc != SC_E_BUSY)
		return rc;
	rc = fs_mount_path(path, real, err);
	if (rc == 0)
		rc = fs_mounts_read(&mounts, err);
	if (rc < 0)
		return rc;
	m = fs_mounts_find(&mounts, real);
	device = m ? m->device : 0;
	fs_mounts_done(&mounts);
	(void)fs_users_each(real, device, each, arg);
	rc = fs_umount(path, true, ret_store, err);
	return rc == 0 && *ret_store ? abort_connection(device, err) : rc;
}
