/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The log: a line for each message, escaped as by sc_shown(), to stderr, a file or syslog(3).  Rooms return errors;
 * only the edges (fs/request/reply.c, reshard/service, main) log them.
 */
#ifndef SC_LOG_H
#define SC_LOG_H

#include "meta/base/err.h"

enum sc_log_level { SC_LOG_ERROR, SC_LOG_WARN, SC_LOG_INFO, SC_LOG_DEBUG };

void sc_log_level(enum sc_log_level level_max);
/** Appends to the file `path`, each line with time and pid. */
int sc_log_to_file(const char *path, struct sc_err *err);
void sc_log_to_syslog(void);

void sc_log(enum sc_log_level level, const char *fmt, ...) __attribute__((format(printf, 2, 3)));

/** Logs that a signal ends this process.  For signal handlers: async-signal-safe. */
void sc_log_death(int signal);

#endif
