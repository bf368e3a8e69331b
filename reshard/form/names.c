/* SPDX-License-Identifier: Apache-2.0 */
/* Names of tensors for readers that know no paths. */
#include <string.h>

#include "reshard/form/form.h"

const char *rs_form_flat_name(struct sc_arena *arena, const struct rs_origins *o, const struct meta_tensor *t)
{
	const struct rs_format_ops *format = o->format_of(o->arg, o->view_of(o->arg, t));
	char *copy = sc_arena_copy(arena, t->name, strlen(t->name)), *to = copy;

	if (!copy || !format->name_of)
		return copy;
	for (const char *from = t->name; *from; from++) {
		if (*from == '\'' && (from == t->name || from[-1] == '/'))
			continue;
		*to++ = (char)(*from == '/' ? '.' : *from == '~' && from[1] ? (*++from == '1' ? '/' : '~') : *from);
	}
	*to = 0;
	return copy;
}
