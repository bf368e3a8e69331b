/* SPDX-License-Identifier: Apache-2.0 */
#include "fs/cli.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "meta/base/log.h"
#include "reshard/format/safetensors.h"
#include "reshard/job/service.h"

#define PATH_BYTES 4096

const char *cli_mount(const char *given)
{
	static char found[PATH_BYTES];
	char line[3 * PATH_BYTES], target[PATH_BYTES], type[256];
	int nr = 0;
	FILE *f;

	if (given)
		return given;
	if (getenv("SCALAI_MOUNT"))
		return getenv("SCALAI_MOUNT");
	f = fopen("/proc/self/mounts", "re");
	while (f && fgets(line, sizeof(line), f))
		if (sscanf(line, "%*s %4095s %255s", target, type) == 2 && strcmp(type, "fuse.scalai") == 0 && nr++ == 0)
			memcpy(found, target, sizeof(found));
	if (f)
		(void)fclose(f);
	if (nr == 1)
		return found;
	(void)fprintf(stderr, nr ? "scalai: there are %d scalai mounts; say which with -m or $SCALAI_MOUNT\n"
				 : "scalai: nothing is mounted; 'scalai mount STORE MOUNTPOINT' does\n", nr);
	return NULL;
}

static int fail(const char *path)
{
	(void)fprintf(stderr, "scalai: %s: %s\n", path, strerror(errno));
	return 1;
}

static void ctl_path(char *path, const char *mount, const char *job, const char *file)
{
	(void)snprintf(path, PATH_BYTES, "%s/%s/.ctl/%s", mount, job, file);
}

/* Copies a control file to stdout. */
static int show(const char *path, FILE *to)
{
	char buf[65536];
	ssize_t n;
	int fd = open(path, O_RDONLY | O_CLOEXEC);

	if (fd < 0)
		return fail(path);
	while ((n = read(fd, buf, sizeof(buf))) > 0)
		(void)fwrite(buf, 1, (size_t)n, to);
	(void)close(fd);
	return n < 0 ? fail(path) : 0;
}

/* Writes a command; a refusal is explained by the job's `error`. */
static int command(const char *mount, const char *job, const char *file, const char *text)
{
	char path[PATH_BYTES], error[PATH_BYTES];
	int fd, bad;

	ctl_path(path, mount, job, file);
	fd = open(path, O_WRONLY | O_CLOEXEC);
	if (fd < 0)
		return fail(path);
	bad = write(fd, text, strlen(text)) < 0;
	bad |= close(fd) < 0;
	if (!bad)
		return 0;
	(void)fail(path);
	ctl_path(error, mount, job, "error");
	(void)show(error, stderr);
	return 1;
}

/* --- status --- */

static uint64_t number_of(const char *text, const char *key)
{
	const char *at = strstr(text, key);

	return at ? strtoull(at + strlen(key), NULL, 10) : 0;
}

static void draw_bar(const char *text)
{
	uint64_t done = number_of(text, "\nbytes_done: "), total = number_of(text, "\nbytes_total: ");
	const char *progress = strstr(text, "\nprogress: ");
	double part = total ? (double)done / (double)total : 1;
	int full = (int)(part * 40);

	progress = progress ? progress + 11 : "";
	(void)printf("\r\033[K[%.*s%*s] %3.0f %%  %.*s  %.1f MB/s", full, "########################################",
		     40 - full, "", part * 100, (int)strcspn(progress, "\n"), progress,
		     (double)number_of(text, "\nbytes_per_second: ") / 1e6);
	(void)fflush(stdout);
}

/* Follows `status` by poll(2) until the head is materialized or stopped. */
static int watch_status(const char *path)
{
	static char text[1 << 20];
	int fd = open(path, O_RDONLY | O_CLOEXEC);
	bool going = true;

	if (fd < 0)
		return fail(path);
	while (going) {
		struct pollfd p = {.fd = fd, .events = POLLIN};
		ssize_t n = pread(fd, text, sizeof(text) - 1, 0);

		if (n < 0) {
			(void)close(fd);
			return fail(path);
		}
		text[n] = 0;
		draw_bar(text);
		going = !strstr(text, "\nprogress: done") && !strstr(text, "\nstopped: ") &&
			!strstr(text, "\nversion: none") && !strstr(text, "\ncopies: DIFFER");
		if (going)
			(void)poll(&p, 1, 1000);
	}
	(void)printf("\n");
	(void)close(fd);
	return strstr(text, "\nstopped: ") || strstr(text, "\ncopies: DIFFER") ? 1 : 0;
}

int cli_status(const char *mount, const char *job, int watch)
{
	char path[PATH_BYTES];
	struct dirent *e;
	DIR *d;
	int rc = 0;

	if (job) {
		ctl_path(path, mount, job, "status");
		return watch ? watch_status(path) : show(path, stdout);
	}
	d = opendir(mount);
	if (!d)
		return fail(mount);
	while ((e = readdir(d)) && rc == 0) {
		if (*e->d_name == '.')
			continue;
		ctl_path(path, mount, e->d_name, "status");
		rc = watch ? watch_status(path) : show(path, stdout);
		(void)printf("\n");
	}
	(void)closedir(d);
	return rc;
}

/* --- import --- */

static int copy_file(const char *from, const char *to)
{
	char *buf = malloc(1 << 20);
	int in = open(from, O_RDONLY | O_CLOEXEC), out = -1, rc = 0;
	ssize_t n = 0;

	if (in < 0 || !buf) {
		free(buf);
		return fail(from);
	}
	out = open(to, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0644);
	if (out < 0)
		rc = fail(to);
	while (rc == 0 && (n = read(in, buf, 1 << 20)) > 0)
		for (ssize_t at = 0, w; rc == 0 && at < n; at += w) {
			w = write(out, buf + at, (size_t)(n - at));
			if (w < 0)
				rc = fail(to);
		}
	if (n < 0)
		rc = fail(from);
	(void)close(in);
	if (out >= 0 && close(out) < 0)
		rc = fail(to);
	free(buf);
	return rc;
}

static int copy_tree(const char *from, const char *to)
{
	DIR *d = opendir(from);
	struct dirent *e;
	int rc = 0;

	if (!d)
		return fail(from);
	if (mkdir(to, 0755) < 0 && errno != EEXIST)
		rc = fail(to);
	while (rc == 0 && (e = readdir(d))) {
		char a[PATH_BYTES], b[PATH_BYTES];
		struct stat st;

		if (strcmp(e->d_name, ".") == 0 || strcmp(e->d_name, "..") == 0)
			continue;
		(void)snprintf(a, sizeof(a), "%s/%s", from, e->d_name);
		(void)snprintf(b, sizeof(b), "%s/%s", to, e->d_name);
		if (stat(a, &st) < 0)
			rc = fail(a);
		else
			rc = S_ISDIR(st.st_mode) ? copy_tree(a, b) : copy_file(a, b);
	}
	(void)closedir(d);
	return rc;
}

/* `--layout` is a file with rules, or a preset with its variables. */
static int write_layout(const struct cli_import *i)
{
	char path[PATH_BYTES], use[PATH_BYTES], error[PATH_BYTES];

	if (access(i->layout, R_OK) != 0) {
		(void)snprintf(use, sizeof(use), "use %s\n", i->layout);
		return command(i->mount, i->job, "layout", use);
	}
	ctl_path(path, i->mount, i->job, "layout");
	if (copy_file(i->layout, path) == 0)
		return 0;
	ctl_path(error, i->mount, i->job, "error");
	(void)show(error, stderr);
	return 1;
}

int cli_import(const struct cli_import *i)
{
	char path[PATH_BYTES], to[PATH_BYTES], words[PATH_BYTES];
	struct stat st;
	int rc;

	if (stat(i->from, &st) < 0)
		return fail(i->from);
	(void)snprintf(path, sizeof(path), "%s/%s", i->mount, i->job);
	if (mkdir(path, 0755) < 0)
		return fail(path);
	rc = write_layout(i);
	if (S_ISDIR(st.st_mode)) {
		if (rc == 0)
			rc = command(i->mount, i->job, "topology", i->topology);
		if (rc == 0)
			rc = copy_tree(i->from, path);
	} else if (rc == 0) {
		/* unsharded: it is rank 0 of one rank, and then seen as the topology that was asked for */
		char one[256], *eq;

		(void)snprintf(one, sizeof(one), "%s", i->topology);
		eq = strchr(one, '=');
		if (eq)
			*eq = 0;
		(void)snprintf(words, sizeof(words), "%s=1", one);
		rc = command(i->mount, i->job, "topology", words);
		(void)snprintf(path, sizeof(path), "%s/%s/0", i->mount, i->job);
		if (rc == 0 && mkdir(path, 0755) < 0)
			rc = fail(path);
		(void)snprintf(to, sizeof(to), "%s/model.safetensors", path);
		if (rc == 0)
			rc = copy_file(i->from, to);
	}
	(void)snprintf(words, sizeof(words), "%s%s%s%s", i->step ? "step=" : "", i->step ? i->step : "",
		       i->note ? " note=" : "", i->note ? i->note : "");
	if (rc == 0)
		rc = command(i->mount, i->job, "commit", *words ? words : "note=import");
	if (rc == 0 && !S_ISDIR(st.st_mode))
		rc = command(i->mount, i->job, "topology", i->topology);
	if (rc)
		(void)fprintf(stderr, "scalai: the job '%s' is left as it is, to look at; to drop it: "
				      "echo remove=yes > %s/%s/.ctl/config; rmdir %s/%s\n",
			      i->job, i->mount, i->job, i->mount, i->job);
	return rc;
}

/* --- data --- */

/* KEY="VALUE" for the control file; what can't be quoted is refused. */
static int add_word(struct sc_buf *text, const char *key, const char *value)
{
	if (strpbrk(value, "\"\n")) {
		(void)fprintf(stderr, "scalai: '%s' has a quote or a newline\n", value);
		return 1;
	}
	sc_buf_printf(text, " %s=\"%s\"", key, value);
	return 0;
}

/* --global-batch 8, --global-batch=8, and --copy alone */
static int add_option(struct sc_buf *text, char **argv, int *i)
{
	char key[64];
	const char *name = argv[*i] + 2, *eq = strchr(name, '=');
	size_t n = eq ? (size_t)(eq - name) : strlen(name);

	if (n == 0 || n >= sizeof(key))
		return -1;
	(void)snprintf(key, sizeof(key), "%.*s", (int)n, name);
	for (char *p = key; *p; p++)
		*p = *p == '-' ? '_' : *p;
	if (eq)
		return add_word(text, key, eq + 1);
	if (strcmp(key, "copy") == 0)
		return add_word(text, key, "yes");
	if (!argv[*i + 1])
		return -1;
	return add_word(text, key, argv[++*i]);
}

static int add_file(struct sc_buf *text, const char *path)
{
	char *whole = realpath(path, NULL);
	int rc;

	/* the prefix of a .bin and .idx is no file of its own */
	if (!whole && errno == ENOENT && *path == '/')
		return add_word(text, "path", path);
	rc = whole ? add_word(text, "path", whole) : fail(path);
	free(whole);
	return rc;
}

int cli_data(int argc, char **argv)
{
	const char *mount = NULL, *words[3] = {0}; /* verb, job, name */
	struct sc_buf text = {0};
	char path[PATH_BYTES];
	int nr = 0, files = 0, rc = 0;

	for (int i = 1; rc == 0 && i < argc; i++) {
		if (strcmp(argv[i], "-m") == 0 && argv[i + 1])
			mount = argv[++i];
		else if (strncmp(argv[i], "--", 2) == 0)
			rc = add_option(&text, argv, &i);
		else if (nr < 3)
			words[nr++] = argv[i];
		else if (++files)
			rc = add_file(&text, argv[i]);
	}
	if (rc == 0 && (nr < 2 || (nr < 3) != (strcmp(words[0], "show") == 0) || (files > 0) != (strcmp(words[0], "add") == 0)))
		rc = -1;
	mount = rc == 0 ? cli_mount(mount) : NULL;
	if (rc == 0 && !mount)
		rc = 1;
	if (rc == 0 && nr == 2) {
		ctl_path(path, mount, words[1], "data");
		rc = show(path, stdout);
	} else if (rc == 0) {
		struct sc_buf line = {0};

		sc_buf_printf(&line, "%s name=\"%s\"%s\n", words[0], words[2], text.text ? text.text : "");
		rc = line.failed || text.failed ? fail("data") : command(mount, words[1], "data", line.text);
		sc_buf_done(&line);
	}
	sc_buf_done(&text);
	return rc;
}

/* --- fsck --- */

/* With its write-ahead log; `to` NULL: it is removed. */
static int move_catalog(const char *from, const char *to, struct sc_err *err)
{
	static const char *const parts[] = {"", "-wal", "-shm"};

	for (size_t i = 0; i < sizeof(parts) / sizeof(*parts); i++) {
		char a[PATH_BYTES + 16], b[PATH_BYTES + 16];

		(void)snprintf(a, sizeof(a), "%s%s", from, parts[i]);
		if (to)
			(void)snprintf(b, sizeof(b), "%s%s", to, parts[i]);
		if ((to ? rename(a, b) : unlink(a)) < 0 && errno != ENOENT)
			return sc_fail_sys(err, errno, "cannot move '%s'", a);
	}
	return 0;
}

/* One that can be read is not made anew. */
static int begin_rebuild(struct rs_options *options, const char *database, struct sc_err *err)
{
	struct rs_service *s = NULL;
	char other[PATH_BYTES + 8];
	int rc;

	if (access(options->store, F_OK) < 0)
		return sc_fail_sys(err, errno, "store '%s'", options->store);
	if (access(database, F_OK) == 0 && rs_service_new(options, &s, err) == 0) {
		rs_service_free(s);
		return sc_fail(err, SC_E_EXISTS, "'%s' can be read: move it away if you want another one", database);
	}
	if (err->code == SC_E_BUSY)
		return err->code;
	*err = (struct sc_err){0};
	options->rebuild = true;
	(void)snprintf(other, sizeof(other), "%s.bad", database);
	rc = move_catalog(database, other, err);
	(void)snprintf(other, sizeof(other), "%s.new", database);
	return rc < 0 ? rc : move_catalog(other, NULL, err);
}

static int end_rebuild(const char *database, struct sc_err *err)
{
	char other[PATH_BYTES + 8];

	(void)snprintf(other, sizeof(other), "%s.new", database);
	return move_catalog(other, database, err);
}

int cli_fsck(int argc, char **argv)
{
	struct rs_options options = {.quiet_worker = true, .keep_garbage = true};
	struct rs_service *s = NULL;
	struct sc_buf report = {0};
	struct sc_err err = {0};
	uint64_t bad = 0;
	bool repair = argc > 2 && strcmp(argv[1], "--repair") == 0;
	bool rebuild = argc > 2 && strcmp(argv[1], "--rebuild") == 0;
	char database[PATH_BYTES];
	int rc;

	if (argc != 2 + (repair || rebuild) || *argv[argc - 1] == '-')
		return -1;
	options.store = argv[argc - 1];
	(void)snprintf(database, sizeof(database), "%s/scalai.db", options.store);
	if (!rebuild && access(database, R_OK) < 0)
		return fail(database); /* a service would make it */
	sc_log_level(SC_LOG_ERROR);
	rc = rebuild ? begin_rebuild(&options, database, &err) : 0;
	if (rc == 0)
		rc = rs_service_new(&options, &s, &err);
	if (rc == 0)
		rc = rebuild ? rs_rebuild(s, &bad, &report, &err) : rs_fsck(s, repair, &bad, &report, &err);
	if (report.text)
		(void)fputs(report.text, stdout);
	if (rc < 0)
		(void)fprintf(stderr, "scalai: %s\n", err.msg);
	sc_buf_done(&report);
	rs_service_free(s);
	if (rc == 0 && rebuild && end_rebuild(database, &err) < 0) {
		(void)fprintf(stderr, "scalai: %s\n", err.msg);
		rc = -1;
	}
	return rc < 0 || bad;
}

/* --- verify --- */

struct mapped {
	const unsigned char *at;
	uint64_t bytes;
	struct rs_safetensors st;
};

static int map_file(const char *path, struct mapped *ret)
{
	struct rs_file file;
	struct sc_err err;
	struct stat st;
	int fd = open(path, O_RDONLY | O_CLOEXEC);

	if (fd < 0 || fstat(fd, &st) < 0)
		return fail(path);
	ret->bytes = (uint64_t)st.st_size;
	ret->at = mmap(NULL, ret->bytes ? ret->bytes : 1, PROT_READ, MAP_PRIVATE, fd, 0);
	(void)close(fd);
	if (ret->at == MAP_FAILED)
		return fail(path);
	file = rs_file_in_memory(ret->at, ret->bytes);
	if (rs_safetensors_parse(&file, &ret->st, &err) < 0) {
		(void)fprintf(stderr, "scalai: %s: %s\n", path, err.msg);
		return 1;
	}
	return 0;
}

static int compare_tensor(const struct mapped *a, const struct rs_tensor_at *x, const struct mapped *b,
			  const struct rs_tensor_at *y)
{
	char s[200], t[200];

	if (x->dtype != y->dtype || !meta_shape_equal(&x->shape, &y->shape)) {
		(void)printf("DIFFERENT\t%s\treference has %s %s, the job has %s %s\n", x->name,
			     meta_dtype_name(x->dtype), meta_shape_text(&x->shape, s, sizeof(s)),
			     meta_dtype_name(y->dtype), meta_shape_text(&y->shape, t, sizeof(t)));
		return 1;
	}
	if (memcmp(a->at + x->begin, b->at + y->begin, x->end - x->begin) != 0) {
		(void)printf("DIFFERENT\t%s\tthe bytes differ\n", x->name);
		return 1;
	}
	(void)printf("equal\t%s\n", x->name);
	return 0;
}

/* Every tensor of the reference is in the job, and of the job's files that have any of them, every
 * tensor is in the reference. */
static int verify_reference(const char *mount, const char *job, const char *reference)
{
	char path[PATH_BYTES];
	struct mapped ref = {0}, files[16] = {0};
	struct dirent *e;
	int nr = 0, bad = 0;
	DIR *d;

	if (map_file(reference, &ref))
		return 1;
	(void)snprintf(path, sizeof(path), "%s/%s/.full", mount, job);
	d = opendir(path);
	if (!d)
		return fail(path);
	while ((e = readdir(d)) && nr < 16) {
		(void)snprintf(path, sizeof(path), "%s/%s/.full/%s", mount, job, e->d_name);
		if (rs_safetensors_is(e->d_name) && map_file(path, &files[nr++]))
			return 1;
	}
	(void)closedir(d);
	for (uint32_t i = 0; i < ref.st.nr; i++) {
		const struct rs_tensor_at *x = &ref.st.tensors[i], *y = NULL;
		int k = 0;

		for (; k < nr && !y; k++)
			y = rs_safetensors_find(&files[k].st, x->name);
		if (!y)
			(void)printf("MISSING\t%s\tis not in the job\n", x->name);
		bad += y ? compare_tensor(&ref, x, &files[k - 1], y) : 1;
	}
	for (int k = 0; k < nr; k++) {
		bool any = false;

		for (uint32_t i = 0; i < files[k].st.nr; i++)
			any |= rs_safetensors_find(&ref.st, files[k].st.tensors[i].name) != NULL;
		for (uint32_t i = 0; any && i < files[k].st.nr; i++)
			if (!rs_safetensors_find(&ref.st, files[k].st.tensors[i].name)) {
				(void)printf("MISSING\t%s\tis not in the reference\n", files[k].st.tensors[i].name);
				bad++;
			}
	}
	(void)printf("%u tensors compared with '%s', %d different\n", ref.st.nr, reference, bad);
	return bad != 0;
}

int cli_verify(const char *mount, const char *job, const char *reference)
{
	char path[PATH_BYTES];
	int rc;

	if (reference)
		return verify_reference(mount, job, reference);
	rc = command(mount, job, "verify", "head\n");
	ctl_path(path, mount, job, "verify");
	if (rc == 0)
		rc = show(path, stdout);
	return rc;
}
