/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What programs do with names: prints the seconds of each operation on FILES files in a new folder of FOLDER, as JSON.
 *
 *     names FOLDER FILES BYTES
 *
 *     create   open(O_CREAT|O_EXCL), write BYTES, close
 *     stat     fstatat of each, by name
 *     open     open for reading, close
 *     rename   to another name in the same folder
 *     list     readdir, and fstatat of each that it names
 *     unlink
 */
#include <dirent.h>
#include <err.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

static double now(void)
{
	struct timespec t;

	(void)clock_gettime(CLOCK_MONOTONIC, &t);
	return (double)t.tv_sec + (double)t.tv_nsec / 1e9;
}

static void create(int dir, const char *name, const char *bytes, size_t nr)
{
	int fd = openat(dir, name, O_CREAT | O_EXCL | O_WRONLY, 0644);

	if (fd < 0 || write(fd, bytes, nr) != (ssize_t)nr || close(fd) < 0)
		err(1, "creating '%s'", name);
}

static void list(int dir, int files)
{
	int copy = openat(dir, ".", O_RDONLY | O_DIRECTORY);
	DIR *d = copy < 0 ? NULL : fdopendir(copy);
	const struct dirent *e;
	struct stat st;
	int nr = 0;

	if (!d)
		err(1, "listing");
	while ((e = readdir(d))) {
		if (fstatat(dir, e->d_name, &st, AT_SYMLINK_NOFOLLOW) < 0)
			err(1, "stat of '%s'", e->d_name);
		nr += S_ISREG(st.st_mode);
	}
	(void)closedir(d);
	if (nr != files)
		errx(1, "%d files are listed, not %d", nr, files);
}

static void one(int dir, const char *op, int i, const char *bytes, size_t nr)
{
	char name[32], other[32];
	struct stat st;
	int rc = 0, fd;

	(void)snprintf(name, sizeof(name), "%s-%d", strcmp(op, "unlink") == 0 ? "renamed" : "file", i);
	(void)snprintf(other, sizeof(other), "renamed-%d", i);
	if (strcmp(op, "create") == 0) {
		create(dir, name, bytes, nr);
	} else if (strcmp(op, "stat") == 0) {
		rc = fstatat(dir, name, &st, 0);
	} else if (strcmp(op, "open") == 0) {
		fd = openat(dir, name, O_RDONLY);
		rc = fd < 0 ? -1 : close(fd);
	} else if (strcmp(op, "rename") == 0) {
		rc = renameat(dir, name, dir, other);
	} else {
		rc = unlinkat(dir, name, 0);
	}
	if (rc < 0)
		err(1, "%s of '%s'", op, name);
}

int main(int argc, char **argv)
{
	static const char *const ops[] = {"create", "stat", "list", "open", "rename", "unlink"};
	static char bytes[1 << 20];
	int files = argc == 4 ? atoi(argv[2]) : 0, dir;
	size_t nr = argc == 4 ? (size_t)atol(argv[3]) : 0;
	char folder[4096];

	if (files <= 0 || nr > sizeof(bytes))
		errx(2, "names FOLDER FILES BYTES");
	(void)snprintf(folder, sizeof(folder), "%s/names", argv[1]);
	if (mkdir(folder, 0755) < 0 || (dir = open(folder, O_RDONLY | O_DIRECTORY)) < 0)
		err(1, "%s", folder);
	for (size_t op = 0; op < sizeof(ops) / sizeof(*ops); op++) {
		double began = now();

		if (strcmp(ops[op], "list") == 0)
			list(dir, files);
		for (int i = 0; i < files && strcmp(ops[op], "list") != 0; i++)
			one(dir, ops[op], i, bytes, nr);
		printf("%s\"%s\": %.6f", op ? ", " : "{", ops[op], now() - began);
	}
	printf("}\n");
	(void)close(dir);
	return rmdir(folder) < 0 ? (warn("%s", folder), 1) : 0;
}
