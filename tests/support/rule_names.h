/* SPDX-License-Identifier: Apache-2.0 */
/* Rules of the protocol by name, where they can be taken out (RS_RULES_CAN_BE_OFF). */
#ifndef TEST_RULE_NAMES_H
#define TEST_RULE_NAMES_H

#include "reshard/cluster/protocol/rules.h"

static const struct {
	const char *name;
	bool *off;
} rules[] = {
#define X(name) {#name, &rs_rules_off.name},
	RS_RULES(X)
#undef X
};

#define RULES_NR (sizeof(rules) / sizeof(*rules))

#endif
