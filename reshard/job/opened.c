/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Files of working trees that are open: one that is removed keeps its bytes until it is closed, as
 * POSIX wants.  After a crash nobody has it open, and the next start finds a file without a row.
 */
#include "reshard/job/service_i.h"

static struct rs_opened *find(struct rs_service *s, uint64_t blob)
{
	for (size_t i = 0; i < s->opened.nr; i++)
		if (s->opened.at[i].blob == blob)
			return &s->opened.at[i];
	return NULL;
}

int rs_work_hold(struct rs_service *s, uint64_t blob, struct sc_err *err)
{
	struct rs_opened *o;
	int rc = 0;

	(void)pthread_mutex_lock(&s->lock);
	o = find(s, blob);
	if (o)
		o->times++;
	else if (sc_vec_push(&s->opened, (struct rs_opened){.blob = blob, .times = 1}) < 0)
		rc = sc_nomem(err);
	(void)pthread_mutex_unlock(&s->lock);
	return rc;
}

void rs_work_release(struct rs_service *s, uint64_t blob)
{
	struct rs_opened *o;
	struct sc_err ignored;
	bool removed = false;

	(void)pthread_mutex_lock(&s->lock);
	o = find(s, blob);
	if (o && --o->times == 0) {
		removed = o->removed;
		*o = s->opened.at[--s->opened.nr];
	}
	(void)pthread_mutex_unlock(&s->lock);
	if (removed)
		(void)meta_store_remove(&s->store, blob, &ignored); /* else: at the next start */
}

bool rs_work_is_removed(struct rs_service *s, uint64_t blob)
{
	const struct rs_opened *o;
	bool removed;

	(void)pthread_mutex_lock(&s->lock);
	o = find(s, blob);
	removed = o && o->removed;
	(void)pthread_mutex_unlock(&s->lock);
	return removed;
}

int rs_remove_bytes(struct rs_service *s, uint64_t blob, struct sc_err *err)
{
	struct rs_opened *o;

	(void)pthread_mutex_lock(&s->lock);
	o = find(s, blob);
	if (o)
		o->removed = true;
	(void)pthread_mutex_unlock(&s->lock);
	return o ? 0 : meta_store_remove(&s->store, blob, err);
}
