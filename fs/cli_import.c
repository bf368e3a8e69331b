/* SPDX-License-Identifier: Apache-2.0 */
/* `scalai import`: makes a job out of files, by mkdir, control files and copies. */
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "fs/cli.h"
#include "fs/clone.h"
#include "meta/base/limits.h"
#include "reshard/folder/folder.h"
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

	/* files of /proc do not say how many bytes they have */
	if (rc == 0 && bytes == 0)
		rc = copy_part(from, in, to, out, buf, 0, INT64_MAX);

	for (off_t at = 0, end; rc == 0 && at < bytes; at = end) {
		off_t data = lseek(in, at, SEEK_DATA);

		if (data < 0 && errno == ENXIO)
			break;
		at = data < 0 ? at : data; /* without SEEK_DATA all of it is data */
		end = data < 0 ? bytes : lseek(in, at, SEEK_HOLE);
		rc = end < 0 ? cli_fail("read", from) : copy_part(from, in, to, out, buf, at, end);
	}
	if (rc == 0 && bytes && ftruncate(out, bytes) < 0)
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
	(void)fprintf(stderr, "scalai: '%s' is a link to a folder that it is in, or to the job that is being made: "
			      "import cannot follow it\n", path);
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
	/* where the bytes cannot be shared, they are copied */
	rc = out < 0 ? cli_fail("make", to)
	     : st.st_size && ioctl(out, SCALAI_IOC_CLONE, &in) == 0 ? 0
	     : copy_bytes(from, in, to, out, st.st_size);
	(void)close(in);
	if (out >= 0 && close(out) < 0)
		rc = cli_fail("write", to);
	return rc;
}

/* What a folder is copied from and to, and those above it. */
struct folder {
	const struct folder *above;
	struct {
		dev_t device;
		ino_t number;
	} at[2];
};

static bool is_in(const struct folder *folder, const struct stat *st)
{
	for (; folder; folder = folder->above)
		for (int i = 0; i < 2; i++)
			if (folder->at[i].device == st->st_dev && folder->at[i].number == st->st_ino)
				return true;
	return false;
}

/* Two paths of PATH_BYTES, which grow and shrink with the tree that is walked. */
struct copying {
	char *from, *to;
	bool follow;		/* what symbolic links lead to is copied in their place */
};

static int copy_tree(const struct copying *c, const struct folder *above);

/* Copies what has this name in both folders. */
static int copy_name(const struct copying *c, const struct folder *folder, const char *name)
{
	const size_t from = strlen(c->from), to = strlen(c->to), bytes = strlen(name) + 2;
	struct stat st;
	int rc;

	errno = ENAMETOOLONG;
	if (from + bytes > PATH_BYTES)
		return cli_fail("read", c->from);
	if (to + bytes > PATH_BYTES)
		return cli_fail("make", c->to);
	(void)snprintf(c->from + from, bytes, "/%s", name);
	(void)snprintf(c->to + to, bytes, "/%s", name);
	if (fstatat(AT_FDCWD, c->from, &st, c->follow ? 0 : AT_SYMLINK_NOFOLLOW) < 0)
		rc = cli_fail("read", c->from);
	else
		rc = S_ISDIR(st.st_mode) ? copy_tree(c, folder) : copy_file(c->from, c->to, c->follow);
	c->from[from] = 0;
	c->to[to] = 0;
	return rc;
}

static int copy_tree(const struct copying *c, const struct folder *above)
{
	struct folder self = {.above = above};
	DIR *d = opendir(c->from);
	const struct dirent *e;
	struct stat st, made;
	int rc = 0;

	if (!d)
		return cli_fail("list", c->from);
	if (fstat(dirfd(d), &st) < 0)
		rc = cli_fail("list", c->from);
	else if (is_in(above, &st))
		rc = in_circle(c->from);
	else if ((mkdir(c->to, (st.st_mode & 0777) | 0700) < 0 && errno != EEXIST) || stat(c->to, &made) < 0)
		rc = cli_fail("make", c->to);
	else if (made.st_dev == st.st_dev && made.st_ino == st.st_ino)
		rc = in_circle(c->from);
	if (rc == 0) {
		self.at[0].device = st.st_dev;
		self.at[0].number = st.st_ino;
		self.at[1].device = made.st_dev;
		self.at[1].number = made.st_ino;
	}
	while (rc == 0 && (e = readdir(d)))
		if (strcmp(e->d_name, ".") != 0 && strcmp(e->d_name, "..") != 0)
			rc = copy_name(c, &self, e->d_name);
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

static int copy_folder(const struct import *i, char *path, bool follow)
{
	char from[PATH_BYTES];

	errno = ENAMETOOLONG;
	if (snprintf(from, sizeof(from), "%s", i->from) >= (int)sizeof(from))
		return cli_fail("read", i->from);
	return copy_tree(&(struct copying){from, path, follow}, NULL);
}

/* An unsharded file's name in the job: that of its format. */
static const char *name_of(const char *path)
{
	const char *slash = strrchr(path, '/'), *name = slash ? slash + 1 : path, *dot = strrchr(name, '.');

	return dot && strcmp(dot, ".safetensors") != 0 ? name : "model.safetensors";
}

/* Is it a folder of an unsharded model, as Hugging Face's save_pretrained() leaves it: files of whole tensors, one or
 * several with an index, and no folders of ranks? */
static bool is_model(const char *path)
{
	static const char *const names[] = {"model.safetensors", "model.safetensors.index.json", "pytorch_model.bin",
					    "pytorch_model.bin.index.json"};
	char name[PATH_BYTES];
	struct stat st;

	(void)snprintf(name, sizeof(name), "%s/0", path);
	if (stat(name, &st) == 0)
		return false;
	for (size_t i = 0; i < sizeof(names) / sizeof(*names); i++) {
		(void)snprintf(name, sizeof(name), "%s/%s", path, names[i]);
		if (stat(name, &st) == 0 && S_ISREG(st.st_mode))
			return true;
	}
	return false;
}

/* Where the model is in several files, all that their index names must be there. */
static int check_model(const char *path)
{
	static const char *const names[] = {"model.safetensors", "pytorch_model.bin"};

	for (size_t i = 0; i < sizeof(names) / sizeof(*names); i++) {
		char name[PATH_BYTES];

		(void)snprintf(name, sizeof(name), "%s/%s", path, names[i]);
		if (access(name, F_OK) == 0)
			return 0; /* the libraries read that one */
		(void)snprintf(name, sizeof(name), "%s/%s.index.json", path, names[i]);
		if (access(name, F_OK) == 0)
			return cli_check_index(name);
	}
	return 0;
}

/* Is it a checkpoint of torch.distributed or DeepSpeed, whose files all ranks have written together? */
static bool is_checkpoint(const char *path)
{
	bool is = false;

	for (size_t i = 0; !is && rs_folder_marker(i); i++) {
		char name[PATH_BYTES];
		struct stat st;

		(void)snprintf(name, sizeof(name), "%s/%s", path, rs_folder_marker(i));
		is = stat(name, &st) == 0 && S_ISREG(st.st_mode);
	}
	return is;
}

/* The folder of the job that such a checkpoint becomes: of its own name, unless that is a number, as of ranks, or one
 * that the mount may use. */
static void checkpoint_path(const struct import *i, char *path)
{
	char whole[PATH_MAX];
	const char *name = realpath(i->from, whole) ? strrchr(whole, '/') + 1 : "";
	const size_t n = strlen(path);
	const bool fits = *name && *name != '.' && name[strspn(name, "0123456789")];

	(void)snprintf(path + n, PATH_BYTES - n, "/%s", fits ? name : "checkpoint");
}

/* --- Megatron's legacy folders: of each model-parallel rank, written by its first replica --- */

/* Reads mp_rank_TT or mp_rank_TT_PPP. */
static bool is_legacy_name(const char *name, unsigned long ret[2])
{
	static const char front[] = "mp_rank_";
	char *end;

	ret[1] = 0;
	if (strncmp(name, front, sizeof(front) - 1) != 0 || strspn(name += sizeof(front) - 1, "0123456789") != 2)
		return false;
	ret[0] = strtoul(name, &end, 10);
	if (!*end)
		return true;
	if (*end++ != '_' || strspn(end, "0123456789") != 3)
		return false;
	ret[1] = strtoul(end, &end, 10);
	return !*end;
}

static bool is_legacy(const char *path)
{
	DIR *d = opendir(path);
	const struct dirent *e;
	unsigned long at[2];
	bool is = false;

	while (d && !is && (e = readdir(d)))
		is = is_legacy_name(e->d_name, at);
	if (d)
		(void)closedir(d);
	return is;
}

/* The rank at coordinates of tp and pp, and 0 of others, in a topology as `topology` shows it: its first axis is the
 * fastest.  -1: it has none. */
static long rank_at(const char *topology, const unsigned long at[2])
{
	static const char *const axes[] = {"tp=", "pp="};
	unsigned long stride = 1, rank = 0, degree;
	bool seen[2] = {at[0] == 0, at[1] == 0};

	for (const char *word = topology, *is; *word; word += strcspn(word, " "), word += strspn(word, " ")) {
		is = strchr(word, '=');
		degree = is ? strtoul(is + 1, NULL, 10) : 0;
		for (int i = 0; i < 2; i++)
			if (strncmp(word, axes[i], 3) == 0) {
				if (at[i] >= degree)
					return -1;
				rank += at[i] * stride;
				seen[i] = true;
			}
		stride *= degree;
	}
	return seen[0] && seen[1] ? (long)rank : -1;
}

static int copy_legacy_name(const struct copying *c, const char *topology, const char *name)
{
	const size_t from = strlen(c->from), to = strlen(c->to);
	unsigned long at[2];
	struct stat st;
	long rank;
	int rc;

	if (!is_legacy_name(name, at))
		return copy_name(c, NULL, name);
	rank = strstr(topology, "order=") ? -1 : rank_at(topology, at);
	if (rank < 0) {
		(void)fprintf(stderr, "scalai: '%s/%s' is of tp=%lu pp=%lu, which no rank of the topology '%s' is; "
				      "import it at the topology at which it was saved, without order=\n", c->from,
			      name, at[0], at[1], topology);
		return 1;
	}
	errno = ENAMETOOLONG;
	if (from + strlen(name) + 2 > PATH_BYTES || to + 32 > PATH_BYTES)
		return cli_fail("read", c->from);
	(void)snprintf(c->from + from, PATH_BYTES - from, "/%s", name);
	(void)snprintf(c->to + to, PATH_BYTES - to, "/%ld", rank);
	errno = EEXIST; /* mp_rank_00 and mp_rank_00_000 */
	rc = stat(c->to, &st) == 0 ? cli_fail("make", c->to) : copy_tree(c, NULL);
	c->from[from] = 0;
	c->to[to] = 0;
	return rc;
}

/* The job's topology, as the mount shows it. */
static int read_topology(const char *job, char ret[PATH_BYTES])
{
	char path[2 * PATH_BYTES];
	ssize_t n = -1;
	int fd;

	(void)snprintf(path, sizeof(path), "%s/.ctl/topology", job);
	fd = open(path, O_RDONLY | O_CLOEXEC);
	if (fd >= 0)
		n = read(fd, ret, PATH_BYTES - 1);
	if (fd >= 0)
		(void)close(fd);
	ret[n > 0 ? n : 0] = 0;
	ret[strcspn(ret, "\n")] = 0;
	return n < 0 ? cli_fail("read", path) : 0;
}

static int copy_legacy(const struct import *i, char *path)
{
	char from[PATH_BYTES], topology[PATH_BYTES];
	const struct copying c = {from, path, i->follow};
	DIR *d = opendir(i->from);
	const struct dirent *e;
	int rc = 0;

	errno = d ? ENAMETOOLONG : errno;
	if (!d || snprintf(from, sizeof(from), "%s", i->from) >= (int)sizeof(from))
		rc = cli_fail("read", i->from);
	if (rc == 0)
		rc = read_topology(path, topology);
	while (rc == 0 && (e = readdir(d)))
		if (strcmp(e->d_name, ".") != 0 && strcmp(e->d_name, "..") != 0)
			rc = copy_legacy_name(&c, topology, e->d_name);
	if (d)
		(void)closedir(d);
	return rc;
}

/* Copies what is unsharded: it is rank 0 of one rank, and then seen as the topology that was asked for. */
static int copy_whole(const struct import *i, bool is_folder)
{
	char one[256], path[PATH_BYTES], to[PATH_BYTES + NAME_MAX + 1];
	int rc;

	(void)snprintf(one, sizeof(one), "%.*s=1", (int)strcspn(i->topology, "="), i->topology);
	rc = cli_command(i->mount, i->job, "topology", one);
	(void)snprintf(path, sizeof(path), "%s/%s/0", i->mount, i->job);
	if (rc)
		return rc;
	if (is_folder)
		return copy_folder(i, path, true);
	if (mkdir(path, 0755) < 0)
		return cli_fail("make", path);
	if (cli_is_index(i->from))
		return cli_join(i->from, path);
	(void)snprintf(to, sizeof(to), "%s/%s", path, name_of(i->from));
	return copy_file(i->from, to, true);
}

static int import(const struct import *i)
{
	char path[PATH_BYTES], words[PATH_BYTES];
	bool is_whole, is_folder;
	struct stat st;
	int rc;

	if (stat(i->from, &st) < 0)
		return cli_fail("read", i->from);
	if (!S_ISDIR(st.st_mode) && !S_ISREG(st.st_mode))
		return no_file(i->from);
	is_folder = S_ISDIR(st.st_mode) && is_checkpoint(i->from);
	is_whole = !S_ISDIR(st.st_mode) || is_model(i->from);
	(void)snprintf(path, sizeof(path), "%s/%s", i->mount, i->job);
	if ((is_whole && S_ISDIR(st.st_mode) && check_model(i->from)) || make_job(i, path))
		return 1;
	rc = write_layout(i);
	if (rc == 0 && is_whole)
		rc = copy_whole(i, S_ISDIR(st.st_mode));
	else if (rc == 0)
		rc = cli_command(i->mount, i->job, "topology", i->topology);
	if (rc == 0 && is_folder)
		checkpoint_path(i, path);
	if (rc == 0 && !is_whole)
		rc = !is_folder && is_legacy(i->from) ? copy_legacy(i, path)
						      : copy_folder(i, path, i->follow || is_folder);
	(void)snprintf(words, sizeof(words), "%s%s%s%s", i->step ? "step=" : "", i->step ? i->step : "",
		       i->note ? " note=" : "", i->note ? i->note : "");
	if (rc == 0)
		rc = cli_command(i->mount, i->job, "commit", *words ? words : "note=import");
	if (rc == 0 && is_whole)
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
