/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Subcommands against a live mount.  Each is a thin layer over the files of the mount: it does what
 * a script could do with mkdir, echo, cat and cp.  They return the process's exit status.
 */
#ifndef FS_CLI_H
#define FS_CLI_H

/** The mount: `given`, $SCALAI_MOUNT, or the only one there is; NULL after a message. */
const char *cli_mount(const char *given);
int cli_status(const char *mount, const char *job, int watch);

struct cli_import {
	const char *mount, *job, *from, *topology, *layout, *step, *note;
};
int cli_import(const struct cli_import *import);
/** `data ...`: argv[0] is "data". -1: wrong usage. */
int cli_data(int argc, char **argv);
/** `fsck [--repair] STORE`, of a store that nobody has mounted. -1: wrong usage. */
int cli_fsck(int argc, char **argv);
int cli_verify(const char *mount, const char *job, const char *reference);

#endif
