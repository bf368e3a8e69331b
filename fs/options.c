/* SPDX-License-Identifier: Apache-2.0 */
/* The words of mount -o. */
#include <stdio.h>
#include <string.h>

#include "fs/mount.h"
#include "meta/base/mem.h"
#include "meta/base/sys.h"
#include "meta/base/text.h"

/* "off", or a number and s, m, h or d. */
static int scrub_option(const char *text, int64_t *ret_s, struct sc_err *err)
{
	static const struct {
		char letter;
		int64_t seconds;
	} units[] = {{'s', 1}, {'m', 60}, {'h', 3600}, {'d', 86400}};
	size_t n = strlen(text);
	uint32_t number;

	if (strcmp(text, "off") == 0) {
		*ret_s = 0;
		return 0;
	}
	for (size_t i = 0; i < sizeof(units) / sizeof(*units); i++)
		if (n > 1 && text[n - 1] == units[i].letter && sc_number_parse(text, n - 1, &number) && number) {
			*ret_s = number * units[i].seconds;
			return 0;
		}
	return sc_fail(err, SC_E_COMMAND, "scrub=%s: write how often each file is read again, like 30d or 12h, or off",
		       text);
}

static int log_option(struct fs_mount_options *o, const char *path, struct sc_err *err)
{
	if (*path != '/')
		return sc_fail(err, SC_E_COMMAND, "log=%s: write the file's whole path, from the root", path);
	if (strlen(path) >= sizeof(o->log))
		return sc_fail(err, SC_E_COMMAND, "log=: the path has more than %zu bytes", sizeof(o->log) - 1);
	(void)snprintf(o->log, sizeof(o->log), "%s", path);
	return 0;
}

int fs_mount_option(struct fs_mount_options *o, const char *text, struct sc_err *err)
{
	static const char *const taken[] = {"rw", "auto", "noauto", "user", "nouser", "users", "defaults", "async",
					    "_netdev", "nofail", "suid", "nosuid", "dev", "nodev", "exec", "noexec",
					    "atime", "noatime", "relatime", "allow_other", "default_permissions", NULL};
	char *copy = sc_strdup(text), *save = NULL, *word;
	int rc = copy ? 0 : sc_nomem(err);

	for (word = copy ? strtok_r(copy, ",", &save) : NULL; rc == 0 && word; word = strtok_r(NULL, ",", &save)) {
		bool known = strncmp(word, "x-", 2) == 0 || strncmp(word, "comment=", 8) == 0;

		for (int i = 0; taken[i]; i++)
			known |= strcmp(word, taken[i]) == 0;
		if (strcmp(word, "io_uring") == 0)
			o->io_uring = true;
		else if (strcmp(word, "private") == 0)
			o->private_ = true;
		else if (strcmp(word, "no_passthrough") == 0)
			o->no_passthrough = true;
		else if (strcmp(word, "hold") == 0)
			o->hold = true;
		else if (strcmp(word, "no_read_ahead") == 0)
			o->read_ahead_off = true;
		else if (strcmp(word, "debug") == 0)
			o->debug = true;
		else if (strncmp(word, "log=", 4) == 0)
			rc = log_option(o, word + 4, err);
		else if (strncmp(word, "scrub=", 6) == 0)
			rc = scrub_option(word + 6, &o->scrub_s, err);
		else if (strncmp(word, "scrub_mib_s=", 12) == 0)
			rc = sc_number_parse(word + 12, strlen(word + 12), &o->scrub_mib_s)
				     ? 0
				     : sc_fail(err, SC_E_COMMAND, "'%s': write a number of MiB a second, like "
				     	"scrub_mib_s=64", word);
		else if (!known)
			rc = sc_fail(err, SC_E_COMMAND, "mount option '%s' is unknown; Scalai's own are io_uring, "
				     "private, no_passthrough, no_read_ahead, hold, scrub=, scrub_mib_s=, log=, debug",
				     word);
	}
	if (rc == 0 && o->hold && o->io_uring)
		rc = sc_fail(err, SC_E_COMMAND, "hold and io_uring do not go together: the kernel can't hand its rings "
			     "over");
	sc_sys.release(copy);
	return rc;
}
