/* SPDX-License-Identifier: Apache-2.0 */
/* What parsers of all kinds of formats do with the tensors that they find. */
#include "reshard/codec/format/format_i.h"

#include <string.h>

int rs_found_by_place(const void *a, const void *b)
{
	const struct rs_found_tensor *x = a, *y = b;

	return x->at != y->at ? (x->at < y->at ? -1 : 1) : strcmp(x->name, y->name);
}
