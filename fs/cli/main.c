/* SPDX-License-Identifier: Apache-2.0 */
/* The command line: `scalai SUBCOMMAND ...`, and mount(8)'s helper `mount.fuse.scalai`. */
#include <malloc.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "fs/cli/args.h"
#include "fs/cli/cli.h"
#include "fs/daemon/mount.h"
#include "fs/daemon/mounts.h"
#include "meta/base/text.h"

/* Keeps some freed memory on top of each heap.  By default 128 KiB stay, and the rest is given back to the kernel and
 * faulted in again for each file that is parsed: a third of the time that this takes (docs/benchmarks/changes.md). */
static void keep_heaps(void)
{
	(void)mallopt(M_TRIM_THRESHOLD, 2 << 20);
	(void)mallopt(M_MMAP_THRESHOLD, 512 << 10); /* the first call has ended its adjustment */
}

static int run_mount(const struct cli_args *args)
{
	struct fs_mount_options o = {.store = args->operands[0], .mountpoint = args->operands[1], .argv = args->argv,
				     .foreground = cli_value(args, "f") || cli_value(args, "d"),
				     .debug = cli_value(args, "d"), .scrub_s = 30 * 86400, .scrub_mib_s = 64,
				     .gpu = rs_gpu_options_default()};
	struct sc_err err;

	for (size_t i = 0; i < args->nr_options; i++)
		if (args->options[i].option->letter == 'o' && fs_mount_option(&o, args->options[i].value, &err) < 0)
			return cli_end(err.code, &err);
	keep_heaps();
	rs_gpu_configure(&o.gpu);
	return cli_end(fs_mount(&o, &err), &err);
}

/* Seconds for which an unmount waits for the daemon, which may have work to finish.  With -l it may stay for ever. */
#define UMOUNT_S 60
#define UMOUNT_LAZY_S 1

static void show_user(void *arg, const struct fs_user *user)
{
	char text[sizeof(user->file) * 4];

	(void)fprintf(stderr, "scalai: '%s' is cut off from %s (pid %d), which uses '%s'\n", (const char *)arg,
		      user->name, (int)user->pid, sc_shown(text, sizeof(text), user->file));
}

static int run_umount(const struct cli_args *args)
{
	const char *wait = cli_value(args, "wait");
	bool lazy = cli_value(args, "l"), cut = cli_value(args, "cut");
	unsigned long wait_s = lazy ? UMOUNT_LAZY_S : UMOUNT_S;
	char store[FS_PATH_BYTES], *end;
	struct sc_err err;
	int rc;

	if (wait) {
		wait_s = strtoul(wait, &end, 10);
		if (*wait < '0' || *wait > '9' || *end || wait_s > 86400)
			return cli_complain(args, "--wait %s is no number of seconds", wait);
	}
	if (lazy && cut)
		return cli_complain(args, "-l and --cut do not go together");
	rc = cut ? fs_umount_cut(args->operands[0], show_user, (void *)args->operands[0], store, &err)
		 : fs_umount(args->operands[0], lazy, store, &err);
	if (rc == 0 && *store)
		rc = fs_umount_wait(store, (unsigned)wait_s, &err);
	else
		return cli_end(rc, &err);
	if (rc < 0 && rc != SC_E_BUSY) { /* a dead disk says nothing about the mount, which has ended */
		(void)fprintf(stderr, "scalai: '%s' is unmounted; whether its daemon has ended can't be told: %s\n",
			      args->operands[0], err.msg);
		return 0;
	}
	(void)cli_end(rc, &err);
	/* with -l it stays for as long as somebody uses it */
	return rc == SC_E_BUSY && lazy && !wait ? 0 : rc < 0;
}

#define MOUNT {"mount", 'm', "MOUNTPOINT", "the mount; else $SCALAI_MOUNT, or the only one there is"}
#define JSON {"json", 0, NULL, "print JSON instead of text"}
#define PROGRESS {"progress", 0, NULL, "say how far it is, every two seconds, where stderr is no terminal, too"}
#define END {NULL}

static const struct cli_option mount_options[] = {
	{NULL, 'f', NULL, "stay in the foreground; the log goes to stderr"},
	{NULL, 'd', NULL, "stay in the foreground and log more"},
	{NULL, 'o', "OPTIONS", "separated by commas: log=FILE, hold, existing, private, scrub=TIME, scrub_mib_s=N,\n"
	 "                           io_uring, no_passthrough, no_read_ahead, debug, gpu=... (scalai(1)),\n"
	 "                           and those of mount(8)"},
	/* mount(8) gives these */
	{NULL, 'n', NULL, NULL}, {NULL, 's', NULL, NULL},
	{NULL, 'v', NULL, NULL}, {NULL, 't', "TYPE", NULL}, END};

static const struct cli_option umount_options[] = {
	{NULL, 'l', NULL, "unmount although files are in use; their users keep them until they close them"},
	{"cut", 0, NULL, "unmount although files are in use, and name their users, who get errors from then on"},
	{"wait", 0, "SECONDS", "wait at most so long until the daemon has left the store (60; 0: do not wait)"}, END};

static const struct cli_option status_options[] = {
	MOUNT, {"watch", 'w', NULL, "draw a progress bar until all rank files are real files"}, JSON, END};

static const struct cli_option import_options[] = {
	MOUNT, {"topology", 0, "TOPOLOGY", "degrees of the axes, like \"tp=2 pp=2\"", true},
	{"layout", 0, "LAYOUT", "a preset, with its variables after it, or a file with rules", true, true},
	{"follow", 0, NULL, "copy what symbolic links in DIR lead to (Hugging Face's cache is made of them)"},
	{"step", 0, "N", "the training step of the version"},
	{"note", 0, "TEXT", "a note for the version"}, PROGRESS, END};

static const struct cli_option data_options[] = {
	MOUNT, {"global-batch", 0, "N", "samples of one step, of all ranks together (add needs it)"},
	{"format", 0, "FORMAT", "lines, records, npy, tar, tfrecord or megatron; else the name of the file tells"},
	{"copy", 0, NULL, "keep a copy in the store"},
	{"json", 0, NULL, "of show: print JSON instead of text"},
	{"OPTION", 0, "VALUE", "any other option of 'add' in .ctl/data (see scalai(1))"}, END};

static const struct cli_option verify_options[] = {
	MOUNT, {"reference", 0, "FILE", "compare with this unsharded file, or its index, instead"}, PROGRESS, JSON,
	END};

static const struct cli_option job_options[] = {MOUNT, END};

static const struct cli_option fsck_options[] = {
	{"repair", 0, NULL, "repair damaged files from replicas; move unknown files to STORE/lost+found"},
	{"rebuild", 0, NULL, "make a new catalog, if STORE/scalai.db is lost or can't be read"}, PROGRESS, JSON,
	END};

static const struct cli_option nodes_options[] = {MOUNT, JSON, END};
static const struct cli_option drain_options[] = {MOUNT, {"back", 0, NULL, "take the node back"}, END};

static const struct cli_option cluster_options[] = {
	MOUNT, {"json", 0, NULL, "of show: print JSON instead of text"},
	{NULL, 'o', "OPTIONS", "of rebuild, as of mount: cluster=NAME,etcd=URL[,etcd=URL...][,etcd_tls=FOLDER]"},
	{"replace", 0, NULL, "of rebuild: remove first what etcd has of the cluster"}, END};

static const struct cli_option doctor_options[] = {
	{"etcd", 0, "URL", "ask this server of the etcd that a cluster is to have, too"},
	JSON, END};

static const struct cli_command commands[] = {
	{.name = "mount", .summary = "Mount a store", .run = run_mount, .options = mount_options,
	 .usage = "[-f] [-d] [-o OPTIONS] STORE MOUNTPOINT", .operands = {"STORE", "MOUNTPOINT"}, .required = 2,
	 .example = "scalai mount -o hold,log=/var/log/scalai.log /data/store /scalai"},
	{.name = "umount", .summary = "Unmount a store", .run = run_umount, .options = umount_options,
	 .usage = "[-l|--cut] [--wait SECONDS] MOUNTPOINT", .operands = {"MOUNTPOINT"}, .required = 1,
	 .example = "scalai umount /scalai"},
	{.name = "status", .summary = "Show the state of a job, or of all jobs", .run = cli_status,
	 .options = status_options, .usage = "[-m MOUNTPOINT] [-w|--json] [JOB]", .operands = {"JOB"},
	 .example = "scalai status -w gpt"},
	{.name = "import", .summary = "Make a job out of a folder of ranks or one unsharded file", .run = cli_import,
	 .options = import_options, .operands = {"JOB", "DIR|FILE"}, .required = 2,
	 .usage = "[-m MOUNTPOINT] JOB DIR|FILE --topology TOPOLOGY --layout PRESET [NAME=VALUE...]|FILE "
		  "[--follow] [--step N] [--note TEXT] [--progress]",
	 .example = "scalai import gpt ./ckpt --topology \"tp=2 pp=2\" --layout megatron-gpt vocab=50257"},
	{.name = "data", .summary = "Add, remove, refresh or show the datasets of a job", .run = cli_data,
	 .options = data_options, .other_options = true,
	 .operands = {"add, remove, refresh or show", "JOB", "NAME", "FILE"}, .required = 2, .repeats = true,
	 .usage = "[-m MOUNTPOINT] add JOB NAME FILE... --global-batch N [--format FORMAT] [--copy] "
		  "[--OPTION VALUE...]\n"
		  "[-m MOUNTPOINT] remove|refresh JOB NAME\n"
		  "[-m MOUNTPOINT] show JOB [--json]",
	 .example = "scalai data add gpt corpus /data/corpus.jsonl --global-batch 512 --seed 7"},
	{.name = "verify", .summary = "Compare all copies of a job's state, and its tensors with what was committed",
	 .run = cli_verify, .options = verify_options,
	 .usage = "[-m MOUNTPOINT] JOB [--reference FILE] [--progress] [--json]",
	 .operands = {"JOB"}, .required = 1, .example = "scalai verify gpt --reference model.safetensors"},
	{.name = "clone", .summary = "Make a second job of a job's versions, without a copy of their bytes",
	 .run = cli_clone, .options = job_options, .usage = "[-m MOUNTPOINT] JOB|PATH NEW",
	 .operands = {"JOB|PATH", "NEW"}, .required = 2, .example = "scalai clone gpt gpt-try"},
	{.name = "delete", .summary = "Delete a job with all its versions", .run = cli_delete, .options = job_options,
	 .usage = "[-m MOUNTPOINT] JOB|PATH", .operands = {"JOB|PATH"}, .required = 1,
	 .example = "scalai delete /scalai/gpt-try"},
	{.name = "fsck", .summary = "Check a store that is not mounted", .run = cli_fsck, .options = fsck_options,
	 .usage = "[--repair|--rebuild] [--progress] [--json] STORE", .operands = {"STORE"}, .required = 1,
	 .example = "scalai fsck --repair /data/store"},
	{.name = "doctor", .summary = "Check what this machine has of what a mount can use", .run = cli_doctor,
	 .options = doctor_options, .usage = "[--json] [--etcd URL] [STORE]", .operands = {"STORE"},
	 .example = "scalai doctor /data/store"},
	{.name = "nodes", .summary = "Show the nodes of a cluster", .run = cli_nodes, .options = nodes_options,
	 .usage = "[-m MOUNTPOINT] [--json]", .example = "scalai nodes --json"},
	{.name = "drain", .summary = "Empty a node of a cluster, so that it may be stopped for ever", .run = cli_drain,
	 .options = drain_options, .operands = {"NODE"}, .required = 1, .usage = "[-m MOUNTPOINT] [--back] NODE",
	 .example = "scalai drain node7"},
	{.name = "cluster", .summary = "Show a cluster, or make etcd's keys of it anew, if it has lost them",
	 .run = cli_cluster, .options = cluster_options, .operands = {"show, backup or rebuild", "STORE|FILE"},
	 .required = 1, .repeats = true, .usage = "[-m MOUNTPOINT] show [--json]\nbackup STORE\n"
	 "rebuild -o cluster=NAME,etcd=URL [--replace] FILE...",
	 .example = "scalai cluster backup /data/store >node7.keys"},
};

#define NR_COMMANDS (sizeof(commands) / sizeof(*commands))

static const struct cli_command *find(const char *name)
{
	for (size_t i = 0; i < NR_COMMANDS; i++)
		if (strcmp(commands[i].name, name) == 0)
			return &commands[i];
	return NULL;
}

static void show_commands(FILE *to)
{
	(void)fprintf(to, "Usage: scalai SUBCOMMAND ...\n\nSubcommands:\n");
	for (size_t i = 0; i < NR_COMMANDS; i++)
		(void)fprintf(to, "  %-8s %s\n", commands[i].name, commands[i].summary);
	(void)fprintf(to, "\n'scalai SUBCOMMAND --help' explains one of them, scalai(1) all there is;\n"
			  "'scalai --version' shows the version.\n");
}

int main(int argc, char **argv)
{
	const char *name = strrchr(argv[0], '/');
	const struct cli_command *command;

	name = name ? name + 1 : argv[0];
	/* mount(8): helper STORE MOUNTPOINT -o OPTIONS */
	if (strncmp(name, "mount.", 6) == 0)
		return cli_run(find("mount"), argv, argv + 1);
	if (argc < 2) {
		show_commands(stderr);
		return CLI_WRONG_USAGE;
	}
	if (strcmp(argv[1], "--version") == 0) {
		(void)printf("scalai %s\n", SC_VERSION);
		return 0;
	}
	if (strcmp(argv[1], "--help") == 0 || strcmp(argv[1], "-h") == 0 ||
	    (strcmp(argv[1], "help") == 0 && argc == 2)) {
		show_commands(stdout);
		return 0;
	}
	command = find(argv[1]);
	if (command)
		return cli_run(command, argv, argv + 2);
	(void)fprintf(stderr, "scalai: unknown subcommand '%s'; 'scalai --help' lists them\n", argv[1]);
	return CLI_WRONG_USAGE;
}
