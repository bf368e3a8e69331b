/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Keeps the verdict of a verification in the row of its set.  If the bytes of a set have other digests now than it has,
 * they are not what was committed.  If a file of the set is known to be damaged, the file is mended or read no more,
 * and the verdict stays.  If no file is, nobody can say which one is wrong: it changed before it was hashed, or was
 * made of changed bytes.  Then the set is as wrong as one whose copies differ, until a verification finds the old
 * digests again.
 */
#include "reshard/version/verify/verify.h"

#include <inttypes.h>
#include <pthread.h>
#include <string.h>

#define IS_OTHER "is not what was committed"
#define DIFFER "hold different bytes"	/* the end of such a line of compare.c */

static pthread_mutex_t verdicts = PTHREAD_MUTEX_INITIALIZER; /* held while a row is written; before report_lock */

/* Saves a verdict: in the row, then in the set.  Takes the report. */
static int save(struct rs_service *s, struct rs_set *set, enum meta_verified verified, char *report, struct sc_err *err)
{
	struct sc_buf tensors = {0};
	struct rs_job *job;
	int rc;

	rs_set_tensors_text(set, &tensors);
	rc = tensors.failed || !report ? sc_nomem(err)
				       : meta_set_set_verified(s->catalog, set->id, verified,
							       tensors.text ? tensors.text : "", report, err);
	sc_buf_done(&tensors);
	if (rc < 0) {
		sc_sys.release(report);
		return rc;
	}
	(void)pthread_mutex_lock(&set->report_lock);
	sc_sys.release(set->report);
	set->report = report;
	(void)pthread_mutex_unlock(&set->report_lock);
	__atomic_store_n(&set->verified, verified, __ATOMIC_RELEASE);
	for (size_t i = 0; (job = rs_job_at(s, i)); i++)
		rs_job_tell(job); /* clones have it, too */
	return 0;
}

/* Keeps a verdict; takes digests and lines (NULL: none).  The caller holds `verdicts`. */
static int keep(struct rs_service *s, struct rs_set *set, int verdict, uint8_t (*digests)[16], char *lines,
		struct sc_err *err)
{
	struct sc_buf all = {0};

	sc_buf_printf(&all, "%s%s", lines ? lines : "", set->report);
	sc_sys.release(lines);
	/* once, for who reads them; again when the verdict could not be saved: they are the same */
	if (set->digests)
		sc_sys.release(digests);
	else if (digests)
		__atomic_store_n(&set->digests, digests, __ATOMIC_RELEASE);
	if (all.failed) {
		sc_buf_done(&all);
		return sc_nomem(err);
	}
	return save(s, set, verdict == 0 ? META_EQUAL : META_DIFFER, all.text, err);
}

int rs_verify_keep(struct rs_service *s, struct rs_set *set, int verdict, uint8_t (*digests)[16], char *report,
		   struct sc_err *err)
{
	int rc;

	(void)pthread_mutex_lock(&verdicts);
	rc = keep(s, set, verdict, digests, report, err);
	(void)pthread_mutex_unlock(&verdicts);
	return rc;
}

/* --- a set that has digests --- */

static bool has_damage(struct rs_service *s, const struct rs_set *set)
{
	uint64_t met[RS_MET_MAX];
	const size_t nr = rs_met_copy(s, met);

	for (size_t i = 0; i < set->nr_blobs; i++) {
		if (meta_store_is_damaged(&s->store, set->blobs[i].blob))
			return true;
		for (size_t k = 0; k < nr; k++)
			if (met[k] == set->blobs[i].blob)
				return true;
	}
	return false;
}

bool rs_verify_is_other(const struct rs_set *set)
{
	return __atomic_load_n(&set->verified, __ATOMIC_ACQUIRE) == META_DIFFER && rs_set_digests(set);
}

static int keep_other(struct rs_service *s, struct rs_set *set, const char *tensor, struct sc_err *err)
{
	struct sc_buf line = {0};

	if (rs_verify_is_other(set))
		return 0;
	sc_buf_printf(&line, "'%s' " IS_OTHER "\n", tensor);
	if (line.failed)
		return sc_nomem(err);
	sc_log(SC_LOG_ERROR, "'%s' of '%s' under '%s' " IS_OTHER ", and no file of it is known to be damaged; no "
	       "topology is made of it until ranks write it again", tensor, set->file, set->topo.text);
	return keep(s, set, SC_E_COPIES, NULL, line.text, err);
}

int rs_verify_other(struct rs_service *s, struct rs_set *set, const char *tensor, uint64_t news, struct sc_err *err)
{
	int rc = 0;

	if (has_damage(s, set) || meta_store_damage_news(&s->store) != news)
		return sc_fail(err, SC_E_DAMAGED, "'%s' " IS_OTHER ": a file of '%s' was changed on the disk; it is "
			       "mended from a replica, if there is one", tensor, set->file);
	(void)pthread_mutex_lock(&verdicts);
	if (!s->shared) /* other nodes' files may be the ones, and they mend them */
		rc = keep_other(s, set, tensor, err);
	(void)pthread_mutex_unlock(&verdicts);
	return rc < 0 ? rc : sc_fail(err, SC_E_COPIES, "'%s' " IS_OTHER, tensor);
}

/* Copies the report without the lines that say what is wrong; NULL: out of memory. */
static char *other_lines(const struct rs_set *set)
{
	char *copy = sc_strdup(set->report), *to = copy;

	for (const char *p = copy, *end; p && *p; p = end) {
		const size_t n = strcspn(p, "\n"), other = strlen(IS_OTHER), differ = strlen(DIFFER);

		end = p + n + (p[n] == '\n');
		if ((n >= other && memcmp(p + n - other, IS_OTHER, other) == 0) ||
		    (n >= differ && memcmp(p + n - differ, DIFFER, differ) == 0))
			continue;
		memmove(to, p, (size_t)(end - p));
		to += end - p;
	}
	if (to)
		*to = 0;
	return copy;
}

/* Forgets the hashes of a set's files, which may be of the wrong bytes that they had: they are hashed anew. */
static int forget_hashes(struct rs_service *s, const struct rs_set *set, struct sc_err *err)
{
	int rc = 0;

	for (size_t i = 0; rc == 0 && i < set->nr_blobs; i++)
		if (rs_blob_here(s, set->blobs[i].blob) && !meta_store_is_damaged(&s->store, set->blobs[i].blob))
			rc = meta_blob_checked(s->catalog, set->blobs[i].blob, NULL, 0, false, err);
	return rc;
}

int rs_verify_same(struct rs_service *s, struct rs_set *set, uint8_t (*digests)[16], struct sc_err *err)
{
	bool was;
	int rc = 0;

	(void)pthread_mutex_lock(&verdicts);
	was = __atomic_load_n(&set->verified, __ATOMIC_ACQUIRE) == META_DIFFER && !s->shared;
	if (was)
		rc = forget_hashes(s, set, err);
	if (was && rc == 0 && !set->digests)
		__atomic_store_n(&set->digests, sc_steal(&digests), __ATOMIC_RELEASE);
	if (was && rc == 0)
		rc = save(s, set, META_EQUAL, other_lines(set), err);
	(void)pthread_mutex_unlock(&verdicts);
	sc_sys.release(digests);
	if (was && rc == 0)
		rs_worker_call(s, false); /* it may be materialized now */
	return rc;
}

/* Compares the digests of a set with those that it has.  1: a tensor has another digest, *ret_tensor, or (NULL) copies
 * differ, as err says. */
static int compare(struct rs_service *s, struct rs_set *set, rs_tick_fn *tick, void *arg, const char **ret_tensor,
		   struct sc_err *err)
{
	const uint8_t (*kept)[16] = rs_set_digests(set);
	uint8_t (*digests)[16] = NULL;
	char *report = NULL;
	int rc = rs_verify_set(s, set, tick, arg, &digests, &report, err);

	*ret_tensor = NULL;
	for (uint32_t t = 0; rc == 0 && t < set->state.nr; t++)
		if (memcmp(kept[t], digests[t], sizeof(kept[t])) != 0) {
			*ret_tensor = set->state.tensors[t].key;
			rc = 1;
		}
	sc_sys.release(digests);
	sc_sys.release(report);
	return rc == SC_E_COPIES ? 1 : rc;
}

int rs_verify_made(struct rs_service *s, struct rs_set *of, struct rs_set *made, rs_tick_fn *tick, void *arg,
		   struct sc_err *err)
{
	const uint64_t news = meta_store_damage_news(&s->store);
	const char *tensor, *was;
	int rc;

	if (!rs_set_digests(made))
		return 0;
	rc = compare(s, made, tick, arg, &tensor, err);
	if (rc <= 0)
		return rc;
	if (!tensor)
		tensor = made->file;
	/* what it was made of is looked at as a whole, and with it the files that have the tensor */
	rc = compare(s, of, tick, arg, &was, err);
	if (rc > 0)
		return rs_verify_other(s, of, was ? was : tensor, news, err);
	return rc < 0 ? rc : sc_fail(err, SC_E_DAMAGED, "'%s' would not be what was committed in the new files, and is "
				     "in those that they are made of", tensor);
}
