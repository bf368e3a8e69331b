/* SPDX-License-Identifier: Apache-2.0 */
/* `scalai fsck`: checks, mends or rebuilds a store that nobody has mounted. */
#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "fs/cli/cli.h"
#include "fs/cli/json.h"
#include "fs/cli/progress.h"
#include "meta/base/log.h"
#include "meta/base/text.h"
#include "reshard/repair/repair.h"

#define PATH_BYTES 4096

/* Moves a catalog with its write-ahead log; `to` NULL: removes it. */
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

/* Tells whether an error says that a catalog is lost: it could be read, and is no catalog, or its rows do not fit
 * together.  Any other error says nothing about the catalog. */
static bool is_lost(const struct sc_err *why)
{
	return why->code == SC_E_CORRUPT || why->code == SC_E_NOT_FOUND || why->code == SC_E_LAYOUT ||
	       why->code == SC_E_TOPOLOGY || why->code == SC_E_STATE;
}

/* Refuses to rebuild a catalog that can be read, or that may be good. */
static int begin_rebuild(struct rs_options *options, const char *database, struct sc_err *err)
{
	struct rs_service *s = NULL;
	char other[PATH_BYTES + 8];

	if (access(database, F_OK) == 0) {
		if (rs_service_new(options, &s, err) == 0) {
			rs_service_free(s);
			return sc_fail(err, SC_E_EXISTS, "the catalog '%s' can be read; move it away to rebuild it "
				"nevertheless",
				       database);
		}
		if (err->code == SC_E_BUSY)
			return err->code;
		if (!is_lost(err))
			return sc_wrap(err, err->code, "the catalog is left as it is, for it need not be lost (if it "
				       "is, move '%s' away and try again)", database);
	} else if (errno != ENOENT) {
		return sc_fail_sys(err, errno, "catalog '%s'", database);
	}
	*err = (struct sc_err){0};
	options->rebuild = true;
	(void)snprintf(other, sizeof(other), "%s.new", database);
	return move_catalog(other, NULL, err);
}

/* Puts the new catalog in its place; the old one, if there is one, stays beside it. */
static int end_rebuild(const char *database, struct sc_err *err)
{
	char other[PATH_BYTES + 8];
	int rc;

	(void)snprintf(other, sizeof(other), "%s.bad", database);
	rc = move_catalog(database, other, err);
	(void)snprintf(other, sizeof(other), "%s.new", database);
	return rc < 0 ? rc : move_catalog(other, database, err);
}

static int check_store(const char *store, struct sc_err *err)
{
	char blobs[PATH_BYTES + 8];

	(void)snprintf(blobs, sizeof(blobs), "%s/blobs/.", store);
	if (access(store, F_OK) == 0 && access(blobs, F_OK) < 0 && (errno == ENOENT || errno == ENOTDIR))
		return sc_fail(err, SC_E_COMMAND, "'%s' is no store: it has no folder 'blobs'", store);
	return access(blobs, F_OK) < 0 ? sc_fail_sys(err, errno, "store '%s'", store) : 0;
}

int cli_check_store(const char *store, struct sc_err *err)
{
	char database[PATH_BYTES];
	int rc = check_store(store, err);

	(void)snprintf(database, sizeof(database), "%s/scalai.db", store);
	if (rc == 0 && access(database, R_OK) < 0) /* a service would make it */
		rc = sc_fail_sys(err, errno, "catalog '%s' (if it is lost, 'scalai fsck --rebuild' makes a new one)",
				 database);
	return rc;
}

/* Prints an error, escaped: names in it may come from a damaged catalog, and hold anything. */
static void complain(const struct sc_err *err)
{
	char text[SC_ERR_BYTES_MAX * 4];

	(void)cli_say("%s", sc_shown(text, sizeof(text), err->msg));
}

static void no_names(void *arg)
{
	(void)arg;
}

static void no_news(void *arg, uint64_t job)
{
	(void)arg, (void)job;
}

static void on_progress(void *arg, uint64_t done, uint64_t total)
{
	(void)arg;
	cli_progress_set(done, total);
}

static const struct rs_events told = {NULL, no_names, no_news, .progress = on_progress};

int cli_fsck(const struct cli_args *args)
{
	struct rs_options options = {.quiet_worker = true, .keep_garbage = true};
	struct rs_service *s = NULL;
	struct sc_buf report = {0};
	struct sc_err err = {0};
	uint64_t bad = 0;
	bool repair = cli_value(args, "repair"), rebuild = cli_value(args, "rebuild"), json = cli_value(args, "json");
	int unprinted = 0;
	char database[PATH_BYTES];
	int rc;

	if (repair && rebuild)
		return cli_complain(args, "--repair and --rebuild do not go together");
	options.sets_newer_aside = repair;
	options.store = args->operands[0];
	(void)snprintf(database, sizeof(database), "%s/scalai.db", options.store);
	cli_progress_begin(args, rebuild ? "fsck --rebuild" : "fsck");
	cli_progress_step(rebuild ? "reading" : "checking", 0);
	if (cli_progress_is_on())
		options.events = &told;
	sc_log_level(SC_LOG_ERROR);
	rc = rebuild ? check_store(options.store, &err) : cli_check_store(options.store, &err);
	if (rc == 0 && rebuild)
		rc = begin_rebuild(&options, database, &err);
	if (rc == 0)
		rc = rs_service_new(&options, &s, &err);
	if (rc == 0)
		rc = rebuild ? rs_rebuild(s, &bad, &report, &err) : rs_fsck(s, repair, &bad, &report, &err);
	cli_progress_end(rc < 0);
	if (report.text && json)
		unprinted = cli_json_print(cli_json_rows("result\ttext", report.text));
	else if (report.text)
		(void)fputs(report.text, stdout);
	if (rc < 0)
		complain(&err);
	sc_buf_done(&report);
	rs_service_free(s);
	if (rc == 0 && rebuild && end_rebuild(database, &err) < 0) {
		complain(&err);
		rc = -1;
	}
	return rc < 0 || bad || unprinted;
}
