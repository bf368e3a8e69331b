/* SPDX-License-Identifier: Apache-2.0 */
/* Finds jobs by number or name; has a job's attributes and last error, and tells listeners of its news. */
#include "reshard/version/state/state_i.h"

#include <stdio.h>
#include <string.h>

SC_METRIC(commands_refused, SC_COUNTER, "scalai_refusals_total", "Commands refused.");

struct rs_job *rs_job_at(struct rs_service *s, size_t i)
{
	struct rs_job *job;

	(void)pthread_mutex_lock(&s->lock);
	job = i < s->jobs.nr ? s->jobs.at[i] : NULL;
	(void)pthread_mutex_unlock(&s->lock);
	return job;
}

static struct rs_job *find_job(struct rs_service *s, const struct sc_map *map, const void *key, size_t bytes)
{
	struct rs_job *job;

	(void)pthread_mutex_lock(&s->lock);
	job = sc_map_get(map, key, bytes);
	(void)pthread_mutex_unlock(&s->lock);
	return job;
}

struct rs_job *rs_job_by_id(struct rs_service *s, uint64_t id)
{
	return find_job(s, &s->jobs.by_id, &id, sizeof(id));
}

struct rs_job *rs_job_by_name(struct rs_service *s, const char *name)
{
	return find_job(s, &s->jobs.by_name, name, strlen(name));
}

uint64_t rs_job_id(struct rs_job *job)
{
	return job->id;
}

bool rs_job_is_removed(struct rs_job *job)
{
	bool removed;

	(void)pthread_mutex_lock(&job->state);
	removed = job->removed;
	(void)pthread_mutex_unlock(&job->state);
	return removed;
}

const char *rs_job_name(struct rs_job *job, char *buf, size_t bytes)
{
	(void)pthread_mutex_lock(&job->state);
	(void)snprintf(buf, bytes, "%s", job->name);
	(void)pthread_mutex_unlock(&job->state);
	return buf;
}

void rs_job_attr(struct rs_job *job, struct rs_job_attr *ret)
{
	(void)pthread_mutex_lock(&job->state);
	*ret = (struct rs_job_attr){job->id, job->uid, job->gid, job->mode, job->mtime_ns};
	(void)pthread_mutex_unlock(&job->state);
}

uint64_t rs_job_news(struct rs_job *job)
{
	return __atomic_load_n(&job->news, __ATOMIC_ACQUIRE);
}

void rs_job_tell(struct rs_job *job)
{
	struct rs_service *s = job->service;

	(void)__atomic_add_fetch(&job->news, 1, __ATOMIC_RELEASE);
	s->events.news(s->events.arg, job->id);
}

void rs_job_complain(struct rs_job *job, const char *command, const struct sc_err *err)
{
	struct sc_err said = *err;
	struct sc_buf buf = {0};

	rs_damage_met(job->service, err);
	sc_err_name(&said, command);
	sc_buf_line(&buf, "%s", said.msg);
	if (buf.failed)
		sc_buf_done(&buf);
	(void)pthread_mutex_lock(&job->state);
	sc_sys.release(job->error);
	job->error = buf.text;
	(void)pthread_mutex_unlock(&job->state);
}

void rs_job_refused(struct rs_job *job, const char *command, const struct sc_err *err)
{
	rs_job_complain(job, command, err);
	sc_metric_add(&commands_refused, 1);
	rs_job_tell(job);
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

int rs_render_config(struct rs_service *s, struct rs_job *job, struct sc_buf *buf, struct sc_err *err)
{
	const struct rs_config c = rs_config_of(job);

	(void)s;
	rs_config_text(&c, buf);
	return buf->failed ? sc_nomem(err) : 0;
}
