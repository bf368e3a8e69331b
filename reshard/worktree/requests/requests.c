/* SPDX-License-Identifier: Apache-2.0 */
/* Makes and frees what this room remembers of the working trees of all jobs. */
#include "reshard/worktree/requests/requests_i.h"

int rs_requests_new(struct rs_service *s, struct sc_err *err)
{
	s->requests = sc_zalloc(sizeof(*s->requests));
	if (!s->requests)
		return sc_nomem(err);
	(void)pthread_mutex_init(&s->requests->log.lock, NULL);
	(void)pthread_cond_init(&s->requests->log.wake, NULL);
	rs_opened_init(s);
	return 0;
}

void rs_requests_free(struct rs_service *s)
{
	struct rs_requests *r = s->requests;

	if (!r)
		return;
	rs_opened_done(s);
	sc_vec_done(&r->hidden);
	sc_vec_done(&r->pinned);
	sc_vec_done(&r->numbers);
	(void)pthread_cond_destroy(&r->log.wake);
	(void)pthread_mutex_destroy(&r->log.lock);
	sc_sys.release(r);
	s->requests = NULL;
}
