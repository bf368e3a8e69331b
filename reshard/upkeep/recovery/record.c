/* SPDX-License-Identifier: Apache-2.0 */
#include "reshard/upkeep/recovery/record.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>
#include <xxhash.h>

SC_METRIC(records_owed, SC_GAUGE, "scalai_records_owed",
	  "Files whose recovery records are to be written anew, counted up to a thousand.");

#define BEGIN "scalai 3\nhash "
#define RECORD_BYTES_MAX 3500	/* ext4 has a block for all attributes of a file */

struct writing {
	struct rs_service *s;
	struct sc_err *err;
	struct sc_buf text;	/* of the jobs before */
	struct sc_buf use;	/* of this one, but for its ranks */
	uint64_t set;		/* of this one, 0: there is none yet */
	char job[SC_NAME_BYTES_MAX + 1];
	bool full;		/* older ones find no room */
	struct {
		size_t nr, room;
		struct ranked {
			int64_t rank;
			uint64_t mode, uid, gid;
		} *at;
	} ranks;
};

int rs_record_layout(struct rs_service *s, uint64_t id, char name[RS_LAYOUT_NAME_BYTES], struct sc_err *err)
{
	const struct rs_kept_layout *kept;
	XXH128_canonical_t hash;
	int rc = rs_layout_by_id(s, id, &kept, err);

	if (rc < 0)
		return rc;
	XXH128_canonicalFromHash(&hash, XXH3_128bits(kept->layout->flat, strlen(kept->layout->flat)));
	(void)sc_hex(name, hash.digest, 16);
	return meta_store_keep_text(&s->store, name, kept->layout->flat, err);
}

static bool is_next(const struct ranked *a, const struct ranked *b, int64_t step)
{
	return b->rank - a->rank == step && a->mode == b->mode && a->uid == b->uid && a->gid == b->gid;
}

/* Writes the ranks that have a blob, as FIRST-LAST/STEP MODE UID GID: replicas are at equal distances, and mostly of
 * one owner. */
static void add_ranks(struct writing *w)
{
	const struct ranked *r = w->ranks.at;

	for (size_t i = 0; i < w->ranks.nr;) {
		int64_t step = i + 1 < w->ranks.nr ? r[i + 1].rank - r[i].rank : 1;
		size_t k = i + 1;

		if (k < w->ranks.nr && !is_next(&r[i], &r[k], step))
			step = 1;
		while (k < w->ranks.nr && is_next(&r[k - 1], &r[k], step))
			k++;
		sc_buf_printf(&w->use, "%s%" PRId64 "-%" PRId64 "/%" PRId64 " %" PRIo64 " %" PRIu64 " %" PRIu64,
			      i ? "," : "ranks ", r[i].rank, r[k - 1].rank, step, r[i].mode, r[i].uid, r[i].gid);
		i = k;
	}
	sc_buf_printf(&w->use, "\n");
}

/* Ends a use whose ranks are collected, and writes it if there is room; uses come in the order of
 * meta_blob_record(). */
static void end_use(struct writing *w)
{
	if (!w->set)
		return;
	add_ranks(w);
	w->full |= w->text.bytes + w->use.bytes > RECORD_BYTES_MAX;
	w->text.failed |= w->use.failed;
	if (!w->full)
		sc_buf_add(&w->text, w->use.text, w->use.bytes);
	sc_buf_reset(&w->use);
	w->ranks.nr = 0;
}

static int begin_use(struct writing *w, const struct meta_blob_record *row)
{
	char name[RS_LAYOUT_NAME_BYTES];
	int rc = rs_record_layout(w->s, row->layout, name, w->err);

	if (rc < 0)
		return rc;
	w->set = row->set;
	(void)snprintf(w->job, sizeof(w->job), "%s", row->job);
	sc_buf_printf(&w->use, "job ");
	sc_buf_quoted(&w->use, row->job);
	sc_buf_printf(&w->use, "\nowner %" PRIu64 " %" PRIu64 " %" PRIo64 "\nset %" PRIu64 " ", row->uid, row->gid,
		      row->job_mode, row->set);
	sc_buf_quoted(&w->use, row->file);
	sc_buf_printf(&w->use, "\nlayout %s\ntopology %s\nwhole %u %u\nstep %" PRId64 "\npath ", name, row->topology,
		      row->layers, row->experts, row->step);
	sc_buf_quoted(&w->use, row->path);
	sc_buf_printf(&w->use, "\n");
	return 0;
}

static int on_use(void *arg, const struct meta_blob_record *row)
{
	struct writing *w = arg;
	struct ranked r = {row->rank, row->mode, row->file_uid, row->file_gid};
	int rc = 0;

	if (row->set != w->set || strcmp(row->job, w->job) != 0) {
		end_use(w);
		rc = begin_use(w, row);
	}
	return rc < 0 ? rc : sc_vec_push(&w->ranks, r) < 0 ? sc_nomem(w->err) : 0;
}

int rs_record_write(struct rs_service *s, uint64_t blob, const uint8_t hash[16], struct sc_err *err)
{
	struct writing w = {.s = s, .err = err};
	char text[33];
	int rc;

	(void)sc_hex(text, hash, 16);
	sc_buf_printf(&w.text, BEGIN "%s\n", text);
	rc = meta_blob_record(s->catalog, blob, hash, on_use, &w, err);
	if (rc == 0)
		end_use(&w);
	if (rc == 0 && w.text.failed)
		rc = sc_nomem(err);
	else if (rc == 0 && w.full && !strstr(w.text.text, "\njob "))
		rc = sc_fail(err, SC_E_UNSUPPORTED, "blob %" PRIu64 ": the recovery record would be too long", blob);
	else if (rc == 0)
		rc = meta_number_flush(s->catalog, META_NUMBERED_BLOB, blob, err); /* newer.c */
	if (rc == 0)
		rc = meta_store_set_record(&s->store, blob, w.text.text, w.text.bytes, err);
	sc_buf_done(&w.text);
	sc_buf_done(&w.use);
	sc_vec_done(&w.ranks);
	return rc;
}

struct stale {
	size_t nr, room;
	struct meta_stale *at;
};

static int on_stale(void *arg, const struct meta_stale *stale)
{
	return sc_vec_push((struct stale *)arg, *stale) < 0 ? SC_E_NO_MEMORY : 0;
}

static int drop_all(struct rs_service *s, const struct stale *stale, struct sc_err *err)
{
	int rc = meta_catalog_begin(s->catalog, false, err);

	if (rc < 0)
		return rc;
	for (size_t i = 0; rc == 0 && i < stale->nr; i++)
		rc = meta_stale_drop(s->catalog, &stale->at[i], err);
	return meta_catalog_end(s->catalog, rc, err);
}

/* Renews the records of the oldest notes; *ret_more: there are more notes. */
static int renew_some(struct rs_service *s, bool *ret_more, struct sc_err *err)
{
	struct stale stale = {0};
	uint8_t hash[16];
	int rc = meta_stale_each(s->catalog, on_stale, &stale, err);

	if (rc >= 0)
		sc_metric_set(&records_owed, stale.nr);
	for (size_t i = 0; rc >= 0 && i < stale.nr; i++) {
		/* one that has no hash yet gets its record with the hash; one that is gone says nothing */
		rc = meta_blob_hash(s->catalog, stale.at[i].blob, hash, err);
		if (rc > 0)
			rs_record_keep(s, stale.at[i].blob, hash);
	}
	if (rc >= 0 && stale.nr)
		rc = drop_all(s, &stale, err);
	*ret_more = stale.nr == META_STALE_MAX;
	if (rc >= 0 && !*ret_more)
		sc_metric_set(&records_owed, 0);
	sc_vec_done(&stale);
	return rc < 0 ? rc : 0;
}

int rs_records_renew(struct rs_service *s, bool yields, struct sc_err *err)
{
	bool more = true;
	int rc = 0;

	while (rc == 0 && more) {
		rc = renew_some(s, &more, err);
		if (yields && rs_worker_is_called(s))
			break;
	}
	return rc;
}

static bool read_hash(const char *text, uint8_t hash[16])
{
	if (strlen(text) != 32)
		return false;
	for (int i = 0; i < 16; i++) {
		unsigned byte;

		if (sscanf(text + 2 * i, "%2x", &byte) != 1)
			return false;
		hash[i] = (uint8_t)byte;
	}
	return true;
}

/* Reads a line of a record; false: it can't be understood. */
static bool read_line(struct rs_record *r, const char *key, char *value)
{
	int at = 0;

	sc_unquote(value);
	if (strcmp(key, "job") == 0)
		r->job = value;
	else if (strcmp(key, "layout") == 0)
		r->layout = value;
	else if (strcmp(key, "topology") == 0)
		r->topology = value;
	else if (strcmp(key, "path") == 0)
		r->path = value;
	else if (strcmp(key, "ranks") == 0)
		r->ranks = value;
	else if (strcmp(key, "whole") == 0)
		return sscanf(value, "%u %u", &r->layers, &r->experts) == 2;
	else if (strcmp(key, "step") == 0)
		return sscanf(value, "%" SCNd64, &r->step) == 1;
	else if (strcmp(key, "owner") == 0)
		return sscanf(value, "%" SCNu64 " %" SCNu64 " %" SCNo64, &r->uid, &r->gid, &r->job_mode) == 3;
	else if (strcmp(key, "set") == 0 && sscanf(value, "%" SCNu64 " %n", &r->set, &at) == 1 && at)
		r->file = value + at;
	else
		return false;
	return true;
}

/* Reads the lines of one job, from *text on; false: they can't be understood, or lack something. */
static bool read_use(char **text, struct rs_record *r)
{
	while (*text && **text) {
		char *key = *text, *value = strchr(key, ' '), *end = strchr(key, '\n');

		if (!value || !end || value > end)
			return false;
		if (r->job && strncmp(key, "job ", 4) == 0)
			break;
		*value++ = 0;
		*end++ = 0;
		if (!read_line(r, key, value))
			return false;
		*text = end;
	}
	return r->job && r->file && r->layout && r->topology && r->path && r->ranks;
}

int rs_record_read(struct rs_service *s, uint64_t blob, struct sc_arena *arena, uint8_t hash[16], rs_record_fn *each,
		   void *arg, struct sc_err *err)
{
	char text[RECORD_BYTES_MAX + 1], *copy, *end;
	size_t bytes, begin = strlen(BEGIN);
	bool good;
	int rc;

	rc = meta_store_get_record(&s->store, blob, text, sizeof(text) - 1, &bytes, err);
	if (rc < 0)
		return rc;
	copy = sc_arena_copy(arena, text, bytes);
	if (!copy)
		return sc_nomem(err);
	end = strncmp(copy, BEGIN, begin) == 0 ? strchr(copy + begin, '\n') : NULL;
	if (end)
		*end++ = 0;
	good = end && read_hash(copy + begin, hash);
	while (rc == 0 && good && *end) {
		struct rs_record use = {.blob = blob, .step = -1};

		good = read_use(&end, &use);
		memcpy(use.hash, hash, sizeof(use.hash));
		rc = good ? each(arg, &use) : 0;
	}
	return good ? rc : sc_fail(err, SC_E_FORMAT, "blob %" PRIu64 ": unreadable recovery record", blob);
}

int rs_record_ranks(const struct rs_record *record, rs_record_rank_fn *each, void *arg, struct sc_err *err)
{
	const char *text = record->ranks;
	int rc = 0;

	while (rc == 0 && *text) {
		struct rs_owner owner;
		long long first, last, step;
		unsigned mode, uid, gid;
		int n = 0;

		if (sscanf(text, "%lld-%lld/%lld %o %u %u%n", &first, &last, &step, &mode, &uid, &gid, &n) != 6 ||
		    step < 1 || first < -1 || last < first || last >= SC_RANKS_MAX || (text[n] && text[n] != ','))
			return sc_fail(err, SC_E_FORMAT, "bad rank list '%s'", text);
		owner = (struct rs_owner){uid, gid, mode & 07777};
		text += n + (text[n] == ',');
		for (long long r = first; rc == 0 && r <= last; r += step)
			rc = each(arg, r < 0 ? RS_SHARED : (uint32_t)r, &owner);
	}
	return rc;
}

void rs_record_keep(struct rs_service *s, uint64_t blob, const uint8_t hash[16])
{
	struct sc_err why;

	if (rs_record_write(s, blob, hash, &why) < 0)
		sc_log(SC_LOG_INFO, "blob %" PRIu64 ": could not save its recovery record (%s); 'fsck --rebuild' "
			"would not "
		"recover this blob", blob, why.msg);
}
