/* SPDX-License-Identifier: Apache-2.0 */
/* Names and modes of control files. */
#include "fs/fs_i.h"

#include <string.h>

/* in the order of enum control of control.c: numbers in nodeids */
const char *const fs_control_names[] = {"topology", "layout", "commit", "discard", "rollback", "versions", "status",
					"wait", "plan", "error", "config", "verify", "data", "diff", NULL};
static const mode_t modes[] = {0644, 0644, 0200, 0200, 0200, 0644, 0444, 0666, 0666, 0444, 0644, 0644, 0644, 0666};

const char *const fs_top_names[] = {"metrics", "health", "version", NULL};

int fs_control_find(bool top, const char *name)
{
	const char *const *names = top ? fs_top_names : fs_control_names;

	for (int i = 0; names[i]; i++)
		if (strcmp(names[i], name) == 0)
			return i;
	return -1;
}

mode_t fs_control_mode(mode_t job, uint32_t index)
{
	return modes[index] | (job & 0020 ? (modes[index] & 0200) >> 3 : 0);
}
