/* SPDX-License-Identifier: Apache-2.0 */
/* The format of files without one: the bytes are one tensor, which has no name.  A layout may cut it all the same. */
#include "reshard/codec/format/format.h"

#include <inttypes.h>

static int is_ours(const struct rs_file *file, struct sc_err *err)
{
	(void)file;
	(void)err;
	return 1;
}

static int parse(const struct rs_file *file, struct rs_found *ret, struct sc_err *err)
{
	ret->tensors = sc_arena_array(&ret->arena, 1, sizeof(*ret->tensors));
	if (!ret->tensors)
		return sc_nomem(err);
	ret->nr = 1;
	ret->tensors[0] = (struct rs_found_tensor){.name = "", .dtype = META_DTYPE_U8, .shape = {1, {file->bytes}}};
	return 0;
}

static int describe(const struct rs_wanted *wanted, uint32_t nr, const char *payload, size_t payload_bytes,
		    struct rs_frame *ret, struct sc_err *err)
{
	(void)payload_bytes;
	if (nr != 1 || payload)
		return sc_fail(err, SC_E_UNSUPPORTED, "a file without a format holds one tensor's bytes, not %" PRIu32
			       " tensors%s", nr, payload ? " and a payload" : "");
	if (!meta_tensor_bytes(wanted->dtype, &wanted->shape, &ret->bytes))
		return sc_fail(err, SC_E_LIMIT, "the size of a file's bytes overflows");
	ret->nr = ret->bytes > 0;
	ret->pieces = sc_arena_array(&ret->arena, 1, sizeof(*ret->pieces));
	if (!ret->pieces)
		return sc_nomem(err);
	ret->pieces[0].kind = RS_PIECE_TENSOR;
	return 0;
}

const struct rs_format_ops rs_format_plain = {.name = "plain", .is = is_ours, .parse = parse, .describe = describe};
