/* SPDX-License-Identifier: Apache-2.0 */
/* `scalai import`: makes a job out of files, by mkdir, control files and copies. */
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "fs/cli.h"
#include "meta/base/limits.h"
#include "reshard/job/service.h"

#define PATH_BYTES 4096
#define COPY_BYTES (1 << 20)

static int copy_part(const char *from, int in, const char *to, int out, char *buf, off_t at, off_t end)
{
	while (at < end) {
		ssize_t n = pread(in, buf, COPY_BYTES, at), w;

		if (n < 0)
			return cli_fail("read", from);
		if (n == 0)
			break; /* it has become shorter */
		for (ssize_t done = 0; done < n; done += w) {
			w = pwrite(out, buf + done, (size_t)(n - done), at + done);
			if (w < 0)
				return cli_fail("write", to);
		}
		at += n;
	}
	return 0;
}

/* Holes stay holes. */
static int copy_bytes(const char *from, int in, const char *to, int out, off_t bytes)
{
	char *buf = malloc(COPY_BYTES);
	int rc = buf ? 0 : cli_fail("read", from);

	for (off_t at = 0, end; rc == 0 && at < bytes; at = end) {
		off_t data = lseek(in, at, SEEK_DATA);

		if (data < 0 && errno == ENXIO)
			break;
		at = data < 0 ? at : data; /* without SEEK_DATA all of it is data */
		end = data < 0 ? bytes : lseek(in, at, SEEK_HOLE);
		rc = end < 0 ? cli_fail("read", from) : copy_part(from, in, to, out, buf, at, end);
	}
	if (rc == 0 && ftruncate(out, bytes) < 0)
		rc = cli_fail("write", to);
	free(buf);
	return rc;
}

static int no_file(const char *path)
{
	(void)fprintf(stderr, "scalai: '%s' is neither a file nor a folder: import copies nothing else (of symbolic "
			      "links, with --follow, what they lead to)\n", path);
	return 1;
}

static int in_circle(const char *path)
{
	(void)fprintf(stderr, "scalai: '%s' is a link to a folder that it is in: import cannot follow it\n", path);
	return 1;
}

/* The file itself, or what a symbolic link leads to (`follow`). */
static int copy_file(const char *from, const char *to, bool follow)
{
	/* to open a pipe must not wait for who writes into it */
	int in = open(from, O_RDONLY | O_CLOEXEC | O_NONBLOCK | (follow ? 0 : O_NOFOLLOW)), out, rc;
	struct stat st;

	if (in < 0)
		return errno == ELOOP || errno == ENXIO ? no_file(from) : cli_fail("read", from);
	if (fstat(in, &st) < 0 || !S_ISREG(st.st_mode)) {
		(void)close(in);
		return no_file(from);
	}
	out = open(to, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, st.st_mode & 0777);
	rc = out < 0 ? cli_fail("make", to) : copy_bytes(from, in, to, out, st.st_size);
	(void)close(in);
	if (out >= 0 && close(out) < 0)
		rc = cli_fail("write", to);
	return rc;
}

/* A path in a folder; false: it is too long, and the caller has to stop. */
static bool path_in(char *ret, const char *folder, const char *name)
{
	errno = ENAMETOOLONG;
	return snprintf(ret, PATH_BYTES, "%s/%s", folder, name) < PATH_BYTES;
}

struct folder {
	const struct folder *above;
	dev_t device;
	ino_t number;
};

static bool is_in(const struct folder *folder, const struct stat *st)
{
	while (folder && (folder->device != st->st_dev || folder->number != st->st_ino))
		folder = folder->above;
	return folder;
}

/* `follow`: what symbolic links lead to is copied in their place. */
static int copy_tree(const char *from, const char *to, bool follow, const struct folder *above)
{
	struct folder self = {.above = above};
	DIR *d = opendir(from);
	struct dirent *e;
	struct stat st;
	int rc = 0;

	if (!d)
		return cli_fail("list", from);
	if (fstat(dirfd(d), &st) < 0)
		rc = cli_fail("list", from);
	else if (is_in(above, &st))
		rc = in_circle(from);
	else if (mkdir(to, (st.st_mode & 0777) | 0700) < 0 && errno != EEXIST)
		rc = cli_fail("make", to);
	self.device = st.st_dev;
	self.number = st.st_ino;
	while (rc == 0 && (e = readdir(d))) {
		char a[PATH_BYTES], b[PATH_BYTES];

		if (strcmp(e->d_name, ".") == 0 || strcmp(e->d_name, "..") == 0)
			continue;
		if (!path_in(a, from, e->d_name))
			rc = cli_fail("read", from);
		else if (!path_in(b, to, e->d_name))
			rc = cli_fail("make", to);
		else if (fstatat(AT_FDCWD, a, &st, follow ? 0 : AT_SYMLINK_NOFOLLOW) < 0)
			rc = cli_fail("read", a);
		else if (S_ISDIR(st.st_mode))
			rc = copy_tree(a, b, follow, &self);
		else
			rc = copy_file(a, b, follow);
	}
	(void)closedir(d);
	return rc;
}

struct import {
	const char *mount, *job, *from, *topology, *step, *note;
	bool follow;
	char layout[PATH_BYTES];
};

/* `--layout` is a file with rules, or a preset with its variables. */
static int write_layout(const struct import *i)
{
	static char text[SC_LAYOUT_BYTES_MAX + 2];
	FILE *f = fopen(i->layout, "re");
	size_t bytes;

	if (!f) {
		(void)snprintf(text, sizeof(text), "use %s\n", i->layout);
		return cli_command(i->mount, i->job, "layout", text);
	}
	bytes = fread(text, 1, sizeof(text) - 1, f);
	if (ferror(f)) {
		(void)fclose(f);
		return cli_fail("read", i->layout);
	}
	(void)fclose(f);
	if (strlen(text) != bytes) {
		(void)fprintf(stderr, "scalai: '%s' is no layout: a layout is text, this file has a zero byte\n",
			      i->layout);
		return 1;
	}
	return cli_command(i->mount, i->job, "layout", text);
}

/* The new job, without a layout. */
static int make_job(const struct import *i, const char *path)
{
	struct sc_err err;

	if (rs_job_check_name(i->job, &err) < 0) {
		(void)fprintf(stderr, "scalai: %s\n", err.msg);
		return 1;
	}
	if (cli_check_mount(i->mount))
		return 1;
	if (mkdir(path, 0755) == 0)
		return 0;
	if (errno != EEXIST)
		return cli_fail("make the job", path);
	(void)fprintf(stderr, "scalai: there is a job '%s' already in '%s'; import under another name, or delete it "
			      "with 'scalai delete %s'\n", i->job, i->mount, path);
	return 1;
}

static int import(const struct import *i)
{
	char path[PATH_BYTES], to[PATH_BYTES], words[PATH_BYTES];
	struct stat st;
	int rc;

	if (stat(i->from, &st) < 0)
		return cli_fail("read", i->from);
	if (!S_ISDIR(st.st_mode) && !S_ISREG(st.st_mode))
		return no_file(i->from);
	(void)snprintf(path, sizeof(path), "%s/%s", i->mount, i->job);
	if (make_job(i, path))
		return 1;
	rc = write_layout(i);
	if (S_ISDIR(st.st_mode)) {
		if (rc == 0)
			rc = cli_command(i->mount, i->job, "topology", i->topology);
		if (rc == 0)
			rc = copy_tree(i->from, path, i->follow, NULL);
	} else if (rc == 0) {
		/* unsharded: it is rank 0 of one rank, and then seen as the topology that was asked for */
		char one[256], *eq;

		(void)snprintf(one, sizeof(one), "%s", i->topology);
		eq = strchr(one, '=');
		if (eq)
			*eq = 0;
		(void)snprintf(words, sizeof(words), "%s=1", one);
		rc = cli_command(i->mount, i->job, "topology", words);
		(void)snprintf(path, sizeof(path), "%s/%s/0", i->mount, i->job);
		if (rc == 0 && mkdir(path, 0755) < 0)
			rc = cli_fail("make", path);
		(void)snprintf(to, sizeof(to), "%s/model.safetensors", path);
		if (rc == 0)
			rc = copy_file(i->from, to, true);
	}
	(void)snprintf(words, sizeof(words), "%s%s%s%s", i->step ? "step=" : "", i->step ? i->step : "",
		       i->note ? " note=" : "", i->note ? i->note : "");
	if (rc == 0)
		rc = cli_command(i->mount, i->job, "commit", *words ? words : "note=import");
	if (rc == 0 && !S_ISDIR(st.st_mode))
		rc = cli_command(i->mount, i->job, "topology", i->topology);
	if (rc)
		(void)fprintf(stderr, "scalai: the job '%s' is left as it is, to look at; "
				      "'scalai delete %s/%s' removes it\n", i->job, i->mount, i->job);
	return rc;
}

int cli_import(const struct cli_args *args)
{
	struct import i = {.mount = cli_mount(args), .job = args->operands[0], .from = args->operands[1],
			   .topology = cli_value(args, "topology"), .step = cli_value(args, "step"),
			   .note = cli_value(args, "note"), .follow = cli_value(args, "follow")};
	size_t bytes = 0;

	for (size_t k = 0; k < args->nr_options; k++) {
		const struct cli_given *g = &args->options[k];

		if (!g->option->variables)
			continue;
		bytes += (size_t)snprintf(i.layout + bytes, sizeof(i.layout) - bytes, "%s%s", bytes ? " " : "",
					  g->value);
		if (bytes >= sizeof(i.layout))
			return cli_complain(args, "the layout's variables have more than %zu bytes",
					    sizeof(i.layout) - 1);
	}
	return i.mount ? import(&i) : 1;
}
