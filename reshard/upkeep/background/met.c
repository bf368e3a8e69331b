/* SPDX-License-Identifier: Apache-2.0 */
/* Looks at blobs whose damage somebody has met (state/met.c): repairs them, marks them, or finds them intact. */
#include "reshard/upkeep/background/upkeep_i.h"

#include <fcntl.h>
#include <inttypes.h>
#include <string.h>
#include <sys/stat.h>

#define WAIT_NS_MIN INT64_C(2000000000)
#define FRESH_S 2
#define WAIT_NS_MAX INT64_C(3600000000000)

static int on_stop(void *arg, uint64_t bytes)
{
	struct rs_service *s = arg;
	bool stop;

	(void)bytes;
	(void)pthread_mutex_lock(&s->worker.lock);
	stop = s->worker.stop;
	(void)pthread_mutex_unlock(&s->worker.lock);
	return stop;
}

static void tell_all(struct rs_service *s)
{
	struct rs_job *job;

	for (size_t i = 0; (job = rs_job_at(s, i)); i++)
		rs_job_tell(job);
}

/* Repairs a blob that cannot be read, or is cut short, from a replica.  If there is none the blob stays noted: reads of
 * it fail by themselves. */
static int repair(struct rs_service *s, const struct rs_sealed *x, const struct sc_err *why, bool is_new,
		  struct sc_err *err)
{
	char from[RS_MENDED_TEXT] = "";
	int rc = x->has_hash ? rs_blob_mend(s, x->id, x->bytes, x->hash, from, err) : 0;

	rs_blob_anew(s, x->id);
	if (*from)
		sc_log(SC_LOG_WARN, "blob %" PRIu64 " was damaged (%s); repaired from %s, which had the same bytes, "
		       "continuing", x->id, why->msg, from);
	else if (is_new)
		sc_log(SC_LOG_ERROR, "blob %" PRIu64 " is damaged (%s), and no replica has the same bytes; it is "
		       "looked at again, continuing", x->id, why->msg);
	return rc;
}

/* Tells whether somebody has written the blob's file since that time, or just before: he may be restoring it, and not
 * be ready. */
static bool is_fresh(struct rs_service *s, uint64_t blob, int64_t since_s)
{
	sc_cleanup(sc_closep) int fd = -1;
	struct sc_err ignored;
	struct stat st;

	return meta_store_open_damaged(&s->store, blob, O_RDONLY, &fd, &ignored) == 0 && sc_sys.fstat(fd, &st) == 0 &&
	       st.st_mtim.tv_sec >= since_s - FRESH_S;
}

static int look(struct rs_service *s, uint64_t blob, bool is_new, struct sc_err *err)
{
	const int64_t began_s = rs_now_s();
	struct rs_sealed_list found = {.err = err};
	struct sc_err why = {0};
	uint8_t hash[16];
	uint64_t bytes = 0;
	int rc = meta_blob_sealed(s->catalog, blob, rs_sealed_add, &found, err);
	const struct rs_sealed *x = found.at;

	if (rc == 0 && found.nr == 0)
		rs_met_forget(s, blob); /* not sealed yet, or removed */
	if (rc < 0 || found.nr == 0)
		return rc;
	rc = rs_hash_blob(&s->store, blob, on_stop, s, hash, &bytes, &why);
	if (rc == 0 && bytes != x->bytes)
		rc = sc_fail(&why, SC_E_DAMAGED, "it has %" PRIu64 " bytes instead of %" PRIu64, bytes, x->bytes);
	if (rc == 0 && x->has_hash && memcmp(hash, x->hash, sizeof(hash)) != 0) {
		/* wrong without an error: nobody may read it */
		rc = is_fresh(s, blob, began_s) ? 0 : rs_blob_judge(s, x, hash, bytes, &why, err);
		rc = rc < 0 ? rc : 0;
	} else if (rc == 0) { /* also one that nobody may read: it was restored */
		rc = rs_blob_mark(s, blob, false, err);
		if (rc >= 0)
			rc = meta_blob_checked(s->catalog, blob, x->has_hash ? hash : NULL, rs_now_s(), false, err);
		if (rc == 0)
			sc_log(SC_LOG_WARN, "blob %" PRIu64 " is intact again, continuing", blob);
	} else if (rs_is_damage(&why)) {
		rc = repair(s, x, &why, is_new, err);
	} else {
		rc = 0; /* it says nothing about the blob */
	}
	sc_vec_done(&found);
	return rc;
}

int64_t rs_met_due(struct rs_service *s)
{
	int64_t due = 0;

	(void)pthread_mutex_lock(&s->met.lock);
	for (size_t i = 0; i < s->met.nr; i++)
		if (!due || s->met.at[i].due_ns < due)
			due = s->met.at[i].due_ns;
	(void)pthread_mutex_unlock(&s->met.lock);
	return due;
}

/* Gives a blob that is to be looked at now (0: none), and sets the time of the next look.  *ret_new: nobody has looked
 * at it yet. */
static uint64_t take(struct rs_service *s, bool *ret_new)
{
	int64_t now = sc_now_ns();
	uint64_t blob = 0;

	(void)pthread_mutex_lock(&s->met.lock);
	for (size_t i = 0; !blob && i < s->met.nr; i++) {
		struct rs_met *m = &s->met.at[i];

		if (m->due_ns > now)
			continue;
		blob = m->blob;
		*ret_new = !m->wait_ns;
		m->wait_ns = m->wait_ns ? 2 * m->wait_ns : WAIT_NS_MIN;
		if (m->wait_ns > WAIT_NS_MAX)
			m->wait_ns = WAIT_NS_MAX;
		m->due_ns = now + m->wait_ns;
	}
	(void)pthread_mutex_unlock(&s->met.lock);
	return blob;
}

void rs_met_check(struct rs_service *s)
{
	struct sc_err err;
	uint64_t blob;
	bool is_new, any = false;

	while ((blob = take(s, &is_new))) {
		int rc = look(s, blob, is_new, &err);

		any = true;
		rs_say_once(&s->upkeep->logged.met, rc, &err);
	}
	if (any)
		tell_all(s);
}
