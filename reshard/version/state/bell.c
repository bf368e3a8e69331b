/* SPDX-License-Identifier: Apache-2.0 */
/* The worker's bell: whoever has work for the worker rings it, and work that takes long looks whether it has rung. */
#include "reshard/version/state/state_i.h"

void rs_kick(struct rs_service *s, bool garbage)
{
	(void)pthread_mutex_lock(&s->worker_lock);
	s->kick = true;
	s->garbage |= garbage;
	(void)pthread_cond_signal(&s->worker_wake);
	(void)pthread_mutex_unlock(&s->worker_lock);
}

bool rs_worker_is_called(struct rs_service *s)
{
	bool called;

	(void)pthread_mutex_lock(&s->worker_lock);
	called = s->worker.started && (s->stop || s->kick || (s->retry_ns && sc_now_ns() >= s->retry_ns));
	(void)pthread_mutex_unlock(&s->worker_lock);
	return called;
}
