/* SPDX-License-Identifier: Apache-2.0 */
/* `scalai clone` and `scalai delete`: copy and delete whole jobs, by name or by the path of their folder. */
#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "fs/cli/cli.h"
#include "fs/daemon/mounts.h"

/* A command's text is taken without the blanks around it: a clone would get another name. */
static int check_new_name(const char *name)
{
	if (cli_check_name(name))
		return 1;
	if (*name != ' ' && name[strlen(name) - 1] != ' ')
		return 0;
	return cli_say("'%s': a clone's name does not begin or end with a blank", name);
}

/* Takes a path as that of a job's folder in a mount of scalai. */
static int find_folder(const char *path, char mount[FS_PATH_BYTES], const char **ret_name)
{
	struct fs_mounts mounts = {0};
	const struct fs_mounted *m = NULL;
	struct sc_err err;
	char *slash;
	int rc = fs_mount_path(path, mount, &err);

	if (rc < 0) { /* the path of its folder leads nowhere */
		(void)fprintf(stderr, "scalai: '%s' is no job: a word with a '/' is the path of a job's folder, and "
				      "'%.*s' is not there\n", path, (int)(strrchr(path, '/') - path), path);
		return 1;
	}
	rc = fs_mounts_read(&mounts, &err);
	if (rc < 0) {
		(void)fprintf(stderr, "scalai: %s\n", err.msg);
		fs_mounts_done(&mounts);
		return 1;
	}
	slash = strrchr(mount, '/');
	*slash = 0;
	m = fs_mounts_find(&mounts, *mount ? mount : "/");
	rc = !m || !fs_mounted_is_scalai(m);
	if (rc)
		(void)fprintf(stderr, "scalai: '%s' is no job's folder: '%s' is no mount of scalai\n", path,
			      *mount ? mount : "/");
	fs_mounts_done(&mounts);
	*ret_name = slash + 1;
	return rc || cli_check_name(*ret_name);
}

/* Finds a job by a word: one with a slash is a path, any other is a name. */
static int find_job(const struct cli_args *args, const char *word, char mount[FS_PATH_BYTES], const char **ret_name)
{
	const char *found;

	if (strchr(word, '/'))
		return find_folder(word, mount, ret_name);
	if (cli_check_name(word))
		return 1;
	found = cli_mount(args);
	if (found)
		(void)snprintf(mount, FS_PATH_BYTES, "%s", found);
	*ret_name = word;
	return !found;
}

int cli_clone(const struct cli_args *args)
{
	char mount[FS_PATH_BYTES], other[FS_PATH_BYTES];
	const char *source, *name = args->operands[1];
	int rc = find_job(args, args->operands[0], mount, &source);

	if (rc == 0 && strchr(name, '/'))
		rc = find_folder(name, other, &name);
	else
		(void)snprintf(other, sizeof(other), "%s", mount);
	if (rc == 0)
		rc = check_new_name(name);
	if (rc == 0 && strcmp(mount, other) != 0) {
		(void)fprintf(stderr, "scalai: '%s' and '%s' are different mounts: a clone is in the store of its "
				      "source\n", mount, other);
		rc = 1;
	}
	return rc ? rc : cli_command(mount, source, "clone", name);
}

/* Refuses a user who may not write the job's config: he may not delete the job. */
static int check_may_delete(const char *mount, const char *job)
{
	char path[2 * FS_PATH_BYTES];

	(void)snprintf(path, sizeof(path), "%s/%s/.ctl/config", mount, job);
	if (access(path, W_OK) == 0 || errno == ENOENT || errno == ENOTCONN)
		return 0;
	if (errno != EACCES && errno != EPERM)
		return cli_fail("look at", path);
	(void)fprintf(stderr, "scalai: job '%s': you may not delete it; its owner and root may\n", job);
	return 1;
}

int cli_delete(const struct cli_args *args)
{
	char mount[FS_PATH_BYTES], path[2 * FS_PATH_BYTES];
	const char *job;
	int rc = find_job(args, args->operands[0], mount, &job);

	if (rc == 0)
		rc = check_may_delete(mount, job);
	if (rc == 0)
		rc = cli_command(mount, job, "config", "remove=yes");
	if (rc)
		return rc;
	(void)snprintf(path, sizeof(path), "%s/%s", mount, job);
	if (rmdir(path) == 0)
		return 0;
	rc = errno == EACCES || errno == EPERM ? cli_fail("delete the job", path) : cli_refused(mount, job);
	(void)cli_command(mount, job, "config", "remove=no");
	return rc;
}
