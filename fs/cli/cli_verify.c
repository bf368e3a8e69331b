/* SPDX-License-Identifier: Apache-2.0 */
/* `scalai verify`: what .ctl/verify says, or a comparison with an unsharded file or the shards that an index names. */
#include <dirent.h>
#include <fcntl.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "fs/cli/cli.h"
#include "fs/cli/json.h"
#include "fs/cli/progress.h"
#include "reshard/engine/io/source.h"
#include "reshard/checkpoint/export/shards.h"
#include "reshard/codec/format/format.h"

#define PATH_BYTES 4096

#define JOB_FILES 16		/* of a job that are compared with a reference */
#define SHARDS_MAX 10000	/* files of a reference */
#define COMPARED (4u << 20)	/* bytes at once */

struct mapped {
	const unsigned char *at;
	uint64_t bytes;
	bool is_plain;		/* it has no tensors with names, and is not mapped */
	struct rs_found found;
};

static int read_file(void *arg, uint64_t at, uint64_t bytes, void *to, struct sc_err *err)
{
	return rs_fd_read(*(int *)arg, 0, at, bytes, to, err);
}

/* Maps the file at `path`. */
static int map_file(const char *path, struct mapped *ret)
{
	const struct rs_format_ops *format;
	struct rs_file file = {.path = path, .read = read_file};
	struct sc_err err;
	struct stat st;
	int fd = open(path, O_RDONLY | O_CLOEXEC), rc;

	if (fd < 0 || fstat(fd, &st) < 0)
		return cli_fail("read", path);
	file.arg = &fd;
	file.bytes = ret->bytes = (uint64_t)st.st_size;
	rc = rs_format_of(&file, &format, &err);
	if (rc == 0)
		rc = rs_format_parse(format, &file, &ret->found, &err);
	if (rc == 0)
		rc = rs_found_row_major(&ret->found, &err);
	if (rc < 0) {
		(void)cli_say("%s: %s", path, err.msg);
		(void)close(fd);
		return 1;
	}
	ret->is_plain = format == &rs_format_plain;
	if (!ret->is_plain)
		ret->at = mmap(NULL, ret->bytes ? ret->bytes : 1, PROT_READ, MAP_PRIVATE, fd, 0);
	(void)close(fd);
	return ret->at == MAP_FAILED ? cli_fail("map", path) : 0;
}

/* Compares bytes as memcmp() does, and tells how far it is. */
static bool are_equal(const unsigned char *a, const unsigned char *b, uint64_t bytes)
{
	bool equal = true;

	for (uint64_t at = 0, n; equal && at < bytes; at += n) {
		n = sc_min_u64(bytes - at, COMPARED);
		equal = memcmp(a + at, b + at, n) == 0;
		cli_progress_add(equal ? n : bytes - at);
	}
	return equal;
}

/* Writes a line of what is found, where the line of the progress was. */
static void find(FILE *out, const char *fmt, ...) __attribute__((format(printf, 2, 3)));
static void find(FILE *out, const char *fmt, ...)
{
	va_list ap;

	cli_progress_hide();
	va_start(ap, fmt);
	(void)vfprintf(out, fmt, ap);
	va_end(ap);
}

static int compare_tensor(const struct mapped *a, const struct rs_found_tensor *x, const struct mapped *b,
			  const struct rs_found_tensor *y, FILE *out)
{
	char s[200], t[200];

	if (x->dtype != y->dtype || !meta_shape_equal(&x->shape, &y->shape)) {
		find(out, "DIFFERENT\t%s\treference has %s %s, the job has %s %s\n", x->name,
		     meta_dtype_name(x->dtype), meta_shape_text(&x->shape, s, sizeof(s)),
		     meta_dtype_name(y->dtype), meta_shape_text(&y->shape, t, sizeof(t)));
		return 1;
	}
	if (!are_equal(a->at + x->at, b->at + y->at, rs_found_bytes(x))) {
		find(out, "DIFFERENT\t%s\tthe bytes differ\n", x->name);
		return 1;
	}
	find(out, "equal\t%s\n", x->name);
	return 0;
}

static void unmap_file(struct mapped *m)
{
	if (m->at && m->at != MAP_FAILED)
		(void)munmap((void *)m->at, m->bytes ? m->bytes : 1);
	rs_found_done(&m->found);
	*m = (struct mapped){0};
}

struct files {
	size_t nr, room;
	struct mapped *at;
};

static void unmap_files(struct files *files)
{
	for (size_t i = 0; i < files->nr; i++)
		unmap_file(&files->at[i]);
	sc_vec_done(files);
}

static int refuse_reference(const char *path, const char *what)
{
	return cli_say("'%s' %s: a reference is a file with tensors, as model.safetensors, or the index of such files, "
		       "as model.safetensors.index.json", path, what);
}

/* Maps a file of the reference. */
static int add_reference(void *arg, const char *path)
{
	struct files *ref = arg;
	struct mapped m = {0};

	if (map_file(path, &m))
		return 1;
	if (m.is_plain) {
		unmap_file(&m);
		return refuse_reference(path, "has no tensors");
	}
	if (ref->nr < SHARDS_MAX && sc_vec_push(ref, m) == 0)
		return 0;
	unmap_file(&m);
	return cli_say("'%s': cannot map more than %zu files", path, ref->nr);
}

/* Maps the reference: a file, or all those that an index names. */
static int map_reference(const char *path, struct files *ref)
{
	struct stat st;

	if (stat(path, &st) == 0 && S_ISDIR(st.st_mode))
		return refuse_reference(path, "is a folder");
	return cli_is_index(path) ? cli_each_shard(path, add_reference, ref) : add_reference(ref, path);
}

/* Maps the job's files with tensors, whole. */
static int map_job(const char *mount, const char *job, struct files *files)
{
	char path[PATH_BYTES];
	struct dirent *e;
	int rc = 0;
	DIR *d;

	(void)snprintf(path, sizeof(path), "%s/%s/.full", mount, job);
	d = opendir(path);
	if (!d)
		return cli_no_file(mount, job, ".full");
	while (!rc && (e = readdir(d)) && files->nr < JOB_FILES) {
		struct mapped m = {0};

		(void)snprintf(path, sizeof(path), "%s/%s/.full/%s", mount, job, e->d_name);
		rc = map_file(path, &m);
		if (!rc && (m.is_plain || sc_vec_push(files, m) < 0))
			unmap_file(&m);
	}
	(void)closedir(d);
	return rc;
}

/* Finds a tensor by name, with the file that has it. */
static const struct rs_found_tensor *find_tensor(const struct files *files, const char *name, const struct mapped **ret)
{
	const struct rs_found_tensor *t = NULL;

	for (size_t k = 0; k < files->nr && !t; k++) {
		t = rs_found_tensor(&files->at[k].found, name);
		*ret = &files->at[k];
	}
	return t;
}

/* Compares the tensors of a file of the reference with the job's.  Returns how many it lacks, or differ. */
static int compare_reference(const struct mapped *ref, const struct files *files, FILE *out)
{
	int bad = 0;

	for (uint32_t i = 0; i < ref->found.nr; i++) {
		const struct rs_found_tensor *x = &ref->found.tensors[i];
		const struct mapped *of = NULL;
		const struct rs_found_tensor *y = find_tensor(files, x->name, &of);

		if (!y)
			find(out, "MISSING\t%s\tis not in the job\n", x->name);
		bad += y ? compare_tensor(ref, x, of, y, out) : 1;
	}
	return bad;
}

/* Each tensor of the reference has to be in the job, and each tensor of the job's files that have any of them has to be
 * in the reference.  Returns how many are not, or differ. */
static int compare_files(const struct files *ref, const struct files *files, FILE *out)
{
	const struct mapped *ignored;
	int bad = 0;

	for (size_t k = 0; k < ref->nr; k++)
		bad += compare_reference(&ref->at[k], files, out);
	for (size_t k = 0; k < files->nr; k++) {
		const struct rs_found *found = &files->at[k].found;
		bool any = false;

		for (uint32_t i = 0; i < found->nr; i++)
			any |= find_tensor(ref, found->tensors[i].name, &ignored) != NULL;
		for (uint32_t i = 0; any && i < found->nr; i++)
			if (!find_tensor(ref, found->tensors[i].name, &ignored)) {
				find(out, "MISSING\t%s\tis not in the reference\n", found->tensors[i].name);
				bad++;
			}
	}
	return bad;
}

/* Compares a job with a reference. */
static int verify_reference(const char *mount, const char *job, const char *reference, FILE *out)
{
	struct files ref = {0}, files = {0};
	uint64_t tensors = 0, bytes = 0;
	int bad = 0, rc;

	rc = map_reference(reference, &ref);
	if (!rc)
		rc = map_job(mount, job, &files);
	for (size_t k = 0; k < ref.nr; k++) {
		tensors += ref.at[k].found.nr;
		for (uint32_t i = 0; i < ref.at[k].found.nr; i++)
			bytes += rs_found_bytes(&ref.at[k].found.tensors[i]);
	}
	cli_progress_step("comparing", bytes);
	if (!rc)
		bad = compare_files(&ref, &files, out);
	cli_progress_end(rc);
	if (!rc && out == stdout)
		(void)printf("%llu tensors compared with '%s', %d different\n", (unsigned long long)tensors, reference,
			     bad);
	unmap_files(&files);
	unmap_files(&ref);
	return rc || bad;
}

/* Prints what is found as JSON, a row for each tensor. */
static int verify_reference_json(const char *mount, const char *job, const char *reference)
{
	char *text = NULL;
	size_t bytes;
	FILE *out = open_memstream(&text, &bytes);
	int rc = out ? verify_reference(mount, job, reference, out) : cli_json_print(NULL);

	if (out && fclose(out) != 0)
		rc = cli_json_print(NULL);
	else if (out && (*text || rc == 0)) /* else there was a message */
		rc |= cli_json_print(cli_json_rows("result\tname\twhy", text));
	free(text);
	return rc;
}

int cli_verify(const struct cli_args *args)
{
	const char *mount = cli_mount(args), *job = args->operands[0], *reference = cli_value(args, "reference");
	bool json = cli_value(args, "json");
	struct sc_buf text = {0};
	char name[PATH_BYTES];
	int rc;

	if (!mount)
		return 1;
	(void)snprintf(name, sizeof(name), "verify '%s'", job);
	cli_progress_begin(args, name);
	if (reference)
		return json ? verify_reference_json(mount, job, reference)
			    : verify_reference(mount, job, reference, stdout);
	cli_progress_step("verifying", 0);
	rc = cli_command_watched(mount, job, "verify", "head\n", cli_watch_verify);
	cli_progress_end(rc);
	if (rc || !json)
		return rc ? rc : cli_show(mount, job, "verify");
	rc = cli_read_control(mount, job, "verify", &text);
	if (rc == 0)
		rc = cli_json_print(cli_json_rows("result\tdigest\tname", text.text));
	sc_buf_done(&text);
	return rc;
}
