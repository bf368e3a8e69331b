/* SPDX-License-Identifier: Apache-2.0 */
/* `scalai fsck`: a store that nobody has mounted. */
#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "fs/cli.h"
#include "meta/base/log.h"
#include "reshard/job/service.h"

#define PATH_BYTES 4096

/* With its write-ahead log; `to` NULL: it is removed. */
static int move_catalog(const char *from, const char *to, struct sc_err *err)
{
	static const char *const parts[] = {"", "-wal", "-shm"};

	for (size_t i = 0; i < sizeof(parts) / sizeof(*parts); i++) {
		char a[PATH_BYTES + 16], b[PATH_BYTES + 16];

		(void)snprintf(a, sizeof(a), "%s%s", from, parts[i]);
		if (to)
			(void)snprintf(b, sizeof(b), "%s%s", to, parts[i]);
		if ((to ? rename(a, b) : unlink(a)) < 0 && errno != ENOENT)
			return sc_fail_sys(err, errno, "cannot move '%s'", a);
	}
	return 0;
}

/* One that can be read is not made anew. */
static int begin_rebuild(struct rs_options *options, const char *database, struct sc_err *err)
{
	struct rs_service *s = NULL;
	char other[PATH_BYTES + 8];
	int rc;

	if (access(options->store, F_OK) < 0)
		return sc_fail_sys(err, errno, "store '%s'", options->store);
	if (access(database, F_OK) == 0 && rs_service_new(options, &s, err) == 0) {
		rs_service_free(s);
		return sc_fail(err, SC_E_EXISTS, "'%s' can be read: move it away if you want another one", database);
	}
	if (err->code == SC_E_BUSY)
		return err->code;
	*err = (struct sc_err){0};
	options->rebuild = true;
	(void)snprintf(other, sizeof(other), "%s.bad", database);
	rc = move_catalog(database, other, err);
	(void)snprintf(other, sizeof(other), "%s.new", database);
	return rc < 0 ? rc : move_catalog(other, NULL, err);
}

static int end_rebuild(const char *database, struct sc_err *err)
{
	char other[PATH_BYTES + 8];

	(void)snprintf(other, sizeof(other), "%s.new", database);
	return move_catalog(other, database, err);
}

int cli_fsck(const struct cli_args *args)
{
	struct rs_options options = {.quiet_worker = true, .keep_garbage = true};
	struct rs_service *s = NULL;
	struct sc_buf report = {0};
	struct sc_err err = {0};
	uint64_t bad = 0;
	bool repair = cli_value(args, "repair"), rebuild = cli_value(args, "rebuild");
	char database[PATH_BYTES];
	int rc;

	if (repair && rebuild)
		return cli_complain(args, "--repair and --rebuild do not go together");
	options.store = args->operands[0];
	(void)snprintf(database, sizeof(database), "%s/scalai.db", options.store);
	if (!rebuild && access(database, R_OK) < 0)
		return cli_fail(database); /* a service would make it */
	sc_log_level(SC_LOG_ERROR);
	rc = rebuild ? begin_rebuild(&options, database, &err) : 0;
	if (rc == 0)
		rc = rs_service_new(&options, &s, &err);
	if (rc == 0)
		rc = rebuild ? rs_rebuild(s, &bad, &report, &err) : rs_fsck(s, repair, &bad, &report, &err);
	if (report.text)
		(void)fputs(report.text, stdout);
	if (rc < 0)
		(void)fprintf(stderr, "scalai: %s\n", err.msg);
	sc_buf_done(&report);
	rs_service_free(s);
	if (rc == 0 && rebuild && end_rebuild(database, &err) < 0) {
		(void)fprintf(stderr, "scalai: %s\n", err.msg);
		rc = -1;
	}
	return rc < 0 || bad;
}
