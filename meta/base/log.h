/* SPDX-License-Identifier: Apache-2.0 */
/*
 * One line a message, to stderr in the foreground and to syslog(3) as a daemon.  Rooms return
 * errors; only the edges (fs/reply.c, reshard/job, main) log them.
 */
#ifndef SC_LOG_H
#define SC_LOG_H

#include <stdbool.h>

enum sc_log_level { SC_LOG_ERROR, SC_LOG_WARN, SC_LOG_INFO, SC_LOG_DEBUG };

void sc_log_open(bool to_syslog, enum sc_log_level level_max);
void sc_log(enum sc_log_level level, const char *fmt, ...) __attribute__((format(printf, 2, 3)));

#endif
