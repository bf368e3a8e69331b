/* SPDX-License-Identifier: Apache-2.0 */
/* Takes requests of other threads to the node's thread, which alone talks to etcd and to the core. */
#include "reshard/cluster/peers/peers_i.h"

#include <string.h>

#define PAUSE_NS (50 * MEMBER_MS)

enum meta_outcome rs_member_ask_why(struct rs_member *m, const struct meta_txn *txn, rs_answer_fn *take, void *arg,
				    enum rs_unanswered *ret_why)
{
	struct rs_ask ask = {.txn = txn, .take = take, .arg = arg, .outcome = META_UNKNOWN, .why = RS_UNSENT};

	(void)pthread_mutex_lock(&m->lock);
	if (!m->stop) {
		ask.next = m->asks;
		m->asks = &ask;
		meta_etcd_wake(m->etcd);
		while (!ask.done)
			(void)pthread_cond_wait(&m->changed, &m->lock);
	}
	(void)pthread_mutex_unlock(&m->lock);
	*ret_why = ask.why;
	return ask.outcome;
}

enum meta_outcome rs_member_ask(struct rs_member *m, const struct meta_txn *txn, rs_answer_fn *take, void *arg)
{
	enum rs_unanswered ignored;

	return rs_member_ask_why(m, txn, take, arg, &ignored);
}

bool rs_ask_pause(struct rs_member *m, int64_t until)
{
	const int64_t now = sc_now_ns(), end = now + PAUSE_NS < until ? now + PAUSE_NS : until;
	bool ends;

	(void)pthread_mutex_lock(&m->lock);
	while (!m->stop && sc_now_ns() < end)
		(void)sc_sys.wait_until(&m->changed, &m->lock, end);
	ends = m->stop;
	(void)pthread_mutex_unlock(&m->lock);
	return !ends && now < until;
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
