/* SPDX-License-Identifier: Apache-2.0 */
/* The command `config` changes settings: all settings of a line or none. */
#include "reshard/command/commands/command_i.h"

#include <string.h>

#include "reshard/engine/gpu/remote.h"

struct settings {
	struct rs_setting *at;
	size_t nr, room;
	struct sc_keys keys;
	struct rs_config config;	/* as they change it */
};

/* Refuses a setting, and names the values that its key takes, or all keys if there is no such key. */
static int refuse(const struct rs_setting *one, struct sc_err *err)
{
	const size_t bytes = strlen(one->key);
	const char *const *form = rs_config_forms;
	struct sc_buf all = {0};
	int rc;

	while (*form && (strncmp(*form, one->key, bytes) != 0 || (*form)[bytes] != '='))
		form++;
	if (*form)
		return sc_fail(err, SC_E_COMMAND, "'%s=%s' cannot be set; write %s", one->key, one->value, *form);
	for (form = rs_config_forms; *form; form++)
		sc_buf_printf(&all, "%s%s", all.bytes ? ", " : "", *form);
	rc = all.failed ? sc_nomem(err) : sc_fail(err, SC_E_COMMAND, "'%s=%s' is no setting; there are %s", one->key,
						  one->value, all.text);
	sc_buf_done(&all);
	return rc;
}

static int parse(struct settings *all, char *words, struct sc_err *err)
{
	char *save = NULL, *word;

	if (!*words)
		return sc_fail(err, SC_E_COMMAND, "empty; write KEY=VALUE");
	for (word = strtok_r(words, " \t\r\n", &save); word; word = strtok_r(NULL, " \t\r\n", &save)) {
		char *eq = strchr(word, '=');
		struct rs_setting one = {.key = word};

		if (!eq)
			return sc_fail(err, SC_E_COMMAND, "'%s' is not KEY=VALUE", word);
		*eq = 0;
		one.value = eq + 1;
		if (sc_keys_add(&all->keys, one.key, err) < 0)
			return err->code;
		if (rs_config_apply(&all->config, one.key, one.value) < 0)
			return refuse(&one, err);
		if (sc_vec_push(all, one) < 0)
			return sc_nomem(err);
	}
	return 0;
}

/* Applies settings to a job.  The caller holds job->command. */
static int apply(struct rs_job *job, struct settings *all, bool is_followed, struct sc_err *err)
{
	struct rs_amend amend = {.kind = RS_AMEND_CONFIG, .settings = all->at, .nr_settings = all->nr,
				 .is_followed = is_followed};
	int rc = rs_head_amend(job->service, job, &amend, err);

	if (rc != 0)
		return rc < 0 ? rc : 0;
	(void)pthread_mutex_lock(&job->state);
	job->config = all->config;
	job->homes.view = 0; /* home= */
	(void)pthread_mutex_unlock(&job->state);
	return 0;
}

int rs_job_config(const struct rs_caller *who, struct rs_job *job, const char *text, struct sc_err *err)
{
	struct rs_service *s = who->service;
	struct settings all = {0};
	char *copy = sc_strdup(text);
	int rc;

	if (!copy)
		return sc_nomem(err);
	rc = rs_command_lock(job, err);
	if (rc < 0) {
		sc_sys.release(copy);
		return rc;
	}
	all.config = rs_config_of(job);
	rc = parse(&all, sc_trim(copy), err);
	if (rc == 0)
		rc = apply(job, &all, false, err);
	(void)pthread_mutex_unlock(&job->command);
	sc_vec_done(&all);
	sc_vec_done(&all.keys);
	sc_sys.release(copy);
	if (rc == 0) {
		rs_gpu_forgive();
		s->events.names_changed(s->events.arg); /* show= */
		rs_job_tell(job);
		rs_worker_call(s, false);
	}
	return rc;
}

int rs_job_config_follow(struct rs_job *job, char *words, struct sc_err *err)
{
	struct settings all = {.config = rs_config_of(job)};
	char *save = NULL;
	int rc = 0;

	for (char *word = strtok_r(words, "\n", &save); rc == 0 && word; word = strtok_r(NULL, "\n", &save)) {
		char *eq = strchr(word, '=');

		if (!eq)
			continue;
		*eq = 0;
		if (rs_config_apply(&all.config, word, eq + 1) < 0)
			sc_log(SC_LOG_WARN, "config '%s=%s' of another node is unknown, continuing", word, eq + 1);
		else
			rc = sc_vec_push(&all, ((struct rs_setting){word, eq + 1})) < 0 ? sc_nomem(err) : 0;
	}
	if (rc == 0)
		rc = apply(job, &all, true, err);
	sc_vec_done(&all);
	return rc;
}
