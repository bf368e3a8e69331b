/* SPDX-License-Identifier: Apache-2.0 */
/* Shared by the files of this room: the table of kinds, and numbers and hex as keys and values write them. */
#ifndef META_MEMBER_I_H
#define META_MEMBER_I_H

#include "meta/member/keys.h"

struct meta_kind {
	const char *name, *path;
	size_t bytes_max;	/* of a value */
};
extern const struct meta_kind meta_kinds[];

/** Read all of [p, end); false: the text is not what the functions below write. */
bool meta_read_number(const char *p, const char *end, uint64_t *ret);
bool meta_read_hex(const char *p, const char *end, uint8_t *ret, size_t bytes);
bool meta_read_token(const char *p, const char *end, uint64_t *ret);
/** Append lower-case hex: two digits a byte; 16 digits. */
void meta_add_token(struct sc_buf *buf, uint64_t token);

#endif
