/* SPDX-License-Identifier: Apache-2.0 */
/* The command `config`: settings are changed, all of a line or none. */
#include "reshard/command/command_i.h"

#include <string.h>

static int set_one(struct rs_service *s, struct rs_job *job, const char *key, const char *value,
		   struct sc_err *err)
{
	struct rs_config old;
	int rc;

	(void)pthread_mutex_lock(&job->state);
	old = job->config;
	rc = rs_config_apply(job, key, value);
	(void)pthread_mutex_unlock(&job->state);
	if (rc < 0)
		return sc_fail(err, SC_E_COMMAND, "'%s=%s' is no setting; there are materialize=eager|lazy|never, "
			       "verify=commit|background, sync=on|off, keep=N, buffer_mib=N (2 or more), "
			       "ranks_per_node=N, show=on|off, remove=yes|no", key, value);
	rc = meta_config_set(s->catalog, job->id, key, value, err);
	if (rc < 0) {
		(void)pthread_mutex_lock(&job->state);
		job->config = old;
		(void)pthread_mutex_unlock(&job->state);
	}
	return rc;
}

static int set_all(struct rs_service *s, struct rs_job *job, char *words, struct sc_err *err)
{
	char *save = NULL, *word;
	int rc = 0;

	for (word = strtok_r(words, " \t\r\n", &save); rc == 0 && word;
	     word = strtok_r(NULL, " \t\r\n", &save)) {
		char *eq = strchr(word, '=');

		if (!eq)
			return sc_fail(err, SC_E_COMMAND, "'%s' is not KEY=VALUE", word);
		*eq = 0;
		rc = set_one(s, job, word, eq + 1, err);
	}
	return rc;
}

int rs_job_config(struct rs_service *s, struct rs_job *job, const char *text, struct sc_err *err)
{
	char *copy = sc_strdup(text), *words;
	struct rs_config old;
	int rc = copy ? 0 : sc_nomem(err);

	if (rc < 0)
		return rc;
	words = sc_trim(copy);
	(void)pthread_mutex_lock(&job->command);
	old = job->config;
	if (!*words)
		rc = sc_fail(err, SC_E_COMMAND, "empty; write KEY=VALUE");
	if (rc == 0)
		rc = meta_catalog_begin(s->catalog, true, err);
	if (rc == 0)
		rc = meta_catalog_end(s->catalog, set_all(s, job, words, err), err);
	if (rc < 0) {
		(void)pthread_mutex_lock(&job->state);
		job->config = old;
		(void)pthread_mutex_unlock(&job->state);
	}
	(void)pthread_mutex_unlock(&job->command);
	sc_sys.release(copy);
	if (rc == 0) {
		s->events.names_changed(s->events.arg); /* show= */
		rs_job_tell(job);
		rs_kick(s, false);
	}
	return rc;
}
