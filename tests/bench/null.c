/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The least that a FUSE server can do: one file, `f`, of BYTES, every read answered from one hot
 * buffer, with the options that Scalai mounts views with.  What a view costs beyond this is ours.
 * With FILE, each read is answered from the mapping of that file instead: the least that a server of
 * bytes that are somewhere can do.  With `rows`, from its two halves in turns, RUN bytes of each: the
 * least that a server of bytes that are in many pieces can do.
 *
 *     null MOUNTPOINT BYTES|FILE [io_uring|rows]      in the foreground, until it is unmounted
 */
#define FUSE_USE_VERSION FUSE_MAKE_VERSION(3, 18)

#include <errno.h>
#include <fcntl.h>
#include <fuse_lowlevel.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/sysmacros.h>
#include <unistd.h>

#define BUFFER_BYTES (4u << 20)
#define RUN 1024u

static char *buffer, *mapped;
static off_t file_bytes;
static int rows;

static void fill(fuse_ino_t ino, struct stat *st)
{
	*st = (struct stat){.st_ino = ino, .st_mode = ino == 1 ? S_IFDIR | 0755 : S_IFREG | 0444, .st_nlink = 1,
			    .st_size = ino == 1 ? 0 : file_bytes};
}

static void op_init(void *arg, struct fuse_conn_info *conn)
{
	(void)arg;
	(void)fuse_set_feature_flag(conn, FUSE_CAP_DIRECT_IO_ALLOW_MMAP);
	fuse_unset_feature_flag(conn, FUSE_CAP_WRITEBACK_CACHE);
	conn->max_readahead = 4096 << 10;
}

static void op_lookup(fuse_req_t req, fuse_ino_t parent, const char *name)
{
	struct fuse_entry_param e = {.ino = 2, .attr_timeout = 1e9, .entry_timeout = 1e9};

	if (parent != 1 || strcmp(name, "f") != 0) {
		(void)fuse_reply_err(req, ENOENT);
		return;
	}
	fill(2, &e.attr);
	(void)fuse_reply_entry(req, &e);
}

static void op_getattr(fuse_req_t req, fuse_ino_t ino, struct fuse_file_info *fi)
{
	struct stat st;

	(void)fi;
	fill(ino, &st);
	(void)fuse_reply_attr(req, &st, 1e9);
}

static void op_open(fuse_req_t req, fuse_ino_t ino, struct fuse_file_info *fi)
{
	(void)ino;
	fi->direct_io = 1;
	fi->noflush = 1;
	(void)fuse_reply_open(req, fi);
}

/* The same work as of a view whose rows come from two ranks; one buffer for each thread. */
static void reply_rows(fuse_req_t req, size_t bytes, size_t at)
{
	static _Thread_local char *gathered;
	size_t n, half = (size_t)file_bytes / 2 / RUN * RUN;

	if (!gathered)
		gathered = aligned_alloc(2 << 20, BUFFER_BYTES);
	if (!gathered) {
		(void)fuse_reply_err(req, ENOMEM);
		return;
	}
	for (size_t done = 0; done < bytes; done += n) {
		size_t row = (at + done) / RUN, in = (at + done) % RUN;

		n = RUN - in < bytes - done ? RUN - in : bytes - done;
		memcpy(gathered + done, mapped + row % 2 * half + row / 2 * RUN + in, n);
	}
	(void)fuse_reply_buf(req, gathered, bytes);
}

static void op_read(fuse_req_t req, fuse_ino_t ino, size_t bytes, off_t at, struct fuse_file_info *fi)
{
	(void)ino;
	(void)fi;
	if (at >= file_bytes)
		bytes = 0;
	else if ((off_t)bytes > file_bytes - at)
		bytes = (size_t)(file_bytes - at);
	if (rows)
		reply_rows(req, bytes, (size_t)at);
	else if (mapped)
		(void)fuse_reply_iov(req, &(struct iovec){mapped + at, bytes}, 1);
	else
		(void)fuse_reply_buf(req, buffer, bytes);
}

static const struct fuse_lowlevel_ops ops = {
	.init = op_init, .lookup = op_lookup, .getattr = op_getattr, .open = op_open, .read = op_read,
};

static void set_read_ahead(const char *mountpoint)
{
	char path[128];
	struct stat st;
	FILE *f;

	if (stat(mountpoint, &st) < 0)
		return;
	(void)snprintf(path, sizeof(path), "/sys/class/bdi/%u:%u/read_ahead_kb", major(st.st_dev), minor(st.st_dev));
	f = fopen(path, "we");
	if (f) {
		(void)fputs("4096", f);
		(void)fclose(f);
	}
}

/* A number, or a file. */
static int map(const char *what)
{
	struct stat st;
	char *end;
	int fd;

	file_bytes = strtoll(what, &end, 10);
	if (!*end)
		return 0;
	fd = open(what, O_RDONLY | O_CLOEXEC);
	if (fd < 0 || fstat(fd, &st) < 0)
		return -1;
	file_bytes = st.st_size;
	mapped = mmap(NULL, (size_t)st.st_size, PROT_READ, MAP_SHARED | MAP_POPULATE, fd, 0);
	return mapped == MAP_FAILED ? -1 : 0;
}

int main(int argc, char **argv)
{
	char options[64] = "fsname=null,subtype=null,allow_other", dash_o[] = "-o";
	char *words[] = {argv[0], dash_o, options};
	struct fuse_args args = FUSE_ARGS_INIT(3, words);
	struct fuse_loop_config *config = fuse_loop_cfg_create();
	struct fuse_session *se;

	rows = argc == 4 && strcmp(argv[3], "rows") == 0;
	if (argc < 3 || argc > 4 || (argc == 4 && !rows && strcmp(argv[3], "io_uring") != 0))
		return 2;
	if (argc == 4 && !rows)
		(void)strcat(options, ",io_uring");
	if (map(argv[2]) < 0 || (rows && !mapped))
		return 1;
	buffer = aligned_alloc(2 << 20, BUFFER_BYTES);
	if (!buffer)
		return 1;
	memset(buffer, 7, BUFFER_BYTES);
	se = fuse_session_new(&args, &ops, sizeof(ops), NULL);
	if (!se || fuse_session_mount(se, argv[1]) != 0)
		return 1;
	fuse_loop_cfg_set_clone_fd(config, 0);
	fuse_loop_cfg_set_max_threads(config, 16);
	fuse_loop_cfg_set_idle_threads(config, 16);
	/* a stat of the mount is answered only once the loop runs */
	if (fork() == 0) {
		set_read_ahead(argv[1]);
		_exit(0);
	}
	(void)fuse_session_loop_mt(se, config);
	fuse_session_unmount(se);
	fuse_session_destroy(se);
	return 0;
}
