/* SPDX-License-Identifier: Apache-2.0 */
#include "tests/support/torch_text.h"

#include <inttypes.h>
#include <string.h>

static void add_sizes(struct sc_buf *ret, const uint64_t *at, uint32_t nr)
{
	sc_buf_add(ret, "[", 1);
	for (uint32_t i = 0; i < nr; i++)
		sc_buf_printf(ret, "%s%" PRIu64, i ? ", " : "", at[i]);
	sc_buf_add(ret, "]", 1);
}

void torch_text(const struct rs_torch *torch, struct sc_buf *ret)
{
	for (size_t i = 0; i < torch->tensors.nr; i++) {
		const struct rs_torch_tensor *t = &torch->tensors.at[i];

		sc_buf_printf(ret, "%s\t%s\t", t->path, t->dtype < 0 ? "-" : meta_dtype_name((enum meta_dtype)t->dtype));
		add_sizes(ret, t->shape, t->dims);
		sc_buf_add(ret, "\t", 1);
		if (!t->is_dense)
			add_sizes(ret, t->stride, t->dims);
		sc_buf_printf(ret, "\t%" PRIu64 "%s\n", t->at, t->spec ? "\tDTensor" : "");
	}
	sc_buf_printf(ret, "inside: %" PRIu64 "\n", torch->inside);
}

uint64_t torch_extent(const struct rs_torch_tensor *t)
{
	uint64_t last = 1;

	for (uint32_t d = 0; d < t->dims && last; d++)
		last = t->shape[d] ? last + (t->shape[d] - 1) * t->stride[d] : 0;
	return last * t->element;
}

static int read_memory(void *arg, uint64_t at, uint64_t bytes, void *to, struct sc_err *err)
{
	(void)err;
	memcpy(to, (const char *)arg + at, bytes);
	return 0;
}

struct rs_window window_in_memory(const void *at, uint64_t bytes)
{
	return (struct rs_window){0, bytes, (void *)(uintptr_t)at, read_memory};
}
