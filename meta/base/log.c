/* SPDX-License-Identifier: Apache-2.0 */
#include "meta/base/log.h"

#include <stdarg.h>
#include <stdio.h>
#include <syslog.h>

static bool to_syslog_;
static enum sc_log_level level_max_ = SC_LOG_INFO;

void sc_log_open(bool to_syslog, enum sc_log_level level_max)
{
	to_syslog_ = to_syslog;
	level_max_ = level_max;
	if (to_syslog)
		openlog("scalai", LOG_PID, LOG_DAEMON);
}

void sc_log(enum sc_log_level level, const char *fmt, ...)
{
	static const int priority[] = {LOG_ERR, LOG_WARNING, LOG_INFO, LOG_DEBUG};
	static const char *const name[] = {"error", "warn", "info", "debug"};
	char line[2048];
	va_list ap;

	if (level > level_max_)
		return;
	va_start(ap, fmt);
	(void)vsnprintf(line, sizeof(line), fmt, ap);
	va_end(ap);
	if (to_syslog_)
		syslog(priority[level], "%s", line);
	else
		(void)fprintf(stderr, "scalai: %s: %s\n", name[level], line);
}
