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

#include "fs/calls/clone.h"
#include "fs/cli/cli.h"
#include "fs/cli/cli_import_i.h"
#include "fs/cli/progress.h"
#include "meta/base/limits.h"
#include "reshard/service/service.h"

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
		cli_progress_add((uint64_t)n);
	}
	return 0;
}

/* Copies bytes; holes stay holes. */
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
			data = bytes;
		cli_progress_add(data < 0 ? 0 : (uint64_t)(data - at));
		at = data < 0 ? at : data; /* without SEEK_DATA all of it is data */
		if (at == bytes)
			break;
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
	return cli_say("'%s' is neither a file nor a folder: import copies nothing else (of symbolic links, with "
		       "--follow, what they lead to)", path);
}

static int in_circle(const char *path)
{
	return cli_say("'%s' is a link to a folder that it is in, or to the job that is being made: import cannot "
		       "follow it", path);
}

/* Copies a file, or (`follow`) the file to which a symbolic link leads. */
static int copy_file(const char *from, const char *to, bool follow)
{
	/* to open a pipe must not wait for who writes into it */
	int in = open(from, O_RDONLY | O_CLOEXEC | O_NONBLOCK | (follow ? 0 : O_NOFOLLOW)), out, rc = 0;
	struct stat st;

	if (in < 0)
		return errno == ELOOP || errno == ENXIO ? no_file(from) : cli_fail("read", from);
	if (fstat(in, &st) < 0 || !S_ISREG(st.st_mode)) {
		(void)close(in);
		return no_file(from);
	}
	out = open(to, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, st.st_mode & 0777);
	/* where the bytes cannot be shared, they are copied */
	if (out < 0)
		rc = cli_fail("make", to);
	else if (st.st_size && ioctl(out, SCALAI_IOC_CLONE, &in) == 0)
		cli_progress_add((uint64_t)st.st_size);
	else
		rc = copy_bytes(from, in, to, out, st.st_size);
	(void)close(in);
	if (out >= 0 && close(out) < 0)
		rc = cli_fail("write", to);
	return rc;
}

/* The source and the target of a folder that is copied, and of the folders above it. */
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
	size_t job;		/* bytes of the job's path, of `to` */
};

static int copy_tree(const struct copying *c, const struct folder *above);

/* Copies the object of this name from the source folder to the target folder. */
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
	else if ((strlen(c->to) > c->job && cli_make_folder(c->to, (st.st_mode & 0777) | 0700) < 0) ||
		 stat(c->to, &made) < 0)
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

/* Writes the job's layout: `--layout` is a file with rules, or a preset with its variables. */
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
	if (strlen(text) != bytes)
		return cli_say("'%s' is no layout: a layout is text, this file has a zero byte", i->layout);
	return cli_command(i->mount, i->job, "layout", text);
}

/* Makes the new job, without a layout. */
static int make_job(const struct import *i, const char *path)
{
	struct sc_err err;

	if (rs_job_check_name(i->job, &err) < 0)
		return cli_say("%s", err.msg);
	if (cli_check_mount(i->mount))
		return 1;
	if (mkdir(path, 0755) == 0)
		return 0;
	if (errno != EEXIST)
		return cli_fail("make the job", path);
	return cli_say("there is a job '%s' already in '%s'; import under another name, or delete it with 'scalai "
		       "delete %s'", i->job, i->mount, path);
}

static size_t job_bytes(const struct import *i)
{
	return strlen(i->mount) + 1 + strlen(i->job);
}

static int copy_folder(const struct import *i, char *path, bool follow)
{
	char from[PATH_BYTES];

	errno = ENAMETOOLONG;
	if (snprintf(from, sizeof(from), "%s", i->from) >= (int)sizeof(from))
		return cli_fail("read", i->from);
	return copy_tree(&(struct copying){from, path, follow, job_bytes(i)}, NULL);
}

/* Gives the name that an unsharded file gets in the job, by its format. */
static const char *name_of(const char *path)
{
	const char *slash = strrchr(path, '/'), *name = slash ? slash + 1 : path, *dot = strrchr(name, '.');

	return dot && strcmp(dot, ".safetensors") != 0 ? name : "model.safetensors";
}

/* Checks that all files that an index names are there, if the model is in several. */
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

/* Names the folder of the job that a checkpoint becomes: it keeps its name, unless that is a number, as of ranks, or a
 * name that the mount may use. */
static void checkpoint_path(const struct import *i, char *path)
{
	char whole[PATH_MAX];
	const char *name = realpath(i->from, whole) ? strrchr(whole, '/') + 1 : "";
	const size_t n = strlen(path);
	const bool fits = *name && *name != '.' && name[strspn(name, "0123456789")];

	(void)snprintf(path + n, PATH_BYTES - n, "/%s", fits ? name : "checkpoint");
}

/* --- ranks by other names than 0, 1, ... --- */

/* Finds the rank to which a folder or file belongs, and its name in the rank's folder.  1: it belongs to a rank; 0: to
 * none; -1, after a message. */
static int find_rank(const char *from, const char *name, const char *topology, long *ret, char plain[NAME_MAX + 1])
{
	uint32_t at[2], rank;

	*plain = 0;
	if (cli_rank_folder(name, &rank) || cli_rank_file(name, &rank, plain)) {
		*ret = rank;
		return 1;
	}
	if (!cli_legacy_folder(name, at))
		return 0;
	*ret = strstr(topology, "order=") ? -1 : cli_rank_at(topology, at);
	if (*ret >= 0)
		return 1;
	(void)cli_say("'%s/%s' is of tp=%u pp=%u, which no rank of the topology '%s' is; import it at the topology at "
		      "which it was saved, without order=", from, name, at[0], at[1], topology);
	return -1;
}

/* Makes the folder of a rank, unless the topology has.  One that the source has as a folder must be empty: else two
 * folders are of one rank. */
static int make_rank(const struct copying *c, long rank, const char *topology, bool is_folder)
{
	struct stat st;

	if (stat(c->from, &st) < 0)
		return cli_fail("read", c->from);
	if (mkdir(c->to, 0755) == 0 || (errno == EEXIST && (!is_folder || cli_is_empty(c->to))))
		return 0; /* copy_tree() gives it the permissions */
	if (errno != EINVAL)
		return cli_fail("make", c->to);
	return cli_say("'%s' is of rank %ld, which the topology '%s' has not; import it at the topology at which it "
		       "was saved, then write another", c->from, rank, topology);
}

/* Copies the object of this name to the folder of its rank, or to the job's. */
static int copy_ranked(const struct copying *c, const char *topology, const char *name)
{
	const size_t from = strlen(c->from), to = strlen(c->to);
	char plain[NAME_MAX + 1];
	struct stat st;
	long rank;
	int rc = find_rank(c->from, name, topology, &rank, plain);

	if (rc <= 0)
		return rc < 0 ? 1 : copy_name(c, NULL, name);
	errno = ENAMETOOLONG;
	if (from + strlen(name) + 2 > PATH_BYTES || to + strlen(plain) + 32 > PATH_BYTES)
		return cli_fail("read", c->from);
	(void)snprintf(c->from + from, PATH_BYTES - from, "/%s", name);
	(void)snprintf(c->to + to, PATH_BYTES - to, "/%ld", rank);
	rc = make_rank(c, rank, topology, !*plain); /* mp_rank_00 and mp_rank_00_000: it is there */
	if (rc == 0 && *plain) {
		(void)snprintf(c->to + strlen(c->to), PATH_BYTES - strlen(c->to), "/%s", plain);
		errno = EEXIST;
		rc = stat(c->to, &st) == 0 ? cli_fail("make", c->to) : copy_file(c->from, c->to, c->follow);
	} else if (rc == 0) {
		rc = copy_tree(c, NULL);
	}
	c->from[from] = 0;
	c->to[to] = 0;
	return rc;
}

/* Reads the job's topology as the mount shows it. */
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

static int copy_ranks(const struct import *i, char *path)
{
	char from[PATH_BYTES], topology[PATH_BYTES];
	const struct copying c = {from, path, i->follow, job_bytes(i)};
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
			rc = copy_ranked(&c, topology, e->d_name);
	if (d)
		(void)closedir(d);
	return rc;
}

/* Tells whether a file is one that libraries read beside the tensors of a model: config.json, tokenizers.  `.hf` shows
 * these, too. */
static bool is_beside(const char *name)
{
	static const char *const ends[] = {".json", ".txt", ".model", ".jinja", ".py", ".tiktoken"};
	const char *dot = strrchr(name, '.');
	bool is = false;

	for (size_t k = 0; dot && k < sizeof(ends) / sizeof(*ends); k++)
		is |= strcmp(dot, ends[k]) == 0;
	return is && !cli_is_index(name);
}

/* Tells whether a file is none of the shards of a folder that become one file. */
static bool is_no_shard(const char *name)
{
	char plain[NAME_MAX + 1];
	uint32_t at, of;

	return strcmp(name, ".") != 0 && strcmp(name, "..") != 0 && !cli_is_index(name) &&
	       !cli_shard(name, &at, &of, plain);
}

/* Copies the files beside the shards that become one: all others of a folder that is imported; of the folder of an
 * index only those that libraries read.  `to` NULL: counts their bytes. */
static int copy_beside(const struct import *i, char *to, bool is_folder)
{
	char from[PATH_BYTES];
	const struct copying c = {from, to, true, job_bytes(i)};
	const char *slash = strrchr(i->from, '/');
	const struct dirent *e;
	int rc = 0;
	DIR *d;

	if (is_folder || slash)
		(void)snprintf(from, sizeof(from), "%.*s", is_folder ? PATH_BYTES : (int)(slash - i->from), i->from);
	else
		(void)snprintf(from, sizeof(from), ".");
	d = opendir(*from ? from : "/");
	if (!d)
		return cli_fail("list", from);
	while (rc == 0 && (e = readdir(d))) {
		char name[PATH_BYTES + NAME_MAX + 1];

		if (!(is_folder ? is_no_shard(e->d_name) : is_beside(e->d_name)))
			continue;
		(void)snprintf(name, sizeof(name), "%s/%s", from, e->d_name);
		if (to)
			rc = copy_name(&c, NULL, e->d_name);
		else
			cli_progress_more(cli_bytes_of(name, true));
	}
	(void)closedir(d);
	return rc;
}

/* Imports an unsharded model: as the files of the only rank, of a topology of one rank; then the topology that was
 * asked for is written. */
static int copy_whole(const struct import *i, enum cli_folder kind, bool is_folder)
{
	char one[256], path[PATH_BYTES], to[PATH_BYTES + NAME_MAX + 1];
	int rc;

	(void)snprintf(one, sizeof(one), "%.*s=1", (int)strcspn(i->topology, "="), i->topology);
	rc = cli_command(i->mount, i->job, "topology", one);
	(void)snprintf(path, sizeof(path), "%s/%s/0", i->mount, i->job);
	if (rc)
		return rc;
	if (is_folder && kind == CLI_MODEL)
		return copy_folder(i, path, true);
	if (mkdir(path, 0755) < 0 && errno != EEXIST)
		return cli_fail("make", path);
	if (kind == CLI_SHARDS || cli_is_index(i->from)) {
		rc = cli_progress_is_on() ? copy_beside(i, NULL, is_folder) : 0;
		if (rc == 0)
			rc = is_folder ? cli_join_shards(i->from, path) : cli_join(i->from, path);
		return rc ? rc : copy_beside(i, path, is_folder);
	}
	(void)snprintf(to, sizeof(to), "%s/%s", path, name_of(i->from));
	return copy_file(i->from, to, true);
}

static int copy_all(const struct import *i, enum cli_folder kind, bool is_folder)
{
	char path[PATH_BYTES];
	uint64_t bytes = 0;
	int rc;

	/* joined files say it themselves, when they are laid out */
	if (cli_progress_is_on() && kind != CLI_SHARDS && !cli_is_index(i->from))
		bytes = cli_bytes_of(i->from, kind == CLI_MODEL || kind == CLI_CHECKPOINT || i->follow);
	cli_progress_step("copying", bytes);
	if (kind == CLI_MODEL || kind == CLI_SHARDS)
		return copy_whole(i, kind, is_folder);
	rc = cli_command(i->mount, i->job, "topology", i->topology);
	(void)snprintf(path, sizeof(path), "%s/%s", i->mount, i->job);
	if (kind == CLI_CHECKPOINT)
		checkpoint_path(i, path);
	if (rc)
		return rc;
	if (kind == CLI_NAMED_RANKS || kind == CLI_LEGACY)
		return copy_ranks(i, path);
	return copy_folder(i, path, i->follow || kind == CLI_CHECKPOINT);
}

/* Checks that a source can be imported; files of ranks and checkpoints are left to the commit. */
static int check_source(const struct import *i, enum cli_folder kind, bool is_folder)
{
	if (!is_folder)
		return cli_is_index(i->from) || cli_is_tensors(i->from) ? 0 : cli_no_tensors(i->from);
	return kind == CLI_NOTHING  ? cli_not_importable(i->from)
	       : kind == CLI_MODEL  ? check_model(i->from)
	       : kind == CLI_SHARDS ? cli_join_shards(i->from, NULL) : 0;
}

/* Refuses an import whose version has no tensors: nobody meant that. */
static int check_imported(const struct import *i)
{
	char path[PATH_BYTES], line[256];
	bool none = false, shared = false;
	FILE *f;

	(void)snprintf(path, sizeof(path), "%s/%s/.ctl/status", i->mount, i->job);
	f = fopen(path, "re");
	if (!f)
		return cli_fail("read", path);
	while (fgets(line, sizeof(line), f)) {
		none |= strcmp(line, "tensors: 0\n") == 0;
		shared |= strncmp(line, "checkpoint: ", 12) == 0;
	}
	(void)fclose(f);
	if (!none || shared)
		return 0;
	return cli_say("the files of '%s' were taken, but none of them has a tensor: they are of no format that "
		       "Scalai reads, or the layout calls them plain", i->from);
}

/* Tells the time that a commit takes. */
static void watch_time(const char *mount, const char *job)
{
	(void)mount, (void)job;
	cli_progress_add(0);
}

static int import(const struct import *i, const struct cli_args *args)
{
	char path[PATH_BYTES], words[PATH_BYTES];
	enum cli_folder kind = CLI_MODEL;
	bool is_folder;
	struct stat st;
	int rc;

	if (stat(i->from, &st) < 0)
		return cli_fail("read", i->from);
	is_folder = S_ISDIR(st.st_mode);
	if (!is_folder && !S_ISREG(st.st_mode))
		return no_file(i->from);
	if (is_folder)
		kind = cli_folder_kind(i->from);
	(void)snprintf(path, sizeof(path), "%s/%s", i->mount, i->job);
	(void)snprintf(words, sizeof(words), "import '%s'", i->job);
	cli_progress_begin(args, words);
	if (check_source(i, kind, is_folder) || make_job(i, path))
		return 1;
	rc = write_layout(i);
	if (rc == 0)
		rc = copy_all(i, kind, is_folder);
	(void)snprintf(words, sizeof(words), "%s%s%s%s", i->step ? "step=" : "", i->step ? i->step : "",
		       i->note ? " note=" : "", i->note ? i->note : "");
	cli_progress_step("committing", 0);
	if (rc == 0)
		rc = cli_command_watched(i->mount, i->job, "commit", *words ? words : "note=import", watch_time);
	if (rc == 0 && (kind == CLI_MODEL || kind == CLI_SHARDS))
		rc = cli_command(i->mount, i->job, "topology", i->topology);
	if (rc == 0)
		rc = check_imported(i);
	cli_progress_end(rc);
	if (rc)
		(void)cli_say("the job '%s' is left as it is, to look at; 'scalai delete %s/%s' removes it", i->job,
			      i->mount, i->job);
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
	return i.mount ? import(&i, args) : 1;
}
