/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A table of all commands and changes of a job, in an order in which each does something, and what a job is, as text:
 * tests refuse each in some way, and compare the job with itself before, and with a reference job that was given the
 * same commands.  Without a mount.
 */
#ifndef TEST_COMMANDS_H
#define TEST_COMMANDS_H

#include "reshard/service/service.h"

typedef int command_fn(struct rs_job *job, const char *text, struct sc_err *err);

struct command {
	const char *what;
	command_fn *run;
	const char *text;
};

extern char dir[64];			/* of the store; a test fills it */
extern struct rs_service *service;
extern const struct command commands[];	/* one without `run` ends them */

/* in the background, for all jobs: what they have done when something fails, they have done */
command_fn do_work, do_scrub;
command_fn do_tag, do_add_data, do_create;

/** Starts a service in `dir`. */
void start_service(void);
void restart_service(struct rs_job **job, struct rs_job **reference);
/** The rows of a job, as another program sees them: none of them has a number that another job's would not have. */
char *rows_of(uint64_t job);
/** What topology, config, data and status say. */
char *status_of(struct rs_job *job);
/** Fails the test, with both texts, where they differ. */
void expect_text(const char *got, const char *want, const char *what, long n, const struct sc_err *err);
/** Fails the test if fsck finds anything. */
void check_store(void);

#endif
