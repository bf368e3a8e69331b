/* SPDX-License-Identifier: Apache-2.0 */
/* Shared by layout.c, rule.c and join_rule.c only. */
#ifndef META_LAYOUT_I_H
#define META_LAYOUT_I_H

#include "meta/base/text.h"
#include "meta/model/layout.h"

struct maker {
	struct meta_layout *layout;
	struct meta_cap_names names;
	const char *line;
	struct sc_err *err;
};

#define refuse(m, ...) refuse_((m), __VA_ARGS__)
#define refuse_(m, fmt, ...)                                                                       \
	sc_fail((m)->err, SC_E_LAYOUT, "layout '%s': " fmt, (m)->line, ##__VA_ARGS__)

/** Finds the first colon outside of braces, which ends the pattern of a file; NULL: there is none. */
const char *meta_find_colon(const char *word);
/** Reads an attribute of join_rule.c: 1, 0 (it is another one's) or an error. */
int meta_join_attribute(struct maker *m, struct meta_rule *r, const char *key, const char *value);
/** Checks a rule whose attributes are all read. */
int meta_join_check(struct maker *m, const struct meta_rule *r);
/** Finds the axes that a rule uses by its cuts, stages and captures. */
void meta_rule_set_axes(const struct meta_layout *layout, struct meta_rule *r);
/** Reads the words of `rows=` or `columns=`, or the attribute alone, in a line with `like`. */
int meta_factor_attribute(struct maker *m, const char *key, const char *value, const char **ret);
/** Reads the words of `blocks=`, in a line with `like`. */
int meta_blocks_attribute(struct maker *m, const char *value, const char **ret);
/** Makes the rules of lines; *ret_at is the one that an error is of. */
int meta_rules_make(struct meta_layout *layout, const char **lines, size_t nr, size_t *ret_at, struct sc_err *err);

#endif
