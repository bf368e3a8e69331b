/* SPDX-License-Identifier: Apache-2.0 */
#include "reshard/job/record.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <xxhash.h>

#define RECORD_BYTES_MAX 3500	/* ext4 has a block for all attributes of a file */

struct writing {
	struct rs_service *s;
	struct sc_err *err;
	struct sc_buf head;
	char path[SC_PATH_BYTES_MAX + 1];
	struct {
		size_t nr, room;
		int64_t *at;
	} ranks;
};

static void hex(const uint8_t hash[16], char ret[33])
{
	for (int i = 0; i < 16; i++)
		(void)snprintf(ret + 2 * i, 3, "%02x", hash[i]);
}

/* The text of a layout lies beside the blobs, once. */
static int keep_layout(struct rs_service *s, uint64_t id, char name[33], struct sc_err *err)
{
	const struct rs_kept_layout *kept;
	XXH128_canonical_t hash;
	int rc = rs_layout_by_id(s, id, &kept, err);

	if (rc < 0)
		return rc;
	XXH128_canonicalFromHash(&hash, XXH3_128bits(kept->layout->flat, strlen(kept->layout->flat)));
	hex(hash.digest, name);
	return meta_store_keep_text(&s->store, name, kept->layout->flat, err);
}

static int on_use(void *arg, const struct meta_blob_record *row)
{
	struct writing *w = arg;

	if (w->ranks.nr == 0) {
		char name[33];
		int rc = keep_layout(w->s, row->layout, name, w->err);

		if (rc < 0)
			return rc;
		(void)snprintf(w->path, sizeof(w->path), "%s", row->path);
		sc_buf_printf(&w->head, "scalai 1\njob %s\nowner %" PRIu64 " %" PRIu64 " %" PRIu64 "\nset %" PRIu64 " %" PRIu64
				       " %s\nlayout %s\ntopology %s\nwhole %u %u\nstep %" PRId64 "\nmode %" PRIu64 "\n", row->job,
			      row->uid, row->gid, row->job_mode, row->set, row->kind, row->file, name, row->topology,
			      row->layers, row->experts, row->step, row->mode);
	}
	return sc_vec_push(&w->ranks, row->rank) < 0 ? sc_nomem(w->err) : 0;
}

/* Ranks that have it, as FIRST-LAST/STEP: replicas are at equal distances. */
static void add_ranks(struct writing *w)
{
	for (size_t i = 0; i < w->ranks.nr;) {
		const int64_t *r = w->ranks.at;
		int64_t step = i + 1 < w->ranks.nr ? r[i + 1] - r[i] : 1;
		size_t k = i + 1;

		while (k < w->ranks.nr && r[k] - r[k - 1] == step)
			k++;
		sc_buf_printf(&w->head, "%s%" PRId64 "-%" PRId64 "/%" PRId64, i ? "," : "ranks ", r[i], r[k - 1], step);
		i = k;
	}
	sc_buf_printf(&w->head, "\n");
}

int rs_record_write(struct rs_service *s, uint64_t blob, const uint8_t hash[16], struct sc_err *err)
{
	struct writing w = {.s = s, .err = err};
	char text[33];
	int rc = meta_blob_record(s->catalog, blob, on_use, &w, err);

	if (rc == 0 && w.ranks.nr) {
		hex(hash, text);
		add_ranks(&w);
		sc_buf_printf(&w.head, "hash %s\npath %s", text, w.path);
		rc = w.head.failed ? sc_nomem(err)
		     : w.head.bytes > RECORD_BYTES_MAX
			     ? sc_fail(err, SC_E_UNSUPPORTED, "blob %" PRIu64 ": what is to be said of it is too long", blob)
			     : meta_store_set_record(&s->store, blob, w.head.text, w.head.bytes, err);
	}
	sc_buf_done(&w.head);
	sc_vec_done(&w.ranks);
	return rc;
}

int rs_record_renew(struct rs_service *s, const struct rs_set *set, struct sc_err *err)
{
	uint64_t last = 0;
	uint8_t hash[16];
	int rc = 0;

	for (size_t i = 0; rc >= 0 && i < set->nr_blobs; i++) {
		uint64_t blob = set->blobs[i].blob;

		if (blob == last)
			continue;
		last = blob;
		rc = meta_blob_hash(s->catalog, blob, hash, err);
		if (rc > 0)
			rc = rs_record_write(s, blob, hash, err);
	}
	return rc < 0 ? rc : 0;
}

/* --- reading --- */

static char *value(char **text, const char *key)
{
	size_t n = strlen(key);
	char *line = *text, *end;

	if (!line || strncmp(line, key, n) != 0 || line[n] != ' ')
		return NULL;
	/* a path comes last and may have anything in it */
	end = strcmp(key, "path") == 0 ? NULL : strchr(line, '\n');
	if (end)
		*end++ = 0;
	*text = end;
	return line + n + 1;
}

static bool parse(char *text, struct rs_record *r)
{
	const char *version = value(&text, "scalai"), *owner, *set, *whole, *step, *mode, *hash;
	int at = 0;

	r->job = value(&text, "job");
	owner = value(&text, "owner");
	set = value(&text, "set");
	r->layout = value(&text, "layout");
	r->topology = value(&text, "topology");
	whole = value(&text, "whole"); /* not said before version 9 of the catalog */
	step = value(&text, "step");
	mode = value(&text, "mode");
	r->ranks = value(&text, "ranks");
	hash = value(&text, "hash");
	r->path = value(&text, "path");
	if (!version || strcmp(version, "1") != 0 || !r->path || !r->job || !owner || !set || !r->layout || !r->topology || !step ||
	    !mode || !r->ranks || !hash || strlen(hash) != 32)
		return false;
	for (int i = 0; i < 16; i++) {
		unsigned byte;

		if (sscanf(hash + 2 * i, "%2x", &byte) != 1)
			return false;
		r->hash[i] = (uint8_t)byte;
	}
	if (sscanf(owner, "%" SCNu64 " %" SCNu64 " %" SCNu64, &r->uid, &r->gid, &r->job_mode) != 3 ||
	    sscanf(set, "%" SCNu64 " %" SCNu64 " %n", &r->set, &r->kind, &at) < 2 || !at || sscanf(step, "%" SCNd64, &r->step) != 1 ||
	    sscanf(mode, "%" SCNu64, &r->mode) != 1 || (whole && sscanf(whole, "%u %u", &r->layers, &r->experts) != 2))
		return false;
	r->file = set + at;
	return true;
}

int rs_record_read(struct rs_service *s, uint64_t blob, struct sc_arena *arena, struct rs_record *ret,
		   struct sc_err *err)
{
	char text[RECORD_BYTES_MAX + 1], *copy;
	size_t bytes;
	int rc = meta_store_get_record(&s->store, blob, text, sizeof(text) - 1, &bytes, err);

	if (rc < 0)
		return rc;
	copy = sc_arena_copy(arena, text, bytes);
	if (!copy)
		return sc_nomem(err);
	*ret = (struct rs_record){.blob = blob};
	return parse(copy, ret) ? 0 : sc_fail(err, SC_E_FORMAT, "blob %" PRIu64 " says nothing that can be understood", blob);
}

int rs_record_ranks(const char *ranks, int (*each)(void *arg, uint32_t rank), void *arg, struct sc_err *err)
{
	int rc = 0;

	while (rc == 0 && *ranks) {
		long long first, last, step;
		int n = 0;

		if (sscanf(ranks, "%lld-%lld/%lld%n", &first, &last, &step, &n) != 3 || step < 1 || first < -1 || last < first ||
		    last >= SC_RANKS_MAX)
			return sc_fail(err, SC_E_FORMAT, "'%s' are no ranks", ranks);
		for (long long r = first; rc == 0 && r <= last; r += step)
			rc = each(arg, r < 0 ? RS_SHARED : (uint32_t)r);
		ranks += n;
		ranks += *ranks == ',';
	}
	return rc;
}
