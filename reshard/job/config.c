/* SPDX-License-Identifier: Apache-2.0 */
/* A job's configuration: `key=value`, kept in the catalog. */
#include "reshard/job/service_i.h"

#include <stdio.h>
#include <string.h>

static int one_of(const char *value, const char *const *words)
{
	for (int i = 0; words[i]; i++)
		if (strcmp(value, words[i]) == 0)
			return i;
	return -1;
}

static int number(const char *value, uint32_t most, uint32_t *ret)
{
	uint32_t n;

	if (!sc_number_parse(value, strlen(value), &n) || n > most)
		return -1;
	*ret = n;
	return 0;
}

static const char *const materialize_words[] = {"eager", "lazy", "never", NULL};
static const char *const verify_words[] = {"commit", "background", NULL};
static const char *const switch_words[] = {"off", "on", NULL};
static const char *const yes_words[] = {"no", "yes", NULL};

int rs_config_apply(struct rs_job *job, const char *key, const char *value)
{
	struct rs_config *c = &job->config;
	uint32_t mib;
	int word;

	if (strcmp(key, "materialize") == 0 && (word = one_of(value, materialize_words)) >= 0)
		c->materialize = word;
	else if (strcmp(key, "verify") == 0 && (word = one_of(value, verify_words)) >= 0)
		c->verify = word;
	else if (strcmp(key, "sync") == 0 && (word = one_of(value, switch_words)) >= 0)
		c->sync = word;
	else if (strcmp(key, "show") == 0 && (word = one_of(value, switch_words)) >= 0)
		c->show = word;
	else if (strcmp(key, "remove") == 0 && (word = one_of(value, yes_words)) >= 0)
		c->remove = word;
	else if (strcmp(key, "keep") == 0)
		return number(value, 1000000, &c->keep);
	else if (strcmp(key, "ranks_per_node") == 0)
		return number(value, SC_RANKS_MAX, &c->ranks_per_node);
	else if (strcmp(key, "buffer_mib") == 0 && number(value, 65536, &mib) == 0 && mib >= 2)
		c->buffer_bytes = (uint64_t)mib << 20;
	else
		return -1;
	return 0;
}

struct rs_config rs_config_of(struct rs_job *job)
{
	struct rs_config c;

	(void)pthread_mutex_lock(&job->state);
	c = job->config;
	(void)pthread_mutex_unlock(&job->state);
	return c;
}

bool rs_job_shows_hidden(struct rs_job *job)
{
	return rs_config_of(job).show;
}

bool rs_job_syncs(struct rs_job *job)
{
	return rs_config_of(job).sync;
}

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

int rs_render_config(struct rs_service *s, struct rs_job *job, struct sc_buf *buf,
		     struct sc_err *err)
{
	struct rs_config c = rs_config_of(job);

	(void)s;
	sc_buf_printf(buf, "materialize=%s\nverify=%s\nsync=%s\nkeep=%u\nbuffer_mib=%u\nranks_per_node=%u\n"
			   "show=%s\nremove=%s\n", materialize_words[c.materialize], verify_words[c.verify],
		      switch_words[c.sync], c.keep, (unsigned)(c.buffer_bytes >> 20), c.ranks_per_node,
		      switch_words[c.show], yes_words[c.remove]);
	return buf->failed ? sc_nomem(err) : 0;
}
