/* SPDX-License-Identifier: Apache-2.0 */
/* Keeps images: all who read a file share one, and it stays for a while after. */
#include "reshard/version/state/state_i.h"

#include <assert.h>
#include <inttypes.h>
#include <string.h>

#define IDLE_IMAGES_BYTES_MAX (48u << 20) /* descriptions kept after their last use */

static size_t image_bucket(const struct rs_view *view, uint32_t rank, const char *file)
{
	uint64_t h = (uintptr_t)view / 64 * 0x9e3779b97f4a7c15u + rank;

	while (*file)
		h = (h ^ (unsigned char)*file++) * 0x100000001b3u;
	return (h ^ h >> 29) % IMAGE_BUCKETS;
}

static void image_leave_idle(struct rs_service *s, struct rs_kept_image *k)
{
	k->idle_before->idle_after = k->idle_after;
	k->idle_after->idle_before = k->idle_before;
	k->idle_before = k->idle_after = NULL;
	s->images.idle_cost -= k->cost;
}

static void image_drop(struct rs_service *s, struct rs_kept_image *k)
{
	struct rs_kept_image **at = &s->images.buckets[image_bucket(k->view, k->rank, k->file)];

	image_leave_idle(s, k);
	while (*at != k)
		at = &(*at)->next;
	*at = k->next;
	rs_image_free(k->image);
	rs_view_unref(s, k->view);
	(void)pthread_mutex_destroy(&k->open_lock);
	sc_sys.release(k);
}

static struct rs_kept_image *find_image(struct rs_service *s, struct rs_view *view, uint32_t rank,
					const char *file, bool as_view)
{
	struct rs_kept_image *k = s->images.buckets[image_bucket(view, rank, file)];

	while (k && (k->superseded || k->view != view || k->rank != rank || strcmp(k->file, file) != 0 ||
		     (as_view && !k->as_view && k->image->same_as) || (!as_view && k->as_view)))
		k = k->next;
	if (k && k->refs++ == 0)
		image_leave_idle(s, k);
	return k;
}

static uint64_t image_cost(const struct rs_image *im)
{
	uint64_t n = sizeof(struct rs_kept_image) + sizeof(*im) + im->frame.arena.bytes + im->frame.text_bytes +
		     im->sources.arena.bytes + im->sources.room * sizeof(*im->sources.at);

	for (uint32_t i = 0; im->gathers && i < im->nr; i++)
		n += im->gathers[i].room * sizeof(*im->gathers[i].copies);
	return n;
}

/* Tells whether a file that is made for a view has tensors of a set: 1, 0 or an error. */
static int is_made_of(const struct rs_view *view, uint32_t rank, const char *file, const struct rs_set *set,
		      struct sc_err *err)
{
	const struct rs_formed x = rs_view_formed(view);
	struct meta_stored_list list = {0};
	struct sc_arena arena = {0};
	int rc;

	if (view->form->one_folder)
		return rs_form_is_of(view->form, &x, file, set->file);
	rc = meta_view_rank(view->model, rank, file, &arena, &list, err);
	for (size_t i = 0; rc == 0 && i < list.nr; i++)
		rc = strcmp(view->model->state->tensors[list.at[i].entry->tensor].file, set->file) == 0;
	sc_vec_done(&list);
	sc_arena_done(&arena);
	return rc;
}

/* Refuses a file that would have one of several copies of a tensor, which differ, or bytes that were not committed. */
static int refuse_differing(const struct rs_view *view, uint32_t rank, const char *file, struct sc_err *err)
{
	const struct rs_version *v = view->version;
	int rc = 0;

	for (size_t i = 0; rc == 0 && i < v->nr_sets; i++) {
		struct rs_set *set = v->sets[i];

		if (__atomic_load_n(&set->verified, __ATOMIC_ACQUIRE) != META_DIFFER)
			continue;
		rc = is_made_of(view, rank, file, set, err);
		if (rc <= 0)
			continue;
		(void)pthread_mutex_lock(&set->report_lock);
		rc = sc_fail(err, SC_E_COPIES, "'%s' would have one copy of several, and copies differ or have "
			     "changed: %.*s; read ranks' own files in .v/%" PRIu64 ", or write '%s' again with equal "
			     "copies and commit",
			     file, (int)strcspn(set->report, "\n"), set->report, v->nr, set->file);
		(void)pthread_mutex_unlock(&set->report_lock);
	}
	return rc;
}

/* Describes a file: `blob` says which one it is (0: the view does). */
static int describe(struct rs_service *s, const struct rs_kept_image *k, struct rs_view *view, uint64_t blob,
		    uint64_t bytes, struct rs_image **ret, struct sc_err *err)
{
	struct rs_formed x = rs_view_formed(view);
	struct rs_place place;
	int rc;

	if (!blob && !k->as_view)
		blob = rs_made_find(view, k->rank, k->file, &bytes);
	rc = blob ? rs_image_same(blob, bytes, ret, err)
		  : rs_form_image(view->form, &x, k->rank, k->file, k->as_view, ret, err);
	if (rc < 0 || !(*ret)->same_as)
		return rc;
	if ((*ret)->stands_in && refuse_differing(view, k->rank, k->file, err) < 0) {
		*ret = rs_image_free(*ret);
		return err->code;
	}
	rc = rs_blob_place(s->blobs, (*ret)->same_as, (*ret)->bytes, 0, &place, err);
	if (rc > 0 && rs_blob_is_gone(s->blobs, (*ret)->same_as) &&
	    rs_replica_place(s, view->version, (*ret)->same_as, &place, err) < 0)
		rc = err->code;
	if (rc > 0 || (rc == 0 && (*ret)->stands_in))
		rc = rs_image_whole(*ret, (*ret)->bytes, &place, err);
	if (rc < 0)
		*ret = rs_image_free(*ret);
	return rc;
}

static int image_make(struct rs_service *s, struct rs_view *view, uint32_t rank, const char *file,
		      bool as_view, uint64_t blob, uint64_t blob_bytes, struct rs_kept_image **ret, struct sc_err *err)
{
	size_t bytes = strlen(file) + 1;
	struct rs_kept_image *k = sc_zalloc(sizeof(*k) + bytes), *other;
	int rc;

	if (!k)
		return sc_nomem(err);
	k->file = memcpy(k + 1, file, bytes);
	k->rank = rank;
	k->refs = 1;
	k->as_view = as_view;
	rc = describe(s, k, view, blob, blob_bytes, &k->image, err);
	if (rc < 0) {
		sc_sys.release(k);
		return rc;
	}
	(void)pthread_mutex_init(&k->open_lock, NULL);
	k->image->keeper = k;
	k->view = rs_view_ref(view);
	k->cost = image_cost(k->image);
	(void)pthread_mutex_lock(&s->images.lock);
	other = find_image(s, view, rank, file, as_view);
	if (!other) {
		size_t b = image_bucket(view, rank, file);

		k->next = s->images.buckets[b];
		s->images.buckets[b] = k;
	}
	(void)pthread_mutex_unlock(&s->images.lock);
	if (other) {
		rs_image_free(k->image);
		rs_view_unref(s, k->view);
		(void)pthread_mutex_destroy(&k->open_lock);
		sc_sys.release(k);
	}
	*ret = other ? other : k;
	return 0;
}

/* Tells whether an image may stay without a reader.  It holds its view, and with that all of a version, so only images
 * of views that are kept anyway may.  The caller holds images.lock, which a thread that forgets a view takes after
 * that. */
static bool may_idle(struct rs_view *view)
{
	return __atomic_load_n(&view->kept, __ATOMIC_ACQUIRE) || rs_view_is_head(view);
}

static void image_put(struct rs_service *s, struct rs_kept_image *k)
{
	(void)pthread_mutex_lock(&s->images.lock);
	assert(k->refs > 0);
	if (--k->refs == 0) {
		k->idle_before = s->images.idle.idle_before;
		k->idle_after = &s->images.idle;
		s->images.idle.idle_before->idle_after = k;
		s->images.idle.idle_before = k;
		s->images.idle_cost += k->cost;
		if (k->superseded || !may_idle(k->view))
			image_drop(s, k);
		while (s->images.idle_cost > IDLE_IMAGES_BYTES_MAX)
			image_drop(s, s->images.idle.idle_after);
	}
	(void)pthread_mutex_unlock(&s->images.lock);
}

/*
 * Tells whether a view is a version's own presentation, the only one that shows files as they are stored: the storage
 * of a version becomes as it presents its files, and stays so.  Another topology may be that of the storage which the
 * version has from the version before, and soon loses.  Its files would first have the form that a framework gave them,
 * then ours, and a program that opens a path twice would read the bytes of one by the header of the other.
 */
static bool is_own_presentation(const struct rs_view *view)
{
	return strcmp(view->topo.text, view->version->topo.text) == 0;
}

/* Tells whether a rank wrote this very file: it gets its own bytes back, though copies of the file exist. */
static bool is_as_written(const struct rs_view *view, uint32_t rank, const char *file)
{
	const struct rs_version *v = view->version;

	for (size_t i = 0; i < v->nr_sets; i++)
		if (view->as_stored[i] && rs_set_find(v->sets[i], rank, file))
			return true;
	return false;
}

/* Finds or makes the image of a file by its stored name. */
static int image_get(struct rs_service *s, struct rs_view *view, uint32_t rank, const char *file, bool as_view,
		     struct rs_kept_image **ret, struct sc_err *err)
{
	as_view |= !is_own_presentation(view);
	if (!view->form->one_folder && !is_as_written(view, rank, file))
		rank = rs_view_alike(view, rank, file); /* replicas share one */
	(void)pthread_mutex_lock(&s->images.lock);
	*ret = find_image(s, view, rank, file, as_view);
	(void)pthread_mutex_unlock(&s->images.lock);
	return *ret ? 0 : image_make(s, view, rank, file, as_view, 0, 0, ret, err);
}

static int open_image(struct rs_kept_image *k, struct rs_view *view, struct sc_err *err)
{
	int rc = 0;

	(void)pthread_mutex_lock(&k->open_lock);
	if (!k->image->mapped.data)
		rc = rs_image_open(k->image, &view->origins, err);
	(void)pthread_mutex_unlock(&k->open_lock);
	return rc;
}

int rs_view_elsewhere(struct rs_service *s, struct rs_view *view, uint32_t rank, const char *file, uint64_t blob,
		      uint64_t bytes, struct rs_image **ret, struct sc_err *err)
{
	struct rs_kept_image *k;
	int rc = 0;

	(void)pthread_mutex_lock(&s->images.lock);
	k = find_image(s, view, rank, file, false);
	(void)pthread_mutex_unlock(&s->images.lock);
	if (k && k->image->same_as != blob && !k->image->stands_in) { /* the version has another storage by now */
		image_put(s, k);
		return sc_fail(err, SC_E_STALE, "look again");
	}
	if (!k)
		rc = image_make(s, view, rank, file, false, blob, bytes, &k, err);
	if (rc < 0)
		return rc;
	rc = open_image(k, view, err);
	if (rc < 0)
		image_put(s, k);
	else
		*ret = k->image;
	return rc;
}

int rs_view_image(struct rs_service *s, struct rs_view *view, uint32_t rank, const char *file,
		  bool as_view, bool open, struct rs_image **ret, struct sc_err *err)
{
	struct rs_kept_image *k = NULL;
	struct sc_arena arena = {0};
	int rc = rs_view_stored(view, rank, file, &arena, &file, err);

	if (rc == 0)
		rc = image_get(s, view, rank, file, as_view, &k, err);
	if (rc == 0 && open && !k->image->same_as) {
		rc = refuse_differing(view, rank, file, err);
		if (rc == 0)
			rc = open_image(k, view, err);
	}
	sc_arena_done(&arena);
	if (!k)
		return rc;
	if (rc < 0)
		image_put(s, k);
	else
		*ret = k->image;
	return rc;
}

void rs_image_ref(struct rs_service *s, struct rs_image *image)
{
	struct rs_kept_image *k = image->keeper;

	(void)pthread_mutex_lock(&s->images.lock);
	assert(k->refs > 0);
	k->refs++;
	(void)pthread_mutex_unlock(&s->images.lock);
}

void rs_image_unref(struct rs_service *s, struct rs_image *image)
{
	if (image)
		image_put(s, image->keeper);
}

void rs_image_supersede(struct rs_service *s, struct rs_image *image)
{
	struct rs_kept_image *k = image->keeper;

	(void)pthread_mutex_lock(&s->images.lock);
	k->superseded = true;
	(void)pthread_mutex_unlock(&s->images.lock);
}

void rs_images_forget(struct rs_service *s, const struct rs_view *view)
{
	(void)pthread_mutex_lock(&s->images.lock);
	for (struct rs_kept_image *k = s->images.idle.idle_after, *next; k != &s->images.idle; k = next) {
		next = k->idle_after;
		if (!view || k->view == view)
			image_drop(s, k);
	}
	for (size_t i = 0; !view && i < IMAGE_BUCKETS; i++)
		for (struct rs_kept_image *k = s->images.buckets[i]; k; k = k->next)
			k->superseded = true;
	(void)pthread_mutex_unlock(&s->images.lock);
}
