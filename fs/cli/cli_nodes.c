/* SPDX-License-Identifier: Apache-2.0 */
/* `scalai nodes`, `drain` and `cluster show`: the control files of a mount that is a node of a cluster. */
#include <errno.h>
#include <stdio.h>
#include <string.h>

#include "fs/cli/cli.h"
#include "fs/cli/json.h"

/* Puts tabs between columns: of "NUMBER NAME ADDRESS STATE", where a state has blanks, or of "WHAT: VALUE". */
static void put_tabs(char *to, const char *from, bool is_table)
{
	for (int blanks = 0; (*to = *from); to++, from++) {
		blanks = *from == '\n' ? 0 : blanks + (*from == ' ');
		if (is_table && *from == ' ' && blanks <= 3)
			*to = '\t';
		else if (!is_table && strncmp(from, ": ", 2) == 0)
			*to = *from++ ? '\t' : 0;
	}
}

int cli_nodes(const struct cli_args *args)
{
	const bool is_table = !args->nr_operands, json = cli_value(args, "json"); /* no table: `cluster show` */
	const char *names = is_table ? "number\tname\taddress\tstate" : "what\tvalue", *mount = cli_mount(args);
	struct sc_buf text = {0};
	int rc = !mount || cli_read_control(mount, ".", is_table ? "nodes" : "cluster", &text);

	if (rc == 0 && json)
		put_tabs(text.text, text.text, is_table);
	if (rc == 0)
		rc = json ? cli_json_print(cli_json_rows(names, text.text)) : fputs(text.text, stdout) < 0;
	sc_buf_done(&text);
	return rc;
}

int cli_drain(const struct cli_args *args)
{
	const char *mount = cli_mount(args), *node = args->operands[0];
	char path[4096];
	FILE *f;

	if (!mount || cli_check_mount(mount))
		return 1;
	(void)snprintf(path, sizeof(path), "%s/.ctl/drain", mount);
	f = fopen(path, "we");
	if (f && fprintf(f, "%s%s", cli_value(args, "back") ? "-" : "", node) >= 0 && fclose(f) == 0)
		return 0;
	return cli_say("drain '%s': %s; 'scalai nodes' lists the nodes of the cluster", node,
		       errno == ENOENT	 ? "the cluster has no node of this name"
		       : errno == EBUSY	 ? "no node would be left that keeps copies; mount another one first"
		       : errno == ENOTSUP ? "this mount is no node of a cluster" : strerror(errno));
}
