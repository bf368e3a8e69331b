/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Keeps the rows of dropped versions for a while.  Programs may have files of a dropped version open, or have looked
 * them up a moment ago; memory has these views (state/leaving.c).  If another daemon may take over (mount -o hold), the
 * catalog has to have them, too: it hides a dropped version and keeps its rows.  The rows go when nobody has a file of
 * the version open and RS_LEAVING_NS have passed since this daemon first saw it hidden.
 * Owner of the list: service.lock.
 */
#include "reshard/worktree/requests/requests_i.h"

/* Finds or makes the entry of a version; NULL: out of memory.  The caller holds s->lock. */
static struct rs_hidden *hidden(struct rs_service *s, uint64_t version)
{
	struct rs_requests *r = s->requests;

	for (size_t i = 0; i < r->hidden.nr; i++)
		if (r->hidden.at[i].version == version)
			return &r->hidden.at[i];
	return sc_vec_push(&r->hidden, (struct rs_hidden){.version = version}) < 0 ? NULL
										   : &r->hidden.at[r->hidden.nr - 1];
}

/* Removes an entry.  The caller holds s->lock. */
static void drop_hidden(struct rs_service *s, struct rs_hidden *h)
{
	*h = s->requests->hidden.at[--s->requests->hidden.nr];
}

void rs_view_opened(struct rs_service *s, const struct rs_view *view)
{
	struct rs_hidden *h;

	if (!s->is_held && !s->shared)
		return;
	(void)pthread_mutex_lock(&s->lock);
	h = hidden(s, view->version->id);
	if (h)
		h->opens++;
	(void)pthread_mutex_unlock(&s->lock);
}

void rs_view_closed(struct rs_service *s, const struct rs_view *view)
{
	bool is_last = false;
	struct rs_hidden *h;

	if (!s->is_held && !s->shared)
		return;
	(void)pthread_mutex_lock(&s->lock);
	h = hidden(s, view->version->id);
	if (h && h->opens)
		h->opens--;
	if (h && !h->opens) {
		is_last = h->since_ns;
		if (!is_last)
			drop_hidden(s, h);
	}
	if (is_last)
		s->requests->hidden.due_ns = 0;
	(void)pthread_mutex_unlock(&s->lock);
	if (is_last)
		rs_worker_call(s, true);
}

bool rs_version_is_open(struct rs_service *s, uint64_t version)
{
	bool is = false;

	(void)pthread_mutex_lock(&s->lock);
	for (size_t i = 0; i < s->requests->hidden.nr; i++)
		is |= s->requests->hidden.at[i].version == version && s->requests->hidden.at[i].opens;
	(void)pthread_mutex_unlock(&s->lock);
	return is;
}

int rs_version_drop(struct rs_service *s, uint64_t version, struct sc_err *err)
{
	return s->is_held ? meta_version_hide(s->catalog, version, err) : meta_version_remove(s->catalog, version, err);
}

/* Tells whether the rows of a hidden version may go. */
static bool may_go(struct rs_service *s, uint64_t version, bool all, bool *ret_more)
{
	int64_t now = sc_now_ns();
	struct rs_hidden *h;
	bool may = all;

	(void)pthread_mutex_lock(&s->lock);
	h = hidden(s, version);
	if (h && !h->since_ns)
		h->since_ns = now; /* or it was dropped by an earlier daemon */
	if (h && h->opens)
		may = false;
	else if (h && now - h->since_ns >= RS_LEAVING_NS)
		may = true;
	else if (!may)
		*ret_more = true;
	if (h && may)
		drop_hidden(s, h);
	(void)pthread_mutex_unlock(&s->lock);
	return may;
}

static int on_hidden(void *arg, uint64_t version)
{
	return sc_vec_push((struct rs_numbers *)arg, version) < 0 ? SC_E_NO_MEMORY : 0;
}

int rs_hidden_remove(struct rs_service *s, bool all, bool *ret_more, struct sc_err *err)
{
	struct rs_numbers versions = {0};
	int64_t now = sc_now_ns();
	int rc;

	if (s->shared) /* other nodes may read them (reshard/cluster/stored/gone.c) */
		return 0;
	(void)pthread_mutex_lock(&s->lock);
	*ret_more = !all && now < s->requests->hidden.due_ns;
	if (!*ret_more)
		s->requests->hidden.due_ns = now + RS_LEAVING_NS; /* many at once */
	(void)pthread_mutex_unlock(&s->lock);
	if (*ret_more)
		return 0;
	rc = meta_version_hidden(s->catalog, on_hidden, &versions, err);
	if (rc == SC_E_NO_MEMORY)
		rc = sc_nomem(err);
	for (size_t i = 0; rc == 0 && i < versions.nr; i++)
		if (may_go(s, versions.at[i], all, ret_more)) {
			rc = meta_version_remove(s->catalog, versions.at[i], err);
			rs_views_leave(s, versions.at[i]); /* who has loaded some of the rows loads them again */
		}
	sc_vec_done(&versions);
	return rc;
}
