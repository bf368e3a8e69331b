/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Keeps views between uses, and for a moment after their versions were dropped or got another storage.
 *
 * The kernel looks up a name in one request and opens the file in another, and a version may be dropped in between.  So
 * for RS_LEAVING_NS its views can be found, and their blobs are not removed.  Of many that are dropped at once, only
 * the last are found, and those that are pinned: an open that comes for an earlier one is told to look again.
 * Owner of the list: service.lock.
 */
#include "reshard/version/state/state_i.h"

#include <stdlib.h>

#define VIEWS_KEPT_MAX 64
#define VIEWS_LEAVING_MAX 64	/* of 16,384 ranks some 32 MiB */

/* --- views that are kept, by their numbers --- */

/* Drops the images of a view that has left the cache, if they only wait for their next use.  Called without the
 * lock. */
static void view_left(struct rs_service *s, struct rs_view *view)
{
	if (!view)
		return;
	__atomic_store_n(&view->kept, false, __ATOMIC_RELEASE);
	rs_images_forget(s, view);
	rs_view_unref(s, view);
}

/* Takes the view out that was not used for longest; the pinned ones, once all are.  The caller holds s->lock. */
static struct rs_view *take_last(struct rs_service *s)
{
	struct rs_view **last = NULL, *view;

	for (struct rs_view **at = &s->views.first; *at; at = &(*at)->next)
		if (!(*at)->pins || !last || (*last)->pins)
			last = at;
	view = *last;
	*last = view->next;
	s->views.nr--;
	return view;
}

bool rs_view_keep_loaded(struct rs_service *s, struct rs_view *view, uint64_t loaded)
{
	struct rs_view *last = NULL;

	(void)pthread_mutex_lock(&s->lock);
	if (loaded != s->leaving.times) {
		(void)pthread_mutex_unlock(&s->lock);
		return false;
	}
	view->next = s->views.first;
	s->views.first = rs_view_ref(view);
	__atomic_store_n(&view->kept, true, __ATOMIC_RELEASE);
	if (++s->views.nr > VIEWS_KEPT_MAX)
		last = take_last(s);
	(void)pthread_mutex_unlock(&s->lock);
	view_left(s, last);
	return true;
}

void rs_view_keep(struct rs_service *s, struct rs_view *view)
{
	while (!rs_view_keep_loaded(s, view, __atomic_load_n(&s->leaving.times, __ATOMIC_ACQUIRE)))
		; /* it is the head's, which its caller has just made */
}

/* Drops a view from the cache (its version was removed or got another storage); the next use loads it again. */
static void view_forget(struct rs_service *s, uint64_t version)
{
	struct rs_view *gone = NULL;

	(void)pthread_mutex_lock(&s->lock);
	for (struct rs_view **at = &s->views.first; *at;) {
		struct rs_view *v = *at;

		if (v->version->id != version) {
			at = &v->next;
			continue;
		}
		*at = v->next;
		s->views.nr--;
		v->next = gone;
		gone = v;
	}
	(void)pthread_mutex_unlock(&s->lock);
	while (gone) {
		struct rs_view *v = gone;

		gone = v->next;
		view_left(s, v);
	}
}

/* --- and those that leave --- */

/* Moves the views that have been here for RS_LEAVING_NS, or are not of the last VIEWS_LEAVING_MAX, and are not pinned
 * (or all), to *gone.  The caller holds s->lock. */
static void end_leaving(struct rs_service *s, bool all, struct rs_view **gone)
{
	const size_t first = s->leaving.nr > VIEWS_LEAVING_MAX ? s->leaving.nr - VIEWS_LEAVING_MAX : 0;
	int64_t now = sc_now_ns();
	size_t kept = 0;

	for (size_t i = 0; i < s->leaving.nr; i++) {
		const struct rs_leaving *l = &s->leaving.at[i];

		if (!all && (l->view->pins || (i >= first && now - l->since_ns < RS_LEAVING_NS))) {
			s->leaving.at[kept++] = *l;
			continue;
		}
		s->leaving.at[i].view->next = *gone;
		*gone = s->leaving.at[i].view;
	}
	s->leaving.nr = kept;
}

static void unref_all(struct rs_service *s, struct rs_view *gone)
{
	for (struct rs_view *v = gone; v; v = gone) {
		gone = v->next;
		rs_view_unref(s, v);
	}
}

void rs_views_leave(struct rs_service *s, uint64_t version)
{
	struct rs_view *gone = NULL;
	int64_t now = sc_now_ns();

	(void)pthread_mutex_lock(&s->lock);
	(void)__atomic_add_fetch(&s->leaving.times, 1, __ATOMIC_RELEASE);
	for (struct rs_view *v = s->views.first; v; v = v->next)
		if (v->version->id == version && sc_vec_push(&s->leaving, (struct rs_leaving){v, now}) == 0)
			(void)rs_view_ref(v); /* without memory for it: an open that comes now is told to look again */
	end_leaving(s, false, &gone);
	(void)pthread_mutex_unlock(&s->lock);
	unref_all(s, gone);
	view_forget(s, version);
}

void rs_views_left(struct rs_service *s, bool all)
{
	struct rs_view *gone = NULL;

	(void)pthread_mutex_lock(&s->lock);
	end_leaving(s, all, &gone);
	(void)pthread_mutex_unlock(&s->lock);
	unref_all(s, gone);
	if (all)
		sc_vec_done(&s->leaving);
}

static int by_number(const void *a, const void *b)
{
	const uint64_t *x = a, *y = b;

	return *x < *y ? -1 : *x > *y;
}

int rs_views_leaving_blobs(struct rs_service *s, struct rs_numbers *ret, struct sc_err *err)
{
	struct rs_view *gone = NULL;
	int rc = 0;

	(void)pthread_mutex_lock(&s->lock);
	end_leaving(s, false, &gone);
	for (size_t i = 0; i < s->leaving.nr; i++) {
		const struct rs_version *v = s->leaving.at[i].view->version;

		for (size_t k = 0; k < v->nr_sets; k++)
			for (size_t b = 0; rc == 0 && b < v->sets[k]->nr_blobs; b++)
				rc = sc_vec_push(ret, v->sets[k]->blobs[b].blob) < 0 ? sc_nomem(err) : 0;
	}
	(void)pthread_mutex_unlock(&s->lock);
	unref_all(s, gone);
	if (ret->nr)
		qsort(ret->at, ret->nr, sizeof(*ret->at), by_number);
	return rc;
}

void rs_view_pin(struct rs_service *s, struct rs_view *view)
{
	(void)pthread_mutex_lock(&s->lock);
	view->pins++;
	(void)pthread_mutex_unlock(&s->lock);
}

void rs_view_unpin(struct rs_service *s, struct rs_view *view)
{
	(void)pthread_mutex_lock(&s->lock);
	view->pins--;
	(void)pthread_mutex_unlock(&s->lock);
}

struct rs_view *rs_view_leaving(struct rs_service *s, uint64_t place)
{
	struct rs_view *view = NULL;

	(void)pthread_mutex_lock(&s->lock);
	for (size_t i = s->leaving.nr; !view && i > 0; i--) /* the last one first */
		if (rs_view_has(s->leaving.at[i - 1].view, place))
			view = rs_view_ref(s->leaving.at[i - 1].view);
	(void)pthread_mutex_unlock(&s->lock);
	return view;
}

bool rs_view_before(struct rs_service *s, struct rs_view **view)
{
	struct rs_view *before = rs_view_leaving(s, (*view)->id);

	if (!before || before == *view) {
		rs_view_unref(s, before);
		return false;
	}
	rs_view_unref(s, *view);
	*view = before;
	return true;
}
