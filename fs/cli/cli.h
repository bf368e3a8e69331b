/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Subcommands.  Those against a live mount are thin layers over its files: each does what a script could do with mkdir,
 * echo, cat and cp.  All return the process's exit status.
 */
#ifndef FS_CLI_H
#define FS_CLI_H

#include "fs/cli/args.h"
#include "meta/base/err.h"
#include "meta/base/mem.h"

int cli_status(const struct cli_args *args);
int cli_import(const struct cli_args *args);
int cli_data(const struct cli_args *args);
int cli_verify(const struct cli_args *args);
int cli_clone(const struct cli_args *args);
int cli_delete(const struct cli_args *args);
/** Check, mend or rebuild a store that nobody has mounted. */
int cli_fsck(const struct cli_args *args);
/** Say what the machine has of what a mount can use; 1: it cannot mount. */
int cli_doctor(const struct cli_args *args);
/** Check that a folder is a store with a catalog that can be read. */
int cli_check_store(const char *store, struct sc_err *err);
/** Print a store's backup of a cluster's keys, or make etcd's keys anew from backups. */
int cli_cluster(const struct cli_args *args);

/** Show the nodes of a mount's cluster, or, with an operand, its cluster; have a node emptied. */
int cli_nodes(const struct cli_args *args);
int cli_drain(const struct cli_args *args);

/** Find the mount that was named, by option or environment, or the only one there is; NULL after a message. */
const char *cli_mount(const struct cli_args *args);
/** Say that no store is mounted at a path, if none is; returns 1 then, else 0. */
int cli_check_mount(const char *mount);
/** Say why a control file of a job could not be opened, by errno; returns 1. */
int cli_no_file(const char *mount, const char *job, const char *file);
/** Read a control file of a job; returns 1 after a message. */
int cli_read_control(const char *mount, const char *job, const char *file, struct sc_buf *ret);
/** Copy a control file of a job to stdout; returns 1 after a message. */
int cli_show(const char *mount, const char *job, const char *file);
/** Write a command to a control file of a job; a refusal is explained by the job's `error`. */
int cli_command(const char *mount, const char *job, const char *file, const char *text);
/** Does so, and calls `look` twice a second meanwhile if somebody is told how far it is (fs/cli/progress.h). */
int cli_command_watched(const char *mount, const char *job, const char *file, const char *text,
			void (*look)(const char *mount, const char *job));
/** Tells how far the command `verify` of a job is, as its `status` says; `look` of cli_command_watched(). */
void cli_watch_verify(const char *mount, const char *job);
/** Say what could not be done ("read", "make"...) with a path, and why by errno; returns 1. */
int cli_fail(const char *verb, const char *path);
/** Says "scalai: " and a sentence on stderr, in a line of its own; returns 1. */
int cli_say(const char *fmt, ...) __attribute__((format(printf, 1, 2)));
/** Tell whether a file says, by its name, in which files the tensors of a model are. */
bool cli_is_index(const char *path);
/** Check that the files that an index names are beside it, with the tensors that it says; returns 1 after a message. */
int cli_check_index(const char *index);
/** Do so, and call `each` with the path of each of these files until it returns 1. */
int cli_each_shard(const char *index, int (*each)(void *arg, const char *path), void *arg);
/** Check that a word is the name of a job; returns 1 after a message. */
int cli_check_name(const char *name);
/** Join the files that an index names into one, of the index's name without .index.json, in a folder; returns 1 after a
 *  message. */
int cli_join(const char *index, const char *folder);
/** Join the files NAME-00001-of-00003.safetensors of a folder into NAME.safetensors in another; NULL: only check that
 *  all are there, and no tensor in two of them; returns 1 after a message. */
int cli_join_shards(const char *from, const char *to);
/** Say on stderr why a program ends, if `rc` is an error; returns its exit status. */
int cli_end(int rc, const struct sc_err *err);
/** Say why a job refused something, by its `error` and errno; returns 1. */
int cli_refused(const char *mount, const char *job);

#endif
