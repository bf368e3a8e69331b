/* SPDX-License-Identifier: Apache-2.0 */
/*
 * `scalai import JOB INDEX`, or a folder of shards without an index: joins the files of a model into one, as if the
 * model had been saved in one.  The job does not know afterwards which tensor was in which file.
 */
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "fs/cli/cli.h"
#include "fs/cli/cli_import_i.h"
#include "fs/cli/progress.h"
#include "reshard/checkpoint/export/shards.h"
#include "reshard/codec/format/format.h"

#define SUFFIX ".index.json"
#define COPY_BYTES (1 << 20)
#define INDEX_BYTES_MAX (64u << 20)

struct shard {
	char *name;
	int fd;
	struct rs_found found;
};

struct join {
	const char *index;		/* or what it would be called */
	struct {
		size_t nr, room;
		struct shard *at;
	} shards;
	const struct rs_format_ops *format;
	struct {
		size_t nr, room;
		struct rs_wanted *at;
	} wanted;
	struct {
		size_t nr, room;
		struct from {
			size_t shard;
			uint64_t at;
		} *at;
	} from;				/* of each that is wanted */
	struct sc_arena arena;
	struct sc_err err;
};

bool cli_is_index(const char *path)
{
	size_t n = strlen(path), m = sizeof(SUFFIX) - 1;

	return n > m && strcmp(path + n - m, SUFFIX) == 0;
}

static int read_fd(void *arg, uint64_t at, uint64_t bytes, void *to, struct sc_err *err)
{
	const struct shard *s = arg;
	uint64_t done = 0;

	while (done < bytes) {
		ssize_t n = pread(s->fd, (char *)to + done, bytes - done, (off_t)(at + done));

		if (n <= 0)
			return n < 0 ? sc_fail_sys(err, errno, "read") : sc_fail(err, SC_E_FORMAT, "it became shorter");
		done += (uint64_t)n;
	}
	return 0;
}

/* --- the shards --- */

static int open_shard(struct join *j, const char *name, struct shard *ret)
{
	const char *slash = strrchr(j->index, '/');
	const int folder = slash ? (int)(slash - j->index) + 1 : 0;
	const char *path = sc_arena_printf(&j->arena, "%.*s%s", folder, j->index, name);
	struct rs_file file = {.path = name, .arg = ret, .read = read_fd, .tensors_only = true};
	const struct rs_format_ops *format = NULL;
	struct stat st;
	int rc = path ? 0 : sc_nomem(&j->err);

	*ret = (struct shard){.fd = -1};
	if (rc == 0 && (strchr(name, '/') || *name == '.'))
		rc = sc_fail(&j->err, SC_E_FORMAT, "the files lie beside their index");
	if (rc == 0) {
		ret->name = sc_arena_copy(&j->arena, name, strlen(name));
		ret->fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK);
		if (ret->fd < 0 || fstat(ret->fd, &st) < 0)
			rc = sc_fail_sys(&j->err, errno, "open");
		else if (!S_ISREG(st.st_mode))
			rc = sc_fail(&j->err, SC_E_FORMAT, "it is no file");
	}
	if (rc == 0) {
		file.bytes = (uint64_t)st.st_size;
		rc = rs_format_of(&file, &format, &j->err);
	}
	if (rc == 0 && (format == &rs_format_plain || (j->format && format != j->format)))
		rc = sc_fail(&j->err, SC_E_FORMAT, "it is no file of tensors of the format of the others");
	j->format = format;
	if (rc == 0)
		rc = rs_format_parse(format, &file, &ret->found, &j->err);
	return rc < 0 ? rc : rs_found_row_major(&ret->found, &j->err);
}

static int find_shard(struct join *j, const char *name, size_t *ret)
{
	struct shard s;
	int rc;

	for (*ret = j->shards.nr; *ret > 0; --*ret)
		if (strcmp(j->shards.at[*ret - 1].name, name) == 0) {
			--*ret;
			return 0;
		}
	*ret = j->shards.nr;
	rc = open_shard(j, name, &s);
	if (rc == 0 && sc_vec_push(&j->shards, s) < 0)
		rc = sc_nomem(&j->err);
	if (rc < 0) {
		sc_closep(&s.fd);
		rs_found_done(&s.found);
	}
	return rc;
}

static int want(struct join *j, size_t shard, const struct rs_found_tensor *t)
{
	const struct rs_wanted w = {.name = t->name, .dtype = t->dtype, .shape = t->shape,
				    .skew = (uint32_t)(t->at % SC_DATA_ALIGN)};

	return sc_vec_push(&j->wanted, w) < 0 || sc_vec_push(&j->from, (struct from){shard, t->at}) < 0
		       ? sc_nomem(&j->err) : 0;
}

static int on_tensor(void *arg, const struct rs_sharded *x)
{
	struct join *j = arg;
	const struct rs_found_tensor *t;
	const char *name;
	size_t shard;

	if (find_shard(j, x->file, &shard) < 0)
		return sc_wrap(&j->err, j->err.code, "'%s'", x->file);
	name = rs_format_name(j->format, x->name, &j->arena);
	t = name ? rs_found_tensor(&j->shards.at[shard].found, name) : NULL;
	if (name && !t)
		return sc_fail(&j->err, SC_E_FORMAT, "the index says that tensor '%s' is in '%s', but it is not",
			       x->name, x->file);
	return name ? want(j, shard, t) : sc_nomem(&j->err);
}

static int read_index(struct join *j)
{
	struct shard s = {.fd = open(j->index, O_RDONLY | O_CLOEXEC)};
	struct stat st;
	char *text = NULL;
	int rc = 0;

	if (s.fd < 0 || fstat(s.fd, &st) < 0)
		rc = sc_fail_sys(&j->err, errno, "open");
	else if (st.st_size > INDEX_BYTES_MAX)
		rc = sc_fail(&j->err, SC_E_LIMIT, "an index has at most %u bytes", INDEX_BYTES_MAX);
	else if (!(text = sc_sys.alloc((size_t)st.st_size + 1)))
		rc = sc_nomem(&j->err);
	if (rc == 0)
		rc = read_fd(&s, 0, (uint64_t)st.st_size, text, &j->err);
	sc_closep(&s.fd);
	if (rc == 0)
		rc = rs_shards_read(text, (size_t)st.st_size, on_tensor, j, &j->err);
	if (rc == 0 && !j->wanted.nr)
		rc = sc_fail(&j->err, SC_E_FORMAT, "the index names no tensors");
	sc_sys.release(text);
	return rc;
}

/* --- the file --- */

static int write_all(const char *data, uint64_t bytes, const char *to, int out, uint64_t at)
{
	for (uint64_t done = 0; done < bytes;) {
		ssize_t n = pwrite(out, data + done, bytes - done, (off_t)(at + done));

		if (n < 0)
			return cli_fail("write", to);
		done += (uint64_t)n;
	}
	return 0;
}

/* Copies the bytes of a tensor into the joined file; the buffer has COPY_BYTES. */
static int write_tensor(struct join *j, const struct from *from, uint64_t bytes, const char *to, int out, uint64_t at,
			char *buf)
{
	struct shard *s = &j->shards.at[from->shard];
	int rc = 0;

	for (uint64_t done = 0, n; rc == 0 && done < bytes; done += n) {
		n = sc_min_u64(bytes - done, COPY_BYTES);
		if (read_fd(s, from->at + done, n, buf, &j->err) < 0)
			return cli_say("'%s': %s", s->name, j->err.msg);
		rc = write_all(buf, n, to, out, at + done);
		cli_progress_add(n);
	}
	return rc;
}

static int write_piece(struct join *j, const struct rs_frame *frame, const struct rs_piece *p, const char *to, int out,
		       char *buf)
{
	const uint64_t end = rs_piece_end(frame, p);
	int rc = 0;

	if (p->kind != RS_PIECE_TENSOR)
		cli_progress_add(end - p->at);
	else
		return write_tensor(j, &j->from.at[p->tensor], end - p->at, to, out, p->at, buf);
	if (p->kind == RS_PIECE_TEXT)
		return write_all(p->text, end - p->at, to, out, p->at);
	for (uint64_t at = p->at; rc == 0 && p->fill && at < end; at++)
		rc = write_all((const char *)&p->fill, 1, to, out, at);
	return rc;
}

static int write_file(struct join *j, const struct rs_frame *frame, const char *to)
{
	int out = open(to, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0644);
	char *buf = malloc(COPY_BYTES);
	int rc = !buf || out < 0 || ftruncate(out, (off_t)frame->bytes) < 0 ? cli_fail("make", to) : 0;

	for (uint32_t i = 0; rc == 0 && i < frame->nr; i++)
		rc = write_piece(j, frame, &frame->pieces[i], to, out, buf);
	free(buf);
	if (out >= 0 && close(out) < 0)
		rc = cli_fail("write", to);
	return rc;
}

static void join_done(struct join *j)
{
	for (size_t i = 0; i < j->shards.nr; i++) {
		sc_closep(&j->shards.at[i].fd);
		rs_found_done(&j->shards.at[i].found);
	}
	sc_vec_done(&j->shards);
	sc_vec_done(&j->wanted);
	sc_vec_done(&j->from);
	sc_arena_done(&j->arena);
}

int cli_each_shard(const char *index, int (*each)(void *arg, const char *path), void *arg)
{
	const char *slash = strrchr(index, '/');
	const int folder = slash ? (int)(slash + 1 - index) : 0;
	struct join j = {.index = index};
	char path[PATH_MAX];
	int rc = read_index(&j);

	if (rc < 0)
		(void)cli_say("'%s': %s", index, j.err.msg);
	for (size_t i = 0; each && rc == 0 && i < j.shards.nr; i++) {
		(void)snprintf(path, sizeof(path), "%.*s%s", folder, index, j.shards.at[i].name);
		rc = each(arg, path);
	}
	join_done(&j);
	return rc != 0;
}

int cli_check_index(const char *index)
{
	return cli_each_shard(index, NULL, NULL);
}

/* Writes the tensors of all files that were read into one file in a folder; its name has `bytes`. */
static int write_joined(struct join *j, const char *folder, const char *name, size_t bytes)
{
	const struct rs_found *first = &j->shards.at[0].found;
	const bool agrees = j->format->agree && first->payload;
	struct rs_frame frame = {0};
	const char *to;
	int rc = rs_format_describe(j->format, j->wanted.at, (uint32_t)j->wanted.nr, agrees ? first->payload : NULL,
				    agrees ? first->payload_bytes : 0, &frame, &j->err);

	if (rc == 0) {
		cli_progress_more(frame.bytes);
		to = sc_arena_printf(&j->arena, "%s/%.*s", folder, (int)bytes, name);
		rc = to ? write_file(j, &frame, to) : cli_fail("make", folder);
	}
	rs_frame_done(&frame);
	return rc;
}

int cli_join(const char *index, const char *folder)
{
	const char *slash = strrchr(index, '/'), *name = slash ? slash + 1 : index;
	struct join j = {.index = index};
	int rc = read_index(&j);

	if (rc == 0)
		rc = write_joined(&j, folder, name, strlen(name) - (sizeof(SUFFIX) - 1));
	if (rc < 0)
		(void)cli_say("'%s': %s", index, j.err.msg);
	join_done(&j);
	return rc != 0;
}

/* --- without an index --- */

/* Reads one shard; refuses a tensor that another shard has, too. */
static int read_shard(struct join *j, const char *name)
{
	size_t shard;
	int rc = find_shard(j, name, &shard);

	for (uint32_t i = 0; rc == 0 && i < j->shards.at[shard].found.nr; i++) {
		const struct rs_found_tensor *t = &j->shards.at[shard].found.tensors[i];

		for (size_t k = 0; rc == 0 && k < shard; k++)
			if (rs_found_tensor(&j->shards.at[k].found, t->name))
				rc = sc_fail(&j->err, SC_E_FORMAT, "tensor '%s' is in '%s', too", t->name,
					     j->shards.at[k].name);
		if (rc == 0)
			rc = want(j, shard, t);
	}
	return rc < 0 ? sc_wrap(&j->err, j->err.code, "'%s'", name) : 0;
}

struct names {
	struct dirent **at;
	int nr;
};

/* Finds a shard by the common name and the number of all shards; if `at` is 0, any of them. */
static const char *find_name(const struct names *names, const char *plain, uint32_t of, uint32_t at)
{
	for (int i = 0; i < names->nr; i++) {
		const char *name = names->at[i]->d_name;
		char its[NAME_MAX + 1];
		uint32_t its_at, its_of;

		if (cli_shard(name, &its_at, &its_of, its) && its_of == of && (!at || its_at == at) &&
		    strcmp(its, plain) == 0)
			return name;
	}
	return NULL;
}

/* Joins a set of shards; `first` is the first of them by name. */
static int join_set(const char *from, const struct names *names, const char *first, const char *to)
{
	char plain[NAME_MAX + 1];
	struct join j = {0};
	uint32_t at, of;
	int rc = 0;

	if (!cli_shard(first, &at, &of, plain) || find_name(names, plain, of, 0) != first)
		return 0;
	j.index = sc_arena_printf(&j.arena, "%s/%s", from, plain);
	if (!j.index)
		rc = sc_nomem(&j.err);
	for (at = 1; rc == 0 && at <= of; at++) {
		const char *name = find_name(names, plain, of, at);

		rc = name ? read_shard(&j, name)
			  : sc_fail(&j.err, SC_E_FORMAT, "of %u files number %u is not there, beside '%s'", of, at,
				    first);
	}
	if (rc == 0 && !j.wanted.nr)
		rc = sc_fail(&j.err, SC_E_FORMAT, "'%s' and those after it hold no tensors", first);
	if (rc == 0 && to)
		rc = write_joined(&j, to, plain, strlen(plain));
	if (rc < 0)
		(void)cli_say("'%s': %s", from, j.err.msg);
	join_done(&j);
	return rc != 0;
}

int cli_join_shards(const char *from, const char *to)
{
	struct names names = {0};
	int rc = 0;

	names.nr = scandir(from, &names.at, NULL, alphasort);
	if (names.nr < 0)
		return cli_fail("list", from);
	for (int i = 0; rc == 0 && i < names.nr; i++)
		rc = join_set(from, &names, names.at[i]->d_name, to);
	for (int i = 0; i < names.nr; i++)
		free(names.at[i]);
	free(names.at);
	return rc;
}
