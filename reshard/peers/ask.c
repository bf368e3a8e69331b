/* SPDX-License-Identifier: Apache-2.0 */
/* Takes requests of other threads to the node's thread, which alone talks to etcd and to the core. */
#include "reshard/peers/peers_i.h"

#include <string.h>

enum meta_outcome rs_member_ask(struct rs_member *m, const struct meta_txn *txn, rs_answer_fn *take, void *arg)
{
	struct rs_ask ask = {.txn = txn, .take = take, .arg = arg, .outcome = META_UNKNOWN};

	(void)pthread_mutex_lock(&m->lock);
	if (!m->stop) {
		ask.next = m->asks;
		m->asks = &ask;
		meta_etcd_wake(m->etcd);
		while (!ask.done)
			(void)pthread_cond_wait(&m->changed, &m->lock);
	}
	(void)pthread_mutex_unlock(&m->lock);
	return ask.outcome;
}

int rs_ask_failed(struct rs_member *m, struct sc_err *err, const char *why)
{
	bool is_full;

	(void)pthread_mutex_lock(&m->lock);
	is_full = m->full;
	(void)pthread_mutex_unlock(&m->lock);
	return is_full ? sc_fail(err, SC_E_NO_SPACE, RS_FULL) : sc_fail(err, SC_E_SYSTEM, "%s", why);
}

void rs_member_post(struct rs_member *m, const struct rs_event *e)
{
	(void)pthread_mutex_lock(&m->lock);
	if (!m->stop && sc_vec_push(&m->events, *e) < 0)
		sc_log(SC_LOG_ERROR, "out of memory: an event of job %lu is lost; its command ends by its deadline",
		       (unsigned long)e->job);
	(void)pthread_mutex_unlock(&m->lock);
	meta_etcd_wake(m->etcd);
}
