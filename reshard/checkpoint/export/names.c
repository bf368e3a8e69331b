/* SPDX-License-Identifier: Apache-2.0 */
/* Makes names of tensors for readers that know no paths of keys. */
#include <string.h>

#include "reshard/checkpoint/export/form.h"

const char *rs_form_flat_path(struct sc_arena *arena, const char *path)
{
	char *copy = sc_arena_copy(arena, path, strlen(path)), *to = copy;

	if (!copy)
		return NULL;
	for (const char *from = path; *from; from++) {
		if (*from == '\'' && (from == path || from[-1] == '/'))
			continue;
		*to++ = (char)(*from == '/' ? '.' : *from == '~' && from[1] ? (*++from == '1' ? '/' : '~') : *from);
	}
	*to = 0;
	return copy;
}

const char *rs_form_flat_name(struct sc_arena *arena, const struct rs_origins *o, const struct meta_tensor *t)
{
	const struct rs_format_ops *format = o->format_of(o->arg, o->view_of(o->arg, t));

	return format->name_of ? rs_form_flat_path(arena, t->name) : sc_arena_copy(arena, t->name, strlen(t->name));
}
