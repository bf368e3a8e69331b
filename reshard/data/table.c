/* SPDX-License-Identifier: Apache-2.0 */
/* Writes the table of a source's offsets while the source is scanned. */
#include "reshard/data/index.h"

#include <errno.h>

#include "meta/base/sys.h"

void rs_index_flush(struct rs_index *x)
{
	struct rs_table *t = x->table;

	if (!x->failed && sc_pwrite_all(t->fd, t->buffer, t->nr * sizeof(*t->buffer), t->bytes) < 0) {
		x->failed = true;
		x->error = errno;
	}
	t->bytes += t->nr * sizeof(*t->buffer);
	t->nr = 0;
}

void rs_index_push(struct rs_index *x, uint64_t value)
{
	struct rs_table *t = x->table;

	x->has_table = true;
	t->buffer[t->nr++] = value;
	if (t->nr == sizeof(t->buffer) / sizeof(*t->buffer))
		rs_index_flush(x);
}
