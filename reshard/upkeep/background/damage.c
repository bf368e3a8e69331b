/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Tells errors which say that a blob is damaged from errors that only prevent a look at it.  Damage is another hash or
 * size, or a file that is gone or that the disk does not give.  All other errors say nothing about a blob: the worker
 * looks at it again.
 */
#include "reshard/upkeep/background/upkeep_i.h"
#include "reshard/version/verify/verify.h"

#include <errno.h>
#include <inttypes.h>
#include <string.h>

bool rs_is_damage(const struct sc_err *why)
{
	return why->code == SC_E_DAMAGED || why->errnum == ENOENT;
}

void rs_left_add(struct rs_left *left, const struct sc_err *why)
{
	if (left->nr++ == 0)
		left->why = *why;
}

bool rs_left_by(struct rs_left *left, const struct sc_err *why)
{
	bool is = why->code && !rs_is_damage(why);

	if (is)
		rs_left_add(left, why);
	return is;
}

int rs_left_say(const struct rs_left *left, struct sc_err *err)
{
	if (!left->nr)
		return 0;
	*err = left->why;
	return sc_wrap(err, err->code, "%u blobs could not be checked and wait for another look", left->nr);
}

int rs_blob_mark(struct rs_service *s, uint64_t blob, bool damaged, struct sc_err *err)
{
	int rc = meta_store_set_damaged(&s->store, blob, damaged, err);
	struct rs_job *job;

	if (rc >= 0)
		rs_met_forget(s, blob);
	if (rc > 0)
		rs_worker_call(s, false);
	for (size_t i = 0; rc > 0 && (job = rs_job_at(s, i)); i++)
		rs_job_tell(job);
	return rc;
}

void rs_blob_anew(struct rs_service *s, uint64_t blob)
{
	rs_blob_forget(s->blobs, blob);
	rs_images_forget(s, NULL);
}

void rs_bytes_were_wrong(struct rs_service *s, uint64_t blob)
{
	__atomic_store_n(&s->gave_wrong, true, __ATOMIC_RELEASE);
	rs_blob_anew(s, blob);
}

bool rs_service_gave_wrong(const struct rs_service *s)
{
	return __atomic_load_n(&s->gave_wrong, __ATOMIC_ACQUIRE);
}

void rs_damage_tell(struct rs_service *s, uint64_t blob)
{
	const struct rs_copies_ops *ops = __atomic_load_n(&s->copies, __ATOMIC_ACQUIRE);

	rs_bytes_were_wrong(s, blob);
	if (ops)
		ops->wrong(s->member, blob);
}

void rs_use_text(const struct meta_blob_use *use, struct sc_buf *buf)
{
	if (use->rank >= 0)
		sc_buf_printf(buf, "rank %" PRId64 " ", use->rank);
	sc_buf_printf(buf, "'%s'", use->path);
}

int rs_use_add(void *arg, const struct meta_blob_use *use)
{
	struct sc_buf *buf = arg;

	sc_buf_printf(buf, "%sjob '%s' version %" PRIu64 " ", buf->bytes ? ", " : "", use->job, use->version);
	rs_use_text(use, buf);
	return 0;
}

static int on_any_use(void *arg, const struct meta_blob_use *use)
{
	(void)arg, (void)use;
	return 1;
}

int rs_blob_is_used(struct rs_service *s, uint64_t blob, struct sc_err *err)
{
	return meta_blob_uses(s->catalog, blob, on_any_use, NULL, err);
}

/* Tells whether a head has tensors that are not as they were committed. */
static bool any_other(struct rs_service *s)
{
	struct rs_job *job;
	bool is = false;

	for (size_t i = 0; !is && (job = rs_job_at(s, i)); i++) {
		struct rs_view *head = rs_job_is_removed(job) ? NULL : rs_job_head(job);

		for (size_t k = 0; head && !is && k < head->version->nr_sets; k++)
			is = rs_verify_is_other(head->version->sets[k]);
		rs_view_unref(s, head);
	}
	return is;
}

bool rs_service_is_damaged(struct rs_service *s)
{
	bool is = meta_store_has_damage(&s->store) || any_other(s);
	uint64_t met[RS_MET_MAX];
	size_t nr = is ? 0 : rs_met_copy(s, met);
	struct sc_err ignored;

	/* what no version has any more was only dropped while somebody opened it */
	for (size_t i = 0; !is && i < nr; i++)
		is = rs_blob_is_used(s, met[i], &ignored) != 0;
	return is;
}

static int on_damaged(void *arg, uint64_t blob)
{
	struct rs_service *s = arg;
	struct sc_err ignored;
	int rc = meta_store_set_damaged(&s->store, blob, true, &ignored);

	return rc < 0 ? rc : 0;
}

int rs_damaged_load(struct rs_service *s, struct sc_err *err)
{
	int rc = meta_blob_damaged(s->catalog, on_damaged, s, err);

	return rc == SC_E_NO_MEMORY ? sc_nomem(err) : rc;
}

void rs_say_once(struct sc_err *said, int rc, const struct sc_err *err)
{
	if (rc < 0 && strcmp(said->msg, err->msg) != 0)
		sc_log(SC_LOG_WARN, "%s, continuing", err->msg);
	*said = rc < 0 ? *err : (struct sc_err){0};
}
