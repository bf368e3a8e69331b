/* SPDX-License-Identifier: Apache-2.0 */
/* Shared by layout.c and rule.c only. */
#ifndef META_LAYOUT_I_H
#define META_LAYOUT_I_H

#include "meta/base/text.h"
#include "meta/model/layout.h"

/** Finds the first colon outside of braces, which ends the pattern of a file; NULL: there is none. */
const char *meta_find_colon(const char *word);
int meta_rules_make(struct meta_layout *layout, const char **lines, size_t nr, struct sc_err *err);

#endif
