/* SPDX-License-Identifier: Apache-2.0 */
#include "fs/cli/cli.h"

#include <errno.h>
#include <fcntl.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "fs/cli/json.h"
#include "fs/cli/progress.h"
#include "fs/daemon/mounts.h"
#include "meta/base/log.h"
#include "meta/base/text.h"
#include "meta/base/thread.h"
#include "reshard/service/service.h"

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
	return cli_say("cannot %s '%s': %s", verb, path, strerror(errno));
}

int cli_say(const char *fmt, ...)
{
	va_list ap;

	cli_progress_hide();
	(void)fputs("scalai: ", stderr);
	va_start(ap, fmt);
	(void)vfprintf(stderr, fmt, ap);
	va_end(ap);
	(void)fputs("\n", stderr);
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
	return cli_say("no store is mounted at '%s' (%s); 'scalai mount STORE %s' mounts one", mount, strerror(errno),
		       mount);
}

int cli_check_name(const char *name)
{
	char shown[4 * SC_ERR_BYTES_MAX];
	struct sc_err err;

	if (rs_job_check_name(name, &err) == 0)
		return 0;
	return cli_say("%s; 'scalai status' lists the jobs", sc_shown(shown, sizeof(shown), err.msg));
}

int cli_no_file(const char *mount, const char *job, const char *file)
{
	int errnum = errno;
	struct stat st;
	char path[4096];

	if (cli_check_mount(mount) || (errnum != ENOTSUP && cli_check_name(job)))
		return 1;
	if (errnum == ENOTSUP)
		return cli_say("the mount at '%s' is no node of a cluster", mount);
	(void)snprintf(path, sizeof(path), "%s/%s", mount, job);
	if (errnum == ENOENT && stat(path, &st) == 0)
		return cli_say("job '%s' has no '%s'; a job that nobody has committed has no version", job, file);
	if (errnum == ENOENT)
		return cli_say("there is no job '%s' in '%s'; 'scalai status' lists the jobs", job, mount);
	if (errnum == EACCES || errnum == EPERM)
		return cli_say("job '%s': you may not use '%s'; its owner and root may, and its group if the job's "
			       "folder is writable for the group", job, file);
	return cli_say("job '%s': cannot open '%s': %s", job, file, strerror(errnum));
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
	return cli_say("job '%s': %s%s%s%s", job, text, *text ? " (" : "", why, *text ? ")" : "");
}

/* Writes to a control file; returns an errno. */
static int write_control(const char *path, const char *text, bool *ret_opened)
{
	const int fd = open(path, O_WRONLY | O_CLOEXEC);
	int errnum = 0;

	*ret_opened = fd >= 0;
	if (fd < 0)
		return errno;
	if (write(fd, text, strlen(text)) < 0)
		errnum = errno;
	if (close(fd) < 0 && !errnum)
		errnum = errno;
	return errnum;
}

static int say_written(const char *mount, const char *job, const char *file, bool opened, int errnum)
{
	errno = errnum;
	return !errnum ? 0 : opened ? cli_refused(mount, job) : cli_no_file(mount, job, file);
}

int cli_command(const char *mount, const char *job, const char *file, const char *text)
{
	char path[PATH_BYTES];
	bool opened;
	int errnum;

	ctl_path(path, mount, job, file);
	errnum = write_control(path, text, &opened);
	return say_written(mount, job, file, opened, errnum);
}

/* --- a command that takes long --- */

#define LOOK_NS 500000000

struct writing {
	const char *path, *text;
	bool opened, is_done;
	int errnum;
	pthread_mutex_t lock;
	pthread_cond_t done;
};

static void *write_thread(void *arg)
{
	struct writing *w = arg;
	bool opened;
	const int errnum = write_control(w->path, w->text, &opened);

	(void)pthread_mutex_lock(&w->lock);
	w->opened = opened;
	w->errnum = errnum;
	w->is_done = true;
	(void)pthread_cond_signal(&w->done);
	(void)pthread_mutex_unlock(&w->lock);
	return NULL;
}

int cli_command_watched(const char *mount, const char *job, const char *file, const char *text,
			void (*look)(const char *mount, const char *job))
{
	struct writing w = {.text = text, .lock = PTHREAD_MUTEX_INITIALIZER, .done = PTHREAD_COND_INITIALIZER};
	struct sc_thread thread = {0};
	char path[PATH_BYTES];
	struct sc_err err;
	int64_t next = sc_now_ns();

	ctl_path(path, mount, job, file);
	w.path = path;
	if (!cli_progress_is_on())
		return cli_command(mount, job, file, text);
	if (sc_thread_start(&thread, "scalai-command", write_thread, &w, &err) < 0)
		return cli_say("%s", err.msg);
	(void)pthread_mutex_lock(&w.lock);
	while (!w.is_done) {
		next += LOOK_NS;
		if (sc_sys.wait_until(&w.done, &w.lock, next) != ETIMEDOUT || w.is_done)
			continue;
		(void)pthread_mutex_unlock(&w.lock);
		look(mount, job);
		(void)pthread_mutex_lock(&w.lock);
	}
	(void)pthread_mutex_unlock(&w.lock);
	sc_thread_join(&thread);
	return say_written(mount, job, file, w.opened, w.errnum);
}

/* --- data --- */

/* Adds KEY="VALUE" to a line for the control file; refuses a value that can't be quoted. */
static int add_word(struct sc_buf *text, const char *key, const char *value)
{
	if (strpbrk(value, "\"\n"))
		return cli_say("'%s' has a quote or a newline", value);
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
