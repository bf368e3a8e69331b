/* SPDX-License-Identifier: Apache-2.0 */
#include "meta/base/log.h"

#include <errno.h>
#include <fcntl.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <syslog.h>
#include <time.h>
#include <unistd.h>

#include "meta/base/sys.h"
#include "meta/base/text.h"

static int fd_ = STDERR_FILENO;
static bool to_syslog_;
static enum sc_log_level level_max_ = SC_LOG_INFO;

void sc_log_level(enum sc_log_level level_max)
{
	level_max_ = level_max;
}

int sc_log_to_file(const char *path, struct sc_err *err)
{
	int fd = open(path, O_WRONLY | O_APPEND | O_CREAT | O_CLOEXEC | O_NOCTTY, 0600);

	if (fd < 0)
		return sc_fail_sys(err, errno, "cannot open the log '%s'", path);
	fd_ = fd;
	return 0;
}

void sc_log_to_syslog(void)
{
	to_syslog_ = true;
	openlog("scalai", LOG_PID, LOG_DAEMON);
}

/* Writes a line with its newline in one write, so that lines of two processes do not mix. */
static void write_line(const char *level, const char *text)
{
	char line[2200], when[64] = "";
	time_t now = time(NULL);
	struct tm tm;
	int n;

	if (fd_ != STDERR_FILENO && gmtime_r(&now, &tm))
		(void)snprintf(when + strftime(when, 32, "%Y-%m-%dT%H:%M:%SZ ", &tm), 32, "[%d] ", (int)getpid());
	n = snprintf(line, sizeof(line), "%sscalai: %s: %s\n", when, level, text);
	(void)!write(fd_, line, (size_t)n);
}

void sc_log(enum sc_log_level level, const char *fmt, ...)
{
	static const int priority[] = {LOG_ERR, LOG_WARNING, LOG_INFO, LOG_DEBUG};
	static const char *const name[] = {"error", "warn", "info", "debug"};
	char text[2048];
	va_list ap;

	if (level > level_max_)
		return;
	va_start(ap, fmt);
	(void)vsnprintf(text, sizeof(text), fmt, ap);
	va_end(ap);
	sc_show(text, sizeof(text));
	if (to_syslog_)
		syslog(priority[level], "%s", text);
	else
		write_line(name[level], text);
}

static char *append(char *to, const char *text)
{
	while (*text)
		*to++ = *text++;
	return to;
}

void sc_log_death(int signal)
{
	static const struct sockaddr_un log = {.sun_family = AF_UNIX, .sun_path = "/dev/log"};
	const char *name = sigabbrev_np(signal);
	char line[64], *end = append(line, to_syslog_ ? "<27>" : ""); /* LOG_DAEMON | LOG_ERR */
	int fd = to_syslog_ ? socket(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC, 0) : fd_;

	end = append(append(append(end, "scalai: error: ended by SIG"), name ? name : "?"), "\n");
	if (to_syslog_)
		(void)!sendto(fd, line, (size_t)(end - line), MSG_NOSIGNAL | MSG_DONTWAIT,
			      (const struct sockaddr *)&log, sizeof(log));
	else
		(void)!write(fd, line, (size_t)(end - line));
}
