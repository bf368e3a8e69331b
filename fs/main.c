/* SPDX-License-Identifier: Apache-2.0 */
/* The command line: `scalai SUBCOMMAND ...`, and mount(8)'s helper `mount.fuse.scalai`. */
#include <getopt.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "fs/cli.h"
#include "fs/mount.h"

static const char usage_text[] =
	"Usage:\n"
	"  scalai mount [-f] [-d] [-o OPTIONS] STORE MOUNTPOINT\n"
	"  scalai umount [-l] MOUNTPOINT\n"
	"  scalai status [-m MOUNTPOINT] [-w] [JOB]\n"
	"  scalai import [-m MOUNTPOINT] JOB DIR|FILE --topology TOPOLOGY --layout PRESET [NAME=VALUE...]|FILE\n"
	"                [--step N] [--note TEXT]\n"
	"  scalai data [-m MOUNTPOINT] add JOB NAME FILE... --global-batch N [--format FORMAT] [--OPTION VALUE...]\n"
	"  scalai data [-m MOUNTPOINT] remove|refresh JOB NAME\n"
	"  scalai data [-m MOUNTPOINT] show JOB\n"
	"  scalai verify [-m MOUNTPOINT] JOB [--reference FILE.safetensors]\n"
	"  scalai fsck [--repair|--rebuild] STORE\n"
	"  scalai --version | --help\n"
	"\n"
	"Every subcommand is a thin layer over the files of the mount; see scalai(1).\n";

static int usage(void)
{
	(void)fputs(usage_text, stderr);
	return 2;
}

static int report(int rc, const struct sc_err *err)
{
	if (rc < 0)
		(void)fprintf(stderr, "scalai: %s\n", err->msg);
	return rc < 0;
}

static char **program_argv;

static int main_mount(int argc, char **argv)
{
	struct fs_mount_options o = {.scrub_s = 30 * 86400, .scrub_mib_s = 64};
	struct sc_err err;
	int c;

	while ((c = getopt(argc, argv, "fdno:svt:")) != -1) {
		if (c == 'f')
			o.foreground = true;
		else if (c == 'd')
			o.debug = o.foreground = true;
		else if (c == 'o' && fs_mount_option(&o, optarg, &err) < 0)
			return report(err.code, &err);
		else if (c == '?')
			return usage();
	}
	if (argc - optind != 2)
		return usage();
	o.store = argv[optind];
	o.mountpoint = argv[optind + 1];
	o.argv = program_argv;
	return report(fs_mount(&o, &err), &err);
}

static int main_umount(int argc, char **argv)
{
	struct sc_err err;
	bool lazy = false;
	int c;

	while ((c = getopt(argc, argv, "l")) != -1) {
		if (c == '?')
			return usage();
		lazy = true;
	}
	return argc - optind == 1 ? report(fs_umount(argv[optind], lazy, &err), &err) : usage();
}

static int main_live(int argc, char **argv)
{
	static const struct option options[] = {{"topology", 1, NULL, 't'}, {"layout", 1, NULL, 'y'},
						{"step", 1, NULL, 's'},	    {"note", 1, NULL, 'n'},
						{"reference", 1, NULL, 'r'}, {"watch", 0, NULL, 'w'},
						{"mount", 1, NULL, 'm'},    {NULL, 0, NULL, 0}};
	static char layout[4096];
	struct cli_import import = {0};
	const char *reference = NULL, *mount = NULL, *words[2] = {NULL, NULL};
	int c, nr = 0, watch = 0;

	while ((c = getopt_long(argc, argv, "-m:w", options, NULL)) != -1) {
		if (c == 'm')
			mount = optarg;
		else if (c == 'w')
			watch = 1;
		else if (c == 't')
			import.topology = optarg;
		else if (c == 'y')
			(void)snprintf(layout, sizeof(layout), "%s", optarg);
		else if (c == 's')
			import.step = optarg;
		else if (c == 'n')
			import.note = optarg;
		else if (c == 'r')
			reference = optarg;
		else if (c == 1 && *layout && strchr(optarg, '=')) /* variables of the preset */
			(void)snprintf(layout + strlen(layout), sizeof(layout) - strlen(layout), " %s", optarg);
		else if (c == 1 && nr < 2)
			words[nr++] = optarg;
		else
			return usage();
	}
	mount = cli_mount(mount);
	if (!mount)
		return 1;
	if (strcmp(argv[0], "status") == 0)
		return nr < 2 ? cli_status(mount, words[0], watch) : usage();
	if (strcmp(argv[0], "verify") == 0)
		return nr == 1 ? cli_verify(mount, words[0], reference) : usage();
	import.mount = mount;
	import.job = words[0];
	import.from = words[1];
	import.layout = layout;
	return nr == 2 && import.topology && *layout ? cli_import(&import) : usage();
}

int main(int argc, char **argv)
{
	const char *name = strrchr(argv[0], '/');

	program_argv = argv;
	name = name ? name + 1 : argv[0];
	if (strncmp(name, "mount.", 6) == 0) {
		/* mount(8): helper STORE MOUNTPOINT -o OPTIONS */
		return main_mount(argc, argv);
	}
	if (argc < 2)
		return usage();
	if (strcmp(argv[1], "--version") == 0) {
		(void)printf("scalai %s\n", SC_VERSION);
		return 0;
	}
	if (strcmp(argv[1], "--help") == 0 || strcmp(argv[1], "help") == 0) {
		(void)fputs(usage_text, stdout);
		return 0;
	}
	if (strcmp(argv[1], "mount") == 0)
		return main_mount(argc - 1, argv + 1);
	if (strcmp(argv[1], "umount") == 0)
		return main_umount(argc - 1, argv + 1);
	if (strcmp(argv[1], "fsck") == 0) {
		int rc = cli_fsck(argc - 1, argv + 1);

		return rc < 0 ? usage() : rc;
	}
	if (strcmp(argv[1], "data") == 0) {
		int rc = cli_data(argc - 1, argv + 1);

		return rc < 0 ? usage() : rc;
	}
	if (strcmp(argv[1], "status") == 0 || strcmp(argv[1], "import") == 0 ||
	    strcmp(argv[1], "verify") == 0)
		return main_live(argc - 1, argv + 1);
	return usage();
}
