/* SPDX-License-Identifier: Apache-2.0 */
/* `scalai status`: what `status` says, as text or JSON, or (-w) how far the work on a job is. */
#include <dirent.h>
#include <fcntl.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "fs/cli/cli.h"
#include "fs/cli/json.h"
#include "fs/cli/progress.h"

#define PATH_BYTES 4096
#define HEALTH_BYTES 4096
#define BAR 40			/* columns of the bar */

/* --- how far it is --- */

/* Work that goes on, as lines of a control file say. */
struct work {
	char what[128];
	uint64_t done, total, rate;
};

static uint64_t number_of(const char *text, const char *prefix, const char *key)
{
	char line[64];
	const char *at;

	(void)snprintf(line, sizeof(line), "\n%s%s: ", prefix, key);
	at = strstr(text, line);
	return at ? strtoull(at + strlen(line), NULL, 10) : 0;
}

/* Reads the lines bytes_done, bytes_total and bytes_per_second, with `prefix` before them, and what is done from the
 * line `key`.  Returns false if there is nothing of it. */
static bool find_work(const char *text, const char *prefix, const char *key, struct work *ret)
{
	const char *at = strstr(text, key);

	ret->done = number_of(text, prefix, "bytes_done");
	ret->total = number_of(text, prefix, "bytes_total");
	ret->rate = number_of(text, prefix, "bytes_per_second");
	at = at ? at + strlen(key) : "";
	(void)snprintf(ret->what, sizeof(ret->what), "%.*s", (int)sc_min_u64(strcspn(at, "\n"), 100), at);
	return at[0];
}

/* Finds what is done for a job: by the background, or by the command `verify` if the background has nothing to do. */
static bool find_job_work(const char *text, struct work *ret)
{
	struct work verify;

	(void)find_work(text, "", "\nprogress: ", ret);
	if (!ret->total && find_work(text, "verify_", "\nverify: ", &verify)) {
		*ret = verify;
		(void)snprintf(ret->what, sizeof(ret->what), "verify of %s", verify.what);
	}
	return ret->total;
}

/* Reads a text; it is empty if there is none. */
static void read_text(const char *path, char *text, size_t room)
{
	const int fd = open(path, O_RDONLY | O_CLOEXEC);
	ssize_t n, bytes = 0;

	while (fd >= 0 && (n = read(fd, text + bytes, room - 1 - (size_t)bytes)) > 0)
		bytes += n;
	text[bytes] = 0;
	if (fd >= 0)
		(void)close(fd);
}

void cli_watch_verify(const char *mount, const char *job)
{
	static char text[1 << 16];
	char path[PATH_BYTES];
	struct work work;

	(void)snprintf(path, sizeof(path), "%s/%s/.ctl/status", mount, job);
	read_text(path, text, sizeof(text));
	if (find_work(text, "verify_", "\nverify: ", &work))
		cli_progress_set(work.done, work.total);
	else
		cli_progress_add(0);
}

/* Adds how far scrubbing is, which is the mount's and no job's. */
static void add_scrub(const char *mount, char *line, size_t room)
{
	char path[PATH_BYTES], text[HEALTH_BYTES], far[CLI_PROGRESS_BYTES];
	const size_t bytes = strlen(line);
	struct work work;

	(void)snprintf(path, sizeof(path), "%s/.ctl/health", mount);
	read_text(path, text, sizeof(text));
	if (!find_work(text, "scrub_", "\nscrub: ", &work) || !work.total)
		return;
	cli_progress_text(far, "scrubbing", work.done, work.total, (double)work.rate, 0);
	(void)snprintf(line + bytes, room - bytes, "; the store: %s", far);
}

/* Draws a bar on a terminal; elsewhere, as in a log, a line for each change. */
static void draw_bar(const char *mount, const char *job, const char *text, char said[2 * CLI_PROGRESS_BYTES])
{
	char line[2 * CLI_PROGRESS_BYTES], far[CLI_PROGRESS_BYTES];
	struct work work;
	int full = BAR;

	if (find_job_work(text, &work)) {
		full = (int)(sc_min_u64(work.done, work.total) * BAR / work.total);
		cli_progress_text(far, work.what, work.done, work.total, (double)work.rate, 0);
	} else {
		(void)snprintf(far, sizeof(far), "100 %%, %s", work.what);
	}
	(void)snprintf(line, sizeof(line), "%.60s: %s", job, far);
	add_scrub(mount, line, sizeof(line));
	if (isatty(STDOUT_FILENO))
		(void)printf("\r\033[K[%.*s%*s] %s", full, "########################################", BAR - full, "",
			     line);
	else if (strcmp(line, said) != 0)
		(void)printf("%s\n", line);
	(void)snprintf(said, sizeof(line), "%s", line);
	(void)fflush(stdout);
}

/* Tells whether there is work that will end. */
static bool is_going(const char *text)
{
	return strstr(text, "\nverify: ") ||
	       (!strstr(text, "\nprogress: done") && !strstr(text, "\nstopped: ") &&
		!strstr(text, "\nversion: none") && !strstr(text, "\ncopies: DIFFER"));
}

/* Follows `status` by poll(2) until the head is materialized or stopped. */
static int watch_status(const char *mount, const char *job)
{
	static char text[1 << 20];
	char path[PATH_BYTES], said[2 * CLI_PROGRESS_BYTES] = "";
	bool going = true;
	int fd;

	(void)snprintf(path, sizeof(path), "%s/%s/.ctl/status", mount, job);
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
		draw_bar(mount, job, text, said);
		going = is_going(text);
		if (going)
			(void)poll(&p, 1, 1000);
	}
	if (isatty(STDOUT_FILENO))
		(void)printf("\n");
	(void)close(fd);
	return strstr(text, "\nstopped: ") || strstr(text, "\ncopies: DIFFER") ? 1 : 0;
}

/* --- what it is --- */

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
