/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Two more control files, as a later kind would add them: `mirror` answers what it is written backwards, `changes` holds
 * a request until the job has had so many more changes.  Linking this file adds them.
 */
#include "reshard/service/control.h"

#include <stdlib.h>
#include <string.h>

static int write_mirror(const struct rs_caller *who, struct rs_job *job, const char *text, struct sc_buf *answer,
			uint64_t *ret_held, struct sc_err *err)
{
	size_t n = strcspn(text, "\n");

	(void)job, (void)ret_held;
	if (n == 0 || text[n + (text[n] == '\n')])
		return sc_fail(err, SC_E_COMMAND, "mirror: write one line");
	sc_buf_printf(answer, "%u: ", (unsigned)who->uid);
	while (n--)
		sc_buf_add(answer, text + n, 1);
	sc_buf_add(answer, "\n", 1);
	return 0;
}

static int write_changes(const struct rs_caller *who, struct rs_job *job, const char *text, struct sc_buf *answer,
			 uint64_t *ret_held, struct sc_err *err)
{
	char *end;
	unsigned long nr = strtoul(text, &end, 10);

	(void)who, (void)answer;
	if (end == text || *text == '-' || (*end && strcmp(end, "\n") != 0))
		return sc_fail(err, SC_E_COMMAND, "changes: write a number");
	*ret_held = rs_job_news(job) + nr;
	return 0;
}

static int held_changes(struct rs_job *job, uint64_t held, struct sc_err *err)
{
	if (rs_job_is_removed(job))
		return sc_fail(err, SC_E_STALE, "changes: the job is removed");
	return rs_job_news(job) >= held;
}

static const struct rs_control mirror = {
	.name = "mirror", .nr = 1000, .mode = 0666, .flags = RS_CTL_ANSWER,
	.write = write_mirror,
};
static const struct rs_control changes = {
	.name = "changes", .nr = 1001, .mode = 0622, .flags = RS_CTL_HELD, .bytes_max = 16,
	.write = write_changes, .held = held_changes,
};
static const struct rs_control *const rows[] = {&mirror, &changes, NULL};

__attribute__((constructor)) static void add_rows(void)
{
	rs_controls_extra = rows;
}
