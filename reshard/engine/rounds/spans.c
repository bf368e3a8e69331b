/* SPDX-License-Identifier: Apache-2.0 */
#include "reshard/engine/rounds/spans.h"

#include <assert.h>
#include <stdlib.h>

static int by_place(const void *a, const void *b)
{
	const struct rs_span *x = a, *y = b;

	if (x->peer != y->peer)
		return x->peer < y->peer ? -1 : 1;
	if (x->file != y->file)
		return x->file < y->file ? -1 : 1;
	return x->lo < y->lo ? -1 : x->lo > y->lo;
}

void rs_spans_merge(struct rs_spans *spans)
{
	size_t nr = 0;

	if (spans->nr)
		qsort(spans->at, spans->nr, sizeof(*spans->at), by_place);
	for (size_t i = 0; i < spans->nr; i++) {
		const struct rs_span *s = &spans->at[i];
		struct rs_span *last = nr ? &spans->at[nr - 1] : NULL;

		if (last && last->peer == s->peer && last->file == s->file && s->lo <= last->hi) {
			last->hi = sc_max_u64(last->hi, s->hi);
			last->held += s->held;
		} else {
			spans->at[nr++] = *s;
		}
	}
	spans->nr = nr;
}

const struct rs_span *rs_spans_find(const struct rs_spans *spans, uint32_t peer, uint32_t file, uint64_t at)
{
	const struct rs_span key = {.peer = peer, .file = file, .lo = at};
	/* the first one that begins behind the byte */
	const size_t next = sc_first(spans->nr, i, by_place(&spans->at[i], &key) > 0);

	assert(next && spans->at[next - 1].peer == peer && spans->at[next - 1].file == file &&
	       at < spans->at[next - 1].hi);
	return &spans->at[next - 1];
}
