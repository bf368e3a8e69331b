/* SPDX-License-Identifier: Apache-2.0 */
#include "reshard/data/index.h"

#include <string.h>

int rs_index_lines(struct rs_index *x, struct sc_err *err)
{
	uint64_t at = 0;

	(void)err;
	while (at < x->bytes) {
		const unsigned char *end = memchr(x->map + at, '\n', x->bytes - at);

		rs_index_push(x, at);
		x->info->samples++;
		at = end ? (uint64_t)(end - x->map) + 1 : x->bytes;
		x->info->bare = !end;
	}
	rs_index_push(x, x->bytes);
	x->info->sequences = x->info->samples;
	return 0;
}
