/* SPDX-License-Identifier: Apache-2.0 */
/* The command `tag`: a tag keeps a version for ever, and is another name of it. */
#include "reshard/command/commands/command_i.h"

#include <string.h>

/* Refuses a tag that is a number, or that cannot be the name of a folder (.v/TAG). */
static int check_tag(const char *tag, struct sc_err *err)
{
	bool good = *tag && *tag != '.' && !rs_is_version_number(tag) && strlen(tag) <= 100;

	for (const char *p = tag; *p; p++)
		good = good && (unsigned char)*p > ' ' && *p != '/' && *p != 127;
	return good ? 0
		    : sc_fail(err, SC_E_COMMAND,
			      "bad tag '%s': write a word that is not a number, at most 100 bytes, without '/' and a "
			      "leading '.'",
			      tag);
}

int rs_job_tag(const struct rs_caller *who, struct rs_job *job, const char *text, struct sc_err *err)
{
	struct rs_service *s = who->service;
	char *copy = sc_strdup(text), *save = NULL, *verb, *version, *tag;
	struct rs_amend amend = {.kind = RS_AMEND_TAG};
	struct rs_version_found f;
	bool untag;
	int rc = copy ? 0 : sc_nomem(err);

	if (rc < 0)
		return rc;
	verb = strtok_r(copy, " \t\n", &save);
	version = verb ? strtok_r(NULL, " \t\n", &save) : NULL;
	tag = version ? strtok_r(NULL, " \t\n", &save) : NULL;
	untag = verb && strcmp(verb, "untag") == 0;
	if (!version || (!untag && strcmp(verb, "tag") != 0) || untag == (tag != NULL) ||
	    strtok_r(NULL, " \t\n", &save))
		rc = sc_fail(err, SC_E_COMMAND, "write 'tag VERSION NAME' or 'untag VERSION'");
	if (rc == 0 && tag)
		rc = check_tag(tag, err);
	if (rc == 0)
		rc = rs_command_lock(job, err);
	if (rc < 0) {
		sc_sys.release(copy);
		return rc;
	}
	rc = rs_version_find(s, job, version, &f, err);
	if (rc == 0) {
		amend.version = f.id;
		amend.nr = f.nr;
		amend.tag = tag;
		rc = rs_head_amend(s, job, &amend, err);
	}
	(void)pthread_mutex_unlock(&job->command);
	if (rc == SC_E_EXISTS)
		rc = sc_fail(err, SC_E_EXISTS, "another version has the tag '%s'; untag it first", tag);
	sc_sys.release(copy);
	if (rc == 0)
		rs_job_tell(job);
	return rc;
}
