/* SPDX-License-Identifier: Apache-2.0 */
/* `scalai cluster`: the way out where etcd has lost its data. */
#include <stdio.h>
#include <string.h>

#include "fs/cli/cli.h"
#include "fs/daemon/mount.h"
#include "meta/base/log.h"
#include "meta/base/text.h"
#include "reshard/service/service.h"
#ifdef FS_HAS_CLUSTER
#include "reshard/cluster/node/restore.h"

static int backup(const struct cli_args *args)
{
	struct rs_options options = {.quiet_worker = true, .keep_garbage = true, .store = args->operands[1]};
	struct rs_service *s = NULL;
	struct sc_err err = {0};
	int rc;

	if (args->nr_operands != 2 || args->nr_options)
		return cli_complain(args, "backup takes one STORE, and no option");
	sc_log_level(SC_LOG_ERROR);
	rc = cli_check_store(options.store, &err);
	if (rc == 0)
		rc = rs_service_new(&options, &s, &err);
	if (rc == 0)
		rc = rs_backup_print(s, stdout, &err);
	rs_service_free(s);
	return cli_end(rc, &err);
}

static int rebuild(const struct cli_args *args)
{
	const char *text = cli_value(args, "o");
	struct fs_mount_options options = {.io_uring = false};
	struct sc_buf report = {0};
	struct sc_err err = {0};
	int rc;

	if (!text)
		return cli_complain(args, "rebuild needs -o cluster=NAME,etcd=URL");
	rc = fs_etcd_option(&options, text, &err);
	if (rc == 0)
		rc = rs_backup_restore(&options.member, args->operands + 1, args->nr_operands - 1,
				       cli_value(args, "replace") != NULL, &report, &err);
	if (report.text)
		(void)fputs(report.text, stdout);
	sc_buf_done(&report);
	return cli_end(rc, &err);
}

int cli_cluster(const struct cli_args *args)
{
	if (strcmp(args->operands[0], "show") == 0 && args->nr_operands == 1)
		return cli_nodes(args);
	if (strcmp(args->operands[0], "backup") == 0)
		return backup(args);
	if (strcmp(args->operands[0], "rebuild") == 0)
		return rebuild(args);
	return cli_complain(args, "'%s': there are show, backup and rebuild", args->operands[0]);
}
#else

int cli_cluster(const struct cli_args *args)
{
	(void)args;
	(void)fprintf(stderr, "scalai: this scalai was built without libcurl and libcrypto, and knows no clusters\n");
	return 1;
}
#endif
