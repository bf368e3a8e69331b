/* SPDX-License-Identifier: Apache-2.0 */
/* Calls of the worker: whoever has work for it calls it, and work that takes long looks whether it is called. */
#include "reshard/version/state/state_i.h"

void rs_worker_call(struct rs_service *s, bool garbage)
{
	(void)pthread_mutex_lock(&s->worker.lock);
	s->worker.called = true;
	s->worker.garbage |= garbage;
	(void)pthread_cond_signal(&s->worker.wake);
	(void)pthread_mutex_unlock(&s->worker.lock);
}

bool rs_worker_is_called(struct rs_service *s)
{
	bool called;

	(void)pthread_mutex_lock(&s->worker.lock);
	called = s->worker.thread.started && (s->worker.stop || s->worker.called ||
					      (s->worker.retry_ns && sc_now_ns() >= s->worker.retry_ns));
	(void)pthread_mutex_unlock(&s->worker.lock);
	return called;
}
