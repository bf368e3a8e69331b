/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Decides which versions keep= drops, and when.  The transaction that makes a version drops all versions without a tag
 * but the newest N.  At that moment nobody has compared the copies of the new version yet (verify=background).  So:
 *
 * 1. If none of the newest N is known to be right, one older version stays, too: the newest that is known to be right,
 *    or, if there is none, the newest that is not known to be wrong.
 * 2. The worker drops the version that stayed for that reason once it has verified the head and found it right.  The
 *    command that makes the next version drops it, too, unless it is still the newest version that is right.
 * 3. The catalog says that a version stays (meta_job_set_spared()), by the transaction that spared it: after a crash
 *    the next daemon's worker drops it.  A smaller keep= drops nothing by itself.
 *
 * A version is right if all its sets are verified as equal, and none of its files is marked as damaged.  In a cluster
 * the nodes decide together (reshard/cluster/protocol/bytes.c).
 */
#include "reshard/command/commands/command_i.h"

#include <inttypes.h>
#include <time.h>

#define LOCK_MS 200u

struct old_versions {
	struct {
		size_t nr, room;
		struct old {
			uint64_t id, nr;
		} *at;			/* without a tag, oldest first */
	} all;
	struct sc_err *err;
};

static int on_version(void *arg, const struct meta_version_row *row)
{
	struct old_versions *o = arg;
	const struct old one = {row->id, row->nr};

	return row->tag ? 0 : sc_vec_push(&o->all, one) < 0 ? sc_nomem(o->err) : 0;
}

/* Tells whether versions may be dropped.  If the head lacks anything that it lists, older versions may be the only ones
 * that have it. */
static bool may_drop(struct rs_service *s, struct rs_job *job, const struct rs_version *head)
{
	char name[SC_NAME_BYTES_MAX + 1];
	struct sc_err lacks;

	if (rs_version_look_up(s, head, &lacks) == 0)
		return true;
	sc_log(SC_LOG_ERROR, "job '%s': version %" PRIu64 ": %s; older versions are kept, continuing",
	       rs_job_name(job, name, sizeof(name)), head->nr, lacks.msg);
	rs_job_complain(job, "keep: older versions are kept", &lacks);
	return false;
}

static int is_right(struct rs_service *s, uint64_t version, struct sc_err *err)
{
	int rc = meta_version_is_right(s->catalog, version, err), damaged = 0;

	if (rc > 0 && meta_store_has_damage(&s->store))
		damaged = meta_version_is_damaged(s->catalog, version, err);
	return damaged < 0 ? damaged : rc > 0 ? !damaged : rc;
}

/* Applies rule 1: *ret is the place of the version before `end` that stays; the number of all versions: none does. */
static int find_spared(struct rs_service *s, const struct old_versions *o, size_t end, size_t *ret, struct sc_err *err)
{
	int rc = 0;

	*ret = o->all.nr;
	for (size_t i = o->all.nr; rc == 0 && i-- > 0;) {
		rc = is_right(s, o->all.at[i].id, err);
		if (rc > 0 && i < end)
			*ret = i;
	}
	if (rc != 0)
		return rc < 0 ? rc : 0;
	for (size_t i = end; i-- > 0;) {
		rc = meta_version_differs(s->catalog, o->all.at[i].id, err);
		if (rc == 0 && *ret == o->all.nr)
			*ret = i; /* unless an older one is whole */
		if (rc == 0)
			rc = meta_version_is_damaged(s->catalog, o->all.at[i].id, err);
		if (rc == 0)
			*ret = i;
		if (rc <= 0)
			return rc;
	}
	return 0;
}

/* Drops a version, inside a transaction. */
static int drop(struct rs_service *s, struct rs_job *job, uint64_t version, struct sc_err *err)
{
	int rc = meta_stale_note_job(s->catalog, job->id, version, err);

	if (rc == 0)
		rc = rs_version_drop(s, version, err);
	if (rc == 0)
		rs_views_leave(s, version);
	return rc;
}

int rs_versions_drop_old(struct rs_service *s, struct rs_job *job, const struct rs_version *head, struct sc_err *err)
{
	const struct rs_config config = rs_config_of(job);
	struct old_versions o = {.err = err};
	size_t end = 0, spared = SIZE_MAX;
	int rc = 0;

	if (s->member) /* a cluster decides together */
		return 0;
	if (config.keep)
		rc = meta_version_each(s->catalog, job->id, on_version, &o, err);
	if (rc == 0 && o.all.nr > config.keep && may_drop(s, job, head))
		end = o.all.nr - config.keep;
	if (rc == 0 && end && !config.drop_at_once)
		rc = find_spared(s, &o, end, &spared, err);
	for (size_t i = 0; rc == 0 && i < end; i++)
		if (o.all.at[i].id != head->id && i != spared)
			rc = drop(s, job, o.all.at[i].id, err);
	if (rc == 0)
		rc = meta_job_set_spared(s->catalog, job->id, spared < end ? o.all.at[end].nr : 0, err);
	sc_vec_done(&o.all);
	return rc;
}

/* Drops the versions before number `before` that keep= does not keep; it may be larger now than when they were spared.
 * Returns how many were dropped, or an error. */
static int drop_before(struct rs_service *s, struct rs_job *job, const struct rs_version *head, uint64_t before,
		       struct sc_err *err)
{
	const uint32_t keep = rs_config_of(job).keep;
	struct old_versions o = {.err = err};
	int nr = 0, rc = meta_catalog_begin(s->catalog, rs_job_syncs(job), err);

	if (rc < 0)
		return rc;
	rc = meta_version_each(s->catalog, job->id, on_version, &o, err);
	for (size_t i = 0; rc == 0 && keep && i + keep < o.all.nr && o.all.at[i].nr < before; i++) {
		if (o.all.at[i].id == head->id)
			continue;
		rc = drop(s, job, o.all.at[i].id, err);
		nr++;
	}
	if (rc == 0)
		rc = meta_job_set_spared(s->catalog, job->id, 0, err);
	rc = meta_catalog_end(s->catalog, rc, err);
	sc_vec_done(&o.all);
	return rc < 0 ? rc : nr;
}

/* Takes job->command if it is free within LOCK_MS.  A command that makes a version may take minutes, and wakes the
 * worker when it ends; other commands are short. */
static bool lock_soon(struct rs_job *job)
{
	const struct timespec ms = {.tv_nsec = 1000000};

	for (unsigned i = 0; i < LOCK_MS; i++) {
		if (pthread_mutex_trylock(&job->command) == 0)
			return true;
		(void)nanosleep(&ms, NULL);
	}
	return false;
}

int rs_versions_drop_spared(struct rs_service *s, struct rs_job *job, bool *ret_dropped, struct sc_err *err)
{
	struct rs_view *head;
	struct sc_err lacks;
	uint64_t before = 0;
	int rc = s->member ? 0 : meta_job_spared(s->catalog, job->id, &before, err);

	if (rc < 0 || !before)
		return rc;
	if (!lock_soon(job))
		return 0;
	head = rs_job_is_removed(job) ? NULL : rs_job_head(job);
	if (head) /* a command may have made it since */
		rc = meta_job_spared(s->catalog, job->id, &before, err);
	if (rc == 0 && head && before)
		rc = is_right(s, head->version->id, err);
	if (rc > 0 && rs_version_look_up(s, head->version, &lacks) < 0)
		rc = 0; /* the command has said so */
	if (rc > 0) { /* as where a command drops versions: nobody is on his way through their rows */
		(void)rs_tree_close(job, false, err);
		rc = drop_before(s, job, head->version, before, err);
		rs_tree_open(job);
	}
	rs_view_unref(s, head);
	(void)pthread_mutex_unlock(&job->command);
	if (rc <= 0)
		return rc;
	*ret_dropped = true;
	s->events.names_changed(s->events.arg);
	rs_job_tell(job);
	return 0;
}
