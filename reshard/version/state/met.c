/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Notes the blobs whose damage a read, a verification or a command has met.  From then on `health` and `status` show
 * such a blob, and the worker looks at it (background/met.c): at once, then after 2 s, 4 s and so on, at last each
 * hour, until it is intact or judged.  Reads of the blob go on: they fail by themselves while it is cut short or its
 * disk fails.
 */
#include "reshard/version/state/state_i.h"

#include <errno.h>

void rs_damage_met(struct rs_service *s, const struct sc_err *err)
{
	bool is_new;
	size_t i = 0;

	if (!err->blob || (err->code != SC_E_DAMAGED && err->errnum != ENOENT))
		return;
	(void)pthread_mutex_lock(&s->met.lock);
	while (i < s->met.nr && s->met.at[i].blob != err->blob)
		i++;
	is_new = i == s->met.nr && i < RS_MET_MAX;
	if (is_new)
		s->met.at[s->met.nr++] = (struct rs_met){.blob = err->blob, .due_ns = sc_now_ns()};
	(void)pthread_mutex_unlock(&s->met.lock);
	if (is_new)
		rs_worker_call(s, false);
}

size_t rs_met_copy(struct rs_service *s, uint64_t ret[RS_MET_MAX])
{
	size_t nr;

	(void)pthread_mutex_lock(&s->met.lock);
	nr = s->met.nr;
	for (size_t i = 0; i < nr; i++)
		ret[i] = s->met.at[i].blob;
	(void)pthread_mutex_unlock(&s->met.lock);
	return nr;
}

void rs_met_forget(struct rs_service *s, uint64_t blob)
{
	(void)pthread_mutex_lock(&s->met.lock);
	for (size_t i = 0; i < s->met.nr; i++)
		if (s->met.at[i].blob == blob) {
			s->met.at[i] = s->met.at[--s->met.nr];
			break;
		}
	(void)pthread_mutex_unlock(&s->met.lock);
}
