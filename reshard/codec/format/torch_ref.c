/* SPDX-License-Identifier: Apache-2.0 */
#include "reshard/codec/format/torch_i.h"

#include <inttypes.h>
#include <string.h>

bool rs_torch_ref(const struct rs_pickled *node, const struct rs_pickled_bytes **ret_name, int64_t *ret_flags)
{
	const struct rs_pickled *id = node && node->kind == RS_PICKLED_PERSIST ? node->id : NULL;

	if (!id || id->kind != RS_PICKLED_TUPLE || id->tuple.nr != 3 ||
	    !rs_pickled_is_text(id->tuple.at[0], "scalai") || id->tuple.at[1]->kind != RS_PICKLED_TEXT ||
	    id->tuple.at[2]->kind != RS_PICKLED_INT)
		return false;
	*ret_name = &id->tuple.at[1]->bytes;
	*ret_flags = id->tuple.at[2]->number;
	return true;
}

struct rs_pickled *rs_torch_make_ref(struct sc_arena *arena, const char *name, int64_t flags)
{
	struct rs_pickled *parts[] = {rs_pickled_text(arena, "scalai", 6), rs_pickled_text(arena, name, strlen(name)),
				      rs_pickled_int(arena, flags)};

	return rs_pickled_persist(arena, rs_pickled_tuple(arena, 3, parts));
}

struct rs_pickled *rs_torch_number(struct sc_arena *arena, const struct rs_pickled *id, uint64_t number)
{
	char *key = sc_arena_printf(arena, "%" PRIu64, number);
	struct rs_pickled *parts[5];

	memcpy(parts, id->tuple.at, sizeof(parts));
	parts[2] = key ? rs_pickled_text(arena, key, strlen(key)) : NULL;
	return rs_pickled_persist(arena, rs_pickled_tuple(arena, 5, parts));
}

bool rs_torch_rebuilds(const struct rs_pickled *what)
{
	return rs_pickled_is(what, "torch._utils", "_rebuild_tensor_v2") ||
	       rs_pickled_is(what, "torch._utils", "_rebuild_tensor_v3") ||
	       rs_pickled_is(what, "torch._utils", "_rebuild_tensor");
}

bool rs_torch_is_parameter(const struct rs_pickled *what, const struct rs_pickled *args)
{
	return args->tuple.nr && (rs_pickled_is(what, "torch._utils", "_rebuild_parameter") ||
				  rs_pickled_is(what, "torch._utils", "_rebuild_parameter_with_state"));
}

bool rs_torch_is_typed(const struct rs_pickled *what, const struct rs_pickled *args)
{
	return args->tuple.nr == 4 && rs_pickled_is(what, "torch._tensor", "_rebuild_from_type_v2");
}

const struct rs_pickled *rs_torch_ref_in(const struct rs_pickled *node)
{
	const struct rs_pickled *what = NULL, *args = NULL;
	const struct rs_pickled_bytes *name;
	int64_t flags;

	for (int i = 0; i < RS_TORCH_AROUND_MAX && node; i++) {
		if (rs_torch_ref(node, &name, &flags))
			return node;
		if (node->kind == RS_PICKLED_CALL) {
			what = node->object->what;
			args = node->object->args;
		} else if (node->kind == RS_PICKLED_TUPLE && what) {
			args = node; /* of `what` */
		} else {
			return NULL;
		}
		if (rs_torch_is_parameter(what, args)) {
			node = args->tuple.at[0];
			what = NULL;
		} else if (rs_torch_is_typed(what, args)) {
			what = args->tuple.at[0];
			node = args->tuple.at[2];
		} else {
			return NULL;
		}
	}
	return NULL;
}
