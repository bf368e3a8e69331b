/* SPDX-License-Identifier: Apache-2.0 */
/* Reads the blobs for a new catalog, and what they say of themselves; names damaged ones and leaves them out. */
#include "reshard/repair/rebuild_i.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <string.h>
#include <sys/stat.h>

/* Returns how many bytes a blob has, if somebody is told how far the rebuild is. */
static uint64_t bytes_of(struct rs_rebuild *r, uint64_t blob)
{
	sc_cleanup(sc_closep) int fd = -1;
	struct sc_err ignored;
	struct stat st;

	if (!r->s->events.progress || meta_store_open_damaged(&r->s->store, blob, O_RDONLY, &fd, &ignored) < 0 ||
	    sc_sys.fstat(fd, &st) < 0)
		return 0;
	return (uint64_t)st.st_size;
}

static int on_counted(void *arg, uint64_t blob)
{
	struct rs_rebuild *r = arg;

	r->progress.total += bytes_of(r, blob);
	return 0;
}

int rs_rebuild_hash(struct rs_rebuild *r, uint64_t blob, uint8_t hash[16], uint64_t *ret_bytes, struct sc_err *why)
{
	rs_repair_next(&r->progress, bytes_of(r, blob));
	return rs_hash_blob(&r->s->store, blob, rs_repair_bytes, &r->progress, hash, ret_bytes, why);
}

static int on_record(void *arg, const struct rs_record *record)
{
	struct rs_rebuild *r = arg;

	if (record->set > r->last_set)
		r->last_set = record->set;
	return sc_vec_push(&r->all, *record) < 0 ? sc_nomem(r->err) : 0;
}

/* Notes that what a damaged blob says, from record `first` on, is lost.  `why` without a code: the blob has other
 * bytes. */
static int leave_out(struct rs_rebuild *r, uint64_t blob, const struct rs_record *rec, size_t first,
		     const struct sc_err *why)
{
	r->bad++;
	sc_buf_printf(r->report, "BAD\t");
	if (rec && why->code)
		sc_buf_line(r->report, "blob %" PRIu64 ", job '%s' '%s', is left out: %s", blob, rec->job, rec->path,
			    why->msg);
	else if (rec)
		sc_buf_line(r->report, "blob %" PRIu64 ", job '%s' '%s', has other bytes than when it was stored, and "
			    "is left out", blob, rec->job, rec->path);
	else
		sc_buf_line(r->report, "blob %" PRIu64 " is left out: %s", blob, why->msg);
	for (size_t i = first; i < r->all.nr; i++)
		if (sc_vec_push(&r->lost, r->all.at[i]) < 0)
			return sc_nomem(r->err);
	r->all.nr = first;
	return 0;
}

static int on_file(void *arg, uint64_t blob)
{
	struct rs_rebuild *r = arg;
	const size_t before = r->all.nr;
	const struct rs_record *rec = NULL;
	struct sc_err why = {0};
	uint8_t hash[16], was[16];
	uint64_t bytes;
	int rc;

	if (blob > r->last_blob)
		r->last_blob = blob;
	if (sc_vec_push(&r->files, (struct rs_rebuild_file){.blob = blob}) < 0)
		return sc_nomem(r->err);
	rc = rs_record_read(r->s, blob, &r->arena, was, on_record, r, &why);
	if (rc == SC_E_NO_MEMORY)
		return sc_nomem(r->err);
	r->silent |= rc == SC_E_NOT_FOUND || rc == SC_E_FORMAT;
	if (rc == SC_E_NOT_FOUND || rc == SC_E_FORMAT || (rc == 0 && r->all.nr == before)) {
		r->all.nr = before;
		return 0;
	}
	if (rc == 0) {
		rec = &r->all.at[before];
		rc = rs_rebuild_hash(r, blob, hash, &bytes, &why);
	}
	if (rc < 0 && !rs_is_damage(&why)) {
		*r->err = why; /* it says nothing about the blob */
		return rc;
	}
	if (rc == 0 && memcmp(hash, rec->hash, 16) == 0) {
		struct rs_rebuild_file *f = &r->files.at[r->files.nr - 1];

		memcpy(f->hash, hash, sizeof(f->hash));
		f->has_hash = true;
		return 0;
	}
	return leave_out(r, blob, rec, before, &why);
}

int rs_rebuild_read_blobs(struct rs_rebuild *r)
{
	int rc = r->s->events.progress ? meta_store_each(&r->s->store, on_counted, r, r->err) : 0;

	return rc < 0 ? rc : meta_store_each(&r->s->store, on_file, r, r->err);
}

bool rs_rebuild_ends(int rc, const struct sc_err *err)
{
	const bool scarce = err->errnum == EMFILE || err->errnum == ENFILE || err->errnum == ENOMEM ||
			    err->errnum == EDQUOT;

	return rc == SC_E_NO_MEMORY || rc == SC_E_CATALOG || rc == SC_E_CORRUPT || rc == SC_E_NO_SPACE ||
	       (rc == SC_E_SYSTEM && scarce);
}
