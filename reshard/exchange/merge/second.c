/* SPDX-License-Identifier: Apache-2.0 */
#include "reshard/exchange/merge/part.h"

int rs_second_new(struct rs_job *job, struct rs_job **ret, struct sc_err *err)
{
	char name[SC_NAME_BYTES_MAX + 1];
	struct rs_job_attr attr;
	struct rs_job *x = sc_zalloc(sizeof(*x));
	bool good;
	int rc;

	if (!x)
		return sc_nomem(err);
	rs_job_attr(job, &attr);
	*x = (struct rs_job){.service = job->service, .id = job->id, .root = job->root, .whole = job->whole,
			     .name = sc_strdup(rs_job_name(job, name, sizeof(name))), .uid = attr.uid, .gid = attr.gid,
			     .mode = attr.mode, .mtime_ns = attr.mtime_ns, .config = rs_config_of(job)};
	(void)pthread_mutex_init(&x->command, NULL);
	(void)pthread_rwlock_init(&x->tree, NULL);
	(void)pthread_rwlock_init(&x->names, NULL);
	(void)pthread_mutex_init(&x->state, NULL);
	x->head = rs_job_head(job);
	(void)pthread_mutex_lock(&job->state);
	x->first_layout = job->first_layout;
	x->first_topology = job->first_topology ? sc_strdup(job->first_topology) : NULL;
	good = x->name && (x->first_topology || !job->first_topology);
	(void)pthread_mutex_unlock(&job->state);
	rc = good ? rs_log_drain(job->service, err) : sc_nomem(err);
	if (rc == 0)
		rc = rs_tree_begin(x, RS_TREE_LOADED, err);
	if (rc < 0)
		rs_second_free(x);
	else
		*ret = x;
	return rc;
}

void rs_second_free(struct rs_job *x)
{
	if (!x)
		return;
	rs_uncount_nameless(x); /* they are the job's own, and were counted there */
	rs_tree_end(x);
	rs_view_unref(x->service, x->head);
	(void)pthread_mutex_destroy(&x->command);
	(void)pthread_rwlock_destroy(&x->tree);
	(void)pthread_rwlock_destroy(&x->names);
	(void)pthread_mutex_destroy(&x->state);
	sc_sys.release(x->name);
	sc_sys.release(x->first_topology);
	sc_sys.release(x);
}
