/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Megatron's indexed datasets.  The .idx: "MMIDIDX\0\0", u64 version 1, u8 type code, u64 sequences
 * S, u64 entries of the document index D, then i32[S] lengths in tokens, i64[S] byte pointers into
 * the .bin, i64[D] first sequences of documents (the last is S), and u8[S] modes of multimodal ones.
 * 34 bytes of head: nothing is aligned.
 */
#include "reshard/data/index.h"

#include <inttypes.h>
#include <string.h>

static uint64_t u64(const unsigned char *p)
{
	uint64_t v;

	memcpy(&v, p, 8);
	return v;
}

static uint32_t u32(const unsigned char *p)
{
	uint32_t v;

	memcpy(&v, p, 4);
	return v;
}

/* Checks that sequences lie one after another in the .bin, as Megatron's own builder writes them. */
static int check_sequences(struct rs_index *x, uint64_t nr, uint32_t token, struct sc_err *err)
{
	const unsigned char *lengths = x->idx + RS_MEGATRON_HEAD, *pointers = lengths + 4 * nr;
	uint64_t end = nr ? u64(pointers) : 0;

	for (uint64_t i = 0; i < nr; i++) {
		uint64_t at = u64(pointers + 8 * i), bytes = (uint64_t)u32(lengths + 4 * i) * token;

		if (u32(lengths + 4 * i) > INT32_MAX || at > x->bytes || bytes > x->bytes - at)
			return sc_fail(err, SC_E_FORMAT,
				       "'%s': sequence %" PRIu64 " of its .idx is bytes %" PRIu64 " to %" PRIu64
				       ", but the .bin has %" PRIu64,
				       x->path, i, at, at + bytes, x->bytes);
		if (at != end)
			return sc_fail(err, SC_E_FORMAT,
				       "'%s': sequence %" PRIu64 " begins at byte %" PRIu64
				       ", the one before ends at %" PRIu64
				       ": sequences that do not follow each other are not supported",
				       x->path, i, at, end);
		end = at + bytes;
	}
	return 0;
}

static int check_documents(struct rs_index *x, const unsigned char *documents, uint64_t nr,
			   uint64_t sequences, struct sc_err *err)
{
	uint64_t before = 0;

	for (uint64_t i = 0; i < nr; i++) {
		uint64_t first = u64(documents + 8 * i);

		if (first < before || first > sequences || (i == 0 && first != 0))
			return sc_fail(err, SC_E_FORMAT,
				       "'%s': document %" PRIu64 " of its .idx begins at sequence %" PRIu64
				       ", expected "
				       "%" PRIu64 " to %" PRIu64,
				       x->path, i, first, before, i ? sequences : 0);
		before = first;
	}
	if (before != sequences)
		return sc_fail(err, SC_E_FORMAT,
			       "'%s': the documents of its .idx end at sequence %" PRIu64 " of %" PRIu64, x->path,
			       before, sequences);
	return 0;
}

/* Tells whether each document is one sequence: then documents need no table. */
static bool one_each(const unsigned char *documents, uint64_t entries, uint64_t sequences)
{
	bool each = entries == sequences + 1;

	for (uint64_t i = 0; each && i < entries; i++)
		each = u64(documents + 8 * i) == i;
	return each;
}

int rs_index_megatron(struct rs_index *x, struct sc_err *err)
{
	const unsigned char *m = x->idx, *pointers, *documents;
	uint64_t sequences, entries, want, end;
	uint32_t token;
	bool modes;
	int rc;

	if (x->idx_bytes < RS_MEGATRON_HEAD || memcmp(m, "MMIDIDX\0\0", 9) != 0 || u64(m + 9) != 1)
		return sc_fail(err, SC_E_FORMAT, "'%s': its .idx does not begin like one of Megatron's, version 1",
			       x->path);
	token = rs_megatron_token(m[17]);
	if (!token)
		return sc_fail(err, SC_E_FORMAT, "'%s': its .idx has type code %u, known are 1 to 8", x->path, m[17]);
	sequences = u64(m + 18);
	entries = u64(m + 26);
	if (sequences > x->idx_bytes / 12 || entries > x->idx_bytes / 8)
		return sc_fail(err, SC_E_FORMAT,
			       "'%s': its .idx has %" PRIu64 " bytes, too few for %" PRIu64 " sequences and %" PRIu64
			       " documents",
			       x->path, x->idx_bytes, sequences, entries);
	want = RS_MEGATRON_HEAD + 12 * sequences + 8 * entries;
	modes = sequences && x->idx_bytes == want + sequences;
	if (x->idx_bytes != want && !modes)
		return sc_fail(err, SC_E_FORMAT,
			       "'%s': its .idx has %" PRIu64 " bytes, expected %" PRIu64 " for %" PRIu64
			       " sequences and %" PRIu64 " documents",
			       x->path, x->idx_bytes, want, sequences, entries);
	if (modes)
		return sc_fail(err, SC_E_FORMAT, "'%s' is multimodal (its .idx has modes): not supported", x->path);
	pointers = m + RS_MEGATRON_HEAD + 4 * sequences;
	documents = pointers + 8 * sequences;
	rc = check_sequences(x, sequences, token, err);
	if (rc == 0 && !x->spec->sequences)
		rc = check_documents(x, documents, entries, sequences, err);
	if (rc < 0)
		return rc;
	x->info->sequences = sequences;
	x->info->samples = x->spec->sequences ? sequences : entries ? entries - 1 : 0;
	if (!one_each(documents, entries, sequences) && !x->spec->sequences) {
		if (!entries)
			rs_index_push(x, 0);
		for (uint64_t i = 0; i < entries; i++)
			rs_index_push(x, u64(documents + 8 * i));
	}
	end = sequences ? u64(pointers) : 0;
	for (uint64_t i = 0; i < sequences; i++) {
		rs_index_push(x, end);
		end += (uint64_t)u32(m + RS_MEGATRON_HEAD + 4 * i) * token;
	}
	rs_index_push(x, end);
	sc_buf_printf(&x->form, "%u", m[17]);
	return 0;
}
