/* SPDX-License-Identifier: Apache-2.0 */
#include "fs/cli/cli.h"

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

#include "fs/cli/json.h"
#include "fs/daemon/mounts.h"
#include "meta/base/log.h"
#include "reshard/format/format.h"
#include "reshard/job/service.h"

#define PATH_BYTES 4096

const char *cli_mount(const struct cli_args *args)
{
	static char found[PATH_BYTES];
	const char *given = cli_value(args, "mount");
	struct fs_mounts mounts = {0};
	struct sc_err err;
	int nr = 0;

	if (given)
		return given;
	if (getenv("SCALAI_MOUNT"))
		return getenv("SCALAI_MOUNT");
	if (fs_mounts_read(&mounts, &err) < 0) {
		(void)fprintf(stderr, "scalai: %s\n", err.msg);
		nr = -1;
	}
	for (size_t i = 0; nr >= 0 && i < mounts.nr; i++)
		if (fs_mounted_is_scalai(&mounts.at[i]) && nr++ == 0)
			(void)snprintf(found, sizeof(found), "%s", mounts.at[i].path);
	fs_mounts_done(&mounts);
	if (nr == 1)
		return found;
	if (nr == 0)
		(void)fprintf(stderr, "scalai: no store is mounted; 'scalai mount STORE MOUNTPOINT' mounts one\n");
	if (nr > 1)
		(void)fprintf(stderr, "scalai: %d stores are mounted; say which one with -m MOUNTPOINT or "
				      "$SCALAI_MOUNT\n", nr);
	return NULL;
}

int cli_fail(const char *verb, const char *path)
{
	(void)fprintf(stderr, "scalai: cannot %s '%s': %s\n", verb, path, strerror(errno));
	return 1;
}

static void ctl_path(char *path, const char *mount, const char *job, const char *file)
{
	(void)snprintf(path, PATH_BYTES, "%s/%s/.ctl/%s", mount, job, file);
}

int cli_check_mount(const char *mount)
{
	char path[PATH_BYTES];

	(void)snprintf(path, sizeof(path), "%s/.ctl/health", mount);
	if (access(path, R_OK) == 0)
		return 0;
	(void)fprintf(stderr, "scalai: no store is mounted at '%s' (%s); 'scalai mount STORE %s' mounts one\n", mount,
		      strerror(errno), mount);
	return 1;
}

/* Says why a control file of a job could not be opened; returns 1. */
static int no_file(const char *mount, const char *job, const char *file)
{
	int errnum = errno;
	struct stat st;
	char path[4096];

	if (cli_check_mount(mount))
		return 1;
	(void)snprintf(path, sizeof(path), "%s/%s", mount, job);
	if (errnum == ENOENT && stat(path, &st) == 0)
		(void)fprintf(stderr, "scalai: job '%s' has no '%s'; a job that nobody has committed has no version\n",
			      job, file);
	else if (errnum == ENOENT)
		(void)fprintf(stderr, "scalai: there is no job '%s' in '%s'; 'scalai status' lists the jobs\n", job,
			      mount);
	else if (errnum == EACCES || errnum == EPERM)
		(void)fprintf(stderr, "scalai: job '%s': you may not use '%s'; its owner and root may, and its group "
				      "if the job's folder is writable for the group\n", job, file);
	else
		(void)fprintf(stderr, "scalai: job '%s': cannot open '%s': %s\n", job, file, strerror(errnum));
	return 1;
}

/* Reads a control file. */
static int read_control(const char *mount, const char *job, const char *file, struct sc_buf *ret)
{
	char path[PATH_BYTES], buf[65536];
	ssize_t n;
	int fd;

	ctl_path(path, mount, job, file);
	fd = open(path, O_RDONLY | O_CLOEXEC);
	if (fd < 0)
		return no_file(mount, job, file);
	sc_buf_printf(ret, "%s", "");
	while ((n = read(fd, buf, sizeof(buf))) > 0)
		sc_buf_add(ret, buf, (size_t)n);
	if (ret->failed)
		errno = ENOMEM;
	if (n < 0 || ret->failed)
		(void)cli_fail("read", path);
	(void)close(fd);
	return n < 0 || ret->failed;
}

/* Copies a control file to stdout. */
static int show(const char *mount, const char *job, const char *file)
{
	struct sc_buf text = {0};
	int rc = read_control(mount, job, file, &text);

	if (rc == 0)
		(void)fwrite(text.text, 1, text.bytes, stdout);
	sc_buf_done(&text);
	return rc;
}

int cli_refused(const char *mount, const char *job)
{
	char path[PATH_BYTES], text[PATH_BYTES] = "";
	const char *why = strerror(errno);
	int fd;

	ctl_path(path, mount, job, "error");
	fd = open(path, O_RDONLY | O_CLOEXEC);
	if (fd >= 0 && read(fd, text, sizeof(text) - 1) > 0)
		text[strcspn(text, "\n")] = 0;
	if (fd >= 0)
		(void)close(fd);
	(void)fprintf(stderr, "scalai: job '%s': %s%s%s%s\n", job, text, *text ? " (" : "", why, *text ? ")" : "");
	return 1;
}

int cli_command(const char *mount, const char *job, const char *file, const char *text)
{
	char path[PATH_BYTES];
	int fd, bad;

	ctl_path(path, mount, job, file);
	fd = open(path, O_WRONLY | O_CLOEXEC);
	if (fd < 0)
		return no_file(mount, job, file);
	bad = write(fd, text, strlen(text)) < 0 ? cli_refused(mount, job) : 0;
	if (close(fd) < 0 && !bad)
		bad = cli_refused(mount, job);
	return bad;
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
static int watch_status(const char *mount, const char *job)
{
	static char text[1 << 20];
	char path[PATH_BYTES];
	bool going = true;
	int fd;

	ctl_path(path, mount, job, "status");
	fd = open(path, O_RDONLY | O_CLOEXEC);
	if (fd < 0)
		return no_file(mount, job, "status");
	while (going) {
		struct pollfd p = {.fd = fd, .events = POLLIN};
		ssize_t n = pread(fd, text, sizeof(text) - 1, 0);

		if (n < 0) {
			(void)cli_fail("read", path);
			(void)close(fd);
			return 1;
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

/* Makes an object of the status of a job; NULL: there was a message. */
static json_t *status_of(const char *mount, const char *job)
{
	struct sc_buf text = {0};
	json_t *object = NULL;

	if (read_control(mount, job, "status", &text) == 0 && !(object = cli_json_lines(text.text)))
		(void)cli_json_print(NULL);
	sc_buf_done(&text);
	return object;
}

/* Prints the status of a job, or (NULL) a list of those of all. */
static int json_status(const char *mount, const char *job)
{
	json_t *all = job ? status_of(mount, job) : json_array();
	DIR *d = job ? NULL : opendir(mount);
	struct dirent *e;
	bool bad = !all || (!job && !d && cli_fail("list", mount));

	while (!bad && d && (e = readdir(d)))
		if (*e->d_name != '.')
			bad = json_array_append_new(all, status_of(mount, e->d_name)) < 0;
	if (d)
		(void)closedir(d);
	if (!bad)
		return cli_json_print(all);
	json_decref(all);
	return 1;
}

int cli_status(const struct cli_args *args)
{
	const char *mount = cli_mount(args);
	bool watch = cli_value(args, "watch"), json = cli_value(args, "json");
	struct dirent *e;
	DIR *d;
	int rc = 0;

	if (watch && json)
		return cli_complain(args, "--watch and --json do not go together");
	if (!mount)
		return 1;
	if (json)
		return json_status(mount, args->nr_operands ? args->operands[0] : NULL);
	if (args->nr_operands)
		return watch ? watch_status(mount, args->operands[0]) : show(mount, args->operands[0], "status");
	d = opendir(mount);
	if (!d)
		return cli_fail("list", mount);
	while ((e = readdir(d)) && rc == 0) {
		if (*e->d_name == '.')
			continue;
		rc = watch ? watch_status(mount, e->d_name) : show(mount, e->d_name, "status");
		(void)printf("\n");
	}
	(void)closedir(d);
	return rc;
}

/* --- data --- */

/* Adds KEY="VALUE" to a line for the control file; refuses a value that can't be quoted. */
static int add_word(struct sc_buf *text, const char *key, const char *value)
{
	if (strpbrk(value, "\"\n")) {
		(void)fprintf(stderr, "scalai: '%s' has a quote or a newline\n", value);
		return 1;
	}
	sc_buf_printf(text, " %s=\"%s\"", key, value);
	return 0;
}

/* Adds an option as a word: --global-batch 8 is global_batch="8", --copy alone is copy="yes". */
static int add_option(struct sc_buf *text, const struct cli_given *g)
{
	char key[64];

	if (strcmp(g->option ? g->option->name : g->name, "mount") == 0)
		return 0;
	(void)snprintf(key, sizeof(key), "%s", g->option ? g->option->name : g->name);
	for (char *p = key; *p; p++)
		*p = *p == '-' ? '_' : *p;
	return add_word(text, key, g->value ? g->value : "yes");
}

static int add_file(struct sc_buf *text, const char *path)
{
	char *whole = realpath(path, NULL);
	int rc;

	/* the prefix of a .bin and .idx is no file of its own */
	if (!whole && errno == ENOENT && *path == '/')
		return add_word(text, "path", path);
	rc = whole ? add_word(text, "path", whole) : cli_fail("find", path);
	free(whole);
	return rc;
}

static int show_data(const struct cli_args *args)
{
	const char *mount = cli_mount(args);
	struct sc_buf text = {0};
	int rc;

	if (!mount || !cli_value(args, "json"))
		return mount ? show(mount, args->operands[1], "data") : 1;
	rc = read_control(mount, args->operands[1], "data", &text);
	if (rc == 0)
		rc = cli_json_print(cli_json_table(text.text));
	sc_buf_done(&text);
	return rc;
}

static int change_data(const struct cli_args *args)
{
	const char *mount = cli_mount(args);
	struct sc_buf line = {0};
	int rc = mount ? 0 : 1;

	sc_buf_printf(&line, "%s name=\"%s\"", args->operands[0], args->operands[2]);
	for (size_t i = 0; rc == 0 && i < args->nr_options; i++)
		rc = add_option(&line, &args->options[i]);
	for (size_t i = 3; rc == 0 && i < args->nr_operands; i++)
		rc = add_file(&line, args->operands[i]);
	sc_buf_printf(&line, "\n");
	if (rc == 0)
		rc = line.failed ? cli_fail("write", "data") : cli_command(mount, args->operands[1], "data", line.text);
	sc_buf_done(&line);
	return rc;
}

int cli_data(const struct cli_args *args)
{
	static const struct {
		const char *verb;
		size_t least, most;
	} verbs[] = {{"add", 4, SIZE_MAX}, {"remove", 3, 3}, {"refresh", 3, 3}, {"show", 2, 2}};
	const char *verb = args->operands[0];

	for (size_t i = 0; i < sizeof(verbs) / sizeof(*verbs); i++) {
		if (strcmp(verbs[i].verb, verb) != 0)
			continue;
		if (args->nr_operands < verbs[i].least)
			return cli_complain(args, "%s: missing %s", verb, args->command->operands[args->nr_operands]);
		if (args->nr_operands > verbs[i].most)
			return cli_complain(args, "%s: '%s' is one word too many", verb, args->operands[verbs[i].most]);
		return i == 3 ? show_data(args) : change_data(args);
	}
	return cli_complain(args, "'%s' is none of %s", verb, args->command->operands[0]);
}

/* --- verify --- */

#define REFERENCE_FILES 16	/* of a job that are compared with a reference */

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
		(void)fprintf(stderr, "scalai: %s: %s\n", path, err.msg);
		(void)close(fd);
		return 1;
	}
	ret->is_plain = format == &rs_format_plain;
	if (!ret->is_plain)
		ret->at = mmap(NULL, ret->bytes ? ret->bytes : 1, PROT_READ, MAP_PRIVATE, fd, 0);
	(void)close(fd);
	return ret->at == MAP_FAILED ? cli_fail("map", path) : 0;
}

static int compare_tensor(const struct mapped *a, const struct rs_found_tensor *x, const struct mapped *b,
			  const struct rs_found_tensor *y, FILE *out)
{
	char s[200], t[200];

	if (x->dtype != y->dtype || !meta_shape_equal(&x->shape, &y->shape)) {
		(void)fprintf(out, "DIFFERENT\t%s\treference has %s %s, the job has %s %s\n", x->name,
			     meta_dtype_name(x->dtype), meta_shape_text(&x->shape, s, sizeof(s)),
			     meta_dtype_name(y->dtype), meta_shape_text(&y->shape, t, sizeof(t)));
		return 1;
	}
	if (memcmp(a->at + x->at, b->at + y->at, rs_found_bytes(x)) != 0) {
		(void)fprintf(out, "DIFFERENT\t%s\tthe bytes differ\n", x->name);
		return 1;
	}
	(void)fprintf(out, "equal\t%s\n", x->name);
	return 0;
}

static void unmap_file(struct mapped *m)
{
	if (m->at && m->at != MAP_FAILED)
		(void)munmap((void *)m->at, m->bytes ? m->bytes : 1);
	rs_found_done(&m->found);
	*m = (struct mapped){0};
}

/* Maps the reference. */
static int map_reference(const char *path, struct mapped *ret)
{
	if (map_file(path, ret))
		return 1;
	if (!ret->is_plain)
		return 0;
	(void)fprintf(stderr, "scalai: %s: a reference needs the name of a file with tensors, as model.safetensors\n",
		      path);
	return 1;
}

/* Maps the job's files with tensors, whole. */
static int map_job(const char *mount, const char *job, struct mapped files[REFERENCE_FILES], int *nr)
{
	char path[PATH_BYTES];
	struct dirent *e;
	int rc = 0;
	DIR *d;

	(void)snprintf(path, sizeof(path), "%s/%s/.full", mount, job);
	d = opendir(path);
	if (!d)
		return no_file(mount, job, ".full");
	while (!rc && (e = readdir(d)) && *nr < REFERENCE_FILES) {
		(void)snprintf(path, sizeof(path), "%s/%s/.full/%s", mount, job, e->d_name);
		rc = map_file(path, &files[*nr]);
		if (!rc && files[*nr].is_plain)
			unmap_file(&files[*nr]);
		else
			++*nr;
	}
	(void)closedir(d);
	return rc;
}

/* Each tensor of the reference has to be in the job, and each tensor of the job's files that have any of them has to be
 * in the reference.  Returns how many are not, or differ. */
static int compare_files(const struct mapped *ref, const struct mapped *files, int nr, FILE *out)
{
	int bad = 0;

	for (uint32_t i = 0; i < ref->found.nr; i++) {
		const struct rs_found_tensor *x = &ref->found.tensors[i], *y = NULL;
		int k = 0;

		for (; k < nr && !y; k++)
			y = rs_found_tensor(&files[k].found, x->name);
		if (!y)
			(void)fprintf(out, "MISSING\t%s\tis not in the job\n", x->name);
		bad += y ? compare_tensor(ref, x, &files[k - 1], y, out) : 1;
	}
	for (int k = 0; k < nr; k++) {
		const struct rs_found *found = &files[k].found;
		bool any = false;

		for (uint32_t i = 0; i < found->nr; i++)
			any |= rs_found_tensor(&ref->found, found->tensors[i].name) != NULL;
		for (uint32_t i = 0; any && i < found->nr; i++)
			if (!rs_found_tensor(&ref->found, found->tensors[i].name)) {
				(void)fprintf(out, "MISSING\t%s\tis not in the reference\n", found->tensors[i].name);
				bad++;
			}
	}
	return bad;
}

/* Compares a job with a reference. */
static int verify_reference(const char *mount, const char *job, const char *reference, FILE *out)
{
	struct mapped ref = {0}, files[REFERENCE_FILES] = {0};
	int nr = 0, bad = 0, rc;

	rc = map_reference(reference, &ref);
	if (!rc)
		rc = map_job(mount, job, files, &nr);
	if (!rc)
		bad = compare_files(&ref, files, nr, out);
	if (!rc && out == stdout)
		(void)printf("%u tensors compared with '%s', %d different\n", ref.found.nr, reference, bad);
	for (int k = 0; k < nr; k++)
		unmap_file(&files[k]);
	unmap_file(&ref);
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
	int rc;

	if (!mount)
		return 1;
	if (reference)
		return json ? verify_reference_json(mount, job, reference)
			    : verify_reference(mount, job, reference, stdout);
	rc = cli_command(mount, job, "verify", "head\n");
	if (rc || !json)
		return rc ? rc : show(mount, job, "verify");
	rc = read_control(mount, job, "verify", &text);
	if (rc == 0)
		rc = cli_json_print(cli_json_rows("result\tdigest\tname", text.text));
	sc_buf_done(&text);
	return rc;
}
