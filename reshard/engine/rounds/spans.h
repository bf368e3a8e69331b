/* SPDX-License-Identifier: Apache-2.0 */
/* Collects spans of bytes of files in any order, then merges them. */
#ifndef RS_SPANS_H
#define RS_SPANS_H

#include "meta/base/mem.h"

struct rs_span {
	uint32_t peer, file;
	uint64_t lo, hi;
	uint64_t held;		/* what copies have of it, each counted */
};

struct rs_spans {
	size_t nr, room;
	struct rs_span *at;
};

/** Sorts by peer, file and place; spans that touch or overlap become one. */
void rs_spans_merge(struct rs_spans *spans);
/** Finds the merged span that has the byte `at` of a peer's file. */
const struct rs_span *rs_spans_find(const struct rs_spans *spans, uint32_t peer, uint32_t file, uint64_t at);

#endif
