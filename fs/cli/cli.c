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
#include <sys/stat.h>
#include <unistd.h>

#include "fs/cli/json.h"
#include "fs/daemon/mounts.h"
#include "meta/base/log.h"
#include "meta/base/text.h"
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

int cli_end(int rc, const struct sc_err *err)
{
	char text[SC_ERR_BYTES_MAX * 4]; /* of a damaged store, say, there may be anything in it */

	if (rc < 0)
		(void)fprintf(stderr, "scalai: %s\n", sc_shown(text, sizeof(text), err->msg));
	return rc < 0;
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

int cli_check_name(const char *name)
{
	char shown[4 * SC_ERR_BYTES_MAX];
	struct sc_err err;

	if (rs_job_check_name(name, &err) == 0)
		return 0;
	(void)fprintf(stderr, "scalai: %s; 'scalai status' lists the jobs\n", sc_shown(shown, sizeof(shown), err.msg));
	return 1;
}

int cli_no_file(const char *mount, const char *job, const char *file)
{
	int errnum = errno;
	struct stat st;
	char path[4096];

	if (cli_check_mount(mount) || cli_check_name(job))
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

int cli_read_control(const char *mount, const char *job, const char *file, struct sc_buf *ret)
{
	char path[PATH_BYTES], buf[65536];
	ssize_t n;
	int fd;

	ctl_path(path, mount, job, file);
	fd = open(path, O_RDONLY | O_CLOEXEC);
	if (fd < 0)
		return cli_no_file(mount, job, file);
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

int cli_show(const char *mount, const char *job, const char *file)
{
	struct sc_buf text = {0};
	int rc = cli_read_control(mount, job, file, &text);

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
		return cli_no_file(mount, job, file);
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

/* Draws a bar on a terminal; elsewhere, as in a log, a line for each change. */
static void draw_bar(const char *job, const char *text, char said[256])
{
	const uint64_t done = number_of(text, "\nbytes_done: "), total = number_of(text, "\nbytes_total: ");
	const uint64_t rate = number_of(text, "\nbytes_per_second: ");
	const char *progress = strstr(text, "\nprogress: ");
	const double part = total ? (double)done / (double)total : 1;
	const int full = (int)(part * 40);
	char line[256], left[48] = "";

	progress = progress ? progress + 11 : "";
	if (rate && done < total)
		(void)snprintf(left, sizeof(left), ", %llu s left", (unsigned long long)((total - done) / rate + 1));
	(void)snprintf(line, sizeof(line), "%.60s: %3.0f %%  %.*s  %.1f MB/s%s", job, part * 100,
		       (int)sc_min_u64(strcspn(progress, "\n"), 100), progress, (double)rate / 1e6, left);
	if (isatty(STDOUT_FILENO))
		(void)printf("\r\033[K[%.*s%*s] %s", full, "########################################", 40 - full, "",
			     line);
	else if (strcmp(line, said) != 0)
		(void)printf("%s\n", line);
	(void)snprintf(said, 256, "%s", line);
	(void)fflush(stdout);
}

/* Follows `status` by poll(2) until the head is materialized or stopped. */
static int watch_status(const char *mount, const char *job)
{
	static char text[1 << 20];
	char path[PATH_BYTES], said[256] = "";
	bool going = true;
	int fd;

	ctl_path(path, mount, job, "status");
	fd = open(path, O_RDONLY | O_CLOEXEC);
	if (fd < 0)
		return cli_no_file(mount, job, "status");
	while (going) {
		struct pollfd p = {.fd = fd, .events = POLLIN};
		ssize_t n = pread(fd, text, sizeof(text) - 1, 0);

		if (n < 0) {
			(void)cli_fail("read", path);
			(void)close(fd);
			return 1;
		}
		text[n] = 0;
		draw_bar(job, text, said);
		going = !strstr(text, "\nprogress: done") && !strstr(text, "\nstopped: ") &&
			!strstr(text, "\nversion: none") && !strstr(text, "\ncopies: DIFFER");
		if (going)
			(void)poll(&p, 1, 1000);
	}
	if (isatty(STDOUT_FILENO))
		(void)printf("\n");
	(void)close(fd);
	return strstr(text, "\nstopped: ") || strstr(text, "\ncopies: DIFFER") ? 1 : 0;
}

/* Makes an object of the status of a job; NULL: there was a message. */
static json_t *status_of(const char *mount, const char *job)
{
	struct sc_buf text = {0};
	json_t *object = NULL;

	if (cli_read_control(mount, job, "status", &text) == 0 && !(object = cli_json_lines(text.text)))
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
		return watch ? watch_status(mount, args->operands[0]) : cli_show(mount, args->operands[0], "status");
	d = opendir(mount);
	if (!d)
		return cli_fail("list", mount);
	while ((e = readdir(d)) && rc == 0) {
		if (*e->d_name == '.')
			continue;
		rc = watch ? watch_status(mount, e->d_name) : cli_show(mount, e->d_name, "status");
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
		return mount ? cli_show(mount, args->operands[1], "data") : 1;
	rc = cli_read_control(mount, args->operands[1], "data", &text);
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
